//! Ranks over every transport: threads of this process, and with the feature `mpi` processes that `mpirun` starts.

mod collectives;
mod ends;
mod program;
mod transports;
