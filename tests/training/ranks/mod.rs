//! Runs on several ranks of this process. `GRISTMILL_LONG` adds every other layout that a test lists, and steps.

mod against_one;
mod checkpoints;
mod deaths;
mod exchanges;
mod hot_experts;
mod layouts;
mod memory;
mod pipeline;
mod replicas;
mod shared_head;
pub mod spread;
mod tensor_parallel;
mod trial;
mod whole_runs;
