//! `monitor_config`: what the original watches during a run.

use crate::settings::engine::*;

rows! {
    /// `monitor_config`: norms and other numbers of the step.
    pub struct Monitor {
        /// So many steps in a row that `use_skip_data_by_global_norm` skips end the run with an error.
        global_norm_spike_count_threshold: u64 = Host.default(10).within(COUNT),
        /// Whether `metrics.jsonl` has the numbers of every rank: `rank_step_ms`, how long the step took, and `rank_memory_mib`, the
        /// device memory of its model.
        device_local_metrics: bool = Host.default(false),
    }
    others [
        ignored(
            "dump_path target invert step_interval local_loss_format device_local_loss_format local_norm_format \
                device_local_norm_format optimizer_state_format weight_state_format throughput_baseline print_struct",
            "without effect while the monitor is off",
        ),
        refused("monitor_on check_for_global_norm", Passes::Off, "write `False`"),
    ]
}

/// The dotted path of the section.
pub(crate) const PATH: &str = "monitor_config";

/// Reads the section, where the keys of `shared` may be too.
pub(crate) fn read<'a>(source: &'a Source<'a>, shared: &Table) -> (Reader<'a>, Monitor) {
    let reader = Reader::open(source, PATH, &[&Monitor::table(), shared]);
    let monitor = Monitor::read(&reader);
    (reader, monitor)
}
