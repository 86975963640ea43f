//! What a checkpoint holds of a run: weights under Hugging Face names, moments, state.
//!
//! ```text
//! step_0000100/
//!     model.safetensors        weights, unpadded, one tensor for each of Hugging Face's, in the type they are trained in
//!     config.json              the model's shape under Hugging Face's keys
//!     adapter/                 low-rank adapters as PEFT has them, if the run trains some: see `adapter`
//!     optimizer.safetensors    exp_avg.NAME and exp_avg_sq.NAME for each weight that has such moments
//!                              (a matrix under Muon has one: its momentum, as exp_avg)
//!     trainer_state.json       counters, seed, schedule: see `trainer_state`
//! ```
//!
//! Where only adapters train, `model.safetensors` is the same file in all checkpoints of a run, by hard links where the file
//! system has them: each checkpoint is whole, and the model takes room once.
//!
//! The tensors themselves are on the device: `read` hands over the rows of one, unpadded, and `write` replaces its
//! content.

use super::OUTPUT_DIR;
use super::adapter;
use super::arena_tensors::{self, ArenaTensor, Homes, TakeRow};
use super::checkpoint_folder::PendingCheckpoint;
use super::hugging_face::hugging_face_config;
use super::router_tensors::{self, RouterTensor};
use super::tensor_file::{TensorFile, TensorInfo};
use super::trainer_state::TrainerState;
use super::weight_files::{MODEL, WeightFiles};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::model::ExpertState;
use crate::model::arena::{Arena, ArenaLayout};
use crate::model::config::{LowRank, ModelConfig};
use crate::record::Tensor;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::path::Path;

const OPTIMIZER: &str = "optimizer.safetensors";
const CONFIG: &str = "config.json";
const STATE: &str = "trainer_state.json";

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
    /// Biases and capacities, for a mixture of experts.
    pub experts: Option<&'a ExpertState>,
    /// The adapters among the parameters, if there are any.
    pub low_rank: Option<&'a LowRank>,
}

/// Writes all files of the checkpoint `pending`.
///
/// # Errors
/// A disk or device that fails.
pub(crate) async fn save(
    tensors: TrainingTensors<'_>,
    model: &ModelConfig,
    state: &TrainerState,
    pending: &PendingCheckpoint,
    read: impl AsyncFn(Tensor, TakeRow<'_>) -> Result<()>,
) -> Result<()> {
    let (WeightTensors { layout, arena, experts, low_rank }, folder) = (tensors.weights, pending.path());
    let (adapters, weights): (Vec<_>, Vec<_>) =
        ArenaTensor::list(layout, arena, "").into_iter().partition(ArenaTensor::is_adapter);
    let biases = router_tensors::biases(experts);
    let never_changes = biases.is_empty() && weights.iter().all(ArenaTensor::is_frozen);
    if !never_changes || !pending.link(MODEL)? {
        save_file(&folder.join(MODEL), &weights, &biases, &read).await?;
    }
    if let Some(low_rank) = low_rank {
        let folder = folder.join(adapter::FOLDER);
        OUTPUT_DIR.create_folder(&folder)?;
        save_file(&folder.join(adapter::WEIGHTS), &adapters, &[], &read).await?;
        adapter::write_config(&folder, low_rank, layout)?;
    }
    let mut moments = ArenaTensor::list(layout, tensors.first_moments, "exp_avg.");
    moments.extend(ArenaTensor::list(layout, tensors.second_moments, "exp_avg_sq."));
    save_file(&folder.join(OPTIMIZER), &moments, &router_tensors::capacities(experts), &read).await?;
    let mut config = hugging_face_config(model);
    if weights.iter().all(ArenaTensor::is_as_read) {
        config["torch_dtype"] = torch_dtype(model.compute).into();
    }
    let config = serde_json::to_vec_pretty(&config).map_err(|e| Error::file(folder, e))?;
    OUTPUT_DIR.write(&folder.join(CONFIG), &config)?;
    state.save(&folder.join(STATE))
}

/// What torch calls a storage type.
fn torch_dtype(element: Element) -> &'static str {
    match element {
        Element::Bf16 => "bfloat16",
        Element::F16 => "float16",
        Element::F32 | Element::U32 => "float32",
    }
}

/// Reads weights and moments back and returns the state saved with them, which must match `expected`, that of the run;
/// `default` knows the settings that are not written.
///
/// # Errors
/// A file that is missing or damaged; a state or a tensor that is not the run's.
pub(crate) fn load(
    tensors: TrainingTensors<'_>,
    folder: &Path,
    expected: &TrainerState,
    default: impl Fn(&str) -> Option<Value>,
    write: impl Fn(Tensor, &[u8]),
) -> Result<TrainerState> {
    let state = TrainerState::load(&folder.join(STATE))?;
    state.check_matches(folder, expected, default)?;
    load_whole_weights(tensors.weights, folder, &write)?;
    let WeightTensors { layout, experts, .. } = tensors.weights;
    let (model, optimizer) =
        (WeightFiles::open(&folder.join(MODEL))?, WeightFiles::open(&folder.join(OPTIMIZER))?);
    router_tensors::load(&router_tensors::biases(experts), &model, true, &write)?;
    router_tensors::load(&router_tensors::capacities(experts), &optimizer, true, &write)?;
    let homes = Homes { model: Some(&optimizer), adapters: Some(&optimizer) };
    arena_tensors::load(layout, tensors.first_moments, homes, "exp_avg.", &write)?;
    arena_tensors::load(layout, tensors.second_moments, homes, "exp_avg_sq.", &write)?;
    Ok(state)
}

/// Reads weights alone, and the biases of routers if they are there: `path` is a safetensors file, the index of several,
/// or a folder with either. Adapters are read from beside the weights, if there are some.
///
/// # Errors
/// A file that is missing or damaged; a tensor that is missing or of another shape.
pub(crate) fn load_weights(
    weights: WeightTensors<'_>,
    path: &Path,
    write: impl Fn(Tensor, &[u8]),
) -> Result<()> {
    let WeightTensors { layout, arena, experts, low_rank } = weights;
    check_order(layout, &path.join(STATE))?;
    let file = WeightFiles::open(path)?;
    let beside = adapter::beside(path);
    let adapters = match (low_rank, &beside) {
        (Some(low_rank), Some(beside)) => Some(adapter::open(beside, low_rank)?),
        (None, Some(beside)) => {
            let path = beside.display();
            tracing::warn!(
                "{path}: this adapter of the weights is not used; merge it first, or describe it in pet_config"
            );
            None
        }
        (_, None) => None,
    };
    arena_tensors::load(
        layout,
        arena,
        Homes { model: Some(&file), adapters: adapters.as_ref() },
        "",
        &write,
    )?;
    let biases = router_tensors::biases(experts);
    router_tensors::load(&biases, &file, false, write)?;
    let biases = biases.into_iter().map(|bias| bias.info.name);
    warn_of_unknown(&file, &names(weights, false).chain(biases).collect());
    adapters.iter().for_each(|file| warn_of_unknown(file, &names(weights, true).collect()));
    Ok(())
}

/// [`load_weights`] of a checkpoint, which must have the adapters of the run.
///
/// # Errors
/// Those of [`load_weights`]; a checkpoint without adapters.
pub(crate) fn load_whole_weights(
    weights: WeightTensors<'_>,
    checkpoint: &Path,
    write: impl Fn(Tensor, &[u8]),
) -> Result<()> {
    if weights.low_rank.is_some() {
        adapter::required(checkpoint)?;
    }
    load_weights(weights, checkpoint, write)
}

/// Reads adapters alone: `path` is PEFT's file, its folder, or a checkpoint that has one.
///
/// # Errors
/// A file that is missing or damaged; adapters of another rank or factor; a tensor that is missing or of another shape.
pub(crate) fn load_adapters(
    weights: WeightTensors<'_>,
    path: &Path,
    write: impl Fn(Tensor, &[u8]),
) -> Result<()> {
    let Some(low_rank) = weights.low_rank else { return Ok(()) };
    let file = adapter::open(&adapter::required(path)?, low_rank)?;
    let homes = Homes { model: None, adapters: Some(&file) };
    arena_tensors::load(weights.layout, weights.arena, homes, "", write)?;
    warn_of_unknown(&file, &names(weights, true).collect());
    Ok(())
}

/// The names of the model's tensors, or of those of its adapters.
fn names(weights: WeightTensors<'_>, of_adapters: bool) -> impl Iterator<Item = String> {
    let list = ArenaTensor::list(weights.layout, weights.arena, "").into_iter();
    list.filter(move |tensor| tensor.is_adapter() == of_adapters).map(|tensor| tensor.name)
}

/// Refuses the weights beside `state` if they are older than the order in which files hold interleaved heads.
fn check_order(layout: &ArenaLayout, state: &Path) -> Result<()> {
    let pieces = || layout.parameters.iter().flat_map(|(spec, _)| &spec.pieces);
    if !state.is_file() || pieces().all(|piece| piece.heads.is_none()) {
        return Ok(());
    }
    match TrainerState::format_of(state)? {
        format if format < 3 => Err(Error::file(
            state,
            format!(
                "is of format {format}, whose weights have interleaved rotary dimensions in another order: continue \
                 with the version that wrote it"
            ),
        )),
        _ => Ok(()),
    }
}

/// Warns of tensors in the file that the model does not have.
fn warn_of_unknown(file: &WeightFiles, known: &HashSet<String>) {
    let unknown = file.unknown(known);
    if let Some(first) = unknown.first() {
        let (path, count) = (file.path().display(), unknown.len());
        tracing::warn!(
            "{path}: {count} of its tensors are not in this model and are ignored, `{first}` among them"
        );
    }
}

async fn save_file(
    path: &Path,
    tensors: &[ArenaTensor<'_>],
    router_state: &[RouterTensor],
    read: &impl AsyncFn(Tensor, TakeRow<'_>) -> Result<()>,
) -> Result<()> {
    let mut infos: Vec<TensorInfo> = tensors.iter().map(ArenaTensor::info).collect();
    infos.extend(router_state.iter().map(|row| row.info.clone()));
    // transformers refuses files without this entry.
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    TensorFile::write(path, &infos, metadata, async |index, sink| match tensors.get(index) {
        Some(tensor) => tensor.read(read, &mut |row: &[u8]| sink.put(row)).await,
        None => {
            let row = router_state[index - tensors.len()].tensor;
            read(row, &mut |bytes: &[u8]| sink.put(bytes)).await
        }
    })
    .await
}
