//! Folders of Hugging Face: what the class of a `config.json` computes, what our models are called there, and the
//! tokenizer beside it.

pub(crate) mod config_json;
pub(crate) mod export;
pub mod generation;
pub(crate) mod gguf;
#[cfg(feature = "hub")]
pub(crate) mod hub;
pub(crate) mod tokenizer;

use crate::error::{Error, Result};
use std::path::{Path, PathBuf};

/// Refuses a name of a model on a hub, such as `Qwen/Qwen2.5-0.5B`, where a folder is needed: nothing is fetched.
///
/// # Errors
/// There is nothing at `path`, and it is such a name.
pub(crate) fn refuse_name_of_hub(path: &Path) -> Result<()> {
    let refused = |name| Error::file(path, format!("is no folder here; {}", if_of_hub(name)));
    name_of_hub(path).map_or(Ok(()), |name| Err(refused(name)))
}

/// Ends of names that files have, and no models.
const FILES: [&str; 7] = [".yaml", ".yml", ".json", ".jsonl", ".txt", ".safetensors", ".gguf"];

/// `path` as the name of a model on a hub, if nothing is there and it may be one.
pub(crate) fn name_of_hub(path: &Path) -> Option<&str> {
    let name = path.to_str().filter(|name| !path.exists() && is_name_of_hub(name))?;
    // A folder that exists is not the name of an owner.
    let owner = name.split_once('/').map_or(name, |(owner, _)| owner);
    Some(name).filter(|_| !Path::new(owner).exists())
}

/// Whether a model on a hub may have this name; files have endings.
pub(crate) fn is_name_of_hub(name: &str) -> bool {
    let Some((owner, model)) = name.split_once('/') else { return false };
    let is_name = |part: &str| {
        let is_known = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
        part.starts_with(|char: char| char.is_ascii_alphanumeric()) && part.chars().all(is_known)
    };
    is_name(owner) && is_name(model) && !FILES.iter().any(|end| model.ends_with(end))
}

/// What to do about the name of a model where a folder has to be.
pub(crate) fn if_of_hub(name: &str) -> String {
    format!("if it is a model of the Hugging Face Hub, {}", by_command(name))
}

/// How to get a folder with the model `name`.
fn by_command(name: &str) -> String {
    let model = name.rsplit('/').next().unwrap_or(name);
    format!("download it, as by `hf download {name} --local-dir {model}`, and name that folder")
}

/// The file `name` beside `weights`, which are a file or its folder.
pub(crate) fn beside_weights(weights: &Path, name: &str) -> PathBuf {
    if weights.is_dir() { weights.join(name) } else { weights.with_file_name(name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_a_hub_says_what_to_download() {
        let line = refuse_name_of_hub(Path::new("Qwen/Qwen2.5-0.5B")).unwrap_err().to_string();
        assert!(line.contains("`hf download Qwen/Qwen2.5-0.5B --local-dir Qwen2.5-0.5B`"), "{line}");
        for path in ["output", "a/b/c", "./a", "../a", "/a", "a/", "src/none", "a b/c", "a/b.yaml"] {
            assert!(refuse_name_of_hub(Path::new(path)).is_ok(), "{path}");
        }
    }
}
