//! Drawing the next token of each sequence from its logits, on the device.

use super::soft_cap::cap_and_inverse;
use super::{long_rows, shared_rows, sharing};
use crate::element::Element::{F32, U32};
use crate::kernels::{Condition, Kernel, Tier};
use crate::record::{Recorder, State, Tensor, fold_grid};

/// Number of draws whose tokens the device keeps until the host has read them.
pub const DRAWS: u32 = 16;

crate::params! {
    struct Params {
        batch: u32,
        first: u32,
        sequences: u32,
        vocab: u32,
        logits_stride: u32,
        seen_stride: u32,
        chunks: u32,
        sorted_stride: u32,
        pairs: u32,
        cap: f32,
        inverse_cap: f32,
    }
}

crate::state! {
    /// The sampling settings.
    pub struct SamplingState {
        /// Divisor of the logits; 0 is greedy.
        pub temperature: f32,
        /// Tokens are drawn from the most likely ones that have this total probability; 1: from all.
        pub top_p: f32,
        /// Logits of tokens that have occurred are divided by this if positive and multiplied by it if negative; 1: no
        /// penalty.
        pub repetition_penalty: f32,
        /// Tokens are drawn from this many most likely ones; 0: from all.
        pub top_k: u32,
    }
}

/// The tensors that draws of B sequences from V tokens read and write.
#[derive(Clone, Copy, Debug)]
pub struct DrawTensors {
    /// Logits (B, V) f32.
    pub logits: Tensor,
    /// [`SamplingState`].
    pub sampling: Tensor,
    /// Low and high word of the seed, the number of draws so far, and 0, per sequence (B, 4) u32.
    pub sequences: Tensor,
    /// A bit for each token that has occurred (B, ceil(V / 32)) u32.
    pub seen: Tensor,
    /// Receives the tokens (1, B) u32.
    pub token: Tensor,
    /// Position of the previous token in its sequence (1, B) u32; grows by one.
    pub position: Tensor,
    /// ([`DRAWS`], B) u32 without padding: row n mod `DRAWS` receives the tokens of draw n.
    pub drawn: Tensor,
}

impl DrawTensors {
    /// Words of `seen` for each sequence.
    pub const fn seen_words(vocab: u32) -> u32 {
        vocab.div_ceil(32)
    }
}

/// Passes over the chunks of a row at most: one for its top, 3 for masses, 16 each for `top_k`, `top_p` and the quantile,
/// and 12 for ties.
const PASSES: u64 = 64;

/// Words of the sorted rows of one launch, 16 MiB, unless a row has more.
const SORTED_WORDS: u32 = 1 << 22;

/// Draws a token for each row of `logits`, under a soft cap if there is one, and counts it.
#[track_caller]
pub fn draw(rec: &mut Recorder, tensors: &DrawTensors, soft_cap: Option<f32>) {
    let DrawTensors { logits, sampling, sequences, seen, token, position, drawn } = *tensors;
    let (batch, vocab) = (logits.rows, logits.cols);
    assert!((1..1 << 24).contains(&vocab), "a vocabulary of {vocab} tokens is not counted exactly");
    assert!(
        (sequences.rows, sequences.cols) == (batch, 4),
        "{} states for {batch} sequences",
        sequences.rows
    );
    let fits = (seen.rows, seen.cols) == (batch, DrawTensors::seen_words(vocab));
    assert!(fits, "{} x {} words for {batch} x {vocab} tokens", seen.rows, seen.cols);
    assert!(
        (token.cols, position.cols) == (batch, batch),
        "a token and a position for each of {batch} sequences"
    );
    assert!(
        drawn.cols == DRAWS * batch,
        "{DRAWS} draws of {batch} sequences do not fit {} words",
        drawn.cols
    );
    let capabilities = rec.capabilities();
    let [cap, inverse_cap] = cap_and_inverse(soft_cap, 1.0);
    let (lanes, chunk) = match capabilities.tier {
        Tier::Software => (capabilities.software_workgroup, 64),
        Tier::Portable | Tier::Matrix => (64, 256),
    };
    let chunks = vocab.div_ceil(chunk);
    let words = 3 * chunk * chunks + chunks;
    let at_once = (SORTED_WORDS / words).clamp(1, batch);
    let sorted = rec.tensor("sorted", at_once, words, U32);
    for first in (0..batch).step_by(at_once as usize) {
        let params = Params {
            batch,
            first,
            sequences: at_once.min(batch - first),
            vocab,
            logits_stride: logits.stride4(),
            seen_stride: seen.stride,
            chunks,
            sorted_stride: sorted.stride,
            pairs: (32 - (chunks - 1).leading_zeros()).div_ceil(2),
            cap,
            inverse_cap,
        };
        let with_constants = |kernel: Kernel| kernel.constant("CHUNK", chunk).constant("DRAWS", DRAWS);
        let kernel = Kernel::new("draw/sort", "sort", F32).constant("LANES", lanes);
        let kernel = kernel.condition(sharing(capabilities), true);
        let kernel = with_constants(kernel.condition(Condition::Capped, soft_cap.is_some()));
        let sampling = SamplingState::bind("sampling", sampling);
        let (seen, sorted) = (seen.bind("seen", U32), sorted.bind("sorted", U32));
        let bindings = [logits.bind("logits", F32), sampling, seen, sorted];
        let grid = fold_grid(u64::from(chunks) * u64::from(params.sequences));
        rec.dispatch(kernel, &bindings, &params, grid);

        let turns =
            u64::from(chunks.div_ceil(capabilities.software_workgroup)) * u64::from(chunk.ilog2() + 2);
        let (kernel, grid) = match PASSES * turns < capabilities.most_turns() {
            true => shared_rows(rec, "draw/draw", "draw", F32, params.sequences),
            false => long_rows("draw/draw", "draw", F32, params.sequences),
        };
        let bindings = [
            sampling,
            sequences.bind("sequences", U32),
            seen,
            token.bind("token", U32),
            position.bind("position", U32),
            drawn.bind("drawn", U32),
            sorted,
        ];
        rec.dispatch(with_constants(kernel), &bindings, &params, grid);
    }
}
