//! What a checkpoint holds of a run: weights under Hugging Face names, moments, state.
//!
//! ```text
//! step_0000100/
//!     model.safetensors        weights, unpadded, one tensor for each of Hugging Face's, in the type they are trained in;
//!                              not where they are the base of adapters and came from files: see `base`
//!     config.json              the model's shape under Hugging Face's keys
//!     tokenizer.json, ...      what `model_assets` lists
//!     adapter/                 low-rank adapters as PEFT has them, if the run trains some: see `lora`
//!     optimizer.safetensors    exp_avg.NAME and exp_avg_sq.NAME for each weight that has such moments
//!                              (a matrix under Muon has one: its momentum, as exp_avg)
//!     trainer_state.json       counters, seed, schedule: see `trainer_state`
//! ```
//!
//! Several ranks write the same tensors, each rank into its own file: `model-00001-of-00004.safetensors` and so on with
//! `model.safetensors.index.json`, in the format of `transformers`, and likewise `optimizer-...`. Any number of ranks
//! can read either form.
//!
//! If the checkpoint only names the model, the parameters that train beside adapters are in the adapters' file (see
//! `peft_modules`). Where only adapters train on a model of random weights, `model.safetensors` is the same file in all
//! checkpoints of a run, by hard links where the file system has them: each checkpoint is complete, and the model takes
//! disk space only once. A model that came from files is named by `adapter/base.json`, and never read back from the
//! device.
//!
//! The tensors themselves are on the device: `read` hands over the rows of a tensor, unpadded, and `write` replaces the
//! content of a tensor.

use super::OUTPUT_DIR;
use super::arena_tensors::{self, ArenaTensor, Homes, ReadRows, dtype_of};
use super::base::Base;
use super::checkpoint_folder::Draft;
use super::expected_tensors;
use super::lora::{self, Adapter, ComputedTensors};
use super::model_path::{chosen, resolve};
use super::peft_modules;
use super::router_tensors;
use super::tensor_set::TensorSet;
use super::trainer_state::TrainerState;
use super::weight_faults::OTHER_MODEL;
use super::weight_files::{EMBEDDINGS, HEAD, STEM, WeightFiles, name_of};
use super::weight_index::files_of;
use super::wrapped;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::hugging_face::export::hugging_face_config;
use crate::model::ExpertState;
use crate::model::arena::{Arena, ArenaLayout};
use crate::model::config::{LowRank, ModelConfig};
use crate::model::parameters::{Role, Spec};
use crate::ranks::Ranks;
use crate::record::Tensor;
use serde_json::Value;
use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

const OPTIMIZER: &str = "optimizer";
const CONFIG: &str = "config.json";
pub(crate) const STATE: &str = "trainer_state.json";

/// The tensors of a model in training.
#[derive(Clone, Copy)]
pub(crate) struct TrainingTensors<'a> {
    pub weights: WeightTensors<'a>,
    pub first_moments: &'a Arena,
    pub second_moments: &'a Arena,
}

/// The tensors of a model, and where in their arena each parameter lies.
#[derive(Clone, Copy)]
pub(crate) struct WeightTensors<'a> {
    pub layout: &'a ArenaLayout,
    pub arena: &'a Arena,
    /// The parameters of the whole model, of which this rank may have only a part.
    pub whole: &'a [Spec],
    /// Biases and capacities, for a mixture of experts.
    pub experts: Option<&'a ExpertState>,
    /// The adapters among the parameters, if there are any.
    pub low_rank: Option<&'a LowRank>,
}

/// Writes this rank's files of the checkpoint `draft`, together with all other `ranks`; `by_rank` has the tensors of
/// each rank. If it fails on this rank, it still succeeds on the others, and the caller has to tell them of the
/// failure.
///
/// # Errors
/// A disk or device that fails; a rank that has ended.
pub(crate) async fn save(
    by_rank: &[TrainingTensors<'_>],
    model: &ModelConfig,
    state: &TrainerState,
    draft: &Draft,
    ranks: &Ranks,
    read: &impl ReadRows,
) -> Result<()> {
    let base = draft.base().filter(|_| by_rank[ranks.rank()].weights.low_rank.is_some());
    let saving = Saving { by_rank, draft, base, ranks };
    // A failure is kept until the other ranks have what they need from this rank.
    let mut done = saving.model(read).await;
    done = done.and(saving.adapters(read).await);
    done.and(saving.optimizer(read).await)?;
    if ranks.is_first() {
        saving.config(model)?;
        state.save(&draft.path().join(STATE))?;
    }
    Ok(())
}

/// A checkpoint that all ranks write.
struct Saving<'a> {
    by_rank: &'a [TrainingTensors<'a>],
    draft: &'a Draft,
    /// The model under adapters, which the checkpoint names instead of holding it.
    base: Option<&'a Base>,
    ranks: &'a Ranks,
}

impl<'a> Saving<'a> {
    /// The tensors of this rank.
    fn own(&self) -> WeightTensors<'a> {
        self.by_rank[self.ranks.rank()].weights
    }

    /// The tensors of `weights` that go into the adapters' file if `in_adapter`, otherwise those that go into the
    /// model's files.
    fn part(&self, weights: &WeightTensors<'a>, in_adapter: bool) -> Vec<ArenaTensor<'a>> {
        let is_in_adapter =
            |tensor: &ArenaTensor<'_>| tensor.is_adapter() || (self.base.is_some() && !tensor.is_frozen());
        weights.list().filter(|tensor| is_in_adapter(tensor) == in_adapter).collect()
    }

    /// The [`part`](Self::part) of each rank.
    fn parts(&self, in_adapter: bool) -> Vec<Vec<ArenaTensor<'a>>> {
        self.by_rank.iter().map(|tensors| self.part(&tensors.weights, in_adapter)).collect()
    }

    /// Writes the files of the model, unless the checkpoint names a base instead, or the newest checkpoint has the same
    /// files and they can be linked.
    async fn model(&self, read: &impl ReadRows) -> Result<()> {
        if self.base.is_some() {
            return Ok(());
        }
        let (ranks, biases) = (self.ranks, router_tensors::biases(self.own().experts));
        let models = self.parts(false);
        let never_changes = biases.is_empty() && models[ranks.rank()].iter().all(ArenaTensor::is_frozen);
        let link = || self.draft.link(|newest| files_of(newest, STEM));
        if never_changes && ranks.by_first(link).await? {
            return Ok(());
        }
        let (folder, writers) = (self.draft.path(), ranks.size());
        let set = TensorSet { folder, stem: STEM, by_rank: &models, router_state: &biases, writers };
        set.save(ranks, read).await
    }

    /// Writes the folder of the adapters, if there are any. Where the checkpoint only names their base, the folder also
    /// has the parameters that train beside them.
    async fn adapters(&self, read: &impl ReadRows) -> Result<()> {
        let WeightTensors { whole, experts, low_rank: Some(low_rank), .. } = self.own() else {
            return Ok(());
        };
        let has_head = whole.iter().any(|spec| spec.role == Role::Head);
        let repeats_head = low_rank.ensures_tying && !has_head;
        let in_adapter = |list: Vec<ArenaTensor<'a>>| -> Vec<_> {
            // PEFT reads the head that an embedding is, too, by itself.
            let is_head = |tensor: &ArenaTensor<'a>| repeats_head && tensor.is_embedding();
            let head = |tensor: &ArenaTensor<'a>| is_head(tensor).then(|| tensor.named(HEAD));
            let with_head = list.into_iter().flat_map(|tensor| [head(&tensor), Some(tensor)]).flatten();
            with_head.map(|tensor| tensor.in_adapter(low_rank)).collect()
        };
        let adapters: Vec<Vec<_>> = self.parts(true).into_iter().map(in_adapter).collect();
        let biases = router_tensors::biases(experts);
        let moves_biases = self.base.is_some() && moves_biases(experts);
        let modules_to_save = match self.base {
            None => BTreeSet::new(),
            Some(_) => peft_modules::modules_to_save(low_rank, whole, &biases, moves_biases),
        };
        let biases = if moves_biases { peft_modules::router_state(low_rank, biases) } else { Vec::new() };
        let folder = &self.draft.path().join(lora::FOLDER);
        self.ranks.by_first(|| OUTPUT_DIR.create_folder(folder)).await?;
        let set =
            TensorSet { folder, stem: lora::STEM, by_rank: &adapters, router_state: &biases, writers: 1 };
        set.save(self.ranks, read).await?;
        if self.ranks.is_first() {
            lora::write_config(folder, low_rank, whole, self.base.map(Base::path), &modules_to_save)?;
            self.base.map_or(Ok(()), |base| base.write(folder))?;
        }
        Ok(())
    }

    /// Writes the moments and the capacities of experts.
    async fn optimizer(&self, read: &impl ReadRows) -> Result<()> {
        let moments: Vec<_> = self.by_rank.iter().map(TrainingTensors::moments).collect();
        let capacities = router_tensors::capacities(self.own().experts);
        let (folder, writers) = (self.draft.path(), self.ranks.size());
        let set =
            TensorSet { folder, stem: OPTIMIZER, by_rank: &moments, router_state: &capacities, writers };
        set.save(self.ranks, read).await
    }

    /// Writes the `config.json` of `model`.
    fn config(&self, model: &ModelConfig) -> Result<()> {
        let mut config = hugging_face_config(model);
        if self.part(&self.own(), false).iter().all(ArenaTensor::is_as_read) {
            config["torch_dtype"] = torch_dtype(model.compute).into();
        }
        let folder = self.draft.path();
        let config = serde_json::to_vec_pretty(&config).map_err(|error| Error::file(folder, error))?;
        OUTPUT_DIR.write(&folder.join(CONFIG), &config)
    }
}

/// Whether training moves the biases of routers.
fn moves_biases(experts: Option<&ExpertState>) -> bool {
    experts.is_some_and(|experts| experts.bias_update_rate().is_some())
}

impl<'a> WeightTensors<'a> {
    fn list(&self) -> impl Iterator<Item = ArenaTensor<'a>> + use<'a> {
        ArenaTensor::list(self.layout, self.arena, "").into_iter()
    }
}

impl<'a> TrainingTensors<'a> {
    fn moments(&self) -> Vec<ArenaTensor<'a>> {
        let mut moments = ArenaTensor::list(self.weights.layout, self.first_moments, "exp_avg.");
        moments.extend(ArenaTensor::list(self.weights.layout, self.second_moments, "exp_avg_sq."));
        moments
    }
}

/// torch's name of a storage type.
pub(crate) fn torch_dtype(element: Element) -> &'static str {
    name_of(dtype_of(element))
}

/// Reads weights and moments back. Returns the state saved with them, which must match `expected`, the state of the
/// run, and the base of the adapters if the checkpoint names one. That base may be at `moved`. `default` returns the
/// values of settings that are not written.
///
/// # Errors
/// A file that is missing or damaged; a state or a tensor that is not the run's.
pub(crate) fn load(
    tensors: TrainingTensors<'_>,
    folder: &Path,
    expected: &TrainerState,
    moved: Option<&Path>,
    default: impl Fn(&str) -> Option<Value>,
    write: impl Fn(Tensor, &[u8]),
) -> Result<(TrainerState, Option<Base>)> {
    let state = TrainerState::load(&folder.join(STATE))?;
    state.check_matches(folder, expected, default)?;
    let base = load_whole_weights(tensors.weights, folder, None, moved, &write)?;
    let WeightTensors { layout, experts, low_rank, .. } = tensors.weights;
    let (biases, optimizer) = (router_tensors::biases(experts), WeightFiles::open_stem(folder, OPTIMIZER)?);
    match (low_rank, &base) {
        (Some(low_rank), Some(_)) if moves_biases(experts) => {
            let adapter = WeightFiles::open(&lora::required(folder)?)?;
            router_tensors::load(&peft_modules::router_state(low_rank, biases), &adapter, true, &write)?;
        }
        (_, Some(_)) => {} // as they are in the base
        (_, None) => router_tensors::load(&biases, &WeightFiles::open(folder)?, true, &write)?,
    }
    router_tensors::load(&router_tensors::capacities(experts), &optimizer, true, &write)?;
    let homes = Homes { model: Some(&optimizer), adapters: Some(&optimizer), computed: None, head: None };
    arena_tensors::load(layout, tensors.first_moments, homes, "exp_avg.", &write)?;
    arena_tensors::load(layout, tensors.second_moments, homes, "exp_avg_sq.", &write)?;
    Ok((state, base))
}

/// Reads weights alone, and the biases of routers if the files have them. `path` is a safetensors file, the index of
/// several, a folder with either, or a checkpoint that names its base. Returns what was read, and whether adapters that
/// lie beside the weights were read too. Tensors that the model has no place for are left out if `is_partial`.
///
/// # Errors
/// A file that is missing or damaged; a tensor that is missing, of another shape, or without a place.
pub(crate) fn load_weights(
    weights: WeightTensors<'_>,
    path: &Path,
    is_partial: bool,
    write: impl Fn(Tensor, &[u8]),
) -> Result<(String, bool)> {
    let (model, _) = resolve(path, None)?;
    let beside = lora::beside(&chosen(path)?);
    if let Some((adapter, low_rank)) = beside.as_ref().zip(weights.low_rank) {
        check_trained(weights, &Adapter::open(adapter)?, low_rank)?;
    }
    let has_adapters = beside.is_some();
    Ok((load_resolved(weights, &model, beside, is_partial, write)?, has_adapters))
}

/// Checks that an adapter can go on training, with all tensors that it has beside its factors.
fn check_trained(weights: WeightTensors<'_>, adapter: &Adapter, low_rank: &LowRank) -> Result<()> {
    if let Some(config) = &adapter.config {
        config.check(&adapter.weights, &adapter.keys().collect::<Vec<_>>(), low_rank)?;
        check_experts(adapter, low_rank)?;
    }
    let biases =
        router_tensors::biases(weights.experts.filter(|experts| experts.bias_update_rate().is_some()));
    let mut untrained = peft_modules::untrained(&adapter.files, weights.whole, &biases);
    match untrained.find(|name| !adapter.repeats_head(name)) {
        None => Ok(()),
        Some(name) => Err(Error::file(
            &adapter.weights,
            format!(
                "holds `{name}`, which this run does not train and would not save: release it by `freeze_exclude` of \
                 pet_config, or merge the adapter first"
            ),
        )),
    }
}

/// Checks that an adapter and a run adapt the same parameters of experts: their tensors may have the same names where
/// one adapts fewer of a layer.
fn check_experts(adapter: &Adapter, low_rank: &LowRank) -> Result<()> {
    let theirs: BTreeSet<String> = adapter.parameters().map(wrapped::alone).collect();
    let differ = |one: &BTreeSet<String>, other: &BTreeSet<String>| one.difference(other).next().cloned();
    let message = match (differ(&theirs, &low_rank.parameters), differ(&low_rank.parameters, &theirs)) {
        (Some(more), _) => format!("adapts `{more}`, and this run does not"),
        (_, Some(fewer)) => format!("does not adapt `{fewer}`, and this run does"),
        (None, None) => return Ok(()),
    };
    Err(Error::file(&adapter.weights, format!("{message}; change target_parameters of pet_config")))
}

/// Does [`load_weights`] for the model at `path`, with the adapter in the file `beside`, if there is one.
fn load_resolved(
    weights: WeightTensors<'_>,
    path: &Path,
    beside: Option<PathBuf>,
    is_partial: bool,
    write: impl Fn(Tensor, &[u8]),
) -> Result<String> {
    let WeightTensors { layout, arena, experts, low_rank, .. } = weights;
    let file = WeightFiles::open(path)?;
    let adapters = match (low_rank, &beside) {
        (Some(low_rank), Some(beside)) => Some(Adapted::open(beside, &file, weights.whole, low_rank)?),
        (None, Some(beside)) => {
            let path = beside.display();
            tracing::warn!(
                "{path}: this adapter of the weights is not used; merge it first, or describe it in pet_config"
            );
            None
        }
        (_, None) => None,
    };
    // A head that the base ties to its embedding becomes a copy of it once either of them trains by itself.
    let has_own_head = adapters.is_some() || low_rank.is_some_and(|low_rank| low_rank.is_untied);
    let head = EMBEDDINGS.into_iter().find(|name| file.holds(name));
    let homes = Homes {
        model: Some(&file),
        adapters: adapters.as_ref().map(|adapted| &adapted.adapter.files),
        computed: adapters.as_ref().map(|adapted| &adapted.computed),
        head: head.filter(|_| has_own_head && !file.holds(HEAD)),
    };
    arena_tensors::check(layout, arena, homes, "")?;
    if let Some(Adapted { adapter, .. }) = &adapters {
        check_places(weights, adapter)?;
    }
    let biases = router_tensors::biases(experts);
    let known = names(weights, false).chain(biases.iter().map(|bias| bias.info.name.clone())).collect();
    let embedding = weights.whole.iter().find(|spec| spec.role == Role::Embedding);
    let embedding = embedding.and_then(|spec| Some(spec.pieces.first()?.name.as_str()));
    expected_tensors::check(&file, &known, embedding, path, is_partial)?;
    arena_tensors::load(layout, arena, homes, "", &write)?;
    router_tensors::load(&biases, &file, false, &write)?;
    if let Some((low_rank, Adapted { adapter, .. })) = low_rank.zip(adapters.as_ref()) {
        router_tensors::load(&peft_modules::router_state(low_rank, biases), &adapter.files, false, &write)?;
    }
    Ok(file.contents(names(weights, false)))
}

/// Does [`load_weights`] for a checkpoint, which must have the adapters of the run. If it names a base, that base may
/// be at `moved`, and is returned. If `adapter` is given, the adapters are read from there instead.
///
/// # Errors
/// Those of [`load_weights`]; a checkpoint without adapters.
pub(crate) fn load_whole_weights(
    weights: WeightTensors<'_>,
    checkpoint: &Path,
    adapter: Option<&Path>,
    moved: Option<&Path>,
    write: impl Fn(Tensor, &[u8]),
) -> Result<Option<Base>> {
    if weights.low_rank.is_some() {
        lora::required(adapter.unwrap_or(checkpoint))?;
    }
    let (model, base) = resolve(checkpoint, moved)?;
    if let Some(expected) = adapter.map(Base::beside).transpose()?.flatten() {
        expected.check_unless(&model, base.as_ref())?;
    }
    let adapter = adapter.map(Path::to_path_buf).or_else(|| lora::beside(checkpoint));
    load_resolved(weights, &model, adapter, false, write)?;
    Ok(base)
}

/// Reads adapters alone: `path` is PEFT's file, its folder, or a checkpoint that has adapters.
///
/// # Errors
/// A file that is missing or damaged; adapters of another rank or factor; a tensor that is missing or of another shape.
pub(crate) fn load_lora(
    weights: WeightTensors<'_>,
    path: &Path,
    write: impl Fn(Tensor, &[u8]),
) -> Result<()> {
    let Some(low_rank) = weights.low_rank else { return Ok(()) };
    let adapter = Adapter::open(&lora::required(&chosen(path)?)?)?;
    check_trained(weights, &adapter, low_rank)?;
    let file = &adapter.files;
    let homes = Homes { model: None, adapters: Some(file), computed: None, head: None };
    arena_tensors::check(weights.layout, weights.arena, homes, "")?;
    check_places(weights, &adapter)?;
    arena_tensors::load(weights.layout, weights.arena, homes, "", &write)?;
    let biases = router_tensors::biases(weights.experts);
    router_tensors::load(&peft_modules::router_state(low_rank, biases), file, false, &write)
}

/// An adapter of a model, and the tensors that are computed from both.
struct Adapted {
    adapter: Adapter,
    computed: ComputedTensors,
}

impl Adapted {
    fn open(weights: &Path, base: &WeightFiles, whole: &[Spec], low_rank: &LowRank) -> Result<Self> {
        let adapter = Adapter::open(weights)?;
        let computed = ComputedTensors::of(&adapter, base, whole, low_rank)?;
        Ok(Self { adapter, computed })
    }
}

/// Checks that each tensor of `adapter` has a place in the model: a tensor that nothing reads would silently change
/// what is computed.
///
/// # Errors
/// A tensor without a place.
fn check_places(weights: WeightTensors<'_>, adapter: &Adapter) -> Result<()> {
    let file = &adapter.files;
    let biases = router_tensors::biases(weights.experts).into_iter().map(|bias| bias.info.name);
    let kept = names(weights, false).chain(biases).filter_map(|name| peft_modules::find(file, &name));
    let known: HashSet<String> = names(weights, true).chain(kept).collect();
    let stored: HashSet<&str> = known.iter().filter_map(|name| file.stored(name)).collect();
    let names = file.names();
    let has_place = |name: &str| {
        let factor = name.replace(".lora_B.bias", ".lora_B.weight");
        stored.contains(factor.as_str()) || adapter.repeats_head(name)
    };
    match names.iter().find(|name| !has_place(name)) {
        None => adapter.check_saved(self::names(weights, false)),
        Some(name) => Err(Error::file(
            &adapter.weights,
            format!("holds `{name}`, which has no place in this model; {OTHER_MODEL}"),
        )),
    }
}

/// The names of the whole model's tensors: those of its adapters if `of_adapters`, otherwise all others.
fn names(weights: WeightTensors<'_>, of_adapters: bool) -> impl Iterator<Item = String> {
    let specs = weights.whole.iter().filter(move |spec| spec.role.is_factor() == of_adapters);
    specs.flat_map(|spec| &spec.pieces).map(|piece| piece.name.clone())
}
