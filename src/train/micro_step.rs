//! The recordings of a micro-batch: forward, loss and backward in training, forward and loss in evaluation.

use crate::kernels::Capabilities;
use crate::model::config::MultiToken;
use crate::model::gpt::{self, BatchTensors};
use crate::model::parameters::Gpt;
use crate::model::{Prediction, Shape, multi_token};
use crate::ops::dropout::count_micro_step;
use crate::record::{Recorder, Recording, Tensor};
use crate::tape::{CrossEntropy, Parameter, Tape};

/// What both recordings have in common: the model on its arenas, the batch, and how a loss is counted.
pub(super) struct MicroBatch<'a> {
    pub gpt: &'a Gpt<Parameter>,
    pub shape: Shape,
    pub batch: &'a BatchTensors,
    /// `StepState`.
    pub state: Tensor,
    /// Micro-batches in a step.
    pub accumulation: u32,
    /// The target id that does not count.
    pub ignore_id: u32,
}

/// The masks of dropout: the run's seed and `DropoutState` (1, 4).
#[derive(Clone, Copy)]
pub(super) struct DropoutMasks {
    pub seed: u64,
    pub state: Tensor,
}

impl DropoutMasks {
    /// Words of `DropoutState`.
    pub const WORDS: u32 = 4;
}

impl MicroBatch<'_> {
    /// Forward, loss and backward: gradients are added to their arena, losses to `loss` and, for multi-token
    /// prediction, to the `LossState` in `ahead`.
    pub fn train(
        &self,
        capabilities: Capabilities,
        loss: Tensor,
        ahead: Option<(MultiToken, Tensor)>,
        dropout: Option<DropoutMasks>,
    ) -> Recording {
        let Self { gpt, batch, state, .. } = *self;
        let mut rec = Recorder::new("micro_step", capabilities);
        let mut shape = self.shape.balancing(state, self.accumulation);
        if let Some(DropoutMasks { seed, state: masks }) = dropout {
            rec.scope("dropout", |rec| count_micro_step(rec, state, masks));
            shape = shape.dropping(seed, masks);
        }
        let mut tape = Tape::new(&mut rec);
        let x = gpt::stream(&mut tape, gpt, &shape, batch, false);
        let h = gpt::last_norm(&mut tape, gpt, &shape, x);
        let head = gpt.head_table();
        tape.scope("loss", |tape| {
            tape.linear_cross_entropy(h, head, &self.cross_entropy(batch.targets, loss, 1.0));
        });
        if let Some((MultiToken { depth, loss_factor }, loss)) = ahead {
            let factor = (loss_factor / depth as f64) as f32;
            for Prediction { hidden, targets } in multi_token(&mut tape, gpt, &shape, batch, x) {
                let entropy = self.cross_entropy(targets, loss, factor);
                tape.scope("loss_ahead", |tape| tape.linear_cross_entropy(hidden, head, &entropy));
            }
        }
        tape.backward();
        rec.finish()
    }

    /// Forward and loss alone.
    pub fn evaluate(&self, capabilities: Capabilities, loss: Tensor) -> Recording {
        let Self { gpt, batch, .. } = *self;
        let mut rec = Recorder::new("eval", capabilities);
        let mut tape = Tape::forward_only(&mut rec);
        let h = gpt::hidden(&mut tape, gpt, &self.shape, batch, false);
        tape.scope("loss", |tape| {
            tape.linear_cross_entropy(h, gpt.head_table(), &self.cross_entropy(batch.targets, loss, 1.0));
        });
        rec.finish()
    }

    fn cross_entropy(&self, targets: Tensor, loss: Tensor, factor: f32) -> CrossEntropy {
        let Self { state, accumulation, ignore_id, .. } = *self;
        CrossEntropy { targets, ignore: ignore_id, step: state, loss, accumulation, factor }
    }
}
