//! Tensors by checkpoint name, and how far apart two sets of them are.

use gristmill::model::arena::Arena;
use gristmill::train::Trainer;
use gristmill::train::arenas::Arenas;
use std::collections::BTreeMap;

/// Tensors by checkpoint name.
pub type Weights = BTreeMap<String, Vec<f64>>;

/// The contents of one of the trainer's arenas.
pub fn tensors(trainer: &Trainer<'_>, arena: impl Fn(&Arenas) -> &Arena) -> Weights {
    let tensors = pollster::block_on(trainer.tensors(arena)).expect("tensors");
    tensors.into_iter().map(|(name, values)| (name, values.into_iter().map(f64::from).collect())).collect()
}

/// Adds `gradients` to `sum`, tensor by tensor.
pub fn add_to(sum: &mut Weights, gradients: Weights) {
    for (name, gradient) in gradients {
        let sum = sum.entry(name).or_insert_with(|| vec![0.0; gradient.len()]);
        sum.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
    }
}

/// ‖a − b‖ / ‖b‖ over all tensors together.
pub fn relative_distance(a: &Weights, b: &Weights) -> f64 {
    assert!(a.keys().eq(b.keys()), "the same tensors on both sides");
    let pairs = || a.values().flatten().zip(b.values().flatten());
    let difference: f64 = pairs().map(|(a, b)| (a - b) * (a - b)).sum();
    let norm: f64 = pairs().map(|(_, b)| b * b).sum();
    (difference / norm).sqrt()
}
