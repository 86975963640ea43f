//! Drawing the next token of each sequence from its logits, on the device.

use super::{long_rows, shared_rows};
use crate::element::Element::{F32, U32};
use crate::record::{Recorder, State, Tensor};

/// Number of draws whose tokens the device keeps until the host has read them.
pub const DRAWS: u32 = 16;

crate::params! {
    struct Params {
        sequences: u32,
        vocab: u32,
        logits_stride: u32,
        seen_stride: u32,
        pairs: u32,
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
    /// Logits (B, V) f32; those of tokens that have occurred are penalised in place.
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

/// Passes over a row at most: two for its top and its mass, 16 each for `top_k`, `top_p` and the quantile, and 12 for
/// ties.
const PASSES: u64 = 64;

/// Draws a token for each row of `logits` and counts it.
#[track_caller]
pub fn draw(rec: &mut Recorder, tensors: &DrawTensors) {
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
    let turns = PASSES * u64::from(vocab.div_ceil(capabilities.software_workgroup));
    let (kernel, grid) = match turns < capabilities.most_turns() {
        true => shared_rows(rec, "draw", "draw", F32, batch),
        false => long_rows("draw", "draw", F32, batch),
    };
    let params = Params {
        sequences: batch,
        vocab,
        logits_stride: logits.stride,
        seen_stride: seen.stride,
        pairs: (32 - (vocab - 1).leading_zeros()).div_ceil(2),
    };
    let bindings = [
        logits.bind("logits", F32),
        SamplingState::bind("sampling", sampling),
        sequences.bind("sequences", U32),
        seen.bind("seen", U32),
        token.bind("token", U32),
        position.bind("position", U32),
        drawn.bind("drawn", U32),
    ];
    rec.dispatch(kernel.constant("DRAWS", DRAWS), &bindings, &params, grid);
}
