//! Ranks over every transport: threads of this process, and with the feature `mpi` processes that `mpirun` starts.

#[path = "../runs/mod.rs"]
mod runs;

mod collectives;
mod deaths;
mod ends;
mod noted;
mod program;
mod training;
mod transports;
