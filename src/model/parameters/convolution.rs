//! The parameters of a gated short convolution.

use super::Linear;
use super::scope::{Scope, StackedRows};
use crate::model::names::convolution as names;

/// A convolution over W tokens between gates, each D wide.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedConvolution<P> {
    /// The gate before the convolution, the gate after it and what is convolved as one product: (3 D, D).
    pub w_in: Linear<P>,
    /// (W, D)
    pub conv: P,
    /// (D, D)
    pub wo: Linear<P>,
}

impl<P> GatedConvolution<P> {
    pub(super) fn declare(layer: &mut Scope<'_, P>, width: usize) -> Self {
        let config = layer.config;
        let (cols, std, residual_std) = (config.hidden_size, config.init_std, config.residual_init_std());
        let rows = StackedRows::new([names::IN], &[3 * cols]);
        let out = StackedRows::new([names::OUT], &[cols]);
        Self {
            w_in: layer.linear(["attention.w_in", ""], &rows, cols, std, false),
            conv: layer.convolution("attention.conv", names::CONV, [width, cols]),
            wo: layer.linear(["attention.wo", ""], &out, cols, residual_std, false),
        }
    }
}
