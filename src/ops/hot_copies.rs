//! Copies of hot experts: where experts are spread over ranks, each rank computes its own tokens' rows for the hot ones.
//!
//! An expert's home has its weights, gradient and moments, as those of a cold one. Every rank has a *slot* for each hot expert, with
//! its matrices in the type that layers read, and a gradient. [`hot_copies`] fills the slots from the homes,
//! [`hot_copies_backward`] adds to the homes' gradients what was summed over all ranks' slots; the exchanges are
//! `train/hot_copies.rs`.

use super::hot_experts::HotLast;
use super::per_item;
use crate::element::Element;
use crate::record::{BINDING_ALIGNMENT, Binding, Recorder, Tensor};

/// Words that an invocation moves; the shader has the same.
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
    /// One flat row.
    pub elements: Tensor,
    /// Where it starts, in elements from the first element of expert `first_expert`.
    pub start: u64,
    /// That expert, among all experts of the layer.
    pub first_expert: u32,
}

/// Matrices of consecutive slots.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slots {
    /// (count · out, in).
    pub matrices: Tensor,
    /// The first of them.
    pub first: u32,
    /// How many.
    pub count: u32,
}

/// Copies what `home` has of the hot experts of `last` to their `slots`, bit by bit. Whatever the slots hold of other experts, or of
/// elements outside the range, stays.
#[track_caller]
pub fn hot_copies(rec: &mut Recorder, home: &HomeRange, last: &HotLast, slots: &Slots) {
    launch(rec, "hot_copies", home, last, slots, (["stack", "copies"], Element::U32));
}

/// Adds the gradients in `slots` to those of the hot experts of which `home` has something; both f32.
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

/// A tensor as words that a shader takes for `element`, from the last aligned byte before it, and its first word there.
fn bind_words(tensor: Tensor, variable: &'static str, element: Element) -> (u32, Binding) {
    let before = tensor.offset % BINDING_ALIGNMENT;
    let (offset, bytes) = (tensor.offset - before, before + tensor.bytes());
    ((before / 4) as u32, Binding { variable, element, buffer: tensor.buffer, offset, bytes })
}
