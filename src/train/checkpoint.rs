//! What a checkpoint holds of a trainer: weights under Hugging Face names, moments, state.
//!
//! ```text
//! step_0000100/
//!     model.safetensors        weights, unpadded, one tensor for each of Hugging Face's
//!     config.json              the model's shape under Hugging Face's keys
//!     optimizer.safetensors    exp_avg.NAME and exp_avg_sq.NAME for each weight that has such moments
//!                              (a matrix under Muon has one: its momentum, as exp_avg)
//!     trainer_state.json       counters, seed, schedule: see `trainer_state`
//! ```

use super::checkpoint_folder::PendingCheckpoint;
use super::durable::write_atomically;
use super::expert_tensors::{self, Remembered};
use super::hugging_face::hugging_face_config;
use super::recordings::Recordings;
use super::tensor_file::{OTHER_MODEL, TensorFile, TensorInfo};
use super::trainer::Trainer;
use super::trainer_state::TrainerState;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::model::ExpertState;
use crate::model::arena::{Arena, ArenaLayout, Part};
use crate::model::config::ModelConfig;
use crate::model::parameters::{Piece, Spec};
use crate::record::Tensor;
use crate::settings::default_decision;
use safetensors::Dtype;
use std::collections::{HashMap, HashSet};
use std::path::Path;

const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const CONFIG: &str = "config.json";
const STATE: &str = "trainer_state.json";

/// Writes everything into `pending`; the caller commits it. Training waits.
///
/// # Errors
/// A disk or device that fails.
pub async fn save(
    trainer: &Trainer<'_>,
    model: &ModelConfig,
    state: &TrainerState,
    pending: &PendingCheckpoint,
) -> Result<()> {
    trainer.wait().await?;
    let folder = pending.path();
    let (arenas, experts) = (&trainer.recordings.arenas, trainer.recordings.experts.as_ref());
    let biases = expert_tensors::biases(experts);
    save_arenas(trainer, &[("", &arenas.weights)], &biases, &folder.join(MODEL)).await?;
    let moments = [("exp_avg.", &arenas.first_moments), ("exp_avg_sq.", &arenas.second_moments)];
    let capacities = expert_tensors::capacities(experts);
    save_arenas(trainer, &moments, &capacities, &folder.join(OPTIMIZER)).await?;
    let config =
        serde_json::to_vec_pretty(&hugging_face_config(model)).map_err(|e| Error::file(folder, e))?;
    write_atomically(&folder.join(CONFIG), &config)?;
    state.save(&folder.join(STATE))
}

/// Reads weights and moments back and returns the state they belong to, which must be that of the run (`expected`).
pub fn resume(trainer: &Trainer<'_>, folder: &Path, expected: &TrainerState) -> Result<TrainerState> {
    let state = TrainerState::load(&folder.join(STATE))?;
    state.check_matches(folder, expected, default_decision)?;
    load_weights(trainer, folder)?;
    let file = TensorFile::open(&folder.join(OPTIMIZER))?;
    let Recordings { layout, arenas, experts, .. } = &trainer.recordings;
    let write = |tensor, bytes: &[u8]| trainer.write(tensor, bytes);
    let weights = TensorFile::open(&folder.join(MODEL))?;
    expert_tensors::load(&expert_tensors::biases(experts.as_ref()), &weights, true, write)?;
    expert_tensors::load(&expert_tensors::capacities(experts.as_ref()), &file, true, write)?;
    load_arena(layout, &arenas.first_moments, &file, "exp_avg.", write)?;
    load_arena(layout, &arenas.second_moments, &file, "exp_avg_sq.", write)?;
    Ok(state)
}

/// Reads weights only: `path` is a checkpoint folder or a safetensors file.
pub fn load_weights(trainer: &Trainer<'_>, path: &Path) -> Result<()> {
    let Recordings { layout, arenas, experts, .. } = &trainer.recordings;
    let write = |tensor, bytes: &[u8]| trainer.write(tensor, bytes);
    read_weights(layout, &arenas.weights, experts.as_ref(), path, write)
}

/// Reads weights into an arena by `write`, and the biases of routers if they are there: `path` is a checkpoint folder or a
/// safetensors file.
pub(super) fn read_weights(
    layout: &ArenaLayout,
    arena: &Arena,
    experts: Option<&ExpertState>,
    path: &Path,
    write: impl Fn(Tensor, &[u8]),
) -> Result<()> {
    let file = if path.is_dir() { path.join(MODEL) } else { path.to_path_buf() };
    let file = TensorFile::open(&file)?;
    load_arena(layout, arena, &file, "", &write)?;
    let biases = expert_tensors::biases(experts);
    expert_tensors::load(&biases, &file, false, write)?;
    let pieces = entries(layout, arena).into_iter().map(|entry| entry.piece.name.as_str());
    let known: HashSet<&str> = pieces.chain(biases.iter().map(|bias| bias.info.name.as_str())).collect();
    let names = file.names();
    let left_out: Vec<&String> = names.iter().filter(|name| !known.contains(name.as_str())).collect();
    if let Some(first) = left_out.first() {
        let (path, count) = (file.path().display(), left_out.len());
        tracing::warn!("{path}: this model has no place for {count} of its tensors, `{first}` for one");
    }
    Ok(())
}

/// A tensor of a file: which piece of which parameter, in which arena.
struct Entry<'a> {
    spec: &'a Spec,
    parts: &'a [Part],
    piece: &'a Piece,
    arena: &'a Arena,
}

fn entries<'a>(layout: &'a ArenaLayout, arena: &'a Arena) -> Vec<Entry<'a>> {
    let parameters = layout.parameters.list();
    let of = |(spec, parts): &'a (Spec, Vec<Part>)| {
        spec.pieces.iter().map(move |piece| Entry { spec, parts, piece, arena })
    };
    parameters.into_iter().filter(|(_, parts)| arena.holds(parts)).flat_map(of).collect()
}

async fn save_arenas(
    trainer: &Trainer<'_>,
    arenas: &[(&str, &Arena)],
    remembered: &[Remembered],
    path: &Path,
) -> Result<()> {
    let mut tensors = Vec::new();
    let mut sources = Vec::new();
    for (prefix, arena) in arenas {
        for entry in entries(&trainer.recordings.layout, arena) {
            tensors.push(TensorInfo {
                name: format!("{prefix}{}", entry.piece.name),
                dtype: Dtype::F32,
                shape: entry.spec.piece_shape(entry.piece),
            });
            sources.push(entry);
        }
    }
    tensors.extend(remembered.iter().map(|row| row.info.clone()));
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    TensorFile::write(path, &tensors, metadata, async |index, sink| match sources.get(index) {
        Some(entry) => read_piece(trainer, entry, |row: &[u8]| sink.put(row)).await,
        None => {
            let row = remembered[index - sources.len()].tensor;
            trainer.read_rows(row, async |bytes: &[u8]| sink.put(bytes)).await
        }
    })
    .await
}

/// Hands a tensor's rows, as files hold them, to `take`.
async fn read_piece(
    trainer: &Trainer<'_>,
    entry: &Entry<'_>,
    mut take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    if entry.piece.is_transposed {
        return read_transposed(trainer, entry, take).await;
    }
    read_rows_of(trainer, entry, &mut take).await
}

/// A matrix that files hold as (columns, rows): it takes its size in host memory once more.
async fn read_transposed(
    trainer: &Trainer<'_>,
    entry: &Entry<'_>,
    mut take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut values = Vec::with_capacity(entry.piece.rows * entry.spec.cols);
    let mut keep = |row: &[u8]| {
        values.extend(Element::F32.decode(row));
        Ok(())
    };
    read_rows_of(trainer, entry, &mut keep).await?;
    let values = entry.spec.to_file(entry.piece, values);
    values.chunks(entry.piece.rows).try_for_each(|row| take(bytemuck::cast_slice(row)))
}

/// Hands the rows of a piece, as the device holds them, to `take`.
async fn read_rows_of(
    trainer: &Trainer<'_>,
    entry: &Entry<'_>,
    take: &mut impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let Some((first_row, first_column, columns)) = entry.spec.piece_rows(entry.piece).next() else {
        return Ok(());
    };
    let end_row = first_row + entry.spec.piece_rows(entry.piece).count();
    for part in entry.parts {
        let (first, end) = (first_row.max(part.first_row), end_row.min(part.first_row + part.rows));
        if first < end {
            let tensor = entry.arena.part(entry.spec, part);
            let rows = tensor.rows((first - part.first_row) as u32, (end - first) as u32);
            let take = async |row: &[u8]| take(&row[4 * first_column..4 * (first_column + columns)]);
            trainer.read_rows(rows, take).await?;
        }
    }
    Ok(())
}

fn load_arena(
    layout: &ArenaLayout,
    arena: &Arena,
    file: &TensorFile,
    prefix: &str,
    write: impl Fn(Tensor, &[u8]),
) -> Result<()> {
    // Everything is checked before anything is written: a foreign file changes nothing.
    for entry in entries(layout, arena) {
        let name = format!("{prefix}{}", entry.piece.name);
        let (shape, dtype, _) = file.tensor(&name)?;
        let expected = entry.spec.piece_shape(entry.piece);
        if shape != expected || dtype != Dtype::F32 {
            return Err(Error::file(
                file.path(),
                format!(
                    "`{name}` is {dtype:?} {shape:?} there, F32 {expected:?} in this model; {OTHER_MODEL}"
                ),
            ));
        }
    }
    let parameters = layout.parameters.list();
    for (spec, parts) in parameters.into_iter().filter(|(_, parts)| arena.holds(parts)) {
        for part in parts {
            let mut rows = vec![vec![0.0f32; spec.cols]; part.rows];
            for piece in &spec.pieces {
                let (_, _, bytes) = file.tensor(&format!("{prefix}{}", piece.name))?;
                let values = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                let mut values = spec.from_file(piece, values.collect()).into_iter();
                for (row, first, columns) in spec.piece_rows(piece) {
                    let inside = row.checked_sub(part.first_row).filter(|&row| row < part.rows);
                    let taken: Vec<f32> = values.by_ref().take(columns).collect();
                    if let Some(row) = inside {
                        rows[row][first..first + columns].copy_from_slice(&taken);
                    }
                }
            }
            let mut bytes = Vec::new();
            rows.iter().for_each(|row| Element::F32.encode_row(row, &mut bytes));
            write(arena.part(spec, part), &bytes);
        }
    }
    Ok(())
}

impl Trainer<'_> {
    /// Hands each row of a persistent tensor, pad cut off, to `take`.
    pub(super) async fn read_rows(
        &self,
        tensor: Tensor,
        mut take: impl AsyncFnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let Some(id) = super::recordings::persistent(tensor) else { return Ok(()) };
        let row_bytes = tensor.stride as u64 * tensor.element.bytes();
        let useful = (tensor.cols as u64 * tensor.element.bytes()) as usize;
        let group = (self.reader.bytes() / row_bytes).max(1) as u32;
        for first in (0..tensor.rows).step_by(group as usize) {
            let rows = tensor.rows(first, group.min(tensor.rows - first));
            let mut bytes = Vec::with_capacity(rows.bytes() as usize);
            let keep = async |piece: &[u8]| {
                bytes.extend_from_slice(piece);
                Ok(())
            };
            self.reader.read(self.gpu, &self.buffers, id, rows.offset, rows.bytes(), keep).await?;
            for row in bytes.chunks(row_bytes as usize) {
                take(&row[..useful]).await?;
            }
        }
        Ok(())
    }

    /// Every tensor of the model as f32, by its checkpoint name: weights, or what `arena` holds. For tests and tools.
    pub async fn tensors(
        &self,
        arena: impl Fn(&super::recordings::Arenas) -> &Arena,
    ) -> Result<Vec<(String, Vec<f32>)>> {
        let arena = arena(&self.recordings.arenas);
        let mut tensors = Vec::new();
        for entry in entries(&self.recordings.layout, arena) {
            let mut values = Vec::new();
            let take = |row: &[u8]| {
                values.extend(Element::F32.decode(row));
                Ok(())
            };
            read_piece(self, &entry, take).await?;
            tensors.push((entry.piece.name.clone(), values));
        }
        Ok(tensors)
    }
}
