//! Callbacks that say what keys of other sections say: each is translated to those keys, and its place in the list
//! stays empty.

use crate::settings::engine::*;

rows! {
    /// `EvalCallBack`: evaluates during training, as `do_eval: True` does; the run folder's `config.yaml` says it
    /// that way.
    pub struct EvalCallback in "callbacks.EvalCallBack" {
        /// Steps between evaluations, as `eval_step_interval`.
        step_interval: i64 = Host.default(100),
        /// Epochs between evaluations, as `eval_epoch_interval`.
        epoch_interval: i64 = Host.default(-1).example("2"),
    }
    sections "type"
}

rows! {
    /// `TrainCallBack`: ends the run early, as `runner_config.stop_step` does; of the two the earlier step counts.
    pub struct TrainCallback in "callbacks.TrainCallBack" {
        /// The run ends after this step, 0: after its epochs.
        stop_step: u64 = Host.default(0),
    }
    sections "type"
}

rows! {
    /// `MoEDropRateCallback`: with `moe_config.callback_moe_droprate: True` a log line with each layer's drop rate,
    /// the share of the step's choices that were dropped. MindFormers' estimate stands beside it in `metrics.jsonl`.
    /// Its keys repeat settings of the model and must match them.
    pub struct DropRateCallback in "callbacks.MoEDropRateCallback" {
        /// Experts of a layer.
        expert_num: Option<u64> = Host.required(),
        /// Slots over an equal share of the choices.
        capacity_factor: Option<f64> = Host.required(),
        /// Blocks, those for multi-token prediction not counted.
        num_layers: Option<u64> = Host.required(),
        /// Blocks for multi-token prediction.
        mtp_depth: Option<u64> = Host.required(),
    }
    sections "type"
}

rows! {
    /// `TopkBiasBalanceCallback`: moves the bias of the choice in MindFormers; here the device does. Its keys
    /// repeat settings of the model and must match them.
    pub struct TopkBiasCallback in "callbacks.TopkBiasBalanceCallback" {
        /// Whether a bias takes part in the choice.
        balance_via_topk_bias: Option<bool> = Host.optional(),
        /// By how much it moves.
        topk_bias_update_rate: Option<f64> = Host.optional(),
        /// Experts of a layer.
        expert_num: Option<u64> = Host.optional(),
        /// Micro-batches in a step.
        gradient_accumulation_steps: Option<u64> = Host.optional(),
        /// Blocks, those for multi-token prediction not counted.
        num_layers: Option<u64> = Host.optional(),
        /// Blocks for multi-token prediction.
        mtp_depth: Option<u64> = Host.optional(),
    }
    // MindFormers' count of micro-batches includes those of pipeline stages.
    sections "type"
}

const LIST: &str = "callbacks";
const EVAL: &str = "EvalCallBack";
const TRAIN: &str = "TrainCallBack";
const DROP_RATE: &str = "MoEDropRateCallback";
const TOPK_BIAS: &str = "TopkBiasBalanceCallback";

/// Other names of callbacks. Half of all files have the misspelling.
const NAMES: [(&str, &str); 2] =
    [("LossMonitor", "MFLossMonitor"), ("CheckpointMointor", "CheckpointMonitor")];
/// Uploads to a cloud that is not ours.
const IGNORED: &str = "ObsMonitor";
const PLANNED: &str =
    "TrainingStateMonitor MaxLogitsMonitor ProfileMonitor TrainFaultTolerance StressDetectCallBack";

/// The table of each callback that is translated.
pub(crate) fn tables() -> [(TableId, Table); 4] {
    [
        EvalCallback::documented(),
        TrainCallback::documented(),
        DropRateCallback::documented(),
        TopkBiasCallback::documented(),
    ]
}

/// Translates every such callback of the list.
pub(super) fn translate(source: &mut Source) {
    let mut seen = Vec::new();
    for path in source.items(LIST) {
        let kind_path = join(&path, "type");
        let Some(kind) = source.word(&kind_path).map(str::to_string) else { continue };
        match kind.as_str() {
            EVAL => evaluate(source, &path),
            TRAIN => stop(source, &path),
            DROP_RATE => show_drop_rates(source, &path),
            TOPK_BIAS => claim(source, &path, TopkBiasCallback::read_at),
            IGNORED => source.ignore_word(LIST, &kind),
            planned if words(PLANNED).any(|one| one == planned) => {
                source.fault(&kind_path, format!("`{planned}` is not built yet; remove this callback"));
            }
            other => {
                if let Some((_, key)) = NAMES.iter().find(|(name, _)| *name == other) {
                    source.document.put(&kind_path, (*key).into(), &kind_path);
                }
                continue;
            }
        }
        // MindFormers keeps the last one without a notice.
        if seen.contains(&kind) {
            source.fault(&kind_path, format!("a second {kind}; keep one of them"));
        }
        seen.push(kind);
        source.document.put(&path, Node::Null, &path);
    }
}

/// Writes `do_eval: True`, with the callback's intervals where none are at the top level.
fn evaluate(source: &mut Source, path: &str) {
    let callback = EvalCallback::read_at(source, path);
    let kind_path = join(path, "type");
    match source.node("do_eval").map(bool::from_node) {
        None => source.document.put("do_eval", true.into(), &kind_path),
        Some(Some(false)) => {
            let message = "an EvalCallBack evaluates, and `do_eval` is False; write `do_eval: True` or remove the \
                           callback";
            source.fault(&kind_path, message);
        }
        Some(_) => {}
    }
    let intervals = [
        ("step_interval", callback.step_interval, "eval_step_interval"),
        ("epoch_interval", callback.epoch_interval, "eval_epoch_interval"),
    ];
    for (key, asked, top_key) in intervals {
        let own_path = join(path, key);
        let is_written = source.node(&own_path).is_some();
        let other = source.node(top_key).map(i64::from_node);
        match other {
            Some(Some(other)) if is_written && other != asked => {
                let message = format!("is {asked}, and `{top_key}` is {other}; write one of them");
                source.fault(&own_path, message);
            }
            None if is_written => source.document.put(top_key, asked.into(), &own_path),
            _ => {}
        }
    }
}

/// Writes `runner_config.stop_step`, unless an earlier step is written there.
fn stop(source: &mut Source, path: &str) {
    const NATIVE: &str = "runner_config.stop_step";
    let stop = TrainCallback::read_at(source, path).stop_step;
    let other = source.value::<u64>(NATIVE).unwrap_or(0);
    if stop == 0 {
        return;
    }
    if other > 0 && other != stop {
        source.note(format!(
            "callbacks: TrainCallBack ends the run after step {stop}, and `{NATIVE}` after step {other}; the \
             earlier one counts"
        ));
    }
    if other == 0 || stop < other {
        source.document.put(NATIVE, stop.into(), &join(path, "stop_step"));
    }
}

/// Logs drop rates. As in MindFormers the switch must be on, too: `moe_config.callback_moe_droprate: True`.
fn show_drop_rates(source: &mut Source, path: &str) {
    const SWITCH: &str = "moe_config.callback_moe_droprate";
    claim(source, path, DropRateCallback::read_at);
    // A value that is neither on nor off is a fault of the switch.
    if source.node(SWITCH).is_none_or(|node| bool::from_node(node) == Some(false)) {
        source.note(format!("{LIST}: {DROP_RATE} logs nothing without `{SWITCH}: True`"));
    }
}

/// Collects the settings that the callback at `path` repeats, to be compared with them.
fn claim<S: Section>(source: &mut Source, path: &str, read: fn(&Source, &str) -> S) {
    for entry in read(source, path).entries() {
        let repeated = REPEATED.iter().find(|(key, _)| *key == entry.key);
        if let (Some((key, native)), Some(claimed)) = (repeated, entry.written) {
            let absent = where_absent(key);
            source.claims.push(Claim { path: join(path, key), claimed, native, absent });
        }
    }
}

/// The keys with which callbacks repeat settings, and those settings.
const REPEATED: [(&str, &str); 7] = [
    ("expert_num", "moe_config.expert_num"),
    ("num_layers", "model.model_config.num_layers"),
    ("mtp_depth", "model.model_config.mtp_depth"),
    ("capacity_factor", "moe_config.capacity_factor"),
    ("balance_via_topk_bias", "moe_config.balance_via_topk_bias"),
    ("topk_bias_update_rate", "moe_config.topk_bias_update_rate"),
    ("gradient_accumulation_steps", "runner_config.gradient_accumulation_steps"),
];

/// The value that such a key must have if the setting is absent. `None` means any value: no slot follows from an absent
/// `capacity_factor`.
fn where_absent(key: &str) -> Option<Node> {
    match key {
        "expert_num" => Some(1_u64.into()),
        "mtp_depth" => Some(0_u64.into()),
        "balance_via_topk_bias" => Some(false.into()),
        "topk_bias_update_rate" => Some(0.0.into()),
        _ => None,
    }
}
