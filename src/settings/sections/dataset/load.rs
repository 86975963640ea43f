//! Loading the data that a section names.

use super::loader::{DEFAULT_CARGO_BYTES, Loader, LoaderType};
use super::rows::Tokenizer;
use super::{Dataset, Megatron};
use crate::data::cargo_registry;
use crate::data::record_samples::{self, HeldOut};
use crate::data::text;
use crate::data::{BatchSpec, ChatForm, Codec, DocumentFormat, DocumentRules, Form, Paths};
use crate::data::{LoadedSources, TokenType, megatron, mindrecord, token_file};
use crate::error::{Error, Result};
use std::path::Path;

/// The error of a run that cannot read its data, because only a program has them.
const NO_LOADER: &str = "the configuration names no data: its batches came from a program's own memory; write `train_dataset: \
    {data_loader: {type: TextDataLoader, dataset_dir: FOLDER}}` or another loader";

impl Dataset {
    /// The codec that turns the data set's text into tokens, by `tokenizer` or byte by byte, for a model of
    /// `vocab_size` tokens.
    ///
    /// # Errors
    /// If the tokenizer cannot be read, or has more tokens than the model.
    pub(crate) fn codec(&self, tokenizer: Option<&Tokenizer>, vocab_size: usize) -> Result<Codec> {
        match tokenizer {
            None => Ok(Codec::Bytes { eod: self.loader.end_byte() }),
            Some(Tokenizer { tokenizer_file, eos_token }) => {
                Codec::of_tokenizer(Path::new(tokenizer_file), eos_token, vocab_size)
            }
        }
    }

    /// Loads the sources of the data set. `seed` draws the samples that are held out.
    ///
    /// # Errors
    /// If a file is missing or malformed, or a document rule needs an end of documents that is unknown.
    pub(crate) fn load(&self, codec: &Codec, spec: &BatchSpec, seed: u64) -> Result<LoadedSources> {
        let Self { keys, loader, megatron: of_megatron, .. } = self;
        let files = &loader.files();
        let loaded = match loader.kind {
            LoaderType::Text | LoaderType::Jsonl => {
                let documents = match loader.kind {
                    LoaderType::Jsonl => DocumentFormat::Jsonl(loader.text_key.clone().unwrap_or_default()),
                    _ => loader.documents.clone().unwrap_or(DocumentFormat::File),
                };
                let extensions = loader.extensions.as_deref().unwrap_or_default();
                text::load(files, &documents, extensions, loader.max_bytes, codec)?
            }
            LoaderType::Tokens => token_file::load(files, loader.dtype.unwrap_or(TokenType::Auto))?,
            LoaderType::Megatron => {
                let Megatron { data_path, split, .. } = of_megatron.clone().unwrap_or_default();
                megatron::load(&data_path, split.0)?
            }
            LoaderType::MindRecord => {
                let columns = keys.input_columns.as_deref().unwrap_or_default();
                mindrecord::load(files, columns, id(keys.pad_token_id), spec.seq_length)?
            }
            LoaderType::Prompts | LoaderType::Records | LoaderType::Chat => {
                let held_out = HeldOut { samples: keys.eval_samples, seed };
                let (files, form, packing) = (loader.record_files(), self.form(), loader.packing());
                record_samples::load(&files, &form, packing, codec, spec.seq_length, held_out)?
            }
            LoaderType::CargoRegistry => {
                cargo_registry::load(loader.max_bytes.unwrap_or(DEFAULT_CARGO_BYTES), codec)?
            }
            LoaderType::Memory => return Err(Error::Plan(NO_LOADER.to_string())),
        };
        let samples = match loader.kind {
            LoaderType::Megatron => loader.sizes().map(|size| Some(size).filter(|size| *size > 0)),
            _ => [None; 2],
        };
        let (eval_fraction, eval_samples) = (keys.eval_fraction, keys.eval_samples);
        LoadedSources { loaded, rules: self.rules(), samples, eval_fraction, eval_samples }.with_ends()
    }

    /// How documents are treated.
    pub fn rules(&self) -> DocumentRules {
        DocumentRules {
            eod: id(self.keys.eod_token_id),
            pad: id(self.megatron.as_ref().and_then(|megatron| megatron.pad)),
            resets_positions: self.keys.reset_position_ids,
            isolates_documents: self.keys.reset_attention_mask,
            masks_eod_loss: self.keys.eod_mask_loss,
        }
    }

    /// Whether attention must keep documents apart: a rule says so, samples are packed into rows, or a row has two
    /// answers.
    pub fn isolates_documents(&self) -> bool {
        self.keys.reset_attention_mask || self.is_packed() || self.has_pairs
    }

    /// Whether several samples may share a row.
    pub fn is_packed(&self) -> bool {
        self.loader.packing().is_some()
    }

    /// Whether a part of the data is held out for evaluation.
    pub fn keeps_evaluation(&self) -> bool {
        match &self.megatron {
            Some(megatron) => megatron.split.0[1] > 0.0,
            None => self.keys.eval_fraction > 0.0 || self.keys.eval_samples > 0,
        }
    }

    /// The file of the data set's tokenizer.
    pub fn tokenizer_file(&self) -> Option<&Path> {
        self.keys.tokenizer.as_ref().map(|tokenizer| Path::new(&tokenizer.tokenizer_file))
    }

    /// How the data set's conversations become samples, if it has conversations.
    pub fn conversations(&self) -> Option<ChatForm> {
        match self.form() {
            Form::Chat(form) | Form::Preference(form) => Some(form),
            _ => None,
        }
    }

    /// Whether the data set is text that is encoded, not ready token ids.
    pub(crate) fn has_text(&self) -> bool {
        match self.loader.kind {
            LoaderType::Text | LoaderType::Jsonl | LoaderType::CargoRegistry => true,
            LoaderType::Tokens | LoaderType::Megatron | LoaderType::MindRecord | LoaderType::Memory => false,
            LoaderType::Prompts | LoaderType::Records | LoaderType::Chat => self.form() != Form::Columns,
        }
    }
}

impl Loader {
    /// The files of a loader of text or tokens: `data_path`, or else `dataset_files`.
    pub fn files(&self) -> Paths {
        match self.data_path.paths.is_empty() {
            true => Paths { paths: self.dataset_files.clone(), weights: Vec::new() },
            false => self.data_path.clone(),
        }
    }

    /// The byte that ends a document where bytes are tokens.
    pub(crate) fn end_byte(&self) -> u8 {
        self.eod_byte.map_or(0, |byte| byte as u8)
    }

    /// Whether each token is a byte of text, unless the data set has a tokenizer.
    pub(crate) fn has_bytes(&self) -> bool {
        matches!(self.kind, LoaderType::Text | LoaderType::Jsonl | LoaderType::CargoRegistry)
    }

    /// Whether the loader reads records, each of which becomes a sample.
    pub(super) fn has_records(&self) -> bool {
        matches!(self.kind, LoaderType::Prompts | LoaderType::Records | LoaderType::Chat)
    }
}

/// A token id; `None` if the number is negative, which says that there is none.
fn id(id: Option<i64>) -> Option<u32> {
    id.and_then(|id| u32::try_from(id).ok())
}
