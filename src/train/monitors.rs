//! What `monitor_config` computes on the device: recordings that are replayed after the updates of due steps, and the buffers that
//! the host reads together with a step's results.

mod board;
mod logits;
mod losses;
mod norms;
mod spectra;
mod stable_rank;

pub use board::Board;
pub use logits::MaxLogits;
pub use losses::{Losses, MicroLosses, SumCopy};
pub use norms::{Norms, Watched};
pub use stable_rank::{Matrices, StableRanks};

use super::arenas::Arenas;
use super::recordings::persistent;
use super::sharing::Sharing;
use crate::error::Result;
use crate::kernels::Capabilities;
use crate::model::ExpertState;
use crate::model::arena::ArenaLayout;
use crate::record::{PersistentId, Persistents, Recording, Tensor};
use crate::settings::RunPlan;

/// The monitors of a run. What is not asked for has no recording and no buffer.
#[derive(Default)]
pub struct Monitors {
    /// Norms of gradients.
    pub gradients: Option<Norms>,
    /// Norms of moments and weights.
    pub states: Option<Norms>,
    /// Losses of micro-batches.
    pub losses: Option<MicroLosses>,
    /// The largest attention scores.
    pub logits: Option<MaxLogits>,
    /// Stable ranks of weights.
    pub stable_ranks: Option<StableRanks>,
    /// `LossState` of the training batches, where norms of gradients depend on it.
    loss: Option<Tensor>,
}

/// What monitors are recorded on.
pub(super) struct Watchable<'a> {
    pub plan: &'a RunPlan,
    pub layout: &'a ArenaLayout,
    pub arenas: &'a Arenas,
    pub sharing: &'a Sharing,
    /// `StepState`.
    pub state: Tensor,
    pub loss: Tensor,
    pub ahead_loss: Option<Tensor>,
    pub experts: Option<ExpertState>,
    pub logits: Option<MaxLogits>,
    pub capabilities: Capabilities,
}

impl Monitors {
    /// Those that `run.plan` asks for.
    ///
    /// # Errors
    /// A launch over WebGPU's limits.
    pub(super) fn new(run: &Watchable<'_>, persistents: &mut Persistents) -> Result<Self> {
        let gradients = Norms::of_gradients(run, persistents)?;
        let states = Norms::of_states(run, persistents)?;
        let weighs_tokens = run.plan.settings.wrapper.calculate_per_token_loss;
        let loss = gradients.is_some().then_some(run.loss).filter(|_| weighs_tokens);
        let losses = MicroLosses::new(run, persistents);
        let stable_ranks = StableRanks::new(run, persistents)?;
        Ok(Self { gradients, states, losses, stable_ranks, logits: run.logits.clone(), loss })
    }

    fn norms(&self) -> impl Iterator<Item = &Norms> {
        self.gradients.iter().chain(&self.states)
    }

    /// All recordings.
    pub fn recordings(&self) -> impl Iterator<Item = &Recording> {
        self.norms()
            .map(|norms| &norms.recording)
            .chain(self.stable_ranks.iter().map(|ranks| &ranks.recording))
    }

    /// Those that are replayed after the update of step number `step`, counted from 1.
    pub(super) fn due(&self, step: u64) -> impl Iterator<Item = &Recording> {
        let norms = self.norms().filter(move |norms| step.is_multiple_of(norms.interval));
        let ranks = self.stable_ranks.iter().filter(move |ranks| step.is_multiple_of(ranks.interval));
        norms.map(|norms| &norms.recording).chain(ranks.map(|ranks| &ranks.recording))
    }

    /// What is cleared at the start of a step.
    pub(super) fn cleared(&self) -> Option<PersistentId> {
        persistent(self.logits.as_ref()?.largest)
    }

    /// What the host reads after each step, and how many bytes of it: [`Board::values`] takes it in this order.
    pub(super) fn sources(&self) -> Vec<(PersistentId, u64)> {
        let norms = self.norms().map(|norms| &norms.sums);
        let losses = self.losses.iter().map(|losses| &losses.rows);
        let logits = self.logits.iter().map(|logits| &logits.largest);
        let ranks =
            self.stable_ranks.iter().flat_map(|ranks| [&ranks.spectra.eigenvalues, &ranks.spectra.sums]);
        let tensors = self.loss.iter().chain(norms).chain(losses).chain(logits).chain(ranks);
        tensors.filter_map(|tensor| Some((persistent(*tensor)?, words_of(tensor) * 4))).collect()
    }
}

/// 32-bit words that the host reads of a tensor.
fn words_of(tensor: &Tensor) -> u64 {
    u64::from(tensor.rows) * u64::from(if tensor.rows == 1 { tensor.cols } else { tensor.stride })
}
