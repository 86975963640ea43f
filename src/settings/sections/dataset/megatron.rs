//! `data_loader.config` of Megatron's loader.

use super::paths::{Split, read_blend};
use crate::data::Paths;
use crate::settings::engine::*;

rows! {
    /// `data_loader.config` of `BlendedMegatronDatasetDataLoader`.
    pub struct Megatron in "train_dataset.data_loader.config" {
        /// Weights and paths in turns, or one path: those of a `.bin` and an `.idx` file without these endings.
        data_path: Paths = Numbers.optional().read_by(read_blend).example("[0.3, ./a, 0.7, ./b]"),
        /// Shares of the documents to train, evaluate and test on; only their proportions matter.
        split: Split = Numbers.optional().read_by(Split::read).example("'0.9, 0.1, 0'"),
        /// Seed of the order.
        seed: Option<u64> = Numbers.optional().example("3"),
        /// Tokens of a sample, which must be the model's `seq_length`.
        seq_length: Option<u64> = Host.optional().read_by(seq_length),
        /// Token that ends each document.
        eod: Option<i64> = Numbers.optional().within(TOKEN_ID).example("2"),
        /// Token that fills what a document leaves of a sample; it does not enter the loss.
        pad: Option<i64> = Numbers.optional().within(TOKEN_ID).example("3"),
        /// Whether positions restart at each document.
        reset_position_ids: bool = Numbers.default(false),
        /// Whether tokens attend only to their own document.
        reset_attention_mask: bool = Numbers.default(false),
        /// The same as `reset_attention_mask`.
        create_compressed_eod_mask: bool = Numbers.default(false),
        /// Whether the token that ends a document is no target of the loss.
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
