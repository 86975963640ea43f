//! `CheckpointMonitor`: when checkpoints are written, which of them are kept, and how they are named.
//!
//! A monitor that never saves (both strategies 0) is an error. Old checkpoints are removed after the new one is
//! complete. On several ranks a checkpoint that is due by the clock is written a step later, since the first rank's
//! clock decides for all.

use crate::settings::engine::*;

rows! {
    /// `CheckpointMonitor`: when checkpoints are written and which of them are kept. Without it only the last step has
    /// a checkpoint. `meta.json` beside the checkpoints names the newest.
    pub struct CheckpointMonitor in "callbacks.CheckpointMonitor" {
        /// Steps between checkpoints; 0: `save_checkpoint_seconds` decides.
        save_checkpoint_steps: u64 = Host.default(1),
        /// Seconds between checkpoints, if `save_checkpoint_steps` is 0: a checkpoint is written after the first step
        /// that ends after this time.
        save_checkpoint_seconds: u64 = Host.default(0).example("600\nsave_checkpoint_steps: 0"),
        /// How many are kept. 0: `keep_checkpoint_per_n_minutes` decides, and without it all are kept.
        keep_checkpoint_max: u64 = Host.default(5),
        /// Length in minutes of the periods of which one checkpoint each is kept, if `keep_checkpoint_max` is 0. Of the
        /// checkpoints that are younger than one period, the oldest and the newest are kept.
        keep_checkpoint_per_n_minutes: u64 = Host.default(0).example("30\nkeep_checkpoint_max: 0"),
        /// Beginning of the names of checkpoints, `PREFIX-step_NNNNNNN`; with `CKP` the names are just `step_NNNNNNN`.
        prefix: String = Host.default(NO_PREFIX.to_string()).read_by(prefix).example("llama"),
    }
    sections "type"
}

/// The default of `prefix`.
const NO_PREFIX: &str = "CKP";

impl CheckpointMonitor {
    /// The beginning of the names of checkpoints; empty for the default.
    pub fn prefix(&self) -> &str {
        if self.prefix == NO_PREFIX { "" } else { &self.prefix }
    }

    /// Reads the callback at `path`. If two strategies that exclude each other are written, the one by number counts.
    pub(crate) fn read_checked(source: &Source, path: &str) -> Self {
        let mut monitor = Self::read_at(source, path);
        // In MindFormers an empty value is not a number.
        let is_empty = |key: &str| source.document.get(&format!("{path}.{key}")).is_some_and(Node::is_none);
        if is_empty("save_checkpoint_steps") && monitor.save_checkpoint_seconds > 0 {
            monitor.save_checkpoint_steps = 0;
        }
        if is_empty("keep_checkpoint_max") && monitor.keep_checkpoint_per_n_minutes > 0 {
            monitor.keep_checkpoint_max = 0;
        }
        let (steps, seconds) = (monitor.save_checkpoint_steps, monitor.save_checkpoint_seconds);
        let key = format!("{path}.save_checkpoint_steps");
        if steps == 0 && seconds == 0 && source.is_sound(path) {
            source.fault(
                &key,
                "nothing says when checkpoints are written: write a number above 0 here or at \
                                save_checkpoint_seconds",
            );
        }
        let idle = |key: &str, other: &str, number: u64| {
            source.note(format!("callbacks: {key} counts where `{other}: 0` is written; it is {number}"));
        };
        if steps > 0 && seconds > 0 {
            idle("save_checkpoint_seconds", "save_checkpoint_steps", steps);
            monitor.save_checkpoint_seconds = 0;
        }
        let kept = monitor.keep_checkpoint_max;
        if kept > 0 && monitor.keep_checkpoint_per_n_minutes > 0 {
            idle("keep_checkpoint_per_n_minutes", "keep_checkpoint_max", kept);
            monitor.keep_checkpoint_per_n_minutes = 0;
        }
        monitor
    }
}

/// Reads the prefix, which becomes the beginning of a folder's name.
fn prefix(reader: &Reader<'_>, key: &'static str) -> Option<String> {
    let prefix: String = reader.convert(key, reader.node(key)?)?;
    let is_wrong = prefix.contains(['/', '\\']) || prefix.chars().any(char::is_control);
    if is_wrong {
        reader.fault(
            key,
            format!("expected the beginning of a folder's name, found `{}`", prefix.escape_debug()),
        );
    }
    (!is_wrong).then_some(prefix)
}
