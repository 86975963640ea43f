//! `monitor_config`: what is watched during a run.

mod formats;

pub use formats::Formats;

use crate::settings::engine::*;

rows! {
    /// `monitor_config`: norms and other numbers of single parameters, layers and micro-batches. Each goes to the
    /// log, as a line `Epoch:[  1/  2], step:[   10/  500] weight_norm: 41.8672`, to TensorBoard or to both, as its
    /// `_format` says, and is in `monitor` of `metrics.jsonl`. What is off costs nothing.
    pub struct Monitor in PATH {
        /// Whether anything is watched. Where it is False the formats and `print_struct` have no effect.
        monitor_on: bool = Host.default(false),
        /// Steps from one report to the next; the launches of norms are made at these steps alone.
        step_interval: u64 = Host.default(1).within(COUNT),
        /// Parameters whose norms are reported one by one: regular expressions, found anywhere in a parameter's path
        /// here, in Hugging Face's name or in Megatron's; by default all that train.
        target: Vec<String> = Host.optional().example("['wo']"),
        /// Whether the others are reported, those that `target` does not match.
        invert: bool = Host.default(false).example("True\ntarget: ['wo']"),
        /// `local_norm/{parameter}`: L2 norm of the parameter's gradient of the whole step, unscaled and before
        /// clipping.
        local_norm_format: Formats = Host.optional().example("log"),
        /// `micro_local_lm_loss`: mean loss of each micro-batch of the first rank in nats per token, one line each;
        /// in TensorBoard and `metrics.jsonl` `local_lm_loss`, the mean of these. For multi-token prediction `mtp` in
        /// place of `lm`, without its factor, and for balance losses of experts `aux`, with their factors.
        local_loss_format: Formats = Host.optional().example("log"),
        /// `adam_m_norm/{parameter}` and `adam_v_norm/{parameter}`: L2 norms of the first and second moments after
        /// the update. The momentum of Muon and SGD is `momentum_norm/{parameter}`.
        optimizer_state_format: Formats = Host.optional().example("log"),
        /// `weight_norm`: L2 norm of all weights that train, after the update.
        weight_state_format: Formats = Host.optional().example("log"),
        /// `max_attention_logit/{layer}`: the largest attention score of each head over the rows and micro-batches of
        /// the step, scaled and masked as the softmax gets it, in one line; with `/mean` and `/max` over the heads,
        /// which are in TensorBoard too.
        max_attention_logit_format: Formats = Host.optional().example("log"),
        /// Whether the names of the parameters that train are logged, and the run ends before its first step.
        print_struct: bool = Host.default(false),
        /// So many steps in a row that `use_skip_data_by_global_norm` skips end the run with an error.
        global_norm_spike_count_threshold: u64 = Host.default(10).within(COUNT),
        /// Whether `metrics.jsonl` has the numbers of every rank: `rank_step_ms`, how long the step took, and
        /// `rank_memory_mib`, the device memory of its model.
        device_local_metrics: bool = Host.default(false),
    }
    sections "stable_rank_config"
}

/// The dotted path of the section.
pub(crate) const PATH: &str = "monitor_config";

impl Monitor {
    /// Applies `change` to the places where the number of each key goes.
    pub(crate) fn change_formats(&mut self, change: impl Fn(&'static str, Formats) -> Formats) {
        self.local_norm_format = change("local_norm_format", self.local_norm_format);
        self.local_loss_format = change("local_loss_format", self.local_loss_format);
        self.optimizer_state_format = change("optimizer_state_format", self.optimizer_state_format);
        self.weight_state_format = change("weight_state_format", self.weight_state_format);
        let key = "max_attention_logit_format";
        self.max_attention_logit_format = change(key, self.max_attention_logit_format);
    }
}
