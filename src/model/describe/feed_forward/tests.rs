//! What a model with experts is made of.

use super::*;
use crate::model::config::MultiToken;
use crate::model::describe::mixture_example;
use crate::model::init::initial_row;
use crate::model::parameters::{Gpt, Init, Piece};
use crate::model::selection_bias;

fn find(gpt: &Gpt<Spec>, path: &str) -> Spec {
    gpt.list().into_iter().find(|spec| spec.path == path).unwrap_or_else(|| panic!("no {path}")).clone()
}

#[test]
fn a_mixture_has_the_names_and_shapes_of_files() {
    let gpt = Gpt::describe(&mixture_example());
    let files: Vec<(String, Vec<usize>)> = gpt
        .list()
        .into_iter()
        .flat_map(|spec| spec.pieces.iter().map(|piece| (piece.name.clone(), spec.piece_shape(piece))))
        .collect();
    let of = |prefix: &str| -> Vec<(&str, &[usize])> {
        let inside = files.iter().filter(|(name, _)| name.starts_with(prefix));
        inside.map(|(name, shape)| (&name[prefix.len()..], shape.as_slice())).collect()
    };
    let dense: [(&str, &[usize]); 3] =
        [("gate_proj.weight", &[12, 8]), ("up_proj.weight", &[12, 8]), ("down_proj.weight", &[8, 12])];
    assert_eq!(of("model.layers.0.mlp."), dense);
    let mixture: [(&str, &[usize]); 14] = [
        ("gate.weight", &[3, 8]),
        ("experts.0.gate_proj.weight", &[5, 8]),
        ("experts.0.up_proj.weight", &[5, 8]),
        ("experts.1.gate_proj.weight", &[5, 8]),
        ("experts.1.up_proj.weight", &[5, 8]),
        ("experts.2.gate_proj.weight", &[5, 8]),
        ("experts.2.up_proj.weight", &[5, 8]),
        ("experts.0.down_proj.weight", &[8, 5]),
        ("experts.1.down_proj.weight", &[8, 5]),
        ("experts.2.down_proj.weight", &[8, 5]),
        ("shared_expert.gate_proj.weight", &[7, 8]),
        ("shared_expert.up_proj.weight", &[7, 8]),
        ("shared_expert.down_proj.weight", &[8, 7]),
        ("shared_expert_gate.weight", &[1, 8]),
    ];
    assert_eq!(of("model.layers.1.mlp."), mixture);
    assert_eq!(of("model.layers.2.mlp."), mixture);
    let around: [(&str, &[usize]); 3] =
        [("enorm.weight", &[8]), ("hnorm.weight", &[8]), ("eh_proj.weight", &[8, 16])];
    assert_eq!(of("model.layers.2.")[..3], around);
    assert_eq!(of("model.layers.2.shared_head."), [("norm.weight", &[8usize][..])]);
    assert_eq!(of("model.layers.2.self_attn.").len(), 4);
    assert!(of("model.layers.3.").is_empty());
    assert_eq!(selection_bias(7), "model.layers.7.mlp.gate.e_score_correction_bias");
    // Every name is another one, and each file has one place.
    let mut names: Vec<&String> = files.iter().map(|(name, _)| name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), files.len());
}

#[test]
fn a_shared_expert_without_a_gate_is_called_as_deep_seek_calls_it() {
    let mut config = mixture_example();
    config.multi_token = Some(MultiToken { depth: 3, loss_factor: 0.1 });
    let mixture = config.mixture.as_mut().unwrap();
    mixture.shared = Some(SharedExpert { intermediate_size: 7, is_gated: false });
    let gpt = Gpt::describe(&config);
    let shared = find(&gpt, "layers.1.feed_forward.shared.w_down");
    assert_eq!(shared.pieces[0].name, "model.layers.1.mlp.shared_experts.down_proj.weight");
    assert!(gpt.list().iter().all(|spec| !spec.path.ends_with("shared.gate")));
    assert_eq!(find(&gpt, "multi_token.2.w_fuse").pieces[0].name, "model.layers.4.eh_proj.weight");
}

#[test]
fn halves_of_experts_start_at_whole_groups_of_four_rows() {
    let gpt = Gpt::describe(&mixture_example());
    let w_gate_up = find(&gpt, "layers.1.feed_forward.experts.w_gate_up");
    let ranges = |spec: &Spec| -> Vec<(usize, usize)> {
        spec.pieces.iter().map(|Piece { first_row, rows, .. }| (*first_row, *rows)).collect()
    };
    assert_eq!((w_gate_up.rows, w_gate_up.cols), (3 * 2 * 8, 8));
    assert_eq!(ranges(&w_gate_up), [(0, 5), (8, 5), (16, 5), (24, 5), (32, 5), (40, 5)]);
    let w_down = find(&gpt, "layers.1.feed_forward.experts.w_down");
    assert_eq!((w_down.rows, w_down.cols), (3 * 8, 5));
    assert_eq!(ranges(&w_down), [(0, 8), (8, 8), (16, 8)]);
    let is_zero = |row: usize| initial_row(&w_gate_up, 0, row, 1).iter().all(|value| *value == 0.0);
    let zero: Vec<usize> = (0..48).filter(|&row| is_zero(row)).collect();
    assert_eq!(zero, [5, 6, 7, 13, 14, 15, 21, 22, 23, 29, 30, 31, 37, 38, 39, 45, 46, 47]);
}

#[test]
fn experts_start_as_dense_networks_and_routers_on_their_own() {
    let gpt = Gpt::describe(&mixture_example());
    let init = |path: &str| find(&gpt, path).init;
    for network in
        ["layers.0.feed_forward", "layers.1.feed_forward.experts", "multi_token.0.feed_forward.shared"]
    {
        assert_eq!(init(&format!("{network}.w_gate_up")), Init::Normal(0.02));
        assert_eq!(init(&format!("{network}.w_down")), Init::Normal(0.02 / 4f64.sqrt()));
    }
    assert_eq!(init("layers.1.feed_forward.router"), Init::Normal(0.01));
    assert_eq!(init("layers.1.feed_forward.shared.gate"), Init::Normal(0.01));
    assert_eq!(init("multi_token.0.w_fuse"), Init::Normal(0.02));
    assert_eq!(init("multi_token.0.norm"), Init::Ones);
    // Whatever stands after the last layer leaves the random streams of the rest alone.
    let alone = Gpt::describe(&ModelConfig { multi_token: None, ..mixture_example() });
    let (all, alone) = (gpt.list(), alone.list());
    assert_eq!(all[..alone.len()], alone);
}
