//! What `monitor_config` asks for, held against the rest of a run.

use super::engine::Source;
use super::plan::RunPlan;
use super::sections::monitor::{self, STABLE_RANK_PATH};
use super::sections::parallel::Sharded;
use super::values::Settings;
use crate::model::groups::{Grouping, Selection};
use crate::model::parameters::{Gpt, Spec};

/// Reports patterns that select nothing, and what is not built for several ranks.
pub(super) fn check(plan: &RunPlan, source: &Source) {
    let (monitor, stable_rank) = (&plan.settings.monitor, plan.settings.stable_rank.as_ref());
    let lists = [Some((monitor::PATH, &monitor.target, monitor.invert))]
        .into_iter()
        .chain([stable_rank.map(|config| (STABLE_RANK_PATH, &config.target, false))])
        .flatten();
    for (section, target, invert) in lists.filter(|(_, target, invert)| !target.is_empty() || *invert) {
        let trained = trained(&plan.grouping(), plan);
        let path = format!("{section}.target");
        match Selection::new(target, invert) {
            Err(message) => source.fault(&path, message),
            Ok(selection) if !trained.iter().any(|spec| selection.takes(spec)) => {
                let message = "selects no parameter that trains; names are such as \
                               model.layers.0.self_attn.q_proj.weight or layers.0.attention.wqkv";
                source.fault(&path, message);
            }
            Ok(_) => (),
        }
    }
    if plan.layout.world() == 1 {
        return;
    }
    if monitor.device_local_norm_format.is_on() {
        let message = "is not built for several ranks, which sum their gradients while they compute them; remove it and look at \
                       global_norm";
        source.unsupported(&format!("{}.device_local_norm_format", monitor::PATH), message);
    }
    if monitor.max_attention_logit_format.is_on() {
        let message = "is not built for several ranks, each of which sees the scores of its own micro-batches; remove it";
        source.unsupported(&format!("{}.max_attention_logit_format", monitor::PATH), message);
    }
    if plan.layout.pipeline > 1 {
        check_stages(plan, source);
    }
    if stable_rank.is_some()
        && (plan.sharding.what != Sharded::None || plan.layout.expert * plan.layout.model > 1)
    {
        let message = "is not built for ranks that hold a part of the weights each; remove it, or write \
                       `enable_parallel_optimizer: False`, `expert_parallel: 1` and `model_parallel: 1`";
        source.unsupported(&format!("{STABLE_RANK_PATH}.format"), message);
    }
}

/// Reports what is watched of parameters or micro-batches, which one stage of a pipeline does not see all of.
fn check_stages(plan: &RunPlan, source: &Source) {
    let Settings { monitor, stable_rank, wrapper, .. } = &plan.settings;
    let path = |key: &str| format!("{}.{key}", monitor::PATH);
    let watched = [
        (path("local_loss_format"), monitor.local_loss_format.is_on()),
        (path("device_local_loss_format"), monitor.device_local_loss_format.is_on()),
        (path("optimizer_state_format"), monitor.optimizer_state_format.is_on()),
        (path("weight_state_format"), monitor.weight_state_format.is_on()),
        (path("local_norm_format"), monitor.local_norm_format.is_on()),
        (format!("{STABLE_RANK_PATH}.format"), stable_rank.is_some()),
        ("runner_wrapper.local_norm".to_string(), wrapper.local_norm),
    ];
    for (path, _) in watched.into_iter().filter(|(_, is_watched)| *is_watched) {
        let message = "is not built for pipeline stages, each of which sees its own layers; remove it";
        source.unsupported(&path, message);
    }
}

/// The parameters that train; none after a fault of the patterns that freeze some.
fn trained(grouping: &Grouping, plan: &RunPlan) -> Vec<Spec> {
    let specs = grouping.apply(Gpt::describe(&plan.model)).unwrap_or_default();
    specs.into_iter().filter(|spec| spec.trains).collect()
}
