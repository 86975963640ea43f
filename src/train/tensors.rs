//! The tensors that a run keeps on the device in addition to its arenas: states, the batch, and tables.

use super::schedule::schedule_columns;
use crate::element::Element;
use crate::error::Result;
use crate::kernels::Capabilities;
use crate::model::{BatchTensors, ForwardContext, Masks, ModelBuffers, Training};
use crate::ops::dropout::DropoutState;
use crate::ops::grad_norm::StepTensors;
use crate::ops::loss_scale::{LossScaleState, LossScaler};
use crate::ops::step_state::{LossState, StepState};
use crate::perf::limits::check_binding;
use crate::record::{Persistents, State, Tensor};
use crate::settings::{Adaptation, RunPlan};
use crate::tape::CrossEntropy;

/// The tensors that a micro-batch has of its own from its forward to its backward pass; several micro-batches are under
/// way in a pipeline.
#[derive(Clone, Copy, Debug)]
pub struct InFlight {
    /// The tokens of the micro-batch.
    pub batch: BatchTensors,
    /// The bits of its dropout masks.
    pub masks: Option<Masks>,
}

/// The tensors of a run that outlive its recordings.
#[derive(Clone, Copy, Debug)]
pub struct RunTensors {
    /// `StepState`.
    pub state: Tensor,
    /// The tensors of an adaptive loss scale.
    pub scaler: Option<LossScaler>,
    /// `LossState` of the training batches.
    pub loss: Tensor,
    /// `LossState` of the evaluation batches.
    pub eval_loss: Tensor,
    /// The number of their targets that have the largest logit (1, 1), if it is asked for.
    pub eval_correct: Option<Tensor>,
    /// Learning rate and bias corrections, by global step.
    pub schedule: Tensor,
    /// The current micro-batch; in a pipeline the first of those [under way](Self::in_flight).
    pub batch: BatchTensors,
    /// `LossState` of multi-token prediction, for a model that has it.
    pub ahead_loss: Option<Tensor>,
    /// The rotary tables, and the state that the routers of a mixture carry from step to step.
    pub model: ModelBuffers,
    masks: Option<Masks>,
    /// Micro-batches of a step on all ranks, as if one rank had accumulated them.
    accumulation: u32,
    is_per_token: bool,
}

impl RunTensors {
    /// Adds the tensors of `plan` to `persistents`; the schedule has `steps` rows.
    ///
    /// # Errors
    /// A schedule that no binding can hold.
    pub(super) fn new(
        plan: &RunPlan,
        steps: u64,
        persistents: &mut Persistents,
        capabilities: &Capabilities,
    ) -> Result<Self> {
        let (settings, model) = (&plan.settings, &plan.model);
        let state = StepState::tensor(persistents, "step state");
        let adaptation = settings.wrapper.scale_sense.adaptation();
        let scaler = adaptation.map(|adaptation| scaler(&adaptation, persistents));
        let loss = LossState::tensor(persistents, "loss state");
        let eval_loss = LossState::tensor(persistents, "evaluation loss state");
        let mut correct = || persistents.tensor("correct predictions", 1, 1, Element::F32);
        let eval_correct = settings.metric.accuracy.then(&mut correct);
        let rows = steps.clamp(1, u32::MAX.into()) as u32;
        let columns = schedule_columns(1 + settings.groups.len());
        let schedule = persistents.tensor("schedule", rows, columns, Element::F32);
        let what = format!("the learning rates of {rows} steps take");
        let remedy = "lower runner_config.epochs or runner_config.stop_step";
        check_binding(schedule.bytes(), capabilities, what, remedy)?;
        let tokens = (settings.runner.batch_size * model.seq_length) as u32;
        let batch = BatchTensors::new(model, tokens, plan.isolates_documents(), persistents, "batch".into());
        Ok(Self {
            state,
            scaler,
            loss,
            eval_loss,
            eval_correct,
            schedule,
            batch,
            ahead_loss: model.multi_token.map(|_| LossState::tensor(persistents, "loss state ahead")),
            model: ModelBuffers::new(model, tokens, persistents),
            masks: model.has_dropout().then(|| Masks {
                seed: settings.run.seed,
                state: DropoutState::tensor(persistents, "dropout state"),
            }),
            accumulation: plan.micro_batches_per_step() as u32,
            is_per_token: settings.wrapper.calculate_per_token_loss,
        })
    }

    /// The tensors that the optimizer reads and writes.
    pub(super) fn step(&self) -> StepTensors {
        StepTensors { state: self.state, loss: self.loss, schedule: self.schedule }
    }

    /// The tensors that micro-batches have of their own, for each chunk of layers and each of its micro-batches under
    /// way; `counts` says how many there are. The first one uses the tensors that a run without a pipeline has.
    pub(super) fn in_flight(
        &self,
        plan: &RunPlan,
        counts: &[usize],
        persistents: &mut Persistents,
    ) -> Vec<Vec<InFlight>> {
        let (tokens, isolates) = (self.batch.tokens.cols, plan.isolates_documents());
        let mut first = Some(InFlight { batch: self.batch, masks: self.masks });
        let mut one = |chunk: usize, slot: usize| {
            first.take().unwrap_or_else(|| InFlight {
                batch: BatchTensors::new(
                    &plan.model,
                    tokens,
                    isolates,
                    persistents,
                    format!("batch {chunk}.{slot}"),
                ),
                masks: self.masks.map(|masks| Masks {
                    state: DropoutState::tensor(persistents, format!("dropout state {chunk}.{slot}")),
                    ..masks
                }),
            })
        };
        let of_chunk = |(chunk, &count): (usize, &usize)| (0..count).map(|slot| one(chunk, slot)).collect();
        counts.iter().enumerate().map(of_chunk).collect()
    }

    /// The additions of a training forward pass to one of an evaluation.
    pub(super) fn training(&self, masks: Option<Masks>, largest_scores: Option<Tensor>) -> Training {
        let Self { state: step, accumulation, ahead_loss, .. } = *self;
        Training { step, accumulation, masks, largest_scores, ahead_loss }
    }

    /// The loss of a training pass.
    pub(super) fn training_loss(&self, ctx: &ForwardContext<'_>) -> CrossEntropy {
        let Self { accumulation, is_per_token, .. } = *self;
        CrossEntropy { accumulation, is_per_token, ..ctx.cross_entropy(self.state, self.loss) }
    }

    /// The loss of a pass of an evaluation.
    pub(super) fn evaluation_loss(&self, ctx: &ForwardContext<'_>) -> CrossEntropy {
        CrossEntropy { loss: self.eval_loss, correct: self.eval_correct, ..self.training_loss(ctx) }
    }

    /// The sums of losses over the micro-batches of a step.
    pub(super) fn sums(&self) -> impl Iterator<Item = Tensor> {
        [self.loss].into_iter().chain(self.ahead_loss)
    }
}

/// The tensors of an adaptive loss scale.
fn scaler(adaptation: &Adaptation, persistents: &mut Persistents) -> LossScaler {
    let windows = adaptation.windows.len() as u32;
    LossScaler {
        state: LossScaleState::tensor(persistents, "loss scale state"),
        windows: persistents.tensor("loss scale windows", 1, windows, Element::U32),
        factor: adaptation.factor as f32,
    }
}
