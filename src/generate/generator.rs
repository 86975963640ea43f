//! Tokens, one after the other, of several sequences at once.

use super::recordings::GenerateRecordings;
use super::sampling::Sampling;
use crate::device::{Buffers, Gpu, Prepared, Reader};
use crate::error::Result;
use crate::random::Philox;
use crate::record::{BufferId, Tensor};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// The stream of random numbers that samples draw from; parameters use the small ones.
const STREAM: u64 = 1 << 40;

/// What is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Most new tokens of each sequence.
    pub tokens: usize,
    /// How they are drawn.
    pub sampling: Sampling,
    /// Of the draws.
    pub seed: u64,
    /// The token that ends a sequence, if there is one.
    pub stop: Option<u32>,
}

/// A model on a device, ready to write.
pub struct Generator<'a> {
    /// The device.
    pub gpu: &'a Gpu,
    /// The model's weights and the caches.
    pub buffers: &'a Buffers,
    /// Where the programs are.
    pub prepared: &'a Prepared,
    /// Numbers of the programs `prefill` and `step` among the prepared ones.
    pub programs: (usize, usize),
    /// What they were made of.
    pub recordings: &'a GenerateRecordings,
    /// Brings the logits back.
    pub reader: &'a Reader,
}

/// One sequence being written.
struct Sequence {
    /// Prompt and continuation.
    tokens: Vec<u32>,
    /// The different tokens among them.
    seen: BTreeSet<u32>,
    /// The tokens from here on are the model's context.
    start: usize,
    random: Philox,
    written: usize,
    is_done: bool,
}

impl Generator<'_> {
    /// Continues each of `prompts` by up to `settings.tokens` tokens and returns the continuations. `on_token` gets each
    /// token as it is drawn, the prompt's number and the token, and may end it all with a break. An empty prompt is continued as if it were token 0.
    ///
    /// A sequence depends on its own prompt, place and settings: beside others it is continued as it is alone, with its
    /// number added to the seed, but for roundings. One that outgrows the model's window goes on from the last half of it,
    /// and then all caches are filled anew.
    ///
    /// # Errors
    /// A device that fails.
    ///
    /// # Panics
    /// With other than as many prompts as the recordings were written for.
    pub async fn generate(
        &self,
        prompts: &[Vec<u32>],
        settings: &Settings,
        mut on_token: impl FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<Vec<u32>>> {
        assert_eq!(prompts.len(), self.recordings.sequences as usize, "one prompt a sequence");
        let window = self.recordings.window as usize;
        let begin = |(number, prompt): (u64, &Vec<u32>)| Sequence {
            tokens: if prompt.is_empty() { vec![0] } else { prompt.clone() },
            seen: if prompt.is_empty() { [0].into() } else { prompt.iter().copied().collect() },
            start: prompt.len().saturating_sub(window),
            random: Philox::new(settings.seed.wrapping_add(number), STREAM),
            written: 0,
            is_done: settings.tokens == 0,
        };
        let mut sequences: Vec<Sequence> = (0..).zip(prompts).map(begin).collect();
        let mut must_prefill = true;
        while sequences.iter().any(|sequence| !sequence.is_done) {
            if must_prefill {
                self.prefill(&sequences).await?;
            } else {
                self.step(&sequences).await?;
            }
            let logits = self.logits().await?;
            must_prefill = false;
            for (number, (sequence, logits)) in sequences.iter_mut().zip(&logits).enumerate() {
                if sequence.is_done {
                    continue;
                }
                let uniform = sequence.random.uniform(sequence.written as u64);
                let token = settings.sampling.choose(logits, &sequence.seen, uniform);
                sequence.tokens.push(token);
                sequence.seen.insert(token);
                sequence.written += 1;
                sequence.is_done = sequence.written == settings.tokens || Some(token) == settings.stop;
                if on_token(number, token).is_break() {
                    return Ok(sequences.into_iter().map(Sequence::continuation).collect());
                }
                if !sequence.is_done && sequence.context().len() > window {
                    sequence.start = sequence.tokens.len() - window.div_ceil(2);
                    must_prefill = true;
                }
            }
        }
        Ok(sequences.into_iter().map(Sequence::continuation).collect())
    }

    /// Runs every sequence's context through the model at once.
    async fn prefill(&self, sequences: &[Sequence]) -> Result<()> {
        let recordings = self.recordings;
        let window = recordings.window as usize;
        let (mut tokens, mut positions, mut last_rows) = (Vec::new(), Vec::new(), Vec::new());
        for (number, sequence) in sequences.iter().enumerate() {
            let context = sequence.context();
            // One that is done may have one token too many; nobody reads what follows from it.
            let context = &context[..context.len().min(window)];
            tokens.extend(context);
            tokens.resize((number + 1) * window, 0);
            positions.extend(0..window as u32);
            last_rows.push((number * window + context.len() - 1) as u32);
        }
        self.write(recordings.prompt, &tokens);
        self.write(recordings.prompt_positions, &positions);
        self.write(recordings.last_rows, &last_rows);
        self.replay(self.programs.0).await
    }

    /// Runs every sequence's newest token.
    async fn step(&self, sequences: &[Sequence]) -> Result<()> {
        let newest = |sequence: &Sequence| *sequence.context().last().unwrap_or(&0);
        // A sequence that is done stands still at the end of its context.
        let place = |sequence: &Sequence| {
            (sequence.context().len() - 1).min(self.recordings.window as usize - 1) as u32
        };
        self.write(self.recordings.token, &sequences.iter().map(newest).collect::<Vec<_>>());
        self.write(self.recordings.position, &sequences.iter().map(place).collect::<Vec<_>>());
        self.replay(self.programs.1).await
    }

    async fn replay(&self, program: usize) -> Result<()> {
        let mut encoder = self.gpu.encoder();
        encoder.replay(&self.prepared.programs[program]).await?;
        encoder.submit().await
    }

    /// What the model says comes next in each sequence.
    async fn logits(&self) -> Result<Vec<Vec<f32>>> {
        let tensor = self.recordings.logits;
        let bytes =
            self.reader.tensor(self.gpu, self.buffers, self.prepared, self.programs.0, &tensor).await?;
        let rows = bytemuck::pod_collect_to_vec::<u8, f32>(&bytes);
        Ok(rows.chunks(tensor.stride as usize).map(|row| row[..tensor.cols as usize].to_vec()).collect())
    }

    fn write(&self, tensor: Tensor, ids: &[u32]) {
        if let BufferId::Persistent(id) = tensor.buffer {
            self.gpu.write(self.buffers, id, tensor.offset, bytemuck::cast_slice(ids));
        }
    }
}

impl Sequence {
    fn context(&self) -> &[u32] {
        &self.tokens[self.start..]
    }

    fn continuation(self) -> Vec<u32> {
        let prompt = self.tokens.len() - self.written;
        self.tokens[prompt..].to_vec()
    }
}
