//! Several ranks of one run: who they are, and how bytes get from one to another. Knows no devices, no tensors and
//! no settings.
//!
//! A [`Transport`] connects a rank with the others. It has one function, `exchange`, which sends to some ranks,
//! receives from some and returns when both are done: [`in_process`] over channels between threads, which every
//! test can use, and [`mpi`] between processes, with the feature `mpi`. [`collectives`] are built on it. [`RankLayout`]
//! says how ranks share the work of a run, and which [`Group`] a rank exchanges what with.
//!
//! **Sums are ours**, not MPI's, which may add in any order: a sum is the same on all ranks, in every run and over
//! both transports.
//!
//! **One thread** per rank owns the transport and does the jobs submitted to it ([`Ranks`]), one after the other,
//! beside the device. All ranks submit matching jobs in the same order. The thread also initialises and finalises
//! MPI, which so has to allow calls from a single thread only.
//!
//! **Ends.** A rank that ends, by an error, a panic or a kill, ends the others. In process its channels close, and
//! the next exchange with it fails with a line that names it, also on ranks that only waited for one that failed
//! because of it. Under MPI the process prints its line and calls `MPI_Abort`; `mpirun` notices one that was
//! killed.
//!
//! A rank that hangs without ending is waited for without limit. No limit can tell it from one that takes long
//! (compiling kernels, reading data, a slow disk, a debugger), and giving up would end a sound run. A batch job has
//! its own time limit.

mod agreement;
pub mod collectives;
mod group;
pub mod in_process;
pub mod launcher;
mod layout;
#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(not(feature = "mpi"))]
#[path = "ranks/no_mpi.rs"]
pub mod mpi;
#[cfg(feature = "mpi")]
mod patience;
pub mod pipeline;
mod thread;
mod transport;

pub(crate) use agreement::gather_at_first;
pub use group::Group;
pub(crate) use layout::MAX_RANKS;
pub use layout::RankLayout;
pub use thread::{Pending, Ranks};
pub use transport::Transport;
