//! Tensors by checkpoint name, and how far apart two sets of them are.

use gristmill::model::arena::Arena;
use gristmill::model::parameters::{Piece, Spec};
use gristmill::train::Trainer;
use gristmill::train::arenas::Arenas;
use gristmill::train::recordings::Recordings;
use std::collections::BTreeMap;

/// Tensors by checkpoint name.
pub type Weights = BTreeMap<String, Vec<f64>>;

/// The name of a checkpoint's tensor in the reference, which does not know the names of Mixtral, Phi-3 and gpt-oss, nor
/// those of experts of Gemma 4 and LFM2.
pub fn reference_name(name: &str) -> String {
    let names = [
        ("block_sparse_moe.", "mlp."),
        ("feed_forward.experts.", "mlp.experts."),
        ("feed_forward.gate.", "mlp.gate."),
        ("mlp.router.", "mlp.gate."),
        (".router.proj.", ".mlp.gate."),
        (".router.scale", ".mlp.router_norm.weight"),
        (".router.per_expert_scale", ".mlp.expert_scale"),
        (".qkv_proj.", ".W_pack."),
    ];
    let of_experts = [
        (".w1.weight", ".gate_proj.weight"),
        (".w3.weight", ".up_proj.weight"),
        (".w2.weight", ".down_proj.weight"),
    ];
    let of_experts = of_experts.iter().filter(|_| name.contains(".experts."));
    let renamed = |name: String, (theirs, ours): &(&str, &str)| name.replace(theirs, ours);
    names.iter().chain(of_experts).fold(name.to_string(), renamed)
}

/// The contents of one of the trainer's arenas, under the names of the reference.
pub fn tensors(trainer: &Trainer<'_>, arena: impl Fn(&Arenas) -> &Arena) -> Weights {
    let tensors = pollster::block_on(trainer.tensors(arena)).expect("tensors");
    let specs = trainer.recordings().layout.parameters.iter().map(|(spec, _)| spec);
    let pieces: BTreeMap<&str, (&Spec, &Piece)> = specs
        .flat_map(|spec| spec.pieces.iter().map(move |piece| (piece.name.as_str(), (spec, piece))))
        .collect();
    let of_reference = |(name, values): (String, Vec<f32>)| {
        let (spec, piece) = pieces[name.as_str()];
        tensors_of(spec, piece, values)
    };
    tensors.into_iter().flat_map(of_reference).collect()
}

/// The values of a piece in the order of its file as the reference has them.
pub fn tensors_of(spec: &Spec, piece: &Piece, values: Vec<f32>) -> Vec<(String, Vec<f64>)> {
    if piece.factors.is_some_and(|factors| factors.is_interleaved) {
        // Rows of gate and up in turns; the reference has those of gate first.
        let rows: Vec<&[f32]> = values.chunks_exact(spec.piece_shape(piece)[1]).collect();
        let of = |map: usize| rows.iter().skip(map).step_by(2).flat_map(|row| row.iter().copied());
        return reference_tensors(&piece.name, of(0).chain(of(1)).collect());
    }
    match (piece.stack, piece.stacked) {
        (Some(_), _) => unstacked(&piece.name, &values, &spec.piece_shape(piece)),
        (None, Some(experts)) if !piece.name.ends_with(".weight") => {
            let (place, projection) = piece.name.rsplit_once(".experts.").expect("experts");
            let each = values.chunks_exact(values.len() / experts).enumerate();
            let named = |expert| format!("{place}.mlp.experts.{expert}.{projection}.weight");
            each.flat_map(|(expert, values)| reference_tensors(&named(expert), values.to_vec())).collect()
        }
        (None, _) => reference_tensors(&piece.name, values),
    }
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

/// The projections of each expert, of a tensor (E, in, out) or biases (E, out) of all of them, gate and up in turns.
fn unstacked(name: &str, values: &[f32], shape: &[usize]) -> Vec<(String, Vec<f64>)> {
    let (place, projection) = name.rsplit_once('.').expect("a layer");
    let outputs = *shape.last().expect("outputs");
    let inner = if shape.len() == 3 { "weight" } else { "bias" };
    let of_outputs = |values: &[f32], first: usize, step: usize| -> Vec<f64> {
        let column =
            |output: usize| values.iter().skip(output).step_by(outputs).map(|value| f64::from(*value));
        (first..outputs).step_by(step).flat_map(column).collect()
    };
    let names: &[&str] = if projection.starts_with("gate_up") { &["gate", "up"] } else { &["down"] };
    let experts = values.chunks_exact(values.len() / shape[0]).enumerate();
    let of_expert = |(expert, values)| {
        names.iter().enumerate().map(move |(first, of)| {
            (format!("{place}.{expert}.{of}_proj.{inner}"), of_outputs(values, first, names.len()))
        })
    };
    experts.flat_map(of_expert).collect()
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
