//! Warnings about inefficient layouts, one line each.

use crate::perf::forecast::RankForecast;
use crate::ranks::RankLayout;
use crate::settings::{RunPlan, Sharded};

/// Bubbles above this share of a step are worth a warning.
const LARGE_BUBBLE: f64 = 0.2;

/// Warnings about `plan`, whose ranks have the `forecast`, on machines of `per_node` ranks.
pub fn warnings(plan: &RunPlan, forecast: &RankForecast, per_node: usize) -> Vec<String> {
    if plan.layout.world() == 1 {
        return Vec::new();
    }
    [
        across_machines(&plan.layout, per_node),
        exchanges_longer_than_launches(forecast),
        unshared_moments(plan, forecast),
        small_micro_batches(plan),
        bubble(forecast),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn across_machines(layout: &RankLayout, per_node: usize) -> Option<String> {
    let RankLayout { model, expert, .. } = *layout;
    if layout.world() <= per_node {
        return None;
    }
    // Groups of neighbours stay on one machine if their span divides the number of its ranks.
    let crosses = |span: usize| span > 1 && !per_node.is_multiple_of(span);
    if crosses(model) {
        return Some(format!(
            "model_parallel {model} spans several machines of {per_node} ranks; tensor parallelism is fast within one alone"
        ));
    }
    let span = expert * model;
    (expert > 1 && crosses(span))
        .then(|| format!("groups of {expert} for experts span {span} ranks, and machines have {per_node}"))
}

fn exchanges_longer_than_launches(forecast: &RankForecast) -> Option<String> {
    let time = forecast.time.as_ref()?;
    (time.waiting() > time.compute).then(|| "a step waits longer for exchanges than it computes".to_string())
}

fn unshared_moments(plan: &RunPlan, forecast: &RankForecast) -> Option<String> {
    let forecast = &forecast.forecast;
    let is_foolish = plan.sharding.what == Sharded::None
        && plan.layout.data > 1
        && 2 * forecast.moment_bytes > forecast.bytes();
    let share = 100 * forecast.moment_bytes / forecast.bytes().max(1);
    is_foolish.then(|| {
        format!("moments take {share} % of memory: write `parallel.enable_parallel_optimizer: True`")
    })
}

fn small_micro_batches(plan: &RunPlan) -> Option<String> {
    let runner = &plan.settings.runner;
    let steps = runner.gradient_accumulation_steps;
    let is_foolish = plan.layout.pipeline == 1 && plan.layout.data > 1 && runner.batch_size == 1 && steps > 1;
    is_foolish.then(|| {
        format!("batch_size 1 with {steps} accumulation steps: raise batch_size or data_parallel for the same global batch")
    })
}

fn bubble(forecast: &RankForecast) -> Option<String> {
    let share = 100.0 * forecast.bubble;
    (forecast.bubble > LARGE_BUBBLE).then(|| {
        format!("a bubble of {share:.0} %: raise parallel_config.micro_batch_num or pp_interleave_num")
    })
}
