//! The autograd tape: ops record their kernels, and push closures that record their backward.
//!
//! There is no op enum and no graph. Each op records its kernels through the [`Recorder`] and pushes a closure;
//! [`Tape::backward`] runs the closures in reverse. A closure refers to activations by [`Saved`] handles, never by
//! tensors: the tensor of a handle may have been dropped after the forward pass and be recorded again
//! ([`recompute`](Tape::recompute)). The tape knows no parameter names and no configuration.
//!
//! A closure given to [`Tape::result`] runs only if the result has a gradient by then. A closure given to
//! [`Tape::always`] runs in any case, which a router needs: it may add balance losses to the objective although nothing
//! uses its gates.

mod experts;
mod head;
mod latent_heads;
mod linear;
mod linear_attention;
mod low_rank;
mod magnitudes;
mod ops;
mod parameter;
mod recompute;
mod route;
mod shared;
mod split;
#[cfg(test)]
mod tests;

pub use crate::ops::linear_cross_entropy::CrossEntropy;
pub use head::HeadForm;
pub use low_rank::LowRankMap;
pub use parameter::Parameter;
pub use route::{RouterLosses, Routing};

use crate::ops::add::add;
use crate::record::{Recorder, Tensor};
use linear::Argument;
use recompute::Recomputation;
use split::Splits;
use std::collections::HashMap;

/// A value on the tape.
#[derive(Clone, Copy, Debug)]
pub struct Var {
    /// The tensor that holds it.
    pub tensor: Tensor,
    id: usize,
}

/// Handle of a tensor of the forward pass that a backward reads.
#[derive(Clone, Copy, Debug)]
pub struct Saved(Tensor);

/// Where a backward writes a gradient.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The gradient's tensor.
    pub tensor: Tensor,
    /// Whether the gradient is added to the tensor's contents instead of replacing them.
    pub accumulate: bool,
}

/// A closure of the backward pass, and the path under which it records.
struct Node<'p> {
    path: Vec<String>,
    undo: Box<dyn FnOnce(&mut Tape<'_, 'p>) + Send + 'p>,
}

/// The ops recorded so far, and the closures of their backward. `'p` is the lifetime of the parameters they refer to.
///
/// # Examples
///
/// The gradient of a product's weight:
///
/// ```
/// use gristmill::device::{Gpu, GpuOptions};
/// use gristmill::tape::{Parameter, Tape};
///
/// # fn main() -> gristmill::error::Result<()> {
/// # pollster::block_on(async {
/// let gpu = Gpu::request(&GpuOptions::default()).await?;
/// let [y, dw] = gpu
///     .run(|job| {
///         let x = job.input(&[1.0, 2.0, 3.0, 4.0], 1, 4);
///         let w = job.input(&[1.0; 8], 2, 4);
///         let dy = job.input(&[1.0, 10.0], 1, 2); // what the loss hands back
///         let weight = Parameter { weight: vec![w], gradient: Some(vec![job.output(2, 4)]) };
///         let mut tape = Tape::new(&mut job.rec);
///         let x = tape.leaf(x, false);
///         let y = tape.linear(x, &weight, None, None); // x wᵀ
///         tape.give(y, dy);
///         tape.backward();
///         [y.tensor, weight.gradient.as_ref().map_or(w, |parts| parts[0])]
///     })
///     .await?;
/// assert_eq!(y, [10.0, 10.0]);
/// assert_eq!(dw, [1.0, 2.0, 3.0, 4.0, 10.0, 20.0, 30.0, 40.0]);
/// # Ok(())
/// # })
/// # }
/// ```
pub struct Tape<'r, 'p> {
    /// Where kernels are recorded.
    pub rec: &'r mut Recorder,
    nodes: Vec<Node<'p>>,
    gradients: Vec<Option<Tensor>>,
    needs_gradient: Vec<bool>,
    is_recording: bool,
    parts: Splits,
    /// For values that are activations, their argument, by the value's id.
    arguments: HashMap<usize, Argument>,
    recomputation: Recomputation<'p>,
}

impl<'r, 'p> Tape<'r, 'p> {
    /// A tape for training.
    pub fn new(rec: &'r mut Recorder) -> Self {
        let recomputation = Recomputation::new(rec);
        Self {
            rec,
            nodes: Vec::new(),
            gradients: Vec::new(),
            needs_gradient: Vec::new(),
            is_recording: true,
            parts: Splits::default(),
            arguments: HashMap::new(),
            recomputation,
        }
    }

    /// A tape without a backward, for evaluation and generation. Activations are freed after their last use.
    pub fn forward_only(rec: &'r mut Recorder) -> Self {
        Self { is_recording: false, ..Self::new(rec) }
    }

    /// Runs `body` with `name` appended to the path of everything it records.
    #[track_caller]
    pub fn scope<T>(&mut self, name: impl Into<String>, body: impl FnOnce(&mut Self) -> T) -> T {
        self.end_op(None);
        self.rec.enter(name);
        let result = body(self);
        self.end_op(None);
        self.rec.leave();
        result
    }

    /// A value that is not the result of an op. Its gradient is computed if `needs_gradient`.
    #[track_caller]
    pub fn leaf(&mut self, tensor: Tensor, needs_gradient: bool) -> Var {
        self.gradients.push(None);
        self.needs_gradient.push(needs_gradient);
        Var { tensor, id: self.gradients.len() - 1 }
    }

    /// Keeps the tensor of `var` for a backward.
    pub fn save(&self, var: Var) -> Saved {
        Saved(var.tensor)
    }

    /// Keeps a tensor that is not a value on the tape, such as a statistic, for a backward.
    pub fn save_tensor(&self, tensor: Tensor) -> Saved {
        Saved(tensor)
    }

    /// The tensor of a handle, for a backward. If it was dropped, the op that made it is recorded again first.
    #[track_caller]
    pub fn saved(&mut self, Saved(tensor): Saved) -> Tensor {
        Tensor { buffer: self.present(tensor.buffer), ..tensor }
    }

    /// The result of an op, with the closure that records its backward given the gradient of the result. The result
    /// needs a gradient if an input does or if a parameter of the op `trains`. A result whose gradient no op gives has
    /// no backward. An in-place op returns the tensor of an input, which must have no other reader.
    #[track_caller]
    pub fn result(
        &mut self,
        tensor: Tensor,
        inputs: &[Var],
        trains: bool,
        undo: impl FnOnce(&mut Tape<'_, 'p>, Tensor) + Send + 'p,
    ) -> Var {
        self.end_op(Some(tensor));
        let needs = trains || inputs.iter().any(|input| self.needs_gradient[input.id]);
        let output = self.leaf(tensor, needs);
        if needs {
            self.always(move |tape| {
                if let Some(dy) = tape.gradient(output) {
                    undo(tape, dy);
                }
            });
        }
        output
    }

    /// Adds a closure that the backward pass always runs, whether or not a result has a gradient by then: an op may add
    /// to the objective by itself.
    #[track_caller]
    pub fn always(&mut self, undo: impl FnOnce(&mut Tape<'_, 'p>) + Send + 'p) {
        if self.is_recording {
            let path = self.rec.scopes().to_vec();
            self.nodes.push(Node { path, undo: Box::new(undo) });
        }
    }

    /// Where a backward must write the gradient of `var`; `None` if the gradient is not needed.
    #[track_caller]
    pub fn target(&mut self, var: Var) -> Option<Target> {
        if !self.needs_gradient[var.id] {
            return None;
        }
        if let Some(tensor) = self.gradients[var.id] {
            return Some(Target { tensor, accumulate: true });
        }
        if let Some(target) = self.target_of_part(var) {
            return Some(target);
        }
        let Tensor { rows, cols, element, .. } = var.tensor;
        let tensor = self.rec.tensor("gradient", rows, cols, element);
        self.gradients[var.id] = Some(tensor);
        Some(Target { tensor, accumulate: false })
    }

    /// Adds `gradient` to the gradient of `var`. The first one given becomes the gradient itself, and later ones are
    /// added to it in place.
    ///
    /// # Panics
    /// If `gradient` has another shape than the value.
    #[track_caller]
    pub fn give(&mut self, var: Var, gradient: Tensor) {
        let Tensor { rows, cols, .. } = var.tensor;
        assert!(
            (gradient.rows, gradient.cols) == (rows, cols),
            "a gradient of {} x {} was given to a value of {rows} x {cols}",
            gradient.rows,
            gradient.cols
        );
        if !self.needs_gradient[var.id] {
            return;
        }
        match self.gradients[var.id] {
            None if self.parts.contains(var) => self.copy_to_part(var, gradient),
            None => self.gradients[var.id] = Some(gradient),
            Some(present) => add(self.rec, gradient, present, 1.0, true),
        }
    }

    /// The gradient of `var` so far.
    pub fn gradient(&self, var: Var) -> Option<Tensor> {
        self.gradients[var.id]
    }

    /// Records the backward pass, from the results that were given gradients.
    #[track_caller]
    pub fn backward(&mut self) {
        while let Some(Node { path, undo }) = self.nodes.pop() {
            let path = path.into_iter().chain(["backward".to_string()]).collect();
            let outer = self.rec.set_path(path);
            undo(self);
            self.rec.set_path(outer);
        }
    }
}
