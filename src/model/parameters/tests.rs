//! The parameters of whole models: names, shapes and initial values.

mod published;

use super::{Gpt, Init, Piece, Place, Spec};
use crate::model::config::{
    Activation, BalanceLosses, Family, Gate, GateNorm, LatentAttention, MixtureConfig, ModelConfig,
    MultiToken, NormPlacement, Positions, RouterConfig, Score, SharedExpert, Sizes, TokenDispatch,
};
use crate::model::init::initial_row;
use crate::model::selection_bias;

/// A dense layer, a layer of three experts and a gated shared one, and a block of the same kind for multi-token
/// prediction. Experts and shared expert have odd widths.
pub(crate) fn mixture_example() -> ModelConfig {
    let (hidden_size, num_layers, num_heads) = (8, 2, 2);
    let sizes =
        Sizes { vocab_size: 16, hidden_size, num_layers, num_heads, intermediate_size: 12, seq_length: 4 };
    let mixture = MixtureConfig {
        route: RouterConfig {
            experts: 3,
            chosen: 2,
            score: Score::Softmax,
            groups: None,
            norm: Some(GateNorm::SUM),
            scaling: 1.0,
        },
        has_bias: false,
        bias_update_rate: 0.0,
        intermediate_size: 5,
        first_dense_layers: 1,
        shared: Some(SharedExpert { intermediate_size: 7, is_gated: true }),
        losses: BalanceLosses::default(),
        is_beside_dense: false,
        dispatch: TokenDispatch::Dropless { safe_tokens: false },
        router_init_std: 0.01,
    };
    let multi_token = Some(MultiToken { depth: 1, loss_factor: 0.3 });
    ModelConfig { mixture: Some(mixture), multi_token, ..ModelConfig::llama(sizes) }
}

fn find(specs: &[Spec], path: &str) -> Spec {
    specs.iter().find(|spec| spec.path == path).unwrap_or_else(|| panic!("no {path}")).clone()
}

/// Name and shape of every tensor of a checkpoint.
fn files(specs: &[Spec]) -> Vec<(String, Vec<usize>)> {
    let pieces = specs.iter().flat_map(|spec| spec.pieces.iter().map(move |piece| (spec, piece)));
    pieces.map(|(spec, piece)| (piece.name.clone(), spec.piece_shape(piece))).collect()
}

/// Those files whose names start with `prefix`, without the prefix.
fn below<'a>(files: &'a [(String, Vec<usize>)], prefix: &str) -> Vec<(&'a str, &'a [usize])> {
    files.iter().filter_map(|(name, shape)| Some((name.strip_prefix(prefix)?, shape.as_slice()))).collect()
}

/// GPT-2's files hold matrices transposed, and no published model defines names for experts of these types.
#[test]
fn experts_of_gpt2_and_bloom_are_named_by_analogy() {
    let sizes = Sizes {
        vocab_size: 16,
        hidden_size: 8,
        num_layers: 3,
        num_heads: 2,
        intermediate_size: 12,
        seq_length: 4,
    };
    let example = mixture_example().mixture.expect("experts");
    let mixture = Some(MixtureConfig { shared: None, first_dense_layers: 1, ..example });
    let gpt2 = ModelConfig { mixture, ..ModelConfig::gpt2(sizes) };
    for (family, learns_queries, [up, down], is_transposed) in [
        (Family::Gpt2, false, ["c_fc", "c_proj"], true),
        (Family::Pangu, true, ["c_fc", "c_proj"], false),
        (Family::Bloom, false, ["dense_h_to_4h", "dense_4h_to_h"], false),
    ] {
        let model = ModelConfig { family, ..gpt2.clone() };
        let specs = Gpt::describe(&if learns_queries { model.with_query_table() } else { model });
        let files = files(&specs);
        let of = |layer: usize| -> Vec<(String, Vec<usize>)> {
            let prefix = format!("transformer.h.{layer}.mlp.");
            let inside = files.iter().filter_map(|(name, shape)| Some((name.strip_prefix(&prefix)?, shape)));
            inside.map(|(name, shape)| (name.to_string(), shape.clone())).collect()
        };
        let turned =
            |[rows, cols]: [usize; 2]| if is_transposed { vec![cols, rows] } else { vec![rows, cols] };
        let mut want = vec![("gate.weight".to_string(), vec![3, 8])];
        for (of, matrix, bias) in [(up, [5, 8], 5), (down, [8, 5], 8)] {
            for expert in 0..3 {
                want.push((format!("experts.{expert}.{of}.weight"), turned(matrix)));
            }
            for expert in 0..3 {
                want.push((format!("experts.{expert}.{of}.bias"), vec![bias]));
            }
        }
        let last = of(2);
        assert_eq!(of(1), want, "{family:?}");
        assert_eq!(last == want, !learns_queries, "{family:?}: the layer whose queries are learned is dense");
        let is_exempt = |spec: &&Spec| spec.path.contains(".experts.b_");
        assert_eq!(specs.iter().filter(is_exempt).count(), if learns_queries { 2 } else { 4 });
        assert!(specs.iter().filter(is_exempt).all(|spec| !spec.decays && spec.count() % 3 == 0));
    }
    let bloom = ModelConfig { family: Family::Bloom, ..gpt2 };
    assert_eq!(selection_bias(&bloom, 1), "transformer.h.1.mlp.gate.e_score_correction_bias");
}

#[test]
fn a_mixture_has_the_names_and_shapes_of_files() {
    let files = files(&Gpt::describe(&mixture_example()));
    let of = |prefix| below(&files, prefix);
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
    let of_glm = selection_bias(&mixture_example(), 7);
    assert_eq!(of_glm, "model.layers.7.mlp.gate.e_score_correction_bias");
    // Every name is unique.
    let mut names: Vec<&String> = files.iter().map(|(name, _)| name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), files.len());
}

/// Experts of widths that are multiples of 4, each of whose projections is one tensor, and everything biased.
pub(crate) fn gpt_oss_example() -> ModelConfig {
    let example = mixture_example();
    let mixture = example.mixture.clone().map(|mixture| MixtureConfig {
        intermediate_size: 8,
        first_dense_layers: 0,
        shared: None,
        ..mixture
    });
    let (family, activation) = (Family::GptOss, Activation::Gated(Gate::Clamped));
    let biases = ModelConfig { qkv_bias: true, output_bias: true, multi_token: None, ..example };
    ModelConfig { family, activation, mixture, ..biases }.with_layers(|layer| layer.has_sinks = true)
}

/// A dense layer, and one with experts, a window, sinks and twice as many keys; values are wider than keys.
pub(crate) fn mimo_example() -> ModelConfig {
    let example = mixture_example();
    let mixture = example.mixture.clone().map(|mixture| MixtureConfig {
        intermediate_size: 8,
        shared: None,
        has_bias: true,
        ..mixture
    });
    let mimo = ModelConfig { mixture, multi_token: None, value_head_dim: Some(12), ..example };
    mimo.with_layers(|layer| (layer.num_kv_heads, layer.intermediate_size) = (2, 16)).with_each_layer(
        |number, layer| match number {
            0 => layer.num_kv_heads = 1,
            _ => (layer.sliding_window, layer.has_sinks) = (Some(3), true),
        },
    )
}

#[test]
fn opt_of_350m_has_the_names_and_shapes_of_files() {
    let sizes = Sizes {
        hidden_size: 8,
        vocab_size: 16,
        num_layers: 1,
        num_heads: 2,
        intermediate_size: 12,
        seq_length: 4,
    };
    let opt = ModelConfig {
        family: Family::Opt,
        norm_placement: NormPlacement::AfterSum,
        embedding_width: Some(6),
        ..ModelConfig::gpt2(sizes)
    };
    let files = files(&Gpt::describe(&opt));
    let outside: Vec<(&str, &[usize])> = below(&files, "model.decoder.")
        .into_iter()
        .filter(|(name, _)| !name.starts_with("layers."))
        .collect();
    let wanted: [(&str, &[usize]); 4] = [
        ("embed_tokens.weight", &[16, 6]),
        ("embed_positions.weight", &[6, 8]),
        ("project_in.weight", &[8, 6]),
        ("project_out.weight", &[6, 8]),
    ];
    assert_eq!(outside, wanted);
    assert_eq!(below(&files, "model.decoder.layers.0.").len(), 16);
}

#[test]
fn mimo_has_the_names_and_shapes_of_files() {
    let files = files(&Gpt::describe(&mimo_example()));
    let full: [(&str, &[usize]); 4] = [
        ("q_proj.weight", &[8, 8]),
        ("k_proj.weight", &[4, 8]),
        ("v_proj.weight", &[12, 8]),
        ("o_proj.weight", &[8, 24]),
    ];
    assert_eq!(below(&files, "model.layers.0.self_attn."), full);
    let windowed: [(&str, &[usize]); 5] = [
        ("q_proj.weight", &[8, 8]),
        ("k_proj.weight", &[8, 8]),
        ("v_proj.weight", &[24, 8]),
        ("attention_sink_bias", &[2]),
        ("o_proj.weight", &[8, 24]),
    ];
    assert_eq!(below(&files, "model.layers.1.self_attn."), windowed);
}

#[test]
fn gpt_oss_has_the_names_and_shapes_of_files() {
    let files = files(&Gpt::describe(&gpt_oss_example()));
    let mixture: [(&str, &[usize]); 6] = [
        ("router.weight", &[3, 8]),
        ("router.bias", &[3]),
        ("experts.gate_up_proj", &[3, 8, 16]),
        ("experts.gate_up_proj_bias", &[3, 16]),
        ("experts.down_proj", &[3, 8, 8]),
        ("experts.down_proj_bias", &[3, 8]),
    ];
    assert_eq!(below(&files, "model.layers.1.mlp."), mixture);
    let attention = below(&files, "model.layers.1.self_attn.");
    assert_eq!(attention.len(), 9);
    assert!(attention.contains(&("sinks", &[2])));
}

#[test]
fn a_shared_expert_without_a_gate_is_called_as_deep_seek_calls_it() {
    let mut config = mixture_example();
    config.multi_token = Some(MultiToken { depth: 3, loss_factor: 0.1 });
    let mixture = config.mixture.as_mut().unwrap();
    mixture.shared = Some(SharedExpert { intermediate_size: 7, is_gated: false });
    let specs = Gpt::describe(&config);
    let shared = find(&specs, "layers.1.feed_forward.shared.w_down");
    assert_eq!(shared.pieces[0].name, "model.layers.1.mlp.shared_experts.down_proj.weight");
    assert!(specs.iter().all(|spec| !spec.path.ends_with("shared.gate")));
    assert_eq!(find(&specs, "multi_token.2.w_fuse").pieces[0].name, "model.layers.4.eh_proj.weight");
}

/// Each expert is a matrix of its own all the same.
#[test]
fn granite_holds_all_experts_in_one_tensor() {
    let mut config = ModelConfig { family: Family::GraniteMoe, multi_token: None, ..mixture_example() };
    let mixture = config.mixture.as_mut().unwrap();
    mixture.intermediate_size = 4;
    mixture.shared = Some(SharedExpert { intermediate_size: 12, is_gated: false });
    let specs = Gpt::describe(&config);
    let files = files(&specs);
    let of_mixture: [(&str, &[usize]); 3] = [
        ("router.layer.weight", &[3, 8]),
        ("input_linear.weight", &[3, 8, 8]),
        ("output_linear.weight", &[3, 8, 4]),
    ];
    assert_eq!(below(&files, "model.layers.1.block_sparse_moe."), of_mixture);
    let shared: [(&str, &[usize]); 2] =
        [("input_linear.weight", &[24, 8]), ("output_linear.weight", &[8, 12])];
    assert_eq!(below(&files, "model.layers.1.shared_mlp."), shared);
    for (path, rows) in [("w_gate_up", [(0, 8), (8, 8), (16, 8)]), ("w_down", [(0, 8), (8, 8), (16, 8)])] {
        let stack = find(&specs, &format!("layers.1.feed_forward.experts.{path}"));
        let matrices: Vec<Piece> = stack.pieces.iter().flat_map(Piece::matrices).collect();
        let ranges = matrices.iter().map(|matrix| (matrix.first_row, matrix.rows));
        assert!(ranges.eq(rows), "{path}");
        assert_eq!((stack.rows, stack.count()), (24, 24 * stack.cols));
    }
    let router = find(&specs, "layers.1.feed_forward.router");
    assert!(router.pieces[0].matrices().eq(router.pieces.iter().cloned()));
}

#[test]
fn halves_of_experts_start_at_whole_groups_of_four_rows() {
    let specs = Gpt::describe(&mixture_example());
    let w_gate_up = find(&specs, "layers.1.feed_forward.experts.w_gate_up");
    let ranges = |spec: &Spec| -> Vec<(usize, usize)> {
        spec.pieces.iter().map(|Piece { first_row, rows, .. }| (*first_row, *rows)).collect()
    };
    assert_eq!((w_gate_up.rows, w_gate_up.cols), (3 * 2 * 8, 8));
    assert_eq!(ranges(&w_gate_up), [(0, 5), (8, 5), (16, 5), (24, 5), (32, 5), (40, 5)]);
    let w_down = find(&specs, "layers.1.feed_forward.experts.w_down");
    assert_eq!((w_down.rows, w_down.cols), (3 * 8, 5));
    assert_eq!(ranges(&w_down), [(0, 8), (8, 8), (16, 8)]);
    let is_zero = |row: usize| initial_row(&w_gate_up, row, 1).iter().all(|value| *value == 0.0);
    let zero: Vec<usize> = (0..48).filter(|&row| is_zero(row)).collect();
    assert_eq!(zero, [5, 6, 7, 13, 14, 15, 21, 22, 23, 29, 30, 31, 37, 38, 39, 45, 46, 47]);
}

#[test]
fn experts_start_as_dense_networks_and_routers_on_their_own() {
    let specs = Gpt::describe(&mixture_example());
    let init = |path: &str| find(&specs, path).init;
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
    // Multi-token prediction does not change the random streams of the rest, and reads the embedding too.
    let mut alone = Gpt::describe(&ModelConfig { multi_token: None, ..mixture_example() });
    assert_eq!(
        (specs[0].place, std::mem::replace(&mut alone[0].place, Place::Ends)),
        (Place::Ends, Place::Start)
    );
    assert_eq!(specs[..alone.len()], alone);
}

/// A parameter's number selects its random stream and its place in the files: a new parameter must not move the others.
#[test]
fn parameters_are_declared_in_their_one_order() {
    let sizes = Sizes {
        vocab_size: 16,
        hidden_size: 8,
        num_layers: 1,
        num_heads: 2,
        intermediate_size: 12,
        seq_length: 4,
    };
    let paths = |config: &ModelConfig| -> Vec<String> {
        Gpt::describe(config).into_iter().map(|spec| spec.path).collect()
    };
    let gpt2 = ModelConfig { qk_norm: true, tie_word_embeddings: false, ..ModelConfig::gpt2(sizes) };
    let everything_dense = [
        "embedding",
        "positions",
        "layers.0.attention_norm",
        "layers.0.attention_norm_bias",
        "layers.0.attention.wqkv",
        "layers.0.attention.bqkv",
        "layers.0.attention.q_norm",
        "layers.0.attention.k_norm",
        "layers.0.attention.wo",
        "layers.0.attention.bo",
        "layers.0.ffn_norm",
        "layers.0.ffn_norm_bias",
        "layers.0.feed_forward.w_gate_up",
        "layers.0.feed_forward.b_gate_up",
        "layers.0.feed_forward.w_down",
        "layers.0.feed_forward.b_down",
        "norm",
        "norm_bias",
        "head",
    ];
    assert_eq!(paths(&gpt2), everything_dense);
    let last_of_a_mixture = [
        "norm",
        "head",
        "multi_token.0.token_norm",
        "multi_token.0.state_norm",
        "multi_token.0.w_fuse",
        "multi_token.0.attention_norm",
        "multi_token.0.attention.wqkv",
        "multi_token.0.attention.wo",
        "multi_token.0.ffn_norm",
        "multi_token.0.feed_forward.router",
        "multi_token.0.feed_forward.experts.w_gate_up",
        "multi_token.0.feed_forward.experts.w_down",
        "multi_token.0.feed_forward.shared.w_gate_up",
        "multi_token.0.feed_forward.shared.w_down",
        "multi_token.0.feed_forward.shared.gate",
        "multi_token.0.norm",
    ];
    let mixture = paths(&mixture_example());
    assert_eq!(mixture[mixture.len() - last_of_a_mixture.len()..], last_of_a_mixture);
}

/// Only q and k are reordered, together with their biases and norms.
#[test]
fn interleaved_heads_are_reordered_in_files() {
    let base =
        ModelConfig { qkv_bias: true, qk_norm: true, mixture: None, multi_token: None, ..mixture_example() };
    let reordered = |config: &ModelConfig| -> Vec<String> {
        let specs = Gpt::describe(config);
        let pieces = specs.iter().flat_map(|spec| &spec.pieces);
        pieces.filter(|piece| piece.heads.is_some()).map(|piece| piece.name.clone()).collect()
    };
    assert!(reordered(&base).is_empty());
    let of_layer = |layer| {
        let names = [
            "q_proj.weight",
            "k_proj.weight",
            "q_proj.bias",
            "k_proj.bias",
            "q_norm.weight",
            "k_norm.weight",
        ];
        names.map(|name| format!("model.layers.{layer}.self_attn.{name}"))
    };
    let want: Vec<String> = (0..2).flat_map(of_layer).collect();
    assert_eq!(reordered(&base.with_layers(|layer| layer.rotary_interleaved = true)), want);
}
