//! A tiny run of several ranks, for deaths at any moment.

use super::{FolderRun, Setup, is_long};

/// How many ranks it has.
pub const MORTAL_RANKS: usize = 3;

/// How many deaths it lives through.
pub fn mortal_deaths() -> u64 {
    if is_long() { 30 } else { 10 }
}

/// A run of [`MORTAL_RANKS`] that saves after every second step, up to step `stop_step`, and goes on where it was.
pub fn mortal(stop_step: u64) -> FolderRun {
    let keys = [
        "--model.model_config={type: LlamaConfig, vocab_size: 256, hidden_size: 16, num_layers: 1, num_heads: 2, seq_length: 8, \
         intermediate_size: 16}",
        "--callbacks=[{type: CheckpointMonitor, save_checkpoint_steps: 2, keep_checkpoint_max: 2}]",
        "--gradient_accumulation_steps=1",
        "--use_parallel=True",
        &format!("--parallel_config.data_parallel={MORTAL_RANKS}"),
        "--parallel.enable_parallel_optimizer=True",
        &format!("--stop_step={stop_step}"),
        "--resume_training=auto",
    ];
    FolderRun::new(Setup::new("mortal", "").with(&keys))
}
