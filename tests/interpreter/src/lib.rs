//! Executes compute shaders, as naga modules, on the CPU, and finds what results do not show: races, barriers that not
//! all invocations reach, accesses past the end of an array, and workgroup memory that is read before it is written.
//!
//! Two accesses to a scalar race if one of them writes it, at least one is not atomic, different invocations make them,
//! and no barrier for that memory lies in between; invocations of different workgroups have none. All invocations of a
//! workgroup take each statement together, one workgroup after the other, but what is found depends only on how many
//! barriers each access comes after. So a race is found if the inputs lead to both accesses, whether or not it would
//! change a result on any machine. The same value from two invocations is a race too, as in WGSL.
//!
//! It is not specified which invocation of a subgroup loads or stores an element of a cooperative matrix. Such an
//! access counts as one of an invocation of its own, which stands for the subgroup: it races with accesses of every
//! single invocation, but not with other matrices of the same subgroup. What invocations hand each other within a
//! subgroup orders what they do if the subgroup is the whole workgroup: only kernels for software adapters do that,
//! where a subgroup is a vector. What the interpreter does not know, it refuses with a panic; nothing is left out.
//!
//! [`turns`] follows one invocation alone, and counts how often its loops turn.

mod access;
mod arithmetic;
mod control;
mod expressions;
mod launch;
mod machine;
mod matrices;
mod memory;
#[cfg(test)]
mod tests;
mod turns;

pub use launch::{Bound, Launch, Report, barriers, without_barrier};
pub use turns::{Fill, turns};
