//! Linear attention on the tape: the short convolution, the gates, the gated delta rule, and the norm and gates after
//! it. The convolution with gates of its own is all that layers of LFM2 without attention have.

use super::{Parameter, Tape, Var};
use crate::element::Element;
use crate::ops::causal_conv::{self, CausalConv, ConvForm};
use crate::ops::delta_gates::{self, GateInputs};
use crate::ops::gated_delta_rule::{self, DeltaInputs, GatedDeltaRule};
use crate::ops::gated_norm::{self, GatedNorm};
use crate::ops::{sigmoid_gate, unit_heads};
use crate::record::{Recorder, Tensor};

/// Added to the square of a query's and a key's length, as in the published code.
const UNIT_EPSILON: f32 = 1e-6;

impl<'p> Tape<'_, 'p> {
    /// The causal convolution of x (N, C), or (N, 3 C) with gates, with `weight` (W, C): (N, C).
    #[track_caller]
    pub fn causal_conv(&mut self, x: Var, weight: &'p Parameter, conv: CausalConv) -> Var {
        let Tensor { rows, cols, element, .. } = x.tensor;
        let w = weight.weight();
        let y = self.rec.tensor("y", rows, w.cols, element);
        causal_conv::causal_conv(self.rec, x.tensor, w, y, &conv);
        let saved_x = self.save(x);
        self.result(y, &[x], weight.trains(), move |tape, dy| {
            let saved_x = tape.saved(saved_x);
            // The gradients of gates come together, even if only some are needed.
            let is_gated = conv.form == ConvForm::Gated;
            let dx = is_gated.then(|| tape.rec.tensor("gradient", rows, cols, element));
            causal_conv::causal_conv_slopes(tape.rec, saved_x, w, dy, dx, &conv); // in place
            if let Some(dw) = weight.gradient() {
                let flat = Tensor { rows: 1, cols: w.rows * w.cols, stride: w.rows * w.cols, ..dw };
                causal_conv::causal_conv_backward_weight(tape.rec, saved_x, w, dy, flat, &conv);
            }
            match dx {
                Some(dx) => {
                    causal_conv::gated_conv_backward(tape.rec, saved_x, w, dy, dx, &conv);
                    tape.give(x, dx);
                }
                None => {
                    let Some(target) = tape.target(x) else { return };
                    let (dx, accumulate) = (target.tensor, target.accumulate);
                    causal_conv::causal_conv_backward(tape.rec, w, dy, dx, accumulate, &conv);
                }
            }
        })
    }

    /// Writes the state of a convolution `width` tokens wide after row `last_rows` (1, B) of each of B sequences x (N,
    /// C), or (N, 3 C) with gates.
    ///
    /// # Panics
    /// On a tape for training: a state has no backward.
    #[track_caller]
    pub fn fill_conv_state(&mut self, x: Var, last_rows: Tensor, state: Tensor, width: u32, form: ConvForm) {
        assert!(!self.is_recording, "a state has no backward: use Tape::forward_only");
        causal_conv::causal_conv_state(self.rec, x.tensor, last_rows, state, width, form);
    }

    /// The causal convolution of one more token x (B, C), or (B, 3 C) with gates, of each of B sequences after those in
    /// `state`: (B, C).
    ///
    /// # Panics
    /// On a tape for training, as [`fill_conv_state`](Self::fill_conv_state).
    #[track_caller]
    pub fn causal_conv_step(&mut self, x: Var, weight: &'p Parameter, state: Tensor, form: ConvForm) -> Var {
        assert!(!self.is_recording, "a state has no backward: use Tape::forward_only");
        let (Tensor { rows, element, .. }, w) = (x.tensor, weight.weight());
        let y = self.rec.tensor("y", rows, w.cols, element);
        causal_conv::causal_conv_step(self.rec, x.tensor, w, state, y, form);
        self.result(y, &[x], false, |_, _| {})
    }

    /// The gates of H heads from their projections x (N, gate_cols(H)), `a_log` and `bias` (H): (N, gate_cols(H)), f32,
    /// as [`delta_gates`](delta_gates::delta_gates()) has them. With `last_rows` (1, B), tokens after those rows leave
    /// states as they are.
    ///
    /// # Panics
    /// With `last_rows` on a tape for training.
    #[track_caller]
    pub fn delta_gates(
        &mut self,
        x: Var,
        a_log: &'p Parameter,
        bias: &'p Parameter,
        last_rows: Option<Tensor>,
    ) -> Var {
        assert!(!self.is_recording || last_rows.is_none(), "gates that end have no backward");
        let Tensor { rows, cols, element, .. } = x.tensor;
        let gates = self.rec.tensor("y", rows, cols, Element::F32);
        let inputs = move |x| GateInputs { x, a_log: a_log.weight(), bias: bias.weight() };
        delta_gates::delta_gates(self.rec, &inputs(x.tensor), gates, last_rows);
        let saved_x = self.save(x);
        self.result(gates, &[x], Parameter::any_trains([a_log, bias]), move |tape, dgates| {
            let inputs = inputs(tape.saved(saved_x));
            let gradients = [a_log.gradient(), bias.gradient()];
            if gradients.iter().any(Option::is_some) {
                delta_gates::delta_gates_backward_weight(tape.rec, &inputs, dgates, gradients);
            }
            if tape.needs_gradient[x.id] {
                let dx = tape.rec.tensor("gradient", rows, cols, element);
                delta_gates::delta_gates_backward(tape.rec, &inputs, dgates, dx);
                tape.give(x, dx);
            }
        })
    }

    /// The gated delta rule over queries, keys and values x (N, 2 key_heads·K + H·V), of which queries and keys are
    /// divided by their lengths, and `gates` (N, gate_cols(H)): (N, H·V). Only x and the gates are kept. With
    /// `final_state` (B·H·K, V), f32, the states after the last tokens are written there.
    ///
    /// # Panics
    /// With `final_state` on a tape for training.
    #[track_caller]
    pub fn gated_delta_rule(
        &mut self,
        x: Var,
        gates: Var,
        rule: GatedDeltaRule,
        final_state: Option<Tensor>,
    ) -> Var {
        assert!(!self.is_recording || final_state.is_none(), "a state has no backward");
        let Tensor { rows, cols, element, .. } = x.tensor;
        let (keys, values) = columns(x.tensor, &rule);
        let out = self.rec.tensor("y", rows, values, element);
        let given = delta_inputs(self.rec, x.tensor, gates.tensor, &rule);
        gated_delta_rule::gated_delta_rule(self.rec, &given, out, final_state, &rule);
        let (saved_x, saved_gates) = (self.save(x), self.save(gates));
        self.result(out, &[x, gates], false, move |tape, dout| {
            let (saved_x, saved_gates) = (tape.saved(saved_x), tape.saved(saved_gates));
            let given = delta_inputs(tape.rec, saved_x, saved_gates, &rule);
            // All gradients come together, even if only some are needed.
            let dx = tape.rec.tensor("gradient", rows, cols, element);
            let dqk = tape.rec.tensor("gradient of unit heads", rows, keys, element);
            let dgates = tape.rec.tensor("gradient of gates", rows, gates.tensor.cols, Element::F32);
            let gradients = DeltaInputs { qk: dqk, v: dx.columns(keys, values), gates: dgates };
            gated_delta_rule::gated_delta_rule_backward(tape.rec, &given, dout, &gradients, &rule);
            let of_keys = |tensor: Tensor| tensor.columns(0, keys);
            unit_heads::unit_heads_backward(
                tape.rec,
                of_keys(saved_x),
                dqk,
                of_keys(dx),
                rule.key_dim,
                UNIT_EPSILON,
            );
            tape.give(gates, dgates);
            tape.give(x, dx);
        })
    }

    /// The rule on one more token of each of B sequences, x (B, 2 key_heads·K + H·V) with `gates`, after those in
    /// `state` (B·H·K, V), f32: (B, H·V).
    ///
    /// # Panics
    /// On a tape for training, as [`fill_conv_state`](Self::fill_conv_state).
    #[track_caller]
    pub fn gated_delta_rule_step(&mut self, x: Var, gates: Var, state: Tensor, rule: GatedDeltaRule) -> Var {
        assert!(!self.is_recording, "a state has no backward: use Tape::forward_only");
        let (_, values) = columns(x.tensor, &rule);
        let out = self.rec.tensor("y", x.tensor.rows, values, x.tensor.element);
        let given = delta_inputs(self.rec, x.tensor, gates.tensor, &rule);
        gated_delta_rule::gated_delta_rule_step(self.rec, &given, state, out, &rule);
        self.result(out, &[x, gates], false, |_, _| {})
    }

    /// RMSNorm of each head of x (N, heads · C), times `weight` (C) and silu(z): (N, heads · C).
    #[track_caller]
    pub fn gated_norm(&mut self, x: Var, z: Var, weight: &'p Parameter, epsilon: f32) -> Var {
        let Tensor { rows, cols, element, .. } = x.tensor;
        let y = self.rec.tensor("y", rows, cols, element);
        let norm = move |x, z| GatedNorm { x, z, w: weight.weight(), epsilon };
        gated_norm::gated_norm(self.rec, &norm(x.tensor, z.tensor), y);
        let (saved_x, saved_z) = (self.save(x), self.save(z));
        self.result(y, &[x, z], weight.trains(), move |tape, dy| {
            let norm = norm(tape.saved(saved_x), tape.saved(saved_z));
            if let Some(dw) = weight.gradient() {
                gated_norm::gated_norm_backward_weight(tape.rec, &norm, dy, dw);
            }
            let dx = tape.rec.tensor("gradient", rows, cols, element);
            let dz = tape.target_or_scratch(z);
            gated_norm::gated_norm_backward(tape.rec, &norm, dy, dx, dz);
            tape.give(x, dx);
        })
    }

    /// x · sigmoid(g), (N, D).
    #[track_caller]
    pub fn sigmoid_gate(&mut self, x: Var, g: Var) -> Var {
        let Tensor { rows, cols, element, .. } = x.tensor;
        let y = self.rec.tensor("y", rows, cols, element);
        sigmoid_gate::sigmoid_gate(self.rec, x.tensor, g.tensor, y);
        let (saved_x, saved_g) = (self.save(x), self.save(g));
        self.result(y, &[x, g], false, move |tape, dy| {
            let saved = [tape.saved(saved_x), tape.saved(saved_g)];
            let dx = tape.rec.tensor("gradient", rows, cols, element);
            let dg = tape.target_or_scratch(g);
            sigmoid_gate::sigmoid_gate_backward(tape.rec, saved, dy, dx, dg);
            tape.give(x, dx);
        })
    }

    /// Where a kernel that computes several gradients writes that of `var`, and whether it adds to it; a tensor that
    /// nobody reads if the gradient is not needed.
    fn target_or_scratch(&mut self, var: Var) -> (Tensor, bool) {
        match self.target(var) {
            Some(target) => (target.tensor, target.accumulate),
            None => {
                let Tensor { rows, cols, element, .. } = var.tensor;
                (self.rec.tensor("gradient", rows, cols, element), false)
            }
        }
    }
}

/// Columns of queries and keys in x, and of values.
#[track_caller]
fn columns(x: Tensor, rule: &GatedDeltaRule) -> (u32, u32) {
    let (keys, values) = (2 * rule.key_heads * rule.key_dim, rule.heads * rule.value_dim);
    assert!(x.cols == keys + values, "heads of {} columns from {}", keys + values, x.cols);
    (keys, values)
}

/// The inputs of the rule: queries and keys of x divided by their lengths, and its values.
fn delta_inputs(rec: &mut Recorder, x: Tensor, gates: Tensor, rule: &GatedDeltaRule) -> DeltaInputs {
    let (keys, values) = columns(x, rule);
    let qk = rec.tensor("unit heads", x.rows, keys, x.element);
    unit_heads::unit_heads(rec, x.columns(0, keys), qk, rule.key_dim, UNIT_EPSILON);
    DeltaInputs { qk, v: x.columns(keys, values), gates }
}
