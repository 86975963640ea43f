//! Output projection and cross-entropy in chunks of rows: the logits of all tokens never exist at once.

use super::add::add;
use super::column_sum::column_sum;
use super::matmul::{Epilogue, Layout, matmul};
use super::matrix_ranks::MatrixRanks;
use super::preference::{Preference, pair_losses, token_weights};
use super::soft_cap::cap_and_inverse;
use super::step_state::{LossState, StepState};
use super::{fold, long_rows, per_row};
use crate::element::{Element, stride_of};
use crate::kernels::{Capabilities, Condition, Kernel, Tier};
use crate::record::{Recorder, State, Tensor};

/// Chunks start at multiples of this many rows: 16 rows of at least 4 f32 are 256 bytes, the alignment of bindings.
const ALIGNED_ROWS: u32 = 16;

crate::params! {
    struct Params {
        rows: u32,
        vocab: u32,
        stride4: u32,
        first_token: u32,
        ignore: u32,
        inverse_accumulation: f32,
        factor: f32,
        divisor: f32,
        first_column: u32,
        part_rows: u32,
        parts: u32,
        cap: f32,
        inverse_cap: f32,
    }
}

/// The targets of a cross-entropy, and the settings of the loss.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropy {
    /// Target ids (1, N), u32, each below the number of classes V or equal to [`ignore`](Self::ignore). The kernel does
    /// not check them; the result for any other id is undefined.
    pub targets: Tensor,
    /// Target id that does not count.
    pub ignore: u32,
    /// [`StepState`], for its loss scale.
    pub step: Tensor,
    /// [`LossState`], which receives the gradient's seed, the number of targets and the sum of losses.
    pub loss: Tensor,
    /// (1, 1) f32, if it is wanted: the number of targets with the largest logit of their row is added to it. Of equal
    /// logits the first is the largest, as in `torch.argmax`; ignored targets are not counted.
    pub correct: Option<Tensor>,
    /// (1, N) f32, if it is wanted: receives the loss of each token, 0 for an ignored target.
    pub losses: Option<Tensor>,
    /// Micro-batches per step: the mean loss of each is weighted by 1 / accumulation.
    pub accumulation: u32,
    /// Factor of the mean loss in the objective.
    pub factor: f32,
    /// Whether gradients are those of the sum of losses over N, not of the mean over targets that are not ignored, so
    /// that a token weighs the same in every micro-batch; [`StepRules::tokens`](super::grad_norm::StepRules::tokens)
    /// turns the sum into a mean.
    pub is_per_token: bool,
    /// The loss of pairs of answers, in place of that of all tokens alike: `loss` counts and sums pairs.
    pub preference: Option<Preference>,
}

impl CrossEntropy {
    /// The loss of `targets` (1, N) in a step of one micro-batch. [`u32::MAX`] is the ignored id.
    pub fn new(targets: Tensor, step: Tensor, loss: Tensor) -> Self {
        Self {
            targets,
            ignore: u32::MAX,
            step,
            loss,
            correct: None,
            losses: None,
            accumulation: 1,
            factor: 1.0,
            is_per_token: false,
            preference: None,
        }
    }
}

/// Hidden states, and the head under which they are logits.
#[derive(Clone, Copy, Debug)]
pub struct OutputProjection<'a> {
    /// Hidden states (N, D).
    pub h: Tensor,
    /// Head (V, D), of the element of `h`, in parts of whole rows; every part but the last has a multiple of 4 rows.
    pub head: &'a [Tensor],
    /// What is added to each row of logits before their factor, as in GPT-J.
    pub bias: Option<HeadBias<'a>>,
    /// Factor of the logits; `None`: 1.
    pub factor: Option<f32>,
    /// Soft cap of the logits after their factor, c · tanh(logit / c); `None`: none.
    pub soft_cap: Option<f32>,
    /// The ranks that share the vocabulary, of which `head` is this rank's part; `None`: `head` is the whole. They
    /// exchange four numbers for each row. `dh` is then one term of a sum over the ranks.
    pub ranks: Option<&'a MatrixRanks>,
}

/// The bias of a head.
#[derive(Clone, Copy, Debug)]
pub struct HeadBias<'a> {
    /// (1, rows) for each part of the head; see [`bias_of_parts`].
    pub parts: &'a [Tensor],
    /// (1, V) f32, to which the gradient is added, if it is wanted.
    pub gradient: Option<Tensor>,
}

/// The `bias` (1, V) of a `head` in parts for each of them. Columns of a tensor cannot be bound where they do not begin
/// with an aligned byte, so those of several parts are copied.
pub fn bias_of_parts(rec: &mut Recorder, head: &[Tensor], bias: Tensor) -> Vec<Tensor> {
    if head.len() == 1 {
        return vec![bias];
    }
    let mut column = 0;
    let of = |part: &Tensor| {
        let copy = rec.tensor("bias", 1, part.rows, bias.element);
        add(rec, bias.columns(column, part.rows), copy, 1.0, false);
        column += part.rows;
        copy
    };
    head.iter().map(of).collect()
}

/// Where the gradient of a head is written.
#[derive(Clone, Copy, Debug)]
pub struct HeadGradient<'a> {
    /// The parts of the gradient, f32, like the parts of the head.
    pub parts: &'a [Tensor],
    /// Whether the gradient is added to the contents of the parts instead of replacing them.
    pub accumulate: bool,
}

/// Bytes of the smallest chunk of logits that `tokens` rows can be cut into. One binding must hold it.
pub fn smallest_chunk_bytes(tokens: u32, vocab: u32) -> u64 {
    logits_row_bytes(vocab) * tokens.min(ALIGNED_ROWS) as u64
}

/// Number of chunks that the logits of `tokens` rows are cut into. Each is recorded as several launches.
pub fn chunk_count(tokens: u32, vocab: u32, capabilities: &Capabilities) -> u64 {
    u64::from(tokens.div_ceil(chunk_rows(tokens, vocab, capabilities)))
}

/// Adds the `loss` of f32 logits to its state, and computes the gradients of loss_scale · factor · mean loss /
/// accumulation: writes `dh` (N, D) and, unless the head is frozen, `dhead`.
#[track_caller]
pub fn linear_cross_entropy(
    rec: &mut Recorder,
    op: &OutputProjection<'_>,
    loss: &CrossEntropy,
    dh: Tensor,
    dhead: Option<HeadGradient<'_>>,
) {
    let gradient = match &loss.preference {
        None => Gradient::Seed(begin(rec, op, loss)),
        // The weights of tokens depend on the losses of whole answers: logits are computed a second time.
        Some(preference) => {
            let losses = token_losses(rec, op, loss);
            let slopes = pair_losses(rec, preference, loss, losses);
            Gradient::Weights(token_weights(rec, preference, loss, slopes))
        }
    };
    for (first, rows) in chunks(rec, op) {
        let h = op.h.rows(first, rows);
        let logits = logits(rec, op, h);
        let dlogits = match h.element {
            Element::F32 => logits,
            element => rec.tensor("dlogits", rows, logits.cols, element),
        };
        softmax(rec, op, loss, logits, gradient, first, Some(dlogits));
        if let Some(gradient) = op.bias.and_then(|bias| bias.gradient) {
            column_sum(rec, dlogits, gradient, op.factor);
        }
        let mut column = 0;
        for (i, part) in op.head.iter().enumerate() {
            let dz = dlogits.columns(column, part.rows);
            let into = Epilogue { accumulate: i > 0, factor: op.factor, ..Default::default() };
            matmul(rec, Layout::Nn, dz, *part, dh.rows(first, rows), into);
            if let Some(HeadGradient { parts, accumulate }) = dhead {
                let accumulate = accumulate || first > 0;
                let into = Epilogue { accumulate, factor: op.factor, ..Default::default() };
                matmul(rec, Layout::Tn, dz, h, parts[i], into);
            }
            column += part.rows;
        }
    }
    if let Gradient::Seed(outcome) = gradient {
        finish(rec, op, loss, outcome);
    }
}

/// Adds the `loss` to its state without gradients: evaluation.
#[track_caller]
pub fn linear_cross_entropy_forward(rec: &mut Recorder, op: &OutputProjection<'_>, loss: &CrossEntropy) {
    if let Some(preference) = &loss.preference {
        let losses = token_losses(rec, op, loss);
        pair_losses(rec, preference, loss, losses);
        return;
    }
    let outcome = begin(rec, op, loss);
    forward(rec, op, loss, outcome);
    finish(rec, op, loss, outcome);
}

/// The losses (1, N) of the tokens, 0 of those with an ignored target, without their sum.
#[track_caller]
pub fn token_losses(rec: &mut Recorder, op: &OutputProjection<'_>, loss: &CrossEntropy) -> Tensor {
    let losses = loss.losses.unwrap_or_else(|| rec.tensor("losses", 1, op.h.rows, Element::F32));
    forward(rec, op, loss, Outcome { losses, correct: None });
    losses
}

/// The results of all rows, chunk by chunk.
fn forward(rec: &mut Recorder, op: &OutputProjection<'_>, loss: &CrossEntropy, outcome: Outcome) {
    for (first, rows) in chunks(rec, op) {
        let logits = logits(rec, op, op.h.rows(first, rows));
        softmax(rec, op, loss, logits, Gradient::Seed(outcome), first, None);
    }
}

/// What the gradient of a token's loss is multiplied by.
#[derive(Clone, Copy)]
enum Gradient {
    /// The seed alone; the results of the rows are written meanwhile.
    Seed(Outcome),
    /// The seed and a weight of the token (1, N); the results are known.
    Weights(Tensor),
}

/// Results of the rows of all chunks that remain to be summed, (1, N) each.
#[derive(Clone, Copy)]
struct Outcome {
    losses: Tensor,
    correct: Option<Tensor>,
}

#[track_caller]
fn begin(rec: &mut Recorder, op: &OutputProjection<'_>, loss: &CrossEntropy) -> Outcome {
    let bindings = [
        loss.targets.bind("targets", Element::U32),
        StepState::bind("step", loss.step),
        LossState::bind("loss", loss.loss),
    ];
    let kernel = fold("linear_cross_entropy", "count_targets", op.h.element);
    rec.dispatch(kernel, &bindings, &params(op, loss, op.h.rows, 0), [1, 1, 1]);
    let mut rows = |label| rec.tensor(label, 1, op.h.rows, Element::F32);
    let losses = loss.losses.unwrap_or_else(|| rows("losses"));
    Outcome { losses, correct: loss.correct.map(|_| rows("correct")) }
}

fn finish(rec: &mut Recorder, op: &OutputProjection<'_>, loss: &CrossEntropy, outcome: Outcome) {
    let kernel = fold("linear_cross_entropy", "sum_losses", op.h.element);
    let mut bindings =
        vec![outcome.losses.bind("losses_in", Element::F32), LossState::bind("loss", loss.loss)];
    for (rows, sum) in outcome.correct.into_iter().zip(loss.correct) {
        bindings.extend([rows.bind("correct_in", Element::F32), sum.bind("correct_sum", Element::F32)]);
    }
    let kernel = kernel.condition(Condition::Accuracy, loss.correct.is_some());
    rec.dispatch(kernel, &bindings, &params(op, loss, op.h.rows, 0), [1, 1, 1]);
}

/// Size of a chunk of logits.
#[derive(Clone, Copy)]
struct ChunkSize {
    /// Most bytes of a chunk.
    bytes: u64,
    /// A chunk has a multiple of this many rows if it fits: whole tiles of every matmul.
    tile_rows: u32,
}

impl ChunkSize {
    fn of(capabilities: &Capabilities) -> Self {
        let limit = capabilities.limits.binding_bytes;
        match capabilities.tier {
            // Longer chunks make a CPU no faster.
            Tier::Software => Self { bytes: limit.min(16 << 20), tile_rows: 64 },
            // Each chunk reads and writes the head's gradient. With 1,280 rows, which is what fits with GPT-2's
            // vocabulary, the products take longer than that traffic.
            Tier::Portable | Tier::Matrix => Self { bytes: (limit / 4).min(256 << 20), tile_rows: 128 },
        }
    }
}

/// (first row, rows) of each chunk.
fn chunks(rec: &Recorder, op: &OutputProjection<'_>) -> Vec<(u32, u32)> {
    let rows = chunk_rows(op.h.rows, vocab(op), &rec.capabilities());
    (0..op.h.rows).step_by(rows as usize).map(|first| (first, rows.min(op.h.rows - first))).collect()
}

/// Rows of all chunks but the last: as few chunks as possible, of nearly equal size.
fn chunk_rows(tokens: u32, vocab: u32, capabilities: &Capabilities) -> u32 {
    let ChunkSize { bytes, tile_rows } = ChunkSize::of(capabilities);
    let fitting = u32::try_from(bytes / logits_row_bytes(vocab)).unwrap_or(u32::MAX);
    let whole = if fitting >= tile_rows { tile_rows } else { ALIGNED_ROWS };
    let most = (fitting / whole * whole).max(ALIGNED_ROWS);
    tokens.div_ceil(tokens.div_ceil(most)).next_multiple_of(whole).min(tokens)
}

fn logits_row_bytes(vocab: u32) -> u64 {
    stride_of(vocab) as u64 * Element::F32.bytes()
}

fn logits(rec: &mut Recorder, op: &OutputProjection<'_>, h: Tensor) -> Tensor {
    let logits = rec.tensor("logits", h.rows, vocab(op), Element::F32);
    let mut column = 0;
    for (i, part) in op.head.iter().enumerate() {
        let into =
            Epilogue { factor: op.factor, bias: op.bias.map(|bias| bias.parts[i]), ..Default::default() };
        matmul(rec, Layout::Nt, h, *part, logits.columns(column, part.rows), into);
        column += part.rows;
    }
    logits
}

fn softmax(
    rec: &mut Recorder,
    op: &OutputProjection<'_>,
    loss: &CrossEntropy,
    logits: Tensor,
    gradient: Gradient,
    first: u32,
    dlogits: Option<Tensor>,
) {
    let element = op.h.element;
    let (of_rows, correct) = match gradient {
        Gradient::Seed(Outcome { losses, correct }) => (losses.bind("losses", Element::F32), correct),
        Gradient::Weights(weights) => (weights.bind("weights", Element::F32), None),
    };
    let parts = op.ranks.map(|ranks| exchanged_parts(rec, op, loss, logits, first, ranks));
    let (kernel, grid) = over_logits(rec, "softmax_cross_entropy", element, logits);
    let mut bindings = vec![loss.targets.bind("targets", Element::U32), of_rows];
    if parts.is_none() || dlogits.is_some() {
        bindings.push(logits.bind("logits", Element::F32));
    }
    if dlogits.is_some() {
        bindings.push(LossState::bind("loss_seed", loss.loss));
    }
    bindings.extend(dlogits.filter(|_| element != Element::F32).map(|dz| dz.bind("dz", element)));
    bindings.extend(correct.map(|correct| correct.bind("correct", Element::F32)));
    bindings.extend(parts.map(|parts| parts.bind("parts", Element::F32)));
    let kernel = kernel
        .condition(Condition::Accuracy, correct.is_some())
        .condition(Condition::Capped, op.soft_cap.is_some())
        .condition(Condition::Parts, parts.is_some())
        .condition(Condition::Weighted, matches!(gradient, Gradient::Weights(_)))
        .condition(Condition::Gradient, dlogits.is_some());
    rec.dispatch(kernel, &bindings, &params(op, loss, logits.rows, first), grid);
}

/// A kernel that passes over each row of `logits` up to four times, and its grid.
fn over_logits(rec: &Recorder, entry: &'static str, element: Element, logits: Tensor) -> (Kernel, [u32; 3]) {
    match 4 * (u64::from(logits.stride4()) + 1) <= rec.capabilities().most_turns() {
        true => per_row(rec, "linear_cross_entropy", entry, element, logits.rows),
        false => long_rows("linear_cross_entropy", entry, element, logits.rows),
    }
}

/// Gathers the partial results of all ranks for the rows of `logits`, a chunk: (ranks · rows, 4).
fn exchanged_parts(
    rec: &mut Recorder,
    op: &OutputProjection<'_>,
    loss: &CrossEntropy,
    logits: Tensor,
    first: u32,
    ranks: &MatrixRanks,
) -> Tensor {
    let own = rec.tensor("own_parts", logits.rows, 4, Element::F32);
    let (kernel, grid) = over_logits(rec, "row_parts", op.h.element, logits);
    let bindings = [
        loss.targets.bind("targets", Element::U32),
        logits.bind("logits", Element::F32),
        own.bind("own_parts", Element::F32),
    ];
    let kernel = kernel
        .condition(Condition::Accuracy, loss.correct.is_some())
        .condition(Condition::Capped, op.soft_cap.is_some());
    rec.dispatch(kernel, &bindings, &params(op, loss, logits.rows, first), grid);
    let all = rec.tensor("parts", ranks.size() * logits.rows, 4, Element::F32);
    ranks.gather_rows(rec, own, all);
    all
}

#[track_caller]
fn params(op: &OutputProjection<'_>, loss: &CrossEntropy, rows: u32, first_token: u32) -> Params {
    let [cap, inverse_cap] = cap_and_inverse(op.soft_cap, 1.0);
    Params {
        first_column: op.ranks.map_or(0, |ranks| ranks.place as u32 * vocab(op)),
        part_rows: rows,
        parts: op.ranks.map_or(1, MatrixRanks::size),
        rows,
        vocab: vocab(op),
        stride4: stride_of(vocab(op)) / 4,
        first_token,
        ignore: loss.ignore,
        inverse_accumulation: 1.0 / loss.accumulation as f32,
        factor: loss.factor,
        divisor: if loss.is_per_token { op.h.rows as f32 } else { 0.0 },
        cap,
        inverse_cap,
    }
}

fn vocab(op: &OutputProjection<'_>) -> u32 {
    op.head.iter().map(|part| part.rows).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (tokens, vocabulary) and the rows of a chunk on a CPU and on a GPU with bindings of 1 GiB.
    #[test]
    fn chunks_suit_the_device() {
        for (tokens, vocab, software, portable) in [
            (4096, 50257, 64, 1024), // four of at most 1,280 rows
            (1024, 256, 1024, 1024),
            (4096, 32000, 128, 2048),
            (100, 50257, 64, 100),
            (1, 50257, 1, 1),
            (4096, 1 << 20, 16, 64), // less than a tile fits
        ] {
            let rows = |capabilities| chunk_rows(tokens, vocab, &capabilities);
            let got = (rows(Capabilities::software()), rows(Capabilities::portable()));
            assert_eq!(got, (software, portable), "{tokens} tokens over {vocab}");
        }
    }
}
