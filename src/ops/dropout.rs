//! Dropout with counter-based random bits: masks are recomputed, never stored.
//!
//! Forward, backward and recomputation draw the same Philox words from seed, site, micro-batch and element. The
//! micro-batch is counted on the device, from `StepState`, so a replayed recording draws new masks, and a resumed run
//! draws the masks that an uninterrupted run would have drawn.

use super::per_item;
use super::step_state::StepState;
use crate::element::Element;
use crate::kernels::{Condition, Kernel};
use crate::record::{Recorder, State, Tensor};

crate::params! {
    struct Params {
        rows: u32,
        cols: u32,
        x_stride: u32,
        y_stride: u32,
        residual_stride: u32,
        site: u32,
        seed_low: u32,
        seed_high: u32,
        threshold: u32,
        factor: f32,
        first_word4: u32,
        row_words4: u32,
        first: u32,
        ranks: u32,
    }
}

crate::state! {
    /// The current micro-batch, an input of the masks. [`count_micro_step`] writes it.
    pub struct DropoutState {
        /// The step, counted from 1.
        pub step: u32,
        /// The micro-batch within the step, counted from 0.
        pub micro_step: u32,
    }
}

/// The dropout of one site in a model. Its mask is a function of seed, site, micro-batch and element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Probability that an element is dropped, in [0, 1).
    pub probability: f32,
    /// The run's seed.
    pub seed: u64,
    /// Number of the site, below 32768; no two sites of a model share a mask.
    pub site: u32,
    /// [`DropoutState`], written by [`count_micro_step`].
    pub state: Tensor,
    /// The part of the activation that the tensor holds, if ranks divide it; `None`: all of it.
    pub part: Option<MaskPart>,
}

/// The rows and columns of an activation that start at these. An element's mask does not depend on the rank that draws
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskPart {
    /// The first row.
    pub first_row: u32,
    /// The first column, a multiple of 4.
    pub first_col: u32,
    /// Columns of the whole activation.
    pub cols: u32,
}

impl Dropout {
    /// An element is dropped if its random word is below this: 2^32 · probability.
    pub fn threshold(&self) -> u32 {
        (f64::from(self.probability) * 2f64.powi(32)) as u32
    }

    /// Elements that are kept are multiplied by this, which preserves the expectation: 1 / (1 - probability).
    pub fn factor(&self) -> f32 {
        1.0 / (1.0 - self.probability)
    }

    /// The seed as (low, high).
    pub(crate) fn key(&self) -> [u32; 2] {
        [self.seed as u32, (self.seed >> 32) as u32]
    }

    #[track_caller]
    pub(crate) fn assert_valid(&self) {
        let Self { probability, site, state, .. } = *self;
        assert!(
            (0.0..1.0).contains(&probability),
            "a dropout probability must be in [0, 1), not {probability}"
        );
        assert!(site < 1 << 15, "dropout site {site} must be below 32768");
        DropoutState::assert_held_by(state);
    }
}

/// y (N, D) = residual + mask · x / (1 - p); with `accumulate` it is added to y. The gradient of x is the same function
/// of the gradient of y, without residual.
#[track_caller]
pub fn dropout(
    rec: &mut Recorder,
    x: Tensor,
    residual: Option<Tensor>,
    y: Tensor,
    accumulate: bool,
    dropout: &Dropout,
) {
    for tensor in [Some(y), residual].into_iter().flatten() {
        let fits = (tensor.rows, tensor.cols, tensor.element) == (x.rows, x.cols, x.element);
        assert!(fits, "dropout needs tensors of one shape and element type");
    }
    assert!(x.buffer != y.buffer, "dropout cannot work in place");
    let (kernel, grid) = elements("dropout", x.element, x);
    let kernel = kernel
        .condition(Condition::Residual, residual.is_some())
        .condition(Condition::Accumulate, accumulate);
    let state = DropoutState::bind("state", dropout.state);
    let mut bindings = vec![x.bind("x", x.element), y.bind("y", x.element), state];
    bindings.extend(residual.map(|residual| residual.bind("residual", x.element)));
    let params = params(x, residual, y, dropout);
    rec.dispatch(kernel, &bindings, &params, grid);
}

/// `words` (N, D), u32: the random words that [`dropout`] uses for the elements of a tensor of that shape.
#[track_caller]
pub fn random_words(rec: &mut Recorder, words: Tensor, dropout: &Dropout) {
    let (kernel, grid) = elements("random_words", Element::F32, words);
    let bindings = [words.bind("words", Element::U32), DropoutState::bind("state", dropout.state)];
    rec.dispatch(kernel, &bindings, &params(words, None, words, dropout), grid);
}

/// Advances `state` ([`DropoutState`]), initially zeros, to the micro-batch that begins. The step's number comes from
/// `step` ([`StepState`]), so a resumed run draws the masks of an uninterrupted one. Ranks take the micro-batches of a
/// step in turns; this is number `rank` of `ranks`.
#[track_caller]
pub fn count_micro_step(rec: &mut Recorder, step: Tensor, state: Tensor, rank: u32, ranks: u32) {
    let kernel = Kernel::new("dropout", "count_micro_step", Element::F32).constant("LANES", 1);
    let bindings = [StepState::bind("step", step), DropoutState::bind("state_out", state)];
    let none = Dropout { probability: 0.0, seed: 0, site: 0, state, part: None };
    let params = Params { first: rank, ranks, ..params(state, None, state, &none) };
    rec.dispatch(kernel, &bindings, &params, [1, 1, 1]);
}

fn elements(entry: &'static str, element: Element, x: Tensor) -> (Kernel, [u32; 3]) {
    let groups = u64::from(x.rows) * u64::from(x.cols.div_ceil(4));
    per_item("dropout", entry, element, groups)
}

#[track_caller]
fn params(x: Tensor, residual: Option<Tensor>, y: Tensor, dropout: &Dropout) -> Params {
    dropout.assert_valid();
    let [seed_low, seed_high] = dropout.key();
    let whole = MaskPart { first_row: 0, first_col: 0, cols: x.cols };
    let MaskPart { first_row, first_col, cols } = dropout.part.unwrap_or(whole);
    assert!(
        first_col.is_multiple_of(4),
        "a part of a mask starts at a multiple of 4 columns, not at {first_col}"
    );
    Params {
        rows: x.rows,
        cols: x.cols,
        x_stride: x.stride4(),
        y_stride: y.stride4(),
        residual_stride: residual.map_or(0, |residual| residual.stride4()),
        site: dropout.site,
        seed_low,
        seed_high,
        threshold: dropout.threshold(),
        factor: dropout.factor(),
        first_word4: first_row * cols.div_ceil(4) + first_col / 4,
        row_words4: cols.div_ceil(4),
        first: 0,
        ranks: 1,
    }
}
