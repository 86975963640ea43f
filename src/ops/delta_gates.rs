//! The gates of the [gated delta rule](super::gated_delta_rule): how much of a state stays, and how strongly a token
//! writes, from their projections (Yang, Kautz and Hatamizadeh, 2024).

use super::column_sum::fold_partials;
use super::gated_delta_rule::gate_cols;
use super::{per_block, per_item};
use crate::element::{Element, stride_of};
use crate::kernels::{Condition, Kernel};
use crate::record::{Binding, Recorder, Tensor};

/// Tokens that the weight gradients sum in their first launch.
const ROWS: u32 = 64;

crate::params! {
    struct Params {
        rows: u32,
        heads: u32,
        h4: u32,
        x_offset: u32,
        x_stride: u32,
        dx_offset: u32,
        dx_stride: u32,
        tokens: u32,
        last_offset: u32,
    }
}

/// What the gates are made of.
#[derive(Clone, Copy, Debug)]
pub struct GateInputs {
    /// The projections (N, [`gate_cols`]\(H)): b of the strengths, and from the middle on a of the decays.
    pub x: Tensor,
    /// (1, H), of the element type of x, like `bias`.
    pub a_log: Tensor,
    /// (1, H)
    pub bias: Tensor,
}

/// `gates` (N, [`gate_cols`]\(H)), f32: log_decay = −e^a_log · softplus(a + bias), and from the middle on beta =
/// sigmoid(b). With `last_rows` (1, B) u32, the last rows of B sequences, both are zero after them: such tokens leave
/// states as they are.
#[track_caller]
pub fn delta_gates(rec: &mut Recorder, inputs: &GateInputs, gates: Tensor, last_rows: Option<Tensor>) {
    let mut params = inputs.params(gates);
    if let Some(last_rows) = last_rows {
        assert!(params.rows.is_multiple_of(last_rows.cols), "rows of {} sequences", last_rows.cols);
        (params.tokens, params.last_offset) = (params.rows / last_rows.cols, 4 * last_rows.offset4());
    }
    let (kernel, grid) = inputs.per_group("delta_gates", params);
    let mut bindings = inputs.bindings();
    bindings.push(gates.bind("gates", Element::F32));
    bindings.extend(last_rows.map(|rows| rows.bind_with_offset("last_rows", Element::U32)));
    rec.dispatch(kernel.condition(Condition::Ended, last_rows.is_some()), &bindings, &params, grid);
}

/// dx, written, as x, from dgates, as the gates.
#[track_caller]
pub fn delta_gates_backward(rec: &mut Recorder, inputs: &GateInputs, dgates: Tensor, dx: Tensor) {
    let fits = (dx.rows, dx.cols, dx.element) == (inputs.x.rows, inputs.x.cols, inputs.x.element);
    assert!(fits, "dx must have the shape of the gates' projections");
    let params = Params { dx_offset: dx.offset4(), dx_stride: dx.stride4(), ..inputs.params(dgates) };
    let (kernel, grid) = inputs.per_group("delta_gates_backward", params);
    let mut bindings = inputs.bindings();
    bindings.extend([dgates.bind("dgates", Element::F32), dx.bind_with_offset("dx", inputs.x.element)]);
    rec.dispatch(kernel, &bindings, &params, grid);
}

/// da_log (1, H) and dbias (1, H), f32, += their sums over tokens, in a fixed order.
#[track_caller]
pub fn delta_gates_backward_weight(
    rec: &mut Recorder,
    inputs: &GateInputs,
    dgates: Tensor,
    [da_log, dbias]: [Option<Tensor>; 2],
) {
    let params = inputs.params(dgates);
    let blocks = params.rows.div_ceil(ROWS);
    let half = 4 * params.h4;
    let partials = rec.tensor("partials", blocks, 2 * half, Element::F32);
    let (kernel, grid) =
        per_block(rec, "delta_gates", "delta_gates_backward_weight", inputs.x.element, [params.h4, blocks]);
    let mut bindings = inputs.bindings();
    bindings.extend([dgates.bind("dgates", Element::F32), partials.bind("partials", Element::F32)]);
    rec.dispatch(kernel.constant("ROWS", ROWS), &bindings, &params, grid);
    for (gradient, first) in [(da_log, 0), (dbias, half)] {
        if let Some(gradient) = gradient {
            fold_partials(rec, partials.columns(first, gradient.cols), gradient);
        }
    }
}

impl GateInputs {
    #[track_caller]
    fn params(&self, gates: Tensor) -> Params {
        let Self { x, a_log, bias } = *self;
        let heads = a_log.cols;
        assert!(bias.cols == heads && x.cols == gate_cols(heads), "gates of {heads} heads from {}", x.cols);
        let fits = (gates.rows, gates.cols, gates.stride) == (x.rows, x.cols, x.cols);
        assert!(fits, "the gates must have the shape of their projections");
        Params {
            rows: x.rows,
            heads,
            h4: stride_of(heads) / 4,
            x_offset: x.offset4(),
            x_stride: x.stride4(),
            dx_offset: 0,
            dx_stride: 0,
            tokens: 0,
            last_offset: 0,
        }
    }

    fn bindings(&self) -> Vec<Binding> {
        let Self { x, a_log, bias } = *self;
        vec![x.bind_with_offset("x", x.element), a_log.bind("a_log", x.element), bias.bind("bias", x.element)]
    }

    fn per_group(&self, entry: &'static str, params: Params) -> (Kernel, [u32; 3]) {
        let items = u64::from(params.rows) * u64::from(params.h4);
        let (kernel, grid) = per_item("delta_gates", entry, self.x.element, items);
        (kernel.constant("ROWS", ROWS), grid)
    }
}
