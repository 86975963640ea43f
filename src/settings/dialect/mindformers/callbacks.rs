//! Callbacks that repeat keys of other sections: each is translated to those keys, and its place in the list stays
//! empty.

use crate::settings::engine::*;

rows! {
    /// `EvalCallBack`: evaluates during training, as `do_eval: True` does. The `config.yaml` of the run folder has that
    /// key in its place.
    pub struct EvalCallback in "callbacks.EvalCallBack" {
        /// Steps between evaluations; the same as `eval_step_interval`.
        step_interval: i64 = Host.default(100),
        /// Epochs between evaluations; the same as `eval_epoch_interval`.
        epoch_interval: i64 = Host.default(-1).example("2"),
    }
    sections "type"
}

rows! {
    /// `TrainCallBack`: ends the run early, as `runner_config.stop_step` does. If both are written, the earlier step
    /// counts.
    pub struct TrainCallback in "callbacks.TrainCallBack" {
        /// Step after which the run ends; 0: the run ends after its epochs.
        stop_step: u64 = Host.default(0),
    }
    sections "type"
}

rows! {
    /// `MoEDropRateCallback`: with `moe_config.callback_moe_droprate: True`, logs a line with the drop rate of each
    /// layer, which is the share of the step's choices that were dropped. `metrics.jsonl` also has MindFormers'
    /// estimate of it. The keys repeat settings of the model and must match them.
    pub struct DropRateCallback in "callbacks.MoEDropRateCallback" {
        /// Experts in a layer, as in `moe_config`.
        expert_num: Option<u64> = Host.required(),
        /// Slots of an expert, as a multiple of an equal share of the choices; as in `moe_config`.
        capacity_factor: Option<f64> = Host.required(),
        /// Blocks without those for multi-token prediction, as in `model.model_config`.
        num_layers: Option<u64> = Host.required(),
        /// Blocks for multi-token prediction, as in `model.model_config`.
        mtp_depth: Option<u64> = Host.required(),
    }
    sections "type"
}

rows! {
    /// `TopkBiasBalanceCallback`: in MindFormers, moves the bias in the choice of experts; here the device moves it.
    /// The keys repeat settings of the model and must match them.
    pub struct TopkBiasCallback in "callbacks.TopkBiasBalanceCallback" {
        /// Whether a bias takes part in the choice of experts, as in `moe_config`.
        balance_via_topk_bias: Option<bool> = Host.optional(),
        /// Amount by which the bias moves in a step, as in `moe_config`.
        topk_bias_update_rate: Option<f64> = Host.optional(),
        /// Experts in a layer, as in `moe_config`.
        expert_num: Option<u64> = Host.optional(),
        /// Micro-batches in a step, as in `runner_config`.
        gradient_accumulation_steps: Option<u64> = Host.optional(),
        /// Blocks without those for multi-token prediction, as in `model.model_config`.
        num_layers: Option<u64> = Host.optional(),
        /// Blocks for multi-token prediction, as in `model.model_config`.
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

/// Other names of callbacks. Half of all files have the misspelled name.
const NAMES: [(&str, &str); 2] =
    [("LossMonitor", "MFLossMonitor"), ("CheckpointMointor", "CheckpointMonitor")];
/// A callback that uploads to a cloud, which is not supported here.
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

/// Translates every callback of the list that repeats other keys.
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
            planned if has_word(PLANNED, planned) => {
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

/// Writes `do_eval: True`, and the callback's intervals if none are written at the top level.
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

/// Checks the callback that logs drop rates. As in MindFormers, a switch must be on, too:
/// `moe_config.callback_moe_droprate: True`.
fn show_drop_rates(source: &mut Source, path: &str) {
    const SWITCH: &str = "moe_config.callback_moe_droprate";
    claim(source, path, DropRateCallback::read_at);
    // A value that is neither on nor off is a fault of the switch.
    if source.node(SWITCH).is_none_or(|node| bool::from_node(node) == Some(false)) {
        source.note(format!("{LIST}: {DROP_RATE} logs nothing without `{SWITCH}: True`"));
    }
}

/// Collects the settings that the callback at `path` repeats. They are compared with the settings themselves later.
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

/// The value that a repeating key must have if the setting itself is absent. `None` means any value: no slot follows
/// from an absent `capacity_factor`.
fn where_absent(key: &str) -> Option<Node> {
    match key {
        "expert_num" => Some(1_u64.into()),
        "mtp_depth" => Some(0_u64.into()),
        "balance_via_topk_bias" => Some(false.into()),
        "topk_bias_update_rate" => Some(0.0.into()),
        _ => None,
    }
}
