//! Dropout by counter-based random bits: a mask that is drawn again, never stored.

use super::per_item;
use crate::element::Element;
use crate::kernels::Kernel;
use crate::record::{Binding, Recorder, Tensor};

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
    }
}

/// One place of a model where elements are dropped. Its mask is a function of seed, place, micro-batch and element:
/// [`crate::random::DropoutWords`] draws the same words on the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The share that is dropped, in [0, 1).
    pub probability: f32,
    /// The run's seed.
    pub seed: u64,
    /// Which place of the model, below 32768: no two share a mask.
    pub site: u32,
    /// `DropoutState` (1, 4): the micro-batch under way, from [`count_micro_step`].
    pub state: Tensor,
}

impl Dropout {
    /// An element is dropped if its random word is below this: 2^32 · probability.
    pub fn threshold(&self) -> u32 {
        (f64::from(self.probability) * 2f64.powi(32)) as u32
    }

    /// What is not dropped is multiplied by this, so that the expectation stays: 1 / (1 - probability).
    pub fn factor(&self) -> f32 {
        1.0 / (1.0 - self.probability)
    }

    /// Lower and upper half of the seed.
    pub(crate) fn key(&self) -> [u32; 2] {
        [self.seed as u32, (self.seed >> 32) as u32]
    }

    #[track_caller]
    pub(crate) fn assert_valid(&self) {
        let Self { probability, site, state, .. } = *self;
        assert!((0.0..1.0).contains(&probability), "a dropout probability is in [0, 1), not {probability}");
        assert!(site < 1 << 15, "dropout number {site}: there are 32768");
        assert!(state.cols >= 2 && state.element == Element::F32, "the dropout state is two words");
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
        assert!(fits, "dropout of tensors of different shapes");
    }
    assert!(x.buffer != y.buffer, "dropout does not work in place");
    let (kernel, grid) = elements("dropout", x);
    let kernel = kernel.feature("residual", residual.is_some()).feature("accumulate", accumulate);
    let mut bindings = vec![(1, x.binding()), (2, y.binding()), (3, dropout.state.binding())];
    bindings.extend(residual.map(|residual| (4, residual.binding())));
    let params = params(x, residual, y, dropout);
    rec.dispatch(kernel, &bindings, &params, grid);
}

/// `words` (N, D): the random word of each element of a tensor of that shape, as [`dropout`] draws it.
#[track_caller]
pub fn random_words(rec: &mut Recorder, words: Tensor, dropout: &Dropout) {
    let (kernel, grid) = elements("random_words", words);
    let bindings = [(2, words.binding()), (3, dropout.state.binding())];
    rec.dispatch(kernel, &bindings, &params(words, None, words, dropout), grid);
}

/// Counts the micro-batch that begins in the dropout state (1, 4), which starts as zeros. The step's number comes from
/// `StepState`, so that a resumed run goes on where the first would have.
#[track_caller]
pub fn count_micro_step(rec: &mut Recorder, step: Tensor, state: Tensor) {
    let kernel = Kernel::new("dropout", "count_micro_step", Element::F32).constant("LANES", 1);
    let bindings: [(u32, Binding); 2] = [(1, step.binding()), (2, state.binding())];
    let none = Dropout { probability: 0.0, seed: 0, site: 0, state };
    rec.dispatch(kernel, &bindings, &params(state, None, state, &none), [1, 1, 1]);
}

fn elements(entry: &'static str, x: Tensor) -> (Kernel, [u32; 3]) {
    let groups = u64::from(x.rows) * u64::from(x.cols.div_ceil(4));
    per_item("dropout", entry, x.element, groups)
}

#[track_caller]
fn params(x: Tensor, residual: Option<Tensor>, y: Tensor, dropout: &Dropout) -> Params {
    dropout.assert_valid();
    let [seed_low, seed_high] = dropout.key();
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
    }
}
