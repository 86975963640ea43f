//! Records of tables in text files: comma-separated (.csv) or tab-separated (.tsv). The first line names the columns.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::record::Record;
use super::unparsed::Unparsed;
use crate::data::files;
use crate::error::{Error, Result};

/// Calls `give` with each row of a file until it returns false. An empty cell is an empty text.
pub(super) fn read(path: &Path, give: &mut dyn FnMut(Unparsed) -> bool) -> Result<()> {
    let shared: Arc<Path> = Arc::from(path);
    let bytes = files::read(path)?;
    let text =
        std::str::from_utf8(&bytes).map_err(|error| files::not_utf8(path, error.valid_up_to() as u64))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let delimiter = if files::has_extension(path, &["tsv"]) { b'\t' } else { b',' };
    let mut reader = csv::ReaderBuilder::new().delimiter(delimiter).from_reader(text.as_bytes());
    let broken = |error: csv::Error| {
        let line = error.position().map_or(String::new(), |place| format!("line {}: ", place.line()));
        let reason = match error.kind() {
            csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
                format!(
                    "has {len} cells, and the first line names {expected_len} columns; quote cells with a separator in them"
                )
            }
            _ => format!("is no row of a table ({})", error.to_string().replace('\n', " ")),
        };
        Error::file(path, format!("{line}{reason}"))
    };
    let columns = reader.headers().map_err(broken)?.clone();
    let mut rows = 0u64;
    for row in reader.records() {
        rows += 1;
        let row = match row {
            Ok(row) => row,
            Err(error) => match give(Unparsed::Faulty(broken(error))) {
                true => continue,
                false => break,
            },
        };
        let place = format!("line {}", row.position().map_or(rows + 1, csv::Position::line));
        let cells =
            columns.iter().zip(&row).map(|(column, cell)| (column.trim().to_string(), Value::from(cell)));
        let cells: Vec<(String, Value)> = cells.collect();
        // Columns keep their order.
        let pairs = cells.iter().map(|(key, cell)| format!("{}: {cell}", Value::from(key.as_str())));
        let text = format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "));
        let fields: Map<String, Value> = cells.into_iter().collect();
        if !give(Unparsed::Parsed(Record { fields, text, path: shared.clone(), place })) {
            break;
        }
    }
    if rows == 0 {
        return Err(Error::file(path, "has no row below the names of its columns; name a file with data"));
    }
    Ok(())
}
