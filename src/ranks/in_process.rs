//! Ranks in one process, over channels between threads: for several devices of one machine, and for tests.

use super::Transport;
use super::transport::{ended, wrong_length};
use crate::error::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// One of the ranks in a process.
///
/// Dropping it ends the rank: messages already sent still arrive, then the others' exchanges with it fail.
pub struct InProcess {
    rank: usize,
    size: usize,
    links: Vec<Link>,
    /// Buffers of received messages, reused for the next ones to send.
    spare: Vec<Vec<u8>>,
    failure: Option<Error>,
    /// For each rank that has ended, the rank that caused it: itself, unless another rank's end made it fail.
    culprits: Arc<[AtomicUsize]>,
}

/// The two directions of the connection between a rank and another one.
struct Link {
    to: Sender<Vec<u8>>,
    from: Receiver<Vec<u8>>,
}

/// Connects `size` ranks with each other, in order.
pub fn connect(size: usize) -> Vec<InProcess> {
    assert!(size > 0, "a run has at least one rank");
    let culprits: Arc<[AtomicUsize]> = (0..size).map(AtomicUsize::new).collect();
    let mut senders: Vec<Vec<Sender<_>>> = (0..size).map(|_| Vec::with_capacity(size)).collect();
    let mut receivers: Vec<Vec<Receiver<_>>> = (0..size).map(|_| Vec::with_capacity(size)).collect();
    for (from, to) in (0..size).flat_map(|from| (0..size).map(move |to| (from, to))) {
        let (sender, receiver) = channel();
        senders[from].push(sender);
        receivers[to].push(receiver);
    }
    let ends = senders.into_iter().zip(receivers).enumerate();
    ends.map(|(rank, (to, from))| InProcess {
        rank,
        size,
        links: to.into_iter().zip(from).map(|(to, from)| Link { to, from }).collect(),
        spare: Vec::new(),
        failure: None,
        culprits: culprits.clone(),
    })
    .collect()
}

impl Transport for InProcess {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn local_rank(&self) -> usize {
        self.rank
    }

    fn exchange(&mut self, outgoing: &[(usize, &[u8])], incoming: &mut [(usize, &mut [u8])]) -> Result<()> {
        let peers = outgoing.iter().map(|(to, _)| to).chain(incoming.iter().map(|(from, _)| from));
        assert!(peers.clone().all(|peer| *peer < self.size), "a message is exchanged with one of the ranks");
        assert!(peers.clone().all(|peer| *peer != self.rank), "no rank exchanges with itself");
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let done = self.send(outgoing).and_then(|()| self.receive(incoming));
        done.inspect_err(|error| self.close(error.clone()))
    }

    fn abort(&mut self) {
        self.close(ended(self.rank));
    }
}

impl InProcess {
    /// Never waits: channels are unbounded.
    fn send(&mut self, outgoing: &[(usize, &[u8])]) -> Result<()> {
        for (to, bytes) in outgoing.iter().filter(|(_, bytes)| !bytes.is_empty()) {
            let mut message = self.spare.pop().unwrap_or_default();
            message.clear();
            message.extend_from_slice(bytes);
            if self.links[*to].to.send(message).is_err() {
                return Err(self.lost(*to));
            }
        }
        Ok(())
    }

    fn receive(&mut self, incoming: &mut [(usize, &mut [u8])]) -> Result<()> {
        for (from, bytes) in incoming.iter_mut().filter(|(_, bytes)| !bytes.is_empty()) {
            let Ok(message) = self.links[*from].from.recv() else { return Err(self.lost(*from)) };
            if message.len() != bytes.len() {
                return Err(wrong_length(*from, message.len(), bytes.len()));
            }
            bytes.copy_from_slice(&message);
            // Bounded, since a rank may receive more messages than it sends.
            if self.spare.len() < self.size {
                self.spare.push(message);
            }
        }
        Ok(())
    }

    /// The error of an exchange with `peer`, which has ended: it names the rank that ended first.
    fn lost(&self, peer: usize) -> Error {
        let culprit = self.culprits[peer].load(Ordering::SeqCst);
        self.culprits[self.rank].store(culprit, Ordering::SeqCst);
        ended(culprit)
    }

    /// Ends the rank: the messages of an exchange that failed halfway would be taken for those of the next one.
    fn close(&mut self, failure: Error) {
        self.failure = Some(failure);
        self.links.clear();
    }
}

#[cfg(test)]
mod tests;
