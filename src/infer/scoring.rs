//! The loss of each token of texts under a trained model.

use super::opened_model::OpenedModel;
use crate::data::{BatchSpec, PackedSequences, Sequence};
use crate::device::Gpu;
use crate::element::Element;
use crate::error::Result;
use crate::infer::on_device::{Loading, OnDevice};
use crate::model::config::{ModelConfig, Recomputed};
use crate::model::{BatchTensors, DataArrays, ForwardContext, Mode};
use crate::ops::step_state::{LossState, StepState};
use crate::perf::limits::{check_activations, check_turns, misfit_of_loaded};
use crate::ranks::RankLayout;
use crate::record::{Recorder, Recording, State, Tensor};
use crate::settings::RunPlan;
use crate::tape::{CrossEntropy, Tape};

/// Default for the longest window in tokens: the gain of a longer context is another measurement.
const LONGEST_WINDOW: usize = 2048;
/// The remedy if a model and its activations are too large.
const SHORTER: &str = "lower --max-length, or choose another adapter by --device-name";
/// Tokens per launch, unless a window is longer.
const TOKENS_AT_ONCE: usize = 4096;

/// A model on a device, ready to judge certain texts.
pub struct Scorer<'gpu> {
    on_device: OnDevice<'gpu>,
    packed: PackedSequences,
    /// One for each shape of batches.
    passes: Vec<Pass>,
}

/// The tensors of batches of one shape.
struct Pass {
    batch: BatchTensors,
    losses: Tensor,
}

impl<'gpu> Scorer<'gpu> {
    /// Default for the longest sequence that is judged at once, in tokens, by a model of `plan`. It does not depend on
    /// the windows of training, so that a base model and a model trained from it are judged by the same tokens.
    pub fn window(plan: &RunPlan) -> usize {
        plan.model.longest_text().min(LONGEST_WINDOW)
    }

    /// Loads the weights of `run` onto `gpu`, to judge `sequences`, none of which may be empty or longer than `window`
    /// tokens.
    ///
    /// # Errors
    /// No sequence; a checkpoint that does not fit the model or cannot be read; a model too large for the adapter.
    pub async fn load(
        gpu: &'gpu Gpu,
        run: &OpenedModel,
        window: usize,
        sequences: &[&Sequence],
    ) -> Result<Self> {
        let model = run.plan.model.for_texts_of(window.min(run.plan.model.longest_text()));
        let model = ModelConfig { recomputed: Recomputed::default(), ..model };
        let mut rows = (TOKENS_AT_ONCE / model.seq_length).min(sequences.len()).max(1);
        let capabilities = gpu.capabilities();
        check_turns(model.seq_length, &capabilities, SHORTER)?;
        let fits = |rows| check_activations(&model, rows, &RankLayout::one(), &capabilities);
        while rows > 1 && fits(rows).is_err() {
            rows /= 2;
        }
        fits(rows).map_err(|error| misfit_of_loaded(error, SHORTER))?;
        let spec = BatchSpec {
            seq_length: model.seq_length,
            batch_size: rows,
            micro_batches: 1,
            vocab_size: model.vocab_size,
            ignore_id: model.ignore_id,
            sorts_positions: model.learns_positions(),
            ahead: 0,
            rank: 0,
            world: 1,
        };
        let packed = PackedSequences::new(sequences, &spec)?;
        let mut loading = Loading::new(gpu, &model, (rows * model.seq_length) as u32)?;
        let (gpt, buffers) = (loading.model(&model), loading.model_buffers);
        let persistents = &mut loading.persistents;
        let step = StepState::tensor(persistents, "step state");
        let loss = LossState::tensor(persistents, "loss state");
        let mut record = |spec: &BatchSpec| {
            let model = model.with_window(spec.seq_length);
            let tokens = (spec.batch_size * spec.seq_length) as u32;
            let data = DataArrays { isolates_documents: true, ..DataArrays::default() };
            let next_token = ModelConfig { multi_token: None, ..model.clone() };
            let batch = BatchTensors::new(&next_token, tokens, data, persistents, "batch".into());
            let losses = persistents.tensor("losses", 1, tokens, Element::F32);
            let mut rec = Recorder::new("score", capabilities);
            let context = ForwardContext {
                config: &model,
                buffers,
                batch,
                expert_ranks: None,
                matrix_ranks: None,
                mode: Mode::Scoring,
            };
            let loss = CrossEntropy { losses: Some(losses), ..context.cross_entropy(step, loss) };
            gpt.loss(&mut Tape::forward_only(&mut rec), &context, &loss);
            Ok((Pass { batch, losses }, rec.try_finish()?))
        };
        let recorded = packed.specs().map(&mut record).collect::<Result<Vec<_>>>();
        let (passes, recordings): (Vec<Pass>, Vec<Recording>) =
            recorded.map_err(|error| misfit_of_loaded(error, SHORTER))?.into_iter().unzip();
        let largest = passes[0].losses; // the last batch is no larger than the others
        let recordings: Vec<&Recording> = recordings.iter().collect();
        let on_device = loading.finish(gpu, run.saved(&model), &recordings, largest, SHORTER).await?;
        Ok(Self { on_device, packed, passes })
    }

    /// The loss of each token of the sequences, in nats, and 0 where there is nothing to predict. `on_batch` is called
    /// with the number of finished batches and their total number.
    ///
    /// # Errors
    /// A token outside the vocabulary; a device that fails.
    pub async fn losses(&self, mut on_batch: impl FnMut(u64, u64)) -> Result<Vec<Vec<f32>>> {
        let (batches, mut losses) = (self.packed.batches(), Vec::new());
        for (number, &batch) in (1..).zip(&batches) {
            losses.extend(self.batch_losses(batch).await?);
            on_batch(number, batches.len() as u64);
        }
        Ok(self.packed.split(&losses))
    }

    async fn batch_losses(&self, batch: (usize, u64)) -> Result<Vec<f32>> {
        let OnDevice { gpu, buffers, prepared, reader } = &self.on_device;
        let (shape, pass) = (batch.0, &self.passes[batch.0]);
        pass.batch.for_each(&self.packed.batch(batch)?, |offset, ids| {
            gpu.write(buffers, pass.batch.buffer(), offset, bytemuck::cast_slice(ids));
        });
        self.on_device.replay(shape).await?;
        let bytes = reader.tensor(gpu, buffers, prepared, shape, &pass.losses).await?;
        let losses = bytemuck::pod_collect_to_vec::<u8, f32>(&bytes);
        Ok(losses[..pass.losses.cols as usize].to_vec())
    }
}
