//! Checkpoints of a trainer: its tensors, handed from the device to files and back.

use super::arenas::Arenas;
use super::recordings::Recordings;
use super::trainer::Trainer;
use crate::device::Exchanges;
use crate::error::Result;
use crate::model::arena::{Arena, ArenaLayout};
use crate::ranks::Ranks;
use crate::ranks::rank_layouts::RankLayouts;
use crate::ranks::replicas::{Fingerprint, Replicas};
use crate::record::{BufferId, Tensor};
use crate::settings::default_decision;
use crate::store::Base;
use crate::store::arena_tensors::{ArenaTensor, ReadRows, TakeRow};
use crate::store::checkpoint::{self, TrainingTensors, WeightTensors};
use crate::store::checkpoint_folder::{CheckpointFolder, Draft, PendingCheckpoint};
use crate::store::shared_folder;
use crate::store::trainer_state::TrainerState;
use std::path::Path;
use std::sync::atomic::Ordering;

impl Trainer<'_> {
    /// Writes weights, moments and `state` into `draft`; the caller, who has the folder and knows the state, commits
    /// it. Training waits. [`save`](Self::save) does all of this.
    ///
    /// # Errors
    /// A disk or device that fails.
    pub async fn write_checkpoint(&self, state: &TrainerState, draft: &Draft) -> Result<()> {
        // A device failure is reported when the tensors are read; by then the other ranks know what they receive.
        let _ = self.wait().await;
        let (ranks, model) = (self.exchanger.ranks(), &self.recordings.model);
        let rank_layouts = self.rank_layouts()?;
        let by_rank = match &rank_layouts {
            None => vec![self.tensors_in_training()],
            Some(rank_layouts) => {
                rank_layouts.by_rank().map(|(layout, arenas)| self.tensors_of(layout, arenas)).collect()
            }
        };
        checkpoint::save(&by_rank, model, state, draft, ranks, self).await
    }

    /// Writes a checkpoint of `state` together with all other ranks. Either the whole checkpoint is written or none.
    ///
    /// # Errors
    /// A disk or device that fails on any rank; a rank that has ended.
    pub(super) async fn save_on_ranks(
        &self,
        state: &TrainerState,
        checkpoints: &CheckpointFolder,
    ) -> Result<()> {
        let ranks = self.exchanger.ranks();
        let begun = begin(ranks, state.step, checkpoints).await?;
        let joined = checkpoints.draft(state.step);
        let draft = begun.as_deref().unwrap_or(&joined);
        ranks.agree(self.write_checkpoint(state, draft).await).await?;
        ranks.by_first(|| begun.map_or(Ok(()), |begun| begun.commit().map(drop))).await
    }

    /// Reads weights and moments from the checkpoint in `folder`, and the base of its adapters if it names one, which
    /// may have been moved to `moved`. Returns the state of the checkpoint, which must match `expected`, the state of
    /// the run.
    ///
    /// # Errors
    /// A file that is missing or damaged; a base of other tensors; a state or a tensor that is not the run's.
    pub(super) fn load(
        &self,
        folder: &Path,
        expected: &TrainerState,
        moved: Option<&Path>,
    ) -> Result<(TrainerState, Option<Base>)> {
        self.has_stale_copies.store(true, Ordering::Relaxed);
        self.has_stale_magnitudes.store(false, Ordering::Relaxed);
        let tensors = self.tensors_in_training();
        checkpoint::load(tensors, folder, expected, moved, default_decision, self.portions())
    }

    /// Fails on all ranks if two ranks hold different weights where they should hold the same. `saved` is the step of
    /// the newest checkpoint. Training waits.
    ///
    /// # Errors
    /// Weights that differ; a device that fails; a rank that has ended.
    pub async fn check_replicas(&mut self, step: u64, saved: Option<u64>) -> Result<()> {
        let ranks = self.exchanger.ranks().clone();
        let own = ranks.agree(self.fingerprints().await).await?;
        let all = ranks.at_first(bytemuck::cast_slice(&own).to_vec()).await?;
        let found: Vec<Fingerprint> = bytemuck::pod_collect_to_vec(&all);
        let compare = || match &self.recordings.replicas {
            Some(replicas) => replicas.compare(&found, ranks.size(), step, saved),
            None => Ok(()),
        };
        ranks.by_first(compare).await
    }

    /// The fingerprints of the weights that this rank holds.
    async fn fingerprints(&mut self) -> Result<Vec<Fingerprint>> {
        let Some(sums) = self.recordings.replicas.as_ref().map(Replicas::sums) else { return Ok(Vec::new()) };
        let mut encoder = self.gpu.encoder();
        if let (Some(program), Some(id)) = (self.programs.fingerprints, sums.buffer.persistent()) {
            encoder.clear(&self.buffers, id);
            self.replay(&mut encoder, program, Exchanges::All).await?;
        }
        encoder.submit().await?;
        let mut words: Vec<[u32; 2]> = Vec::new();
        let mut take = |row: &[u8]| {
            words.extend(bytemuck::pod_collect_to_vec::<u8, [u32; 2]>(row));
            Ok(())
        };
        self.read_rows(sums, &mut take).await?;
        Ok(self.recordings.replicas.iter().flat_map(|replicas| replicas.fingerprints(&words)).collect())
    }

    /// Reads only weights: `path` is a safetensors file, the index of several, a folder with either, or a checkpoint
    /// that names its base. Adapters beside the weights are read too. Returns a line on what was read. Leaves out
    /// tensors without a place in the model if `is_partial`.
    ///
    /// # Errors
    /// A file that is missing or damaged; a tensor that is missing, of another shape, or, unless `is_partial`, without
    /// a place.
    pub fn load_weights(&self, path: &Path, is_partial: bool) -> Result<String> {
        let weights = self.tensors_in_training().weights;
        self.has_stale_copies.store(true, Ordering::Relaxed);
        let (contents, has_adapters) = checkpoint::load_weights(weights, path, is_partial, self.portions())?;
        self.has_stale_magnitudes.store(!has_adapters, Ordering::Relaxed);
        Ok(contents)
    }

    /// Reads only adapters: `path` is PEFT's file, its folder, or a checkpoint that has one.
    ///
    /// # Errors
    /// A file that is missing or damaged; adapters of another rank or factor; a tensor that is missing or of another
    /// shape.
    pub fn load_lora(&self, path: &Path) -> Result<()> {
        let weights = self.tensors_in_training().weights;
        self.has_stale_copies.store(true, Ordering::Relaxed);
        self.has_stale_magnitudes.store(false, Ordering::Relaxed);
        checkpoint::load_lora(weights, path, self.portions())
    }

    /// The tensors of one arena as f32, by their checkpoint names; NaN stands for elements that other ranks hold. For
    /// tests and tools.
    ///
    /// # Errors
    /// A device that fails.
    pub async fn tensors(&self, arena: impl Fn(&Arenas) -> &Arena) -> Result<Vec<(String, Vec<f32>)>> {
        let arena = arena(&self.recordings.arenas);
        let mut tensors = Vec::new();
        let held = ArenaTensor::list(&self.recordings.layout, arena, "").into_iter();
        for tensor in held.filter(|tensor| !tensor.element().is_quantised()) {
            let (mut values, element) = (Vec::new(), tensor.element());
            let mut take = |row: &[u8]| {
                values.extend(element.decode(row));
                Ok(())
            };
            self.take_held(&tensor, &mut take).await?;
            tensors.push((tensor.name, values));
        }
        Ok(tensors)
    }

    /// Hands the rows of a tensor to `take`, with all bits set in elements that this rank does not hold.
    async fn take_held(&self, tensor: &ArenaTensor<'_>, take: TakeRow<'_>) -> Result<()> {
        if tensor.is_stored_whole() {
            return tensor.read(self, take).await;
        }
        let width = tensor.element().bytes() as usize;
        let mut cells = vec![0xff; width * tensor.cells()];
        for run in tensor.runs() {
            let held = &mut cells[width * run.cells.start..width * run.cells.end];
            let mut copy = |row: &[u8]| {
                held.copy_from_slice(row);
                Ok(())
            };
            self.read_rows(tensor.stored(run.segment, run.place.clone()), &mut copy).await?;
        }
        tensor.take_cells(&cells, take)
    }

    /// The bytes of a tensor of [`recordings`](Self::recordings) that outlives them, row by row without their pads.
    ///
    /// # Errors
    /// A device that fails.
    pub async fn read(&self, tensor: Tensor) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut take = |row: &[u8]| {
            bytes.extend_from_slice(row);
            Ok(())
        };
        self.read_rows(tensor, &mut take).await?;
        Ok(bytes)
    }

    /// The hot experts of each layer, in ascending order, if the model has hot experts. Waits for the device.
    ///
    /// # Errors
    /// A device that fails.
    pub(super) async fn hot_experts(&self) -> Result<Option<Vec<Vec<u32>>>> {
        let experts = self.recordings.tensors.model.experts;
        let choice = experts.and_then(|experts| Some((experts, experts.hot_choice()?)));
        let Some((experts, (BufferId::Persistent(id), bytes))) = choice else { return Ok(None) };
        let words = self.reader.read(self.gpu, &self.buffers, id, 0, bytes).await?;
        Ok(Some(experts.hot_experts(&bytemuck::pod_collect_to_vec(&words))))
    }

    /// The parameters of every rank, if there are several.
    fn rank_layouts(&self) -> Result<Option<RankLayouts>> {
        let limits = &self.gpu.capabilities().limits;
        match self.exchanger.ranks().size() {
            1 => Ok(None),
            _ => RankLayouts::of(&self.recordings, limits).map(Some),
        }
    }

    fn tensors_in_training(&self) -> TrainingTensors<'_> {
        self.tensors_of(&self.recordings.layout, &self.recordings.arenas)
    }

    /// The tensors of a rank whose parameters lie in `arenas` by `layout`.
    fn tensors_of<'a>(&'a self, layout: &'a ArenaLayout, arenas: &'a Arenas) -> TrainingTensors<'a> {
        let Recordings { whole, tensors, model, .. } = &self.recordings;
        let (experts, low_rank) = (tensors.model.experts.as_ref(), model.low_rank.as_ref());
        TrainingTensors {
            weights: WeightTensors { layout, arena: &arenas.weights, whole, experts, low_rank },
            first_moments: &arenas.first_moments,
            second_moments: &arenas.second_moments,
        }
    }
}

impl ReadRows for Trainer<'_> {
    async fn read_rows(&self, tensor: Tensor, take: TakeRow<'_>) -> Result<()> {
        let Some(id) = tensor.buffer.persistent() else { return Ok(()) };
        let row_bytes = tensor.stride as u64 * tensor.element.bytes();
        let useful = (tensor.cols as u64 * tensor.element.bytes()) as usize;
        let group = (self.reader.bytes() / row_bytes).max(1) as u32;
        for first in (0..tensor.rows).step_by(group as usize) {
            let rows = tensor.rows(first, group.min(tensor.rows - first));
            let bytes = self.reader.read(self.gpu, &self.buffers, id, rows.offset, rows.bytes()).await?;
            bytes.chunks(row_bytes as usize).try_for_each(|row| take(&row[..useful]))?;
        }
        Ok(())
    }
}

/// Begins the checkpoint of `step` on the first rank, which owns it, and checks that the other ranks see its folder.
async fn begin(
    ranks: &Ranks,
    step: u64,
    checkpoints: &CheckpointFolder,
) -> Result<Option<PendingCheckpoint>> {
    let mut begun = None;
    let mark = ranks.by_first(|| {
        let pending = begun.insert(checkpoints.begin(step)?);
        if ranks.size() == 1 { Ok(String::new()) } else { shared_folder::mark(pending.path()) }
    });
    let mark = mark.await?;
    if ranks.size() > 1 {
        let draft = checkpoints.draft(step);
        ranks.agree(shared_folder::check_mark(draft.path(), &mark)).await?;
        ranks.by_first(|| shared_folder::remove_mark(draft.path())).await?;
    }
    Ok(begun)
}
