//! The micro-batches of a step, and of an evaluation, on a stage of a pipeline: turn by turn, in the order of its
//! schedule (`ranks/pipeline.rs`).

use super::trainer::Trainer;
use crate::data::Batches;
use crate::device::Exchanges;
use crate::error::Result;
use crate::ranks::pipeline::{Direction, Half};

impl Trainer<'_> {
    /// The gradient half of a step.
    pub(super) async fn stage_micro_steps(&mut self, data: &Batches, first_micro_step: u64) -> Result<()> {
        let turns = self.recordings.turns.clone();
        for (number, turn) in turns.iter().enumerate() {
            let slot = turn.half.map(|half| self.slot_of(half));
            let program = turn.half.zip(slot).map(|(half, slot)| self.programs.micro_steps[half.chunk][slot]);
            let mut encoder = self.gpu.encoder();
            if number == 0 {
                self.ids.step.iter().for_each(|&id| encoder.clear(&self.buffers, id));
            }
            let begins = turn.half.filter(|half| half.direction == Direction::Forward).zip(slot);
            if let Some((half, slot)) = begins {
                let micro_step = first_micro_step + half.micro_batch as u64;
                self.upload(&mut encoder, data, micro_step, self.ids.batches[half.chunk][slot]).await?;
            }
            let program = program.map(|program| &self.prepared.programs[program]);
            self.exchanger.pass(&mut encoder, turn, program).await?;
            if let Some((half, program)) = turn.half.zip(program) {
                let is_last = half.micro_batch as u64 + 1 == self.gradient_accumulation_steps;
                let exchanges = if is_last { Exchanges::All } else { Exchanges::OfEveryMicroBatch };
                encoder.replay_half(program, &mut self.exchanger, half, exchanges).await?;
            }
            if let Some((half, _)) = begins {
                self.copy_losses(&mut encoder, half.chunk, half.micro_batch as u64);
            }
            encoder.submit().await?;
            if begins.is_some() {
                self.uploads.recycle(self.gpu);
            }
        }
        Ok(())
    }

    /// The forward passes of an evaluation over the first `batches` micro-batches of `data`.
    pub(super) async fn evaluate_on_stage(
        &mut self,
        data: &Batches,
        batches: u64,
        between: &mut impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let turns = self
            .recordings
            .pipeline()
            .forward_turns(self.recordings.ownership.ranks.stage(), batches as usize);
        for turn in &turns {
            let mut encoder = self.gpu.encoder();
            if let Some(half) = turn.half {
                self.upload(&mut encoder, data, half.micro_batch as u64, self.ids.batches[0][0]).await?;
            }
            let program = turn.half.map(|half| &self.prepared.programs[self.programs.evals[half.chunk]]);
            self.exchanger.pass(&mut encoder, turn, program).await?;
            if let Some((half, program)) = turn.half.zip(program) {
                encoder.replay_half(program, &mut self.exchanger, half, Exchanges::All).await?;
            }
            encoder.submit().await?;
            if turn.half.is_some() {
                self.uploads.recycle(self.gpu);
            }
            between(self)?;
        }
        Ok(())
    }

    /// The place of a half's micro-batch among those under way in its chunk.
    fn slot_of(&self, half: Half) -> usize {
        half.micro_batch % self.recordings.micro_steps[half.chunk].len()
    }
}
