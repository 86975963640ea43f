//! Names and shapes of published files.

use super::*;

/// Bloom of 560 million parameters, StarCoder and Baichuan 2 of 7B have as many parameters as published, and the names
/// of the files.
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
    let star_coder = ModelConfig { family: Family::BigCode, ..star_coder };
    let star_coder = star_coder.with_layers(|layer| layer.num_kv_heads = 1);
    let tensors: [(&str, &[usize]); 2] =
        [("transformer.wpe.weight", &[8192, 6144]), ("transformer.h.39.attn.c_attn.weight", &[6400, 6144])];
    expect(star_coder, 15_517_456_384, "transformer.wte.weight", &tensors);
    let baichuan = ModelConfig::llama(sizes(125_696, 4096, 32, 32, 11_008, 4096));
    let baichuan = ModelConfig { family: Family::Baichuan, head_epsilon: Some(1e-5), ..baichuan };
    let tensors: [(&str, &[usize]); 2] =
        [("lm_head.weight", &[125_696, 4096]), ("model.layers.31.self_attn.W_pack.weight", &[12_288, 4096])];
    expect(baichuan, 7_505_973_248, "model.embed_tokens.weight", &tensors);
    // Phi-3-mini.
    let phi3 =
        ModelConfig { family: Family::Phi3, ..ModelConfig::llama(sizes(32_064, 3072, 32, 32, 8192, 4096)) };
    let tensors: [(&str, &[usize]); 3] = [
        ("model.layers.31.self_attn.qkv_proj.weight", &[9216, 3072]),
        ("model.layers.31.mlp.gate_up_proj.weight", &[16_384, 3072]),
        ("model.layers.31.mlp.down_proj.weight", &[3072, 8192]),
    ];
    expect(phi3, 3_821_079_552, "model.embed_tokens.weight", &tensors);
    let pangu = ModelConfig { family: Family::Pangu, ..ModelConfig::gpt2(sizes(9, 8, 2, 2, 32, 5)) };
    let pangu = pangu.with_query_table();
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

/// Latent attention at the sizes of DeepSeek-V3, whose published layer has these tensors, and without a rank of the
/// queries, as in DeepSeek-V2-Lite.
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

/// The names of <https://huggingface.co/mistralai/Mixtral-8x7B-v0.1>, only for models that Mixtral's architecture
/// computes.
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
