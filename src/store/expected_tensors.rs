//! Tensors of a file that a model has no place for.

use super::weight_faults::remedy_of_unplaced;
use super::weight_files::{HEAD, WeightFiles};
use crate::error::{Error, Result};
use crate::hugging_face::config_json;
use std::collections::HashSet;
use std::path::Path;

/// The tensors that a file may have.
pub(super) struct ExpectedTensors<'a> {
    /// The names of the model's tensors.
    pub known: &'a HashSet<String>,
    /// The name of the embedding. If the model has no head, the file may have one that repeats the embedding.
    pub embedding: Option<&'a str>,
    /// Where the file was found, for the `config.json` beside it.
    pub weights: &'a Path,
    /// Whether other tensors are left out with a warning.
    pub is_partial: bool,
}

impl ExpectedTensors<'_> {
    /// Checks that each tensor of `file` has a place in the model. These need none: tables that follow from a model's
    /// shape, layers of multi-token prediction that the class of the file leaves out, a head that is the embedding, and
    /// other towers, which the log names.
    ///
    /// # Errors
    /// A tensor without a place, unless such tensors are left out.
    pub fn check(&self, file: &WeightFiles) -> Result<()> {
        let towers = file.towers();
        if !towers.is_empty() {
            let path = file.path().display();
            tracing::info!(
                "{path}: the language model alone is read; tensors of other towers are left: {towers}"
            );
        }
        let further = config_json::further_layers(self.weights);
        let is_further =
            |name: &str| layer_of(name).zip(further).is_some_and(|(layer, first)| layer >= first);
        let mut unplaced = file.unknown(self.known);
        unplaced.retain(|name| !is_further(name) && !self.is_repeated(file, name));
        let Some(first) = unplaced.first() else { return Ok(()) };
        let (path, count) = (file.path(), unplaced.len());
        if self.is_partial {
            let path = path.display();
            tracing::warn!(
                "{path}: {count} of its tensors are not in this model and are ignored, `{first}` among them"
            );
            return Ok(());
        }
        let what = format!("{count} of its tensors have no place in this model, `{first}` among them");
        Err(Error::file(path, format!("{what}; {}", remedy_of_unplaced(&unplaced))))
    }

    /// Whether `name` is the head and equals the embedding bit for bit.
    fn is_repeated(&self, file: &WeightFiles, name: &str) -> bool {
        let Some(embedding) = self.embedding.filter(|_| file.stored(HEAD) == Some(name)) else {
            return false;
        };
        let same_type = file.info(name).and_then(|head| Ok(head.dtype == file.info(embedding)?.dtype));
        let same = || file.bytes(name).and_then(|head| Ok(head == file.bytes(embedding)?));
        same_type.unwrap_or(false) && same().unwrap_or(false)
    }
}

/// The number of the layer in the name of a tensor, under Llama's names.
fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("model.layers.")?.split('.').next()?.parse().ok()
}
