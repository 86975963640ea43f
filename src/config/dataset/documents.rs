//! The keys about the ends of documents.

use crate::config::document::Document;
use crate::config::node::{FromNode, Node};
use crate::config::section::Section;
use crate::data::DocumentRules;
use crate::error::Result;

/// The keys that every data set has. The original writes some of them under `model.model_config`.
pub(super) fn read(document: &Document, dataset: &Section) -> Result<DocumentRules> {
    let of_model = "model.model_config.eod_token_id";
    let eod = match (id(dataset, "eod_token_id")?, document.get(of_model).filter(|node| !node.is_none())) {
        (None, Some(node)) => {
            let id = i64::from_node(node).map(|id| u32::try_from(id).ok());
            id.ok_or_else(|| document.error(of_model, format!("expected a token id, found {node}")))?
        }
        (eod, _) => eod,
    };
    let resets_both = dataset.or("eod_reset", false)?;
    Ok(DocumentRules {
        eod,
        pad: None,
        resets_positions: dataset.or("reset_position_ids", false)? || resets_both,
        isolates_documents: dataset.or("reset_attention_mask", false)? || resets_both,
        masks_eod_loss: dataset.or("eod_mask_loss", false)?,
    })
}

/// `rules` with what `config` of the Megatron loader adds. A compressed mask is how the original's attention is told of
/// documents that do not see each other.
pub(super) fn megatron(config: &Section, rules: DocumentRules) -> Result<DocumentRules> {
    let isolates =
        config.or("reset_attention_mask", false)? || config.or("create_compressed_eod_mask", false)?;
    Ok(DocumentRules {
        eod: id(config, "eod")?.or(rules.eod),
        pad: id(config, "pad")?,
        resets_positions: rules.resets_positions || config.or("reset_position_ids", false)?,
        isolates_documents: rules.isolates_documents || isolates,
        masks_eod_loss: rules.masks_eod_loss || config.or("eod_mask_loss", false)?,
    })
}

/// The loader of the original cuts samples itself, so that it has a length of its own, which must be the model's.
pub(super) fn check_seq_length(document: &Document, config: &Section) -> Result<()> {
    let of_model = document.get("model.model_config.seq_length");
    match (config.get::<u64>("seq_length")?, of_model) {
        (Some(own), Some(Node::Int(model))) if i128::from(own) != *model => {
            let message = format!(
                "{own} differs from model.model_config.seq_length {model}; write the same, or remove it"
            );
            Err(config.error("seq_length", message))
        }
        _ => Ok(()),
    }
}

/// A token id; negative numbers say that there is none.
fn id(section: &Section, key: &str) -> Result<Option<u32>> {
    match section.get::<i64>(key)? {
        Some(id) if id > i64::from(u32::MAX - 1) => {
            Err(section.error(key, format!("expected a token id, found `{id}`")))
        }
        id => Ok(id.and_then(|id| u32::try_from(id).ok())),
    }
}
