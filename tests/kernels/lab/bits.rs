//! Bits that must not depend on how they were computed.

use super::Case;
use gristmill::kernels::Tier;
use gristmill::record::Tensor;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// The first words seen under each name on each tier.
type FirstWords = HashMap<(Tier, String), Vec<u32>>;

/// The first words seen under each name; all later ones must equal them.
#[derive(Clone, Default)]
pub struct Bits(Rc<RefCell<FirstWords>>);

impl Bits {
    /// Expects `tensor` to have the bits of the first tensor of this name on this tier, whichever run, kernel or rule made it.
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
        let (first, key) = (self.0.clone(), (case.rec.capabilities().tier, name.to_string()));
        case.expect_words(name, tensor, move |words| {
            let words = part(words);
            let mut first = first.borrow_mut();
            let first = first.entry(key.clone()).or_insert_with(|| words.clone());
            assert!(*first == words, "{}: the bits differ from the first ones", key.1);
        });
    }
}
