//! One file per kernel.
pub mod matmul;
