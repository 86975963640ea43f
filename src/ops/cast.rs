//! Conversion between f32 and 16-bit storage.

use super::per_item;
use crate::element::Element;
use crate::record::{Recorder, Tensor};

crate::params! {
    struct Params {
        count4: u32,
    }
}

/// `to` = `from`, one of them f32; 16-bit results are rounded to nearest even.
#[track_caller]
pub fn cast(rec: &mut Recorder, from: Tensor, to: Tensor) {
    assert!((from.rows, from.stride) == (to.rows, to.stride), "cast needs tensors of one shape");
    let (entry, element) = match (from.element, to.element) {
        (Element::F32, element) => ("narrow", element),
        (element, Element::F32) => ("widen", element),
        pair => panic!("no kernel casts {pair:?}: one side must be f32"),
    };
    let count4 = from.rows * from.stride4();
    let (kernel, grid) = per_item("cast", entry, element, count4 as u64);
    let bindings = match entry {
        "narrow" => [from.bind("wide", Element::F32), to.bind("narrowed", element)],
        _ => [from.bind("packed", element), to.bind("widened", Element::F32)],
    };
    rec.dispatch(kernel, &bindings, &Params { count4 }, grid);
}
