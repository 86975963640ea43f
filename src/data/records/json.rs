//! Records in JSON: an object on each line, or one array of objects.

use std::path::Path;
use std::sync::Arc;

use serde_json::value::RawValue;

use super::unparsed::{EXPECTED, Unparsed, broken};
use crate::data::documents::Lines;
use crate::data::files;
use crate::error::{Error, Result};

/// Calls `give` with each record of a file until it returns false. Blank lines are skipped.
pub(super) fn read(path: &Path, give: &mut dyn FnMut(Unparsed) -> bool) -> Result<()> {
    let shared: Arc<Path> = Arc::from(path);
    let mut lines = Lines::open(path)?;
    let (mut number, mut records) = (0u64, 0u64);
    while let Some(line) = lines.next()? {
        number += 1;
        let text = line.trim();
        if text.is_empty() {
            continue;
        }
        if records == 0 && text.starts_with('[') {
            return read_array(&shared, give);
        }
        records += 1;
        let text = text.to_string();
        if !give(Unparsed::Json { path: shared.clone(), line: number, is_item: false, text }) {
            break;
        }
    }
    if records == 0 { Err(Error::file(path, format!("has no record; {EXPECTED}"))) } else { Ok(()) }
}

fn read_array(path: &Arc<Path>, give: &mut dyn FnMut(Unparsed) -> bool) -> Result<()> {
    let bytes = files::read(path)?;
    let text =
        std::str::from_utf8(&bytes).map_err(|error| files::not_utf8(path, error.valid_up_to() as u64))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let items: Vec<&RawValue> =
        serde_json::from_str(text).map_err(|error| broken(path, error.line() as u64, &error))?;
    if items.is_empty() {
        return Err(Error::file(&**path, format!("has no record; {EXPECTED}")));
    }
    let (mut line, mut counted) = (1, 0);
    for item in items {
        let start = item.get().as_ptr() as usize - text.as_ptr() as usize;
        line += text[counted..start].bytes().filter(|byte| *byte == b'\n').count() as u64;
        counted = start;
        let text = item.get().to_string();
        if !give(Unparsed::Json { path: path.clone(), line, is_item: true, text }) {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    fn read(content: &str) -> std::result::Result<Vec<(String, Value)>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.json");
        std::fs::write(&path, content).unwrap();
        let mut records = Vec::new();
        let done = crate::data::records::for_each(&path, &mut |record| {
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
}
