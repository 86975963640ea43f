//! `export`: trained weights as the folder that the run started from has them.

use super::output::say;
use crate::error::Result;
use crate::store::export::export as export_files;
use std::path::PathBuf;

/// The arguments of `export`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The trained model: a checkpoint, or its model.safetensors
    checkpoint: PathBuf,
    /// The folder of Hugging Face that the run started from
    like: PathBuf,
    /// The folder to write the model to
    out: PathBuf,
}

/// Writes the model.
///
/// # Errors
/// Files that are missing, damaged, or do not belong together; a disk that fails.
pub async fn export(arguments: &Arguments) -> Result<()> {
    let Arguments { checkpoint, like, out } = arguments;
    let exported = export_files(checkpoint, like, out).await?;
    say!(
        "{} trained tensors and {} of {} written to {}",
        exported.trained,
        exported.copied,
        like.display(),
        out.display()
    );
    Ok(())
}
