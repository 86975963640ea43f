//! The mathematics of the kernels in f64 on slices: forward and backward, written as the formulas.
//!
//! Tests compare every kernel with the function of the same name here, doc examples show what a kernel computes, and
//! readers find the formula without the tiling. No program uses this crate, so nothing in it is optimised: sums
//! run in f64 in the plain order, every intermediate is a `Vec`, and no function reuses the results of another.
//!
//! Conventions:
//! - A matrix is a row-major slice without padding; its sizes are arguments, or inferred from the lengths.
//! - `<name>_backward` takes the inputs of `<name>` and the gradient `dy` of the loss with respect to its
//!   output, and returns the gradients with respect to the inputs, in the order of the inputs.
//! - Every backward is tested against [`finite_difference::gradient`] of its forward, to 1e-6 of the norm.
//!
//! Shapes: B sequences of T tokens are N = B·T rows; D is the hidden size, V the size of the vocabulary.

#![warn(missing_docs)]

pub mod adamw;
pub mod attention;
pub mod balance;
pub mod causal_conv;
pub mod decode;
pub mod draw;
pub mod embedding;
pub mod expert_scale;
pub mod fingerprint;
pub mod finite_difference;
pub mod gated_delta_rule;
pub mod gelu;
pub mod gpt;
pub mod grad_norm;
pub mod grouped_matmul;
pub mod hot_copies;
pub mod l2_norm;
pub mod largest_scores;
pub mod latent_attention;
pub mod latent_heads;
pub mod layer_norm;
pub mod linear_attention;
pub mod linear_cross_entropy;
pub mod loss_scale;
pub mod low_rank;
pub mod matmul;
pub mod mixture;
pub mod multi_token;
pub mod muon;
pub mod objective;
mod per_layer;
pub mod permute;
pub mod preference;
pub mod query_scaling;
pub mod random;
pub mod rms_norm;
pub mod rope;
pub mod rope_scaling;
pub mod rounding;
pub mod route;
pub mod row_gate;
pub mod sgd;
pub mod soft_cap;
pub mod softmax;
pub mod sparse_mixer;
pub mod spread;
pub mod storage;
pub mod swiglu;
pub mod trainer;
pub mod xielu;

mod block;
mod parameters;
pub mod variant;
mod vector;

#[cfg(test)]
mod gradient_check;
