//! Bits that must not depend on how they were computed.
//!
//! One compiled shader gives the same bits for the same operands on every driver: nothing in it depends on the order in
//! which workgroups run. Two shaders compiled separately need not, even where their formulas are the same: WGSL allows
//! a compiler to fuse a product and a sum, and to reorder, as long as that loses no accuracy. The software adapters do
//! neither, so there the bits of different kernels are equal too, which finds mistakes that no tolerance would. On
//! other adapters two results are as far apart as two results within [`allowed`] of the exact one can be.

use super::run::compiles_as_written;
use super::{Case, allowed};
use gristmill::element::Element;
use gristmill::kernels::Tier;
use gristmill::record::Tensor;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// The longest sum behind a result that is compared, for the error allowed where bits may differ.
const TERMS: u32 = 1024;

/// The first words seen under each name on each tier.
type FirstWords = HashMap<(Tier, String), Vec<u32>>;

/// The first words seen under each name; all later ones must equal them.
#[derive(Clone, Default)]
pub struct Bits {
    first: Rc<RefCell<FirstWords>>,
    /// Whether they come from shaders that are compiled separately.
    are_of_different_kernels: bool,
}

impl Bits {
    /// Of results that different kernels compute, or different variants of one, checked and unchecked ones included.
    pub fn of_different_kernels() -> Self {
        Self { are_of_different_kernels: true, ..Self::default() }
    }

    /// Expects `tensor` to have the bits of the first tensor of this name on this tier, whichever run, kernel or rule
    /// made it.
    pub fn expect(&self, case: &mut Case, name: &str, tensor: Tensor) {
        self.expect_part(case, name, tensor, <[u32]>::to_vec);
    }

    /// The same for the words that `part` takes of the tensor.
    pub fn expect_part(
        &self,
        case: &mut Case,
        name: &str,
        tensor: Tensor,
        part: impl Fn(&[u32]) -> Vec<u32> + 'static,
    ) {
        let (first, key) = (self.first.clone(), (case.rec.capabilities().tier, name.to_string()));
        let are_of_different_kernels = self.are_of_different_kernels;
        case.expect_words(name, tensor, move |words| {
            let may_differ = are_of_different_kernels && !compiles_as_written();
            let words = part(words);
            let mut first = first.borrow_mut();
            let first = first.entry(key.clone()).or_insert_with(|| words.clone());
            match may_differ {
                true => assert_near(&key.1, tensor.element, first, &words),
                false => assert!(*first == words, "{}: the bits differ from the first ones", key.1),
            }
        });
    }
}

/// Each word is within twice the allowed error of the first, relative to its size plus the root mean square of all.
fn assert_near(name: &str, element: Element, first: &[u32], words: &[u32]) {
    let values = |words: &[u32]| element.decode(bytemuck::cast_slice(words));
    let (first, values) = (values(first), values(words));
    assert_eq!(first.len(), values.len(), "{name}: the number of elements differs from the first ones");
    let rms = (first.iter().map(|v| f64::from(v * v)).sum::<f64>() / first.len() as f64).sqrt();
    for (index, (&a, &b)) in first.iter().zip(&values).enumerate() {
        let bound = 2.0 * allowed(element, TERMS) * (f64::from(a.abs()) + rms);
        let is_near = a.to_bits() == b.to_bits() || f64::from(a - b).abs() <= bound;
        assert!(is_near, "{name}: element {index} is {b}, and was {a} before");
    }
}
