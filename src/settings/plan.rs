//! Every number of a run, decided and checked before anything is built.

mod checks;

use super::Settings;
use super::decide::decide;
use super::engine::Source;
use super::sections::context::F32Products;
use super::sections::dataset::Dataset;
use super::sections::model::{BaseType, Pet};
use super::sections::parallel::{Distribution, Sharding, Started};
use super::sections::preference::Preference;
use super::sections::recompute::Operators;
use crate::data::{self, BatchSpec, ChatForm, Codec};
use crate::element::Element;
use crate::error::Result;
use crate::model::DataArrays;
use crate::model::config::{LowRank, ModelConfig};
use crate::model::groups::Grouping;
use crate::model::parameters::{Gpt, Spec};
use crate::model::stages::Stages;
use crate::ranks::RankLayout;
use checks::{check_base, is_of_possible_size};
use serde_json::Value;
use std::collections::BTreeMap;

/// A run: its settings, and the few numbers that follow from several of them. Only its length is missing, which depends
/// on the data.
#[derive(Clone, Debug, PartialEq)]
pub struct RunPlan {
    /// Every setting, filled.
    pub settings: Settings,
    /// How the ranks share the work, and which of them this is.
    pub layout: RankLayout,
    /// The tensors that data-parallel ranks divide among them.
    pub sharding: Sharding,
    /// The layers that each stage of a pipeline holds.
    pub stages: Stages,
    /// The model.
    pub model: ModelConfig,
    /// Tokens that all ranks together learn from in a step.
    pub tokens_per_step: usize,
}

/// The key under which a checkpoint has the number of micro-batches of a step.
const ACCUMULATION: &str = "runner_config.gradient_accumulation_steps";

const WINDOWS: [&str; 2] = ["model.model_config.sliding_window", "model.model_config.layer_types"];

/// The name under which a step that selects hot experts is compared when a run resumes. A `ColdHotExpertMonitor` may
/// set that step, too.
const HOT_STEP: &str =
    "callbacks.CheckpointMonitor.save_checkpoint_steps (a step at which hot experts are chosen)";

impl RunPlan {
    /// Reads `source` and decides every number that does not depend on the data, on the ranks that were `started`;
    /// `None` after a fault.
    pub(super) fn read(source: &Source, started: Option<Started>) -> Option<Self> {
        let (mut settings, distribution) = Settings::read(source, started);
        let (sharding, tokens_per_step) = decide(&mut settings, &distribution, source);
        if !["model", "moe_config", "recompute_config"].iter().all(|path| source.is_sound(path)) {
            return None;
        }
        let (family, hot_step) = (settings.model.config.family, settings.callbacks.hot_step());
        let mixture = settings.moe.as_ref().map(|moe| moe.config(family, hot_step));
        let mut model = settings.model.with(mixture, settings.recompute.recomputed());
        if !is_of_possible_size(&model, source) {
            return None;
        }
        if let Some(pet) = &settings.model.pet_config {
            let is_untied = pet.unties(&model);
            model.tie_word_embeddings &= !is_untied;
            model.low_rank = Some(LowRank { is_untied, ..low_rank(pet, &model, source)? });
            check_base(&settings, pet, source);
            if !is_of_possible_size(&model, source) {
                return None;
            }
        }
        let Distribution { layout, stages, .. } = distribution;
        let plan = Self { layout, sharding, stages, model, tokens_per_step, settings };
        checks::check(&plan, source);
        Some(plan)
    }

    /// How the parameters are sorted into groups.
    pub fn grouping(&self) -> Grouping {
        let Settings { run, model, groups, .. } = &self.settings;
        let pet = model.pet_config.as_ref();
        Grouping {
            holds: pet.map(|pet| pet.freeze_include.clone()).unwrap_or_default(),
            releases: pet.map(|pet| pet.freeze_exclude.clone()).unwrap_or_default(),
            saves: pet.map(|pet| pet.saved_modules(&self.model)).unwrap_or_default(),
            second_factors: pet.filter(|pet| pet.has_own_rate_of_b()).map(|_| 1 + groups.len()),
            freeze: model.freeze.clone(),
            freeze_exclude: model.freeze_exclude.clone(),
            no_decay: run.no_decay_params.clone(),
            groups: groups.iter().map(|group| group.keys.params.clone()).collect(),
            matrices: self.settings.optimizer.matrix_rule(),
        }
    }

    /// The plan of the same run whose step is divided into `accumulation` micro-batches of `batch_size` windows, which
    /// recomputes the layers `recomputed` as a whole, and which has no cap on its memory.
    pub(crate) fn divided(&self, batch_size: usize, accumulation: usize, recomputed: &[usize]) -> Self {
        let mut plan = self.clone();
        let Settings { runner, recompute, context, .. } = &mut plan.settings;
        (runner.batch_size, runner.gradient_accumulation_steps) = (batch_size, accumulation);
        (recompute.layers, recompute.operators) = (recomputed.to_vec(), Operators::default());
        context.max_device_memory = None;
        plan.model.recomputed = recompute.recomputed();
        plan
    }

    /// The plan of the same run with its frozen base stored as `base`; `None` unless the run has adapters on a base
    /// that is not quantised.
    pub(crate) fn quantised(&self, base: BaseType) -> Option<Self> {
        let mut plan = self.clone();
        let (pet, low_rank) = (plan.settings.model.pet_config.as_mut()?, plan.model.low_rank.as_mut()?);
        if pet.base_dtype.replace(base).is_some() {
            return None;
        }
        low_rank.base = Some(base.element());
        Some(plan)
    }

    /// Number of parameter groups with a schedule of their own.
    pub(crate) fn groups(&self) -> usize {
        let has_own_rate = self.settings.model.pet_config.as_ref().is_some_and(Pet::has_own_rate_of_b);
        self.settings.groups.len() + usize::from(has_own_rate)
    }

    /// The weight decay of a parameter group's matrices.
    pub fn weight_decay(&self, group: usize) -> f64 {
        let groups = &self.settings.groups;
        let own = group.checked_sub(1).and_then(|number| groups.get(number)?.keys.weight_decay);
        own.unwrap_or(self.settings.optimizer.weight_decay)
    }

    /// Bytes of the tensors in a checkpoint of all ranks together: the weights, and the moments of those that train.
    /// The weights of a base under adapters are left out if the run names the base.
    pub fn checkpoint_bytes(&self) -> u64 {
        // Patterns that do not fit were refused when the plan was made.
        let specs = self.grouping().apply(Gpt::describe(&self.model)).unwrap_or_default();
        let is_named = self.model.low_rank.is_some() && self.settings.run.weights().is_some();
        let is_saved = |spec: &&Spec| spec.trains || !is_named;
        let bytes = |spec: &Spec| {
            let moments = if spec.trains { self.settings.optimizer.moments(spec.rule) as u64 } else { 0 };
            let stored = self.settings.optimizer.stored(!spec.trains, spec.compute);
            let count = spec.count() as u64;
            stored.bytes_of(count) + count * moments * Element::F32.bytes()
        };
        specs.iter().filter(is_saved).map(bytes).sum()
    }

    /// Whether f16 is to be converted by the adapter's own instructions, if it can.
    pub fn tries_native_f16(&self) -> bool {
        self.settings.context.native_f16 && self.stores_f16()
    }

    /// Whether products of f32 are split, for matrices to multiply them.
    pub fn splits_f32(&self) -> bool {
        self.settings.context.f32_products == F32Products::Split
    }

    /// Whether the run has products for matrices.
    pub fn tries_matrices(&self) -> bool {
        self.stores_16_bits() || self.splits_f32()
    }

    /// Whether activations and the weights that layers read have 16 bits, as matrices multiply them.
    pub fn stores_16_bits(&self) -> bool {
        self.model.compute != Element::F32
    }

    /// Whether activations and the weights that layers read are f16.
    pub fn stores_f16(&self) -> bool {
        self.model.compute == Element::F16
    }

    /// Micro-batches of a step on all ranks together; a single rank would accumulate as many.
    pub fn micro_batches_per_step(&self) -> usize {
        self.settings.runner.gradient_accumulation_steps * self.layout.data
    }

    /// Samples of a step on all ranks together.
    pub fn samples_per_step(&self) -> usize {
        self.settings.runner.batch_size * self.micro_batches_per_step()
    }

    /// Each rank's share of the samples of a step, even if several ranks compute one sample together. Speeds are given
    /// for this share.
    pub fn samples_per_rank(&self) -> f64 {
        self.samples_per_step() as f64 / self.layout.world() as f64
    }

    /// How the data are split into batches.
    pub fn batch_spec(&self) -> BatchSpec {
        BatchSpec {
            seq_length: self.model.seq_length,
            batch_size: self.settings.runner.batch_size,
            micro_batches: self.micro_batches_per_step(),
            vocab_size: self.model.vocab_size,
            ignore_id: self.model.ignore_id,
            sorts_positions: self.model.learns_positions(),
            ahead: self.model.multi_token.map_or(0, |multi_token| multi_token.depth),
            rank: self.layout.data_rank(),
            world: self.layout.data,
        }
    }

    /// Whether attention must keep documents apart, in training or in evaluation.
    pub fn isolates_documents(&self) -> bool {
        let datasets = [Some(&self.settings.train_dataset), self.settings.eval_dataset.as_ref()];
        datasets.into_iter().flatten().any(Dataset::isolates_documents)
    }

    /// Which arrays of a micro-batch the data need.
    pub(crate) fn data_arrays(&self) -> DataArrays {
        let preference = self.settings.preference.as_ref();
        DataArrays {
            isolates_documents: self.isolates_documents(),
            has_pairs: preference.is_some(),
            has_references: preference.is_some_and(Preference::precomputes),
        }
    }

    /// Loads the training data of the run, and the part of the evaluation data that an evaluation takes.
    ///
    /// # Errors
    /// If a file is missing or broken, there is too little data for one step, or a token is outside the vocabulary.
    pub fn load_data(&self) -> Result<data::LoadedData> {
        let Settings { run, train_dataset: train, eval_dataset: eval, .. } = &self.settings;
        let (spec, codec) = (self.batch_spec(), self.codec()?);
        let learned = train.load(&codec, &spec, run.seed)?;
        let shuffle = train.loader.shuffle.then_some(train.keys.seed.unwrap_or(run.seed));
        let batches = learned.batches(&spec, shuffle)?;
        let evaluated = eval.as_ref().map(|eval| {
            let tokenizer = eval.keys.tokenizer.as_ref().or(train.keys.tokenizer.as_ref());
            eval.load(&eval.codec(tokenizer, spec.vocab_size)?, &spec, 0)
        });
        let mut data = data::LoadedData::new(codec, &learned, batches, evaluated.transpose()?.as_ref())?;
        data.eval = data.eval.map(|eval| eval.first(run.eval_batches));
        Ok(data)
    }

    /// The form of the conversations that the run learns from, if it learns from conversations.
    pub fn conversations(&self) -> Option<ChatForm> {
        self.settings.train_dataset.conversations()
    }

    /// Whether it is known what the run's tokens mean: text was encoded, a tokenizer is named, or tokens can only be
    /// bytes.
    pub(crate) fn has_text(&self) -> bool {
        let train = &self.settings.train_dataset;
        train.has_text() || train.keys.tokenizer.is_some() || self.model.vocab_size <= 256
    }

    /// How the text of the run becomes tokens, and tokens become text.
    ///
    /// # Errors
    /// If the tokenizer cannot be read, or has more tokens than the model.
    pub fn codec(&self) -> Result<Codec> {
        let train = &self.settings.train_dataset;
        train.codec(train.keys.tokenizer.as_ref(), self.model.vocab_size)
    }

    /// The settings as a configuration file: reading it gives the same plan.
    pub fn to_yaml(&self) -> String {
        self.settings.to_yaml()
    }

    /// The values that decide the numbers of a run, by the path of each key, except those that follow from the data.
    /// They do not depend on the number of ranks: the micro-batches of a step are counted on all ranks together.
    pub fn decisions(&self) -> BTreeMap<String, Value> {
        let mut decisions = self.settings.decisions();
        let slides = self.model.layer_kinds().any(|(layer, _)| layer.sliding_window.is_some());
        if !slides && self.settings.model.sliding_theta.is_none() {
            WINDOWS.iter().for_each(|key| drop(decisions.remove(*key))); // they decide nothing that a run computes
        }
        decisions.insert(ACCUMULATION.to_string(), self.micro_batches_per_step().into());
        if let Some(step) = self.hot_step() {
            decisions.insert(HOT_STEP.to_string(), step.into());
        }
        decisions
    }

    fn hot_step(&self) -> Option<u64> {
        let moe = self.settings.moe.as_ref()?;
        self.settings.callbacks.hot_step().filter(|_| moe.enable_cold_hot_expert)
    }
}

/// The adapters that `pet` describes; patterns that do not fit the model are a fault.
fn low_rank(pet: &Pet, model: &ModelConfig, source: &Source) -> Option<LowRank> {
    let low_rank = pet.low_rank(model);
    low_rank.map_err(|(path, message)| source.fault(&path, message)).ok()
}
