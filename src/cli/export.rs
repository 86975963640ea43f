//! `export`: writes trained weights in the form of the folder that the run started from.

use super::hub;
use super::output::say;
use super::trained::say_choice;
use crate::element::Element;
use crate::error::Result;
use crate::store::export::export as export_files;
use std::path::PathBuf;

/// The types of floats that weights may be written in.
const FLOATS: [Element; 3] = [Element::F32, Element::Bf16, Element::F16];

/// The arguments of `export`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The trained model: a run, whose best checkpoint is taken or the newest, a checkpoint, or its model.safetensors
    checkpoint: PathBuf,
    /// The folder of Hugging Face that the run started from, or the name of that model on the Hub
    like: PathBuf,
    /// The folder to write the model to
    out: PathBuf,
    /// The type of the weights [default: as the folder of Hugging Face has each]
    #[arg(long = "type", value_name = "TYPE", value_parser = FLOATS.map(Element::name))]
    element: Option<String>,
}

/// Writes the model.
///
/// # Errors
/// Files that are missing, damaged, or do not belong together; a disk that fails.
pub fn export(arguments: &Arguments) -> Result<()> {
    let Arguments { checkpoint, like, out, element } = arguments;
    let like = &hub::folder_of(like)?;
    say_choice(checkpoint)?;
    let named = |name: &String| FLOATS.into_iter().find(|element| element.name() == name);
    let exported = export_files(checkpoint, like, out, element.as_ref().and_then(named))?;
    say!(
        "{} trained tensors and {} of {} written to {}",
        exported.trained,
        exported.copied,
        like.display(),
        out.display()
    );
    Ok(())
}
