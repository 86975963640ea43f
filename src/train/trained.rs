//! A trained model that generates text: only its weights and caches are on the device.

use super::limits::check_binding;
use super::sample::prompt;
use crate::data::Codec;
use crate::device::{Buffers, Gpu, Guard, Prepared, Reader};
use crate::durable::read_error;
use crate::error::{Error, Result};
use crate::generate::{GenerateRecordings, Generator, Settings};
use crate::model::ModelBuffers;
use crate::model::arena::ArenaLayout;
use crate::model::parameters::Gpt;
use crate::record::{Persistents, Tensor};
use crate::settings::{Override, RunConfig, RunPlan};
use crate::store::checkpoint::{WeightTensors, load_whole_weights};
use crate::store::checkpoint_folder::CheckpointFolder;
use crate::store::run_folder::{CHECKPOINTS, CONFIG, open_file};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// A run found in its folder: its plan, its codec, and where its weights are.
pub struct TrainedRun {
    /// Its configuration, resolved.
    pub plan: RunPlan,
    /// Turns text into tokens and back.
    pub codec: Codec,
    /// The folder of the checkpoint.
    pub checkpoint: PathBuf,
}

impl TrainedRun {
    /// Opens the run at `path`: a run folder, of which the newest checkpoint is used, or a checkpoint inside one.
    ///
    /// # Errors
    /// One line: there is no run, it has no checkpoint, or its tokenizer is missing.
    pub fn open(path: &Path, overrides: &[String]) -> Result<Self> {
        // The path of a checkpoint may be relative to its own folder, and the run folder is found through its parents.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let path = path.as_path();
        let is_run = path.join(CONFIG).is_file();
        let run = if is_run { Some(path) } else { path.parent().and_then(Path::parent) };
        let config = run.map(|run| run.join(CONFIG)).filter(|config| config.is_file());
        let Some(config) = config else {
            let message = "neither the folder of a run (output/tiny) nor a checkpoint in one (output/tiny/checkpoint/step_0000200)";
            return Err(Error::file(path, message));
        };
        let text = open_file(&config).and_then(io::read_to_string);
        let text = text.map_err(|error| read_error(&config, "read", &error))?;
        // As for a plan, the ranks of the run need not be there: its model is generated from on one.
        let RunConfig { plan, data_faults, .. } =
            RunConfig::of_run_folder(&text, &config, &Override::parse_all(overrides)?)?;
        if !data_faults.is_empty() {
            return Err(Error::all(data_faults));
        }
        let checkpoint = match is_run {
            false => Some(path.to_path_buf()),
            true => CheckpointFolder::new(path.join(CHECKPOINTS), 0).latest()?.map(|(_, newest)| newest),
        };
        let none = || Error::file(path, "the run has no checkpoint yet, so there are no weights");
        let checkpoint = checkpoint.ok_or_else(none)?;
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

const FEWER_PROMPTS: &str = "continue fewer prompts at once";

/// A model on a device, ready to continue a fixed number of prompts at once.
pub struct TrainedModel<'gpu> {
    gpu: &'gpu Gpu,
    recordings: GenerateRecordings,
    buffers: Buffers,
    prepared: Prepared,
    reader: Reader,
}

impl<'gpu> TrainedModel<'gpu> {
    /// Loads the weights of `run` onto `gpu`, with caches for `sequences` texts of one window each.
    ///
    /// # Errors
    /// A checkpoint that does not fit the model or cannot be read; a model or cache too large for the adapter.
    pub async fn load(gpu: &'gpu Gpu, run: &TrainedRun, sequences: u32) -> Result<Self> {
        let (config, capabilities) = (&run.plan.model, gpu.capabilities());
        let mut persistents = Persistents::new();
        let whole = Gpt::describe(config);
        let layout = ArenaLayout::new(whole.clone(), &capabilities.limits)?;
        let weights = layout.arena(&mut persistents, "weights", |kind| Some(kind.compute));
        let bytes = GenerateRecordings::largest_tensor(config, sequences);
        let what = format!("a tensor of {sequences} sequences takes");
        check_binding(bytes, &capabilities, what, FEWER_PROMPTS)?;
        let model_buffers = ModelBuffers::new(config, sequences * config.seq_length as u32, &mut persistents);
        let gpt = layout.bind(config, &weights, None);
        let recordings =
            GenerateRecordings::new(&mut persistents, &gpt, config, model_buffers, sequences, capabilities)
                .map_err(|error| Error::Plan(format!("{error}; {FEWER_PROMPTS}")))?;
        let buffers = gpu.make_persistent(&persistents).await?;
        let prepared = gpu.prepare(&[&recordings.prefill, &recordings.step], &buffers, Guard::Off).await?;
        let write = |tensor: Tensor, bytes: &[u8]| {
            if let Some(id) = tensor.buffer.persistent() {
                gpu.write(&buffers, id, tensor.offset, bytes);
            }
        };
        if let Some((table, values)) = model_buffers.rotary_table(config) {
            write(table, bytemuck::cast_slice(&values));
        }
        let experts = model_buffers.experts.as_ref();
        let low_rank = config.low_rank.as_ref();
        let tensors = WeightTensors { layout: &layout, arena: &weights, whole: &whole, experts, low_rank };
        load_whole_weights(tensors, &run.checkpoint, write)?;
        let reader = Reader::new(gpu, recordings.logits.bytes()).await?;
        Ok(Self { gpu, recordings, buffers, prepared, reader })
    }

    /// Continues the prompts, as many as the model was loaded for; see [`Generator::generate`].
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

/// The tokens of a prompt; for an empty one, the token that a text starts after.
///
/// # Errors
/// The tokenizer cannot encode it, or a token is outside the model's vocabulary.
pub fn prompt_tokens(run: &TrainedRun, text: &str) -> Result<Vec<u32>> {
    prompt(&run.codec, text, run.plan.model.vocab_size)
}
