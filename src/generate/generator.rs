//! Batched autoregressive generation.

use super::recordings::GenerateRecordings;
use super::sampling::Sampling;
use crate::device::{Buffers, Gpu, Prepared, Reader};
use crate::error::Result;
use crate::random::Philox;
use crate::record::{BufferId, Tensor};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// The random stream of sampling; initialisation uses the small stream numbers.
const STREAM: u64 = 1 << 40;

/// Contexts of at most this part of the window are read by steps, since a pass computes the whole window: on llvmpipe a pass over
/// 512 tokens takes as long as 40 steps at 1 million parameters and as 33 at 28 million.
const PART_BY_STEPS: usize = 32;

/// Settings of a generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Maximum number of new tokens per sequence.
    pub tokens: usize,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Seed of the draws; sequence i uses seed + i.
    pub seed: u64,
    /// The tokens that end a sequence.
    pub stops: Vec<u32>,
}

/// A model on a device, ready to generate.
pub struct Generator<'a> {
    /// The device.
    pub gpu: &'a Gpu,
    /// Weights and KV caches.
    pub buffers: &'a Buffers,
    /// The prepared programs.
    pub prepared: &'a Prepared,
    /// Indices of the programs `prefill` and `step` in `prepared`.
    pub programs: (usize, usize),
    /// The recordings that they were prepared from.
    pub recordings: &'a GenerateRecordings,
    /// Reads the logits back.
    pub reader: &'a Reader,
}

/// A sequence in progress.
struct Sequence {
    /// Prompt and continuation.
    tokens: Vec<u32>,
    /// The distinct tokens among them, for the repetition penalty.
    seen: BTreeSet<u32>,
    /// Index of the first token in the model's context.
    start: usize,
    random: Philox,
    written: usize,
    is_done: bool,
}

impl Generator<'_> {
    /// Continues each of `prompts` by up to `settings.tokens` tokens and returns the continuations. `on_token` is
    /// called with (prompt index, token) as each token is drawn, and stops the generation of all sequences with a
    /// break. An empty prompt is replaced by token 0.
    ///
    /// The continuation of prompt i does not depend on the other prompts, except for rounding: alone, with seed + i, it
    /// would be the same. A sequence that exceeds the model's window keeps the last half of the window as context, and
    /// all caches are prefilled again.
    ///
    /// # Errors
    /// A device failure.
    ///
    /// # Panics
    /// If the number of prompts differs from that of the recordings.
    pub async fn generate(
        &self,
        prompts: &[Vec<u32>],
        settings: &Settings,
        mut on_token: impl FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<Vec<u32>>> {
        assert_eq!(
            prompts.len(),
            self.recordings.sequences as usize,
            "the recordings take one prompt per sequence"
        );
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
                self.step(&sequences, window).await?;
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
                sequence.is_done = sequence.written == settings.tokens || settings.stops.contains(&token);
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

    /// Runs the contexts of all sequences through the model, filling the caches: in one pass, or token by token if they are short.
    async fn prefill(&self, sequences: &[Sequence]) -> Result<()> {
        let recordings = self.recordings;
        let window = recordings.window as usize;
        let longest = sequences.iter().map(|sequence| sequence.context().len()).max().unwrap_or(0);
        if longest <= window / PART_BY_STEPS {
            for number in 0..longest {
                self.step(sequences, number).await?;
            }
            return Ok(());
        }
        let (mut tokens, mut positions, mut last_rows) = (Vec::new(), Vec::new(), Vec::new());
        for (number, sequence) in sequences.iter().enumerate() {
            let context = sequence.context();
            // A finished sequence may exceed the window by one token; its logits are not used.
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

    /// Runs the token at `place` of every context, or the last one of those that are shorter: a finished sequence keeps recomputing
    /// the last position of its context.
    async fn step(&self, sequences: &[Sequence], place: usize) -> Result<()> {
        let window = self.recordings.window as usize;
        let place_in = |sequence: &Sequence| place.min(sequence.context().len() - 1).min(window - 1);
        let token = |sequence: &Sequence| sequence.context()[place_in(sequence)];
        let places: Vec<u32> = sequences.iter().map(|sequence| place_in(sequence) as u32).collect();
        self.write(self.recordings.token, &sequences.iter().map(token).collect::<Vec<_>>());
        self.write(self.recordings.position, &places);
        self.replay(self.programs.1).await
    }

    async fn replay(&self, program: usize) -> Result<()> {
        let mut encoder = self.gpu.encoder();
        encoder.replay(&self.prepared.programs[program]).await?;
        encoder.submit().await
    }

    /// The logits (V) of the next token of each sequence.
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
