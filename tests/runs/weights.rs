//! Tensors by checkpoint name, and how far apart two sets of them are.

use gristmill::model::arena::Arena;
use gristmill::train::Trainer;
use gristmill::train::arenas::Arenas;
use gristmill::train::recordings::Recordings;
use std::collections::BTreeMap;

/// Tensors by checkpoint name.
pub type Weights = BTreeMap<String, Vec<f64>>;

/// The name of a checkpoint's tensor in the reference, which does not know Mixtral's names, nor Phi-3's.
pub fn reference_name(name: &str) -> String {
    let names = [
        ("block_sparse_moe.", "mlp."),
        (".w1.weight", ".gate_proj.weight"),
        (".w3.weight", ".up_proj.weight"),
        (".w2.weight", ".down_proj.weight"),
        (".qkv_proj.", ".W_pack."),
    ];
    names.iter().fold(name.to_string(), |name, (theirs, ours)| name.replace(theirs, ours))
}

/// The contents of one of the trainer's arenas, under the names of the reference.
pub fn tensors(trainer: &Trainer<'_>, arena: impl Fn(&Arenas) -> &Arena) -> Weights {
    let tensors = pollster::block_on(trainer.tensors(arena)).expect("tensors");
    tensors.into_iter().flat_map(|(name, values)| reference_tensors(&name, values)).collect()
}

/// A checkpoint's tensor as the reference has it, where gate and up are two.
pub fn reference_tensors(name: &str, values: Vec<f32>) -> Vec<(String, Vec<f64>)> {
    let values: Vec<f64> = values.into_iter().map(f64::from).collect();
    let Some(layer) = name.strip_suffix("gate_up_proj.weight") else {
        return vec![(reference_name(name), values)];
    };
    let (gate, up) = values.split_at(values.len() / 2);
    [("gate", gate), ("up", up)].map(|(of, half)| (format!("{layer}{of}_proj.weight"), half.to_vec())).into()
}

/// Replaces the first gradient of parameter number `parameter`, between the halves of a step. A frozen parameter is
/// left alone.
pub fn set_gradient(trainer: &Trainer<'_>, parameter: usize, gradient: f32) {
    let Recordings { layout, arenas, .. } = trainer.recordings();
    let (spec, parts) = &layout.parameters[parameter];
    if arenas.gradients.holds(parts) {
        trainer.write(arenas.gradients.part(spec, &parts[0]), &gradient.to_le_bytes());
    }
}

/// The selection biases and the capacities of all routers.
pub fn router_states(trainer: &Trainer<'_>) -> Vec<Vec<u8>> {
    let experts = trainer.recordings().tensors.model.experts.iter();
    let layers = experts.flat_map(|experts| experts.layers().map(move |layer| (experts, layer)));
    let tensors = layers.flat_map(|(experts, layer)| [experts.bias(layer), experts.capacities(layer)]);
    tensors.flatten().map(|tensor| pollster::block_on(trainer.read(tensor)).expect("a router")).collect()
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
