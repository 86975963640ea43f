//! Decides which settings count in a run, from what the sections say. After this pass settings do not change.

mod micro_batches;

use super::Settings;
use super::engine::{MAX_SIZE, Section, Source};
use super::sections::context::F32Products;
use super::sections::monitor::{self, Formats, Monitor};
use super::sections::parallel::{Distribution, Sharding};
use crate::element::Element;
use crate::kernels::Tier;
use crate::model::parameters::UpdateRule;
use crate::ranks::RankLayout;

/// Decides what follows from several sections, and leaves out what has no effect. Returns which tensors each rank holds
/// a part of, and how many tokens all ranks together learn from in a step.
pub(super) fn decide(
    settings: &mut Settings,
    distribution: &Distribution,
    source: &Source,
) -> (Sharding, usize) {
    if source.is_faultless() {
        check_claims(settings, source);
    }
    micro_batches::decide(settings, distribution, source);
    let layout = distribution.layout;
    let sharding = distribution.sharding(settings.recompute.parallel_optimizer_comm_recompute, source);
    settings.parallel = distribution.sections(settings.runner.gradient_accumulation_steps, &sharding);
    let tokens_per_step = tokens_per_step(settings, layout.data, source);
    decide_outputs(settings);
    decide_monitor(settings, source);
    check_profile(settings, layout, source);
    check_stored_weights(settings, source);
    decide_products(settings, source);
    (sharding, tokens_per_step)
}

/// Compares the settings that a file repeats with the settings themselves.
fn check_claims(settings: &Settings, source: &Source) {
    let placed = settings.placed();
    for claim in &source.claims {
        let (section, key) = claim.native.rsplit_once('.').unwrap_or(("", claim.native));
        let entries = placed.iter().find(|placed| placed.path == section).map(|placed| &placed.entries);
        let entry = entries.and_then(|entries| entries.iter().find(|entry| entry.key == key));
        let actual = entry.and_then(|entry| entry.written.as_ref()).or(claim.absent.as_ref());
        if let Some(actual) = actual.filter(|actual| **actual != claim.claimed) {
            let claimed = &claim.claimed;
            let message = format!("`{key}` is {claimed}, but the model's is {actual}; make them equal");
            source.fault(&claim.path, message);
        }
    }
}

/// Keeps a summary exactly if token distributions are written, and a monitor of hot experts only if there are hot
/// experts. Folders are those of the run unless others are named.
fn decide_outputs(settings: &mut Settings) {
    let folder = settings.run.folder();
    let Settings { callbacks, moe, tensorboard, .. } = settings;
    let shows_distribution = moe.as_ref().is_some_and(|moe| moe.save_token_distribution);
    callbacks.summary = shows_distribution.then(|| callbacks.summary.take().unwrap_or_default());
    let summary = callbacks.summary.as_mut().map(|summary| (&mut summary.summary_dir, "summary"));
    let tensorboard = tensorboard.as_mut().map(|board| (&mut board.tensorboard_dir, "tensorboard"));
    for (place, name) in [summary, tensorboard].into_iter().flatten() {
        if place.as_os_str().is_empty() {
            *place = folder.join(name);
        }
    }
    if moe.as_ref().is_none_or(|moe| !moe.enable_cold_hot_expert) {
        callbacks.cold_hot = None;
    }
}

/// Checks that the keys agree on the type in which weights are stored, or notes that they are float32.
fn check_stored_weights(settings: &mut Settings, source: &Source) {
    const ROUNDING: &str = "optimizer.stochastic_rounding";
    const TYPE: &str = "model.model_config.param_init_type";
    let wanted = settings.model.param_init_type.take();
    let is_sound = |key: &str| source.is_sound(key);
    if !settings.optimizer.stochastic_rounding {
        match wanted.filter(|_| is_sound(ROUNDING)) {
            Some(Element::Bf16) => source.note(format!(
                "{TYPE}: float32 here, which is more precise; `{ROUNDING}: True` stores weights in bfloat16 alone"
            )),
            Some(Element::F16) => source.note(format!("{TYPE}: float32 here, which is more precise")),
            _ => (),
        }
        return;
    }
    if settings.model.config.compute != Element::Bf16 && is_sound("model.model_config.compute_dtype") {
        let message = "stores weights in bfloat16, as layers read them; write `model.model_config.compute_dtype: \
                       bfloat16`";
        source.fault(ROUNDING, message);
    }
    if wanted.is_some_and(|wanted| wanted != Element::Bf16) {
        source.fault(TYPE, format!("`{ROUNDING}: True` stores weights in bfloat16; write `bfloat16`"));
    }
}

/// Splits products of float32 only where there are some, and matrices may multiply them. Muon multiplies in float32,
/// whatever the model computes in.
fn decide_products(settings: &mut Settings, source: &Source) {
    let Settings { context, optimizer, model, .. } = settings;
    let compute = model.config.compute;
    let has_some = compute == Element::F32 || optimizer.matrix_rule() == UpdateRule::Matrix;
    let reason = match context.tier {
        _ if !has_some => format!("all products of this run are of {}", compute.name()),
        Some(tier) if tier != Tier::Matrix => format!("tier {} has no matrices", tier.name()),
        _ => return,
    };
    if context.f32_products == F32Products::Split {
        context.f32_products = F32Products::Float32;
        source.note(format!("context.f32_products: no effect, as {reason}"));
    }
}

/// Refuses to profile several ranks: they wait for each other between launches, and the times would include that.
fn check_profile(settings: &Settings, layout: RankLayout, source: &Source) {
    const STEPS: &str = "runner_config.profile_steps";
    if settings.runner.profile_steps > 0 && layout.world() > 1 && source.is_sound(STEPS) {
        source.fault(STEPS, "launches are timed on one device; leave it out, or profile with --as-single");
    }
}

/// Tokens in a step of `data` ranks that share a batch. Windows that no buffer can hold are a fault.
fn tokens_per_step(settings: &Settings, data: usize, source: &Source) -> usize {
    let (runner, length) = (&settings.runner, settings.model.config.seq_length);
    let of_batch = runner.batch_size.saturating_mul(length);
    let of_rank = of_batch.checked_mul(runner.gradient_accumulation_steps).filter(|_| of_batch <= MAX_SIZE);
    let tokens = of_rank.and_then(|tokens| tokens.checked_mul(data));
    let keys = ["runner_config.batch_size", "model.model_config.seq_length"];
    if tokens.is_none() && keys.iter().all(|path| source.is_sound(path)) {
        let message = format!("{} windows of {length} tokens are too many; lower it", runner.batch_size);
        source.fault("runner_config.batch_size", message);
    }
    tokens.unwrap_or(0)
}

/// Keeps the settings that have an effect: none if the monitor is off, and outputs to TensorBoard only if there is one.
fn decide_monitor(settings: &mut Settings, source: &Source) {
    if !settings.monitor.monitor_on {
        note_idle(settings, source);
        let Monitor { global_norm_spike_count_threshold, device_local_metrics, .. } = settings.monitor;
        settings.monitor =
            Monitor { global_norm_spike_count_threshold, device_local_metrics, ..Monitor::default() };
        return;
    }
    let has_tensorboard = settings.tensorboard.is_some();
    settings.monitor.change_formats(|key, formats| {
        if !formats.tensorboard || has_tensorboard {
            return formats;
        }
        let path = monitor::PATH;
        source.note(format!("{path}.{key}: to the log alone, as there is no `tensorboard` section"));
        Formats::LOG
    });
}

/// Notes the keys that have no effect because the monitor is off.
fn note_idle(settings: &Settings, source: &Source) {
    let other = |keys: &str| ["global_norm_spike_count_threshold", "device_local_metrics"].contains(&keys);
    let default = Monitor::default().entries();
    let written = settings.monitor.entries().into_iter().zip(default);
    let idle = written.filter(|(entry, default)| !other(entry.key) && entry.written != default.written);
    let idle: Vec<&str> = idle.map(|(entry, _)| entry.key).collect();
    if !idle.is_empty() {
        let keys = idle.join(", ");
        source.note(format!("{}: without effect while `monitor_on` is False: {keys}", monitor::PATH));
    }
}
