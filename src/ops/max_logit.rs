//! The largest attention score of each head in a step.

use super::fold;
use crate::element::Element;
use crate::record::{Recorder, Tensor};

crate::params! {
    struct Params {
        rows: u32,
        heads: u32,
        stride4: u32,
        first: u32,
    }
}

/// Raises `largest` (1, heads), u32, from head `first` on, to the maximum of each column of `logits` (N, own heads),
/// f32. The host clears `largest` at the start of a step, and [`score`] reads it.
#[track_caller]
pub fn max_logit(rec: &mut Recorder, logits: Tensor, largest: Tensor, first: u32) {
    let end = first + logits.cols;
    assert!(end <= largest.cols, "heads {first}..{end} have no places among {} scores", largest.cols);
    let bindings = [logits.bind("logits", Element::F32), largest.bind("largest", Element::U32)];
    let params = Params { rows: logits.rows, heads: logits.cols, stride4: logits.stride4(), first };
    rec.dispatch(fold("max_logit", "max_logit", Element::F32), &bindings, &params, [logits.stride4(), 1, 1]);
}

/// The score that a word of `largest` encodes; NaN if there was none.
///
/// ```
/// use gristmill::ops::max_logit::score;
/// assert!(score(0).is_nan());
/// assert_eq!([0xbf80_0000, 0x407f_ffff].map(score), [1.0, -1.0]);
/// ```
pub fn score(word: u32) -> f32 {
    match word {
        0 => f32::NAN,
        word if word >= 1 << 31 => f32::from_bits(word & 0x7fff_ffff),
        word => f32::from_bits(!word),
    }
}
