//! The lines of `monitor_config`, in the format of MindFormers' TrainingStateMonitor.

use super::instrument::{Instrument, StepReport};
use super::metrics::{MonitorValue, Numbers};
use super::progress::{Position, ProgressPlan};
use crate::error::Result;
use std::collections::BTreeMap;

/// Where the numbers of `monitor_config` go, by the part of their tags before the first `/`. They are in `metrics.jsonl` always.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MonitorFormats(BTreeMap<String, Destination>);

/// Where a number goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Destination {
    /// Whether it is a line of the log.
    pub to_log: bool,
    /// Whether it is a scalar of TensorBoard.
    pub to_tensorboard: bool,
}

impl MonitorFormats {
    /// Says where the numbers go whose tags start with `prefix`.
    pub fn set(&mut self, prefix: impl Into<String>, goes: Destination) {
        self.0.insert(prefix.into(), goes);
    }

    /// Where the number of `tag` goes; nowhere unless it was said.
    pub fn of(&self, tag: &str) -> Destination {
        let prefix = tag.split_once('/').map_or(tag, |(prefix, _)| prefix);
        self.0.get(prefix).copied().unwrap_or_default()
    }
}

/// The log lines of `monitor_config`.
#[derive(Clone, Debug, Default)]
pub struct MonitorLines {
    /// Where steps are in the run.
    pub plan: ProgressPlan,
    /// Which numbers have lines.
    pub formats: MonitorFormats,
}

impl Instrument for MonitorLines {
    fn step(&mut self, report: &StepReport<'_>) -> Result<()> {
        let place = self.plan.place(report.metrics.step);
        let logged = report.watched.iter().filter(|value| self.formats.of(&value.tag).to_log);
        logged.flat_map(|value| monitor_lines(&place, value)).for_each(|line| tracing::info!("{line}"));
        Ok(())
    }
}

/// The single numbers among `values`, by tag; `None` if there are no values.
pub(crate) fn singles(values: &[MonitorValue]) -> Option<BTreeMap<String, f32>> {
    let single = |value: &MonitorValue| match value.numbers {
        Numbers::One(number) => Some((value.tag.clone(), number)),
        Numbers::Lines(_) | Numbers::List(_) => None,
    };
    (!values.is_empty()).then(|| values.iter().filter_map(single).collect())
}

/// The lines of a tag in the log.
///
/// ```
/// use gristmill::report::metrics::MonitorValue;
/// use gristmill::report::monitor_lines::monitor_lines;
/// use gristmill::report::progress::Position;
/// let place = Position { epoch: 1, epochs: 2, step: 10, steps: 500 };
/// assert_eq!(
///     monitor_lines(&place, &MonitorValue::one("weight_norm", 41.86718)),
///     ["Epoch:[  1/  2], step:[   10/  500] weight_norm: 41.8672"]
/// );
/// ```
pub fn monitor_lines(place: &Position, value: &MonitorValue) -> Vec<String> {
    let Position { epoch, epochs, step, steps } = place;
    let tag = &value.tag;
    let line =
        |text: String| format!("Epoch:[{epoch:3}/{epochs:3}], step:[{step:5}/{steps:5}] {tag}: {text}");
    match &value.numbers {
        Numbers::One(number) => vec![line(fixed(*number))],
        Numbers::Lines(numbers) => numbers.iter().map(|number| line(fixed(*number))).collect(),
        Numbers::List(numbers) => {
            let list: Vec<String> = numbers.iter().map(|number| fixed(*number)).collect();
            vec![line(format!("[{}]", list.join(", ")))]
        }
    }
}

/// Four decimals, as Python's `%.4f`.
fn fixed(number: f32) -> String {
    format!("{number:.4}").to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_read_as_the_original() {
        let place = Position { epoch: 12, epochs: 1000, step: 123_456, steps: 7 };
        let tag = "local_norm/layers.0.attention.wo";
        let texts = |numbers| {
            let lines = monitor_lines(&place, &MonitorValue { tag: tag.into(), numbers });
            let head = format!("Epoch:[ 12/1000], step:[123456/    7] {tag}: ");
            let text = |line: &String| line.strip_prefix(&head).expect("the head of every line").to_string();
            lines.iter().map(text).collect::<Vec<_>>()
        };
        assert_eq!(texts(Numbers::One(0.00004)), ["0.0000"]);
        assert_eq!(texts(Numbers::One(123_456.79)), ["123456.7891"]);
        assert_eq!(texts(Numbers::Lines(vec![f32::INFINITY, f32::NAN])), ["inf", "nan"]);
        assert_eq!(texts(Numbers::List(vec![1.0, -2.5])), ["[1.0000, -2.5000]"]);
    }

    #[test]
    fn single_numbers_are_kept_by_tag() {
        let several = MonitorValue { tag: "b".into(), numbers: Numbers::Lines(vec![1.0, 2.0]) };
        let values = [MonitorValue::one("a", 0.5), several];
        assert_eq!(singles(&values), Some(BTreeMap::from([("a".to_string(), 0.5)])));
        assert_eq!(singles(&[]), None);
    }

    #[test]
    fn the_first_part_of_a_tag_says_where_it_goes() {
        let mut formats = MonitorFormats::default();
        formats.set("local_norm", Destination { to_log: true, to_tensorboard: false });
        assert!(formats.of("local_norm/embedding").to_log && formats.of("local_norm").to_log);
        assert_eq!(formats.of("local_norms/embedding"), Destination::default());
    }
}
