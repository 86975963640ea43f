//! Copies of hot experts: where experts are spread over ranks, each rank computes its own tokens' rows for the hot
//! ones.
//!
//! An expert's home rank has its weights, gradient and moments, as for a cold expert. Every rank has a *slot* for each
//! hot expert, with its matrices in the type that layers read, and a gradient. [`hot_copies`] fills the slots from the
//! homes; [`hot_copies_backward`] adds the sums over all ranks' slots to the homes' gradients. The exchanges are in
//! `train/hot_copies.rs`.

use super::hot_experts::HotLast;
use super::per_item;
use crate::element::Element;
use crate::record::{BINDING_ALIGNMENT, Binding, Recorder, Tensor};

/// Words that an invocation moves; the shader has the same constant.
const WORDS: u64 = 4;

crate::params! {
    struct Params {
        first_expert: u32,
        cold: u32,
        first_slot: u32,
        slots: u32,
        matrix: u32,
        start: u32,
        words: u32,
        stack_offset: u32,
        copies_offset: u32,
    }
}

/// Matrices of consecutive experts, or a part of them.
#[derive(Clone, Copy, Debug)]
pub struct HomeRange {
    /// The elements, as one flat row.
    pub elements: Tensor,
    /// The start of the range, in elements from the first element of expert `first_expert`.
    pub start: u64,
    /// The number of that expert among all experts of the layer.
    pub first_expert: u32,
}

/// Matrices of consecutive slots.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slots {
    /// (count · out, in).
    pub matrices: Tensor,
    /// The first slot.
    pub first: u32,
    /// Number of slots.
    pub count: u32,
}

/// Copies the part of the hot experts of `last` that `home` has to their `slots`, bit by bit. Slot contents for other
/// experts, and for elements outside the range, stay as they are.
#[track_caller]
pub fn hot_copies(rec: &mut Recorder, home: &HomeRange, last: &HotLast, slots: &Slots) {
    launch(rec, "hot_copies", home, last, slots, (["stack", "copies"], Element::U32));
}

/// Adds the gradients in `slots` to those of the hot experts that are in `home`, wholly or in part; both f32.
#[track_caller]
pub fn hot_copies_backward(rec: &mut Recorder, slots: &Slots, last: &HotLast, home: &HomeRange) {
    assert!(home.elements.element == Element::F32, "gradients of parameters must be f32");
    launch(rec, "hot_copies_backward", home, last, slots, (["gradients", "sums"], Element::F32));
}

#[track_caller]
fn launch(
    rec: &mut Recorder,
    entry: &'static str,
    home: &HomeRange,
    last: &HotLast,
    slots: &Slots,
    ([stack, copies], words_as): ([&'static str; 2], Element),
) {
    let HomeRange { elements, start, first_expert } = *home;
    let Slots { matrices, first, count } = *slots;
    let element = elements.element;
    assert!(element == matrices.element, "matrices are copied as they are stored");
    assert!(matrices.rows.is_multiple_of(count), "{} rows are not {count} matrices", matrices.rows);
    assert!(first + count <= last.two.hot, "slots {first}.. of {}", last.two.hot);
    let words = |elements: u64| (element.bytes_of(elements) / 4) as u32;
    let (stack_offset, stack) = bind_words(elements, stack, words_as);
    let (copies_offset, copies) = bind_words(matrices, copies, words_as);
    let params = Params {
        first_expert,
        cold: last.groups.cols - last.two.hot,
        first_slot: first,
        slots: count,
        matrix: words(u64::from(matrices.rows / count) * u64::from(matrices.stride)),
        start: words(start),
        words: words(elements.cols.into()),
        stack_offset,
        copies_offset,
    };
    let items = u64::from(params.words).div_ceil(WORDS);
    let (kernel, grid) = per_item("hot_copies", entry, Element::F32, items);
    rec.dispatch(kernel, &[last.groups.bind("groups", Element::U32), stack, copies], &params, grid);
}

/// A tensor as the words that a shader reads as `element`: its first word within the binding, and the binding, which
/// starts at the last aligned byte before it.
fn bind_words(tensor: Tensor, variable: &'static str, element: Element) -> (u32, Binding) {
    let before = tensor.offset % BINDING_ALIGNMENT;
    let (offset, bytes) = (tensor.offset - before, before + tensor.bytes());
    ((before / 4) as u32, Binding { variable, element, buffer: tensor.buffer, offset, bytes, touched: None })
}
