//! Fingerprints of tensors, which show whether two devices hold the same bits without moving the tensors.

use super::LANES;
use crate::element::Element;
use crate::kernels::Kernel;
use crate::record::{BINDING_ALIGNMENT, Binding, Recorder, Tensor, fold_grid};

crate::params! {
    struct Params {
        words: u32,
        offset: u32,
        first: u32,
        index: u32,
    }
}

/// Words that an invocation hashes: enough that additions to a tensor's sums are rare.
const EACH: u32 = 64;

/// Adds the fingerprint of `part`, a flat row of any element, to row `index` of `sums` (S, 2), U32. `first` is the
/// place of its first word in the tensor, so that the parts of a tensor add up to the fingerprint of the whole.
#[track_caller]
pub fn fingerprint(rec: &mut Recorder, part: Tensor, first: u32, sums: Tensor, index: u32) {
    assert!(part.rows == 1, "a fingerprint is that of a flat row, not of {} rows", part.rows);
    assert!(sums.cols == 2 && index < sums.rows, "{} sums have no number {index}", sums.rows);
    let (words, rest) = ((part.bytes() / 4) as u32, part.offset % BINDING_ALIGNMENT);
    let words_of = Binding {
        variable: "words",
        element: Element::U32,
        buffer: part.buffer,
        offset: part.offset - rest,
        bytes: rest + part.bytes(),
        touched: None,
    };
    let kernel = Kernel::new("fingerprint", "fingerprint", Element::F32);
    let kernel = kernel.constant("LANES", LANES).constant("EACH", EACH);
    let bindings = [words_of, sums.bind("sums", Element::U32)];
    let params = Params { words, offset: (rest / 4) as u32, first, index };
    let grid = fold_grid(words.div_ceil(LANES * EACH).into());
    rec.dispatch(kernel, &bindings, &params, grid);
}
