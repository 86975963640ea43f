//! What the end of a document means to the model.

/// How windows that hold several documents are treated. Documents end with the token `eod`, which belongs to the document
/// that it ends, as in Megatron.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DocumentRules {
    /// The token that ends a document; where absent, the one that the loader writes.
    pub eod: Option<u32>,
    /// The token that fills up documents: read as token 0, never predicted.
    pub pad: Option<u32>,
    /// Positions restart after each end (`reset_position_ids`, `eod_reset`).
    pub resets_positions: bool,
    /// Documents do not see each other (`reset_attention_mask`, `eod_reset`).
    pub isolates_documents: bool,
    /// What follows an end is not predicted (`eod_mask_loss`): as in Megatron, the loss is masked where the *input* ends a
    /// document, since nothing tells what the next document starts with.
    pub masks_eod_loss: bool,
}

impl DocumentRules {
    /// Whether anything depends on where documents end.
    pub fn need_eod(&self) -> bool {
        self.resets_positions || self.isolates_documents || self.masks_eod_loss
    }

    pub(super) fn is_eod(&self, token: u32) -> bool {
        self.eod == Some(token)
    }

    pub(super) fn is_pad(&self, token: u32) -> bool {
        self.pad == Some(token)
    }
}
