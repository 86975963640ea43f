//! The launches of a recording as a table.

use super::Line;
use std::fmt;

/// Launches that take a smaller share of a recording are summed up in one line.
pub(super) const SHOWN: f64 = 0.01;

/// The lines of a recording, the slowest first, in columns: measured values and those of the model, as far as there are
/// any.
pub struct Table<'a> {
    /// The lines.
    pub lines: &'a [Line],
    /// Whether there is a column for everything that the model counts.
    pub is_detailed: bool,
}

/// A column: its heading, and its text for a line.
type Column = (&'static str, fn(&Line) -> String);

const SHARED: [Column; 1] = [("launches", |line| line.launches.to_string())];

const MEASURED: [Column; 3] = [
    ("GFLOP/s", |line| rate(line, line.flops, 1)),
    ("GB/s", |line| rate(line, line.bytes, 1)),
    ("model ms", |line| {
        line.modelled.map_or("-".to_string(), |_| format!("{:.2}", 1e3 * line.modelled_seconds()))
    }),
];

const DETAILS: [Column; 6] = [
    ("GFLOP", |line| format!("{:.1}", f64::from(line.launches) * line.flops / 1e9)),
    ("MB", |line| format!("{:.1}", f64::from(line.launches) * line.bytes / 1e6)),
    ("LDS MB", |line| {
        let bytes = line.shared_bytes.map(|bytes| f64::from(line.launches) * bytes / 1e6);
        bytes.map_or("-".to_string(), |megabytes| format!("{megabytes:.0}"))
    }),
    ("barriers", |line| format!("{:.0}", line.barriers)),
    ("workgroups/slots", |line| {
        let slots = line.modelled.map_or(String::new(), |modelled| format!("/{}", modelled.slots));
        format!("{}{slots}", line.workgroups)
    }),
    ("used", |line| line.modelled.map_or("-".to_string(), |modelled| format!("{:.2}", modelled.time.share))),
];

const BOUND: Column =
    ("bound", |line| line.modelled.map_or("-".to_string(), |modelled| modelled.time.bound().to_string()));

/// The rate at which a line does `work`, in 10⁹ per second.
fn rate(line: &Line, work: f64, digits: usize) -> String {
    let seconds = line.measured.unwrap_or(0.0);
    match work > 0.0 && seconds > 0.0 {
        true => format!("{:.digits$}", f64::from(line.launches) * work / seconds / 1e9),
        false => "-".to_string(),
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lines, is_detailed } = *self;
        let step = super::seconds(lines);
        let is_measured = lines.iter().any(|line| line.measured.is_some());
        let is_modelled = lines.iter().any(|line| line.modelled.is_some());
        let columns: Vec<Column> = SHARED
            .into_iter()
            .chain(
                MEASURED.into_iter().filter(|(name, _)| is_measured && (is_modelled || *name != "model ms")),
            )
            .chain(DETAILS.into_iter().filter(|(name, _)| is_detailed && (is_modelled || *name != "used")))
            .chain(is_modelled.then_some(BOUND))
            .collect();
        let shown: Vec<&Line> = lines.iter().filter(|line| line.seconds() >= SHOWN * step).collect();
        let cells: Vec<Vec<String>> =
            shown.iter().map(|line| columns.iter().map(|(_, of)| of(line)).collect()).collect();
        let widths: Vec<usize> = columns
            .iter()
            .enumerate()
            .map(|(at, (name, _))| cells.iter().map(|row| row[at].len()).fold(name.len(), usize::max))
            .collect();
        write!(f, "      ms  share")?;
        columns.iter().zip(&widths).try_for_each(|((name, _), width)| write!(f, " {name:>width$}"))?;
        write!(f, "  launch")?;
        for (line, row) in shown.iter().zip(&cells) {
            write!(f, "\n{:8.2} {:5.1}%", 1e3 * line.seconds(), 100.0 * line.seconds() / step)?;
            row.iter().zip(&widths).try_for_each(|(cell, width)| write!(f, " {cell:>width$}"))?;
            write!(f, "  {}", line.name)?;
        }
        let others = &lines[shown.len()..];
        if others.is_empty() {
            return Ok(());
        }
        let (count, sum): (u32, f64) =
            (others.iter().map(|line| line.launches).sum(), super::seconds(others));
        write!(f, "\n{:8.2} {:5.1}% {count:>8}  others", 1e3 * sum, 100.0 * sum / step)
    }
}
