//! What a configuration decides of a run's numbers beside its model and optimizer: how documents are treated, how sources
//! are blended, what the loss is scaled by. A resumed run must say the same, and hears by name what it says otherwise.

use crate::config::RunPlan;
use crate::data::DocumentRules;
use serde_json::Value;
use std::collections::BTreeMap;

/// The settings of `plan` by the names of their keys; `rules` are those of its training data, with the token that ends
/// documents found. What has no effect is not said: a token that ends documents where nothing depends on their ends.
pub(super) fn settings(plan: &RunPlan, rules: &DocumentRules) -> BTreeMap<String, Value> {
    let mut settings: BTreeMap<&str, Value> = [
        ("scale_sense", plan.loss_scale.into()),
        ("reset_position_ids", rules.resets_positions.into()),
        ("reset_attention_mask", rules.isolates_documents.into()),
        ("eod_mask_loss", rules.masks_eod_loss.into()),
        ("weights of data_path", plan.train_dataset.loader.weights().into()),
    ]
    .into();
    if rules.need_eod() {
        settings.insert("eod_token_id", rules.eod.into());
    }
    if let Some(pad) = rules.pad {
        settings.insert("pad", pad.into());
    }
    settings.into_iter().map(|(key, value)| (key.to_string(), value)).collect()
}
