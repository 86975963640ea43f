//! Runs on several ranks of this process.

mod against_one;
mod checkpoints;
mod deaths;
mod exchanges;
mod memory;
mod spread;
mod traffic;
mod whole_runs;
