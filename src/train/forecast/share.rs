//! One rank's share of a model whose layers are spread over ranks, which is planned for and not trained: the stages of a pipeline
//! as plans of their own.

use crate::error::{Error, Result};
use crate::model::config::ModelConfig;
use crate::ranks::RankLayout;
use crate::settings::RunPlan;
use std::ops::Range;

/// A stage of a pipeline.
pub(super) struct Stage {
    /// A run of the stage alone, whose recordings say what memory it takes. Its first and its last stage have one table.
    pub plan: RunPlan,
    /// The model whose work it does: without the table that is only looked up.
    pub work: ModelConfig,
    /// Micro-batches whose activations are kept at a time.
    pub in_flight: f64,
}

/// Degrees that are planned by formulas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spread {
    /// Stages of the pipeline (p).
    pub pipeline: usize,
    /// Runs of layers that a stage has (v).
    pub interleave: usize,
}

/// A vocabulary that takes no memory.
const NO_VOCABULARY: usize = 4;

impl Spread {
    /// How `plan` is spread.
    pub fn of(plan: &RunPlan) -> Self {
        let degrees = plan.settings.parallel.as_ref().map(|parallel| &parallel.degrees);
        Self {
            pipeline: plan.layout.pipeline,
            interleave: degrees.map_or(1, |degrees| degrees.pp_interleave_num.max(1) as usize),
        }
    }

    /// Micro-batches that the stage with this number keeps the activations of: in the schedule of one forward, one backward the
    /// first stage has sent as many as there are stages before the first returns (Narayanan et al., "Efficient large-scale language
    /// model training on GPU clusters using Megatron-LM", 2021, section 2.2); interleaved, 2 (p - s - 1) + (v - 1) p + 1 runs of
    /// layers.
    fn in_flight(self, stage: usize, micro_batches: usize) -> f64 {
        let (p, v) = (self.pipeline, self.interleave);
        let after = p - stage;
        let kept = if v == 1 { after as f64 } else { (2 * (after - 1) + (v - 1) * p + 1) as f64 / v as f64 };
        kept.min(micro_batches as f64).max(1.0)
    }

    /// Refuses degrees that do not divide layers.
    fn check(self, model: &ModelConfig) -> Result<()> {
        let Self { pipeline: p, interleave: v } = self;
        let layers = model.num_layers;
        match p * v > layers {
            true => Err(Error::Plan(format!(
                "parallel_config.pipeline_stage: {p} stages x {v} of {layers} layers leave some without a layer; write fewer"
            ))),
            false => Ok(()),
        }
    }
}

/// The stages of `plan` that may take the most of something: the first, one between, and the last.
///
/// # Errors
/// Degrees that do not divide layers.
pub(super) fn stages(plan: &RunPlan) -> Result<Vec<Stage>> {
    let spread = Spread::of(plan);
    spread.check(&plan.model)?;
    let last = spread.pipeline - 1;
    let mut numbers = vec![0, last / 2, last];
    numbers.dedup();
    Ok(numbers.into_iter().map(|number| stage(plan, spread, number)).collect())
}

fn stage(plan: &RunPlan, spread: Spread, number: usize) -> Stage {
    let (each, more) = (plan.model.num_layers / spread.pipeline, plan.model.num_layers % spread.pipeline);
    let start = |number: usize| number * each + number.min(more);
    let layers = start(number)..start(number + 1);
    let (is_first, is_last) = (number == 0, number + 1 == spread.pipeline);
    let of_layers = with_layers(&plan.model, layers, is_last);
    let has_both = is_first && is_last;
    let memory = match is_first || is_last {
        true if has_both => of_layers.clone(),
        true => ModelConfig { tie_word_embeddings: true, head_epsilon: None, ..of_layers.clone() },
        false => without_tables(of_layers.clone()),
    };
    let work = if is_last { of_layers } else { without_tables(of_layers) };
    let mut of_stage = plan.clone();
    of_stage.layout = RankLayout { rank: 0, pipeline: 1, ..plan.layout };
    of_stage.settings.sample = None;
    of_stage.model = memory;
    if of_stage.grouping().apply(crate::model::parameters::Gpt::describe(&of_stage.model)).is_err() {
        // Patterns that fit no parameter of this stage.
        of_stage.settings.groups.clear();
        of_stage.group_schedules.clear();
        of_stage.settings.run.no_decay_params.clear();
    }
    let in_flight = spread.in_flight(number, plan.settings.runner.gradient_accumulation_steps);
    Stage { plan: of_stage, work, in_flight }
}

/// The layers `layers` of `whole`, and what follows the last layer if they are the last.
fn with_layers(whole: &ModelConfig, layers: Range<usize>, is_last: bool) -> ModelConfig {
    let (count, all) = (layers.len(), whole.num_layers);
    let own = |numbers: &[usize]| {
        let ahead =
            numbers.iter().filter(|number| is_last && **number >= all).map(|number| number - all + count);
        let layers =
            numbers.iter().filter(|number| layers.contains(number)).map(|number| number - layers.start);
        layers.chain(ahead).collect::<Vec<usize>>()
    };
    let mut model = ModelConfig {
        num_layers: count,
        multi_token: whole.multi_token.filter(|_| is_last),
        query_layer: whole.query_layer && is_last,
        recomputed_layers: own(&whole.recomputed_layers),
        ..whole.clone()
    };
    model.recomputed_operators.iter_mut().for_each(|(_, layers)| *layers = own(layers));
    model.recomputed_operators.retain(|(_, layers)| !layers.is_empty());
    if let Some(mixture) = &mut model.mixture {
        mixture.first_dense_layers = mixture.first_dense_layers.saturating_sub(layers.start).min(count);
        if mixture.first_dense_layers == count && model.multi_token.is_none() {
            model.mixture = None;
        }
    }
    model
}

fn without_tables(model: ModelConfig) -> ModelConfig {
    ModelConfig { vocab_size: NO_VOCABULARY, head_epsilon: None, ..model }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::Sizes;

    fn model() -> ModelConfig {
        let sizes = Sizes {
            vocab_size: 256,
            hidden_size: 64,
            num_layers: 5,
            num_heads: 4,
            intermediate_size: 96,
            seq_length: 32,
        };
        ModelConfig { recomputed_layers: vec![1, 3, 4], num_kv_heads: 2, ..ModelConfig::llama(sizes) }
    }

    #[test]
    fn a_stage_recomputes_its_own_layers() {
        let model = model();
        let first = with_layers(&model, 0..3, false);
        assert_eq!((first.num_layers, first.recomputed_layers), (3, vec![1]));
        let last = with_layers(&model, 3..5, true);
        assert_eq!((last.num_layers, last.recomputed_layers), (2, vec![0, 1]));
    }

    #[test]
    fn earlier_stages_keep_more_micro_batches() {
        let spread = |interleave| Spread { pipeline: 4, interleave };
        let kept = |interleave, micro_batches| {
            [0, 1, 3].map(|stage| spread(interleave).in_flight(stage, micro_batches))
        };
        assert_eq!(kept(1, 8), [4.0, 3.0, 1.0]);
        assert_eq!(kept(1, 2), [2.0, 2.0, 1.0], "no more than there are");
        assert_eq!(kept(2, 8), [5.5, 4.5, 2.5]);
    }

    #[test]
    fn degrees_divide_layers() {
        let check = |pipeline| Spread { pipeline, interleave: 1 }.check(&model()).is_ok();
        assert!(check(5) && check(1) && !check(6));
    }
}
