//! The recordings of a run, written down: everything a training run does on the device, without a device.

use super::batch_arrays::{BatchArrays, batch_tensors};
use super::forecast::Forecast;
use super::update::update;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::generate::GenerateRecordings;
use crate::kernels::Capabilities;
use crate::model::arena::{Arena, ArenaLayout, Kind};
use crate::model::config::Activation;
use crate::model::gpt::{self, BatchTensors};
use crate::model::parameters::{Gpt, Rule};
use crate::model::{ExpertState, Prediction, Shape, multi_token, widest_expert_tensor};
use crate::ops::dropout::count_micro_step;
use crate::ops::grad_norm::StepTensors;
use crate::ops::linear_cross_entropy;
use crate::ops::work_list::{MAX_COLUMNS, WorkList};
use crate::record::{BufferId, Consumer, MemoryPlan, PersistentId, Persistents, Recorder, Recording, Tensor};
use crate::settings::RunPlan;
use crate::tape::{CrossEntropy, Tape};
use crate::train::state::schedule_columns;

/// The four arenas.
#[derive(Clone, Debug)]
pub struct Arenas {
    /// Parameters.
    pub weights: Arena,
    /// Their gradients.
    pub gradients: Arena,
    /// First moments of AdamW, momentum of Muon.
    pub first_moments: Arena,
    /// Second moments of AdamW.
    pub second_moments: Arena,
}

impl Arenas {
    /// All of them.
    pub fn all(&self) -> [&Arena; 4] {
        [&self.weights, &self.gradients, &self.first_moments, &self.second_moments]
    }
}

/// Everything that is decided before a device is opened.
pub struct Recordings {
    /// Buffers that outlive a recording.
    pub persistents: Persistents,
    /// Where parameters lie in the arenas.
    pub layout: ArenaLayout,
    /// The arenas.
    pub arenas: Arenas,
    /// `StepState`.
    pub state: Tensor,
    /// `LossState` of the training batches.
    pub loss: Tensor,
    /// `LossState` of the evaluation batches.
    pub eval_loss: Tensor,
    /// `LossState` of the tokens further ahead, for a model that predicts such.
    pub ahead_loss: Option<Tensor>,
    /// What routers remember, for a model that has such.
    pub experts: Option<ExpertState>,
    /// Learning rate and bias corrections, by global step.
    pub schedule: Tensor,
    /// The current micro-batch.
    pub batch: BatchTensors,
    /// The rotary table and its contents, for a model that rotates.
    pub rotary: Option<(Tensor, Vec<f32>)>,
    /// Forward, loss and backward of one micro-batch: gradients are added to their arena.
    pub micro_step: Recording,
    /// Norm, clipping, step state and the optimizer.
    pub update: Recording,
    /// Forward and loss of one micro-batch.
    pub eval: Recording,
    /// The text that the model writes at the end, if it does.
    pub sample: Option<GenerateRecordings>,
}

impl Recordings {
    /// Writes the recordings of `plan` for adapters that can do `capabilities`. `steps` rows of schedule.
    ///
    /// # Errors
    /// A tensor that no binding can hold; a pool that passes `context.max_device_memory`.
    pub fn new(plan: &RunPlan, capabilities: Capabilities, steps: u64) -> Result<Self> {
        let mut persistents = Persistents::new();
        let parameters = plan.grouping().apply(Gpt::describe(&plan.model));
        let parameters = parameters.map_err(|misfit| Error::Plan(misfit.message))?;
        let layout = ArenaLayout::new(parameters, &capabilities.limits)?;
        let trains = |kind: Kind| !kind.is_frozen;
        let arenas = Arenas {
            weights: layout.arena(&mut persistents, "weights", |_| true),
            gradients: layout.arena(&mut persistents, "gradients", trains),
            first_moments: layout.arena(&mut persistents, "first moments", trains),
            second_moments: layout
                .arena(&mut persistents, "second moments", |kind| trains(kind) && kind.rule == Rule::AdamW),
        };
        let state = persistents.tensor("step state", 1, 12, Element::F32);
        let loss = persistents.tensor("loss state", 1, 8, Element::F32);
        let eval_loss = persistents.tensor("evaluation loss state", 1, 8, Element::F32);
        let rows = steps.clamp(1, u32::MAX as u64) as u32;
        let columns = schedule_columns(1 + plan.settings.groups.len());
        let schedule = persistents.tensor("schedule", rows, columns, Element::F32);
        let tokens = (plan.settings.runner.batch_size * plan.model.seq_length) as u32;
        let batch = batch_tensors(&mut persistents, "batch", tokens, BatchArrays::of(plan));
        let ahead_loss =
            plan.model.multi_token.map(|_| persistents.tensor("loss state ahead", 1, 8, Element::F32));
        let shape = Shape::new(&plan.model, tokens, &mut persistents);
        let rotary = shape.rotary_table();
        let dropout_state =
            shape.has_dropout().then(|| persistents.tensor("dropout state", 1, 4, Element::F32));
        check_schedule(schedule, &capabilities)?;
        check_activations(plan, &capabilities)?;

        let gpt = layout.bind(&arenas.weights, Some(&arenas.gradients));
        let accumulation = plan.settings.runner.gradient_accumulation_steps as u32;
        let cross_entropy = |targets, loss, factor| CrossEntropy {
            targets,
            ignore: plan.model.ignore_id,
            step: state,
            loss,
            accumulation,
            factor,
        };
        let micro_step = {
            let mut rec = Recorder::new("micro_step", capabilities);
            let shape = match dropout_state {
                Some(dropout_state) => {
                    rec.scope("dropout", |rec| count_micro_step(rec, state, dropout_state));
                    shape.dropping(plan.settings.run.seed, dropout_state)
                }
                None => shape,
            };
            let shape = shape.balancing(state, accumulation);
            let mut tape = Tape::new(&mut rec);
            let x = gpt::stream(&mut tape, &gpt, &shape, &batch, false);
            let h = gpt::last_norm(&mut tape, &gpt, &shape, x);
            let head = gpt.head_table();
            tape.scope("loss", |tape| {
                tape.linear_cross_entropy(h, head, &cross_entropy(batch.targets, loss, 1.0));
            });
            if let (Some(further), Some(loss)) = (plan.model.multi_token, ahead_loss) {
                let factor = (further.loss_factor / further.depth as f64) as f32;
                for Prediction { hidden, targets } in multi_token(&mut tape, &gpt, &shape, &batch, x) {
                    let entropy = cross_entropy(targets, loss, factor);
                    tape.scope("loss_ahead", |tape| tape.linear_cross_entropy(hidden, head, &entropy));
                }
            }
            tape.backward();
            rec.finish()
        };
        let eval = {
            let mut rec = Recorder::new("eval", capabilities);
            let mut tape = Tape::forward_only(&mut rec);
            let h = gpt::hidden(&mut tape, &gpt, &shape, &batch, false);
            tape.scope("loss", |tape| {
                let entropy = cross_entropy(batch.targets, eval_loss, 1.0);
                tape.linear_cross_entropy(h, gpt.head_table(), &entropy);
            });
            rec.finish()
        };
        let tensors = StepTensors { state, loss, schedule };
        let update = update(plan, capabilities, &layout, &arenas, &tensors, shape.expert_state())?;
        let write = |_| GenerateRecordings::new(&mut persistents, &gpt, &plan.model, &shape, 1, capabilities);
        let sample = plan.settings.sample.as_ref().map(write);
        let recordings = Self {
            persistents,
            layout,
            arenas,
            state,
            loss,
            eval_loss,
            ahead_loss,
            experts: shape.expert_state(),
            schedule,
            batch,
            rotary,
            micro_step,
            update,
            eval,
            sample,
        };
        recordings.check_memory(plan)?;
        Ok(recordings)
    }

    /// All recordings, in the order in which they are prepared.
    pub fn all(&self) -> Vec<&Recording> {
        let mut all = vec![&self.micro_step, &self.update, &self.eval];
        all.extend(self.sample.iter().flat_map(|sample| [&sample.prefill, &sample.step]));
        all
    }

    /// Bytes of everything: persistent buffers and pool.
    pub fn bytes(&self) -> u64 {
        self.persistents.bytes() + MemoryPlan::new(&self.all()).bytes()
    }

    /// The `count` largest buffers, largest first.
    pub fn largest_consumers(&self, count: usize) -> Vec<Consumer> {
        let mut consumers = MemoryPlan::largest(&self.all(), count);
        let persistent = self.persistents.buffers().iter();
        consumers.extend(persistent.map(|(label, bytes)| Consumer { label: label.clone(), bytes: *bytes }));
        consumers.sort_by_key(|consumer| std::cmp::Reverse(consumer.bytes));
        consumers.truncate(count);
        consumers
    }

    fn check_memory(&self, plan: &RunPlan) -> Result<()> {
        let bytes = Forecast::new(plan, self).bytes();
        let Some(cap) = plan.settings.context.max_device_memory.map(|size| size.0).filter(|&cap| bytes > cap)
        else {
            return Ok(());
        };
        let consumers = self.largest_consumers(5);
        let listed: Vec<String> =
            consumers.iter().map(|c| format!("{} {:.1} MiB", c.label, c.bytes as f64 / 1048576.0)).collect();
        Err(Error::Plan(format!(
            "the run takes {:.1} MiB, over context.max_device_memory of {:.1} MiB; the largest consumers: {}; lower \
             runner_config.batch_size or raise the cap",
            bytes as f64 / 1048576.0,
            cap as f64 / 1048576.0,
            listed.join(", ")
        )))
    }
}

/// The buffer of a persistent tensor.
pub fn persistent(tensor: Tensor) -> Option<PersistentId> {
    match tensor.buffer {
        BufferId::Persistent(id) => Some(id),
        BufferId::Transient(_) => None,
    }
}

/// The schedule has a row for every step.
fn check_schedule(schedule: Tensor, capabilities: &Capabilities) -> Result<()> {
    let limit = capabilities.limits.binding_bytes;
    if schedule.bytes() <= limit {
        return Ok(());
    }
    Err(Error::Plan(format!(
        "the learning rates of {} steps take {} MiB, over the adapter's largest binding of {} MiB; lower \
         runner_config.epochs or runner_config.stop_step",
        schedule.rows,
        schedule.bytes().div_ceil(1 << 20),
        limit >> 20
    )))
}

/// The widest activation must fit one binding, and some rows of logits; recording would find that too, but not name
/// the key to change.
fn check_activations(plan: &RunPlan, capabilities: &Capabilities) -> Result<()> {
    let model = &plan.model;
    let (tokens, limit) =
        (plan.settings.runner.batch_size * model.seq_length, capabilities.limits.binding_bytes);
    let refuse_over = |bytes: u64, what: String, remedy: &str| match bytes <= limit {
        true => Ok(()),
        false => Err(Error::Plan(format!(
            "{what} takes {} MiB, over the adapter's largest binding of {} MiB; {remedy}",
            bytes.div_ceil(1 << 20),
            limit >> 20
        ))),
    };
    let heads = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim;
    let inner = match model.activation {
        Activation::SwiGlu => 2 * model.intermediate_size.next_multiple_of(4),
        Activation::Gelu(_) => model.intermediate_size,
    };
    let widest = model.hidden_size.max(heads).max(inner);
    refuse_over(
        4 * (tokens * widest) as u64,
        format!(
            "an activation of {} x {} tokens x {widest}",
            plan.settings.runner.batch_size, model.seq_length
        ),
        "lower runner_config.batch_size and raise runner_config.gradient_accumulation_steps instead",
    )?;
    if let Some([rows, columns]) = widest_expert_tensor(model, tokens as u32, true) {
        if columns > u64::from(MAX_COLUMNS) {
            return Err(Error::Plan(format!(
                "experts have {columns} columns inside (gate and up), the kernels take {MAX_COLUMNS} at most; lower \
                 moe_config.moe_intermediate_size"
            )));
        }
        let experts = model.mixture.as_ref().map_or(1, |mixture| mixture.route.experts);
        if !WorkList::fits(rows as u32, experts, *capabilities) {
            return Err(Error::Plan(format!(
                "{rows} rows of {experts} experts are more than a launch can have; lower runner_config.batch_size and raise \
                 runner_config.gradient_accumulation_steps instead"
            )));
        }
        refuse_over(
            4 * rows * columns,
            format!("an activation of the experts, {rows} rows x {columns},"),
            "lower runner_config.batch_size and raise runner_config.gradient_accumulation_steps instead",
        )?;
    }
    refuse_over(
        linear_cross_entropy::smallest_chunk_bytes(tokens as u32, model.vocab_size as u32),
        format!("a chunk of logits over {} tokens", model.vocab_size),
        "lower model.model_config.vocab_size or choose another adapter with context.device_name",
    )
}
