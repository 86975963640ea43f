//! `export`: writes trained weights in the form of the folder that the run started from, or a model as a file of
//! llama.cpp.

use super::hub;
use super::output::say;
use super::trained::{open, say_choice};
use crate::data::plural;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::settings::Override;
use crate::store::export::export as export_files;
use crate::store::gguf::{GgufType, GgufWritten};
use serde_json::json;
use std::path::{Path, PathBuf};

/// The types of floats that weights may be written in.
const FLOATS: [Element; 3] = [Element::F32, Element::Bf16, Element::F16];

/// The arguments of `export`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The trained model: a run, whose best checkpoint is taken or the newest, a checkpoint, or its model.safetensors;
    /// with --gguf also a folder of Hugging Face's or the name of a model on the Hub
    checkpoint: PathBuf,
    /// The folder of Hugging Face that the run started from, or the name of that model on the Hub
    #[arg(required_unless_present = "gguf")]
    like: Option<PathBuf>,
    /// The folder to write the model to
    #[arg(required_unless_present = "gguf")]
    out: Option<PathBuf>,
    /// Write one file for llama.cpp instead, with the tokenizer and the chat template; of an adapter the adapter alone
    #[arg(long, value_name = "FILE", conflicts_with_all = ["like", "out"])]
    gguf: Option<PathBuf>,
    /// The type of the weights [default: as the folder of Hugging Face has each; with --gguf f16, and q8_0 and q4_0 are
    /// types, too: llama.cpp's llama-quantize makes others of f16]
    #[arg(long = "type", value_name = "TYPE", value_parser = GgufType::ALL.map(GgufType::name))]
    element: Option<String>,
    /// The tokenizer.json of the model, if the run does not name it
    #[arg(long, value_name = "FILE", requires = "gguf")]
    tokenizer: Option<PathBuf>,
}

/// Writes the model.
///
/// # Errors
/// Files that are missing, damaged, or do not belong together; a disk that fails.
pub fn export(arguments: &Arguments) -> Result<()> {
    let Arguments { checkpoint, like, out, gguf, element, tokenizer } = arguments;
    let (checkpoint, element) = (&hub::folder_of(checkpoint)?, element.as_deref());
    say_choice(checkpoint)?;
    if let Some(gguf) = gguf {
        return export_gguf(checkpoint, gguf, element, tokenizer.as_deref());
    }
    let (Some(like), Some(out)) = (like, out) else { return Ok(()) };
    let like = &hub::folder_of(like)?;
    let float = element.map(|name| {
        let float = FLOATS.into_iter().find(|float| float.name() == name);
        float.ok_or_else(|| {
            Error::config(
                "--type",
                format!("{name} is a type of --gguf FILE; folders have f32, bf16 and f16"),
            )
        })
    });
    let exported = export_files(checkpoint, like, out, float.transpose()?)?;
    say!(
        "{} trained tensors and {} of {} written to {}",
        exported.trained,
        exported.copied,
        like.display(),
        out.display()
    );
    Ok(())
}

/// Writes the model at `path` as the file `out` of llama.cpp.
fn export_gguf(path: &Path, out: &Path, kind: Option<&str>, tokenizer: Option<&Path>) -> Result<()> {
    let kind = GgufType::ALL.into_iter().find(|known| Some(known.name()) == kind).unwrap_or(GgufType::F16);
    let tokenizer =
        tokenizer.map(|file| Override::of("train_dataset.tokenizer", &json!(file.display().to_string())));
    let model = open(path, tokenizer.as_slice())?;
    let GgufWritten { tensors, unquantised, notices } = model.write_gguf(out, kind)?;
    if model.plan.model.low_rank.is_some() {
        eprintln!(
            "notice: the file has the adapter alone, which llama.cpp adds by --lora to a file of its base"
        );
    }
    notices.iter().for_each(|line| eprintln!("notice: {line}"));
    if unquantised > 0 {
        eprintln!(
            "notice: {} of them in f16, since their rows are no whole number of blocks of 32",
            plural(unquantised as u64, "tensor")
        );
    }
    say!("{tensors} tensors in {} written to {}", kind.name(), out.display());
    Ok(())
}
