//! The router on the tape, and the gate of the shared expert.

use super::{Parameter, Tape, Var};
use crate::element::Element;
use crate::ops::balance::{self, Balance, BalanceGradient};
use crate::ops::route::{self, RouterConfig, RouterOutput};
use crate::ops::{cast, expert_scale, row_gate, tally};
use crate::record::Tensor;

/// The load-balancing losses that a router adds to the objective, in training.
#[derive(Clone, Copy, Debug)]
pub struct RouterLosses {
    /// The factors of the losses. If all are 0 the losses are only tallied.
    pub balance: Balance,
    /// `StepState`.
    pub step: Tensor,
    /// The layer's tally, to which the losses are added; see [`TallyColumns`](crate::ops::tally::TallyColumns).
    pub tally: Tensor,
}

/// The output of a router on the tape.
#[derive(Clone, Copy, Debug)]
pub struct Routing {
    /// The gates (N, k), f32, as a differentiable value; `gates.tensor` is `output.gates`.
    pub gates: Var,
    /// The chosen experts and everything else that the kernel wrote.
    pub output: RouterOutput,
}

impl<'p> Tape<'_, 'p> {
    /// x (N, D) Wᵀ + bias of W (E, D) and a bias (E), f32, in f32 for every storage type of x: (N, E). Scores that
    /// decide which experts a token passes through are not rounded to 16 bits.
    #[track_caller]
    pub fn scores(&mut self, x: Var, weight: &'p Parameter, bias: Option<&'p Parameter>) -> Var {
        let wide = if x.tensor.element == Element::F32 { x } else { self.widened(x) };
        self.linear(wide, weight, bias, None)
    }

    /// x (N, D) in f32.
    fn widened(&mut self, x: Var) -> Var {
        let Tensor { rows, cols, element, .. } = x.tensor;
        let wide = self.rec.tensor("wide", rows, cols, Element::F32);
        cast::cast(self.rec, x.tensor, wide);
        self.result(wide, &[x], false, move |tape, dy| {
            if tape.needs_gradient[x.id] {
                let narrow = tape.rec.tensor("gradient", rows, cols, element);
                cast::cast(tape.rec, dy, narrow);
                tape.give(x, narrow);
            }
        })
    }

    /// Chooses experts by `logits` (N, E), f32. The backward turns the gradient of the gates into the gradient of the
    /// logits and adds the gradient of `losses`, seeded with loss scale / accumulation; it does so even if nothing uses
    /// the gates. It reuses the choices of the forward pass, which are always [kept](Tape::keeping).
    #[track_caller]
    pub fn route(
        &mut self,
        logits: Var,
        bias: Option<Tensor>,
        config: &RouterConfig,
        losses: Option<&RouterLosses>,
    ) -> Routing {
        let config = *config;
        let keeps_unbiased = bias.is_some() && losses.is_some();
        let (output, d_scores) = self.keeping(|tape| {
            let output = RouterOutput::new(tape.rec, &config, logits.tensor.rows, keeps_unbiased);
            route::route(tape.rec, &config, logits.tensor, bias, &output);
            let tally = |losses: &RouterLosses| {
                balance::balance(tape.rec, &config, &losses.balance, &output, Some(losses.tally))
            };
            (output, losses.and_then(tally))
        });
        let losses = losses.filter(|losses| losses.balance.is_in_objective()).copied();

        let gates = self.leaf(output.gates, self.needs_gradient[logits.id]);
        if self.needs_gradient[logits.id] {
            let saved = [output.ids, output.gates, output.scores, output.statistics, logits.tensor]
                .map(|tensor| self.save_tensor(tensor));
            self.always(move |tape| {
                let d_gates = tape.gradient(gates);
                if d_gates.is_none() && losses.is_none() {
                    return;
                }
                let [ids, gates, scores, statistics, saved_logits] = saved.map(|handle| tape.saved(handle));
                let output = RouterOutput { ids, gates, scores, statistics, unbiased: None };
                let losses = losses.map(|RouterLosses { balance, step, .. }| BalanceGradient {
                    balance,
                    d_scores,
                    step,
                });
                let Tensor { rows, cols, element, .. } = saved_logits;
                let d_logits = tape.rec.tensor("gradient", rows, cols, element);
                let losses = losses.as_ref();
                route::route_backward(tape.rec, &config, &output, saved_logits, d_gates, losses, d_logits);
                tape.give(logits, d_logits);
            });
        }
        Routing { gates, output }
    }

    /// Gates (N, k), each times the `scale` (1, E) of its expert; `ids` (1, N · k) are those of
    /// [`route`](Self::route).
    #[track_caller]
    pub fn scale_gates(&mut self, gates: Var, ids: Tensor, scale: &'p Parameter) -> Var {
        let Tensor { rows, cols, element, .. } = gates.tensor;
        let scaled = self.rec.tensor("gates", rows, cols, element);
        let factors = scale.weight();
        expert_scale::scale_gates(self.rec, gates.tensor, ids, factors, scaled);
        let (saved_gates, saved_ids) = (self.save(gates), self.save_tensor(ids));
        self.result(scaled, &[gates], scale.trains(), move |tape, dy| {
            let (kept, ids) = (tape.saved(saved_gates), tape.saved(saved_ids));
            if let Some(d_scale) = scale.gradient() {
                expert_scale::expert_scale_gradient(tape.rec, kept, ids, dy, d_scale);
            }
            if tape.needs_gradient[gates.id] {
                let d_gates = tape.rec.tensor("gradient", rows, cols, element);
                expert_scale::scale_gates(tape.rec, dy, ids, factors, d_gates);
                tape.give(gates, d_gates);
            }
        })
    }

    /// Adds the choices of a micro-batch to a layer's tally by [`tally()`](tally::tally); a recomputed block does not
    /// add them again.
    #[track_caller]
    pub fn tally(&mut self, counts: Tensor, capacities: Option<Tensor>, row: Tensor) {
        self.keeping(|tape| tally::tally(tape.rec, counts, capacities, row));
    }

    /// residual + x · sigmoid(g) of x (N, D) and g (N, 1), f32. The gradient of the residual is the gradient of the
    /// result, without a copy.
    #[track_caller]
    pub fn row_gate(&mut self, x: Var, g: Var, residual: Option<Var>) -> Var {
        let Tensor { rows, cols, element, .. } = x.tensor;
        let y = self.rec.tensor("y", rows, cols, element);
        row_gate::row_gate(self.rec, x.tensor, g.tensor, residual.map(|residual| residual.tensor), y);
        let (saved_x, saved_g) = (self.save(x), self.save(g));
        let inputs: Vec<Var> = [Some(x), Some(g), residual].into_iter().flatten().collect();
        self.result(y, &inputs, false, move |tape, dy| {
            if tape.needs_gradient[x.id] || tape.needs_gradient[g.id] {
                let (saved_x, saved_g) = (tape.saved(saved_x), tape.saved(saved_g));
                let dg = tape.rec.tensor("gradient", rows, 1, Element::F32);
                // One kernel computes both gradients, even if only one is needed.
                let (dx, accumulate) = match tape.target(x) {
                    Some(target) => (target.tensor, target.accumulate),
                    None => (tape.rec.tensor("gradient", rows, cols, element), false),
                };
                row_gate::row_gate_backward(tape.rec, saved_x, saved_g, dy, dx, accumulate, dg);
                tape.give(g, dg);
            }
            if let Some(residual) = residual {
                tape.give(residual, dy); // last: others may add to dy from here on
            }
        })
    }
}
