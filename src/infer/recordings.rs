//! The recordings of generation: prefill of the prompts in one pass, decoding of one token per sequence, and drawing
//! the next.

use crate::element::Element;
use crate::error::Result;
use crate::kernels::Capabilities;
use crate::model::config::{LayerConfig, Mixer, ModelConfig};
use crate::model::parameters::Gpt;
use crate::model::{
    BatchTensors, Cache, ForwardContext, KeyCache, LinearCache, Mode, ModelBuffers, widest_expert_tensor,
};
use crate::ops::causal_conv::kept_tokens;
use crate::ops::draw::{DRAWS, DrawTensors, SamplingState, draw};
use crate::ops::embedding::embedding;
use crate::ops::l2_norm::unit_rows;
use crate::ops::linear_cross_entropy::bias_of_parts;
use crate::ops::matmul::{Epilogue, Layout, matmul};
use crate::record::{Persistents, Recorder, Recording, State, Tensor};
use crate::tape::{Parameter, Tape};

/// The recordings for B sequences of at most T tokens, and the tensors they share.
pub struct GenerateRecordings {
    /// B, the batch size.
    pub sequences: u32,
    /// T, the model's context window in tokens.
    pub window: u32,
    /// V, the size of the vocabulary.
    pub vocab_size: u32,
    /// Whether layers have states, which hold all tokens at once and cannot go back to earlier ones.
    pub has_states: bool,
    /// Room for the tokens of the prompts (1, B·T) u32; the padding after a prompt may be any token.
    pub prompt: Tensor,
    /// The position of each prompt token in its sequence (1, B·T) u32.
    pub prompt_positions: Tensor,
    /// Row of each prompt's last token (1, B) u32, the rows for which logits are computed.
    pub last_rows: Tensor,
    /// The caches that hold the last tokens of each sequence alone, one for all of the same window.
    pub rings: Vec<Ring>,
    /// Logits of the next token, the tokens drawn from them, and the newest token of each sequence.
    pub draws: DrawTensors,
    /// The programs.
    pub programs: GeneratePrograms<Recording>,
}

/// The caches of layers whose windows are shorter than the context: token t of a sequence is in row t mod R.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ring {
    /// The tokens that a query sees at most, itself included.
    pub window: u32,
    /// R, rows of a sequence.
    pub rows: u32,
    /// The row of the pass over prompts that each row receives (1, B·R) u32, in passes over more than R tokens.
    pub kept: Tensor,
}

/// Rows of a ring beyond its window: so many tokens of a text may be forgotten before the next one is read, without
/// reading all of it again. Up to [`DRAWS`] - 1 are run behind a token that ends a text; the others are for an end that
/// is encoded otherwise in the next prompt.
const SPARE: u32 = 2 * DRAWS;

impl Ring {
    /// Whether all that a query at `position` sees is there after `written` tokens.
    pub(super) fn holds(&self, position: usize, written: usize) -> bool {
        (position + 1).saturating_sub(self.window as usize) + self.rows as usize >= written
    }

    /// For each row the last of `tokens` tokens that belongs there, or another below R where there is none.
    pub(super) fn received(&self, tokens: u32) -> impl Iterator<Item = u32> {
        let (rows, last) = (self.rows, tokens.saturating_sub(1));
        (0..rows).map(move |row| if row > last { row } else { last - (last - row) % rows })
    }
}

/// Tokens of the shortest pass over prompts beside that over the window.
const SHORTEST_PASS: u32 = 64;

/// Most sequences whose prompts have shorter passes: these fill the caches sequence by sequence.
const MOST_SEQUENCES: u32 = 64;

/// A value for each program of generation, such as its recording or its place among the prepared ones.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratePrograms<T> {
    /// Compute caches and logits from the prompts, in passes of so many tokens per sequence: the longest first.
    pub prefills: Vec<(u32, T)>,
    /// Appends the newest token to the caches and computes logits.
    pub step: T,
    /// Draws the next token, which becomes the newest.
    pub draw: T,
}

impl<T> GeneratePrograms<T> {
    /// The same programs, with each value replaced by the result of `of`, in the order of the fields.
    pub fn map<U>(self, mut of: impl FnMut(T) -> U) -> GeneratePrograms<U> {
        GeneratePrograms {
            prefills: self.prefills.into_iter().map(|(tokens, one)| (tokens, of(one))).collect(),
            step: of(self.step),
            draw: of(self.draw),
        }
    }

    /// All values, in the order of the fields.
    pub fn all(self) -> Vec<T> {
        let mut all = Vec::new();
        self.map(|one| all.push(one));
        all
    }

    /// References to each.
    pub fn as_ref(&self) -> GeneratePrograms<&T> {
        let prefills = self.prefills.iter().map(|(tokens, one)| (*tokens, one)).collect();
        GeneratePrograms { prefills, step: &self.step, draw: &self.draw }
    }
}

impl GenerateRecordings {
    /// Bytes of the largest tensor of the recordings, which must not exceed the binding limit; `longest` is the longest
    /// pass.
    pub fn largest_tensor(config: &ModelConfig, sequences: u32, longest: u32) -> u64 {
        let halves = if config.activation.gate().is_some() { 2 } else { 1 };
        let of_layer = |layer: &LayerConfig| {
            let inner = halves * layer.intermediate_size.next_multiple_of(4);
            let layout = config.head_layout(layer);
            inner.max(layout.cols().max(layout.out_cols()) as usize).max(config.projected_cols(layer))
        };
        let widest = config.layer_kinds().map(|(layer, _)| of_layer(layer)).max().unwrap_or(0);
        let inputs = config.per_layer_width.map_or(0, |width| width * config.num_layers);
        let widest = widest.max(inputs).max(config.hidden_size).max(config.embedding_width.unwrap_or(0));
        let logits = 4 * sequences as u64 * config.vocab_size.next_multiple_of(4) as u64;
        let tokens = u64::from(sequences) * u64::from(longest);
        let experts = widest_expert_tensor(config, u32::try_from(tokens).unwrap_or(u32::MAX), true);
        let element = config.compute.bytes();
        let experts = experts.map_or(0, |[rows, cols]| element * rows * cols);
        let cache_of = |layer: usize| match config.layer(layer).mixer {
            Mixer::Softmax => {
                let cached = u64::from(sequences) * u64::from(cached_tokens(config, layer));
                (element * cached).saturating_mul(u64::from(config.decode(layer).cache_cols()))
            }
            Mixer::Linear(linear) => {
                let state = (4 * sequences as u64).saturating_mul(linear.values() as u64);
                state.saturating_mul(linear.key_dim as u64)
            }
            Mixer::Convolution { .. } => 0, // few rows of an activation
        };
        let cache = (0..config.num_layers).map(cache_of).max().unwrap_or(0);
        logits.max((element * tokens).saturating_mul(widest as u64)).max(experts).max(cache)
    }

    /// The passes of prompts of any length, each half as long as the one before.
    pub fn halves(window: u32) -> Vec<u32> {
        let half = |tokens: &u32| Some(tokens.div_ceil(2)).filter(|half| *half >= SHORTEST_PASS);
        std::iter::successors(Some(window), half).collect()
    }

    /// Records all programs for the model `gpt` of `config`, and adds the tensors to `persistents`. Prompts are read in
    /// the shortest of `passes` that holds them, and many sequences in passes over the window alone.
    ///
    /// # Errors
    /// A tensor or a launch over the limits of `capabilities`.
    pub fn new(
        persistents: &mut Persistents,
        gpt: &Gpt<Parameter>,
        config: &ModelConfig,
        buffers: ModelBuffers,
        sequences: u32,
        passes: &[u32],
        capabilities: Capabilities,
    ) -> Result<Self> {
        let (window, vocab_size) = (config.seq_length as u32, config.vocab_size as u32);
        let mut ids = |label: &str, count| persistents.tensor(label, 1, count, Element::U32);
        let (prompt, prompt_positions) =
            (ids("prompt", sequences * window), ids("prompt positions", sequences * window));
        let last_rows = ids("last rows", sequences);
        let draws = draw_tensors(persistents, sequences, vocab_size);
        let DrawTensors { logits, token, position, .. } = draws;
        let (mut caches, mut rings): (Vec<Cache>, Vec<Ring>) = (Vec::new(), Vec::new());
        for layer in 0..config.num_layers {
            let shared = config.layer(layer).kv_source.map(|source| caches[source]);
            caches.push(shared.unwrap_or_else(|| cache(persistents, &mut rings, config, sequences, layer)));
        }

        let hidden = |rec: &mut Recorder, config: &ModelConfig, batch, mode| {
            let context =
                ForwardContext { config, buffers, batch, expert_ranks: None, matrix_ranks: None, mode };
            gpt.hidden(&mut Tape::forward_only(rec), &context).tensor
        };
        let prefill = |tokens: u32| {
            let mut rec = Recorder::new("prefill", capabilities);
            let config = config.with_window(tokens as usize);
            let batch =
                batch(prompt.columns(0, sequences * tokens), prompt_positions.columns(0, sequences * tokens));
            let mode = Mode::Prefill { caches: &caches, last_rows };
            let h = hidden(&mut rec, &config, batch, mode); // (B·tokens, D)
            let last = rec.tensor("last", sequences, h.cols, h.element);
            embedding(&mut rec, last_rows, &[h], None, last);
            head(&mut rec, gpt, &config, last, logits);
            Ok((tokens, rec.try_finish()?))
        };
        let passes = if sequences > MOST_SEQUENCES { &[window] } else { passes };
        let prefills = passes.iter().map(|tokens| prefill(*tokens)).collect::<Result<_>>()?;
        let step = {
            let mut rec = Recorder::new("decode", capabilities);
            let h = hidden(&mut rec, config, batch(token, position), Mode::Decode(&caches)); // (B, D)
            head(&mut rec, gpt, config, h, logits);
            rec.try_finish()?
        };
        let draw = {
            let mut rec = Recorder::new("draw", capabilities);
            rec.enter("draw");
            draw(&mut rec, &draws, config.logit_cap.map(|cap| cap as f32));
            rec.try_finish()?
        };
        let programs = GeneratePrograms { prefills, step, draw };
        let has_states = config.has_linear_attention() || config.has_convolutions();
        Ok(Self {
            sequences,
            window,
            vocab_size,
            has_states,
            prompt,
            prompt_positions,
            last_rows,
            rings,
            draws,
            programs,
        })
    }
}

/// The tokens of a sequence whose keys and values layer number `layer` keeps.
fn cached_tokens(config: &ModelConfig, layer: usize) -> u32 {
    ring_window(config, layer).map_or(config.seq_length as u32, |window| window + SPARE)
}

/// The widest window over the keys of layer number `layer`, its own or that of a layer that reads them, if a ring holds
/// fewer tokens than the context.
fn ring_window(config: &ModelConfig, layer: usize) -> Option<u32> {
    let reads = |reader: &usize| *reader == layer || config.layer(*reader).kv_source == Some(layer);
    let mut windows = (0..config.num_layers).filter(reads).map(|reader| config.decode(reader).window);
    let widest = windows.try_fold(0, |widest, window| Some(widest.max(window?)))?;
    (widest.saturating_add(SPARE) < config.seq_length as u32).then_some(widest)
}

/// The ring in `rings` for windows of `window` tokens, which is added where there is none.
fn ring(persistents: &mut Persistents, rings: &mut Vec<Ring>, sequences: u32, window: u32) -> Ring {
    rings.iter().find(|ring| ring.window == window).copied().unwrap_or_else(|| {
        let rows = window + SPARE;
        let label = format!("rows kept for a window of {window}");
        let kept = persistents.tensor(label, 1, sequences * rows, Element::U32);
        rings.push(Ring { window, rows, kept });
        Ring { window, rows, kept }
    })
}

/// What generation keeps of `sequences` sequences in layer number `layer`.
fn cache(
    persistents: &mut Persistents,
    rings: &mut Vec<Ring>,
    config: &ModelConfig,
    sequences: u32,
    layer: usize,
) -> Cache {
    let label = format!("cache of layer {layer}");
    match config.layer(layer).mixer {
        Mixer::Softmax => {
            let ring = ring_window(config, layer).map(|window| ring(persistents, rings, sequences, window));
            let rows = sequences * ring.map_or(config.seq_length as u32, |ring| ring.rows);
            let rows = persistents.tensor(label, rows, config.decode(layer).cache_cols(), config.compute);
            Cache::Keys(KeyCache { rows, kept: ring.map(|ring| ring.kept) })
        }
        Mixer::Linear(linear) => {
            let kept = sequences * kept_tokens(linear.conv_width as u32);
            let held = sequences * (linear.heads * linear.key_dim) as u32;
            let conv = persistents.tensor(label, kept, linear.channels() as u32, config.compute);
            let label = format!("state of layer {layer}");
            let rule = persistents.tensor(label, held, linear.value_dim as u32, Element::F32);
            Cache::States(LinearCache { conv, rule })
        }
        Mixer::Convolution { width } => {
            let kept = sequences * kept_tokens(width as u32);
            let (cols, compute) = (config.hidden_size as u32, config.compute);
            Cache::Convolved(persistents.tensor(label, kept, cols, compute))
        }
    }
}

fn draw_tensors(persistents: &mut Persistents, sequences: u32, vocab: u32) -> DrawTensors {
    let mut words = |label: &str, rows, cols| persistents.tensor(label, rows, cols, Element::U32);
    DrawTensors {
        sequences: words("draws", sequences, 4),
        seen: words("seen tokens", sequences, DrawTensors::seen_words(vocab)),
        token: words("token", 1, sequences),
        position: words("position", 1, sequences),
        drawn: words("drawn tokens", 1, DRAWS * sequences),
        sampling: SamplingState::tensor(persistents, "sampling"),
        logits: persistents.tensor("logits", sequences, vocab, Element::F32),
    }
}

/// Without a backward pass, neither targets nor the summation orders of gradients are read.
fn batch(tokens: Tensor, positions: Tensor) -> BatchTensors {
    let unread = tokens;
    BatchTensors {
        tokens,
        targets: unread,
        positions,
        order: unread,
        position_order: Some(unread),
        documents: None,
        pairs: None,
        ahead: None,
    }
}

/// logits (B, V) of the hidden states h (B, D), one product per part of the head.
fn head(rec: &mut Recorder, gpt: &Gpt<Parameter>, config: &ModelConfig, h: Tensor, logits: Tensor) {
    let units = config.head_epsilon.map(|epsilon| unit_rows(rec, &gpt.head().weight, epsilon as f32));
    let head = units.as_ref().unwrap_or(&gpt.head().weight);
    let bias = gpt.head_bias.as_ref().map(|bias| bias_of_parts(rec, head, bias.weight()));
    let mut column = 0;
    for (i, part) in head.iter().enumerate() {
        let columns = logits.columns(column, part.rows);
        let bias = bias.as_ref().map(|bias| bias[i]);
        let into = Epilogue { factor: config.logits_factor(), bias, ..Epilogue::default() };
        matmul(rec, Layout::Nt, h, *part, columns, into);
        column += part.rows;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(window: u32, rows: u32) -> Ring {
        Ring { window, rows, kept: Persistents::new().tensor("kept", 1, rows, Element::U32) }
    }

    /// Tokens are run one by one and forgotten from any position on. A ring holds what a query sees exactly if none of
    /// it was overwritten; it need not know that a query at the beginning, or in a window of 1, sees no other token.
    #[test]
    fn a_ring_holds_what_was_not_overwritten() {
        for (window, rows, written) in [(1, 3), (2, 2), (3, 5), (4, 4)]
            .into_iter()
            .flat_map(|(window, rows)| (0..14).map(move |written| (window, rows, written)))
        {
            let ring = ring(window, rows);
            let mut held: Vec<Option<usize>> = vec![None; rows as usize];
            (0..written).for_each(|token| held[token % rows as usize] = Some(token));
            for position in 0..=written {
                let seen = (position + 1).saturating_sub(window as usize)..position;
                let is_there = seen.clone().all(|token| held[token % rows as usize] == Some(token));
                match ring.holds(position, written) {
                    true => assert!(is_there, "{ring:?}: {position} of {written}"),
                    false => assert!(!is_there || seen.is_empty(), "{ring:?}: {position} of {written}"),
                }
            }
        }
    }

    #[test]
    fn rows_receive_the_last_tokens_that_belong_there() {
        for (tokens, want) in [
            (1, [0, 1, 2, 3, 4]),
            (4, [0, 1, 2, 3, 4]),
            (5, [0, 1, 2, 3, 4]),
            (6, [5, 1, 2, 3, 4]),
            (10, [5, 6, 7, 8, 9]),
            (13, [10, 11, 12, 8, 9]),
        ] {
            assert_eq!(ring(3, 5).received(tokens).collect::<Vec<_>>(), want, "{tokens} tokens");
        }
    }
}
