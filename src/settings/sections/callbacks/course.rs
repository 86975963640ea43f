//! The callbacks that say when a run evaluates and where it stops: another way to write keys of other sections.
//!
//! They are settled away when the settings are read: an `EvalCallBack` becomes `do_eval` with its intervals, a
//! `TrainCallBack` becomes `stop_step`. If both are written and differ, the intervals are an error, and the earlier
//! stop counts, with a notice.

use super::Callbacks;
use crate::settings::engine::*;
use crate::settings::sections::run::Run;
use crate::settings::sections::runner::Runner;

rows! {
    /// `EvalCallBack`: evaluates during training, as `do_eval: True` does; the run folder's `config.yaml` says it that way.
    pub struct EvalCallback {
        /// Steps between evaluations, as `eval_step_interval`.
        step_interval: i64 = Host.default(100),
        /// Epochs between evaluations, as `eval_epoch_interval`.
        epoch_interval: i64 = Host.default(-1).example("2"),
    }
    others [sections("type")]
}

rows! {
    /// `TrainCallBack`: ends the run early, as `runner_config.stop_step` does; of the two the earlier step counts.
    pub struct TrainCallback {
        /// The run ends after this step, 0: after its epochs.
        stop_step: u64 = Host.default(0),
    }
    others [sections("type")]
}

impl Callbacks {
    /// Leaves what these callbacks ask for to the keys of `run` and `runner`, which must not say something else.
    pub(crate) fn settle_course(&mut self, source: &Source, run: &mut Run, runner: &mut Runner) {
        if let Some((path, callback)) = self.eval.take() {
            if source.node("do_eval").and_then(bool::from_node) == Some(false) {
                let message = "an EvalCallBack evaluates, and `do_eval` is False; write `do_eval: True` or remove the callback";
                source.fault(&format!("{path}.type"), message);
            }
            run.do_eval = true;
            let intervals = [
                ("step_interval", callback.step_interval, "eval_step_interval", &mut run.eval_step_interval),
                (
                    "epoch_interval",
                    callback.epoch_interval,
                    "eval_epoch_interval",
                    &mut run.eval_epoch_interval,
                ),
            ];
            for (key, asked, top_key, interval) in intervals {
                let own_path = format!("{path}.{key}");
                let (is_own, is_top) = (source.node(&own_path).is_some(), source.node(top_key).is_some());
                if is_own && is_top && asked != *interval {
                    let message = format!("is {asked}, and `{top_key}` is {interval}; write one of them");
                    source.fault(&own_path, message);
                }
                if is_own || !is_top {
                    *interval = asked;
                }
            }
        }
        let stop = self.train.take().map_or(0, |callback| callback.stop_step);
        if stop > 0 {
            let other = runner.stop_step;
            if other > 0 && other != stop {
                source.note(format!(
                    "callbacks: TrainCallBack ends the run after step {stop}, and `runner_config.stop_step` after step {other}; the \
                     earlier one counts"
                ));
            }
            runner.stop_step = if other == 0 { stop } else { stop.min(other) };
        }
    }
}
