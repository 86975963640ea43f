//! Batched autoregressive generation.

use super::recordings::{GeneratePrograms, GenerateRecordings};
use super::sampling::Sampling;
use crate::device::{Buffers, Gpu, Prepared, Reader};
use crate::error::{Error, Result};
use crate::ops::draw::{DRAWS, DrawTensors};
use crate::record::{BufferId, Tensor};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Longest submission of several tokens, so that a reader sees text flow.
const SUBMISSION: Duration = Duration::from_millis(50);

/// Tokens that the caches lack are read step by step if they are at most this fraction (1 / n) of the shortest pass
/// that holds the context; otherwise that pass computes the whole context. On llvmpipe a pass over 512 tokens takes as
/// long as 40 steps at 1 million parameters and as 33 at 28 million.
const PART_BY_STEPS: usize = 32;

/// The settings of a generation.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationSettings {
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
    /// Indices of the programs in `prepared`.
    pub programs: &'a GeneratePrograms<usize>,
    /// The recordings that the programs were prepared from.
    pub recordings: &'a GenerateRecordings,
    /// Reads the drawn tokens back.
    pub reader: &'a Reader,
    /// For each sequence, what the caches hold. Must be empty at first, and whenever weights change.
    pub cached: &'a mut Vec<CachedText>,
}

/// The tokens of a sequence whose keys and values the caches hold.
#[derive(Clone, Debug, Default)]
pub struct CachedText {
    tokens: Vec<u32>,
    /// Tokens of the longest text since the last pass: rings have lost what was in the rows of those that were
    /// forgotten again, too.
    written: usize,
}

impl CachedText {
    fn push(&mut self, token: u32) {
        self.tokens.push(token);
        self.written = self.written.max(self.tokens.len());
    }
}

/// A sequence in progress.
struct Sequence {
    /// Prompt and continuation.
    tokens: Vec<u32>,
    /// Index of the first token in the model's context.
    start: usize,
    written: usize,
    is_done: bool,
    /// The token that was drawn last, which the device reads next. It is also updated after the sequence is done.
    newest: u32,
}

impl Generator<'_> {
    /// Continues each of `prompts` by up to `settings.tokens` tokens and returns the continuations. `on_token` is
    /// called with (prompt index, token) as each token is drawn, and stops the generation of all sequences with a
    /// break. An empty prompt is replaced by token 0.
    ///
    /// The continuation of prompt i does not depend on the other prompts, except for rounding: alone, with seed + i, it
    /// would be the same. Nor does it depend on earlier calls, again except for rounding, although tokens that a prompt
    /// shares with the cached tokens of its sequence are not computed again; where layers have states, only if all of
    /// these are the beginning of the prompt, and where they have windows, only if few of these are forgotten. A
    /// sequence that exceeds the model's window keeps the last half of the window as context, and all caches are
    /// prefilled again.
    ///
    /// # Errors
    /// A device failure; a prompt longer than the passes that were planned.
    ///
    /// # Panics
    /// If the number of prompts differs from that of the recordings.
    pub async fn generate(
        &mut self,
        prompts: &[Vec<u32>],
        settings: &GenerationSettings,
        mut on_token: impl FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<Vec<u32>>> {
        assert_eq!(
            prompts.len(),
            self.recordings.sequences as usize,
            "the recordings take one prompt per sequence"
        );
        let window = self.recordings.window as usize;
        let begin = |prompt: &Vec<u32>| Sequence {
            tokens: if prompt.is_empty() { vec![0] } else { prompt.clone() },
            start: prompt.len().saturating_sub(window),
            written: 0,
            is_done: settings.tokens == 0,
            newest: 0,
        };
        let mut sequences: Vec<Sequence> = prompts.iter().map(begin).collect();
        self.cached.resize(prompts.len(), CachedText::default());
        self.begin_draws(&sequences, settings);
        let (mut draws, mut follows, mut took) = (0, false, SUBMISSION);
        while sequences.iter().any(|sequence| !sequence.is_done) {
            if !follows {
                // A finished sequence may exceed the window by one token; its logits are not used.
                let context = |sequence| -> &[u32] {
                    let context = Sequence::context(sequence);
                    &context[..context.len().min(window)]
                };
                self.read(&sequences.iter().map(context).collect::<Vec<_>>()).await?;
            }
            let count = if follows { self.next_draws(&sequences, settings, took) } else { 1 };
            let began = Instant::now();
            let drawn = self.draw(&mut sequences, draws, count, follows).await?;
            took = began.elapsed() / count;
            (draws, follows) = (draws + count, true);
            for (number, token) in drawn {
                let sequence = &mut sequences[number];
                if sequence.is_done {
                    continue;
                }
                sequence.tokens.push(token);
                sequence.written += 1;
                sequence.is_done = sequence.written == settings.tokens || settings.stops.contains(&token);
                if on_token(number, token).is_break() {
                    return Ok(sequences.into_iter().map(Sequence::continuation).collect());
                }
                if !sequence.is_done && sequence.context().len() > window {
                    sequence.start = sequence.tokens.len() - window.div_ceil(2);
                    follows = false;
                }
            }
        }
        Ok(sequences.into_iter().map(Sequence::continuation).collect())
    }

    /// Writes the sampling settings, and the tokens that occur in each prompt, to the device.
    fn begin_draws(&self, sequences: &[Sequence], settings: &GenerationSettings) {
        let DrawTensors { sampling, sequences: states, seen, .. } = self.recordings.draws;
        let vocab = self.recordings.vocab_size;
        let (mut state, mut bits) = (Vec::new(), vec![0; (seen.rows * seen.stride) as usize]);
        for (number, sequence) in (0..).zip(sequences) {
            let seed = settings.seed.wrapping_add(number);
            state.extend([seed as u32, (seed >> 32) as u32, 0, 0]);
            let first = number as usize * seen.stride as usize;
            for token in sequence.tokens.iter().filter(|token| **token < vocab) {
                bits[first + *token as usize / 32] |= 1 << (token % 32);
            }
        }
        self.write(sampling, bytemuck::cast_slice(&[settings.sampling.state()]));
        self.write(states, &state);
        self.write(seen, &bits);
    }

    /// Number of tokens to draw in one submission: as many as are wanted, fit the window, and take no longer than
    /// [`SUBMISSION`].
    fn next_draws(&self, sequences: &[Sequence], settings: &GenerationSettings, took: Duration) -> u32 {
        let active = || sequences.iter().filter(|sequence| !sequence.is_done);
        let wanted = active().map(|sequence| settings.tokens - sequence.written).max().unwrap_or(1);
        let longest = active().map(|sequence| sequence.context().len()).max().unwrap_or(1);
        let room = self.recordings.window as usize + 1 - longest;
        let in_time = SUBMISSION.as_nanos() / took.as_nanos().max(1);
        wanted.min(room).min(DRAWS as usize).min(in_time as usize).max(1) as u32
    }

    /// Draws `count` tokens of each sequence, after `before` earlier draws, and returns them with the number of their
    /// sequence, oldest first. If `follows`, each draw is preceded by a step that runs the previously drawn token.
    async fn draw(
        &mut self,
        sequences: &mut [Sequence],
        before: u32,
        count: u32,
        follows: bool,
    ) -> Result<Vec<(usize, u32)>> {
        let (&GeneratePrograms { step, draw, .. }, batch) = (self.programs, sequences.len());
        let once: &[usize] = if follows { &[step, draw] } else { &[draw] };
        // Back when the device has come so far: states that are further than these tokens are of no use.
        let mut cached = std::mem::take(self.cached);
        self.replay(&once.repeat(count as usize)).await?;
        let rows = self.recordings.draws.drawn;
        let bytes = self.reader.tensor(self.gpu, self.buffers, self.prepared, draw, &rows).await?;
        let kept = bytemuck::pod_collect_to_vec::<u8, u32>(&bytes);
        let mut drawn = Vec::new();
        for row in (before..before + count).map(|draw| (draw % DRAWS) as usize) {
            for (number, sequence) in sequences.iter_mut().enumerate() {
                let token = kept[row * batch + number];
                if follows {
                    self.append(&mut cached[number], sequence.newest);
                }
                sequence.newest = token;
                drawn.push((number, token));
            }
        }
        *self.cached = cached;
        Ok(drawn)
    }

    /// Runs the tokens of the contexts that the caches lack through the model, and in any case the last token of each:
    /// token by token if there are few, and otherwise the contexts in one pass, the shortest that holds them.
    async fn read(&mut self, contexts: &[&[u32]]) -> Result<()> {
        let lacks = |(context, cached): (&&[u32], &CachedText)| {
            let shared = context.iter().zip(&cached.tokens).take_while(|(a, b)| a == b).count();
            context.len() - shared.min(context.len() - 1)
        };
        let lacking = contexts.iter().zip(&*self.cached).map(lacks).max().unwrap_or(0);
        let goes_on = |(context, cached): (&&[u32], &CachedText)| {
            let cached = &cached.tokens;
            !cached.is_empty() && cached.len() + lacking == context.len() && context.starts_with(cached)
        };
        let holds = |(context, cached): (&&[u32], &CachedText)| {
            let first = context.len().saturating_sub(lacking);
            self.recordings.rings.iter().all(|ring| ring.holds(first, cached.written))
        };
        let follows = |text| holds(text) && (!self.recordings.has_states || goes_on(text));
        let can_step = contexts.iter().zip(&*self.cached).all(follows);
        let longest = contexts.iter().map(|context| context.len()).max().unwrap_or(0);
        let passes = self.programs.prefills.iter().rev();
        let pass = passes.copied().find(|(tokens, _)| *tokens as usize >= longest);
        let pass = pass.ok_or_else(|| {
            let most = self.programs.prefills.iter().map(|(tokens, _)| *tokens).max().unwrap_or(0);
            let remedy = "shorten it, or load the model for longer prompts";
            Error::Plan(format!("a prompt of {longest} tokens, and the model is loaded for {most}; {remedy}"))
        })?;
        if !can_step || lacking > (pass.0 as usize / PART_BY_STEPS).max(1) {
            return self.prefill(contexts, pass).await;
        }
        for behind in (0..lacking).rev() {
            self.step(contexts, behind).await?;
        }
        Ok(())
    }

    /// Runs the contexts in one pass, which fills the caches: a program for so many tokens of each.
    async fn prefill(&mut self, contexts: &[&[u32]], (room, program): (u32, usize)) -> Result<()> {
        let recordings = self.recordings;
        let room = room as usize;
        let (mut tokens, mut positions, mut last_rows) = (Vec::new(), Vec::new(), Vec::new());
        for (number, context) in contexts.iter().enumerate() {
            tokens.extend(*context);
            tokens.resize((number + 1) * room, 0);
            positions.extend(0..room as u32);
            last_rows.push((number * room + context.len() - 1) as u32);
        }
        self.write(recordings.prompt, &tokens);
        self.write(recordings.prompt_positions, &positions);
        self.write(recordings.last_rows, &last_rows);
        let last: Vec<u32> = contexts.iter().map(|context| context.len() as u32 - 1).collect();
        self.write(recordings.draws.position, &last);
        for ring in recordings.rings.iter().filter(|ring| (ring.rows as usize) < room) {
            let received = (0..).zip(contexts).flat_map(|(number, context)| {
                ring.received(context.len() as u32).map(move |token| number * room as u32 + token)
            });
            self.write(ring.kept, &received.collect::<Vec<_>>());
        }
        self.cached.fill(CachedText::default()); // also if the pass fails
        self.replay(&[program]).await?;
        let read = |context: &&[u32]| CachedText { tokens: context.to_vec(), written: context.len() };
        *self.cached = contexts.iter().map(read).collect();
        Ok(())
    }

    /// Runs, for every context, the token with `behind` others after it, or otherwise its first token. Tokens that are
    /// already in the cache are computed again.
    async fn step(&mut self, contexts: &[&[u32]], behind: usize) -> Result<()> {
        let place = |context: &&[u32]| (context.len() - 1).saturating_sub(behind);
        let places: Vec<usize> = contexts.iter().map(place).collect();
        let tokens: Vec<u32> = contexts.iter().zip(&places).map(|(context, place)| context[*place]).collect();
        let positions: Vec<u32> = places.iter().map(|place| *place as u32).collect();
        self.write(self.recordings.draws.token, &tokens);
        self.write(self.recordings.draws.position, &positions);
        let mut cached = std::mem::take(self.cached); // also if the step fails
        cached.iter_mut().zip(&places).for_each(|(cached, place)| cached.tokens.truncate(*place));
        self.replay(&[self.programs.step]).await?;
        cached.iter_mut().zip(tokens).for_each(|(cached, token)| cached.push(token));
        *self.cached = cached;
        Ok(())
    }

    /// Notes that the device has run `token` after those in `cached`. A sequence that is done continues past the
    /// window, where it overwrites the last token; states and rings then hold more than any context.
    fn append(&self, cached: &mut CachedText, token: u32) {
        let GenerateRecordings { window, has_states, rings, .. } = self.recordings;
        let (window, forgets) = (*window as usize, *has_states || !rings.is_empty());
        match cached.tokens.len() < window {
            _ if forgets && cached.tokens.is_empty() => {}
            true => cached.push(token),
            false if forgets => cached.tokens.clear(),
            false => cached.tokens.truncate(window - 1),
        }
    }

    async fn replay(&self, programs: &[usize]) -> Result<()> {
        let mut encoder = self.gpu.encoder();
        for program in programs {
            encoder.replay(&self.prepared.programs[*program]).await?;
        }
        encoder.submit().await
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
