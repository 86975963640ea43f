//! Runs a kernel case on every tier and compares it with the f64 reference, on software adapters where
//! `is_worth_compiling` says so: unchecked always, checked where `is_due` says so.
//!
//! Inputs and outputs lie between guard zones of NaN, and outputs start as NaN, so reading past an end, leaving an
//! element unwritten or writing outside shows. Pads of outputs must be zero. On software adapters, checked and
//! unchecked shaders must agree bit for bit; `bits` says why only there.

mod bits;
mod case;
mod interpreted;
mod run;

pub use bits::Bits;
pub use case::{Case, Input};
pub use interpreted::{Barrier, Coverage, FirstCases, covering};
pub use run::{check, check_matrices, check_tier, check_units, takes_all};

use ::reference::storage::widened;
use gristmill::element::Element;
use gristmill::record::Tensor;

/// Bytes of NaN before and after each tensor.
const GUARD: u64 = 256;

/// The error allowed to a result stored as `element` after a sum of `terms` products in f32: half an ulp of the storage
/// for the last rounding, and a random walk of f32 roundings.
pub fn allowed(element: Element, terms: u32) -> f64 {
    let storage = match element {
        Element::F32 => 0.0,
        Element::F16 => 2f64.powi(-11),
        Element::Bf16 => 2f64.powi(-8),
        Element::U32 => panic!("integers are exact: compare their words"),
        Element::Nf4 | Element::Int8 => panic!("no kernel writes quantised weights"),
    };
    storage + 2f64.powi(-24) * (8.0 + 4.0 * (terms as f64).sqrt())
}

/// a + b, element by element.
pub fn sum(a: &[f64], b: &[f64]) -> Vec<f64> {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// The tensors of `inputs`.
pub fn tensors(inputs: &[Input]) -> Vec<Tensor> {
    inputs.iter().map(|input| input.tensor).collect()
}

/// The values of `inputs`, one after the other.
pub fn values(inputs: &[Input]) -> Vec<f64> {
    inputs.iter().flat_map(|input| input.values.iter().copied()).collect()
}

/// The indices of `ids`, sorted by id.
pub fn order_by_id(ids: &[u32]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..ids.len() as u32).collect();
    order.sort_by_key(|&index| ids[index as usize]);
    order
}

fn unpadded(padded: &[f32], tensor: &Tensor) -> Vec<f64> {
    let mut values = Vec::with_capacity(tensor.rows as usize * tensor.cols as usize);
    for row in padded.chunks(tensor.stride as usize) {
        values.extend(widened(&row[..tensor.cols as usize]));
    }
    values
}
