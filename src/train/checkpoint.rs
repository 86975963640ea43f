//! Checkpoints of a trainer: its tensors, handed from the device to files and back.

use super::arenas::Arenas;
use super::recordings::{Recordings, persistent};
use super::trainer::Trainer;
use crate::error::Result;
use crate::model::arena::Arena;
use crate::record::Tensor;
use crate::settings::default_decision;
use crate::store::arena_tensors::{ArenaTensor, TakeRow};
use crate::store::checkpoint::{self, TrainingTensors, WeightTensors};
use crate::store::checkpoint_folder::{CheckpointFolder, PendingCheckpoint};
use crate::store::trainer_state::TrainerState;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

impl Trainer<'_> {
    /// Writes weights, moments and `state` into `pending`; the caller commits it. Training waits.
    ///
    /// # Errors
    /// A disk or device that fails.
    pub async fn save(&self, state: &TrainerState, pending: &PendingCheckpoint) -> Result<()> {
        self.wait().await?;
        let read = async |tensor: Tensor, take: TakeRow<'_>| self.read_rows(tensor, take).await;
        checkpoint::save(self.tensors_in_training(), &self.recordings.model, state, pending, read).await
    }

    /// Writes a checkpoint of `state` with all other ranks, and returns its folder. Either it is whole or there is none.
    ///
    /// # Errors
    /// A disk or device that fails on any rank; a rank that has ended.
    pub(super) async fn save_on_ranks(
        &self,
        state: &TrainerState,
        checkpoints: &CheckpointFolder,
    ) -> Result<PathBuf> {
        let ranks = self.exchanger.ranks();
        let saved = match ranks.is_first() {
            true => self.save_whole(state, checkpoints).await,
            false => Ok(()),
        };
        ranks.agree(saved).await?;
        Ok(PathBuf::new())
    }

    async fn save_whole(&self, state: &TrainerState, checkpoints: &CheckpointFolder) -> Result<()> {
        let pending = checkpoints.begin(state.step)?;
        self.save(state, &pending).await?;
        pending.commit().map(drop)
    }

    /// Reads weights and moments from the checkpoint in `folder` and returns the state they belong to, which must match
    /// `expected`, that of the run.
    ///
    /// # Errors
    /// A file that is missing or damaged; a state or a tensor that is not the run's.
    pub fn load(&self, folder: &Path, expected: &TrainerState) -> Result<TrainerState> {
        self.has_stale_copies.store(true, Ordering::Relaxed);
        checkpoint::load(self.tensors_in_training(), folder, expected, default_decision, self.portions())
    }

    /// Reads weights alone: `path` is a safetensors file, the index of several, or a folder with either. Adapters are read from
    /// beside the weights, if there are some.
    ///
    /// # Errors
    /// A file that is missing or damaged; a tensor that is missing or of another shape.
    pub fn load_weights(&self, path: &Path) -> Result<()> {
        let weights = self.tensors_in_training().weights;
        self.has_stale_copies.store(true, Ordering::Relaxed);
        checkpoint::load_weights(weights, path, self.portions())
    }

    /// Reads adapters alone: `path` is PEFT's file, its folder, or a checkpoint that has one.
    ///
    /// # Errors
    /// A file that is missing or damaged; adapters of another rank or factor; a tensor that is missing or of another shape.
    pub fn load_adapters(&self, path: &Path) -> Result<()> {
        let weights = self.tensors_in_training().weights;
        self.has_stale_copies.store(true, Ordering::Relaxed);
        checkpoint::load_adapters(weights, path, self.portions())
    }

    /// The tensors of one arena as f32, by their checkpoint names. For tests and tools.
    ///
    /// # Errors
    /// A device that fails.
    pub async fn tensors(&self, arena: impl Fn(&Arenas) -> &Arena) -> Result<Vec<(String, Vec<f32>)>> {
        let arena = arena(&self.recordings.arenas);
        let read = async |tensor: Tensor, take: TakeRow<'_>| self.read_rows(tensor, take).await;
        let mut tensors = Vec::new();
        for tensor in ArenaTensor::list(&self.recordings.layout, arena, "") {
            let (mut values, element) = (Vec::new(), tensor.element());
            let mut take = |row: &[u8]| {
                values.extend(element.decode(row));
                Ok(())
            };
            tensor.read(&read, &mut take).await?;
            tensors.push((tensor.name, values));
        }
        Ok(tensors)
    }

    /// Replaces the first gradient of parameter number `parameter`, between [`micro_steps`](Self::micro_steps) and
    /// [`update`](Self::update). For tests of what follows from it; nothing happens to a frozen one.
    pub fn set_gradient(&self, parameter: usize, gradient: f32) {
        let Recordings { layout, arenas, .. } = &self.recordings;
        let (spec, parts) = &layout.parameters[parameter];
        if arenas.gradients.holds(parts) {
            self.write(arenas.gradients.part(spec, &parts[0]), bytemuck::bytes_of(&gradient));
        }
    }

    /// Selection biases and capacities of all routers, as words. For tests and tools.
    ///
    /// # Errors
    /// A device that fails.
    pub async fn router_states(&self) -> Result<Vec<u32>> {
        let experts = self.recordings.experts.iter();
        let layers = experts.flat_map(|experts| experts.layers().map(move |layer| (experts, layer)));
        let rows = layers.flat_map(|(experts, layer)| [experts.bias(layer), experts.capacities(layer)]);
        let mut words = Vec::new();
        for tensor in rows.flatten() {
            let mut take = |row: &[u8]| {
                words.extend(bytemuck::pod_collect_to_vec::<u8, u32>(row));
                Ok(())
            };
            self.read_rows(tensor, &mut take).await?;
        }
        Ok(words)
    }

    fn tensors_in_training(&self) -> TrainingTensors<'_> {
        let Recordings { layout, arenas, experts, model, .. } = &self.recordings;
        TrainingTensors {
            weights: WeightTensors {
                layout,
                arena: &arenas.weights,
                experts: experts.as_ref(),
                low_rank: model.low_rank.as_ref(),
            },
            first_moments: &arenas.first_moments,
            second_moments: &arenas.second_moments,
        }
    }

    /// Hands each row of a persistent tensor, pad cut off, to `take`.
    async fn read_rows(&self, tensor: Tensor, take: TakeRow<'_>) -> Result<()> {
        let Some(id) = persistent(tensor) else { return Ok(()) };
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
            bytes.chunks(row_bytes as usize).try_for_each(|row| take(&row[..useful]))?;
        }
        Ok(())
    }
}
