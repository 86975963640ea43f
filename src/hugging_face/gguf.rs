//! What llama.cpp calls a model: the architecture and the keys of its file, the names and layouts of its tensors, and the
//! keys of its tokenizer.
//!
//! The classes that it computes are rows of `classes.json` that have a `gguf`. A fact that varies within a class and that
//! such a row does not list is refused by name, so that what a later class or key adds is refused until it is proven.
//!
//! Source: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, and what llama.cpp reads.

mod architecture;
mod keys;
mod tensors;
mod tokenizer;

pub(crate) use architecture::{Architecture, architecture};
pub(crate) use keys::keys;
pub(crate) use tensors::{GgufTensor, Source, tensors};
pub(crate) use tokenizer::{TextFiles, tokenizer_keys};

use pmetal_gguf::MetadataValue;
use std::collections::BTreeMap;

/// The metadata of a file, by key.
pub(crate) type Keys = BTreeMap<String, MetadataValue>;
