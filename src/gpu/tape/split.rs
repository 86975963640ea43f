//! Ranges of the columns of a value, as values of their own.
//!
//! For products that compute at once everything that depends on a value, as the first one of latent attention: a
//! norm reads a range of columns, and each part writes its range of the gradient.

use super::{Tape, Target, Var};
use crate::ops::add::add;
use crate::record::Tensor;
use std::collections::{HashMap, HashSet};

/// The values that are parts of others.
#[derive(Default)]
pub(super) struct Splits {
    /// The whole of each part, and the first column of the part, by the part's id.
    wholes: HashMap<usize, (Var, u32)>,
    /// The wholes whose gradient is made by their parts: each writes its own range of it.
    filled: HashSet<usize>,
}

impl Splits {
    pub fn contains(&self, var: Var) -> bool {
        self.wholes.contains_key(&var.id)
    }
}

impl Tape<'_, '_> {
    /// All columns of `x`, in consecutive parts of these `widths`, all but the last a multiple of 4. Nothing is copied: a part
    /// is a range of x's tensor, and its gradient the same range of x's gradient. x must have no other reader.
    ///
    /// # Panics
    /// If the widths do not add up to the columns of x. In the backward pass, if some parts have a gradient and others do not.
    #[track_caller]
    pub fn split<const K: usize>(&mut self, x: Var, widths: [u32; K]) -> [Var; K] {
        let total: u32 = widths.iter().sum();
        assert!(total == x.tensor.cols, "parts of {total} columns of a value of {}", x.tensor.cols);
        let mut first = 0;
        let needs = self.needs_gradient[x.id];
        let parts = widths.map(|width| {
            let part = self.leaf(x.tensor.columns(first, width), needs);
            self.parts.wholes.insert(part.id, (x, first));
            first += width;
            part
        });
        self.always(move |tape| {
            let given = parts.iter().filter(|part| tape.gradient(**part).is_some()).count();
            assert!(given == 0 || given == K, "only {given} of {K} parts of a value have a gradient");
        });
        parts
    }

    /// Where the first gradient of `var` is written if it is a part: its range of the gradient of the whole.
    pub(super) fn target_of_part(&mut self, var: Var) -> Option<Target> {
        let (whole, first) = *self.parts.wholes.get(&var.id)?;
        let gradient = match self.gradients[whole.id] {
            Some(gradient) => gradient,
            None => {
                self.parts.filled.insert(whole.id);
                self.target(whole)?.tensor
            }
        };
        let tensor = gradient.columns(first, var.tensor.cols);
        self.gradients[var.id] = Some(tensor);
        Some(Target { tensor, accumulate: !self.parts.filled.contains(&whole.id) })
    }

    /// Copies the first gradient of a part to its range of the gradient of the whole.
    pub(super) fn copy_to_part(&mut self, part: Var, gradient: Tensor) {
        if let Some(Target { tensor, accumulate }) = self.target_of_part(part) {
            add(self.rec, gradient, tensor, 1.0, accumulate);
        }
    }
}
