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

/// What the caches lack is read by steps where it is at most this part of the window, since a pass computes the whole window: on
/// llvmpipe a pass over 512 tokens takes as long as 40 steps at 1 million parameters and as 33 at 28 million.
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
    /// The tokens whose keys and values the caches hold, for each sequence. Nothing at first, and whenever weights change.
    pub cached: &'a mut Vec<Vec<u32>>,
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
    /// would be the same. Nor does it depend on earlier calls, likewise except for rounding, although tokens that a prompt shares
    /// with what the cache holds of them are not computed again. A sequence that exceeds the model's window keeps the last half of
    /// the window as context, and all caches are prefilled again.
    ///
    /// # Errors
    /// A device failure.
    ///
    /// # Panics
    /// If the number of prompts differs from that of the recordings.
    pub async fn generate(
        &mut self,
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
        self.cached.resize(prompts.len(), Vec::new());
        while sequences.iter().any(|sequence| !sequence.is_done) {
            // A finished sequence may exceed the window by one token; its logits are not used.
            let context = |sequence| -> &[u32] {
                let context = Sequence::context(sequence);
                &context[..context.len().min(window)]
            };
            self.read(&sequences.iter().map(context).collect::<Vec<_>>()).await?;
            let logits = self.logits().await?;
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
                }
            }
        }
        Ok(sequences.into_iter().map(Sequence::continuation).collect())
    }

    /// Runs through the model what the caches lack of the contexts, and the last token of each in any case: token by token if it is
    /// little, or else the contexts in one pass.
    async fn read(&mut self, contexts: &[&[u32]]) -> Result<()> {
        let lacks = |(context, cached): (&&[u32], &Vec<u32>)| {
            let shared = context.iter().zip(cached).take_while(|(a, b)| a == b).count();
            context.len() - shared.min(context.len() - 1)
        };
        let lacking = contexts.iter().zip(&*self.cached).map(lacks).max().unwrap_or(0);
        if lacking > (self.recordings.window as usize / PART_BY_STEPS).max(1) {
            return self.prefill(contexts).await;
        }
        for behind in (0..lacking).rev() {
            self.step(contexts, behind).await?;
        }
        Ok(())
    }

    /// Runs the contexts in one pass, which fills the caches.
    async fn prefill(&mut self, contexts: &[&[u32]]) -> Result<()> {
        let recordings = self.recordings;
        let window = recordings.window as usize;
        let (mut tokens, mut positions, mut last_rows) = (Vec::new(), Vec::new(), Vec::new());
        for (number, context) in contexts.iter().enumerate() {
            tokens.extend(*context);
            tokens.resize((number + 1) * window, 0);
            positions.extend(0..window as u32);
            last_rows.push((number * window + context.len() - 1) as u32);
        }
        self.write(recordings.prompt, &tokens);
        self.write(recordings.prompt_positions, &positions);
        self.write(recordings.last_rows, &last_rows);
        self.cached.fill(Vec::new()); // also if the pass fails
        self.replay(self.programs.0).await?;
        *self.cached = contexts.iter().map(|context| context.to_vec()).collect();
        Ok(())
    }

    /// Runs the token of every context that has `behind` others behind it, or else its first: what is in the cache already is
    /// computed again.
    async fn step(&mut self, contexts: &[&[u32]], behind: usize) -> Result<()> {
        let place = |context: &&[u32]| (context.len() - 1).saturating_sub(behind);
        let places: Vec<usize> = contexts.iter().map(place).collect();
        let tokens: Vec<u32> = contexts.iter().zip(&places).map(|(context, place)| context[*place]).collect();
        let positions: Vec<u32> = places.iter().map(|place| *place as u32).collect();
        self.write(self.recordings.token, &tokens);
        self.write(self.recordings.position, &positions);
        self.cached.iter_mut().zip(&places).for_each(|(cached, place)| cached.truncate(*place));
        self.replay(self.programs.1).await?;
        self.cached.iter_mut().zip(tokens).for_each(|(cached, token)| cached.push(token));
        Ok(())
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
