//! Small training runs on the text `tests/data/mill.txt`: how they are configured, what they leave, and the f64 model
//! of the same shape.
#![allow(dead_code, unused_imports)] // each test binary uses its own part

mod counting;
mod files;
mod folder_run;
mod generated;
mod leased;
mod mortal;
mod on_ranks;
mod reference_shape;
mod resumable;
mod setup;
mod trained;
mod weights;

/// Whether tests run in every combination. Without it each part of them is in one that runs.
pub fn is_long() -> bool {
    std::env::var_os("GRISTMILL_LONG").is_some()
}

/// Steps of a run that is compared with the reference, each by itself: ten with `GRISTMILL_LONG`.
pub fn compared_steps() -> u64 {
    if is_long() { 10 } else { 6 }
}

/// Of these every third one, and all with `GRISTMILL_LONG`. From the last one backwards, since lists begin with the
/// plainest.
pub fn every_third<T>(all: &[T]) -> impl Iterator<Item = &T> {
    all.iter().rev().step_by(if is_long() { 1 } else { 3 })
}

/// What the case of this number runs with: these take turns, but for `GRISTMILL_LONG`, which takes all.
pub fn in_turn<T>(number: usize, all: &[T]) -> &[T] {
    let turn = number % all.len();
    if is_long() { all } else { &all[turn..=turn] }
}

pub use counting::Counting;
pub use files::{
    TensorFile, Words, events, kinds, metrics, newest_checkpoint, read_tensors, save_checkpoint,
    write_tensors,
};
pub use folder_run::{FolderRun, Left};
pub use generated::{GREEDY, continuations, trained_model, trained_model_with_tokenizer};
pub use leased::Leased;
pub use mortal::{
    MORTAL_RANKS, live_through_deaths, mortal, mortal_hot_experts, mortal_matrices, mortal_stages,
};
pub use on_ranks::{on_counting_ranks, on_ranks, run_on_rank};
pub use reference_shape::reference_shape;
pub use resumable::{STEPS, evaluated, resumable, uninterrupted};
pub use setup::{Setup, new_trainer, open_gpu, open_gpu_of};
pub use trained::Trained;
pub use weights::{
    Weights, add_to, reference_name, reference_tensors, relative_distance, router_states, set_gradient,
    tensors, tensors_of,
};
