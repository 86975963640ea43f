//! Ranks over every transport: threads of this process, and with the feature `mpi` processes that `mpirun` starts.

#[path = "../runs/mod.rs"]
mod runs;

mod collectives;
mod ends;
mod program;
mod training;
mod transports;
