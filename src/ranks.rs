//! Several ranks of one run: their numbers, how bytes get from one to another, and which rank holds which part of a
//! model.
//!
//! | file | holds | knows |
//! |---|---|---|
//! | `transport`, [`in_process`], [`mpi`], `thread`, [`collectives`], `agreement` | how bytes get from one rank to another | no devices, no tensors, no settings |
//! | `layout`, `group`, [`pipeline`] | how ranks share the work of a run, and whom a rank exchanges what with | the same |
//! | [`sharding`], `rank_layouts` | which rank holds, owns and sums which parameters | recordings, the model |
//! | `consistency`, `rank_status`, `replicas` | whether ranks do alike, what they tell each other after a step, whether copies hold the same bits | the run |
//!
//! A [`Transport`] connects a rank with the others. Its one way to communicate is `exchange`, which sends to some
//! ranks, receives from some and returns when both are done: [`in_process`] over channels between threads, which every
//! test can use, and [`mpi`] between processes, with the feature `mpi`. [`collectives`] are built on it. [`RankLayout`]
//! says how ranks share the work of a run, and with which [`Group`] a rank makes which exchange.
//!
//! **Sums are computed by this crate**, not by MPI, which may add in any order: a sum is the same on all ranks, in
//! every run and over both transports.
//!
//! **One thread** per rank owns the transport and does the jobs submitted to it ([`Ranks`]), one after the other,
//! concurrently with the device. All ranks submit matching jobs in the same order. The thread also initialises and
//! finalises MPI, so MPI only has to allow calls from a single thread.
//!
//! **Ends.** A rank that ends, by an error, a panic or a kill, ends the others. In process its channels close, and the
//! next exchange with it fails with a line that names it. A rank that waited for another one, which failed because of
//! it, names it as well. Under MPI the process prints its line and calls `MPI_Abort`; `mpirun` notices a process that
//! was killed.
//!
//! The others wait without limit for a rank that hangs without ending. No limit can tell it from a rank that takes long
//! (compiling kernels, reading data, a slow disk, a debugger), and giving up would end a sound run. A batch job has its
//! own time limit.

mod agreement;
pub mod collectives;
pub(crate) mod consistency;
mod group;
pub mod in_process;
pub mod launcher;
mod layout;
#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(not(feature = "mpi"))]
#[path = "ranks/no_mpi.rs"]
pub mod mpi;
#[cfg(all(feature = "mpi", test))]
mod no_mpi;
#[cfg(feature = "mpi")]
mod patience;
pub mod pipeline;
pub(crate) mod rank_layouts;
pub(crate) mod rank_status;
pub(crate) mod replicas;
pub mod sharding;
mod thread;
mod transport;

pub(crate) use agreement::gather_at_first;
pub use group::Group;
pub(crate) use layout::MAX_RANKS;
pub use layout::RankLayout;
pub use thread::{Pending, Ranks};
pub use transport::Transport;
