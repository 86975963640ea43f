//! What each rank did by itself, as all of them know it.

use super::collectives::all_gather;
use super::{Group, Ranks, Transport};
use crate::error::{Error, Result};
use std::ops::Range;

impl Ranks {
    /// Returns what this rank did by itself once all ranks have succeeded, for steps without exchanges such as reading files
    /// or opening the device. All ranks call it.
    ///
    /// # Errors
    /// On every rank that of the first one that failed, by its number; and those of an exchange.
    pub async fn agree<T>(&self, own: Result<T>) -> Result<T> {
        let text = own.as_ref().err().map(Error::to_string).unwrap_or_default();
        let texts = self.run(move |transport| gather_texts(transport, text)).await?;
        let first = texts.iter().position(|text| !text.is_empty());
        match first {
            None => own,
            Some(rank) if rank == self.rank() => own,
            Some(0) => Err(Error::Ranks(texts[0].clone())),
            Some(rank) => Err(Error::Ranks(format!("rank {rank}: {}", texts[rank]))),
        }
    }
}

/// The texts of all ranks.
fn gather_texts(transport: &mut dyn Transport, own: String) -> Result<Vec<String>> {
    let (rank, group) = (transport.rank(), Group::all(transport.size()));
    let length = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().expect("4 bytes")) as usize;
    let mut lengths = vec![0; 4 * group.size()];
    lengths[4 * rank..][..4].copy_from_slice(&(own.len() as u32).to_ne_bytes());
    all_gather(transport, &group, &mut lengths, &one_after_the_other(group.ranks.iter().map(|_| 4)))?;
    let parts = one_after_the_other(lengths.chunks_exact(4).map(length));
    let mut texts = vec![0; parts[group.size() - 1].end];
    texts[parts[rank].clone()].copy_from_slice(own.as_bytes());
    all_gather(transport, &group, &mut texts, &parts)?;
    Ok(parts.into_iter().map(|part| String::from_utf8_lossy(&texts[part]).into_owned()).collect())
}

fn one_after_the_other(lengths: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let parts = lengths.scan(0, |end, length| {
        *end += length;
        Some(*end - length..*end)
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use crate::error::{Error, Result};
    use crate::ranks::{Ranks, Transport, in_process};
    use pollster::block_on;
    use std::thread;

    /// What three ranks know after they did `own`.
    fn agreed(own: fn(usize) -> Result<usize>) -> Vec<String> {
        let spawn = |end: in_process::InProcess| {
            thread::spawn(move || {
                let ranks = Ranks::start(|| Ok(Box::new(end) as Box<dyn Transport>)).expect("a thread");
                match block_on(ranks.agree(own(ranks.rank()))) {
                    Ok(number) => number.to_string(),
                    Err(error) => error.to_string(),
                }
            })
        };
        let threads: Vec<_> = in_process::connect(3).into_iter().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    }

    fn missing(rank: usize) -> Result<usize> {
        Err(Error::file("a.txt", format!("is missing for {rank}")))
    }

    #[test]
    fn ranks_that_all_succeed_go_on() {
        assert_eq!(agreed(Ok), ["0", "1", "2"]);
    }

    #[test]
    fn the_first_that_fails_speaks_for_all() {
        let some = agreed(|rank| if rank == 0 { Ok(0) } else { missing(rank) });
        let line = "a.txt: is missing for 1";
        assert_eq!(some, [&format!("rank 1: {line}"), line, &format!("rank 1: {line}")]);
        assert_eq!(agreed(missing), ["a.txt: is missing for 0"; 3]);
    }

    #[test]
    fn a_single_rank_agrees_with_itself() {
        assert_eq!(block_on(Ranks::alone().agree(Ok(7))).expect("its own result"), 7);
    }
}
