//! What `monitor_config` asks for, checked against the rest of a run.

use super::engine::Source;
use super::plan::RunPlan;
use super::sections::monitor::{self, STABLE_RANK_PATH};
use crate::model::groups::{Grouping, Selection};
use crate::model::parameters::{Gpt, Spec};

/// Reports patterns that select nothing, and what several ranks do not have.
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
}

/// The parameters that train; none after a fault of the patterns that freeze some.
fn trained(grouping: &Grouping, plan: &RunPlan) -> Vec<Spec> {
    let specs = grouping.apply(Gpt::describe(&plan.model)).unwrap_or_default();
    specs.into_iter().filter(|spec| spec.trains).collect()
}
