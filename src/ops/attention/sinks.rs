//! Attention sinks: a learned logit of each head in the softmax, which takes a share of the weights and has no value
//! (Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2024; OpenAI, "gpt-oss", 2025).

use crate::element::{Element, stride_of};
use crate::kernels::Condition;
use crate::ops::column_sum::fold_partials;
use crate::ops::largest::PARTS;
use crate::ops::per_block;
use crate::record::{Binding, Recorder, Tensor};

/// Rows that the gradient sums in its first launch.
const ROWS: u32 = 64;

/// The sinks of an attention.
#[derive(Clone, Copy, Debug)]
pub struct Sinks {
    /// The logit of each head (1, heads), of the element type of `qkv`.
    pub logits: Tensor,
    /// What the backward adds their gradient to (1, heads), f32; `None`: they have none.
    pub gradient: Option<Tensor>,
}

crate::params! {
    struct Params {
        rows: u32,
        columns4: u32,
        lse_offset4: u32,
        lse_stride4: u32,
        delta_stride4: u32,
    }
}

impl Sinks {
    /// Their binding in kernels of `heads` heads.
    #[track_caller]
    pub(in crate::ops) fn bind(self, heads: u32, element: Element) -> Binding {
        assert!(self.logits.cols == heads, "{} sinks of {heads} heads", self.logits.cols);
        self.logits.bind("sinks", element)
    }
}

/// Adds −Σ exp(sink − lse) · delta of each head, over the rows of lse and delta (N, heads), to the gradient of `sinks`,
/// if they have one: f32, summed in a fixed order. `scales` are the largest magnitudes of qkv and dout by which matrices
/// have scaled delta, if they have.
#[track_caller]
pub(super) fn sinks_backward(
    rec: &mut Recorder,
    sinks: Sinks,
    element: Element,
    [lse, delta]: [Tensor; 2],
    scales: Option<[Binding; 2]>,
) {
    let Some(gradient) = sinks.gradient else { return };
    let blocks = lse.rows.div_ceil(ROWS);
    let partials = rec.tensor("partials", blocks, lse.cols, Element::F32);
    let columns4 = stride_of(lse.cols) / 4;
    let (kernel, grid) =
        per_block(rec, "attention/sinks_backward", "attention_sinks_backward", element, [columns4, blocks]);
    let mut bindings = vec![
        sinks.bind(lse.cols, element),
        lse.bind_with_offset("lse", Element::F32),
        delta.bind("delta", Element::F32),
        partials.bind("partials", Element::F32),
    ];
    let mut kernel = kernel.constant("ROWS", ROWS).condition(Condition::Scaled, scales.is_some());
    if let Some(scales) = scales {
        kernel = kernel.constant("PARTS", PARTS);
        bindings.extend(scales);
    }
    let params = Params {
        rows: lse.rows,
        columns4,
        lse_offset4: lse.offset4(),
        lse_stride4: lse.stride4(),
        delta_stride4: delta.stride4(),
    };
    rec.dispatch(kernel, &bindings, &params, grid);
    fold_partials(rec, partials, gradient);
}
