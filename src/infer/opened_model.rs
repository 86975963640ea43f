//! A trained model found on disk: the folder of a run, a checkpoint in one, a Hugging Face folder, or the folder of an
//! adapter, whose base is any of the others.

use crate::data::{ChatForm, Codec};
use crate::durable::read_error;
use crate::error::{Error, Result};
use crate::hugging_face::generation::{self, GenerationConfig};
use crate::hugging_face::refuse_name_of_hub;
use crate::infer::on_device::SavedModel;
use crate::model::config::{LowRank, ModelConfig};
use crate::settings::{BaseType, Override, RunConfig, RunPlan};
use crate::store::checkpoint::torch_dtype;
use crate::store::export::float_types;
use crate::store::lora;
use crate::store::model_path::{StandaloneAdapter, base_of, chosen, run_of};
use crate::store::run_folder::{CONFIG, open_file};
use crate::train::pretrained::{check_weights, no_tokenizer};
use std::io;
use std::path::{Path, PathBuf};

/// The key that names a tokenizer.
const TOKENIZER: &str = "train_dataset.tokenizer";

/// A trained model: its plan, its codec, and where its weights are.
///
/// # Examples
///
/// A model of bytes that a program has trained, opened again to write text:
///
/// ```
/// use gristmill::infer::{Sampling, GenerationSettings};
/// use gristmill::infer::{InferenceModel, OpenedModel, prompt_tokens};
/// use std::ops::ControlFlow;
/// # use gristmill::data::{Batches, SampleCollector};
/// # use gristmill::prelude::*;
/// # use gristmill::train::Trainer;
/// # use gristmill::train::length::RunLength;
/// # const CONFIG: &str = "
/// # model:
/// #   model_config: {type: LlamaConfig, vocab_size: 256, hidden_size: 16, num_layers: 1, num_heads: 2, seq_length: 16}
/// # lr_schedule: {learning_rate: 1.0e-2}
/// # ";
///
/// # fn main() -> gristmill::error::Result<()> {
/// # pollster::block_on(async {
/// # let gpu = Gpu::request(&GpuOptions::default()).await?;
/// # let home = tempfile::tempdir().expect("a folder");
/// # let folder = home.path().join("run");
/// # let plan = RunConfig::in_memory(CONFIG, &[])?.plan;
/// # let mut samples = SampleCollector::default();
/// # samples.push(&Vec::from_iter(97..113), &Vec::from_iter(98..114));
/// # let data = Batches::of_sources(vec![samples.finish().into()], plan.batch_spec(), None, None)?;
/// # let mut trainer = Trainer::new(&gpu, &plan, &RunLength::new(&plan, 1)).await?;
/// # trainer.step(1, &data, 0).await?;
/// # trainer.save(&folder, &data).await?;
/// let run = OpenedModel::open(&folder, &[])?; // or a folder of Hugging Face's, or an adapter's
/// let mut model = InferenceModel::load(&gpu, &run, 1, run.plan.model.seq_length).await?;
/// let prompts = [prompt_tokens(&run.codec, "abc", run.plan.model.vocab_size)?];
/// let settings = GenerationSettings { tokens: 8, sampling: Sampling::GREEDY, seed: 0, stops: run.stops() };
/// let texts = model.generate(&prompts, &settings, |_text, _token| ControlFlow::Continue(())).await?;
/// println!("abc{}", run.codec.decode(&texts[0]));
/// # Ok(())
/// # })
/// # }
/// ```
pub struct OpenedModel {
    /// The resolved configuration of the model.
    pub plan: RunPlan,
    /// Turns text into tokens and back.
    pub codec: Codec,
    /// The folder of its weights: a checkpoint, or a Hugging Face folder.
    pub weights: PathBuf,
    /// The adapter to use instead of one beside them.
    adapter: Option<PathBuf>,
    /// The generation settings of its publishers.
    pub generation: GenerationConfig,
    /// The chat template that its checkpoint or its adapter keeps, since the file that training read may be elsewhere.
    template: Option<PathBuf>,
}

impl OpenedModel {
    /// Opens the model at `path`: a run folder, of which the best checkpoint is used, or else the newest; a checkpoint
    /// inside one; a Hugging Face folder; or the folder of an adapter, which names its base.
    ///
    /// # Errors
    /// One line: there is no model of these kinds, it has no checkpoint, its base is not here, or its tokenizer is
    /// missing.
    pub fn open(path: &Path, overrides: &[Override]) -> Result<Self> {
        match base_of(path)? {
            Some(base) => Self::open_adapted(&base, path, overrides),
            None => Self::open_model(path, overrides),
        }
    }

    /// Opens the model at `path` with the adapter at `adapter`, instead of its own if it has one: PEFT's file, its
    /// folder, or a checkpoint or run that has an adapter.
    ///
    /// # Errors
    /// As [`open`](Self::open); an adapter that is missing, damaged, or of another model.
    pub fn open_adapted(path: &Path, adapter: &Path, overrides: &[Override]) -> Result<Self> {
        let adapter = StandaloneAdapter::open(adapter)?;
        adapter.check(&outline_of_model(path, overrides, None)?.plan.model)?;
        let mut run = Self::open_model(path, &[&[pet_of(&adapter)], overrides].concat())?;
        adapter.extend(&mut run.plan.model)?;
        if adapter.folder().join(generation::FILE).is_file() {
            run.generation = GenerationConfig::of(adapter.folder())?;
        }
        run.template = kept_template(adapter.folder()).or(run.template);
        Ok(Self { adapter: Some(adapter.weights), ..run })
    }

    fn open_model(path: &Path, overrides: &[Override]) -> Result<Self> {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        // As in a plan, the ranks of a run need not exist: its model generates on one rank.
        let config = outline_of_model(&path, overrides, None)?;
        let is_named = overrides.iter().any(|one| one.path == TOKENIZER || one.lies_within(TOKENIZER));
        let mut run = match run_of(&path) {
            Some(_) => Self::of_run(&path, config, is_named)?,
            None => Self::of_folder(&path, config)?,
        };
        run.plan.model.low_rank.iter_mut().for_each(LowRank::fold);
        Ok(run)
    }

    /// The model of a run, with the tokenizer that its checkpoint has, unless another one `is_named`: the files that
    /// training read may be elsewhere by now.
    fn of_run(path: &Path, config: RunConfig, is_named: bool) -> Result<Self> {
        let mut plan = sound(config)?;
        let weights = chosen(path)?;
        let kept = weights.join("tokenizer.json");
        let tokenizer = plan.settings.train_dataset.keys.tokenizer.as_mut();
        if let Some(tokenizer) = tokenizer.filter(|_| !is_named && kept.is_file()) {
            tokenizer.tokenizer_file = kept.display().to_string();
        }
        if !plan.has_text() {
            return Err(Error::file(
                path,
                "was trained on token files alone, and no tokenizer says what its tokens mean; name it with --tokenizer",
            ));
        }
        let (codec, generation) = (plan.codec()?, GenerationConfig::of(&weights)?);
        let template = kept_template(&weights);
        Ok(Self { plan, codec, weights, adapter: None, generation, template })
    }

    fn of_folder(folder: &Path, config: RunConfig) -> Result<Self> {
        let plan = sound(config)?;
        if plan.settings.run.weights() != Some(folder) {
            let message = format!("names the base of adapters, and {} is a model itself", folder.display());
            return Err(Error::config("--base-model", message));
        }
        check_weights(&plan)?;
        if plan.settings.train_dataset.keys.tokenizer.is_none() && plan.model.vocab_size > 256 {
            return Err(no_tokenizer(folder, Some("--tokenizer")));
        }
        let (codec, generation) = (plan.codec()?, GenerationConfig::of(folder)?);
        Ok(Self { plan, codec, weights: folder.to_path_buf(), adapter: None, generation, template: None })
    }

    /// How records are written for the model: by the chat template in the file `template`, or the one that it was
    /// trained with, and with prompts as it was trained with them.
    pub fn chat_form(&self, template: Option<&Path>, raw: bool) -> ChatForm {
        let trained = self.plan.conversations().unwrap_or_default();
        let template = template.map(Path::to_path_buf).or(self.template.clone()).or(trained.template);
        ChatForm { template, raw: raw || trained.raw, ..ChatForm::default() }
    }

    /// The file of the adapter that the model has, if it has one.
    pub(super) fn adapter_file(&self) -> Option<PathBuf> {
        self.adapter.clone().or_else(|| lora::beside(&self.weights))
    }

    /// The place of the weights of `model`, which is the plan's model, perhaps with another window.
    pub(crate) fn saved<'a>(&'a self, model: &'a ModelConfig) -> SavedModel<'a> {
        let (weights, adapter) = (&self.weights, self.adapter.as_deref());
        SavedModel { model, weights, adapter, base: self.plan.settings.run.weights() }
    }

    /// Notices of differences between the model that is judged and the files that are written of it: a base that is
    /// quantised, or weights in another type.
    pub fn notices(&self) -> Vec<String> {
        let low_rank = self.plan.model.low_rank.as_ref();
        if let Some(base) = low_rank.and_then(|low_rank| low_rank.base) {
            let name = BaseType::of(base).map_or("fewer bits", BaseType::name);
            return vec![format!(
                "the base is used as it is stored, in {name}: what `gristmill merge` writes is on its unquantised values, and differs"
            )];
        }
        let base =
            self.plan.settings.run.weights().filter(|base| low_rank.is_none() && *base != self.weights);
        let types = base.and_then(|base| Some((float_types(&self.weights)?, float_types(base)?)));
        let differing = types.filter(|(own, of_base)| own != of_base);
        let compute = torch_dtype(self.plan.model.compute);
        let line = |(own, of_base)| {
            format!(
                "the checkpoint holds {own}, which is computed here in {compute}, and which `gristmill export` rounds to {of_base}, as \
                 the base has it; its --type f32 keeps it"
            )
        };
        differing.map(line).into_iter().collect()
    }

    /// The tokens that end a text of the model.
    pub fn stops(&self) -> Vec<u32> {
        match &self.generation.stops[..] {
            [] => self.codec.eod().into_iter().collect(),
            stops => stops.to_vec(),
        }
    }
}

/// The chat template that training left in the folder of a checkpoint.
fn kept_template(folder: &Path) -> Option<PathBuf> {
    Some(folder.join("chat_template.jinja")).filter(|file| file.is_file())
}

/// The configuration of the model at `path`, of any kind that [`OpenedModel::open`] accepts, for a plan on `ranks`
/// ranks or otherwise on as many as it asks for: that of a run; for a Hugging Face folder one that trains the whole
/// model with `of_folder` and the defaults of every other key; for an adapter that of its base with the adapter.
///
/// # Errors
/// There is no model, it cannot be computed, or a flag is wrong.
pub fn outline(
    path: &Path,
    of_folder: &Override,
    overrides: &[Override],
    ranks: Option<usize>,
) -> Result<RunConfig> {
    let (model, adapter) = match base_of(path)? {
        Some(base) => (base, Some(pet_of(&StandaloneAdapter::open(path)?))),
        None => (path.to_path_buf(), None),
    };
    let is_run = run_of(&model).is_some();
    let default = if is_run { &[][..] } else { std::slice::from_ref(of_folder) };
    let mut config = outline_of_model(&model, &[adapter.as_slice(), default, overrides].concat(), ranks)?;
    let names_data = overrides
        .iter()
        .any(|one| one.path == "train_dataset" || one.lies_within("train_dataset.data_loader"));
    if !is_run && !names_data {
        config.data_faults.insert(0, Error::file(&model, "is a model, which names no data"));
    }
    Ok(config)
}

fn outline_of_model(path: &Path, overrides: &[Override], ranks: Option<usize>) -> Result<RunConfig> {
    match run_of(path).map(|run| run.join(CONFIG)) {
        Some(config) => {
            let text = open_file(&config).and_then(io::read_to_string);
            let text = text.map_err(|error| read_error(&config, "read", &error))?;
            RunConfig::of_run_folder(&text, &config, overrides, ranks)
        }
        None if path.join("config.json").is_file() => RunConfig::of_model_folder(path, overrides, ranks),
        None => Err(refuse_name_of_hub(path).err().unwrap_or_else(|| Error::file(
            path,
            "neither the folder of a run (output/tiny), nor a checkpoint in one (output/tiny/checkpoint/step_0000200), nor a \
             folder of Hugging Face's with a config.json, nor an adapter's with an adapter_config.json",
        ))),
    }
}

fn pet_of(adapter: &StandaloneAdapter) -> Override {
    Override::of("model.model_config.pet_config", &adapter.pet_config())
}

fn sound(config: RunConfig) -> Result<RunPlan> {
    if config.data_faults.is_empty() { Ok(config.plan) } else { Err(Error::all(config.data_faults)) }
}

/// The tokens of a prompt, beginning with those that the tokenizer adds before a text, if any. An empty prompt becomes
/// a token after which a text may start.
///
/// # Errors
/// The tokenizer cannot encode it, or a token is outside the model's vocabulary.
pub fn prompt_tokens(codec: &Codec, text: &str, vocab_size: usize) -> Result<Vec<u32>> {
    let mut tokens = codec.started(codec.encode(text)?);
    if let Some(token) = tokens.iter().find(|token| **token as usize >= vocab_size) {
        return Err(Error::Plan(format!(
            "the prompt `{text}` has the token {token}, outside the model's vocab_size {vocab_size}; change the prompt, or name \
             the data's tokenizer in train_dataset.tokenizer"
        )));
    }
    if tokens.is_empty() {
        tokens.push(codec.separator().min(vocab_size as u32 - 1));
    }
    Ok(tokens)
}
