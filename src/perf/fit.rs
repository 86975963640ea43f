//! The micro-batch and the recomputation with which a run fits a given memory.
//!
//! The number of tokens per step stays the same: `batch_size` times `gradient_accumulation_steps` is constant. Of all
//! divisions of that product and all amounts of recomputation, the one with the least work is chosen:
//!
//! work = (1 + recomputed FLOPs / FLOPs of the step) · (1 + 256 / tokens of a micro-batch)
//!
//! The second factor is the cost of a micro-batch of any size: it reads each weight twice and reads and writes each
//! gradient, 16 bytes per parameter, in addition to 6 FLOPs per parameter and token. On a device that does 100 FLOPs in
//! the time of one byte that is the work of 256 tokens. Recomputation must be ahead by 5 %. So it serves micro-batches
//! of fewer than two thousand tokens, and runs that do not fit otherwise; in all other cases the largest micro-batch
//! that fits without recomputation is chosen.
//!
//! Candidates are a list of `Recomputation`s with growing work, so that other kinds can be added.

mod recomputation;
mod search;

pub use recomputation::Recomputation;
pub use search::Candidate;

use super::forecast::Forecast;
use crate::error::{Error, Result};
use crate::kernels::Capabilities;
use crate::model::parameters::UpdateRule;
use crate::perf::limits::most_tokens;
use crate::perf::memory_budget::{QUANTISE, mib, remedies, smaller};
use crate::settings::{BaseType, RunPlan};
use crate::train::recordings::Recordings;
use recomputation::recomputations;
use search::Search;

/// The result of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// All candidates that were measured, the smallest micro-batch first.
    pub candidates: Vec<Candidate>,
    /// The candidate with the least work among those that fit.
    pub best: Option<Candidate>,
    /// If none fits: the least memory that a candidate takes on a quantised base, which computes something else.
    pub quantised: Vec<(BaseType, u64)>,
    /// The memory that the run takes for any length of its windows: weights, gradients, moments and tables.
    pub fixed: u64,
}

impl Fit {
    /// Looks for the division of `plan`'s step that fits `budget` bytes of device memory on an adapter with
    /// `capabilities`. The schedule has `steps` rows. Records a few dozen steps, some milliseconds each for 12 layers.
    ///
    /// # Errors
    /// A micro-batch of a single window does not fit the adapter, whatever its memory.
    pub fn find(plan: &RunPlan, capabilities: Capabilities, steps: u64, budget: u64) -> Result<Self> {
        let runner = &plan.settings.runner;
        let windows = runner.batch_size * runner.gradient_accumulation_steps;
        let smallest = plan.divided(1, windows, &[]);
        let smallest = Recordings::new(&smallest, capabilities, steps)?;
        let fixed = smallest.persistents.bytes();
        let choices = recomputations(&smallest);
        let mut measure = |batch_size: usize, recomputed: &[usize]| {
            let ranks = plan.layout.model; // which may share the tokens of a micro-batch evenly
            let tokens = batch_size * plan.model.seq_length;
            if !tokens.is_multiple_of(ranks) || tokens > most_tokens(&capabilities) {
                return None;
            }
            let plan = plan.divided(batch_size, windows / batch_size, recomputed);
            // A division that fails here has a tensor that fits no binding.
            let recordings = Recordings::new(&plan, capabilities, steps).ok()?;
            Some(Forecast::new(&recordings).peak_bytes())
        };
        let mut search = Search::new(windows, plan.model.seq_length, &choices, budget, &mut measure);
        let (best, candidates) = (search.best(), search.candidates());
        let quantised = |base| {
            let least = plan.quantised(base)?.divided(1, windows, &choices.last()?.layers);
            Some((base, Forecast::new(&Recordings::new(&least, capabilities, steps).ok()?).peak_bytes()))
        };
        let quantised =
            if best.is_some() { vec![] } else { BaseType::ALL.into_iter().filter_map(quantised).collect() };
        Ok(Self { candidates, best, quantised, fixed })
    }

    /// The error for a run of `plan` that does not fit `budget` bytes with any candidate.
    pub fn refusal(&self, plan: &RunPlan, budget: u64) -> Error {
        let least = self.candidates.iter().filter_map(|candidate| candidate.bytes).min().unwrap_or(0);
        let layers = plan.model.num_layers + plan.model.multi_token.map_or(0, |ahead| ahead.depth);
        let smallest = plan.divided(1, 1, &(0..layers).collect::<Vec<_>>()).model;
        let is_loaded = plan.settings.run.weights().is_some();
        let mut left = remedies(&smallest, 1, is_loaded);
        left.retain(|remedy| remedy != QUANTISE); // it is proposed below, where it helps
        if plan.settings.optimizer.moments(UpdateRule::Elementwise) > 1 {
            left.push("choose an `optimizer.type` that keeps fewer moments, as SGD does".to_string());
        }
        if !left.iter().any(|remedy| remedy == smaller(is_loaded)) {
            left.push(smaller(is_loaded).to_string());
        }
        let quantised = self.quantised.iter().filter(|(_, bytes)| *bytes <= budget);
        left.extend(quantised.map(|(base, bytes)| {
            format!(
                "quantise the frozen weights, which changes what is computed (`base_dtype: {}` under pet_config takes {})",
                base.name(),
                mib(*bytes)
            )
        }));
        Error::Plan(format!(
            "nothing fits {}: a micro-batch of one window with every layer recomputed takes {}; {}",
            mib(budget),
            mib(least),
            left.join(", or ")
        ))
    }
}

impl Candidate {
    /// `plan` with this micro-batch and recomputation, and without a cap on the memory.
    pub fn applied_to(&self, plan: &RunPlan) -> RunPlan {
        plan.divided(self.batch_size, self.gradient_accumulation_steps, &self.recomputation.layers)
    }
}
