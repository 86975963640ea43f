//! The parameters of what predicts tokens further ahead.

use super::{Ranges, matrix, norm, path_of};
use crate::model::config::ModelConfig;
use crate::model::names::{self, Names};
use crate::model::parameters::{Block, MultiTokenBlock, Spec};

/// Those of all blocks after the last layer.
pub(super) fn describe(config: &ModelConfig) -> Vec<MultiTokenBlock<Spec>> {
    let depth = config.multi_token.map_or(0, |multi_token| multi_token.depth);
    (config.num_layers..config.num_layers + depth).map(|layer| describe_one(config, layer)).collect()
}

fn describe_one(config: &ModelConfig, layer: usize) -> MultiTokenBlock<Spec> {
    let width = config.hidden_size;
    let path = |of: &str| path_of(config, layer, of);
    let name = |name: &str| format!("{}.{layer}.{name}", Names::of(config.family).layers);
    let norm = |of: &str, called: &str| norm(path(of), &name(called), width);
    let fuse = Ranges::of([name(names::FUSE)], &[width], 1);
    MultiTokenBlock {
        token_norm: norm("token_norm", names::TOKEN_NORM),
        state_norm: norm("state_norm", names::STATE_NORM),
        w_fuse: matrix(path("w_fuse"), width, 2 * width, config.init_std, fuse.weights(false)),
        block: Block::describe(config, layer),
        norm: norm("norm", names::MULTI_TOKEN_NORM),
    }
}
