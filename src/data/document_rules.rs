//! How the end of a document affects the model's input and loss.

/// How windows that hold several documents are treated. A document ends with the token `eod`, which belongs to it, as
/// in Megatron.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DocumentRules {
    /// Id of the token that ends a document; `None`: the token that the loader appends.
    pub eod: Option<u32>,
    /// Id of the token that pads documents. The model reads token 0 in its place and never predicts it. `None`: there
    /// is no padding.
    pub pad: Option<u32>,
    /// Positions restart after each end of a document (`reset_position_ids`, `eod_reset`).
    pub resets_positions: bool,
    /// A token attends only to its own document (`reset_attention_mask`, `eod_reset`).
    pub isolates_documents: bool,
    /// The loss skips targets that follow the end of a document (`eod_mask_loss`). As in Megatron, the *input* must be
    /// `eod`: the first token of the next document cannot be predicted from it.
    pub masks_eod_loss: bool,
}

impl DocumentRules {
    /// Whether any rule depends on where documents end, so that `eod` must be known.
    pub(crate) fn need_eod(&self) -> bool {
        self.resets_positions || self.isolates_documents || self.masks_eod_loss
    }

    /// Whether `token` ends a document.
    pub(super) fn is_eod(&self, token: u32) -> bool {
        self.eod == Some(token)
    }

    /// Whether `token` is padding.
    pub(super) fn is_pad(&self, token: u32) -> bool {
        self.pad == Some(token)
    }

    /// The rules as text for the data fingerprint, for example `DocumentRules { eod: Some(0), pad: None,
    /// resets_positions: true, isolates_documents: false, masks_eod_loss: false }`.
    ///
    /// Frozen format: checkpoints store a hash of it. The spelling is that of version 0.1, which hashed the derived
    /// `Debug` output; it stays even if names change. A new rule may be appended only when it is set, so that the hash
    /// of runs without it does not change.
    pub(super) fn fingerprint_text(&self) -> String {
        let Self { eod, pad, resets_positions, isolates_documents, masks_eod_loss } = self;
        let token = |id: &Option<u32>| id.map_or("None".to_string(), |id| format!("Some({id})"));
        format!(
            "DocumentRules {{ eod: {}, pad: {}, resets_positions: {resets_positions}, isolates_documents: \
             {isolates_documents}, masks_eod_loss: {masks_eod_loss} }}",
            token(eod),
            token(pad)
        )
    }
}
