//! The model that a `config.json` describes, by the keys of a configuration.

use super::classes::{Fact, Reading};
use super::{accepting, beside, is_of_nearest_class, ours, read, shown, theirs, unknown_class};
use crate::error::{Error, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What a file says of a model.
pub(crate) struct Shape {
    /// The file.
    pub file: PathBuf,
    /// The class whose weights it describes, as the file names it, or else its `model_type`.
    pub class: String,
    /// What the class computes, by the keys of `model_config` and of `moe_config` that decide it.
    pub facts: Vec<(&'static str, Fact)>,
    /// Tokens of a window: as many as are written, or else as the model is made for, up to [`LONGEST_WINDOW`].
    pub length: usize,
    /// Tokens of the longest text that the model is made for.
    pub longest: Option<usize>,
}

/// The longest window by default: longer ones take memory that few need.
const LONGEST_WINDOW: usize = 2048;

impl Shape {
    /// The shape in the `config.json` in `folder`, or beside the file of weights `folder`, for windows of `written`
    /// tokens; `None` if there is no such file. The shape leaves out what concerns only texts that are longer than
    /// windows and than the model is made for, and what the `ignored` keys say.
    ///
    /// # Errors
    /// A file that cannot be read; a class that is not known here; something that no key says.
    pub fn of(folder: &Path, written: Option<usize>, ignored: &[String]) -> Result<Option<Self>> {
        let file = beside(folder);
        let Some(config) = read(&file)? else { return Ok(None) };
        let error = |message: String| Error::file(&file, message);
        if is_of_nearest_class(&config) {
            let message = "names the class nearest to a model that no class computes; give model_config the keys of its config.yaml";
            return Err(error(message.to_string()));
        }
        let Some(reading) = Reading::of(&config) else { return Err(error(unknown_class(&config).message)) };
        let longest = reading
            .number("max_position_embeddings|n_positions|seq_length|max_seq_len")
            .map(|length| length as usize);
        let length = written.unwrap_or(longest.unwrap_or(LONGEST_WINDOW).min(LONGEST_WINDOW));
        let facts = theirs::facts(&reading, length.max(longest.unwrap_or(0)), theirs::MOST_LAYERS);
        let counts = |(fact, from): &(&str, Fact)| {
            ours::is_free(fact) && !theirs::follows(&reading, fact) && !ignored.contains(&from.key)
        };
        let facts: Vec<_> = facts.into_iter().filter(counts).collect();
        for (fact, Fact { key, value }) in &facts {
            if !ours::has_key(fact, value) {
                let (class, value) = (&reading.class.name, shown(value.get("rope_type").unwrap_or(value)));
                let said = format!("`{key}` is {value} in `{class}`, which no key here says");
                return Err(error(format!("{said}; {}", accepting(key))));
            }
        }
        let named = config.get("architectures").and_then(|classes| classes.get(0)?.as_str());
        let class = named.unwrap_or(&reading.class.name).to_string();
        Ok(Some(Self { file, class, facts, length, longest }))
    }

    /// The value of `key`, unless there is none.
    pub fn value(&self, key: &str) -> Option<&Value> {
        let (_, fact) = self.facts.iter().find(|(known, _)| *known == key)?;
        Some(&fact.value).filter(|value| !value.is_null())
    }
}
