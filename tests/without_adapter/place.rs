//! A folder for tokenizers, texts and token files.

use crate::configuration::load;
use gristmill::data::LoadedData;
use gristmill::data::tokenize::train_tokenizer;
use gristmill::data::tokenizer::Tokenizer;
use std::path::PathBuf;

pub const MILL: &str = "tests/data/mill.txt";

pub struct Place(tempfile::TempDir);

impl Place {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(&path, content).expect("a file");
        path
    }

    /// A tokenizer of 300 tokens, trained on the text of the tests.
    pub fn tokenizer(&self) -> (PathBuf, Tokenizer) {
        let path = self.path("tokenizer.json");
        let tokenizer =
            train_tokenizer(&[MILL.to_string()], &path, 300, 2, false).unwrap_or_else(|e| panic!("{e}"));
        (path, tokenizer)
    }

    /// The data of `loader` and the other keys of `train_dataset`, or the error's line.
    pub fn load(&self, loader: &str, others: &str) -> Result<LoadedData, String> {
        load(&format!(
            "
model:
  model_config: {{ vocab_size: 300, hidden_size: 16, num_layers: 1, num_heads: 2, seq_length: 8 }}
lr_schedule: {{ learning_rate: 1e-3 }}
runner_config: {{ batch_size: 2 }}
train_dataset:
  data_loader: {{ {loader} }}
{others}"
        ))
    }
}

/// All tokens of an unshuffled data set.
pub fn tokens(data: &LoadedData) -> Vec<u32> {
    let steps = 0..data.train.micro_steps_per_epoch();
    steps.flat_map(|step| data.train.batch(step).expect("a batch").tokens).collect()
}
