//! The files that a model has beside its weights: tokenizer, chat template, and generation defaults. With them other
//! programs can open a checkpoint, and need nothing else.

use super::OUTPUT_DIR;
use super::base::Base;
use crate::durable::{changed, read_error, read_json_if_present};
use crate::error::Result;
use crate::hugging_face::generation::{self, GenerationConfig};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// Files that belong to a `tokenizer.json`.
const OF_TOKENIZER: [&str; 8] = [
    TOKENIZER_CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
];
/// Files of a chat template. The template in the first file counts, also before one in the configuration of the
/// tokenizer.
const TEMPLATES: [&str; 2] = ["chat_template.jinja", "chat_template.json"];
/// Files that belong to a model.
const OF_MODEL: [&str; 1] = ["generation_config.json"];

/// Further files of models of more than text, and of models with their own code.
const PROCESSORS: [&str; 3] = ["config.json", "preprocessor_config.json", "processor_config.json"];
const CODE: [&str; 3] = [".py", ".txt", ".tiktoken"];

/// The files beside the weights of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ModelAssets {
    /// Files to copy, each with the name that the copy gets.
    copied: Vec<(String, PathBuf)>,
    /// Files that are written where there is no copy.
    made: Vec<(&'static str, Vec<u8>)>,
    /// The model that adapters train on, if it came from files.
    base: Option<Base>,
    /// Tokens at which the model has learned to stop.
    stops: Vec<u32>,
}

/// What turns the text of a run into tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TextBy<'a> {
    /// A tokenizer, and the token that ends a document.
    Tokenizer(&'a Path, &'a str),
    /// Bytes are tokens, and this byte ends a document.
    Bytes(u8),
    /// The data are tokens already.
    Nothing,
}

/// Whether the tokenizer, the chat template and the other files of a model's text in `folder` are as they were before
/// `since`: none of them is newer, and none was removed.
pub(crate) fn are_older(folder: &Path, since: SystemTime) -> bool {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let names = OF_MODEL.iter().chain(&[TOKENIZER]).chain(&OF_TOKENIZER);
    let there = names.map(|name| folder.join(name)).filter(|file| file.exists());
    // Removing a file makes its folder newer.
    there.chain([folder.to_path_buf()]).all(|path| changed(&path).is_some_and(|time| time < since))
}

impl ModelAssets {
    /// The files of a run whose text is read `by` this, and that starts from the weights at `weights`, if there are
    /// any.
    pub fn of(by: TextBy<'_>, weights: Option<&Path>) -> Self {
        let folder = weights.map(|path| if path.is_dir() { path } else { path.parent().unwrap_or(path) });
        let of_model =
            folder.into_iter().flat_map(|folder| OF_MODEL.map(|name| (name.to_string(), folder.join(name))));
        let mut beside = Self { copied: of_model.collect(), ..Self::default() };
        match by {
            TextBy::Tokenizer(file, eos_token) => {
                beside.copied.push((TOKENIZER.to_string(), file.to_path_buf()));
                // The files beside a tokenizer of another name belong to another tokenizer.
                if file.file_name().is_some_and(|name| name == TOKENIZER) {
                    beside
                        .copied
                        .extend(OF_TOKENIZER.map(|name| (name.to_string(), file.with_file_name(name))));
                }
                beside.made.push((TOKENIZER_CONFIG, bytes_of(&tokenizer_config(eos_token))));
            }
            TextBy::Bytes(eod) => {
                let config = tokenizer_config(&letter_of(eod).to_string());
                let made = [(TOKENIZER, byte_tokenizer()), (TOKENIZER_CONFIG, config)];
                beside.made.extend(made.map(|(name, value)| (name, bytes_of(&value))));
            }
            TextBy::Nothing => {}
        }
        beside
    }

    /// The files of the model at `weights`, a file or its folder, with the code and the processors that some models
    /// have.
    ///
    /// # Errors
    /// A folder that cannot be read.
    pub fn of_model(weights: &Path) -> Result<Self> {
        let folder = if weights.is_dir() { weights } else { weights.parent().unwrap_or(Path::new(".")) };
        let entries = std::fs::read_dir(folder).map_err(|error| read_error(folder, "read", &error))?;
        let is_known = |name: &str| {
            let ends = CODE.iter().any(|end| name.ends_with(end));
            ends || [&OF_MODEL[..], &[TOKENIZER], &OF_TOKENIZER, &PROCESSORS].concat().contains(&name)
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let copied = names.filter(|name| is_known(name)).map(|name| (name.clone(), folder.join(name)));
        Ok(Self { copied: copied.collect(), ..Self::default() })
    }

    /// Replaces the chat template by the one in `file`, if one is named: the conversations were written by it, and not
    /// by the tokenizer's template.
    pub fn with_template(mut self, file: Option<&Path>) -> Self {
        if let Some(file) = file {
            self.copied.retain(|(name, _)| !TEMPLATES.contains(&name.as_str()));
            self.copied.push((TEMPLATES[0].to_string(), file.to_path_buf()));
        }
        self
    }

    /// Replaces files by those of `trained`, a checkpoint or the folder of an adapter, where it has them. If it has a
    /// tokenizer, all files of the tokenizer are replaced, since they belong together.
    pub fn under(mut self, trained: &Path) -> Self {
        let has_tokenizer = trained.join(TOKENIZER).is_file();
        if has_tokenizer {
            self.copied.retain(|(name, _)| name != TOKENIZER && !OF_TOKENIZER.contains(&name.as_str()));
        }
        let own: &[&str] = if has_tokenizer { &OF_TOKENIZER } else { &TEMPLATES };
        for name in own.iter().chain(&OF_MODEL).chain(&[TOKENIZER]) {
            let file = trained.join(name);
            if file.is_file() {
                self.copied.retain(|(known, _)| known != name);
                self.copied.push(((*name).to_string(), file));
            }
        }
        self
    }

    /// Adds tokens at which the model stops too; its `generation_config.json` then lists them.
    pub fn stopping_at(self, stops: Vec<u32>) -> Self {
        Self { stops, ..self }
    }

    /// Sets the base of the adapters, which checkpoints name.
    pub fn on(self, base: Option<Base>) -> Self {
        Self { base, ..self }
    }

    /// The model that adapters train on, if it came from files.
    pub fn base(&self) -> Option<&Base> {
        self.base.as_ref()
    }

    /// Writes the files that are there into `folder`. A file that is gone since is taken from the checkpoint `newest`,
    /// if it has that file.
    ///
    /// # Errors
    /// A file that cannot be read; a disk that fails.
    pub fn write(&self, folder: &Path, newest: Option<&Path>) -> Result<()> {
        for (name, from) in &self.copied {
            let kept = newest.map(|newest| newest.join(name));
            if let Some(file) = [Some(from), kept.as_ref()].into_iter().flatten().find(|file| file.is_file())
            {
                let bytes = std::fs::read(file).map_err(|error| read_error(file, "read", &error))?;
                OUTPUT_DIR.write(&folder.join(name), &bytes)?;
            }
        }
        let left = self.made.iter().map(|(name, bytes)| (folder.join(name), bytes));
        left.filter(|(file, _)| !file.exists())
            .try_for_each(|(file, bytes)| OUTPUT_DIR.write(&file, bytes))?;
        add_stops(folder, &self.stops)
    }
}

/// Says in the `generation_config.json` of `folder` that the model stops at these tokens, too.
fn add_stops(folder: &Path, stops: &[u32]) -> Result<()> {
    if stops.is_empty() {
        return Ok(());
    }
    let known = GenerationConfig::of(folder)?.stops;
    let mut all = known.clone();
    all.extend(stops.iter().filter(|stop| !known.contains(stop)));
    if all == known {
        return Ok(());
    }
    let file = folder.join(generation::FILE);
    let read = read_json_if_present(&file, "a generation configuration", "fetch it again, or remove it");
    let mut config: Map<String, Value> = read?.unwrap_or_default();
    config.insert("eos_token_id".to_string(), json!(all));
    OUTPUT_DIR.write(&file, &bytes_of(&config.into()))
}

fn bytes_of(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

fn tokenizer_config(eos_token: &str) -> Value {
    json!({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos_token, "clean_up_tokenization_spaces": false})
}

/// A tokenizer of 256 tokens, each of which is the byte of its number.
fn byte_tokenizer() -> Value {
    let vocab: Map<String, Value> =
        (0..=255).map(|byte| (letter_of(byte).to_string(), byte.into())).collect();
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null, "pre_tokenizer": level,
        "post_processor": null, "decoder": level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": [],
        },
    })
}

/// The letter by which byte-level tokenizers write a byte: the byte itself if it can be seen, otherwise the next letter
/// from U+0100 on, as in GPT-2's tokenizer.
fn letter_of(byte: u8) -> char {
    let is_seen = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let place = (0..byte).filter(|other| !is_seen(other)).count() as u32;
    match is_seen(&byte) {
        true => char::from(byte),
        false => char::from_u32(256 + place).unwrap_or(char::REPLACEMENT_CHARACTER),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn files_of_tokenizer_and_model_are_copied() {
        let [theirs, checkpoint, next] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let file = theirs.path().join(TOKENIZER);
        for name in [TOKENIZER, "chat_template.jinja", "generation_config.json", "README.md"] {
            fs::write(theirs.path().join(name), name).unwrap();
        }
        let names = |folder: &Path| {
            let entries =
                fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = entries.collect();
            names.sort();
            names
        };
        let by = TextBy::Tokenizer(&file, "</s>");
        let beside = ModelAssets::of(by, Some(&theirs.path().join("model.safetensors")));
        beside.write(checkpoint.path(), None).unwrap();
        let all = ["chat_template.jinja", "generation_config.json", TOKENIZER, TOKENIZER_CONFIG];
        assert_eq!(names(checkpoint.path()), all);
        // Files that are gone are taken from the checkpoint before.
        let left = theirs.path().join("chat_template.jinja");
        fs::remove_file(left).unwrap();
        beside.write(next.path(), Some(checkpoint.path())).unwrap();
        assert_eq!(names(next.path()), all);

        // The stop tokens that the model has learned are added to those of its publishers.
        let config = theirs.path().join("generation_config.json");
        let stops = |stops: Vec<u32>, to: &Path| {
            beside.clone().stopping_at(stops).write(to, None).unwrap();
            GenerationConfig::of(to).unwrap().stops
        };
        fs::write(&config, r#"{"eos_token_id": 2, "top_k": 5}"#).unwrap();
        let to = tempfile::tempdir().unwrap();
        assert_eq!(stops(vec![2], to.path()), [2]);
        assert_eq!(stops(vec![7, 2], to.path()), [2, 7]);
        assert_eq!(GenerationConfig::of(to.path()).unwrap().top_k, Some(5));
        let exported = tempfile::tempdir().unwrap();
        beside.clone().under(to.path()).write(exported.path(), None).unwrap();
        assert_eq!(GenerationConfig::of(exported.path()).unwrap().stops, [2, 7]);

        let other = theirs.path().join("other.json");
        fs::rename(&file, &other).unwrap();
        let alone = tempfile::tempdir().unwrap();
        ModelAssets::of(TextBy::Tokenizer(&other, "</s>"), None).write(alone.path(), None).unwrap();
        assert_eq!(names(alone.path()), [TOKENIZER, TOKENIZER_CONFIG]);
        assert_eq!(ModelAssets::of(TextBy::Nothing, None), ModelAssets::default());
    }
}
