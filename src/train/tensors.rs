//! The tensors that a run keeps on the device in addition to its arenas: states, the batch, and tables.

use super::schedule::schedule_columns;
use crate::element::Element;
use crate::error::Result;
use crate::kernels::Capabilities;
use crate::model::{BatchTensors, ForwardContext, Masks, ModelBuffers, PairTensors, Training};
use crate::ops::dropout::DropoutState;
use crate::ops::grad_norm::StepTensors;
use crate::ops::loss_scale::{LossScaleState, LossScaler};
use crate::ops::preference::{PairLoss, Preference as PairPreference};
use crate::ops::step_state::{LossState, PreferenceState, StepState};
use crate::perf::limits::check_binding;
use crate::record::{Persistents, State, Tensor};
use crate::settings::{Adaptation, Preference, PreferenceType, RunPlan};
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

/// The tensors of a run that learns from pairs of answers.
#[derive(Clone, Copy, Debug)]
pub struct PreferenceTensors {
    loss: PairLoss,
    /// `PreferenceState` of the training batches.
    pub state: Tensor,
    /// `PreferenceState` of the evaluation batches.
    pub eval_state: Tensor,
    /// (1, 4 P) f32: receives the log-probabilities of a micro-batch under the reference, if they are computed
    /// beforehand.
    pub computed: Option<Tensor>,
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
    /// What learning from pairs of answers needs, for a run that does.
    pub preference: Option<PreferenceTensors>,
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
        let columns = schedule_columns(1 + plan.groups());
        let schedule = persistents.tensor("schedule", rows, columns, Element::F32);
        let what = format!("the learning rates of {rows} steps take");
        let remedy = "lower runner_config.epochs or runner_config.stop_step";
        check_binding(schedule.bytes(), capabilities, what, remedy)?;
        let tokens = (settings.runner.batch_size * model.seq_length) as u32;
        let data = plan.data_arrays();
        let batch = BatchTensors::new(model, tokens, data, persistents, "batch".into());
        let of_pairs = |pairs: PairTensors| PreferenceTensors {
            loss: pair_loss(settings.preference.as_ref()),
            state: PreferenceState::tensor(persistents, "preference state"),
            eval_state: PreferenceState::tensor(persistents, "evaluation preference state"),
            computed: pairs.references.map(|references| {
                persistents.tensor("reference log-probabilities", 1, references.cols, Element::F32)
            }),
        };
        let preference = batch.pairs.map(of_pairs);
        Ok(Self {
            state,
            scaler,
            loss,
            eval_loss,
            eval_correct,
            schedule,
            batch,
            preference,
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
        let (tokens, data) = (self.batch.tokens.cols, plan.data_arrays());
        let mut first = Some(InFlight { batch: self.batch, masks: self.masks });
        let mut one = |chunk: usize, slot: usize| {
            first.take().unwrap_or_else(|| InFlight {
                batch: BatchTensors::new(
                    &plan.model,
                    tokens,
                    data,
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
        let of_pairs = |(pairs, tensors): (PairTensors, PreferenceTensors)| PairPreference {
            loss: tensors.loss,
            pairs: pairs.places,
            reference: pairs.references.filter(|_| tensors.loss.has_reference()),
            state: tensors.state,
        };
        let preference = ctx.batch.pairs.zip(self.preference).map(of_pairs);
        CrossEntropy { accumulation, is_per_token, preference, ..ctx.cross_entropy(self.state, self.loss) }
    }

    /// The loss of a pass of an evaluation.
    pub(super) fn evaluation_loss(&self, ctx: &ForwardContext<'_>) -> CrossEntropy {
        let training = self.training_loss(ctx);
        let of_evaluation = |(preference, tensors): (PairPreference, PreferenceTensors)| PairPreference {
            state: tensors.eval_state,
            ..preference
        };
        let preference = training.preference.zip(self.preference).map(of_evaluation);
        CrossEntropy { loss: self.eval_loss, correct: self.eval_correct, preference, ..training }
    }

    /// The sums of losses over the micro-batches of a step.
    pub(super) fn sums(&self) -> impl Iterator<Item = Tensor> {
        let of_pairs = self.preference.map(|preference| preference.state);
        [self.loss].into_iter().chain(self.ahead_loss).chain(of_pairs)
    }

    /// The sums over the micro-batches of an evaluation.
    pub(super) fn evaluation_sums(&self) -> impl Iterator<Item = Tensor> {
        let of_pairs = self.preference.map(|preference| preference.eval_state);
        [self.eval_loss].into_iter().chain(self.eval_correct).chain(of_pairs)
    }
}

/// The loss of a pair of answers, by the section of the settings.
fn pair_loss(preference: Option<&Preference>) -> PairLoss {
    let Some(preference) = preference else { panic!("pairs of answers have a loss") };
    let beta = preference.beta as f32;
    let [label_smoothing, gamma] =
        [preference.label_smoothing, preference.gamma].map(|number| number.unwrap_or_default() as f32);
    match preference.kind {
        PreferenceType::Dpo => PairLoss::Dpo { beta, label_smoothing },
        PreferenceType::Ipo => PairLoss::Ipo { beta },
        PreferenceType::Orpo => PairLoss::Orpo { beta },
        PreferenceType::SimPo => PairLoss::SimPo { beta, gamma, label_smoothing },
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
