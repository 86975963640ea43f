//! The recordings of a run, written down: everything a training run does on the device, without a device.

use crate::config::RunPlan;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::kernels::Capabilities;
use crate::model::arena::{Arena, ArenaLayout};
use crate::model::config::{Activation, ModelConfig};
use crate::model::gpt::{self, BatchTensors};
use crate::model::parameters::Gpt;
use crate::ops::adamw::{self, AdamW};
use crate::ops::embedding::embedding;
use crate::ops::grad_norm::{StepTensors, grad_norm};
use crate::ops::linear_cross_entropy;
use crate::ops::matmul::{Epilogue, Layout, matmul};
use crate::record::{BufferId, MemoryPlan, PersistentId, Persistents, Recorder, Recording, Tensor};
use crate::tape::{CrossEntropy, Parameter, Tape};

/// The four arenas.
#[derive(Clone, Debug)]
pub struct Arenas {
    /// Parameters.
    pub weights: Arena,
    /// Their gradients.
    pub gradients: Arena,
    /// First moments of AdamW.
    pub first_moments: Arena,
    /// Second moments of AdamW.
    pub second_moments: Arena,
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
    /// Learning rate and bias corrections, by global step.
    pub schedule: Tensor,
    /// The current micro-batch.
    pub batch: BatchTensors,
    /// The rotary table and its contents, for a model that rotates.
    pub rotary: Option<(Tensor, Vec<f32>)>,
    /// Forward, loss and backward of one micro-batch: gradients are added to their arena.
    pub micro_step: Recording,
    /// Norm, clipping, step state and AdamW.
    pub update: Recording,
    /// Forward and loss of one micro-batch.
    pub eval: Recording,
    /// The next token's logits after a prompt, if the run writes a sample.
    pub sample: Option<SampleRecording>,
}

/// A forward pass over one window, and the logits of one position.
pub struct SampleRecording {
    /// The window (1, T); `positions` are those of the batch's first sequence.
    pub tokens: Tensor,
    /// Positions (1, T).
    pub positions: Tensor,
    /// The position whose logits are wanted (1, 1).
    pub at: Tensor,
    /// Its logits (1, V).
    pub logits: Tensor,
    /// What runs.
    pub recording: Recording,
}

impl Recordings {
    /// Writes the recordings of `plan` for adapters that can do `capabilities`. `steps` rows of schedule.
    ///
    /// # Errors
    /// A tensor that no binding can hold; a pool that passes `context.max_device_memory`.
    pub fn new(plan: &RunPlan, capabilities: Capabilities, steps: u64) -> Result<Self> {
        let mut persistents = Persistents::new();
        let layout = ArenaLayout::new(Gpt::describe(&plan.model), &capabilities.limits)?;
        let arena = |persistents: &mut Persistents, name: &str| layout.arena(persistents, name);
        let arenas = Arenas {
            weights: arena(&mut persistents, "weights"),
            gradients: arena(&mut persistents, "gradients"),
            first_moments: arena(&mut persistents, "first moments"),
            second_moments: arena(&mut persistents, "second moments"),
        };
        let state = persistents.tensor("step state", 1, 12, Element::F32);
        let loss = persistents.tensor("loss state", 1, 8, Element::F32);
        let eval_loss = persistents.tensor("evaluation loss state", 1, 8, Element::F32);
        let schedule =
            persistents.tensor("schedule", steps.clamp(1, u32::MAX as u64) as u32, 4, Element::F32);
        let tokens = (plan.batch_size * plan.model.seq_length) as u32;
        let batch = batch_tensors(&mut persistents, "batch", tokens, &plan.model);
        let shape = gpt::Shape::new(&plan.model, &mut persistents);
        let rotary = shape.rotary_table();
        check_activations(plan, &capabilities)?;

        let gpt = layout.bind(&arenas.weights, &arenas.gradients);
        let cross_entropy = |loss| CrossEntropy {
            targets: batch.targets,
            ignore: plan.model.ignore_id,
            step: state,
            loss,
            accumulation: plan.gradient_accumulation_steps as u32,
        };
        let micro_step = {
            let mut rec = Recorder::new("micro_step", capabilities);
            let mut tape = Tape::new(&mut rec);
            let h = gpt::hidden(&mut tape, &gpt, &shape, &batch, false);
            tape.scope("loss", |tape| tape.linear_cross_entropy(h, head(&gpt), &cross_entropy(loss)));
            tape.backward();
            rec.finish()
        };
        let eval = {
            let mut rec = Recorder::new("eval", capabilities);
            let mut tape = Tape::forward_only(&mut rec);
            let h = gpt::hidden(&mut tape, &gpt, &shape, &batch, false);
            tape.scope("loss", |tape| tape.linear_cross_entropy(h, head(&gpt), &cross_entropy(eval_loss)));
            rec.finish()
        };
        let update = update(plan, capabilities, &layout, &arenas, &StepTensors { state, loss, schedule });
        let sample = plan.sample.as_ref().map(|_| sample(&mut persistents, plan, capabilities, &gpt, &shape));
        let recordings = Self {
            persistents,
            layout,
            arenas,
            state,
            loss,
            eval_loss,
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
        let sample = self.sample.as_ref().map(|sample| &sample.recording);
        [Some(&self.micro_step), Some(&self.update), Some(&self.eval), sample].into_iter().flatten().collect()
    }

    /// Bytes of everything: persistent buffers and pool.
    pub fn bytes(&self) -> u64 {
        self.persistents.bytes() + MemoryPlan::new(&self.all()).bytes()
    }

    fn check_memory(&self, plan: &RunPlan) -> Result<()> {
        let Some(cap) = plan.max_device_memory.filter(|&cap| self.bytes() > cap) else { return Ok(()) };
        let mut consumers = MemoryPlan::largest(&self.all(), 5);
        let persistent = self.persistents.buffers().iter();
        consumers.extend(
            persistent.map(|(label, bytes)| crate::record::Consumer { label: label.clone(), bytes: *bytes }),
        );
        consumers.sort_by_key(|consumer| std::cmp::Reverse(consumer.bytes));
        let listed: Vec<String> = consumers
            .iter()
            .take(5)
            .map(|c| format!("{} {:.1} MiB", c.label, c.bytes as f64 / 1048576.0))
            .collect();
        Err(Error::Plan(format!(
            "the run takes {:.1} MiB, over context.max_device_memory of {:.1} MiB; the largest consumers: {}; lower \
             runner_config.batch_size or raise the cap",
            self.bytes() as f64 / 1048576.0,
            cap as f64 / 1048576.0,
            listed.join(", ")
        )))
    }
}

/// The head's table: the embedding's, where they are tied.
fn head(gpt: &Gpt<Parameter>) -> &Parameter {
    gpt.head.as_ref().unwrap_or(&gpt.embedding)
}

/// The id arrays of a micro-batch in one buffer, so that one copy brings them all.
fn batch_tensors(
    persistents: &mut Persistents,
    label: &str,
    tokens: u32,
    model: &ModelConfig,
) -> BatchTensors {
    let buffer = BufferId::Persistent(persistents.add(label, batch_bytes(tokens, model)));
    let array = |i: u64| Tensor::new(buffer, i * batch_stride(tokens), 1, tokens, Element::F32);
    let [tokens, targets, positions, order] = [0, 1, 2, 3].map(array);
    let position_order = model.learns_positions().then(|| array(4));
    BatchTensors { tokens, targets, positions, order, position_order }
}

/// Bytes of all id arrays of a micro-batch.
pub fn batch_bytes(tokens: u32, model: &ModelConfig) -> u64 {
    let arrays = if model.learns_positions() { 5 } else { 4 };
    arrays * batch_stride(tokens)
}

/// Bytes from one id array of a micro-batch to the next.
pub fn batch_stride(tokens: u32) -> u64 {
    (4 * tokens as u64).next_multiple_of(256)
}

/// The buffer of a persistent tensor.
pub fn persistent(tensor: Tensor) -> Option<PersistentId> {
    match tensor.buffer {
        BufferId::Persistent(id) => Some(id),
        BufferId::Transient(_) => None,
    }
}

/// The widest activation must fit one binding, and some rows of logits; recording would find that too, but not name
/// the key to change.
fn check_activations(plan: &RunPlan, capabilities: &Capabilities) -> Result<()> {
    let model = &plan.model;
    let (tokens, limit) = (plan.batch_size * model.seq_length, capabilities.limits.binding_bytes);
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
        format!("an activation of {} x {} tokens x {widest}", plan.batch_size, model.seq_length),
        "lower runner_config.batch_size and raise runner_config.gradient_accumulation_steps instead",
    )?;
    refuse_over(
        linear_cross_entropy::smallest_chunk_bytes(tokens as u32, model.vocab_size as u32),
        format!("a chunk of logits over {} tokens", model.vocab_size),
        "lower model.model_config.vocab_size or choose another adapter with context.device_name",
    )
}

fn update(
    plan: &RunPlan,
    capabilities: Capabilities,
    layout: &ArenaLayout,
    arenas: &Arenas,
    tensors: &StepTensors,
) -> Recording {
    let mut rec = Recorder::new("update", capabilities);
    let segments = 0..layout.segments.len();
    let gradients: Vec<Tensor> = segments.clone().map(|i| arenas.gradients.segment(layout, i)).collect();
    rec.scope("grad_norm", |rec| grad_norm(rec, &gradients, tensors, plan.clip.map(|clip| clip as f32)));
    for i in segments {
        let segment = adamw::Segment {
            weights: arenas.weights.segment(layout, i),
            gradients: gradients[i],
            first_moments: arenas.first_moments.segment(layout, i),
            second_moments: arenas.second_moments.segment(layout, i),
        };
        let settings = AdamW {
            decay: if layout.segments[i].decays { plan.optimizer.weight_decay as f32 } else { 0.0 },
            beta1: plan.optimizer.beta1 as f32,
            beta2: plan.optimizer.beta2 as f32,
            epsilon: plan.optimizer.eps as f32,
        };
        rec.scope(format!("adamw.{i}"), |rec| adamw::adamw(rec, &segment, tensors.state, &settings));
    }
    rec.finish()
}

fn sample(
    persistents: &mut Persistents,
    plan: &RunPlan,
    capabilities: Capabilities,
    gpt: &Gpt<Parameter>,
    shape: &gpt::Shape,
) -> SampleRecording {
    let window = plan.model.seq_length as u32;
    let batch = batch_tensors(persistents, "sample batch", window, &plan.model);
    let at = persistents.tensor("sample position", 1, 1, Element::F32);
    let logits = persistents.tensor("sample logits", 1, plan.model.vocab_size as u32, Element::F32);
    let mut rec = Recorder::new("sample", capabilities);
    let mut tape = Tape::forward_only(&mut rec);
    let h = gpt::hidden(&mut tape, gpt, shape, &batch, false).tensor; // (T, D)
    let row = rec.tensor("row", 1, h.cols, h.element);
    embedding(&mut rec, at, &[h], row);
    let mut column = 0;
    for part in &head(gpt).weight {
        matmul(&mut rec, Layout::Nt, row, *part, logits.columns(column, part.rows), Epilogue::default());
        column += part.rows;
    }
    SampleRecording { tokens: batch.tokens, positions: batch.positions, at, logits, recording: rec.finish() }
}
