//! `monitor_config`: norms and other numbers that are reported during a run.

mod formats;

pub use formats::Formats;

use crate::settings::engine::*;

rows! {
    /// `monitor_config`: norms and other numbers of single parameters, layers and micro-batches. The `_format` key of
    /// each number sends it to the log, as a line `Epoch:[  1/  2], step:[   10/  500] weight_norm: 41.8672`, to
    /// TensorBoard, or to both; the number is then also in `monitor` of `metrics.jsonl`. Numbers without a format are
    /// not computed and cost nothing.
    pub struct Monitor in PATH {
        /// Whether anything is monitored. If False, the formats and `print_struct` have no effect.
        monitor_on: bool = Host.default(false),
        /// Steps between reports; the norms are computed only at these steps.
        step_interval: u64 = Host.default(1).within(COUNT),
        /// Parameters whose norms are reported one by one: regular expressions, found anywhere in the parameter's path
        /// here, its Hugging Face name or its Megatron name; by default all parameters that train.
        target: Vec<String> = Host.optional().example("['wo']"),
        /// Whether the parameters that `target` does not match are reported instead.
        invert: bool = Host.default(false).example("True\ntarget: ['wo']"),
        /// `local_norm/{parameter}`: L2 norm of the parameter's gradient of the whole step, unscaled and before
        /// clipping.
        local_norm_format: Formats = Host.optional().example("log"),
        /// `micro_local_lm_loss`: mean loss of each micro-batch on the first rank, in nats per token, with one log line
        /// for each. TensorBoard and `metrics.jsonl` have `local_lm_loss`, the mean over these micro-batches. The loss
        /// of multi-token prediction, without its factor, has `mtp` in place of `lm`; balance losses of experts, with
        /// their factors, have `aux`.
        local_loss_format: Formats = Host.optional().example("log"),
        /// `adam_m_norm/{parameter}` and `adam_v_norm/{parameter}`: L2 norms of the first and second moments after
        /// the update. The momentum of Muon and SGD is `momentum_norm/{parameter}`.
        optimizer_state_format: Formats = Host.optional().example("log"),
        /// `weight_norm`: L2 norm of all weights that train, after the update.
        weight_state_format: Formats = Host.optional().example("log"),
        /// `max_attention_logit/{layer}`: the largest attention score of each head over the rows and micro-batches of
        /// the step, scaled and masked as the softmax receives it, with all heads in one log line. `/mean` and `/max`
        /// are the mean and the maximum over the heads; TensorBoard has these two.
        max_attention_logit_format: Formats = Host.optional().example("log"),
        /// Whether to log the names of the parameters that train and end the run before its first step.
        print_struct: bool = Host.default(false),
        /// Number of steps in a row, skipped by `use_skip_data_by_global_norm`, that ends the run with an error.
        global_norm_spike_count_threshold: u64 = Host.default(10).within(COUNT),
        /// Whether `metrics.jsonl` has numbers of every rank: `rank_step_ms`, the duration of the step, and
        /// `rank_memory_mib`, the device memory of the rank's model.
        device_local_metrics: bool = Host.default(false),
    }
    sections "stable_rank_config"
}

/// The dotted path of the section.
pub(crate) const PATH: &str = "monitor_config";

impl Monitor {
    /// Applies `change` to the destinations of each number.
    pub(crate) fn change_formats(&mut self, change: impl Fn(&'static str, Formats) -> Formats) {
        self.local_norm_format = change("local_norm_format", self.local_norm_format);
        self.local_loss_format = change("local_loss_format", self.local_loss_format);
        self.optimizer_state_format = change("optimizer_state_format", self.optimizer_state_format);
        self.weight_state_format = change("weight_state_format", self.weight_state_format);
        let key = "max_attention_logit_format";
        self.max_attention_logit_format = change(key, self.max_attention_logit_format);
    }
}
