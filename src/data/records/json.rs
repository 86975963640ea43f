//! Records of JSON: an object on each line, or one array of objects.

use std::path::Path;
use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::Faults;
use super::record::{Record, kind};
use crate::data::documents::Lines;
use crate::data::files;
use crate::error::{Error, Result};

/// What a file of records should look like.
const EXPECTED: &str = "expected a JSON object on each line, or an array of objects";

/// Calls `visit` with each record of a file until it returns false. Blank lines are skipped.
pub(super) fn for_each(path: &Path, visit: &mut dyn FnMut(Record) -> Result<bool>) -> Result<()> {
    let shared: Arc<Path> = Arc::from(path);
    let mut lines = Lines::open(path)?;
    let (mut number, mut records, mut faults) = (0u64, 0u64, Faults::default());
    while let Some(line) = lines.next()? {
        number += 1;
        if line.trim().is_empty() {
            continue;
        }
        if records == 0 && line.trim_start().starts_with('[') {
            return for_each_of_array(&shared, visit);
        }
        records += 1;
        if !faults.go_on(record(&shared, number, line.trim(), 0).and_then(&mut *visit)) {
            break;
        }
    }
    if records == 0 { Err(Error::file(path, format!("has no record; {EXPECTED}"))) } else { faults.finish() }
}

fn for_each_of_array(path: &Arc<Path>, visit: &mut dyn FnMut(Record) -> Result<bool>) -> Result<()> {
    let bytes = files::read(path)?;
    let text =
        std::str::from_utf8(&bytes).map_err(|error| files::not_utf8(path, error.valid_up_to() as u64))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let items: Vec<&RawValue> =
        serde_json::from_str(text).map_err(|error| broken(path, error.line() as u64, &error))?;
    if items.is_empty() {
        return Err(Error::file(&**path, format!("has no record; {EXPECTED}")));
    }
    let (mut line, mut counted, mut faults) = (1, 0, Faults::default());
    for item in items {
        let start = item.get().as_ptr() as usize - text.as_ptr() as usize;
        line += text[counted..start].bytes().filter(|byte| *byte == b'\n').count() as u64;
        counted = start;
        if !faults.go_on(record(path, line, item.get(), line - 1).and_then(&mut *visit)) {
            break;
        }
    }
    faults.finish()
}

/// The object that starts at `line`; `before` are the lines of the file that `text` leaves out.
fn record(path: &Arc<Path>, line: u64, text: &str, before: u64) -> Result<Record> {
    let place = format!("line {line}");
    let fault = |message: String| Error::file(&**path, message);
    let fields: Map<String, Value> = match serde_json::from_str(text) {
        Ok(Value::Object(fields)) => fields,
        Ok(other) => return Err(fault(format!("{place}: {EXPECTED}, found {}", kind(&other)))),
        Err(error) => {
            return Err(broken(path, if before > 0 { before + error.line() as u64 } else { line }, &error));
        }
    };
    Ok(Record { fields, text: text.to_string(), path: path.clone(), place })
}

fn broken(path: &Path, line: u64, error: &serde_json::Error) -> Error {
    let message = error.to_string();
    let reason = message.split(" at line ").next().unwrap_or_default();
    Error::file(
        path,
        format!("line {line}: is not valid JSON ({reason} at column {}); {EXPECTED}", error.column()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &str) -> std::result::Result<Vec<(String, Value)>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.json");
        std::fs::write(&path, content).unwrap();
        let mut records = Vec::new();
        let done = for_each(&path, &mut |record| {
            records.push((record.place, Value::Object(record.fields)));
            Ok(true)
        });
        done.map(|()| records)
            .map_err(|error| error.to_string().replace(&format!("{}: ", path.display()), ""))
    }

    #[test]
    fn lines_and_arrays_are_the_same_records() {
        let lines = read("\u{feff}{\"a\": 1}\r\n\n{\"a\": [2]}").unwrap();
        let array = read("\n[{\"a\": 1},\n\n {\"a\":\n [2]}\n]\n").unwrap();
        assert_eq!(lines.iter().map(|(place, _)| place.as_str()).collect::<Vec<_>>(), ["line 1", "line 3"]);
        assert_eq!(array.iter().map(|(place, _)| place.as_str()).collect::<Vec<_>>(), ["line 2", "line 4"]);
        let values =
            |records: Vec<(String, Value)>| records.into_iter().map(|(_, value)| value).collect::<Vec<_>>();
        assert_eq!(values(lines), values(array));
    }

    #[test]
    fn what_is_broken_is_named_with_its_line() {
        let rest = "expected a JSON object on each line, or an array of objects";
        for (content, message) in [
            ("", format!("has no record; {rest}")),
            ("\n \n", format!("has no record; {rest}")),
            ("[]", format!("has no record; {rest}")),
            (
                "{\"a\": 1}\n{\"a\"",
                format!("line 2: is not valid JSON (EOF while parsing an object at column 4); {rest}"),
            ),
            ("{\"a\": 1}\n3\n", format!("line 2: {rest}, found a number")),
            ("[{\"a\": 1},\n\n7]", format!("line 3: {rest}, found a number")),
            (
                "[{\"a\": 1},\n{\"a\" 2}]",
                format!("line 2: is not valid JSON (expected `:` at column 6); {rest}"),
            ),
        ] {
            assert_eq!(read(content).unwrap_err(), message, "{content:?}");
        }
    }

    proptest::proptest! {
        /// Whatever a file holds, the answer is records, or a line for each of up to ten faults.
        #[test]
        fn no_file_panics(content in "[\\[{}\\]\",:a1\n ]{0,60}") {
            if let Err(message) = read(&content) {
                proptest::prop_assert!(message.lines().count() <= 10, "{message}");
            }
        }
    }
}
