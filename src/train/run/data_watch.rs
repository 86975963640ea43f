//! Faults that show once the data were read to the end, before step 1 or while the run trains: a token outside the
//! vocabulary, data that differ from the first rank's, or data that differ from those of the checkpoint.
//!
//! On each machine one rank reads the data in the background, as does any rank whose flags name other files. A
//! difference in training data ends the run without saving; a difference in evaluation data is only logged, since they
//! change no weight. A checkpoint without a hash is compared by its fingerprint.

use crate::data::{BackgroundCheck, DataHashes, LoadedData};
use crate::error::{Error, Result};
use crate::store::hex::hex;
use crate::store::trainer_state::TrainerState;
use std::path::PathBuf;

/// The data of a run, as far as this rank has read them.
pub(super) struct DataWatch<'a> {
    data: &'a LoadedData,
    /// Reads long data; only on ranks that have to.
    check: Option<BackgroundCheck>,
    /// The checkpoint that the run continues.
    checkpoint: Option<PathBuf>,
    hashes: Option<DataHashes>,
    /// The error of data that differ from those of the checkpoint.
    difference: Option<Error>,
}

impl<'a> DataWatch<'a> {
    /// Watches `data` for a run that continues `checkpoint`. This rank reads all data if `reads`.
    pub fn start(data: &'a LoadedData, reads: bool, checkpoint: Option<PathBuf>) -> Self {
        let check = reads.then(|| data.check_in_background());
        Self { data, check, checkpoint, hashes: None, difference: None }
    }

    /// Takes in the hashes once they are known. Until then the hashes of `state`, which is to be saved, are those of
    /// the checkpoint, and they stay so if the data differ. A difference in evaluation data is only logged: they change
    /// no weight.
    pub fn look(&mut self, state: &mut TrainerState) {
        if self.hashes.is_some() {
            return;
        }
        let Some(hashes) = self.data.hashes() else { return };
        self.hashes = Some(hashes);
        match state.data_hash.filter(|there| *there != hashes.train) {
            Some(there) => self.difference = self.checkpoint.as_ref().map(|path| {
                let (there, here) = (hex(there), hex(hashes.train));
                let message = format!(
                    "data hash is \"{there}\" there, \"{here}\" here, as is known now that all data were read: continue with the data of \
                     the checkpoint, and without the checkpoints of later steps, or start a new run in another --output_dir"
                );
                Error::file(path, message)
            }),
            None => state.data_hash = Some(hashes.train),
        }
        if state.eval_data_hash.zip(hashes.eval).is_some_and(|(there, here)| there != here) {
            tracing::warn!(
                "the evaluation data are not those of the checkpoint: eval_loss does not continue the earlier curve"
            );
        }
        state.eval_data_hash = hashes.eval;
    }

    /// A combined hash of all data; `None` until they were read.
    pub fn hash(&self) -> Option<u64> {
        self.hashes.map(|hashes| hashes.combined())
    }

    /// Whether the data differ from those of the checkpoint.
    pub fn has_changed(&self) -> bool {
        self.difference.is_some()
    }

    /// The first token outside the vocabulary, once it has been found.
    pub fn fault(&self) -> Option<&Error> {
        self.check.as_ref().and_then(BackgroundCheck::fault)
    }

    /// Fails if the data differ from those of the checkpoint, or from the first rank's, whose hash is `first`, if it is
    /// known.
    ///
    /// # Errors
    /// Both hashes, and what to do.
    pub fn check_same(&self, first: Option<u64>) -> Result<()> {
        if let Some(difference) = &self.difference {
            return Err(difference.clone());
        }
        match self.hash().zip(first).filter(|(own, first)| own != first) {
            Some((own, first)) => Err(Error::Ranks(unlike(own, first))),
            None => Ok(()),
        }
    }
}

/// The message that the hash of all data is `own` here and `first` on the first rank.
pub(crate) fn unlike(own: u64, first: u64) -> String {
    let (own, first) = (hex(own), hex(first));
    format!("its data have the hash {own}, and those of rank 0 {first}; give all ranks the same files")
}
