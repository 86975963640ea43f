//! Text, samples and token files as batches. Their order is a pure function of seed, epoch and step: a resumed run asks for the
//! next number.

mod all_cores;
mod background_check;
mod batch;
mod batches;
mod blend;
mod cargo_registry;
mod choices;
mod codec;
mod config;
mod content_hash;
mod corpus;
mod dataset;
mod decode_stream;
mod document_rules;
mod documents;
mod file_kind;
mod files;
mod forms;
mod judged;
mod kept_tokens;
mod llm_c;
pub mod megatron;
pub mod mindrecord;
mod notes;
mod output;
mod pending;
mod plural;
pub mod progress;
mod reading;
mod record_samples;
mod record_store;
mod records;
mod sample_collector;
mod sample_store;
mod samples;
mod sequences;
mod source;
mod statistics;
mod stream;
mod text;
pub mod token_cache;
mod token_encoding;
mod token_file;
pub mod tokenize;
pub mod tokenizer;

pub use background_check::BackgroundCheck;
pub use batch::{Ahead, Batch, NO_LABEL};
pub use batches::{BatchSpec, Batches};
pub use choices::{Answer, ChoiceForm, Question};
pub use codec::{Codec, TokenizerConfig};
pub use config::{
    CargoRegistryConfig, DataConfig, DocumentFormat, Loader, MegatronConfig, MindRecordConfig, Paths,
    RecordsConfig, TextConfig, TokenType, TokensConfig,
};
pub use content_hash::DataHashes;
pub use dataset::{Dataset, codec};
pub use decode_stream::DecodeStream;
pub use document_rules::DocumentRules;
#[cfg(feature = "cli")]
pub(crate) use file_kind::known_files;
pub use file_kind::{FileKind, SampleLengths, Wording};
pub use forms::{ChatForm, ChatTemplate, Form, PackStrategy, PromptForm, PromptStyle};
pub use judged::JudgedData;
pub use notes::Notes;
pub(crate) use plural::plural;
pub use sample_collector::SampleCollector;
pub use samples::Samples;
pub use sequences::{PackedSequences, Sequence};
pub use source::{Content, Source};
pub use statistics::fingerprint;
pub use stream::{Chunk, MappedTokens, TokenStream};
pub use token_encoding::TokenEncoding;
