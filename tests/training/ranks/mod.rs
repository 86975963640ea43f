//! Runs on several ranks of this process.

mod against_one;
mod whole_runs;
