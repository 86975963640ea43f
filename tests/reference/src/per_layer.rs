//! Embeddings that each block has of its own, as in Gemma 3n and 4: with P columns for each of L blocks
//!
//! eₗ = (√P · table\[id\]ₗ + norm(W x₀ / √D)ₗ) / √2
//!
//! of the embedded tokens x₀, where the norm is over the P columns of a block.

use std::f64::consts::FRAC_1_SQRT_2;

use super::embedding::{embedding, embedding_backward};
use super::gpt::{Shape, Weights, accumulate};
use super::low_rank::{LowRank, low_rank, low_rank_backward};
use super::matmul::{linear, linear_backward};
use super::vector::{add, scaled};

const TABLE: &str = "model.embed_tokens_per_layer.weight";
const CONTEXT: &str = "model.per_layer_model_projection";
const NORM: &str = "model.per_layer_projection_norm";

/// The embeddings of all blocks for N tokens.
pub(super) struct PerLayer {
    /// W x₀ / √D of all blocks, (N, L·P).
    context: Vec<f64>,
    /// eₗ of each block, (N, P).
    pub(super) of_layers: Vec<Vec<f64>>,
}

/// (name, number of elements) of their tensors.
pub(super) fn parameters(shape: &Shape) -> Vec<(String, usize)> {
    let Some(width) = shape.variant.per_layer_width else { return Vec::new() };
    let cols = shape.num_layers * width;
    let weight = |name: &str, count| (format!("{name}.weight"), count);
    vec![
        (TABLE.to_owned(), shape.vocab_size * cols),
        weight(CONTEXT, cols * shape.hidden_size),
        weight(NORM, width),
    ]
}

/// The embeddings of each block of `tokens`, whose embedding is x (N, D); none in most models.
pub(super) fn forward(shape: &Shape, weights: &Weights, tokens: &[u32], x: &[f64]) -> PerLayer {
    let Some(width) = shape.variant.per_layer_width else {
        return PerLayer { context: Vec::new(), of_layers: Vec::new() };
    };
    let (layers, store) = (shape.num_layers, |values| shape.storage.store(values));
    let [rows, cols, hidden] = [tokens.len(), layers * width, shape.hidden_size];
    let mut projected = linear(x, &weights[&format!("{CONTEXT}.weight")], None, rows, cols, hidden);
    if let Some((adapters, [a, b])) = adapter(shape) {
        let sizes = [rows, cols, hidden, adapters.of(CONTEXT).0];
        projected = add(&projected, &low_rank(x, &weights[&a], &weights[&b], adapters.of(CONTEXT).1, sizes));
    }
    let context = store(scaled(&projected, 1.0 / (hidden as f64).sqrt()));
    let normed = store(scaled(&shape.norm(weights, NORM, &context), FRAC_1_SQRT_2));
    let rows = scaled(&embedding(&weights[TABLE], tokens, cols), (width as f64).sqrt() * FRAC_1_SQRT_2);
    let sum = store(add(&normed, &rows));
    PerLayer {
        context,
        of_layers: (0..layers).map(|layer| columns(&sum, cols, layer * width, width)).collect(),
    }
}

/// The gradient (N, D) of x, given those of each block's embeddings; adds those of the weights to `grads`.
pub(super) fn backward(
    shape: &Shape,
    weights: &Weights,
    (tokens, x): (&[u32], &[f64]),
    saved: &PerLayer,
    dinputs: &[Vec<f64>],
    grads: &mut Weights,
) -> Vec<f64> {
    let Some(width) = shape.variant.per_layer_width else { return vec![0.0; x.len()] };
    let store = |values| shape.storage.store(values);
    let [rows, cols, hidden] = [tokens.len(), shape.num_layers * width, shape.hidden_size];
    let dsum: Vec<f64> = (0..rows)
        .flat_map(|row| dinputs.iter().flat_map(move |of| of[row * width..][..width].to_vec()))
        .collect();
    let drows = scaled(&dsum, (width as f64).sqrt() * FRAC_1_SQRT_2);
    accumulate(grads, TABLE, embedding_backward(&drows, tokens, shape.vocab_size, cols));
    let dnorm = scaled(&dsum, FRAC_1_SQRT_2);
    let dcontext = store(shape.norm_backward(weights, NORM, &saved.context, &dnorm, grads));
    let dprojected = scaled(&dcontext, 1.0 / (hidden as f64).sqrt());
    let name = format!("{CONTEXT}.weight");
    let (dx, dw, _) = linear_backward(x, &weights[&name], &dprojected, rows, cols, hidden);
    accumulate(grads, &name, dw);
    let Some((adapters, [a, b])) = adapter(shape) else { return dx };
    let sizes = [rows, cols, hidden, adapters.of(CONTEXT).0];
    let (through, da, db) =
        low_rank_backward(x, &weights[&a], &weights[&b], &dprojected, adapters.of(CONTEXT).1, sizes);
    accumulate(grads, &a, da);
    accumulate(grads, &b, db);
    add(&dx, &through)
}

/// The adapter of the projection, if it has one, and the names of its factors.
fn adapter(shape: &Shape) -> Option<(&LowRank, [String; 2])> {
    let adapters = shape.low_rank.as_ref().filter(|adapters| adapters.modules.contains(CONTEXT))?;
    Some((adapters, ["A", "B"].map(|factor| LowRank::factor(CONTEXT, factor))))
}

/// `count` columns, from number `first` on, of rows of `cols`.
fn columns(rows: &[f64], cols: usize, first: usize, count: usize) -> Vec<f64> {
    rows.chunks_exact(cols).flat_map(|row| row[first..][..count].to_vec()).collect()
}
