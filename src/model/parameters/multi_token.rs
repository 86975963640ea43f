//! The parameters of multi-token prediction.

use super::Block;
use super::scope::{Scope, StackedRows};
use super::spec::Role;
use crate::model::names;

/// A block of multi-token prediction with its norms and its input product. Embedding and head are those of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct MultiTokenBlock<P> {
    /// (D): norm of the embedded tokens.
    pub token_norm: P,
    /// (D): norm of the hidden states of the last layer or of the previous such block.
    pub state_norm: P,
    /// (D, 2·D): maps the two normalised inputs, side by side with that of the tokens first, to the input of the block.
    pub w_fuse: P,
    /// An ordinary block.
    pub block: Block<P>,
    /// (D): norm before the head.
    pub norm: P,
}

impl<P> MultiTokenBlock<P> {
    pub(super) fn declare(layer: &mut Scope<'_, P>) -> Self {
        let (width, std) = (layer.config.hidden_size, layer.config.init_std);
        let fuse = StackedRows::new([names::FUSE], &[width]).of_tokens();
        Self {
            token_norm: layer.norm_weight("token_norm", names::TOKEN_NORM, width),
            state_norm: layer.norm_weight("state_norm", names::STATE_NORM, width),
            w_fuse: layer.matrix(Role::Matrix, "w_fuse", &fuse, 2 * width, std),
            block: Block::declare(layer, None),
            norm: layer.norm_weight("norm", names::MULTI_TOKEN_NORM, width),
        }
    }
}
