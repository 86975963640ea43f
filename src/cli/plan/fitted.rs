//! The result of fitting a given memory, as text: the candidates, and the keys to write.

use crate::model::config::{MixtureConfig, TokenDispatch};
use crate::perf::fit::{Candidate, Fit};
use crate::settings::{RunConfig, RunPlan, SELECTIONS};
use indicatif::HumanBytes;

/// A row for each candidate, with an arrow at the best. They share `memory` bytes, which may be `of` bytes minus a
/// tenth.
pub fn table(fit: &Fit, memory: u64, of: Option<u64>) -> String {
    let of = of.map_or(String::new(), |of| format!(": {} without 10 % for everything else", HumanBytes(of)));
    let mut lines = vec![
        format!("fit      in {}{of}", HumanBytes(memory)),
        "         batch_size  accumulation  recomputed layers  peak memory  more work".to_string(),
    ];
    for candidate in &fit.candidates {
        let Candidate { batch_size, gradient_accumulation_steps, recomputation, bytes } = candidate;
        // If a tensor fits no binding, the memory is unknown.
        let bytes = bytes.map_or("no binding".to_string(), |bytes| HumanBytes(bytes).to_string());
        let (layers, work) = (recomputation.layers.len(), 100.0 * recomputation.work);
        let best = if fit.best.as_ref() == Some(candidate) { "  <- least work that fits" } else { "" };
        lines.push(format!(
            "         {batch_size:>10}  {gradient_accumulation_steps:>12}  {layers:>17}  {bytes:>11}  {work:>7.1} %{best}"
        ));
    }
    lines.join("\n") + "\n"
}

/// The keys to write into the configuration `config` for `best`, or to append to its command line.
pub fn keys(config: &RunConfig, best: &Candidate) -> String {
    let mut sections = vec![(
        "runner_config",
        vec![
            ("batch_size", best.batch_size.to_string()),
            ("gradient_accumulation_steps", best.gradient_accumulation_steps.to_string()),
        ],
    )];
    let recompute = recompute(&config.plan, best);
    if !recompute.is_empty() {
        sections.push(("recompute_config", recompute));
    }
    // The accumulation already counts all devices, which `as_single` would count once more, or the interleaved
    // micro-batches of a rank.
    let is_spread = config.plan.layout.world() > 1;
    let counted = match (config.uses_parallel, is_spread) {
        (true, _) => Some(("use_parallel", "False")),
        (_, true) => Some(("micro_batch_interleave_num", "1")),
        _ => None,
    };
    let yaml = sections.iter().map(|(section, keys)| {
        let keys: String = keys.iter().map(|(key, value)| format!("  {key}: {value}\n")).collect();
        format!("{section}:\n{keys}")
    });
    let flags = sections.iter().flat_map(|(section, keys)| {
        keys.iter().map(move |(key, value)| match value.starts_with(['[', '{']) {
            true => format!("'--{section}.{key}={value}'"), // quoted, since shells expand brackets and braces
            false => format!("--{section}.{key}={value}"),
        })
    });
    let flags = counted.map(|(key, value)| format!("--{key}={value}")).into_iter().chain(flags);
    let counted = counted.map(|(key, value)| format!("{key}: {value}\n"));
    let (yaml, flags): (String, Vec<String>) = (counted.into_iter().chain(yaml).collect(), flags.collect());
    format!("write\n{yaml}or give\n{}\n{}", flags.join(" "), caution(&config.plan, best))
}

/// A sentence about other effects of a changed micro-batch.
fn caution(plan: &RunPlan, best: &Candidate) -> &'static str {
    let counts_capacity =
        |mixture: &MixtureConfig| !matches!(mixture.dispatch, TokenDispatch::Dropless { .. });
    match plan.settings.runner.batch_size == best.batch_size {
        true => "",
        false if plan.model.mixture.as_ref().is_some_and(counts_capacity) => {
            "note: a checkpoint of another batch_size does not resume, an evaluation of as many batches sees other windows, and the \
             capacities of experts count per micro-batch\n"
        }
        false => {
            "note: a checkpoint of another batch_size does not resume, and an evaluation of as many batches sees other windows\n"
        }
    }
}

/// The keys of `recompute_config`: all keys that decide what is recomputed, since the file may set others. Empty if
/// nothing is recomputed.
pub fn recompute(plan: &RunPlan, best: &Candidate) -> Vec<(&'static str, String)> {
    let (layers, model) = (&best.recomputation.layers, &plan.model);
    if layers.is_empty() && model.recomputed.is_empty() {
        return Vec::new();
    }
    let all = model.num_layers + model.multi_token.map_or(0, |ahead| ahead.depth);
    let (every, listed) = match layers.len() == all {
        true => ("True", "[]".to_string()),
        false => ("False", format!("{layers:?}")),
    };
    let set = [("recompute", every.to_string()), ("layers", listed), ("operators", "{}".to_string())];
    set.into_iter().chain(SELECTIONS.map(|key| (key, "False".to_string()))).collect()
}
