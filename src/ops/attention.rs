//! Scaled dot-product attention with grouped queries, forward and backward, without a matrix of scores.

use super::dropout::Dropout;
use super::heads::HeadLayout;
use crate::element::{Element, stride_of};
use crate::kernels::{Capabilities, Kernel, Tier};
use crate::record::{Binding, Recorder, Tensor};

/// The sizes of an attention and what a query may see.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// The columns of qkv.
    pub layout: HeadLayout,
    /// T, the tokens of one sequence; sequences do not see each other. The tensors have batch · T rows.
    pub tokens: u32,
    /// A token sees itself and earlier tokens only.
    pub is_causal: bool,
    /// Factor of the scores, usually 1/√head_dim.
    pub scale: f32,
    /// A query sees this many tokens, itself and those before it; `None`: all of them. For causal attention.
    pub window: Option<u32>,
    /// Drops weights after the softmax; `None`, not a probability of 0, costs nothing.
    pub dropout: Option<Dropout>,
}

/// Which tokens belong to the same document, where a sequence holds several: tokens of different ones do not see each
/// other. Two rows (1, N) of u32, for each token the index within its sequence of its document's first token, and of one
/// past its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DocumentBounds {
    /// Where each token's document begins.
    pub starts: Tensor,
    /// Where it ends.
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
/// f32, the natural logarithm of each softmax's denominator, for the backward pass.
///
/// Query i of a causal attention sees the keys j with max(start of its document, i - window + 1) <= j <= i; no others are
/// visited, but for a few that fill a tile. `documents` of `None`: a sequence is one document.
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
    let [qkv, out, lse] = [qkv, out, lse].map(|tensor| tensor.offset_binding().0);
    let mut bindings = vec![(1, qkv), (2, out), (3, lse)];
    bindings.extend(documents.map(|documents| (7, integers(documents.starts).0)));
    bindings.extend(shape.dropout.map(|dropout| (8, dropout.state.binding())));
    rec.dispatch(kernel, &bindings, &params, [blocks, shape.layout.heads, batch]);
}

/// dqkv (N, layout.cols()), every column of it, from what [`attention`] read and wrote and from dout, shaped like out.
/// Two dispatches: the queries' gradient, which also leaves Σ dout · out for each head, then the keys' and values'.
#[track_caller]
#[allow(clippy::too_many_arguments)] // each is a tensor with a name of its own
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
    assert!(fits, "dqkv has another shape or element than qkv");
    let delta = rec.tensor("delta", lse.rows, lse.cols, Element::F32);
    let ((dout_range, dout_offset), (dqkv_range, dqkv_offset)) =
        (dout.offset_binding(), dqkv.offset_binding());
    let params = Params {
        dout_offset,
        dout_stride: dout.stride4(),
        delta_stride: delta.stride,
        dqkv_offset,
        dqkv_stride: dqkv.stride4(),
        ..shape.params(qkv, out, lse, documents)
    };
    let [qkv_range, out_range, lse_range] = [qkv, out, lse].map(|tensor| tensor.offset_binding().0);
    let Plan { kernel, blocks } =
        plan(Pass::BackwardQ, shape, documents.is_some(), qkv.element, rec.capabilities());
    let (lse_range, delta_range) = ((4, lse_range), (5, delta.binding()));
    let mut bindings =
        vec![(1, qkv_range), (2, out_range), (3, dout_range), lse_range, delta_range, (6, dqkv_range)];
    bindings.extend(documents.map(|documents| (7, integers(documents.starts).0)));
    bindings.extend(shape.dropout.map(|dropout| (8, dropout.state.binding())));
    rec.dispatch(kernel, &bindings, &params, [blocks, shape.layout.heads, batch]);
    let Plan { kernel, blocks } =
        plan(Pass::BackwardKv, shape, documents.is_some(), qkv.element, rec.capabilities());
    let mut bindings = vec![(1, qkv_range), (3, dout_range), lse_range, delta_range, (6, dqkv_range)];
    bindings.extend(documents.map(|documents| (7, integers(documents.ends).0)));
    bindings.extend(shape.dropout.map(|dropout| (8, dropout.state.binding())));
    rec.dispatch(kernel, &bindings, &params, [blocks, shape.layout.kv_heads, batch]);
}

impl Attention {
    #[track_caller]
    fn assert_masks(&self, documents: Option<DocumentBounds>, qkv: Tensor) {
        let is_bounded = self.window.is_some() || documents.is_some();
        assert!(self.is_causal || !is_bounded, "a window and document bounds need causal attention");
        assert!(self.window != Some(0), "a window holds at least the token itself, but window is 0");
        for tensor in documents.iter().flat_map(|documents| [documents.starts, documents.ends]) {
            assert!(tensor.cols == qkv.rows, "{} document bounds for {} tokens", tensor.cols, qkv.rows);
        }
    }

    /// What all kernels take; those of the backward pass say more.
    fn params(&self, qkv: Tensor, out: Tensor, lse: Tensor, documents: Option<DocumentBounds>) -> Params {
        let [(_, qkv_offset), (_, out_offset), (_, lse_offset)] =
            [qkv, out, lse].map(|tensor| tensor.offset_binding());
        let offset_of = |row: Option<Tensor>| row.map_or(0, |row| integers(row).1);
        let Mask { site: dropout_site, seed: [seed_low, seed_high], threshold, factor } = self.mask();
        Params {
            tokens: self.tokens,
            heads: self.layout.heads,
            group: self.layout.group(),
            k_start: self.layout.k_start() / 4,
            v_start: self.layout.v_start() / 4,
            qkv_offset,
            qkv_stride: qkv.stride4(),
            out_offset,
            out_stride: out.stride4(),
            dout_offset: 0,
            dout_stride: 0,
            lse_offset: 4 * lse_offset,
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

    /// The dropout as the kernels take it.
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

    /// The window as the kernels take it, without overflow where it is added to a token.
    fn window_tokens(&self) -> u32 {
        self.window.map_or(0, |window| window.min(self.tokens))
    }

    /// The number of sequences, once all shapes agree.
    #[track_caller]
    fn assert_fits(&self, qkv: Tensor, outputs: &[(&str, Tensor)], lse: Tensor) -> u32 {
        let Self { layout, tokens, .. } = *self;
        layout.assert_valid();
        assert!(tokens > 0 && qkv.rows.is_multiple_of(tokens), "{} rows in sequences of {tokens}", qkv.rows);
        assert!(qkv.cols == layout.cols(), "qkv has {} columns, its heads take {}", qkv.cols, layout.cols());
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
            assert!(tensor.element == qkv.element, "{name} and qkv are stored alike");
        }
        let fits = (lse.rows, lse.cols, lse.element) == (qkv.rows, layout.heads, Element::F32);
        assert!(fits, "lse is f32 of {} x {}", qkv.rows, layout.heads);
        assert!(lse.stride == stride_of(lse.cols), "lse is not a column range");
        qkv.rows / tokens
    }
}

struct Mask {
    site: u32,
    seed: [u32; 2],
    threshold: u32,
    factor: f32,
}

#[derive(Clone, Copy)]
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

/// The binding of a row of integers, and where in it the row begins, in integers.
fn integers(row: Tensor) -> (Binding, u32) {
    let (range, offset) = row.offset_binding();
    (range, 4 * offset)
}

fn plan(
    pass: Pass,
    shape: &Attention,
    is_packed: bool,
    element: Element,
    capabilities: Capabilities,
) -> Plan {
    let Attention { layout, tokens, is_causal, .. } = *shape;
    let (file, entry, step) = match pass {
        Pass::Forward => ("attention/forward", "attention", "KEYS"),
        Pass::BackwardQ => ("attention/backward_q", "attention_backward_q", "KEYS"),
        Pass::BackwardKv => ("attention/backward_kv", "attention_backward_kv", "QUERIES"),
    };
    let (rows, lanes, walked, tile) = match capabilities.tier {
        Tier::Software => {
            // What an invocation hears of a key serves all its rows, but the driver compiles longer the more there are. One
            // key at a time compiles fastest and runs as fast as two. A tile is a key for each lane.
            let rows = if layout.head_dim + layout.value_dim <= 128 { 2 } else { 1 };
            (rows, capabilities.software_workgroup(), 1, capabilities.software_workgroup())
        }
        Tier::Portable => {
            // What fits in 16 KiB, in whole steps of the walk; more than 32 gains nothing.
            let rows = 4096 / (layout.head_dim + layout.value_dim);
            (1, 64, 4, rows.min(32) / 4 * 4)
        }
    };
    let kernel = Kernel::new(file, entry, element)
        .feature("causal", is_causal)
        .feature("shared_tile", capabilities.tier == Tier::Portable)
        .feature("shuffled", capabilities.tier == Tier::Software && capabilities.lanes > 1)
        .feature("windowed", shape.window.is_some())
        .feature("segmented", is_packed)
        .feature("dropout", shape.dropout.is_some())
        .constant("D4", layout.head_dim / 4)
        .constant("V4", layout.value_dim / 4)
        .constant("LANES", lanes)
        .constant("ROWS", rows)
        .constant("TILE", tile)
        .constant(step, walked);
    Plan { kernel, blocks: tokens.div_ceil(rows * lanes) }
}
