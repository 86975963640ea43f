//! Other forms of the keys of data sets.

use super::model::ModelForms;
use crate::settings::engine::*;

rows! {
    /// `train_dataset` and `eval_dataset`: other forms of their keys.
    pub struct DatasetForms in "train_dataset" forms {
        /// Sets both `reset_position_ids` and `reset_attention_mask`.
        eod_reset: bool = Numbers.default(false),
    }
}

/// Writes each form as the keys that are read. Data sets that name no token that ends documents take the token of the
/// model.
pub(super) fn translate(source: &mut Source, model: &ModelForms) {
    for section in ["train_dataset", "eval_dataset"] {
        if !matches!(source.node(section), Some(Node::Map(_))) {
            continue;
        }
        if DatasetForms::read(&Reader::unchecked(source, section)).eod_reset {
            for key in ["reset_position_ids", "reset_attention_mask"] {
                source.document.put(&join(section, key), true.into(), &join(section, "eod_reset"));
            }
        }
        let end = join(section, "eod_token_id");
        let is_open = source.node(&end).is_none_or(|node| i64::from_node(node).is_some_and(|id| id < 0));
        if let Some(token) = model.eod_token_id.filter(|_| is_open) {
            source.document.put(&end, token.into(), "model.model_config.eod_token_id");
        }
    }
}
