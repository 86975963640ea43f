//! Scaled dot-product attention with grouped queries, forward and backward, without a matrix of scores.

use super::dropout::{Dropout, DropoutState};
use super::heads::HeadLayout;
use crate::element::{Element, stride_of};
use crate::kernels::{Capabilities, Condition, Kernel, Tier};
use crate::record::{Recorder, State, Tensor};

/// The sizes and the mask of an attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// The columns of qkv.
    pub layout: HeadLayout,
    /// Tokens of a sequence (T). Tensors have batch · T rows; sequences do not attend to each other.
    pub tokens: u32,
    /// Whether a token attends to itself and earlier tokens only.
    pub is_causal: bool,
    /// Factor of the scores, usually 1/√head_dim.
    pub scale: f32,
    /// Sliding window: a query attends to this many tokens, itself included; `None`: to all. Needs causal attention.
    pub window: Option<u32>,
    /// Whether a score loses slope · (i - j) at query i and key j (ALiBi, Press et al. 2022), where the slope depends on the
    /// head alone; needs causal attention.
    pub has_alibi: bool,
    /// Dropout of the weights after the softmax. `None` compiles it out, a probability of 0 does not.
    pub dropout: Option<Dropout>,
}

/// The documents of packed sequences: a token attends within its document only. Two rows (1, N) of u32, which count
/// tokens within the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DocumentBounds {
    /// For each token the first token of its document.
    pub starts: Tensor,
    /// For each token one past the last token of its document.
    pub ends: Tensor,
}

crate::params! {
    struct Params {
        tokens: u32,
        heads: u32,
        group: u32,
        k_start: u32,
        v_start: u32,
        qkv_offset: u32,
        qkv_stride: u32,
        out_offset: u32,
        out_stride: u32,
        dout_offset: u32,
        dout_stride: u32,
        lse_offset: u32,
        lse_stride: u32,
        delta_stride: u32,
        dqkv_offset: u32,
        dqkv_stride: u32,
        scale: f32,
        window: u32,
        starts_offset: u32,
        ends_offset: u32,
        dropout_site: u32,
        seed_low: u32,
        seed_high: u32,
        threshold: u32,
        factor: f32,
    }
}

/// out (N, heads · value_dim) = softmax(scale · q kᵀ) v for each head of `qkv` (N, layout.cols()), and lse (N, heads)
/// f32, the natural logarithm of each softmax's denominator, for the backward.
///
/// With causal attention query i attends to the keys j with max(start of its document, i - window + 1) <= j <= i; tiles
/// of other keys are skipped. `documents` of `None`: each sequence is one document.
#[track_caller]
pub fn attention(
    rec: &mut Recorder,
    qkv: Tensor,
    out: Tensor,
    lse: Tensor,
    documents: Option<DocumentBounds>,
    shape: &Attention,
) {
    shape.assert_masks(documents, qkv);
    let batch = shape.assert_fits(qkv, &[("out", out)], lse);
    let params = shape.params(qkv, out, lse, documents);
    let params = Params { scale: shape.scale * std::f32::consts::LOG2_E, ..params };
    let Plan { kernel, blocks } =
        plan(Pass::Forward, shape, documents.is_some(), qkv.element, rec.capabilities());
    let mut bindings = vec![
        qkv.bind_with_offset("qkv", qkv.element),
        out.bind_with_offset("out", qkv.element),
        lse.bind_with_offset("lse", Element::F32),
    ];
    bindings.extend(documents.map(|documents| documents.starts.bind_with_offset("starts", Element::U32)));
    bindings.extend(shape.dropout.map(|dropout| DropoutState::bind("dropout_state", dropout.state)));
    rec.dispatch(kernel, &bindings, &params, [blocks, shape.layout.heads, batch]);
}

/// dqkv (N, layout.cols()), all columns written, from the inputs and outputs of [`attention`] and dout, shaped like
/// out. Two dispatches: the gradient of the queries, which also computes delta = Σ dout · out of each head, then that
/// of keys and values.
#[track_caller]
#[allow(clippy::too_many_arguments)] // named tensors
pub fn attention_backward(
    rec: &mut Recorder,
    qkv: Tensor,
    out: Tensor,
    dout: Tensor,
    lse: Tensor,
    dqkv: Tensor,
    documents: Option<DocumentBounds>,
    shape: &Attention,
) {
    shape.assert_masks(documents, qkv);
    let batch = shape.assert_fits(qkv, &[("out", out), ("dout", dout)], lse);
    let fits = (dqkv.rows, dqkv.cols, dqkv.element) == (qkv.rows, qkv.cols, qkv.element);
    assert!(fits, "dqkv must have the shape and element type of qkv");
    let delta = rec.tensor("delta", lse.rows, lse.cols, Element::F32);
    let params = Params {
        dout_offset: dout.offset4(),
        dout_stride: dout.stride4(),
        delta_stride: delta.stride,
        dqkv_offset: dqkv.offset4(),
        dqkv_stride: dqkv.stride4(),
        ..shape.params(qkv, out, lse, documents)
    };
    let both = [
        qkv.bind_with_offset("qkv", qkv.element),
        dout.bind_with_offset("dout", qkv.element),
        lse.bind_with_offset("lse", Element::F32),
        delta.bind("delta", Element::F32),
        dqkv.bind_with_offset("dqkv", qkv.element),
    ];
    let dropout = shape.dropout.map(|dropout| DropoutState::bind("dropout_state", dropout.state));
    let Plan { kernel, blocks } =
        plan(Pass::BackwardQ, shape, documents.is_some(), qkv.element, rec.capabilities());
    let mut bindings = both.to_vec();
    bindings.push(out.bind_with_offset("out", qkv.element));
    bindings.extend(documents.map(|documents| documents.starts.bind_with_offset("starts", Element::U32)));
    bindings.extend(dropout);
    rec.dispatch(kernel, &bindings, &params, [blocks, shape.layout.heads, batch]);
    let Plan { kernel, blocks } =
        plan(Pass::BackwardKv, shape, documents.is_some(), qkv.element, rec.capabilities());
    let mut bindings = both.to_vec();
    bindings.extend(documents.map(|documents| documents.ends.bind_with_offset("ends", Element::U32)));
    bindings.extend(dropout);
    rec.dispatch(kernel, &bindings, &params, [blocks, shape.layout.kv_heads, batch]);
}

impl Attention {
    #[track_caller]
    fn assert_masks(&self, documents: Option<DocumentBounds>, qkv: Tensor) {
        let is_bounded = self.window.is_some() || documents.is_some();
        assert!(self.is_causal || !is_bounded, "a window and document bounds need causal attention");
        assert!(self.is_causal || !self.has_alibi, "ALiBi needs causal attention");
        assert!(self.window != Some(0), "a window of 0 tokens does not hold the query itself");
        for tensor in documents.iter().flat_map(|documents| [documents.starts, documents.ends]) {
            assert!(tensor.cols == qkv.rows, "{} document bounds for {} tokens", tensor.cols, qkv.rows);
        }
    }

    /// The params of all three kernels; the backward kernels set more fields.
    fn params(&self, qkv: Tensor, out: Tensor, lse: Tensor, documents: Option<DocumentBounds>) -> Params {
        let offset_of = |row: Option<Tensor>| row.map_or(0, |row| 4 * row.offset4());
        let Mask { site: dropout_site, seed: [seed_low, seed_high], threshold, factor } = self.mask();
        Params {
            tokens: self.tokens,
            heads: self.layout.heads,
            group: self.layout.group(),
            k_start: self.layout.k_start() / 4,
            v_start: self.layout.v_start() / 4,
            qkv_offset: qkv.offset4(),
            qkv_stride: qkv.stride4(),
            out_offset: out.offset4(),
            out_stride: out.stride4(),
            dout_offset: 0,
            dout_stride: 0,
            lse_offset: 4 * lse.offset4(),
            lse_stride: lse.stride,
            delta_stride: 0,
            dqkv_offset: 0,
            dqkv_stride: 0,
            scale: self.scale,
            window: self.window_tokens(),
            starts_offset: offset_of(documents.map(|documents| documents.starts)),
            ends_offset: offset_of(documents.map(|documents| documents.ends)),
            dropout_site,
            seed_low,
            seed_high,
            threshold,
            factor,
        }
    }

    /// The dropout in the form of the params.
    #[track_caller]
    fn mask(&self) -> Mask {
        let Some(dropout) = self.dropout else {
            return Mask { site: 0, seed: [0, 0], threshold: 0, factor: 1.0 };
        };
        dropout.assert_valid();
        Mask {
            site: dropout.site,
            seed: dropout.key(),
            threshold: dropout.threshold(),
            factor: dropout.factor(),
        }
    }

    /// The window in the form of the params: clamped, so that adding it to a token index cannot overflow.
    fn window_tokens(&self) -> u32 {
        self.window.map_or(0, |window| window.min(self.tokens))
    }

    /// Asserts that all shapes agree, and returns the number of sequences.
    #[track_caller]
    fn assert_fits(&self, qkv: Tensor, outputs: &[(&str, Tensor)], lse: Tensor) -> u32 {
        let Self { layout, tokens, .. } = *self;
        layout.assert_valid();
        assert!(
            tokens > 0 && qkv.rows.is_multiple_of(tokens),
            "{} rows are not a whole number of sequences of {tokens}",
            qkv.rows
        );
        assert!(
            qkv.cols == layout.cols(),
            "qkv has {} columns, but its heads take {}",
            qkv.cols,
            layout.cols()
        );
        for (name, tensor) in outputs {
            let fits = (tensor.rows, tensor.cols) == (qkv.rows, layout.out_cols());
            assert!(
                fits,
                "{name} is {} x {}, not {} x {}",
                tensor.rows,
                tensor.cols,
                qkv.rows,
                layout.out_cols()
            );
            assert!(tensor.element == qkv.element, "{name} must have the element type of qkv");
        }
        let fits = (lse.rows, lse.cols, lse.element) == (qkv.rows, layout.heads, Element::F32);
        assert!(fits, "lse must be f32 of {} x {}", qkv.rows, layout.heads);
        assert!(lse.stride == stride_of(lse.cols), "lse must not be a column range");
        qkv.rows / tokens
    }
}

struct Mask {
    site: u32,
    seed: [u32; 2],
    threshold: u32,
    factor: f32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    Forward,
    BackwardQ,
    BackwardKv,
}

struct Plan {
    kernel: Kernel,
    /// Workgroups along the tokens of one sequence.
    blocks: u32,
}

fn plan(
    pass: Pass,
    shape: &Attention,
    is_packed: bool,
    element: Element,
    capabilities: Capabilities,
) -> Plan {
    let (kernel, block) = match capabilities.tier {
        Tier::Software => software(pass, shape.layout, element, capabilities),
        Tier::Portable => portable(pass, shape, element),
    };
    let kernel = kernel
        .condition(Condition::Alibi, shape.has_alibi)
        .condition(Condition::Causal, shape.is_causal)
        .condition(Condition::Windowed, shape.window.is_some())
        .condition(Condition::Segmented, is_packed)
        .condition(Condition::Dropout, shape.dropout.is_some())
        .constant("D4", shape.layout.head_dim / 4)
        .constant("V4", shape.layout.value_dim / 4);
    Plan { kernel, blocks: shape.tokens.div_ceil(block) }
}

/// The kernel in which an invocation owns whole rows, and the rows of a workgroup.
fn software(pass: Pass, layout: HeadLayout, element: Element, capabilities: Capabilities) -> (Kernel, u32) {
    let (file, entry, step) = match pass {
        Pass::Forward => ("attention/software/forward", "attention", "KEYS"),
        Pass::BackwardQ => ("attention/software/backward_q", "attention_backward_q", "KEYS"),
        Pass::BackwardKv => ("attention/software/backward_kv", "attention_backward_kv", "QUERIES"),
    };
    // More rows reuse each loaded key more often, but compile longer. One key at a time compiles fastest and runs as fast
    // as two. A tile holds one key per lane.
    let rows = if layout.head_dim + layout.value_dim <= 128 { 2 } else { 1 };
    let lanes = capabilities.software_workgroup();
    let kernel = Kernel::new(file, entry, element)
        .condition(Condition::Shuffled, capabilities.lanes > 1)
        .constant("LANES", lanes)
        .constant("ROWS", rows)
        .constant("TILE", lanes)
        .constant(step, 1);
    (kernel, rows * lanes)
}

/// The kernel in which a workgroup shares 32 rows, and those rows.
fn portable(pass: Pass, shape: &Attention, element: Element) -> (Kernel, u32) {
    let (file, entry) = match pass {
        Pass::Forward => ("attention/portable/forward", "attention"),
        Pass::BackwardQ => ("attention/portable/backward_q", "attention_backward_q"),
        Pass::BackwardKv => ("attention/portable/backward_kv", "attention_backward_kv"),
    };
    // The largest tiles with which AMD's, NVIDIA's and Intel's compilers keep everything in registers, see
    // benches/LOG.md: a longer chunk is unrolled into more registers where few chunks make a head.
    let has_all_masks = shape.dropout.is_some() && shape.window.is_some();
    let (width, chunk) = match shape.layout.head_dim.max(shape.layout.value_dim) {
        ..=32 => (8, 2),
        33..=64 => (16, 4),
        65..=128 if pass == Pass::BackwardKv && has_all_masks => (16, 1),
        65..=128 => (16, 8),
        // Its sums of keys and of values are five chunks of columns at DeepSeek's sizes, and three of twice the width.
        _ if pass == Pass::BackwardKv => (32, 4),
        _ => (16, 4),
    };
    (Kernel::new(file, entry, element).constant("WIDTH", width).constant("CHUNK", chunk), 32)
}
