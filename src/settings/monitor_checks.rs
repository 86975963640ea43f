//! What `monitor_config` asks for, held against the rest of a run.

use super::engine::{Section, Source};
use super::plan::RunPlan;
use super::sections::monitor::{self, Formats, Monitor, STABLE_RANK_PATH, StableRank};
use super::sections::parallel::Sharded;
use super::values::Settings;
use crate::model::groups::{Grouping, Selection};
use crate::model::parameters::{Gpt, Spec};

/// Leaves what has an effect: nothing where the monitor is off, and what goes to TensorBoard only where there is one.
pub(super) fn decide(settings: &mut Settings, source: &Source) {
    if !settings.monitor.monitor_on {
        note_idle(settings, source);
        let Monitor { global_norm_spike_count_threshold, device_local_metrics, .. } = settings.monitor;
        settings.monitor =
            Monitor { global_norm_spike_count_threshold, device_local_metrics, ..Monitor::default() };
        settings.stable_rank = None;
        return;
    }
    let has_tensorboard = settings.tensorboard.is_some();
    let shown = |path: String, formats: Formats| {
        if !formats.tensorboard || has_tensorboard {
            return formats;
        }
        source.note(format!("{path}: to the log alone, as there is no `tensorboard` section"));
        Formats::LOG
    };
    settings.monitor.change_formats(|key, formats| shown(format!("{}.{key}", monitor::PATH), formats));
    if let Some(config) = &mut settings.stable_rank {
        config.format = shown(format!("{STABLE_RANK_PATH}.format"), config.format);
    }
    settings.stable_rank = settings.stable_rank.take().filter(|config| config.format.is_on());
}

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
    if stable_rank.is_some() && (plan.sharding.what != Sharded::None || plan.layout.expert > 1) {
        let message = "is not built for ranks that hold a part of the weights each; remove it, or write \
                       `enable_parallel_optimizer: False` and `expert_parallel: 1`";
        source.unsupported(&format!("{STABLE_RANK_PATH}.format"), message);
    }
}

/// The parameters that train; none after a fault of the patterns that freeze some.
fn trained(grouping: &Grouping, plan: &RunPlan) -> Vec<Spec> {
    let specs = grouping.apply(Gpt::describe(&plan.model)).unwrap_or_default();
    specs.into_iter().filter(|spec| spec.trains).collect()
}

/// Says which keys a monitor that is off leaves without effect.
fn note_idle(settings: &Settings, source: &Source) {
    let other = |keys: &str| ["global_norm_spike_count_threshold", "device_local_metrics"].contains(&keys);
    let default = Monitor::default().entries();
    let written = settings.monitor.entries().into_iter().zip(default);
    let idle = written.filter(|(entry, default)| !other(entry.key) && entry.written != default.written);
    let mut idle: Vec<&str> = idle.map(|(entry, _)| entry.key).collect();
    if settings.stable_rank.as_ref().is_some_and(|config| *config != StableRank::default()) {
        idle.push("stable_rank_config");
    }
    if !idle.is_empty() {
        let keys = idle.join(", ");
        source.note(format!("{}: without effect while `monitor_on` is False: {keys}", monitor::PATH));
    }
}
