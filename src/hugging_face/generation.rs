//! `generation_config.json`: how the publishers of a model generate text.

use super::beside_weights;
use crate::durable::read_json_if_present;
use crate::error::Result;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

/// The name of the file.
pub(crate) const FILE: &str = "generation_config.json";

/// The settings of generation in a file. Settings that it leaves out are empty.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GenerationConfig {
    /// The tokens that end a text.
    #[serde(rename = "eos_token_id", deserialize_with = "one_or_several")]
    pub stops: Vec<u32>,
    /// Whether tokens are drawn; otherwise the most likely one is taken.
    pub do_sample: Option<bool>,
    /// Divisor of the logits.
    pub temperature: Option<f64>,
    /// Number of most likely tokens that are drawn from; 0: all.
    pub top_k: Option<usize>,
    /// Total probability of the most likely tokens that are drawn from.
    pub top_p: Option<f64>,
    /// Divisor of the logits of tokens that have occurred.
    pub repetition_penalty: Option<f64>,
    /// Largest number of tokens of a continuation.
    pub max_new_tokens: Option<usize>,
}

impl GenerationConfig {
    /// The file beside the weights `folder`. If it does not say which tokens end a text, these are the ones in their
    /// `config.json`, where older folders have them.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub(crate) fn of(folder: &Path) -> Result<Self> {
        let mut config = Self::read(&beside_weights(folder, FILE))?.unwrap_or_default();
        if config.stops.is_empty() {
            config.stops = Self::read(&beside_weights(folder, "config.json"))?.unwrap_or_default().stops;
        }
        Ok(config)
    }

    fn read(path: &Path) -> Result<Option<Self>> {
        read_json_if_present(path, "a generation configuration", "fetch it again, or remove it")
    }
}

/// Reads a token, several tokens, or none.
fn one_or_several<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Vec<u32>, D::Error> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    Ok(match Value::deserialize(deserializer)? {
        Value::Array(ids) => ids.iter().filter_map(id).collect(),
        one => id(&one).into_iter().collect(),
    })
}
