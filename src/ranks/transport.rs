//! The interface that moves bytes between ranks.

use crate::error::{Error, Result};

/// One rank's connection to the others of a run.
pub trait Transport {
    /// This rank's number, below [`Transport::size`].
    fn rank(&self) -> usize;

    /// Number of ranks of the run.
    fn size(&self) -> usize;

    /// This rank's number among the ranks on this machine, from 0: chooses the adapter.
    fn local_rank(&self) -> usize;

    /// Sends each of `outgoing` (to, bytes) and fills each of `incoming` (from, bytes), all at once; returns when all
    /// are done, so ranks may send to each other in any order. Messages from one rank to another keep their order, and
    /// the receiver knows their lengths. Empty messages are not sent. No rank sends to itself.
    ///
    /// # Errors
    /// A rank that has ended, named by its number, or whose message has another length. Every later exchange then fails
    /// as well.
    fn exchange(&mut self, outgoing: &[(usize, &[u8])], incoming: &mut [(usize, &mut [u8])]) -> Result<()>;

    /// Ends the other ranks too, at the latest in their next exchange with this one. No exchange may follow.
    fn abort(&mut self) {}
}

/// The only rank of a run: it has nobody to exchange with.
pub(super) struct Alone;

impl Transport for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn local_rank(&self) -> usize {
        0
    }

    fn exchange(&mut self, outgoing: &[(usize, &[u8])], incoming: &mut [(usize, &mut [u8])]) -> Result<()> {
        assert!(outgoing.is_empty() && incoming.is_empty(), "a single rank exchanges nothing");
        Ok(())
    }
}

/// The error of an exchange with `rank`, which has ended.
pub(super) fn ended(rank: usize) -> Error {
    Error::Ranks(format!("rank {rank} has ended, and the run cannot go on without it"))
}

/// The error of a message from `rank` that is not as long as `expected`, in bytes.
pub(super) fn wrong_length(rank: usize, sent: usize, expected: usize) -> Error {
    Error::Ranks(format!(
        "rank {rank} sent {sent} bytes where {expected} were expected; start all ranks with the same program, files and flags"
    ))
}
