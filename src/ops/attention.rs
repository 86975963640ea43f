//! Scaled dot-product attention with grouped queries, forward and backward, without a matrix of scores.
//!
//! Masked scores are finite, so that the difference of two is never NaN. ALiBi subtracts slope · (i - j) from a score
//! (condition `alibi`). The slope follows from the head's number and the number of heads, which the params contain
//! anyway, so the shader computes it. Only distances count, so windows, documents and caches need nothing more.

mod backward;
mod cost;
mod matrix;
mod plan;
mod sinks;
mod tile;

pub use self::backward::attention_backward;
pub use self::cost::LoopCost;
use self::plan::plan;
pub use self::sinks::Sinks;
use self::tile::Pass;
use super::dropout::{Dropout, DropoutState};
use super::heads::HeadLayout;
use super::largest::largest;
use super::soft_cap::cap_and_inverse;
use crate::element::{Element, stride_of};
use crate::kernels::{Condition, Kernel};
use crate::record::{Binding, Recorder, State, Tensor};

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
    /// Soft cap of the scaled scores, c · tanh(score / c), before masks and ALiBi; `None`: none.
    pub soft_cap: Option<f32>,
    /// Sliding window: a query attends to this many tokens, itself included; `None`: to all. Needs causal attention.
    pub window: Option<u32>,
    /// Whether a score loses slope · (i - j) at query i and key j (ALiBi, Press et al. 2022), where the slope depends
    /// on the head alone; needs causal attention.
    pub has_alibi: bool,
    /// The heads that this rank computes, if ranks divide those of a model; `None`: all.
    pub head_range: Option<HeadRange>,
    /// Dropout of the weights after the softmax. `None` compiles it out, a probability of 0 does not.
    pub dropout: Option<Dropout>,
}

/// Some of the heads of a model. Dropout masks and ALiBi slopes depend on the number of a head in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadRange {
    /// The first of them.
    pub first: u32,
    /// Number of heads in the model.
    pub of: u32,
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
        d4: u32,
        v4: u32,
        first_head: u32,
        all_heads: u32,
        rows: u32,
        parts: u32,
        share: u32,
        cap: f32,
        inverse_cap: f32,
    }
}

/// The tensors of an attention over N tokens.
#[derive(Clone, Copy, Debug)]
pub struct AttentionTensors {
    /// Queries, keys and values (N, `layout.cols()`).
    pub qkv: Tensor,
    /// The result (N, heads · value_dim), of the element type of `qkv`.
    pub out: Tensor,
    /// The natural logarithm of each softmax's denominator (N, heads), f32, for the backward; the sink is in it.
    pub lse: Tensor,
    /// The bounds of documents; `None`: each sequence is one document.
    pub documents: Option<DocumentBounds>,
    /// Where the forward pass writes the largest score of each query among the keys that it sees (N, heads), f32 and
    /// laid out as `lse`: the value that enters the softmax, scaled, capped and with ALiBi's part subtracted,
    /// or the head's sink if that is larger.
    pub logits: Option<Tensor>,
    /// A learned logit of each head in the softmax; `None`: there is none.
    pub sinks: Option<Sinks>,
}

impl AttentionTensors {
    /// Tensors for sequences of one document each, without the largest scores and without sinks.
    pub fn new(qkv: Tensor, out: Tensor, lse: Tensor) -> Self {
        Self { qkv, out, lse, documents: None, logits: None, sinks: None }
    }
}

/// out = softmax(scale · q kᵀ) v for each head of `qkv`, where the softmax has the head's sink beside the scores if
/// there are sinks.
///
/// With causal attention query i attends to the keys j with max(start of its document, i - window + 1) <= j <= i; tiles
/// of other keys are skipped.
#[track_caller]
pub fn attention(rec: &mut Recorder, tensors: &AttentionTensors, shape: &Attention) {
    let AttentionTensors { qkv, out, lse, documents, logits, sinks } = *tensors;
    let fits = |logits: Tensor| {
        (logits.rows, logits.stride, logits.offset4()) == (lse.rows, lse.stride, lse.offset4())
    };
    assert!(logits.is_none_or(fits), "logits must be laid out as lse");
    shape.assert_masks(documents, qkv);
    let batch = shape.assert_fits(qkv, &[("out", out)], lse);
    let params = shape.params(tensors);
    let params = Params { scale: shape.scale * std::f32::consts::LOG2_E, ..params };
    let plan = plan(Pass::Forward, shape, documents.is_some(), batch, qkv.element, rec.capabilities());
    let mut bindings = vec![
        qkv.bind_with_offset("qkv", qkv.element),
        out.bind_with_offset("out", qkv.element),
        lse.bind_with_offset("lse", Element::F32),
    ];
    bindings.extend(documents.map(|documents| documents.starts.bind_with_offset("starts", Element::U32)));
    bindings.extend(shape.dropout.map(|dropout| DropoutState::bind("dropout_state", dropout.state)));
    bindings.extend(logits.map(|logits| logits.bind_with_offset("logits", Element::F32)));
    bindings.extend(sinks.map(|sinks| sinks.bind(shape.layout.heads, qkv.element)));
    bindings.extend(scale_of(rec, &plan.kernel, qkv, "qkv_largest"));
    let grid = plan.grid(shape.layout.heads, batch);
    let kernel = plan
        .kernel
        .condition(Condition::Logits, logits.is_some())
        .condition(Condition::Sinks, sinks.is_some());
    rec.dispatch(kernel, &bindings, &params, grid);
}

/// Binds the largest magnitude of `x` to `variable`, if `kernel` scales by it.
#[track_caller]
fn scale_of(rec: &mut Recorder, kernel: &Kernel, x: Tensor, variable: &'static str) -> Option<Binding> {
    let is_scaled = kernel.is_by_matrices() && kernel.element == Element::Bf16;
    is_scaled.then(|| largest(rec, x, None).bind(variable, Element::U32))
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

    /// The params of all kernels; those of the backward pass set more fields.
    fn params(&self, tensors: &AttentionTensors) -> Params {
        let AttentionTensors { qkv, out, lse, documents, .. } = *tensors;
        let head_range = self.head_range.unwrap_or(HeadRange { first: 0, of: self.layout.heads });
        let offset_of = |row: Option<Tensor>| row.map_or(0, |row| 4 * row.offset4());
        // Kernels keep scores in units of log2 e.
        let [cap, inverse_cap] = cap_and_inverse(self.soft_cap, std::f32::consts::LOG2_E);
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
            d4: self.layout.head_dim / 4,
            v4: self.layout.value_dim / 4,
            first_head: head_range.first,
            all_heads: head_range.of,
            rows: qkv.rows,
            parts: 0,
            share: self.layout.group(),
            cap,
            inverse_cap,
        }
    }

    /// The fields of the params that describe the dropout.
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

    /// The window as the params hold it: clamped, so that adding it to a token index cannot overflow.
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
