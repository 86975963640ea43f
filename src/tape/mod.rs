//! The autograd tape: records ops forward, and the closures that undo them.
//!
//! There is no op enum and no graph: each op records its kernels through the [`Recorder`], and pushes a closure
//! that records its backward. [`Tape::backward`] runs the closures in reverse. What a closure needs of the forward pass
//! it holds as [`Saved`] handles, never as tensors, so that recomputation can decide what a handle gives back.
//! The tape knows no parameter names and no configuration.

mod grouped;
mod ops;
mod parameter;
mod permute;
mod route;
#[cfg(test)]
mod tests;

pub use ops::CrossEntropy;
pub use parameter::Parameter;
pub use route::{RouterLosses, Routing};

use crate::ops::add::add;
use crate::record::{Recorder, Tensor};

/// A value that an op made: its tensor, and the tape's name for it.
#[derive(Clone, Copy, Debug)]
pub struct Var {
    /// Where the value lies.
    pub tensor: Tensor,
    id: usize,
}

/// A tensor of the forward pass, kept for the backward.
#[derive(Clone, Copy, Debug)]
pub struct Saved(usize);

/// Where a backward puts a gradient.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The gradient's tensor.
    pub tensor: Tensor,
    /// Whether something is there already that must be added to.
    pub accumulate: bool,
}

/// One closure of the backward pass, and the path of what it records.
struct Node<'p> {
    path: Vec<String>,
    undo: Box<dyn FnOnce(&mut Tape<'_, 'p>) + 'p>,
}

/// The ops recorded so far and how to undo them. `'p` outlives the parameters that closures refer to.
pub struct Tape<'r, 'p> {
    /// Where kernels are recorded.
    pub rec: &'r mut Recorder,
    nodes: Vec<Node<'p>>,
    gradients: Vec<Option<Tensor>>,
    needs_gradient: Vec<bool>,
    saved: Vec<Tensor>,
    is_recording: bool,
    is_recomputing: bool,
}

impl<'r, 'p> Tape<'r, 'p> {
    /// A tape for training.
    pub fn new(rec: &'r mut Recorder) -> Self {
        let (nodes, gradients, needs_gradient, saved) = Default::default();
        Self { rec, nodes, gradients, needs_gradient, saved, is_recording: true, is_recomputing: false }
    }

    /// A tape that records no backward: evaluation and generation. Activations die at their last use.
    pub fn forward_only(rec: &'r mut Recorder) -> Self {
        Self { is_recording: false, ..Self::new(rec) }
    }

    /// Runs `body` with `name` appended to the path of everything it records.
    pub fn scope<T>(&mut self, name: impl Into<String>, body: impl FnOnce(&mut Self) -> T) -> T {
        self.rec.enter(name);
        let result = body(self);
        self.rec.leave();
        result
    }

    /// Whether what runs now ran before in the same micro-batch: whoever counts must not count again.
    pub fn is_recomputing(&self) -> bool {
        self.is_recomputing
    }

    /// A value that no op of this tape made. Its gradient is computed if `needs_gradient`.
    pub fn leaf(&mut self, tensor: Tensor, needs_gradient: bool) -> Var {
        self.gradients.push(None);
        self.needs_gradient.push(needs_gradient);
        Var { tensor, id: self.gradients.len() - 1 }
    }

    /// Keeps the tensor of `var` for a backward.
    pub fn save(&mut self, var: Var) -> Saved {
        self.save_tensor(var.tensor)
    }

    /// Keeps a tensor that is no value of its own (a statistic) for a backward.
    pub fn save_tensor(&mut self, tensor: Tensor) -> Saved {
        self.saved.push(tensor);
        Saved(self.saved.len() - 1)
    }

    /// What was kept.
    pub fn saved(&self, handle: Saved) -> Tensor {
        self.saved[handle.0]
    }

    /// The result of an op, with the closure that records its backward. Parameters that train make the result need a
    /// gradient even where no input does.
    pub fn result(
        &mut self,
        tensor: Tensor,
        inputs: &[Var],
        trains: bool,
        undo: impl FnOnce(&mut Tape<'_, 'p>, Tensor) + 'p,
    ) -> Var {
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

    /// Adds a closure that the backward pass always runs, whether or not a result has a gradient by then: an op may add to
    /// the objective by itself. Within [`checkpoint`](Self::checkpoint) it runs when the block is recomputed.
    pub fn always(&mut self, undo: impl FnOnce(&mut Tape<'_, 'p>) + 'p) {
        if self.is_recording {
            let path = self.rec.scopes().to_vec();
            self.nodes.push(Node { path, undo: Box::new(undo) });
        }
    }

    /// Where a backward shall put the gradient of `var`; `None` if nobody wants it. The backward must write it.
    pub fn target(&mut self, var: Var) -> Option<Target> {
        if !self.needs_gradient[var.id] {
            return None;
        }
        if let Some(tensor) = self.gradients[var.id] {
            return Some(Target { tensor, accumulate: true });
        }
        let Tensor { rows, cols, element, .. } = var.tensor;
        let tensor = self.rec.tensor("gradient", rows, cols, element);
        self.gradients[var.id] = Some(tensor);
        Some(Target { tensor, accumulate: false })
    }

    /// Hands `gradient` to `var`: it becomes the variable's gradient, to be added to in place, or is added to it.
    pub fn give(&mut self, var: Var, gradient: Tensor) {
        if !self.needs_gradient[var.id] {
            return;
        }
        match self.gradients[var.id] {
            None => self.gradients[var.id] = Some(gradient),
            Some(present) => add(self.rec, gradient, present, 1.0, true),
        }
    }

    /// The gradient of `var`, as far as it is known.
    pub fn gradient(&self, var: Var) -> Option<Tensor> {
        self.gradients[var.id]
    }

    /// Records everything backward. Gradients must have been given to the results to start from.
    pub fn backward(&mut self) {
        self.undo_down_to(0);
    }

    /// Runs `block` forward and keeps nothing of it but `x`: the backward runs it again first. Numbers are the same, bit
    /// for bit: the same kernels run on the same values. (Chen et al., "Training Deep Nets with Sublinear Memory Cost",
    /// 2016)
    pub fn checkpoint(&mut self, x: Var, block: impl Fn(&mut Tape<'_, 'p>, Var) -> Var + 'p) -> Var {
        let was_recording = std::mem::replace(&mut self.is_recording, false);
        let y = block(self, x);
        self.is_recording = was_recording;
        let input = self.save(x);
        self.result(y.tensor, &[x], true, move |tape, dy| {
            let first_node = tape.nodes.len();
            let input = tape.saved(input);
            let again = tape.leaf(input, tape.needs_gradient[x.id]);
            tape.is_recording = true;
            let was_recomputing = std::mem::replace(&mut tape.is_recomputing, true);
            let y = block(tape, again);
            tape.is_recomputing = was_recomputing;
            tape.give(y, dy);
            tape.undo_down_to(first_node);
            if let Some(dx) = tape.gradient(again) {
                tape.give(x, dx);
            }
        })
    }

    fn undo_down_to(&mut self, count: usize) {
        while self.nodes.len() > count {
            let Some(Node { path, undo }) = self.nodes.pop() else { return };
            let path = path.into_iter().chain(["backward".to_string()]).collect();
            let outer = self.rec.set_path(path);
            undo(self);
            self.rec.set_path(outer);
        }
    }
}
