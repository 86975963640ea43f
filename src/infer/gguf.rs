//! A model as a file of llama.cpp.

use super::OpenedModel;
use crate::error::Result;
use crate::hugging_face::gguf::{TextFiles, tokenizer_keys};
use crate::store::gguf::{GgufType, GgufWritten, write, write_adapter};
use std::path::Path;

impl OpenedModel {
    /// Writes the model to the file `out`, which must be new, as llama.cpp reads it: weights in the type `kind`,
    /// tokenizer, special tokens and chat template; of a model with an adapter the adapter alone, which llama.cpp adds
    /// to a file of its base.
    ///
    /// # Errors
    /// A model, a tokenizer or an adapter that llama.cpp does not have; weights that are missing or damaged; a disk
    /// that fails.
    pub fn write_gguf(&self, out: &Path, kind: GgufType) -> Result<GgufWritten> {
        if let Some(adapter) = self.adapter_file() {
            return write_adapter(&self.plan.model, &adapter, out, kind);
        }
        let beside = self.weights.join("tokenizer.json");
        let tokenizer = self.codec.tokenizer_file().unwrap_or(&beside);
        let form = self.chat_form(None, false);
        let files = TextFiles {
            codec: &self.codec,
            tokenizer,
            template: form.template.as_deref(),
            stops: &self.generation.stops,
        };
        let keys = tokenizer_keys(&files, self.plan.model.vocab_size)?;
        write(&self.plan.model, &self.weights, keys, out, kind)
    }
}
