//! The values that a number may have.

/// A condition on a number, in words and as a test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    /// "a number above 0", as error messages and documentation say it.
    pub words: &'static str,
    /// The test.
    pub accepts: fn(f64) -> bool,
    /// A number that fails the test, for the tests over all rows.
    #[cfg_attr(not(test), expect(dead_code))]
    pub outside: f64,
}

impl Range {
    /// A range in words, its test, and a number outside it.
    pub const fn new(words: &'static str, accepts: fn(f64) -> bool, outside: f64) -> Self {
        Self { words, accepts, outside }
    }
}

/// Most layers of a model. The memory plan compares every tensor with every buffer, which takes seconds at this depth.
/// The deepest models are far below it (Llama 3.1 405B has 126 layers) or at it (DeepNet).
pub(crate) const MAX_LAYERS: f64 = 1_000.0;

/// Most parameters of a model: 2^40 are 4 TiB of float32, weights alone.
pub(crate) const MAX_PARAMETERS: f64 = (1u64 << 40) as f64;

/// Most tensors in a checkpoint: each expert of each layer has three. Real models have at most about 100,000.
pub(crate) const MAX_TENSORS: f64 = (1u64 << 20) as f64;

/// Largest single size, so that products of two fit 64 bits; real models stay far below.
pub(crate) const MAX_SIZE: usize = 1 << 31;

pub(crate) const ABOVE_ZERO: Range = Range::new("a number above 0", |x| x > 0.0, 0.0);
pub(crate) const FROM_ZERO: Range = Range::new("a number from 0", |x| x >= 0.0, -1.0);
pub(crate) const SHARE: Range = Range::new("a share in [0, 1]", |x| (0.0..=1.0).contains(&x), 1.5);
pub(crate) const SHARE_BELOW_ONE: Range =
    Range::new("a share in [0, 1)", |x| (0.0..1.0).contains(&(x as f32)), 1.0);
pub(crate) const SHARE_ABOVE_ZERO: Range = Range::new("a share in (0, 1]", |x| x > 0.0 && x <= 1.0, 0.0);
pub(crate) const UNIT_OPEN: Range = Range::new("a number in (0, 1)", |x| x > 0.0 && x < 1.0, 1.0);
pub(crate) const UNIT_BELOW_ONE: Range = Range::new("a number in [0, 1)", |x| (0.0..1.0).contains(&x), 1.0);
pub(crate) const COUNT: Range = Range::new("a whole number above 0", |x| x >= 1.0, 0.0);
pub(crate) const SIZE: Range =
    Range::new("a whole number from 1 to 2147483648", |x| x >= 1.0 && x <= MAX_SIZE as f64, 0.0);
pub(crate) const LAYERS: Range =
    Range::new("a whole number from 1 to 1000", |x| (1.0..=MAX_LAYERS).contains(&x), 0.0);
pub(crate) const TOKEN_ID: Range = Range::new("a token id", |id| id < u32::MAX as f64, u32::MAX as f64);
