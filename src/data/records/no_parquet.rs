//! Parquet in a build without the feature `parquet`: an error that names the feature.

use std::path::Path;

use super::unparsed::Unparsed;
use crate::error::{Error, Result};

pub(super) fn read(path: &Path, _: &mut dyn FnMut(Unparsed) -> bool) -> Result<()> {
    let remedy = "build gristmill with the feature `parquet`, or convert the file to JSON lines";
    Err(Error::file(path, format!("this build reads no Parquet; {remedy}")))
}
