//! Records of Parquet files.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use serde_json::Value;

use super::record::Record;
use super::unparsed::Unparsed;
use crate::data::files;
use crate::error::{Error, Result, foreign};

/// Calls `give` with each row of a file until it returns false.
pub(super) fn read(path: &Path, give: &mut dyn FnMut(Unparsed) -> bool) -> Result<()> {
    let shared: Arc<Path> = Arc::from(path);
    let unreadable = |error: parquet::errors::ParquetError| {
        let reason = error.to_string().replace('\n', " ");
        Error::file(
            path,
            format!("cannot be read as Parquet ({reason}); write it again, uncompressed or with snappy"),
        )
    };
    let broken = |panic: String| unreadable(parquet::errors::ParquetError::General(panic));
    let file = File::open(path).map_err(|error| files::unreadable(path, &error))?;
    let reader = foreign(|| SerializedFileReader::new(file)).map_err(broken)?.map_err(unreadable)?;
    let mut rows = 0u64;
    let mut iterator = foreign(|| reader.get_row_iter(None)).map_err(broken)?.map_err(unreadable)?;
    while let Some(row) = foreign(|| iterator.next()).map_err(broken)? {
        rows += 1;
        let row = row.map_err(unreadable)?;
        let text = foreign(|| object(row.get_column_iter())).map_err(broken)?;
        let Ok(Value::Object(fields)) = serde_json::from_str(&text) else { continue };
        let (path, place) = (shared.clone(), format!("row {rows}"));
        if !give(Unparsed::Parsed(Record { fields, text, path, place })) {
            break;
        }
    }
    if rows == 0 { Err(Error::file(path, "has no row; name a file with data")) } else { Ok(()) }
}

/// A group as JSON, its columns in order. A schema has every column that any row has, so a column that is null did not
/// exist in this row.
fn object<'a>(columns: impl Iterator<Item = (&'a String, &'a Field)>) -> String {
    let there = columns.filter(|(_, field)| !matches!(field, Field::Null));
    let pairs = there.map(|(name, field)| format!("{}: {}", Value::from(name.as_str()), json(field)));
    format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
}

fn json(field: &Field) -> String {
    match field {
        Field::Group(group) => object(group.get_column_iter()),
        Field::ListInternal(list) => {
            format!("[{}]", list.elements().iter().map(json).collect::<Vec<_>>().join(", "))
        }
        Field::MapInternal(map) => {
            let key = |field: &Field| match field {
                Field::Str(text) => Value::from(text.as_str()).to_string(),
                other => Value::from(json(other)).to_string(),
            };
            let pairs = map.entries().iter().map(|(name, value)| format!("{}: {}", key(name), json(value)));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
        }
        one => one.to_json_value().to_string(),
    }
}
