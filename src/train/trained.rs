//! A trained model that writes text: its weights and caches on a device, and nothing else.

use super::checkpoint::read_weights;
use super::checkpoint_folder::CheckpointFolder;
use super::run_folder::{CHECKPOINTS, CONFIG};
use super::sample::prompt;
use crate::data::Codec;
use crate::device::{Buffers, Gpu, Guard, Prepared, Reader};
use crate::error::{Error, Result};
use crate::generate::{GenerateRecordings, Generator, Settings};
use crate::model::Shape;
use crate::model::arena::ArenaLayout;
use crate::model::parameters::Gpt;
use crate::record::{BufferId, Persistents, Tensor};
use crate::settings::{Override, RunConfig, RunPlan};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// What a run left, found and read: how to make its model, and where its weights are.
pub struct TrainedRun {
    /// Its configuration, resolved.
    pub plan: RunPlan,
    /// Turns text into tokens and back.
    pub codec: Codec,
    /// The folder of the checkpoint.
    pub checkpoint: PathBuf,
}

impl TrainedRun {
    /// The run in `path`: a run's folder, whose newest checkpoint is taken, or a checkpoint within one.
    ///
    /// # Errors
    /// One line: no run is there, it has no checkpoint, or its tokenizer is gone.
    pub fn open(path: &Path, overrides: &[String]) -> Result<Self> {
        // A checkpoint may be named from within its folder.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let path = path.as_path();
        let is_run = path.join(CONFIG).is_file();
        let run = if is_run { Some(path) } else { path.parent().and_then(Path::parent) };
        let config = run.map(|run| run.join(CONFIG)).filter(|config| config.is_file());
        let Some(config) = config else {
            let message = "neither the folder of a run (output/tiny) nor a checkpoint in one (output/tiny/checkpoint/step_0000200)";
            return Err(Error::file(path, message));
        };
        let plan = RunConfig::load(&config, &Override::parse_all(overrides)?)?.plan;
        let checkpoint = match is_run {
            false => path.to_path_buf(),
            true => match CheckpointFolder::new(path.join(CHECKPOINTS), 0).latest()? {
                Some((_, newest)) => newest,
                None => {
                    return Err(Error::file(path, "the run has no checkpoint yet, so there are no weights"));
                }
            },
        };
        if !plan.has_text() {
            return Err(Error::file(
                path,
                "was trained on token files alone, and no tokenizer says what its tokens mean; name it with --tokenizer",
            ));
        }
        let codec = plan.codec()?;
        Ok(Self { plan, codec, checkpoint })
    }
}

/// A model on a device, ready to continue a number of prompts at once.
pub struct TrainedModel<'gpu> {
    gpu: &'gpu Gpu,
    recordings: GenerateRecordings,
    buffers: Buffers,
    prepared: Prepared,
    reader: Reader,
}

impl<'gpu> TrainedModel<'gpu> {
    /// Puts the weights of `run` on `gpu`, with room for `sequences` texts of a window each.
    ///
    /// # Errors
    /// A checkpoint that does not fit the model or cannot be read; a model or cache too large for the adapter.
    pub async fn load(gpu: &'gpu Gpu, run: &TrainedRun, sequences: u32) -> Result<Self> {
        let (config, capabilities) = (&run.plan.model, gpu.capabilities());
        let mut persistents = Persistents::new();
        let layout = ArenaLayout::new(Gpt::describe(config), &capabilities.limits)?;
        let weights = layout.arena(&mut persistents, "weights", |_| true);
        let shape = Shape::new(config, sequences * config.seq_length as u32, &mut persistents);
        let bytes = GenerateRecordings::largest_tensor(config, &shape, sequences);
        if bytes > capabilities.limits.binding_bytes {
            return Err(Error::Plan(format!(
                "a tensor of {sequences} sequences takes {} MiB, over the adapter's largest binding of {} MiB; continue \
                 fewer prompts at once",
                bytes.div_ceil(1 << 20),
                capabilities.limits.binding_bytes >> 20
            )));
        }
        let gpt = layout.bind(&weights, None);
        let recordings =
            GenerateRecordings::new(&mut persistents, &gpt, config, &shape, sequences, capabilities);
        let buffers = gpu.make_persistent(&persistents).await?;
        let prepared = gpu.prepare(&[&recordings.prefill, &recordings.step], &buffers, Guard::Off).await?;
        let write = |tensor: Tensor, bytes: &[u8]| {
            if let BufferId::Persistent(id) = tensor.buffer {
                gpu.write(&buffers, id, tensor.offset, bytes);
            }
        };
        if let Some((table, values)) = shape.rotary_table() {
            write(table, bytemuck::cast_slice(&values));
        }
        read_weights(&layout, &weights, shape.expert_state().as_ref(), &run.checkpoint, write)?;
        let reader = Reader::new(gpu, recordings.logits.bytes());
        Ok(Self { gpu, recordings, buffers, prepared, reader })
    }

    /// Continues as many prompts as it was loaded for; see [`Generator::generate`].
    ///
    /// # Errors
    /// A device that fails.
    pub async fn generate(
        &self,
        prompts: &[Vec<u32>],
        settings: &Settings,
        on_token: impl FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<Vec<u32>>> {
        let Self { gpu, recordings, buffers, prepared, reader } = self;
        let generator = Generator { gpu, buffers, prepared, programs: (0, 1), recordings, reader };
        generator.generate(prompts, settings, on_token).await
    }
}

/// The tokens of a prompt; of an empty one, where a text begins.
///
/// # Errors
/// If the tokenizer cannot encode it, or the model does not know one of its tokens.
pub fn prompt_tokens(run: &TrainedRun, text: &str) -> Result<Vec<u32>> {
    prompt(&run.codec, text, run.plan.model.vocab_size)
}
