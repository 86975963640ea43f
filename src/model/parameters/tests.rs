//! The parameters of whole models: names, shapes and initial values.

use super::{Gpt, Init, Piece, Spec};
use crate::model::config::{
    BalanceLosses, Family, LatentAttention, MixtureConfig, ModelConfig, MultiToken, Positions, RouterConfig,
    Score, SharedExpert, Sizes, TokenDispatch,
};
use crate::model::init::initial_row;
use crate::model::selection_bias;

/// A dense layer, a layer of three experts and a gated shared one, and a block of the same kind for multi-token
/// prediction. Experts and shared expert have odd widths.
pub(in crate::model) fn mixture_example() -> ModelConfig {
    let (hidden_size, num_layers, num_heads) = (8, 2, 2);
    let sizes =
        Sizes { vocab_size: 16, hidden_size, num_layers, num_heads, intermediate_size: 12, seq_length: 4 };
    let mixture = MixtureConfig {
        route: RouterConfig {
            experts: 3,
            chosen: 2,
            score: Score::Softmax,
            groups: None,
            norm_top_k: true,
            scaling: 1.0,
        },
        has_bias: false,
        bias_update_rate: 0.0,
        intermediate_size: 5,
        first_dense_layers: 1,
        shared: Some(SharedExpert { intermediate_size: 7, is_gated: true }),
        losses: BalanceLosses::default(),
        dispatch: TokenDispatch::Dropless { safe_tokens: false },
        fuses_permutation: true,
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

/// Those whose names start with `prefix`, without it.
fn below<'a>(files: &'a [(String, Vec<usize>)], prefix: &str) -> Vec<(&'a str, &'a [usize])> {
    files.iter().filter_map(|(name, shape)| Some((name.strip_prefix(prefix)?, shape.as_slice()))).collect()
}

/// Bloom of 560 million parameters, StarCoder and Baichuan 2 of 7B: as many parameters as published, and the names of the files.
#[test]
fn types_with_names_of_their_own_are_the_published_ones() {
    let sizes = |vocab_size, hidden_size, num_layers, num_heads, intermediate_size, seq_length| Sizes {
        vocab_size,
        hidden_size,
        num_layers,
        num_heads,
        intermediate_size,
        seq_length,
    };
    let expect = |config: ModelConfig, count: usize, first: &str, layer: &[(&str, &[usize])]| {
        let specs = Gpt::describe(&config);
        assert_eq!(specs.iter().map(Spec::count).sum::<usize>(), count);
        let files = files(&specs);
        assert_eq!(files[0].0, first);
        for (name, shape) in layer {
            assert!(files.contains(&(name.to_string(), shape.to_vec())), "{name} {shape:?}");
        }
    };
    let bloom = ModelConfig::gpt2(sizes(250_880, 1024, 24, 16, 4096, 2048));
    let bloom =
        ModelConfig { family: Family::Bloom, positions: Positions::Alibi, embedding_norm: true, ..bloom };
    let tensors: [(&str, &[usize]); 4] = [
        ("transformer.word_embeddings_layernorm.bias", &[1024]),
        ("transformer.h.23.self_attention.query_key_value.weight", &[3072, 1024]),
        ("transformer.h.0.mlp.dense_h_to_4h.weight", &[4096, 1024]),
        ("transformer.ln_f.weight", &[1024]),
    ];
    expect(bloom, 559_214_592, "transformer.word_embeddings.weight", &tensors);
    let star_coder = ModelConfig::gpt2(sizes(49_152, 6144, 40, 48, 24_576, 8192));
    let star_coder = ModelConfig { family: Family::BigCode, num_kv_heads: 1, ..star_coder };
    let tensors: [(&str, &[usize]); 2] =
        [("transformer.wpe.weight", &[8192, 6144]), ("transformer.h.39.attn.c_attn.weight", &[6400, 6144])];
    expect(star_coder, 15_517_456_384, "transformer.wte.weight", &tensors);
    let baichuan = ModelConfig::llama(sizes(125_696, 4096, 32, 32, 11_008, 4096));
    let baichuan = ModelConfig { family: Family::Baichuan, head_epsilon: Some(1e-5), ..baichuan };
    let tensors: [(&str, &[usize]); 2] =
        [("lm_head.weight", &[125_696, 4096]), ("model.layers.31.self_attn.W_pack.weight", &[12_288, 4096])];
    expect(baichuan, 7_505_973_248, "model.embed_tokens.weight", &tensors);
    let pangu = ModelConfig {
        family: Family::Pangu,
        query_layer: true,
        ..ModelConfig::gpt2(sizes(9, 8, 2, 2, 32, 5))
    };
    let tensors: [(&str, &[usize]); 4] = [
        ("transformer.wqe.weight", &[5, 8]),
        ("transformer.h.0.attn.q_proj.weight", &[8, 8]),
        ("transformer.h.1.attn.q_proj.bias", &[8]),
        ("transformer.h.1.attn.v_proj.weight", &[8, 8]),
    ];
    let per_layer = 12 * 64 + 13 * 8;
    expect(pangu, (9 + 2 * 5) * 8 + 2 * per_layer + 16, "transformer.wte.weight", &tensors);
}

/// The smallest GPT-2 as published: 124 million parameters, its tensors' names and shapes those of the file.
#[test]
fn gpt2_is_the_published_one() {
    let config = ModelConfig::gpt2(Sizes {
        vocab_size: 50257,
        hidden_size: 768,
        num_layers: 12,
        num_heads: 12,
        intermediate_size: 3072,
        seq_length: 1024,
    });
    let specs = Gpt::describe(&config);
    assert_eq!(specs.iter().map(Spec::count).sum::<usize>(), 124_439_808);
    let files = files(&specs);
    let tensors = |prefix| below(&files, prefix);
    let layer: [(&str, &[usize]); 12] = [
        ("ln_1.weight", &[768]),
        ("ln_1.bias", &[768]),
        ("attn.c_attn.weight", &[768, 2304]),
        ("attn.c_attn.bias", &[2304]),
        ("attn.c_proj.weight", &[768, 768]),
        ("attn.c_proj.bias", &[768]),
        ("ln_2.weight", &[768]),
        ("ln_2.bias", &[768]),
        ("mlp.c_fc.weight", &[768, 3072]),
        ("mlp.c_fc.bias", &[3072]),
        ("mlp.c_proj.weight", &[3072, 768]),
        ("mlp.c_proj.bias", &[768]),
    ];
    assert_eq!(tensors("transformer.h.11."), layer);
    assert_eq!(tensors("transformer.wte."), [("weight", &[50257usize, 768][..])]);
    assert_eq!(tensors("transformer.wpe."), [("weight", &[1024usize, 768][..])]);
    assert_eq!(tensors("transformer.ln_f."), [("weight", &[768usize][..]), ("bias", &[768])]);
    assert!(tensors("lm_head").is_empty());
    assert_eq!(files.len(), 12 * 12 + 4);
    // Every matrix decays, and nothing else; both projections into the stream start smaller.
    assert!(specs.iter().all(|spec| spec.decays == (spec.rows > 1)));
    for path in ["layers.0.attention.wo", "layers.0.feed_forward.w_down"] {
        assert_eq!(find(&specs, path).init, Init::Normal(0.02 / 24f64.sqrt()));
    }
    assert_eq!(find(&specs, "layers.0.feed_forward.w_gate_up").init, Init::Normal(0.02));
}

/// Latent attention at the sizes of DeepSeek-V3, whose published layer has these tensors, and without a rank of the queries as
/// in DeepSeek-V2-Lite.
#[test]
fn latent_attention_has_the_names_and_shapes_of_deepseek() {
    let sizes = Sizes {
        vocab_size: 16,
        hidden_size: 7168,
        num_layers: 1,
        num_heads: 128,
        intermediate_size: 12,
        seq_length: 4,
    };
    let latent =
        LatentAttention { q_rank: Some(1536), kv_rank: 512, nope_dim: 128, rope_dim: 64, value_dim: 128 };
    let layer = |latent: LatentAttention| files(&Gpt::describe(&latent.within(ModelConfig::llama(sizes))));
    let files = layer(latent);
    let tensors: [(&str, &[usize]); 7] = [
        ("q_a_proj.weight", &[1536, 7168]),
        ("kv_a_proj_with_mqa.weight", &[576, 7168]),
        ("q_a_layernorm.weight", &[1536]),
        ("q_b_proj.weight", &[24576, 1536]),
        ("kv_a_layernorm.weight", &[512]),
        ("kv_b_proj.weight", &[32768, 512]),
        ("o_proj.weight", &[7168, 16384]),
    ];
    assert_eq!(below(&files, "model.layers.0.self_attn."), tensors);
    let files = layer(LatentAttention { q_rank: None, ..latent });
    let direct = below(&files, "model.layers.0.self_attn.");
    assert_eq!(direct[0], ("q_proj.weight", &[24576usize, 7168][..]));
    assert_eq!(direct[1..], [&tensors[1..2], &tensors[4..]].concat());
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
    assert_eq!(selection_bias(7), "model.layers.7.mlp.gate.e_score_correction_bias");
    // Every name is unique.
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
    let specs = Gpt::describe(&config);
    let shared = find(&specs, "layers.1.feed_forward.shared.w_down");
    assert_eq!(shared.pieces[0].name, "model.layers.1.mlp.shared_experts.down_proj.weight");
    assert!(specs.iter().all(|spec| !spec.path.ends_with("shared.gate")));
    assert_eq!(find(&specs, "multi_token.2.w_fuse").pieces[0].name, "model.layers.4.eh_proj.weight");
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
    // Multi-token prediction does not change the random streams of the rest.
    let alone = Gpt::describe(&ModelConfig { multi_token: None, ..mixture_example() });
    assert_eq!(specs[..alone.len()], alone);
}

/// A parameter's number selects its random stream and its place in the files: a new one may not move the others.
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

/// The names of <https://huggingface.co/mistralai/Mixtral-8x7B-v0.1>, for what Mixtral computes and nothing else.
#[test]
fn a_mixtral_has_its_published_names() {
    let example = mixture_example();
    let mixture = MixtureConfig { first_dense_layers: 0, shared: None, ..example.mixture.clone().unwrap() };
    let mixtral = ModelConfig { mixture: Some(mixture), multi_token: None, ..example };
    let names: Vec<String> = files(&Gpt::describe(&mixtral))
        .into_iter()
        .map(|(name, _)| name)
        .filter(|name| name.contains("moe"))
        .collect();
    let of_layer = |layer: usize| {
        let expert = move |expert: usize, of: &str| {
            format!("model.layers.{layer}.block_sparse_moe.experts.{expert}.{of}.weight")
        };
        let gate_up = (0..3).flat_map(move |number| ["w1", "w3"].map(|of| expert(number, of)));
        let down = (0..3).map(move |number| expert(number, "w2"));
        [format!("model.layers.{layer}.block_sparse_moe.gate.weight")].into_iter().chain(gate_up).chain(down)
    };
    assert_eq!(names, (0..2).flat_map(of_layer).collect::<Vec<_>>());
    let normed = Gpt::describe(&ModelConfig { qk_norm: true, ..mixtral });
    assert!(files(&normed).iter().all(|(name, _)| !name.contains("block_sparse_moe")));
}

/// q and k alone are reordered, their biases and norms with them.
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
    assert_eq!(reordered(&ModelConfig { rotary_interleaved: true, ..base }), want);
}
