//! Causal convolution of each channel by itself, over the last tokens of its document: linear attention has it before
//! its queries, keys and values (Dao and Gu, 2024), LFM2 between its gates.

use super::attention::DocumentBounds;
use super::column_sum::fold_partials;
use super::{per_block, per_item};
use crate::element::Element;
use crate::kernels::{Condition, Kernel};
use crate::record::{Recorder, Tensor};

/// Tokens that the weight gradient sums in its first launch.
const ROWS: u32 = 64;

/// What a convolution computes beside its sums z (N, C).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvForm {
    /// y = z.
    Plain,
    /// y = silu(z).
    Silu,
    /// Its input is [b | c | v] (N, 3 C): the sums take b · v, and y = c · z, as in LFM2.
    Gated,
}

impl ConvForm {
    /// Columns of the input for each channel.
    fn parts(self) -> u32 {
        if self == Self::Gated { 3 } else { 1 }
    }

    fn conditions(self, kernel: Kernel) -> Kernel {
        kernel.condition(Condition::Silu, self == Self::Silu).condition(Condition::Gated, self == Self::Gated)
    }
}

/// The formula of the convolution, apart from its weight (W, C).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CausalConv {
    /// T, tokens of a sequence, which the convolution does not cross.
    pub tokens: u32,
    /// The bounds of documents, which it does not cross either; `None`: each sequence is one document.
    pub documents: Option<DocumentBounds>,
    /// What stands around the sums.
    pub form: ConvForm,
}

crate::params! {
    struct Params {
        rows: u32,
        tokens: u32,
        cols4: u32,
        x_offset: u32,
        x_stride: u32,
        dx_offset: u32,
        dx_stride: u32,
        starts_offset: u32,
        ends_offset: u32,
        last_offset: u32,
    }
}

impl CausalConv {
    #[track_caller]
    fn params(&self, x: &Tensor, w: &Tensor) -> Params {
        let channels = w.cols;
        assert!(x.cols == channels * self.form.parts(), "causal_conv of {} columns with {channels}", x.cols);
        assert!(channels.is_multiple_of(4), "causal_conv of {channels} channels, which 4 does not divide");
        assert!(x.rows.is_multiple_of(self.tokens), "{} tokens are no sequences of {}", x.rows, self.tokens);
        let offset = |bound: fn(DocumentBounds) -> Tensor| {
            self.documents.map_or(0, |documents| {
                let bound = bound(documents);
                assert!(bound.cols == x.rows, "causal_conv needs a bound for each of {} tokens", x.rows);
                4 * bound.offset4()
            })
        };
        Params {
            rows: x.rows,
            tokens: self.tokens,
            cols4: channels / 4,
            x_offset: x.offset4(),
            x_stride: x.stride4(),
            dx_offset: 0,
            dx_stride: 0,
            starts_offset: offset(|documents| documents.starts),
            ends_offset: offset(|documents| documents.ends),
            last_offset: 0,
        }
    }

    fn kernel(&self, kernel: Kernel, w: &Tensor) -> Kernel {
        kernel
            .constant("ROWS", ROWS)
            .constant("WIDTH", w.rows)
            .condition(Condition::Segmented, self.documents.is_some())
    }

    fn per_token(&self, x: &Tensor, w: &Tensor, entry: &'static str) -> (Kernel, [u32; 3]) {
        let count = u64::from(x.rows) * u64::from(w.cols / 4);
        let (kernel, grid) = per_item("causal_conv", entry, x.element, count);
        (self.kernel(kernel, w), grid)
    }
}

/// y (N, C) of x (N, C), or (N, 3 C) with gates, which may be a range of columns of a larger tensor, and w (W, C): with
/// `z[t]` the sum over the last W tokens t - W + 1 + j of `w[j]` · x, y as the [form](ConvForm) has it.
#[track_caller]
pub fn causal_conv(rec: &mut Recorder, x: Tensor, w: Tensor, y: Tensor, conv: &CausalConv) {
    assert_channels("y", &y, &x, &w);
    let (kernel, grid) = conv.per_token(&x, &w, "causal_conv");
    let mut bindings =
        vec![x.bind_with_offset("x", x.element), w.bind("w", x.element), y.bind("y", x.element)];
    bindings
        .extend(conv.documents.map(|documents| documents.starts.bind_with_offset("starts", Element::U32)));
    rec.dispatch(conv.form.conditions(kernel), &bindings, &conv.params(&x, &w), grid);
}

/// The gradient of z, in place on `gradient` (N, C): dy becomes dz. It comes before the other two, and does nothing in
/// the plain form. With gates it writes that of c, too, into `dx` (N, 3 C).
#[track_caller]
pub fn causal_conv_slopes(
    rec: &mut Recorder,
    x: Tensor,
    w: Tensor,
    gradient: Tensor,
    dx: Option<Tensor>,
    conv: &CausalConv,
) {
    if conv.form == ConvForm::Plain {
        return;
    }
    assert_channels("a gradient", &gradient, &x, &w);
    assert!((conv.form == ConvForm::Gated) == dx.is_some(), "gates, and nothing else, have a gradient here");
    let (kernel, grid) = conv.per_token(&x, &w, "causal_conv_slopes");
    let mut bindings = vec![
        x.bind_with_offset("x", x.element),
        w.bind("w", x.element),
        gradient.bind("gradient", x.element),
    ];
    bindings
        .extend(conv.documents.map(|documents| documents.starts.bind_with_offset("starts", Element::U32)));
    let mut params = conv.params(&x, &w);
    if let Some(dx) = dx {
        let dc = dx.columns(w.cols, w.cols);
        bindings.push(dc.bind_with_offset("dc", x.element));
        (params.dx_offset, params.dx_stride) = (dc.offset4(), dc.stride4());
    }
    rec.dispatch(conv.form.conditions(kernel), &bindings, &params, grid);
}

/// dx (N, C), written or, with `accumulate`, added to, from dz (N, C). It may be a range of columns, as x may. Not of a
/// convolution with gates, which has [`gated_conv_backward`].
#[track_caller]
pub fn causal_conv_backward(
    rec: &mut Recorder,
    w: Tensor,
    dz: Tensor,
    dx: Tensor,
    accumulate: bool,
    conv: &CausalConv,
) {
    assert!(conv.form != ConvForm::Gated, "the gradients of gates need their values");
    assert_channels("a gradient", &dz, &dx, &w);
    assert!(dx.cols == w.cols, "dx must have the channels of causal_conv's input");
    let (kernel, grid) = conv.per_token(&dz, &w, "causal_conv_backward");
    let mut bindings =
        vec![dz.bind("dz", dz.element), w.bind("w", dz.element), dx.bind_with_offset("dx", dz.element)];
    bindings.extend(conv.documents.map(|documents| documents.ends.bind_with_offset("ends", Element::U32)));
    let params = Params { dx_offset: dx.offset4(), dx_stride: dx.stride4(), ..conv.params(&dz, &w) };
    rec.dispatch(kernel.condition(Condition::Accumulate, accumulate), &bindings, &params, grid);
}

/// The gradients of b and v, those ranges of `dx` (N, 3 C), from x (N, 3 C) and dz (N, C), of a convolution with gates.
#[track_caller]
pub fn gated_conv_backward(
    rec: &mut Recorder,
    x: Tensor,
    w: Tensor,
    dz: Tensor,
    dx: Tensor,
    conv: &CausalConv,
) {
    assert!(conv.form == ConvForm::Gated, "a convolution without gates has causal_conv_backward");
    assert_channels("a gradient", &dz, &x, &w);
    assert!((dx.rows, dx.cols, dx.element) == (x.rows, x.cols, x.element), "dx must have the shape of x");
    let (kernel, grid) = conv.per_token(&x, &w, "causal_conv_backward");
    let mut bindings = vec![
        dz.bind("dz", x.element),
        w.bind("w", x.element),
        dx.bind_with_offset("dx", x.element),
        x.bind_with_offset("parts", x.element),
    ];
    bindings.extend(conv.documents.map(|documents| documents.ends.bind_with_offset("ends", Element::U32)));
    let params = Params { dx_offset: dx.offset4(), dx_stride: dx.stride4(), ..conv.params(&x, &w) };
    rec.dispatch(conv.form.conditions(kernel), &bindings, &params, grid);
}

/// dw (1, W · C) += the sums over tokens of dz (N, C) · x: f32, summed in a fixed order. `w` says how wide.
#[track_caller]
pub fn causal_conv_backward_weight(
    rec: &mut Recorder,
    x: Tensor,
    w: Tensor,
    dz: Tensor,
    dw: Tensor,
    conv: &CausalConv,
) {
    assert_channels("a gradient", &dz, &x, &w);
    assert!(dw.element == Element::F32, "gradients of parameters must be f32");
    let blocks = x.rows.div_ceil(ROWS);
    let partials = rec.tensor("partials", blocks, w.rows * w.cols, Element::F32);
    let (kernel, grid) =
        per_block(rec, "causal_conv", "causal_conv_backward_weight", x.element, [w.cols / 4, blocks]);
    let mut bindings = vec![
        x.bind_with_offset("x", x.element),
        dz.bind("gradients", x.element),
        partials.bind("partials", Element::F32),
    ];
    bindings
        .extend(conv.documents.map(|documents| documents.starts.bind_with_offset("starts", Element::U32)));
    let kernel = conv.kernel(kernel, &w).condition(Condition::Gated, conv.form == ConvForm::Gated);
    rec.dispatch(kernel, &bindings, &conv.params(&x, &w), grid);
    fold_partials(rec, partials, dw);
}

/// Tokens before the next one that a convolution `width` tokens wide takes: those that its state holds in decoding.
pub const fn kept_tokens(width: u32) -> u32 {
    width - 1
}

/// `state` (B · (W - 1), C): the last W - 1 rows of each sequence of x (N, C) up to row number `last_rows` (1, B) u32
/// of x, the newest last, and zeros for those before its first token. x may be a range of columns; W is 2 or more. With
/// gates, x is (N, 3 C) and the rows are b · v.
#[track_caller]
pub fn causal_conv_state(
    rec: &mut Recorder,
    x: Tensor,
    last_rows: Tensor,
    state: Tensor,
    width: u32,
    form: ConvForm,
) {
    assert_state(&x, last_rows.cols, &state, width, form);
    let tokens = x.rows / last_rows.cols;
    let count = u64::from(state.rows) * u64::from(state.cols / 4);
    let (kernel, grid) = per_item("causal_conv", "causal_conv_state", x.element, count);
    let params = Params {
        rows: state.rows,
        tokens,
        cols4: state.cols / 4,
        x_offset: x.offset4(),
        x_stride: x.stride4(),
        dx_offset: 0,
        dx_stride: 0,
        starts_offset: 0,
        ends_offset: 0,
        last_offset: 4 * last_rows.offset4(),
    };
    let bindings = [
        x.bind_with_offset("x", x.element),
        last_rows.bind_with_offset("last_rows", Element::U32),
        state.bind("state", x.element),
    ];
    let kernel = kernel.constant("ROWS", ROWS).constant("WIDTH", width);
    rec.dispatch(kernel.condition(Condition::Gated, form == ConvForm::Gated), &bindings, &params, grid);
}

/// y (B, C) of one more token x (B, C), or (B, 3 C) with gates, of each of B sequences, after those in `state` (B · (W -
/// 1), C), which then holds it, too. x may be a range of columns; documents are not looked at.
#[track_caller]
pub fn causal_conv_step(rec: &mut Recorder, x: Tensor, w: Tensor, state: Tensor, y: Tensor, form: ConvForm) {
    assert_state(&x, x.rows, &state, w.rows, form);
    assert_channels("y", &y, &x, &w);
    let conv = CausalConv { tokens: 1, documents: None, form };
    let (kernel, grid) = conv.per_token(&x, &w, "causal_conv_step");
    let bindings = [
        x.bind_with_offset("x", x.element),
        w.bind("w", x.element),
        y.bind("y", x.element),
        state.bind("state", x.element),
    ];
    rec.dispatch(form.conditions(kernel), &bindings, &conv.params(&x, &w), grid);
}

#[track_caller]
fn assert_state(x: &Tensor, sequences: u32, state: &Tensor, width: u32, form: ConvForm) {
    assert!(width > 1, "a convolution of one token has no state");
    assert!(x.rows.is_multiple_of(sequences), "{} rows are not {sequences} sequences", x.rows);
    let shape = (sequences * kept_tokens(width), x.cols / form.parts(), x.element);
    let fits = (state.rows, state.cols, state.element) == shape;
    assert!(fits && state.stride == state.cols, "the state must be {} tokens of each sequence", width - 1);
}

/// Checks that `tensor` has a row of the weights' channels for each row of `x`.
#[track_caller]
fn assert_channels(what: &str, tensor: &Tensor, x: &Tensor, w: &Tensor) {
    let fits = (tensor.rows, tensor.cols, tensor.stride) == (x.rows, w.cols, w.cols);
    assert!(
        fits && tensor.element == x.element,
        "{what} must have the rows and channels of causal_conv's input"
    );
}
