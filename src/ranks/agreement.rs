//! Decisions that the ranks of a run make together: whether each of them succeeded, and what the first one found.
//!
//! All ranks make the same calls in the same order, as with every exchange. A single rank exchanges nothing.
//!
//! `Ranks::agree` passes on a result if all succeeded, and otherwise makes the error of the first rank that failed the
//! error of all. `Ranks::by_first` lets only the first rank do something and tells the others the result. A run agrees
//! after each stage of its start, so a fault is one line and one exit code wherever it occurs.

use super::collectives::{broadcast, gather};
use super::{Group, Ranks, Transport};
use crate::error::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes of a number in an exchange.
const WORD: usize = size_of::<u64>();

impl Ranks {
    /// Whether this is the first rank, which writes the log and the files of the run.
    pub(crate) fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// `own` if all ranks succeeded. Otherwise all fail with the error of the first rank that failed; the error on the
    /// others names that rank, unless it is rank 0.
    ///
    /// # Errors
    /// The error of the first rank that failed; a rank that has ended.
    pub async fn agree<T>(&self, own: Result<T>) -> Result<T> {
        if self.size() == 1 {
            return own;
        }
        let line = own.as_ref().err().map(ToString::to_string);
        match self.run(move |transport| first_fault(transport, line)).await? {
            None => own,
            Some((rank, _)) if rank == self.rank() => own,
            Some((0, line)) => Err(Error::Ranks(line)),
            Some((rank, line)) => Err(Error::Ranks(format!("rank {rank}: {line}"))),
        }
    }

    /// The result of `find`, which only the first rank calls. If it fails there, all ranks fail.
    ///
    /// # Errors
    /// As `find`; a rank that has ended.
    pub(crate) async fn by_first<T: Serialize + DeserializeOwned>(
        &self,
        find: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let found = if self.is_first() { find().map(Some) } else { Ok(None) };
        let found = self.agree(found).await?;
        let own = match &found {
            Some(found) if self.size() > 1 => serde_json::to_vec(found).map_err(damaged)?,
            _ => Vec::new(),
        };
        let of_first = match self.size() {
            1 => own,
            _ => self.run(|transport| of_first(transport, own)).await?,
        };
        match found {
            Some(found) => Ok(found),
            None => serde_json::from_slice(&of_first).map_err(damaged),
        }
    }

    /// On the first rank the `own` of each rank, in the order of ranks; empty on the others. All must have equal
    /// lengths.
    ///
    /// # Errors
    /// A rank that has ended.
    pub(crate) async fn at_first(&self, own: Vec<u8>) -> Result<Vec<u8>> {
        match self.size() {
            1 => Ok(own),
            _ => self.run(move |transport| gather_at_first(transport, &own)).await,
        }
    }
}

/// Collects the `own` of all ranks, which have equal lengths, on the first one.
///
/// # Errors
/// As [`Transport::exchange`].
pub(crate) fn gather_at_first(transport: &mut dyn Transport, own: &[u8]) -> Result<Vec<u8>> {
    let (all, length) = (Group::all(transport.size()), own.len());
    let parts: Vec<_> = (0..all.size()).map(|rank| rank * length..(rank + 1) * length).collect();
    let mut whole = vec![0; if transport.rank() == 0 { all.size() * length } else { 0 }];
    gather(transport, &all, 0, own, &mut whole, &parts)?;
    Ok(whole)
}

/// The first rank with a fault, and its line.
fn first_fault(transport: &mut dyn Transport, own: Option<String>) -> Result<Option<(usize, String)>> {
    let all = Group::all(transport.size());
    // A line is never empty, so that a length of 0 means none.
    let own = own.unwrap_or_default().into_bytes();
    let lengths = gather_at_first(transport, &word(own.len()))?;
    let lengths: Vec<usize> = lengths.chunks_exact(WORD).map(number).collect();
    let first = lengths.iter().position(|length| *length > 0);
    let mut found = [0; 2 * WORD];
    if let Some(rank) = first {
        found[..WORD].copy_from_slice(&word(rank));
        found[WORD..].copy_from_slice(&word(lengths[rank]));
    }
    broadcast(transport, &all, 0, &mut found)?;
    let (rank, length) = (number(&found[..WORD]), number(&found[WORD..]));
    if length == 0 {
        return Ok(None);
    }
    let mut line = if rank == transport.rank() { own } else { vec![0; length] };
    broadcast(transport, &all, rank, &mut line)?;
    Ok(Some((rank, String::from_utf8_lossy(&line).into_owned())))
}

/// The first rank's bytes, on all ranks.
fn of_first(transport: &mut dyn Transport, mut own: Vec<u8>) -> Result<Vec<u8>> {
    let all = Group::all(transport.size());
    let mut length = word(own.len());
    broadcast(transport, &all, 0, &mut length)?;
    own.resize(number(&length), 0);
    broadcast(transport, &all, 0, &mut own)?;
    Ok(own)
}

fn word(number: usize) -> [u8; WORD] {
    (number as u64).to_le_bytes()
}

fn number(bytes: &[u8]) -> usize {
    let (word, _) = bytes.as_chunks::<WORD>();
    word.first().map_or(0, |word| u64::from_le_bytes(*word) as usize)
}

fn damaged(error: serde_json::Error) -> Error {
    Error::Ranks(format!(
        "what the first rank found cannot be passed on ({error}); start all ranks with the same program"
    ))
}

#[cfg(test)]
mod tests;
