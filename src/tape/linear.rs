//! Linear maps on the tape, and activations between two of them.
//!
//! The product that yields the argument of an activation can also compute its value ([`Tape::linear_gelu`],
//! [`Tape::linear_swiglu`]). The product that would yield the gradient of the value yields the gradient of the argument
//! instead, if it is the first to have a gradient for the value: gradients that other readers of the value add reach
//! the argument separately, by the activation's kernel.

use super::{Parameter, Saved, Tape, Target, Var};
use crate::ops::column_sum::column_sum;
use crate::ops::gelu::{self, Gelu};
use crate::ops::matmul::{Activated, Epilogue, FewRows, Layout, matmul, matmul_of_few_rows};
use crate::ops::rms_norm::RmsNorm;
use crate::ops::swiglu::{self, Gate};
use crate::ops::xielu::{self, Xielu};
use crate::record::Tensor;

/// The argument of a value that is an activation.
#[derive(Clone, Copy)]
pub(super) struct Argument {
    var: Var,
    saved: Saved,
    activation: Activation,
}

#[derive(Clone, Copy)]
pub(super) enum Activation {
    Gelu(Gelu),
    Swiglu(Gate),
}

impl<'p> Tape<'_, 'p> {
    /// x (N, K) Wᵀ + bias + residual: (N, M). The gradient of the residual is the gradient of the result, without a
    /// copy.
    #[track_caller]
    pub fn linear(
        &mut self,
        x: Var,
        weight: &'p Parameter,
        bias: Option<&'p Parameter>,
        residual: Option<Var>,
    ) -> Var {
        self.scaled_linear(x, weight, bias, residual, None)
    }

    /// residual + factor · (x (N, K) Wᵀ + bias), otherwise as [`linear`](Self::linear).
    #[track_caller]
    pub fn scaled_linear(
        &mut self,
        x: Var,
        weight: &'p Parameter,
        bias: Option<&'p Parameter>,
        residual: Option<Var>,
        factor: Option<f32>,
    ) -> Var {
        let epilogue = Epilogue {
            factor,
            bias: bias.map(Parameter::weight),
            residual: residual.map(|residual| residual.tensor),
            ..Epilogue::default()
        };
        self.product(x, weight, bias, residual, epilogue)
    }

    /// One term of a [product](Self::scaled_linear) that is summed over ranks. The rank with `adds_bias` adds the bias; all
    /// ranks have its gradient.
    #[track_caller]
    pub fn linear_part(
        &mut self,
        x: Var,
        weight: &'p Parameter,
        bias: Option<&'p Parameter>,
        adds_bias: bool,
        factor: Option<f32>,
    ) -> Var {
        let added = bias.filter(|_| adds_bias).map(Parameter::weight);
        self.product(x, weight, bias, None, Epilogue { factor, bias: added, ..Epilogue::default() })
    }

    /// GELU of x (N, K) Wᵀ + bias: (N, M), computed by the kernel of the product.
    #[track_caller]
    pub fn linear_gelu(
        &mut self,
        x: Var,
        weight: &'p Parameter,
        bias: Option<&'p Parameter>,
        kind: Gelu,
    ) -> Var {
        let y = self.rec.tensor("y", x.tensor.rows, weight.weight().rows, x.tensor.element);
        let argument = self.activated_product(x, weight, bias, Activated::Gelu(kind, y));
        self.gelu_at(argument, y, kind)
    }

    /// x · Φ(x), (N, F).
    #[track_caller]
    pub fn gelu(&mut self, x: Var, kind: Gelu) -> Var {
        let Tensor { rows, cols, element, .. } = x.tensor;
        let y = self.rec.tensor("y", rows, cols, element);
        gelu::gelu(self.rec, x.tensor, y, kind);
        self.gelu_at(x, y, kind)
    }

    /// The value `y` of GELU at `x`.
    #[track_caller]
    pub(super) fn gelu_at(&mut self, x: Var, y: Tensor, kind: Gelu) -> Var {
        let Tensor { rows, cols, element, .. } = y;
        let saved = self.save(x);
        let value = self.result(y, &[x], false, move |tape, dy| {
            let gradient = tape.rec.tensor("gradient", rows, cols, element);
            let saved_x = tape.saved(saved);
            gelu::gelu_backward(tape.rec, saved_x, dy, gradient, kind);
            tape.give(x, gradient);
        });
        self.arguments.insert(value.id, Argument { var: x, saved, activation: Activation::Gelu(kind) });
        value
    }

    /// xIELU of x, (N, F), with the learned `alphas` and the `constants`, (1, 2) each.
    #[track_caller]
    pub fn xielu(&mut self, x: Var, alphas: &'p Parameter, constants: &'p Parameter) -> Var {
        assert!(constants.gradient().is_none(), "the constants of xIELU have no gradient");
        let Tensor { rows, cols, element, .. } = x.tensor;
        let numbers = Xielu { alphas: alphas.weight(), constants: constants.weight() };
        let y = self.rec.tensor("y", rows, cols, element);
        xielu::xielu(self.rec, x.tensor, numbers, y);
        let saved = self.save(x);
        self.result(y, &[x], alphas.trains(), move |tape, dy| {
            let saved_x = tape.saved(saved);
            if let Some(gradient) = alphas.gradient() {
                xielu::xielu_backward_weight(tape.rec, saved_x, numbers, dy, gradient);
            }
            let gradient = tape.rec.tensor("gradient", rows, cols, element);
            xielu::xielu_backward(tape.rec, saved_x, numbers, dy, gradient);
            tape.give(x, gradient);
        })
    }

    /// activation(gate) · up of x (N, K) Wᵀ + bias, which is gate and up, packed as for [`swiglu`](Self::swiglu): (N,
    /// `width`). The kernel of the product computes it if it can.
    #[track_caller]
    pub fn linear_swiglu(
        &mut self,
        x: Var,
        weight: &'p Parameter,
        bias: Option<&'p Parameter>,
        width: u32,
        gate: Gate,
    ) -> Var {
        let y = self.rec.tensor("y", x.tensor.rows, width, x.tensor.element);
        let gate_up = self.activated_product(x, weight, bias, Activated::Swiglu(gate, y));
        self.swiglu_at(gate_up, y, gate)
    }

    /// activation(gate) · up of packed `gate_up` (N, 2 · stride of F), gate first: (N, F).
    #[track_caller]
    pub fn swiglu(&mut self, gate_up: Var, width: u32, gate: Gate) -> Var {
        let y = self.rec.tensor("y", gate_up.tensor.rows, width, gate_up.tensor.element);
        swiglu::swiglu(self.rec, gate_up.tensor, y, gate);
        self.swiglu_at(gate_up, y, gate)
    }

    /// The value `y` of activation(gate) · up at `gate_up`.
    #[track_caller]
    fn swiglu_at(&mut self, gate_up: Var, y: Tensor, gate: Gate) -> Var {
        let Tensor { rows, cols, element, .. } = gate_up.tensor;
        let saved = self.save(gate_up);
        let value = self.result(y, &[gate_up], false, move |tape, dy| {
            let gradient = tape.rec.tensor("gradient", rows, cols, element);
            let saved_gate_up = tape.saved(saved);
            swiglu::swiglu_backward(tape.rec, saved_gate_up, dy, gradient, gate);
            tape.give(gate_up, gradient);
        });
        let activation = Activation::Swiglu(gate);
        self.arguments.insert(value.id, Argument { var: gate_up, saved, activation });
        value
    }

    #[track_caller]
    fn activated_product(
        &mut self,
        x: Var,
        weight: &'p Parameter,
        bias: Option<&'p Parameter>,
        activated: Activated,
    ) -> Var {
        let (bias_tensor, activated) = (bias.map(Parameter::weight), Some(activated));
        let epilogue = Epilogue { bias: bias_tensor, activated, ..Epilogue::default() };
        self.product(x, weight, bias, None, epilogue)
    }

    /// The product with `epilogue`, and the gradients of all its terms.
    #[track_caller]
    fn product(
        &mut self,
        x: Var,
        weight: &'p Parameter,
        bias: Option<&'p Parameter>,
        residual: Option<Var>,
        epilogue: Epilogue,
    ) -> Var {
        let (w, factor) = (weight.weight(), epilogue.factor);
        let y = self.rec.tensor("y", x.tensor.rows, w.rows, x.tensor.element);
        matmul(self.rec, Layout::Nt, x.tensor, w, y, epilogue);
        let saved_x = self.save(x);
        let inputs: Vec<Var> = [Some(x), residual].into_iter().flatten().collect();
        let trains = Parameter::any_trains([weight].into_iter().chain(bias));
        self.result(y, &inputs, trains, move |tape, dy| {
            if let Some((target, activated)) = tape.target_of_product(x, |_| true) {
                let accumulate = target.accumulate;
                let into = Epilogue { factor, accumulate, activated, ..Default::default() };
                matmul(tape.rec, Layout::Nn, dy, w, target.tensor, into);
            }
            if let Some(dw) = weight.gradient() {
                let x = tape.saved(saved_x);
                let into = Epilogue { factor, accumulate: true, ..Default::default() };
                matmul(tape.rec, Layout::Tn, dy, x, dw, into);
            }
            if let Some(db) = bias.and_then(Parameter::gradient) {
                column_sum(tape.rec, dy, db, factor);
            }
            if let Some(residual) = residual {
                tape.give(residual, dy); // last: others may add to dy from here on
            }
        })
    }

    /// Where a product writes the gradient of `x`. If x is an activation, has no gradient so far, and the product has a
    /// kernel for it, the product writes the gradient of the activation's argument, through the returned [`Activated`].
    pub(super) fn target_of_product(
        &mut self,
        x: Var,
        has_kernel: impl Fn(Activation) -> bool,
    ) -> Option<(Target, Option<Activated>)> {
        if let Some(Argument { var, saved, activation }) = self.arguments.get(&x.id).copied()
            && has_kernel(activation)
            && self.gradient(x).is_none()
            && self.gradient(var).is_none()
            && !self.parts.contains(var)
        {
            let target = self.target(var)?;
            let argument = self.saved(saved);
            let slopes = match activation {
                Activation::Gelu(kind) => Activated::Slope(kind, argument),
                Activation::Swiglu(gate) => Activated::SwigluSlopes(gate, argument),
            };
            return Some((target, Some(slopes)));
        }
        Some((self.target(x)?, None))
    }

    /// [a | b] Wᵀ of a and b (N, K), concatenated, and W (M, 2 K): (N, M). K must be a multiple of 4.
    #[track_caller]
    pub fn linear_of_two(&mut self, [a, b]: [Var; 2], weight: &'p Parameter) -> Var {
        let (w, width) = (weight.weight(), a.tensor.cols);
        assert!(
            b.tensor.cols == width && w.cols == 2 * width,
            "linear_of_two needs {} columns to be twice {width}",
            w.cols
        );
        let y = self.rec.tensor("y", a.tensor.rows, w.rows, a.tensor.element);
        for (half, x) in [a, b].into_iter().enumerate() {
            let into = Epilogue { accumulate: half > 0, ..Default::default() };
            matmul(self.rec, Layout::Nt, x.tensor, w.columns(half as u32 * width, width), y, into);
        }
        let saved = [a, b].map(|x| self.save(x));
        self.result(y, &[a, b], weight.trains(), move |tape, dy| {
            for (half, (x, saved)) in [a, b].into_iter().zip(saved).enumerate() {
                let columns = |tensor: Tensor| tensor.columns(half as u32 * width, width);
                if let Some(target) = tape.target(x) {
                    let into = Epilogue { accumulate: target.accumulate, ..Default::default() };
                    matmul(tape.rec, Layout::Nn, dy, columns(w), target.tensor, into);
                }
                if let Some(dw) = weight.gradient() {
                    let into = Epilogue { accumulate: true, ..Default::default() };
                    let x = tape.saved(saved);
                    matmul(tape.rec, Layout::Tn, dy, x, columns(dw), into);
                }
            }
        })
    }

    /// norm(x) Wᵀ + bias for up to [`FEW_ROWS`](crate::ops::matmul::FEW_ROWS) rows, in one launch: (N, M). If it is
    /// packed gate and up, `gated` is the width of each and the activation of the gate, and the result
    /// is their activation(gate) · up: (N, `width`).
    ///
    /// # Panics
    /// On a tape for training: it has no backward.
    #[track_caller]
    pub fn linear_of_few_rows(
        &mut self,
        x: Var,
        norm: Option<(&'p Parameter, RmsNorm)>,
        weight: &'p Parameter,
        bias: Option<&'p Parameter>,
        gated: Option<(u32, Gate)>,
    ) -> Var {
        assert!(!self.is_recording, "products of few rows have no backward: use Tape::forward_only");
        let w = weight.weight();
        let y =
            self.rec.tensor("y", x.tensor.rows, gated.map_or(w.rows, |(width, _)| width), x.tensor.element);
        let more = FewRows {
            norm: norm.map(|(weight, norm)| (weight.weight(), norm)),
            bias: bias.map(Parameter::weight),
            gate: gated.map(|(_, gate)| gate),
        };
        matmul_of_few_rows(self.rec, x.tensor, w, y, more);
        self.result(y, &[x], false, |_, _| {})
    }
}
