//! Runs on several ranks of this process.

mod against_one;
mod traffic;
mod whole_runs;
