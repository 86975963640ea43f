//! The head and its loss.

use super::{Parameter, Tape, Var};
use crate::element::Element;
use crate::ops::l2_norm::{l2_norm_backward, unit_rows};
use crate::ops::linear_cross_entropy::{
    CrossEntropy, HeadBias, HeadGradient, OutputProjection, bias_of_parts, linear_cross_entropy,
    linear_cross_entropy_forward, token_losses,
};
use crate::ops::matrix_ranks::MatrixRanks;
use crate::ops::preference::log_probabilities;
use crate::record::Tensor;

/// The form of a head's rows and logits, and the ranks that hold them.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadForm<'a> {
    /// Added to the squared length by which each row is divided; `None`: rows are not divided. See
    /// [`l2_norm`](crate::ops::l2_norm::l2_norm).
    pub unit_epsilon: Option<f32>,
    /// (1, V): added to the logits before their factor; `None`: nothing is.
    pub bias: Option<&'a Parameter>,
    /// Factor of the logits; `None`: 1.
    pub factor: Option<f32>,
    /// Soft cap of the logits; see [`OutputProjection::soft_cap`].
    pub soft_cap: Option<f32>,
    /// The ranks that share the vocabulary, if the head is only this rank's part; the gradient of `h` is then one term
    /// of a sum.
    pub ranks: Option<&'a MatrixRanks>,
}

impl<'p> Tape<'_, 'p> {
    /// The cross-entropy of hidden states `h` (N, D) under the head `table` (V, D). A tape for training computes the
    /// gradients of both at once, since logits do not outlive their chunk; [`Tape::backward`] continues from the
    /// gradient of `h`.
    ///
    /// # Examples
    ///
    /// The loss of two points, one of them without a label, and the gradient norm of a step; `examples/train_mlp.rs` is
    /// a complete training:
    ///
    /// ```
    /// use gristmill::device::{Gpu, GpuOptions, Guard, Job};
    /// use gristmill::ops::grad_norm::{StepRules, StepTensors, grad_norm};
    /// use gristmill::ops::step_state::{LossState, StepState};
    /// use gristmill::ops::linear_cross_entropy::CrossEntropy;
    /// use gristmill::tape::{HeadForm, Parameter, Tape};
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
    /// let loss = CrossEntropy::new(targets, tensors.state, tensors.loss);
    /// let mut tape = Tape::new(&mut job.rec);
    /// let h = tape.leaf(points, false);
    /// tape.linear_cross_entropy(h, &head, &loss, HeadForm::default());
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
    #[track_caller]
    pub fn linear_cross_entropy(
        &mut self,
        h: Var,
        table: &'p Parameter,
        loss: &CrossEntropy,
        form: HeadForm<'_>,
    ) {
        let (head, parts) = self.prepared(table, form);
        let HeadForm { unit_epsilon, bias, factor, soft_cap, ranks } = form;
        let bias = bias.map(|bias| HeadBias { parts: &parts, gradient: bias.gradient() });
        let op = OutputProjection { h: h.tensor, head: &head, bias, factor, soft_cap, ranks };
        if !self.is_recording {
            return linear_cross_entropy_forward(self.rec, &op, loss);
        }
        // A term of a sum is not rounded before it is added.
        let element = if ranks.is_some() { Element::F32 } else { h.tensor.element };
        let dh = self.rec.tensor("gradient", h.tensor.rows, h.tensor.cols, element);
        match (&table.gradient, unit_epsilon) {
            (Some(gradient), Some(epsilon)) => {
                let of_unit = |unit: &Tensor| {
                    self.rec.tensor("gradient of unit rows", unit.rows, unit.cols, Element::F32)
                };
                let of_units: Vec<Tensor> = op.head.iter().map(of_unit).collect();
                let into = HeadGradient { parts: &of_units, accumulate: false };
                linear_cross_entropy(self.rec, &op, loss, dh, Some(into));
                for ((rows, dy), dx) in table.weight.iter().zip(of_units).zip(gradient) {
                    l2_norm_backward(self.rec, *rows, dy, *dx, epsilon);
                }
            }
            (gradient, _) => {
                let into = gradient.as_deref().map(|parts| HeadGradient { parts, accumulate: true });
                linear_cross_entropy(self.rec, &op, loss, dh, into);
            }
        }
        self.give(h, dh);
    }

    /// (1, 4 P): the [log-probabilities](crate::ops::preference::log_probabilities) of the pairs of `loss`, from
    /// hidden states `h` (N, D) under the head `table` (V, D), without a backward; into `log_probs` if it is given.
    ///
    /// # Panics
    /// If `loss` is not one of pairs.
    #[track_caller]
    pub fn log_probabilities(
        &mut self,
        h: Var,
        table: &'p Parameter,
        loss: &CrossEntropy,
        form: HeadForm<'_>,
        log_probs: Option<Tensor>,
    ) -> Tensor {
        let preference = loss.preference.expect("a loss of pairs");
        let (head, parts) = self.prepared(table, form);
        let HeadForm { bias, factor, soft_cap, ranks, .. } = form;
        let bias = bias.map(|_| HeadBias { parts: &parts, gradient: None });
        let op = OutputProjection { h: h.tensor, head: &head, bias, factor, soft_cap, ranks };
        let losses = token_losses(self.rec, &op, loss);
        log_probabilities(self.rec, &preference, loss, losses, log_probs)
    }

    /// The head `table` as logits are made of it, and its bias in as many parts.
    #[track_caller]
    fn prepared(&mut self, table: &'p Parameter, form: HeadForm<'_>) -> (Vec<Tensor>, Vec<Tensor>) {
        table.trains(); // for its check of the shapes
        let units = form.unit_epsilon.map(|epsilon| unit_rows(self.rec, &table.weight, epsilon));
        let head = units.unwrap_or_else(|| table.weight.clone());
        let parts = form.bias.map_or(Vec::new(), |bias| bias_of_parts(self.rec, &head, bias.weight()));
        (head, parts)
    }
}
