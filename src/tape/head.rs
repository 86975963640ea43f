//! The head and its loss.

use super::{Parameter, Tape, Var};
use crate::element::Element;
use crate::ops::l2_norm::{l2_norm_backward, unit_rows};
use crate::ops::linear_cross_entropy::{
    HeadGradient, LinearCrossEntropy, linear_cross_entropy, linear_cross_entropy_forward,
};
use crate::ops::matrix_ranks::MatrixRanks;
use crate::record::Tensor;

/// Targets and state of the loss; see [`LinearCrossEntropy`].
///
/// # Examples
///
/// The loss of two points, of which one is not labelled, and the update that follows from it; `examples/train_mlp.rs` is a whole training:
///
/// ```
/// use gristmill::device::{Gpu, GpuOptions, Guard, Job};
/// use gristmill::ops::grad_norm::{StepRules, StepTensors, grad_norm};
/// use gristmill::ops::step_state::{LossState, StepState};
/// use gristmill::tape::{CrossEntropy, Parameter, Tape};
///
/// # fn main() -> gristmill::error::Result<()> {
/// # pollster::block_on(async {
/// let gpu = Gpu::request(&GpuOptions::default()).await?;
/// let mut job = Job::new("step", gpu.capabilities());
/// let points = job.input(&[1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0], 2, 4);
/// let targets = job.integers(&[2, u32::MAX]);
/// let tensors = StepTensors {
///     state: job.state(StepState { loss_scale: 1.0, ..StepState::default() }),
///     loss: job.state(LossState::default()),
///     schedule: job.input(&[0.1, 1.0, 1.0], 1, 3), // the rate of the only step, and AdamW's corrections
/// };
/// let head = Parameter { weight: vec![job.input(&[0.0; 12], 3, 4)], gradient: Some(vec![job.output(3, 4)]) };
/// let loss = CrossEntropy {
///     targets,
///     ignore: u32::MAX,
///     step: tensors.state,
///     loss: tensors.loss,
///     correct: None,
///     losses: None,
///     accumulation: 1,
///     factor: 1.0,
///     is_per_token: false,
///     head_epsilon: None,
/// };
/// let mut tape = Tape::new(&mut job.rec);
/// let h = tape.leaf(points, false);
/// tape.linear_cross_entropy(h, &head, &loss, None);
/// tape.backward();
/// let gradients: Vec<_> = head.gradient.iter().flatten().copied().collect();
/// grad_norm(&mut job.rec, &gradients, &tensors, &StepRules::default());
/// let prepared = gpu.prepare_job(job, Guard::Off).await?;
/// prepared.replay().await?;
/// let state: StepState = prepared.state(&tensors.state).await?;
/// assert!((state.loss - 3f32.ln()).abs() < 1e-6); // three labels, of which none is likelier
/// assert!((state.grad_norm - (6f32 / 9.0).sqrt()).abs() < 1e-6);
/// # Ok(())
/// # })
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropy {
    /// Target ids (1, N), each below the number of classes or [`ignore`](Self::ignore): the device does not check them, and what
    /// another id gives is undefined.
    pub targets: Tensor,
    /// Target id that does not count.
    pub ignore: u32,
    /// `StepState`.
    pub step: Tensor,
    /// `LossState`.
    pub loss: Tensor,
    /// Receives how many targets have the largest logit, if it is asked for; see [`LinearCrossEntropy::correct`].
    pub correct: Option<Tensor>,
    /// Receives the loss of each token, if they are asked for; see [`LinearCrossEntropy::losses`].
    pub losses: Option<Tensor>,
    /// Micro-batches in a step.
    pub accumulation: u32,
    /// Factor of the mean loss in the objective.
    pub factor: f32,
    /// Whether a token weighs the same in every micro-batch; see [`LinearCrossEntropy::is_per_token`].
    pub is_per_token: bool,
    /// Added to the squared length that each row of the head is divided by; `None`: rows are as they are. See
    /// [`l2_norm`](crate::ops::l2_norm::l2_norm).
    pub head_epsilon: Option<f32>,
}

impl<'p> Tape<'_, 'p> {
    /// The cross-entropy of hidden states `h` (N, D) under the head `table` (V, D). A tape for training computes the
    /// gradients of both at once, since logits do not outlive their chunk; [`Tape::backward`] continues from that of
    /// `h`.
    ///
    /// Where `ranks` share the vocabulary, `table` is this one's part, and the gradient of `h` a part of a sum.
    #[track_caller]
    pub fn linear_cross_entropy(
        &mut self,
        h: Var,
        table: &'p Parameter,
        loss: &CrossEntropy,
        ranks: Option<&MatrixRanks>,
    ) {
        let units = loss.head_epsilon.map(|epsilon| unit_rows(self.rec, &table.weight, epsilon));
        let head_epsilon = loss.head_epsilon;
        let op = LinearCrossEntropy {
            h: h.tensor,
            head: units.as_ref().unwrap_or(&table.weight),
            targets: loss.targets,
            ignore: loss.ignore,
            step: loss.step,
            loss: loss.loss,
            correct: loss.correct,
            losses: loss.losses,
            accumulation: loss.accumulation,
            factor: loss.factor,
            is_per_token: loss.is_per_token,
            ranks,
        };
        table.trains(); // for what it checks
        if !self.is_recording {
            return linear_cross_entropy_forward(self.rec, &op);
        }
        // A part of a sum is not rounded before the sum.
        let element = if ranks.is_some() { Element::F32 } else { h.tensor.element };
        let dh = self.rec.tensor("gradient", h.tensor.rows, h.tensor.cols, element);
        match (&table.gradient, head_epsilon) {
            (Some(gradient), Some(epsilon)) => {
                let of_unit = |unit: &Tensor| {
                    self.rec.tensor("gradient of unit rows", unit.rows, unit.cols, Element::F32)
                };
                let of_units: Vec<Tensor> = op.head.iter().map(of_unit).collect();
                let into = HeadGradient { parts: &of_units, accumulate: false };
                linear_cross_entropy(self.rec, &op, dh, Some(into));
                for ((rows, dy), dx) in table.weight.iter().zip(of_units).zip(gradient) {
                    l2_norm_backward(self.rec, *rows, dy, *dx, epsilon);
                }
            }
            (gradient, _) => {
                let into = gradient.as_deref().map(|parts| HeadGradient { parts, accumulate: true });
                linear_cross_entropy(self.rec, &op, dh, into);
            }
        }
        self.give(h, dh);
    }
}
