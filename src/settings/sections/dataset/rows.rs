//! The keys of a data set.

use super::loader;
use crate::data::tokenizer::END_OF_TEXT;
use crate::settings::engine::*;

rows! {
    /// `train_dataset` and `eval_dataset`: where the tokens come from and how they are split into batches.
    pub struct DatasetKeys in "train_dataset" {
        /// Seed of the random order of windows; by default the run's.
        seed: Option<u64> = Numbers.optional().example("3"),
        /// Share of the data, at its end, that is held out for evaluation and never learned from; not for Megatron's
        /// loader, which has `split`.
        eval_fraction: f64 = Numbers.default(0.0).within(SHARE_BELOW_ONE),
        /// Number of samples, drawn by the run's seed, that are held out for evaluation and never learned from; only of
        /// loaders of records, before any are packed.
        eval_samples: u64 = Numbers.default(0),
        /// Tokenizer of text: the path of a Hugging Face `tokenizer.json`, or a section with `tokenizer_file` and
        /// `eos_token`. Without it bytes are tokens.
        tokenizer: Option<Tokenizer> = Numbers.optional().read_by(tokenizer).example("./tokenizer.json"),
        /// Id of the token that ends each document; by default the model's `eod_token_id`, or else the token that the
        /// loader appends. A negative number counts as absent.
        eod_token_id: Option<i64> = Numbers.optional().within(TOKEN_ID).example("2"),
        /// Whether positions restart at 0 in each document.
        reset_position_ids: bool = Numbers.default(false),
        /// Whether tokens attend only to their own document.
        reset_attention_mask: bool = Numbers.default(false),
        /// Whether the loss skips the target that follows the end of a document, as in Megatron.
        eod_mask_loss: bool = Numbers.default(false),
        /// Columns of MindDataset's files to read: `input_ids`, and any of `labels` (or `target_ids`), `loss_mask` and
        /// `attention_mask` (or `input_mask`). By default `input_ids` alone.
        input_columns: Option<Vec<String>> = Numbers.optional().example("[input_ids, labels]"),
        /// Id of the token that fills rows of MindDataset: places that hold it predict nothing, unless there is a
        /// `loss_mask`. By default the model's `pad_token_id`, or 0; a negative number: none.
        pad_token_id: Option<i64> = Numbers.optional().within(TOKEN_ID).example("3"),
        /// Most tokens of a prompt of `ADGenDataLoader`, those that the tokenizer adds included; the rest is cut off.
        max_source_length: Option<u64> = Numbers.optional().within(COUNT).example("64"),
        /// Most tokens of an answer of `ADGenDataLoader`, without the one that ends it; the rest is cut off.
        max_target_length: Option<u64> = Numbers.optional().within(COUNT).example("64"),
    }
    sections "data_loader"
}

rows! {
    /// `tokenizer` of a data set, as a section.
    pub struct Tokenizer in "train_dataset.tokenizer" {
        /// Path of a Hugging Face `tokenizer.json`.
        tokenizer_file: String = Host.optional().example("./tokenizer.json"),
        /// Text of the token that ends each document.
        eos_token: String = Numbers.default(END_OF_TEXT.to_string()).example("</s>"),
    }
}

/// The path of a `tokenizer.json`, or a section that names it and the token that ends documents.
fn tokenizer(reader: &Reader<'_>, key: &'static str) -> Option<Option<Tokenizer>> {
    let path = reader.path(key);
    let dataset = path.rsplit_once('.').map_or("", |(section, _)| section);
    // A tokenizer that is named for a loader that is not built is left unread, like that loader.
    if loader::is_planned(reader.source, dataset) {
        return Some(None);
    }
    // Rows are tokens already. Files of MindFormers name a class of tokenizer beside them, but no file of it.
    let node = reader.node(key)?;
    if loader::has_rows(reader.source, dataset)
        && matches!(node, Node::Map(_))
        && node.get("tokenizer_file").is_none()
    {
        reader.ignore(&[key]);
        return Some(None);
    }
    let tokenizer = match node {
        Node::Map(_) => Tokenizer::read_at(reader.source, &reader.path(key)),
        node => {
            let tokenizer_file: String = reader.convert(key, node)?;
            Tokenizer { tokenizer_file, eos_token: END_OF_TEXT.to_string() }
        }
    };
    if tokenizer.tokenizer_file.is_empty() && reader.is_sound(key) {
        match reader.node(key) {
            // The text cannot be read without the file, but everything else can be planned.
            Some(Node::Map(_)) => reader.source.data_fault(
                &reader.path(key),
                "`tokenizer_file` is missing; give it the path of a tokenizer.json",
            ),
            _ => reader.fault(key, "is empty; name a tokenizer.json, or remove the key"),
        }
    }
    (!tokenizer.tokenizer_file.is_empty()).then_some(Some(tokenizer))
}
