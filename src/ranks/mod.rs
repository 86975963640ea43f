//! Several ranks of one run: who they are, and how bytes get from one to another.
//!
//! A [`Transport`] connects a rank with the others: [`in_process`] over channels between threads, [`mpi`] between processes, with
//! the feature `mpi`. [`collectives`] are built on it, with sums in the order of the ranks: a result is the same in every run, on
//! every rank and over every transport. [`Ranks`] is what a run holds: a thread that owns the transport and does one job after the
//! other. [`Layout`] says how the ranks share the work of a run, and which [`Group`] a rank exchanges what with.
//!
//! Knows no devices, no tensors and no settings: it moves bytes.

mod agreement;
pub mod collectives;
mod group;
pub mod in_process;
pub mod launcher;
mod layout;
#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(not(feature = "mpi"))]
#[path = "no_mpi.rs"]
pub mod mpi;
#[cfg(feature = "mpi")]
mod patience;
mod thread;
mod transport;

pub use agreement::gather_at_first;
pub use group::Group;
pub use layout::{Layout, MAX_RANKS};
pub use thread::{Pending, Ranks};
pub use transport::Transport;
