//! The log-probabilities of pairs of answers under the model that a run starts from: computed once before the first
//! step, and kept in the run folder, so that a resumed run compares with the same numbers.

use super::trainer::Trainer;
use crate::data::{Batches, LoadedData};
use crate::device::Exchanges;
use crate::error::{Error, Result};
use crate::ranks::Ranks;
use crate::store::OUTPUT_DIR;
use crate::store::run_folder::{REFERENCES, RunFolder, open_file};
use std::io::Read;
use std::path::Path;
use twox_hash::XxHash3_64;

/// The first bytes of the file.
const MAGIC: &[u8; 16] = b"gristmill pairs1";

/// For each pair of a data set, the log-probabilities of the chosen and of the rejected answer.
type LogProbabilities = Vec<[f32; 2]>;

impl Trainer<'_> {
    /// Gives `data` the log-probabilities of its pairs under the weights as they are, if a preference compares with
    /// them (`reference: precompute`). [`run`](super::run::run) does so by itself, and keeps them for when it
    /// resumes; a loop of one's own that resumes calls this with the weights that it began with, before
    /// [`resume`](Self::resume).
    ///
    /// # Errors
    /// Weights that have trained; a token outside the vocabulary; a device that fails; a rank that has ended.
    pub async fn set_references(&mut self, data: &mut Batches) -> Result<()> {
        if self.programs.references.is_some() {
            let is_resumed = self.home.as_ref().is_some_and(|home| home.restored.is_some());
            if is_resumed || self.steps_done > 0 {
                let message = "a preference compares with the model before its first step: call `Trainer::set_references` \
                               before `resume` and before the first step";
                return Err(Error::Plan(message.to_string()));
            }
            let found = self.log_probabilities(data).await?;
            data.set_references(found);
        }
        Ok(())
    }

    /// The log-probabilities of the answers of all pairs of `data`, under the weights as they are.
    ///
    /// # Errors
    /// A token outside the vocabulary; a device that fails; a rank that has ended.
    async fn log_probabilities(&mut self, data: &Batches) -> Result<LogProbabilities> {
        let (program, computed) = (self.programs.references, self.recordings.tensors.preference);
        let (Some(program), Some(computed)) = (program, computed.and_then(|preference| preference.computed))
        else {
            return Ok(Vec::new());
        };
        // Each rank computes all, as the same launches on each.
        let all = data.of_all_pairs()?;
        let mut found = vec![[0.0; 2]; all.pairs() as usize];
        self.computes_references = true;
        for number in 0..all.micro_steps_per_epoch() {
            let mut encoder = self.gpu.encoder();
            self.upload(&mut encoder, &all, number, self.ids.batches[0][0]).await?;
            self.replay(&mut encoder, program, Exchanges::All).await?;
            encoder.submit().await?;
            self.uploads.recycle(self.gpu);
            let bytes =
                self.reader.tensor(self.gpu, &self.buffers, &self.prepared, program, &computed).await?;
            let values = bytemuck::pod_collect_to_vec::<u8, f32>(&bytes);
            for (pair, [chosen, _, rejected, _]) in all.pairs_in(number).into_iter().zip(values.as_chunks().0)
            {
                found[pair as usize] = [*chosen, *rejected];
            }
        }
        self.computes_references = false;
        Ok(found)
    }
}

/// Gives the batches of `data` the log-probabilities of their pairs: those that `folder` keeps, if the run continues,
/// or those under the weights that it starts from, which are then kept.
///
/// # Errors
/// A file that is missing, damaged or of other data; the errors of computing; a rank that has ended.
pub(super) async fn set_references(
    trainer: &mut Trainer<'_>,
    ranks: &Ranks,
    folder: &RunFolder,
    data: &mut LoadedData,
) -> Result<()> {
    if trainer.programs.references.is_none() {
        return Ok(());
    }
    let file = folder.path().join(REFERENCES);
    let LoadedData { train, eval, .. } = data;
    // The part that is held out is of the same pairs.
    let own_eval = eval.as_ref().filter(|eval| !eval.shares_pairs(train));
    let sets: Vec<&Batches> = [Some(&*train), own_eval].into_iter().flatten().collect();
    let of_data: Vec<(u64, u64)> = sets.iter().map(|set| (set.fingerprint_of_pairs(), set.pairs())).collect();
    let all = match folder.resume_point() {
        Some(_) => ranks.agree(load(&file, &of_data)).await?,
        None => {
            let mut all = Vec::new();
            for set in sets {
                tracing::info!(
                    "reference: the log-probabilities of {} pairs under the model as it is",
                    set.pairs()
                );
                all.push(trainer.log_probabilities(set).await?);
            }
            ranks.by_first(|| OUTPUT_DIR.write(&file, &written(&of_data, &all))).await?;
            all
        }
    };
    let mut all = all.into_iter();
    let of_train = all.next().unwrap_or_default();
    let of_eval = all.next().unwrap_or_else(|| of_train.clone());
    train.set_references(of_train);
    eval.iter_mut().for_each(|eval| eval.set_references(of_eval.clone()));
    Ok(())
}

/// The file: [`MAGIC`], for each set of pairs its fingerprint and its length, then all numbers, and a checksum of all
/// before it.
fn written(of_data: &[(u64, u64)], all: &[LogProbabilities]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for (fingerprint, count) in of_data {
        bytes.extend([fingerprint.to_le_bytes(), count.to_le_bytes()].concat());
    }
    all.iter().flatten().flatten().for_each(|number| bytes.extend(number.to_le_bytes()));
    bytes.extend(XxHash3_64::oneshot(&bytes).to_le_bytes());
    bytes
}

fn load(file: &Path, of_data: &[(u64, u64)]) -> Result<Vec<LogProbabilities>> {
    let remedy = "the run compares with the model that it began with, and can only go on with this file of that time: restore it, or \
                  begin a new run";
    let wrong = |what: &str| Error::file(file, format!("{what}: {remedy}"));
    let mut bytes = Vec::new();
    let read = open_file(file).and_then(|mut file| file.read_to_end(&mut bytes));
    read.map_err(|error| wrong(&format!("cannot be read ({error})")))?;
    let numbers: usize = of_data.iter().map(|(_, count)| 2 * *count as usize).sum();
    let length = MAGIC.len() + 16 * of_data.len() + 4 * numbers + 8;
    let (body, sum) = bytes.split_at(bytes.len().saturating_sub(8));
    if bytes.len() != length || XxHash3_64::oneshot(body).to_le_bytes() != sum {
        return Err(wrong("is damaged, or of other data"));
    }
    let expected = written(of_data, &[]);
    let head = MAGIC.len() + 16 * of_data.len();
    if body[..head] != expected[..head] {
        return Err(wrong("is of other data"));
    }
    let mut values = body[head..].as_chunks::<8>().0.iter().map(|pair| {
        let (numbers, _) = pair.as_chunks::<4>();
        [f32::from_le_bytes(numbers[0]), f32::from_le_bytes(numbers[1])]
    });
    Ok(of_data.iter().map(|(_, count)| values.by_ref().take(*count as usize).collect()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_back_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(REFERENCES);
        let of_data = [(7, 2), (9, 1)];
        let all = [vec![[-1.5, -2.0], [-3.0, 0.0]], vec![[-0.25, f32::MIN]]];
        let bytes = written(&of_data, &all);
        std::fs::write(&file, &bytes).unwrap();
        assert_eq!(load(&file, &of_data).unwrap(), all);
        let fault = |of_data: &[(u64, u64)]| load(&file, of_data).unwrap_err().to_string();
        assert!(fault(&[(8, 2), (9, 1)]).contains("is of other data: the run compares"));
        assert!(fault(&[(7, 2)]).contains("is damaged, or of other data"));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            std::fs::write(&file, &damaged).unwrap();
            assert!(fault(&of_data).contains("is damaged"), "byte {at}");
        }
        std::fs::remove_file(&file).unwrap();
        assert!(fault(&of_data).contains("cannot be read"));
    }
}
