//! The ops of experts on the tape: permutation, grouped product, combination, and the exchange of rows between ranks.

use super::linear::Activation;
use super::{Parameter, Saved, Tape, Target, Var};
use crate::element::Element;
use crate::ops::column_sum::grouped_column_sum;
use crate::ops::gelu::Gelu;
use crate::ops::grouped_matmul::{grouped_matmul, grouped_matmul_backward, grouped_matmul_backward_weight};
use crate::ops::matmul::{Activated, Epilogue};
use crate::ops::permute::{self, Placement};
use crate::ops::spread::{Direction, SpreadRows};
use crate::ops::work_list::WorkList;
use crate::record::Tensor;

/// A placement whose tensors are saved for a backward.
#[derive(Clone, Copy)]
struct SavedPlacement {
    placement: Placement,
    places: Saved,
    sources: Saved,
}

impl Tape<'_, '_> {
    /// The rows of experts (R, D): each choice's row holds its token's row of x (N, D), unassigned rows are zero.
    #[track_caller]
    pub fn permute(&mut self, x: Var, placement: &Placement) -> Var {
        let Tensor { cols, element, .. } = x.tensor;
        let rows = self.rec.tensor("rows", placement.config.rows(), cols, element);
        permute::permute(self.rec, placement, x.tensor, rows);
        let saved = self.save_placement(placement);
        self.result(rows, &[x], false, move |tape, d_rows| {
            let placement = tape.saved_placement(&saved);
            if let Some(target) = tape.target(x) {
                permute::permute_backward(tape.rec, &placement, d_rows, target.tensor, target.accumulate);
            }
        })
    }

    /// residual + Σ gate · row over a token's choices: (N, D). `rows` (R, D), `gates` (N, k) f32. The gradient of the
    /// residual is the gradient of the result, without a copy.
    #[track_caller]
    pub fn combine(&mut self, rows: Var, gates: Var, residual: Option<Var>, placement: &Placement) -> Var {
        let Tensor { cols, element, .. } = rows.tensor;
        let y = self.rec.tensor("y", placement.config.tokens, cols, element);
        let skip = residual.map(|residual| residual.tensor);
        permute::combine(self.rec, placement, rows.tensor, gates.tensor, skip, y);
        let (saved_rows, saved_gates) = (self.save(rows), self.save(gates));
        let saved = self.save_placement(placement);
        let inputs: Vec<Var> = [Some(rows), Some(gates), residual].into_iter().flatten().collect();
        self.result(y, &inputs, false, move |tape, dy| {
            let placement = tape.saved_placement(&saved);
            let kept = permute::CombineSaved { rows: tape.saved(saved_rows), gates: tape.saved(saved_gates) };
            // One kernel computes both gradients, even if router or experts are frozen.
            let d_rows = tape.rec.tensor("gradient", placement.config.rows(), cols, element);
            let (tokens, chosen) = (placement.config.tokens, placement.config.chosen);
            let d_gates = tape.rec.tensor("gradient", tokens, chosen, Element::F32);
            permute::combine_backward(tape.rec, &placement, &kept, dy, d_rows, d_gates);
            tape.give(rows, d_rows);
            tape.give(gates, d_gates);
            if let Some(residual) = residual {
                tape.give(residual, dy); // last: others may add to dy from here on
            }
        })
    }

    /// Gates (N, k): those of kept choices are renormalised to sum to `scaling`, those of dropped choices are 0.
    #[track_caller]
    pub fn renormalise_gates(&mut self, gates: Var, placement: &Placement, scaling: f32) -> Var {
        let Tensor { rows, cols, element, .. } = gates.tensor;
        let renormalised = self.rec.tensor("gates", rows, cols, element);
        permute::renormalise_gates(self.rec, placement, gates.tensor, renormalised, scaling);
        let (saved_gates, saved) = (self.save(gates), self.save_placement(placement));
        self.result(renormalised, &[gates], false, move |tape, dy| {
            let placement = tape.saved_placement(&saved);
            let d_gates = tape.rec.tensor("gradient", rows, cols, element);
            let kept = tape.saved(saved_gates);
            permute::renormalise_gates_backward(tape.rec, &placement, kept, dy, d_gates, scaling);
            tape.give(gates, d_gates);
        })
    }

    fn save_placement(&self, placement: &Placement) -> SavedPlacement {
        let [places, sources] = [placement.places, placement.sources].map(|t| self.save_tensor(t));
        SavedPlacement { placement: *placement, places, sources }
    }

    fn saved_placement(&mut self, saved: &SavedPlacement) -> Placement {
        let (places, sources) = (self.saved(saved.places), self.saved(saved.sources));
        Placement { places, sources, ..saved.placement }
    }
}

impl<'p> Tape<'_, 'p> {
    /// Rows of x (R, in), sorted by expert, each times Wᵀ of its expert, plus the expert's bias: (R, out). `weight` (E
    /// · out, in) is the stack of all experts' matrices, `bias` (E, out). Rows of no expert are undefined, and so are
    /// their gradients.
    #[track_caller]
    pub fn grouped_linear(
        &mut self,
        x: Var,
        weight: &'p Parameter,
        bias: Option<&'p Parameter>,
        work: &WorkList,
    ) -> Var {
        let epilogue = Epilogue { bias: bias.map(Parameter::weight), ..Epilogue::default() };
        self.grouped_product(x, weight, bias, work, epilogue, None)
    }

    /// One term of a [grouped product](Self::grouped_linear) that is summed over ranks: see
    /// [`linear_part`](Self::linear_part). Written to the rows `y` (R, out) of a tensor, if it is given.
    #[track_caller]
    pub fn grouped_linear_part(
        &mut self,
        x: Var,
        weight: &'p Parameter,
        bias: Option<&'p Parameter>,
        adds_bias: bool,
        work: &WorkList,
        y: Option<Tensor>,
    ) -> Var {
        let added = bias.filter(|_| adds_bias).map(Parameter::weight);
        self.grouped_product(x, weight, bias, work, Epilogue { bias: added, ..Epilogue::default() }, y)
    }

    /// GELU of a grouped product, computed by the kernel of the product: (R, out).
    #[track_caller]
    pub fn grouped_linear_gelu(
        &mut self,
        x: Var,
        weight: &'p Parameter,
        bias: Option<&'p Parameter>,
        kind: Gelu,
        work: &WorkList,
    ) -> Var {
        let value = self.rec.tensor("y", x.tensor.rows, weight.rows() / work.experts, x.tensor.element);
        let activated = Some(Activated::Gelu(kind, value));
        let epilogue = Epilogue { bias: bias.map(Parameter::weight), activated, ..Epilogue::default() };
        let argument = self.grouped_product(x, weight, bias, work, epilogue, None);
        self.gelu_at(argument, value, kind)
    }

    #[track_caller]
    fn grouped_product(
        &mut self,
        x: Var,
        weight: &'p Parameter,
        bias: Option<&'p Parameter>,
        work: &WorkList,
        epilogue: Epilogue,
        y: Option<Tensor>,
    ) -> Var {
        let (work, cols) = (*work, weight.rows() / work.experts);
        let y = y.unwrap_or_else(|| self.rec.tensor("y", x.tensor.rows, cols, x.tensor.element));
        grouped_matmul(self.rec, x.tensor, &weight.weight, &work, y, epilogue);
        let saved_x = self.save(x);
        let trains = Parameter::any_trains([weight].into_iter().chain(bias));
        self.result(y, &[x], trains, move |tape, dy| {
            if let Some((target, activated)) = tape.target_of_product(x, is_gelu) {
                let into = Epilogue { accumulate: target.accumulate, activated, ..Default::default() };
                grouped_matmul_backward(tape.rec, dy, &weight.weight, &work, target.tensor, into);
            }
            if let Some(d_stack) = &weight.gradient {
                let x = tape.saved(saved_x);
                grouped_matmul_backward_weight(tape.rec, dy, x, &work, d_stack);
            }
            if let Some(d_bias) = bias.and_then(Parameter::gradient) {
                grouped_column_sum(tape.rec, dy, work.offsets, d_bias);
            }
        })
    }
}

/// Whether grouped products have a kernel for the gradient of the argument, which they have not for SwiGLU.
fn is_gelu(activation: Activation) -> bool {
    matches!(activation, Activation::Gelu(_))
}

impl Tape<'_, '_> {
    /// The rows that arrive on this rank when every rank sends its own (R, D) in `direction`. The gradient moves in the
    /// opposite direction.
    #[track_caller]
    pub fn exchange_rows(&mut self, rows: Var, spread: &SpreadRows, direction: Direction) -> Var {
        let Tensor { cols, element, .. } = rows.tensor;
        let received = match direction {
            Direction::ToExperts => spread.received,
            Direction::FromExperts => spread.sent,
        };
        let moved = self.rec.tensor("moved", received, cols, element);
        self.exchange_rows_into(rows, spread, direction, moved)
    }

    /// As [`exchange_rows`](Self::exchange_rows), into the rows `moved` of a tensor.
    #[track_caller]
    pub fn exchange_rows_into(
        &mut self,
        rows: Var,
        spread: &SpreadRows,
        direction: Direction,
        moved: Tensor,
    ) -> Var {
        spread.exchange(self.rec, rows.tensor, moved, direction);
        let spread = spread.clone();
        self.result(moved, &[rows], false, move |tape, d_moved| {
            let Some(Target { tensor, accumulate }) = tape.target(rows) else { return };
            assert!(!accumulate, "rows that travel have one reader");
            spread.exchange(tape.rec, d_moved, tensor, direction.reversed());
        })
    }
}
