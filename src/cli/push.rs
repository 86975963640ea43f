//! `push`: sends a model or an adapter to the Hugging Face Hub, with a card that says how it came about.

mod card;

use self::card::Card;
use super::hub::Shown;
use super::output::say;
use super::trained::say_choice;
use crate::durable::{read_error, read_json};
use crate::error::{Error, Result};
use crate::hugging_face::hub::{Content, Hub, Upload, is_of_model, name_of_snapshot};
use crate::hugging_face::{is_name_of_hub, name_of_hub};
use crate::store::model_path::{adapter_of, chosen, run_of};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

const CARD: &str = "README.md";
/// What checkpoints and runs have beside a model.
const OF_RUNS: [&str; 4] = ["trainer_state.json", "base.json", "meta.json", "best.json"];
const OF_OPTIMIZER: &str = "optimizer";

/// The arguments of `push`.
#[derive(clap::Args)]
pub struct Arguments {
    /// What to send: a run, whose best checkpoint is taken or the newest, a checkpoint, an adapter, or a folder that `merge`
    /// or `export` wrote
    folder: PathBuf,
    /// Its name on the Hub, such as me/my-model; it is created where there is none
    name: String,
    /// Create it for your eyes only
    #[arg(long)]
    private: bool,
    /// The name on the Hub of the model that an adapter is for, if that was not fetched by its name
    #[arg(long, value_name = "NAME")]
    base_model: Option<String>,
}

/// Sends the files of a model in one commit.
///
/// # Errors
/// There is no token, or it may not write there; files that are missing; a network that breaks off.
pub fn push(arguments: &Arguments) -> Result<()> {
    let Arguments { folder, name, private, base_model } = arguments;
    for (flag, name) in [("NAME", Some(name)), ("--base-model", base_model.as_ref())] {
        if let Some(name) = name.filter(|name| !is_name_of_hub(name)) {
            return Err(Error::config(flag, format!("`{name}` is no name on the Hub, such as me/my-model")));
        }
    }
    let hub = Hub::of_environment()?;
    hub.check_pushes(name)?;
    say_choice(folder)?;
    let checkpoint = chosen(folder)?;
    let adapter = adapter_of(&checkpoint);
    let base = match &adapter {
        Some(adapter) => Some(base_name(adapter, base_model.as_deref())?),
        None => base_model.clone(),
    };
    let mut files = files_of(&checkpoint, adapter.as_deref(), base.as_deref())?;
    // That of an adapter which PEFT wrote says nothing but its base, as a folder.
    files.retain(|file| adapter.is_none() || file.name != CARD);
    if !files.iter().any(|file| file.name == CARD) {
        let card =
            Card::of(name, &checkpoint, run_of(folder).as_deref(), adapter.as_deref(), base.as_deref())?;
        files.push(Upload { name: CARD.into(), content: Content::Text(card.text()) });
    }
    let mut shown = Shown::new(name, "sending");
    let page = hub.push(name, *private, &format!("Add {name} by gristmill"), &files, &mut shown)?;
    drop(shown);
    say!("{} files sent to {page}", files.len());
    Ok(())
}

/// The files of the checkpoint, or of the adapter in it, which names `base`.
fn files_of(checkpoint: &Path, adapter: Option<&Path>, base: Option<&str>) -> Result<Vec<Upload>> {
    let mut files: Vec<Upload> = Vec::new();
    for folder in [adapter, Some(checkpoint)].into_iter().flatten() {
        let entries = fs::read_dir(folder).and_then(|entries| entries.collect::<std::io::Result<Vec<_>>>());
        let mut names: Vec<String> = entries
            .map_err(|error| read_error(folder, "read", &error))?
            .into_iter()
            .filter(|entry| entry.path().is_file())
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        let is_within = |name: &str| match adapter {
            // The checkpoint of an adapter also has a description of the model.
            Some(adapter) if folder != adapter => name != "config.json",
            _ => true,
        };
        for name in names {
            let is_sent = name == CARD || is_of_model(&name);
            let is_of_run = OF_RUNS.contains(&&*name) || name.starts_with(OF_OPTIMIZER);
            if is_sent && !is_of_run && is_within(&name) && !files.iter().any(|file| file.name == name) {
                let content = Content::File(folder.join(&name));
                files.push(Upload { name, content });
            }
        }
    }
    for file in &mut files {
        if let (Some(base), Content::File(path), "adapter_config.json") = (base, &file.content, &*file.name) {
            let mut config: Value = read_json(path, "the description of an adapter", "save it again")?;
            config["base_model_name_or_path"] = base.into();
            file.content = Content::Text(format!("{config:#}\n"));
        }
    }
    match files.iter().any(|file| file.name.ends_with(".safetensors")) {
        true => Ok(files),
        false => Err(Error::file(
            checkpoint,
            "has no safetensors; name a run, a checkpoint, or a folder with a model",
        )),
    }
}

/// The name on the Hub of the model that the adapter is for.
fn base_name(adapter: &Path, given: Option<&str>) -> Result<String> {
    let path = adapter.join("adapter_config.json");
    let config: Value = read_json(&path, "the description of an adapter", "save it again")?;
    let named = config["base_model_name_or_path"].as_str().unwrap_or_default();
    let known =
        || name_of_snapshot(Path::new(named)).or_else(|| name_of_hub(Path::new(named)).map(str::to_owned));
    given.map(str::to_owned).or_else(known).ok_or_else(|| {
        let message = format!("its base `{named}` is a folder of this disk; name it as it is on the Hub, by --base-model me/my-base");
        Error::file(&path, message)
    })
}
