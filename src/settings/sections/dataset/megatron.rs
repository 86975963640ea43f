//! `data_loader.config` of Megatron's loader.

use super::paths::{Split, read_blend};
use crate::data::Paths;
use crate::settings::engine::*;

rows! {
    /// `data_loader.config` of `BlendedMegatronDatasetDataLoader`.
    pub struct Megatron in "train_dataset.data_loader.config" {
        /// One path, or weights above 0 and paths in turns: the path of a `.bin` and an `.idx` file without these
        /// endings.
        data_path: Paths = Numbers.optional().read_by(read_blend).example("[0.3, ./a, 0.7, ./b]"),
        /// Shares of the documents for training, evaluation and test; only their proportions matter. All are for
        /// training by default.
        split: Split = Numbers.optional().read_by(Split::read).example("'0.9, 0.1, 0'"),
        /// Seed of the random order of samples; by default that of the data set, or else the run's.
        seed: Option<u64> = Numbers.optional().example("3"),
        /// Tokens of a sample; must equal the model's `seq_length`.
        seq_length: Option<u64> = Host.optional().read_by(seq_length),
        /// Id of the token that ends each document.
        eod: Option<i64> = Numbers.optional().within(TOKEN_ID).example("2"),
        /// Id of the token that pads documents to a sample. It is no target of the loss, and the model reads token 0 in
        /// its place.
        pad: Option<i64> = Numbers.optional().within(TOKEN_ID).example("3"),
        /// Whether positions restart at 0 in each document.
        reset_position_ids: bool = Numbers.default(false),
        /// Whether tokens attend only to their own document.
        reset_attention_mask: bool = Numbers.default(false),
        /// Another name of `reset_attention_mask`.
        create_compressed_eod_mask: bool = Numbers.default(false),
        /// Whether the loss skips the target that follows the end of a document, as in Megatron.
        eod_mask_loss: bool = Numbers.default(false),
    }
}

/// The loader of MindFormers cuts samples itself, so it has a length of its own, which must be the model's.
fn seq_length(reader: &Reader<'_>, key: &'static str) -> Option<Option<u64>> {
    let own: u64 = reader.convert(key, reader.node(key)?)?;
    let of_model = reader.source.node("model.model_config.seq_length").and_then(u64::from_node);
    if let Some(model) = of_model.filter(|model| *model != own) {
        let message =
            format!("{own} differs from model.model_config.seq_length {model}; write the same, or remove it");
        reader.fault(key, message);
    }
    Some(Some(own))
}
