//! GPT-2 (Radford et al., 2019).

use super::{TypeEntry, nothing, plain};
use crate::model::config::Family;
use crate::settings::engine::*;

pub(super) const GPT2: TypeEntry = TypeEntry {
    word: super::GPT2,
    class: None,
    architectures: "GPT2LMHeadModel GPT2WithLora",
    about: "GPT-2: LayerNorm, learned positions, GELU, a bias in every linear layer.",
    base: super::GPT2,
    others: &[],
    prepare: plain,
    family: Family::Gpt2,
    finish: nothing,
};

/// What a GPT-2 is, whatever a file says.
pub(super) const FIXED: &[Other] = &[
    refused("gated_linear_unit post_layernorm_residual", Passes::Off, "write `False`"),
    refused("normalization", Passes::Words("LayerNorm"), "write `normalization: LayerNorm`"),
];
