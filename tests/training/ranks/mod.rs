//! Runs on several ranks of this process.

mod against_one;
mod checkpoints;
mod deaths;
mod spread;
mod whole_runs;
