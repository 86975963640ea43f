//! The grouped product on the tape.

use super::{Parameter, Tape, Var};
use crate::ops::grouped_matmul::{grouped_matmul, grouped_matmul_backward, grouped_matmul_backward_weight};
use crate::ops::work_list::WorkList;

impl<'p> Tape<'_, 'p> {
    /// x (R, in), rows sorted by expert, each times Wᵀ of its expert: (R, out). `weight` (E · out, in) is the stack of
    /// all experts' matrices. Rows of no expert are undefined, and so are their gradients.
    #[track_caller]
    pub fn grouped_linear(&mut self, x: Var, weight: &'p Parameter, work: &WorkList) -> Var {
        let work = *work;
        let stack_rows: u32 = weight.weight.iter().map(|part| part.rows).sum();
        let y = self.rec.tensor("y", x.tensor.rows, stack_rows / work.experts, x.tensor.element);
        grouped_matmul(self.rec, x.tensor, &weight.weight, &work, y);
        let saved_x = self.save(x);
        self.result(y, &[x], weight.trains(), move |tape, dy| {
            if let Some(target) = tape.target(x) {
                let (dx, accumulate) = (target.tensor, target.accumulate);
                grouped_matmul_backward(tape.rec, dy, &weight.weight, &work, dx, accumulate);
            }
            if let Some(d_stack) = &weight.gradient {
                let x = tape.saved(saved_x);
                grouped_matmul_backward_weight(tape.rec, dy, x, &work, d_stack);
            }
        })
    }
}
