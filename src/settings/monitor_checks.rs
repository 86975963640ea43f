//! What `monitor_config` asks for, checked against the rest of a run.

use super::engine::Source;
use super::plan::RunPlan;
use super::sections::monitor::{self, Monitor};
use crate::model::groups::{Grouping, Selection};
use crate::model::parameters::{Gpt, Spec};

/// Reports patterns that select nothing.
pub(super) fn check(plan: &RunPlan, source: &Source) {
    let Monitor { target, invert, .. } = &plan.settings.monitor;
    if target.is_empty() && !invert {
        return;
    }
    let path = format!("{}.target", monitor::PATH);
    match Selection::new(target, *invert) {
        Err(message) => source.fault(&path, message),
        Ok(selection) if !trained(&plan.grouping(), plan).iter().any(|spec| selection.takes(spec)) => {
            let message = "selects no parameter that trains; names are such as \
                           model.layers.0.self_attn.q_proj.weight or layers.0.attention.wqkv";
            source.fault(&path, message);
        }
        Ok(_) => (),
    }
}

/// The parameters that train; none after a fault of the patterns that freeze some.
fn trained(grouping: &Grouping, plan: &RunPlan) -> Vec<Spec> {
    let specs = grouping.apply(Gpt::describe(&plan.model)).unwrap_or_default();
    specs.into_iter().filter(|spec| spec.trains).collect()
}
