//! Linear attention on the tape: the short convolution, the gates, the gated delta rule, and the norm and gates after it.

use super::{Parameter, Tape, Var};
use crate::element::Element;
use crate::ops::causal_conv::{self, CausalConv};
use crate::ops::delta_gates::{self, GateInputs};
use crate::ops::gated_delta_rule::{self, DeltaInputs, GatedDeltaRule};
use crate::ops::gated_norm::{self, GatedNorm};
use crate::ops::{sigmoid_gate, unit_heads};
use crate::record::Tensor;

/// Added to the square of a query's and a key's length, as in the published code.
const UNIT_EPSILON: f32 = 1e-6;

impl<'p> Tape<'_, 'p> {
    /// The causal convolution of x (N, C) with `weight` (W, C): (N, C).
    #[track_caller]
    pub fn causal_conv(&mut self, x: Var, weight: &'p Parameter, conv: CausalConv) -> Var {
        let Tensor { rows, cols, element, .. } = x.tensor;
        let y = self.rec.tensor("y", rows, cols, element);
        let w = weight.weight();
        causal_conv::causal_conv(self.rec, x.tensor, w, y, &conv);
        let saved_x = self.save(x);
        self.result(y, &[x], weight.trains(), move |tape, dy| {
            let saved_x = tape.saved(saved_x);
            causal_conv::causal_conv_slopes(tape.rec, saved_x, w, dy, &conv); // in place
            if let Some(dw) = weight.gradient() {
                let flat = Tensor { rows: 1, cols: w.rows * w.cols, stride: w.rows * w.cols, ..dw };
                causal_conv::causal_conv_backward_weight(tape.rec, saved_x, w, dy, flat, &conv);
            }
            if let Some(target) = tape.target(x) {
                causal_conv::causal_conv_backward(tape.rec, w, dy, target.tensor, target.accumulate, &conv);
            }
        })
    }

    /// The gates of H heads from their projections x (N, gate_cols(H)), `a_log` and `bias` (H): (N, gate_cols(H)), f32,
    /// as [`delta_gates`](delta_gates::delta_gates()) has them.
    #[track_caller]
    pub fn delta_gates(&mut self, x: Var, a_log: &'p Parameter, bias: &'p Parameter) -> Var {
        let Tensor { rows, cols, element, .. } = x.tensor;
        let gates = self.rec.tensor("y", rows, cols, Element::F32);
        let inputs = move |x| GateInputs { x, a_log: a_log.weight(), bias: bias.weight() };
        delta_gates::delta_gates(self.rec, &inputs(x.tensor), gates, None);
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
    /// divided by their lengths, and `gates` (N, gate_cols(H)): (N, H·V). Only x and the gates are kept.
    #[track_caller]
    pub fn gated_delta_rule(&mut self, x: Var, gates: Var, rule: GatedDeltaRule) -> Var {
        let Tensor { rows, cols, element, .. } = x.tensor;
        let (keys, values) = (2 * rule.key_heads * rule.key_dim, rule.heads * rule.value_dim);
        assert!(cols == keys + values, "heads of {} columns from {cols}", keys + values);
        let out = self.rec.tensor("y", rows, values, element);
        let inputs = move |tape: &mut Tape<'_, 'p>, x: Tensor, gates| {
            let qk = tape.rec.tensor("unit heads", rows, keys, element);
            unit_heads::unit_heads(tape.rec, x.columns(0, keys), qk, rule.key_dim, UNIT_EPSILON);
            DeltaInputs { qk, v: x.columns(keys, values), gates }
        };
        let given = inputs(self, x.tensor, gates.tensor);
        gated_delta_rule::gated_delta_rule(self.rec, &given, out, None, &rule);
        let (saved_x, saved_gates) = (self.save(x), self.save(gates));
        self.result(out, &[x, gates], false, move |tape, dout| {
            let (saved_x, saved_gates) = (tape.saved(saved_x), tape.saved(saved_gates));
            let given = inputs(tape, saved_x, saved_gates);
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
