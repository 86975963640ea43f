//! Records of Parquet files.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::Value;

use super::Record;
use crate::data::files;
use crate::error::{Error, Result, foreign};

/// Calls `visit` with each row of a file until it returns false.
pub(super) fn for_each(path: &Path, visit: &mut dyn FnMut(Record) -> Result<bool>) -> Result<()> {
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
        let Value::Object(fields) = foreign(|| row.to_json_value()).map_err(broken)? else { continue };
        let (path, place) = (shared.clone(), format!("row {rows}"));
        if !visit(Record { fields, text: String::new(), path, place })? {
            return Ok(());
        }
    }
    if rows == 0 { Err(Error::file(path, "has no row; name a file with data")) } else { Ok(()) }
}
