pub(crate) mod exported;
mod published;

use super::*;
use crate::hugging_face::export::tests::{in_pairs, rotating, windowed};
use crate::model::config::{
    Activation, Divisors, Factors, Family, Gate, Gelu, LayerConfig, Llama3, LongRope, Mixer, MixtureConfig,
    NormPlacement, QkNorm, QueryScaling, RopeScaling, RouterConfig, Score, SharedExpert, Sizes, Values, Yarn,
};
use exported::mixture;
use serde_json::json;

/// The model that the files below are of: a Llama of 2 query heads for each key head.
fn llama() -> ModelConfig {
    let sizes = Sizes {
        vocab_size: 32,
        hidden_size: 16,
        num_layers: 3,
        num_heads: 4,
        intermediate_size: 24,
        seq_length: 8,
    };
    let llama = ModelConfig { max_positions: 16, ..ModelConfig::llama(sizes) };
    llama.with_layers(|layer| layer.num_kv_heads = 2)
}

/// A file of `kind` with the sizes of [`llama`] and these keys.
fn config(kind: &str, keys: Value) -> Value {
    let mut config = json!({
        "model_type": kind, "vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 24, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 16, "torch_dtype": "bfloat16", "attention_dropout": 0.1,
    });
    keys.as_object().into_iter().flatten().for_each(|(key, value)| config[key] = value.clone());
    config
}

/// A small file of each class, with every size that the class reads.
pub(crate) fn small_files() -> impl Iterator<Item = (&'static str, Value)> {
    let sizes = json!({
        "vocab_size": 32, "padded_vocab_size": 32, "hidden_size": 16, "n_embd": 16, "n_embed": 16, "num_hidden_layers": 3,
        "num_layers": 3, "n_layer": 3, "num_attention_heads": 4, "n_head": 4, "num_key_value_heads": 2,
        "multi_query_group_num": 2, "head_dim": 4, "kv_channels": 4, "intermediate_size": 24, "ffn_hidden_size": 24,
        "n_inner": 24, "max_position_embeddings": 16, "n_positions": 16, "seq_length": 16, "num_experts": 4,
        "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_topk": 2,
        "moe_intermediate_size": 12,
        "shared_expert_intermediate_size": 12, "shared_intermediate_size": 12, "n_shared_experts": 2, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 1, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4,
        "v_head_dim": 4, "global_head_dim": 8, "hidden_size_per_layer_input": 4,
        "vocab_size_per_layer_input": 32,
    });
    classes::all().map(move |class| {
        let mut config = json!({ "model_type": class.name });
        let written = config.as_object().expect("an object").clone();
        let reading = Reading::of(&written).expect("a class");
        let read = sizes.as_object().into_iter().flatten().filter(|(key, _)| theirs::reads(&reading, key));
        read.for_each(|(key, value)| config[key] = value.clone());
        if config.get("kv_lora_rank").is_some() {
            config["num_key_value_heads"] = 4.into();
            config.as_object_mut().expect("an object").remove("head_dim");
        }
        // Of the things that none of our keys changes, values that are computed here, unlike the defaults.
        match class.name.as_str() {
            // Of heads 4 wide a quarter is odd.
            "stablelm" => config["partial_rotary_factor"] = 0.5.into(),
            "qwen3_next" | "qwen3_5_text" | "qwen3_5_moe_text" => {
                let heads = ["linear_num_key_heads", "linear_num_value_heads"];
                heads.iter().zip([2, 4]).for_each(|(key, count)| config[*key] = count.into());
                let widths = ["linear_key_head_dim", "linear_value_head_dim"];
                widths.iter().zip([8, 12]).for_each(|(key, width)| config[*key] = width.into());
                (config["partial_rotary_factor"], config["full_attention_interval"]) = (0.5.into(), 2.into());
            }
            "ernie4_5_moe" => (config["moe_num_experts"], config["moe_k"]) = (4.into(), 2.into()),
            "lfm2_moe" => {
                (config["layer_types"], config["num_dense_layers"]) =
                    (json!(["conv", "conv", "full_attention"]), 1.into());
            }
            "lfm2" => {
                (config["full_attn_idxs"], config["conv_L_cache"]) = (json!([1]), 4.into());
                (config["block_multiple_of"], config["num_heads"]) = (12.into(), 9.into());
            }
            "mimo_v2_flash" => {
                let kinds = classes::named("mimo_v2_flash").defaults["rope_parameters"].as_object();
                let kinds = kinds.expect("an object").iter().map(|(kind, own)| {
                    let mut own = own.clone();
                    own["partial_rotary_factor"] = 0.5.into();
                    (kind.clone(), own)
                });
                config["rope_parameters"] = kinds.collect();
                config["v_head_dim"] = 8.into();
                config["n_shared_experts"] = Value::Null;
            }
            "gpt_neox" => config["rotary_pct"] = 0.5.into(),
            "gptj" => config["rotary_dim"] = 2.into(),
            "apertus" | "cwm" => config["max_position_embeddings"] = 16_384.into(),
            "qwen2_vl_text" | "qwen2_5_vl_text" => {
                config["rope_scaling"] = json!({"type": "mrope", "mrope_section": [1, 1, 0]});
            }
            _ => {}
        }
        (class.name.as_str(), config)
    })
}

/// The faults of weights beside `config` for `model`, one line each, without the path.
fn faults(config: &Value, model: &ModelConfig, accepted: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join(FILE), config.to_string()).expect("a file");
    let accepted: Vec<String> = accepted.iter().map(|key| (*key).to_string()).collect();
    let found = check(folder.path(), model, &accepted);
    // The file itself may be named too.
    assert_eq!(check(&folder.path().join("model.safetensors"), model, &accepted).is_ok(), found.is_ok());
    let text = found.err().map(|error| error.to_string()).unwrap_or_default();
    let path = format!("{}: ", folder.path().join(FILE).display());
    text.lines().map(|line| line.strip_prefix(&path).expect("the file").to_string()).collect()
}

#[track_caller]
fn equal(config: &Value, model: &ModelConfig) {
    assert_eq!(faults(config, model, &[]), [""; 0], "{config}");
}

/// Checks that each fault starts with one of `starts`, and that accepting their keys leaves none.
#[track_caller]
fn refused(config: &Value, model: &ModelConfig, starts: &[&str]) {
    let found = faults(config, model, &[]);
    assert_eq!(found.len(), starts.len(), "{found:#?}");
    found.iter().zip(starts).for_each(|(line, start)| assert!(line.starts_with(start), "{line}"));
    let key = |line: &String| {
        line.split("ignore_config_keys: [").nth(1).unwrap().split(']').next().unwrap().to_string()
    };
    let keys: Vec<String> = found.iter().map(key).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    assert_eq!(faults(config, model, &keys), [""; 0]);
}

#[test]
fn the_defaults_are_those_of_the_class() {
    let plain = llama();
    equal(&config("llama", json!({})), &plain);
    // Mistral's window is 4096 where a file is silent, which masks nothing in 16 positions.
    equal(&config("mistral", json!({})), &plain);
    let long = ModelConfig { max_positions: 8192, ..llama() };
    refused(
        &config("mistral", json!({})),
        &long,
        &["`sliding_window` is 4096 by default in `mistral`, and this run has none; write"],
    );
    equal(&config("mistral", json!({"sliding_window": null})), &long);
    let wide = long.clone().with_layers(|layer| layer.wide_window = Some(4096));
    equal(&config("mistral", json!({})), &wide);
    // Qwen2 has biases, whatever its file says, and the window of this file is off.
    equal(&config("qwen2", json!({})), &ModelConfig { qkv_bias: true, ..long.clone() });
    let always = "`qkv_has_bias` is True always in `qwen2`, and this run has False; write `qkv_has_bias: True` in model.model_config";
    refused(&config("qwen2", json!({})), &long, &[always]);
    refused(&config("qwen3", json!({})), &plain, &["`use_qk_norm` is True always"]);
    let glm = in_pairs(ModelConfig { family: Family::Glm, qkv_bias: true, ..rotating(llama(), 2) });
    equal(&config("glm", json!({})), &glm);
    let halved = "`partial_rotary_factor` is 0.5 by default in `glm`, and this run has 1.0";
    refused(&config("glm", json!({})), &rotating(glm, 4), &[halved]);
}

#[test]
fn each_key_that_differs_is_named_with_the_remedy() {
    let differing = |keys: Value, starts: &[&str]| refused(&config("llama", keys), &llama(), starts);
    differing(
        json!({"rms_norm_eps": 1e-6, "rope_theta": 5e5, "attention_bias": true}),
        &[
            "`attention_bias` is True in `llama`, and this run has False; write `attn_proj_has_bias: True` in model.model_config, or",
            "`attention_bias` is True in `llama`, and this run has False; write `qkv_has_bias: True`",
            "`rms_norm_eps` is 1e-6 in `llama`, and this run has 0.00001; write `rms_norm_eps: 1e-6`",
            "`rope_theta` is 500000.0 in `llama`, and this run has 10000.0; write `theta: 500000.0` in model.model_config",
        ],
    );
    differing(
        json!({"hidden_act": "gelu"}),
        &["`hidden_act` is gelu_exact in `llama`, and this run has silu"],
    );
    differing(
        json!({"num_key_value_heads": null}),
        &["`num_key_value_heads` is 4 in `llama`, and this run has 2"],
    );
    differing(json!({"tie_word_embeddings": true}), &["`tie_word_embeddings` is True in `llama`"]);
    // The same tensors, cut into other heads.
    differing(
        json!({"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 2}),
        &["`head_dim` is 2", "`num_key_value_heads` is 4", "`num_attention_heads` is 8"],
    );
    differing(json!({"clip_qkv": 3}), &["`clip_qkv: 3` is not a key of `llama` that is known here"]);
    differing(json!({"model_type": "gemma3n_text"}), &["`model_type: gemma3n_text`: not a class"]);
    differing(json!({"model_type": null}), &["`model_type: none`: not a class"]);
    // Keys that decide nothing where they are off.
    let off = json!({"use_mrope": false, "use_sliding_window": false, "sliding_window": 4, "max_window_layers": 2, "n_inner": null});
    equal(&config("llama", off), &llama());
    differing(json!({"use_mrope": true}), &["`use_mrope: True` is not a key of `llama`"]);
    differing(json!({"sliding_window": 4}), &["`sliding_window: 4` is not a key of `llama`"]);
    // Saved as 32 bits, and read as 64.
    equal(&config("llama", json!({"rms_norm_eps": 9.999999747378752e-6})), &llama());
}

/// MiMo-V2's class reads a part of what its published files say, and takes the rest from that.
#[test]
fn files_of_mimo_say_less_than_they_write() {
    let route = RouterConfig { score: Score::Sigmoid, ..mixture().route };
    let experts =
        MixtureConfig { intermediate_size: 12, first_dense_layers: 1, has_bias: true, route, ..mixture() };
    let model = |window: Option<usize>| {
        let mimo = ModelConfig {
            mixture: Some(experts.clone()),
            value_head_dim: Some(12),
            factors: Factors { values: Some(0.707), ..Factors::default() },
            ..llama()
        };
        let rotating = mimo.with_layers(|layer| {
            (layer.head_dim, layer.rotary_dim, layer.num_kv_heads) = (8, 2, 4);
            layer.rope_theta = 5e6;
        });
        rotating.with_each_layer(|number, layer| match number {
            0 => layer.num_kv_heads = 2,
            _ => {
                (layer.sliding_window, layer.has_sinks) = (window.filter(|window| *window < 8), true);
                layer.wide_window = window.filter(|window| *window >= 8);
                layer.rope_theta = 1e4;
            }
        })
    };
    let file = |keys: Value| {
        let sizes = json!({"head_dim": 8, "v_head_dim": 12, "n_routed_experts": 6, "num_experts_per_tok": 2,
            "moe_intermediate_size": 12, "routed_scaling_factor": null, "n_group": 1, "topk_group": 1});
        let mut file = config("mimo_v2_flash", sizes);
        keys.as_object().into_iter().flatten().for_each(|(key, value)| file[key] = value.clone());
        file
    };
    let published = json!({"hybrid_layer_pattern": [0, 1, 1], "moe_layer_freq": [0, 1, 1], "swa_head_dim": 8,
        "swa_num_key_value_heads": 4, "swa_rope_theta": 10000, "rope_theta": 5000000, "partial_rotary_factor": 0.334,
        "sliding_window": 4, "sliding_window_size": 4, "attention_chunk_size": 4, "add_swa_attention_sink_bias": true,
        "add_full_attention_sink_bias": false, "layernorm_epsilon": 1e-5, "scoring_func": "sigmoid",
        "topk_method": "noaux_tc", "n_shared_experts": null, "swa_v_head_dim": 12});
    equal(&file(published), &model(Some(5)));
    equal(&file(json!({"sliding_window": 5, "partial_rotary_factor": 0.9})), &model(Some(5)));
    // Windows that hide nothing still tell layers apart, by sinks, heads and bases.
    equal(&file(json!({})), &model(Some(129)));
    for (key, value, message) in [
        (
            "swa_num_key_value_heads",
            json!(6),
            "`swa_num_key_value_heads` is 6, where transformers takes 4, in",
        ),
        (
            "hybrid_layer_pattern",
            json!([0, 1, 0]),
            "`hybrid_layer_pattern` is [0,1,0], where transformers takes [0,1,1], in",
        ),
        (
            "moe_layer_freq",
            json!([1, 1, 1]),
            "`moe_layer_freq` is [1,1,1], where transformers takes [0,1,1], in",
        ),
        ("swa_rope_theta", json!(5000), "`swa_rope_theta` is 5000, where transformers takes 10000, in"),
        ("swa_v_head_dim", json!(8), "`swa_v_head_dim` is 8, where transformers takes 12, in"),
        ("add_full_attention_sink_bias", json!(true), "`add_full_attention_sink_bias` is true, where"),
        ("layernorm_epsilon", json!(1e-6), "`layernorm_epsilon` is 1e-6, where"),
        ("scoring_func", json!("softmax"), "`scoring_func` is \"softmax\", where"),
        ("n_shared_experts", json!(1), "`n_shared_experts` is 1, where"),
    ] {
        refused(&file(json!({"sliding_window": 5, key: value})), &model(Some(5)), &[message]);
    }
    let full = json!({"layer_types": ["full_attention", "full_attention", "sliding_attention"], "sliding_window": 5});
    refused(&file(full), &model(Some(5)), &["`layer_types` is"]);
    refused(
        &file(json!({"attention_value_scale": null, "sliding_window": 5})),
        &model(Some(5)),
        &[
            "`attention_value_scale` is none in `mimo_v2_flash`, and this run has 0.707; remove `attention_value_scale`",
        ],
    );
}

/// LFM2's class has a rule for the width of its feed-forward layers, two forms of its list of layers, and older names
/// of two keys.
#[test]
fn files_of_lfm2_say_it_in_several_forms() {
    let model = |width, convolved: [bool; 3]| {
        let lfm2 = ModelConfig { family: Family::Lfm2, qk_norm: true, tie_word_embeddings: true, ..llama() };
        let lfm2 = lfm2.with_layers(|layer| (layer.intermediate_size, layer.rope_theta) = (width, 1e6));
        lfm2.with_each_layer(|number, layer| {
            if convolved[number] {
                layer.mixer = Mixer::Convolution { width: 3 };
            }
        })
    };
    let file = |keys: Value| {
        let mut file = config("lfm2", json!({"norm_eps": 1e-5}));
        file.as_object_mut().expect("an object").remove("rms_norm_eps");
        keys.as_object().into_iter().flatten().for_each(|(key, value)| file[key] = value.clone());
        file
    };
    // Two thirds of 24 are 16, and of 1000, 666.
    for (keys, width) in [
        (json!({}), 256),
        (json!({"block_multiple_of": 12}), 24),
        (json!({"block_multiple_of": 5, "block_ffn_dim_multiplier": 1.3}), 20),
        (json!({"block_multiple_of": 1000, "block_ffn_dim_multiplier": null}), 16),
        (json!({"block_auto_adjust_ff_dim": false}), 24),
        (json!({"block_ff_dim": 1000, "block_multiple_of": 1}), 666),
    ] {
        equal(&file(keys), &model(width, [false; 3]));
    }
    const FULL: &str = "full_attention";
    for (keys, convolved) in [
        (json!({"full_attn_idxs": [1]}), [true, false, true]),
        (json!({"layer_types": ["conv", "conv", FULL]}), [true, true, false]),
        (json!({"layer_types": ["conv", FULL, FULL], "full_attn_idxs": [1]}), [true, false, false]),
    ] {
        equal(&file(keys), &model(256, convolved));
    }
    refused(
        &file(
            json!({"layer_types": ["conv", "linear_attention", FULL], "tie_embedding": false, "conv_bias": true}),
        ),
        &model(256, [true, false, false]),
        &[
            "`conv_bias` is True in `lfm2`, and this run has False, which no key changes",
            "`layer_types` is \"linear_attention\" in some layers",
            "`tie_embedding` is False in `lfm2`, and this run has True",
        ],
    );
}

/// Keys of the first files, which the classes of today pass over.
#[test]
fn keys_of_published_files_are_known() {
    let file = |kind: &str, keys: Value| {
        let mut file = small_files().find(|(name, _)| *name == kind).expect("a class").1;
        keys.as_object().into_iter().flatten().for_each(|(key, value)| file[key] = value.clone());
        let written = file.as_object().expect("an object").clone();
        let reading = Reading::of(&written).expect("a class");
        let unknown = written
            .iter()
            .find(|(key, value)| !classes::is_without_effect(key, value) && !theirs::reads(&reading, key));
        assert!(unknown.is_none(), "{kind}: {unknown:?}");
        let said = theirs::facts(&reading, 16, 3);
        let here = classes::always_here();
        here.iter()
            .find(|(fact, ours)| said.get(fact.as_str()).is_some_and(|said| said.value != **ours))
            .map(|(fact, _)| fact.clone())
    };
    let attention = json!({"alibi": true, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0, "attn_type": "multihead_attention",
        "attn_uses_sequence_id": false, "clip_qkv": null, "prefix_lm": false, "qk_ln": false, "softmax_scale": null});
    let normed = json!({"alibi": true, "qk_ln": true});
    let off = |key: &str, keys: Value| (keys, Some(key.to_string()));
    for (kind, (keys, differs)) in [
        ("gptj", (json!({"rotary": true, "scale_attn_weights": true, "summary_first_dropout": 0.1}), None)),
        ("gptj", off("rotary", json!({"rotary": false}))),
        (
            "falcon",
            (
                json!({"alibi": false, "apply_residual_connection_post_layernorm": false, "ff_factor": 4}),
                None,
            ),
        ),
        ("falcon", off("alibi", json!({"alibi": true}))),
        (
            "opt",
            (json!({"activation_dropout": 0.0, "layerdrop": 0.0, "prefix": "</s>", "init_std": 0.02}), None),
        ),
        ("opt", off("_remove_final_layer_norm", json!({"_remove_final_layer_norm": true}))),
        (
            "opt",
            (
                json!({"_remove_final_layer_norm": true, "do_layer_norm_before": false, "word_embed_proj_dim": 12}),
                None,
            ),
        ),
        (
            "mpt",
            (
                json!({"attn_config": attention, "init_config": {"init_nonlinearity": "relu"}, "verbose": 0}),
                None,
            ),
        ),
        ("mpt", off("attn_config", json!({"attn_config": normed}))),
        ("mpt", off("norm_type", json!({"norm_type": "low_precision_rmsnorm"}))),
        ("mpt", off("expansion_ratio", json!({"expansion_ratio": 3}))),
        (
            "lfm2",
            (
                json!({"block_dim": 2048, "block_use_swiglu": true, "conv_dim": 2048, "use_pos_enc": true}),
                None,
            ),
        ),
        ("lfm2", off("conv_bias", json!({"conv_bias": true}))),
    ] {
        assert_eq!(file(kind, keys.clone()), differs, "{kind}: {keys}");
    }
}

#[test]
fn a_rotation_is_what_it_computes() {
    let stretched = |scaling| llama().with_layers(|layer| layer.rope_scaling = scaling);
    let linear = || stretched(RopeScaling::Linear { factor: 4.0 });
    let old = json!({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 4}});
    let new = json!({"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}});
    for keys in [old, new] {
        equal(&config("llama", keys.clone()), &linear());
        let line = "is {\"factor\":4.0,\"rope_type\":\"linear\"} in `llama`, and this run has none; write `rope_scaling: {";
        let found = faults(&config("llama", keys), &llama(), &[]);
        assert!(found.len() == 1 && found[0].contains(line), "{found:?}");
    }
    refused(
        &config("llama", json!({})),
        &linear(),
        &["`rope_scaling` is none by default in `llama`, and this run has {"],
    );
    // A base times a constant is another base.
    equal(&config("llama", json!({"rope_theta": 8e4})), &stretched(RopeScaling::Ntk { factor: 8.0 }));
    let yarn = Yarn {
        factor: 4.0,
        original: 16.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        mscale: 1.0,
        mscale_all_dim: 0.0,
        is_truncated: true,
    };
    let of_yarn = |more: Value| {
        let mut yarn = json!({"rope_type": "yarn", "factor": 4.0});
        more.as_object().into_iter().flatten().for_each(|(key, value)| yarn[key] = value.clone());
        config("llama", json!({"rope_scaling": yarn}))
    };
    equal(&of_yarn(json!({})), &stretched(RopeScaling::Yarn(yarn)));
    // One of the two alone does not count.
    equal(&of_yarn(json!({"mscale": 0.5})), &stretched(RopeScaling::Yarn(yarn)));
    let exact = RopeScaling::Yarn(Yarn { is_truncated: false, ..yarn });
    equal(&of_yarn(json!({"truncate": false})), &stretched(exact));
    for unsupported in [json!({"attention_factor": 1.5}), json!({"llama_4_scaling_beta": 0.1})] {
        refused(&of_yarn(unsupported), &stretched(RopeScaling::Yarn(yarn)), &["`rope_scaling` is {"]);
    }
    let llama3 = Llama3 { factor: 8.0, original: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0 };
    let keys = json!({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0});
    equal(&config("llama", json!({"rope_scaling": keys})), &stretched(RopeScaling::Llama3(llama3)));
    // Dynamic scaling stretches only texts that are longer than the model is made for.
    let dynamic = |longest: u64| {
        config(
            "llama",
            json!({"rope_scaling": {"type": "dynamic", "factor": 2}, "max_position_embeddings": longest}),
        )
    };
    equal(&dynamic(16), &llama());
    refused(&dynamic(15), &llama(), &["`rope_scaling` is {\"factor\":2"]);
    let beyond = RopeScaling::Dynamic { factor: 2.0, original: 15.0, length: 15.0 };
    equal(&dynamic(15), &stretched(beyond.of_texts(16)));
    refused(&config("llama", json!({"rope_scaling": {"type": "longrope"}})), &llama(), &["`rope_scaling`"]);
    // Each of the lists counts, also that which the run's texts do not read, and so does where they are exchanged.
    let pairs = llama().layer.rotary_dim / 2;
    let [short, long] = [1.5, 4.0].map(|divisor| vec![divisor; pairs]);
    let lists = |original: f64, short: &[f64]| {
        let divisors = [short, &long].map(Divisors::new);
        let magnitude = LongRope::usual_magnitude(2.0, 8.0);
        stretched(RopeScaling::LongRope(LongRope { divisors, original, is_long: true, magnitude }))
    };
    let keys = json!({"type": "longrope", "short_factor": short, "long_factor": long, "factor": 2,
        "original_max_position_embeddings": 8});
    let file = config("llama", json!({"rope_scaling": keys}));
    equal(&file, &lists(8.0, &short));
    let of_short_texts =
        lists(8.0, &short).with_layers(|layer| layer.rope_scaling = layer.rope_scaling.of_texts(8));
    equal(&config("llama", json!({"rope_theta": 1e4, "rope_parameters": keys})), &of_short_texts);
    for other in [lists(9.0, &short), lists(8.0, &long), llama()] {
        refused(&file, &other, &["`rope_scaling` is {"]);
    }
    // The first files of Phi-3 have other words for it.
    let phi3 = |kind: &str| {
        let mut keys =
            json!({"rope_theta": 1e4, "original_max_position_embeddings": 8, "rope_scaling": keys});
        keys["rope_scaling"]["type"] = kind.into();
        config("phi3", keys)
    };
    let model = ModelConfig { family: Family::Phi3, ..lists(8.0, &short) };
    for kind in ["longrope", "su", "yarn"] {
        equal(&phi3(kind), &model);
    }
    refused(&phi3("linear"), &model, &["`rope_scaling` is {"]);
    // A Llama rotates whole heads, whatever is written.
    let half = rotating(llama(), 2);
    assert_ne!(faults(&config("llama", json!({"partial_rotary_factor": 0.5})), &half, &[]), [""; 0]);
}

#[test]
fn windows_and_experts_of_some_layers_are_no_ones_of_all() {
    let window = ModelConfig { qkv_bias: true, ..windowed(llama(), Some(4)) };
    let qwen = |border: u64| {
        config("qwen2", json!({"use_sliding_window": true, "sliding_window": 4, "max_window_layers": border}))
    };
    equal(&qwen(0), &window);
    let from = |first| {
        window.clone().with_each_layer(|number, layer| layer.sliding_window = (number >= first).then_some(4))
    };
    for first in 0..3 {
        equal(&qwen(first as u64), &from(first));
    }
    let line = "`layer_types` is [\"full_attention\",\"sliding_attention\",\"sliding_attention\"] by default in `qwen2`, and this \
                run has none; write `layer_types: [\"full_attention\",\"sliding_attention\",\"sliding_attention\"]` in";
    refused(&qwen(1), &window, &[line]);
    let none = "`layer_types` is none by default in `qwen2`, and this run has [\"full_attention\",\"sliding_attention\",";
    refused(&qwen(0), &from(1), &[none]);
    let types = |kind: &str| {
        config(
            "qwen2",
            json!({"use_sliding_window": true, "sliding_window": 4, "layer_types": [kind, kind, kind]}),
        )
    };
    equal(&types("sliding_attention"), &window);
    refused(&types("chunked_attention"), &window, &["`layer_types` is \"chunked_attention\" in some layers"]);
    refused(
        &types("full_attention"),
        &window,
        &["`sliding_window` is none in `qwen2`, and this run has 4; remove `sliding_window`"],
    );
    let off = config(
        "qwen2",
        json!({"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    );
    let whole = ModelConfig { qkv_bias: true, ..llama() };
    let linear =
        config("qwen2", json!({"layer_types": ["linear_attention", "full_attention", "full_attention"]}));
    refused(&linear, &whole, &["`layer_types` is \"linear_attention\" in some layers"]);
    refused(&off, &whole, &["`sliding_window` is off, though `layer_types` lists `sliding_attention`"]);
    let experts = ModelConfig { qk_norm: true, mixture: Some(mixture()), ..llama() };
    let qwen3 = |keys: Value| {
        let mut config = config(
            "qwen3_moe",
            json!({"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 5, "norm_topk_prob": true}),
        );
        keys.as_object().into_iter().flatten().for_each(|(key, value)| config[key] = value.clone());
        config
    };
    // The width of dense layers decides nothing where there are no dense layers.
    equal(&qwen3(json!({"intermediate_size": 999})), &experts);
    refused(
        &qwen3(json!({"num_experts_per_tok": 3})),
        &experts,
        &["`num_experts_per_tok` is 3 in `qwen3_moe`, and this run has 2"],
    );
    refused(
        &qwen3(json!({"decoder_sparse_step": 2})),
        &experts,
        &["`decoder_sparse_step` is [0,2] in `qwen3_moe`, and this run has 0, which"],
    );
    let found = faults(&qwen3(json!({})), &ModelConfig { mixture: None, ..experts.clone() }, &[]);
    assert!(
        found.iter().any(|line| line.starts_with("`num_experts` is 6 in `qwen3_moe`, and this run has none")),
        "{found:?}"
    );
    refused(
        &config("qwen3", json!({})),
        &experts,
        &["`expert_num` is none always in `qwen3`, and this run has 6; remove `expert_num`"],
    );
}

/// Granite's factors, which HyperCLOVA X has too, but for the logits': it multiplies by the reciprocal.
#[test]
fn factors_are_those_of_the_file() {
    let granite = |keys: Value| config("granite", keys);
    equal(&granite(json!({"attention_multiplier": 0.5})), &llama());
    refused(
        &granite(json!({"attention_multiplier": 0.3})),
        &llama(),
        &[
            "`attention_multiplier` is 0.3 in `granite`, and this run has 0.5; write `attention_multiplier: 0.3` in",
        ],
    );
    let factors = Factors {
        embedding: Some(12.0),
        residual: Some(0.22),
        scores: Some(0.3),
        logits_divisor: Some(8.0),
        ..Factors::default()
    };
    let scaled = ModelConfig { factors, ..llama() };
    let all = json!({"attention_multiplier": 0.3, "embedding_multiplier": 12, "residual_multiplier": 0.22, "logits_scaling": 8});
    equal(&granite(all.clone()), &scaled);
    for (key, is) in [
        ("attention_multiplier", "1.0"),
        ("embedding_multiplier", "none"),
        ("residual_multiplier", "none"),
        ("logits_scaling", "none"),
    ] {
        let mut others = all.clone();
        others.as_object_mut().expect("an object").remove(key);
        refused(&granite(others), &scaled, &[&format!("`{key}` is {is} by default in `granite`")]);
    }
    let of_llama = ["embedding_multiplier", "logits_scaling", "residual_multiplier"]
        .map(|key| format!("`{key}` is none always in `llama`"));
    let [embedding, logits, residual] = of_llama.each_ref().map(String::as_str);
    let found = [
        "`attention_multiplier` is 0.5 always in `llama`, and this run has 0.3",
        embedding,
        logits,
        residual,
    ];
    refused(&config("llama", json!({})), &scaled, &found);
    let hyperclovax = |logits: f64| {
        let mut config = config("hyperclovax", all.clone());
        (config["use_post_norm"], config["logits_scaling"]) = (false.into(), logits.into());
        config
    };
    equal(&hyperclovax(0.125), &scaled);
    refused(
        &hyperclovax(8.0),
        &scaled,
        &["`logits_scaling` is 0.125 in `hyperclovax`, and this run has 8.0"],
    );
    equal(&config("hyperclovax", json!({"use_post_norm": false})), &llama());
    let line = "`use_post_norm` is both by default in `hyperclovax`, and this run has none; write `norm_placement: both` in";
    refused(&config("hyperclovax", json!({})), &llama(), &[line]);
    let both = ModelConfig { norm_placement: NormPlacement::Both, ..scaled };
    let mut hyperclovax = hyperclovax(0.125);
    hyperclovax["use_post_norm"] = true.into();
    equal(&hyperclovax, &both);
}

/// Norms, activation and factor of Gemma; its first files say `gelu`.
#[test]
fn a_gemma_is_a_llama_with_other_parts() {
    let activation = Activation::Gated(Gate::Gelu(Gelu::Tanh));
    let factors = Factors { embedding: Some(4.0), ..Factors::default() };
    let model = ModelConfig { zero_centered_norms: true, activation, factors, ..llama() };
    let gemma = |keys: Value| {
        let mut config = config("gemma", json!({"tie_word_embeddings": false}));
        keys.as_object().into_iter().flatten().for_each(|(key, value)| config[key] = value.clone());
        config
    };
    equal(&gemma(json!({})), &model);
    equal(&gemma(json!({"hidden_act": "gelu", "use_bidirectional_attention": false})), &model);
    refused(&gemma(json!({"hidden_act": "silu"})), &model, &["`hidden_act` is silu in `gemma`"]);
    refused(
        &gemma(json!({"use_bidirectional_attention": true})),
        &model,
        &["`use_bidirectional_attention: True` is"],
    );
    let starts = [
        "`embedding_multiplier` is 4.0 always in `gemma`, and this run has none",
        "`hidden_act` is gelu_new by default in",
        "`layernorm_zero_centered_gamma` is True always in `gemma`",
    ];
    refused(&gemma(json!({})), &llama(), &starts);
}

/// Gemma 2, and Gemma 3, whose layers with a window rotate by a base of their own and whose scores have no cap, whatever
/// its files say.
#[test]
fn gemma_2_and_3_have_norms_on_both_sides() {
    let factors = Factors { embedding: Some(4.0), scores: Some(0.125), ..Factors::default() };
    let gemma = ModelConfig {
        zero_centered_norms: true,
        norm_placement: NormPlacement::Both,
        activation: Activation::Gated(Gate::Gelu(Gelu::Tanh)),
        factors,
        logit_cap: Some(3.0),
        ..llama()
    };
    let windows = |gemma: &ModelConfig, full: usize, theta: f64| {
        gemma.clone().with_each_layer(|number, layer| {
            layer.sliding_window = (number != full).then_some(4);
            layer.rope_theta = if number != full { theta } else { layer.rope_theta };
        })
    };
    let second = windows(&ModelConfig { score_cap: Some(1.5), ..gemma.clone() }, 1, 1e4);
    let keys = |kind: &str, more: Value| {
        let mut config = config(
            kind,
            json!({"tie_word_embeddings": false, "query_pre_attn_scalar": 64,
            "sliding_window": 4, "final_logit_softcapping": 3.0}),
        );
        more.as_object().into_iter().flatten().for_each(|(key, value)| config[key] = value.clone());
        config
    };
    let gemma2 = |more: Value| keys("gemma2", more);
    equal(&gemma2(json!({"attn_logit_softcapping": 1.5, "hidden_act": "silu"})), &second);
    equal(
        &gemma2(json!({"attn_logit_softcapping": null})),
        &ModelConfig { score_cap: None, ..second.clone() },
    );
    let start = "`attn_logit_softcapping` is 50 by default in `gemma2`, and this run has 1.5";
    refused(&gemma2(json!({})), &second, &[start]);
    let other = gemma2(
        json!({"attn_logit_softcapping": 1.5, "query_pre_attn_scalar": 16, "hidden_activation": "silu"}),
    );
    refused(
        &other,
        &second,
        &["`query_pre_attn_scalar` is 0.25 in `gemma2`", "`hidden_activation` is silu in"],
    );
    // Of what has no root or reciprocal the file's own value is shown.
    for (scalar, shown) in [(json!("wide"), "wide"), (json!(0), "0.0"), (json!(-64), "-64.0")] {
        let refused_as = format!("`query_pre_attn_scalar` is {shown} in `gemma2`, and this run has 0.125");
        let file = gemma2(json!({"attn_logit_softcapping": 1.5, "query_pre_attn_scalar": scalar}));
        refused(&file, &second, &[&refused_as]);
    }
    let third = windows(&ModelConfig { qk_norm: true, ..gemma }, 2, 70.0);
    let gemma3 = |more: Value| keys("gemma3_text", more);
    let older = json!({"rope_theta": 1e4, "rope_local_base_freq": 70.0, "sliding_window_pattern": 3,
        "attn_logit_softcapping": 1.5});
    equal(&gemma3(older), &third);
    let kinds = json!({"full_attention": {"rope_theta": 1e4}, "sliding_attention": {"rope_theta": 70.0}});
    let types = json!(["sliding_attention", "sliding_attention", "full_attention"]);
    equal(&gemma3(json!({"rope_parameters": kinds, "layer_types": types})), &third);
}

/// Hunyuan's mixtures have numbers of experts layer by layer, which have to be the same.
#[test]
fn hunyuan_lists_numbers_of_experts() {
    let route = RouterConfig { experts: 4, ..mixture().route };
    let shared = Some(SharedExpert { intermediate_size: 24, is_gated: false });
    let experts = MixtureConfig { intermediate_size: 24, route, shared, ..mixture() };
    let model =
        ModelConfig { qk_norm: true, qk_norm_kind: QkNorm::RotatedHeads, mixture: Some(experts), ..llama() };
    let hunyuan = |keys: Value| {
        let mut config = config("hunyuan_v1_moe", json!({"num_experts": 4}));
        keys.as_object().into_iter().flatten().for_each(|(key, value)| config[key] = value.clone());
        config
    };
    for chosen in [json!(2), json!([2, 2, 2]), json!([2, 2, 2, 2])] {
        equal(&hunyuan(json!({"moe_topk": chosen})), &model);
    }
    equal(&hunyuan(json!({"num_experts": [4, 4, 4], "moe_topk": 2})), &model);
    for (chosen, shown) in [(json!([2, 1, 2]), "[2,1,2]"), (json!([2, 2]), "[2,2]"), (json!([]), "[]")] {
        let line = format!("`moe_topk` is {shown} in `hunyuan_v1_moe`, and this run has 2");
        refused(&hunyuan(json!({"moe_topk": chosen})), &model, &[&line]);
    }
    let single = hunyuan(json!({"moe_topk": [1, 1, 1]}));
    let lines = faults(&single, &model, &[]);
    assert!(lines.iter().any(|line| line.contains("true of a single gate")), "{lines:?}");
}

/// MiniMax-M2 says what rotates by a number where it gives no share.
#[test]
fn minimax_rotates_a_number_of_dimensions() {
    let route = RouterConfig { score: Score::Sigmoid, experts: 4, ..mixture().route };
    let experts = MixtureConfig { intermediate_size: 24, route, has_bias: true, ..mixture() };
    let model = |rotary_dim: usize| {
        let kind = QkNorm::AllHeads;
        let model =
            ModelConfig { qk_norm: true, qk_norm_kind: kind, mixture: Some(experts.clone()), ..llama() };
        model.with_layers(|layer| (layer.rotary_dim, layer.rope_theta) = (rotary_dim, 5e6))
    };
    let minimax = |keys: Value| {
        let mut config = config("minimax_m2", json!({"num_local_experts": 4, "num_experts_per_tok": 2}));
        keys.as_object().into_iter().flatten().for_each(|(key, value)| config[key] = value.clone());
        config
    };
    equal(&minimax(json!({})), &model(4));
    equal(&minimax(json!({"rotary_dim": 2})), &model(2));
    equal(&minimax(json!({"rotary_dim": 4, "partial_rotary_factor": 0.5})), &model(2));
    let inner = json!({"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5});
    equal(&minimax(json!({"rotary_dim": 4, "rope_parameters": inner})), &model(2));
    // Other classes have no such key.
    refused(
        &config("llama", json!({"rotary_dim": 2})),
        &llama(),
        &["`rotary_dim: 2` is not a key of `llama`"],
    );
}

/// OLMo 3: OLMo 2 with windows in all layers but every fourth, whose rotation neither reads `rope_theta` nor is scaled.
#[test]
fn olmo_3_rotates_otherwise_in_windows() {
    let olmo = ModelConfig {
        norm_placement: NormPlacement::After,
        qk_norm: true,
        qk_norm_kind: QkNorm::AllHeads,
        num_layers: 4,
        ..llama()
    };
    let olmo3 = |keys: Value| {
        let mut config = config("olmo3", json!({"num_hidden_layers": 4, "sliding_window": 4}));
        keys.as_object().into_iter().flatten().for_each(|(key, value)| config[key] = value.clone());
        config
    };
    let yarn = Yarn {
        factor: 4.0,
        original: 8.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        mscale: 1.0,
        mscale_all_dim: 0.0,
        is_truncated: true,
    };
    let model = |base: f64, scaling: RopeScaling| {
        let all = olmo.clone().with_layers(|layer| (layer.rope_theta, layer.rope_scaling) = (base, scaling));
        all.with_each_layer(|number, layer| {
            if number < 3 {
                (layer.rope_theta, layer.rope_scaling) = (5e5, RopeScaling::None);
                layer.sliding_window = Some(4);
            }
        })
    };
    let scaling = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8});
    equal(&olmo3(json!({})), &model(5e5, RopeScaling::None));
    equal(&olmo3(json!({"rope_scaling": scaling})), &model(5e5, RopeScaling::Yarn(yarn)));
    equal(&olmo3(json!({"rope_theta": 700.0})), &model(700.0, RopeScaling::None));
    let listed = json!({"layer_types": vec!["full_attention"; 4], "rope_theta": 700.0});
    equal(&olmo3(listed), &olmo.clone().with_layers(|layer| layer.rope_theta = 700.0));
    refused(
        &olmo3(json!({"sliding_window_pattern": 2})),
        &model(5e5, RopeScaling::None),
        &["`sliding_window_pattern: 2` is not a key of `olmo3`"],
    );
}

/// Numbers of layers without a window are written in two ways.
#[test]
fn gemma_4_has_other_heads_in_layers_without_a_window() {
    let factors = Factors { embedding: Some(4.0), scores: Some(1.0), ..Factors::default() };
    let gemma = |values: Values, kv_heads: usize| {
        let activation = Activation::Gated(Gate::Gelu(Gelu::Tanh));
        let (norm_placement, llama) = (NormPlacement::Both, llama());
        let model = ModelConfig {
            norm_placement,
            activation,
            factors,
            qk_norm: true,
            has_layer_scalars: true,
            ..llama
        };
        model.with_each_layer(|number, layer| {
            (layer.sliding_window, layer.values) = (Some(4), Values::Normalised);
            if number == 2 {
                (layer.sliding_window, layer.values, layer.num_kv_heads) = (None, values, kv_heads);
                (layer.head_dim, layer.rotary_dim, layer.rope_theta) = (8, 8, 1e6);
                layer.rope_scaling = RopeScaling::Proportional { share: 0.25 };
            }
        })
    };
    let gemma4 = |more: Value| {
        let keys =
            json!({"tie_word_embeddings": false, "sliding_window": 4, "hidden_size_per_layer_input": 0});
        let mut config = config("gemma4_text", keys);
        more.as_object().into_iter().flatten().for_each(|(key, value)| config[key] = value.clone());
        config
    };
    let (own, shared) = (gemma(Values::Normalised, 2), gemma(Values::OfKeys, 1));
    equal(&gemma4(json!({"global_head_dim": 8, "num_global_key_value_heads": 1})), &own);
    let keys = json!({"global_head_dim": 8, "num_global_key_value_heads": 1, "attention_k_eq_v": true});
    equal(&gemma4(keys), &shared);
    let by_layer = json!({"2": {"head_dim": 8, "num_key_value_heads": 1}});
    equal(&gemma4(json!({"per_layer_config": by_layer, "attention_k_eq_v": true})), &shared);
    // The last layer has no window, whatever is listed.
    let types = json!(["sliding_attention", "sliding_attention", "sliding_attention"]);
    equal(
        &gemma4(json!({"global_head_dim": 8, "layer_types": types, "use_bidirectional_attention": "vision"})),
        &own,
    );
    for (keys, line) in [
        (json!({}), "`global_head_dim` is 512 by default in `gemma4_text`, and this run has 8"),
        (json!({"global_head_dim": 8, "attention_k_eq_v": true}), "`attention_k_eq_v` is True in"),
        (
            json!({"per_layer_config": {"1": {"head_dim": 8}, "2": {"head_dim": 8}}}),
            "`per_layer_config` is another",
        ),
        (
            json!({"per_layer_config": {"2": {"head_dim": 8, "rms_norm_eps": 1.0}}}),
            "`per_layer_config` is other",
        ),
        (
            json!({"global_head_dim": 8, "hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 32}),
            "`hidden_size_per_layer_input` is 4 in",
        ),
        (json!({"global_head_dim": 8, "num_kv_shared_layers": 1}), "`num_kv_shared_layers` is 1 in"),
        (json!({"global_head_dim": 8, "enable_moe_block": true}), "`enable_moe_block` is True without"),
        (
            json!({"global_head_dim": 8, "use_bidirectional_attention": "all"}),
            "`use_bidirectional_attention` is all in",
        ),
    ] {
        refused(&gemma4(keys), &own, &[line]);
    }
    // Experts are there where a switch says so, and dense networks stay beside them.
    let experts = |is_on: bool, more: Value| {
        let mut config = gemma4(json!({"global_head_dim": 8, "enable_moe_block": is_on, "num_experts": 6,
            "top_k_experts": 2, "moe_intermediate_size": 12}));
        more.as_object().into_iter().flatten().for_each(|(key, value)| config[key] = value.clone());
        config
    };
    let mixture = MixtureConfig { is_beside_dense: true, intermediate_size: 12, ..mixture() };
    let mixed = ModelConfig { mixture: Some(mixture), ..own.clone() };
    equal(&experts(false, json!({})), &own);
    equal(&experts(true, json!({})), &mixed);
    refused(&experts(true, json!({"top_k_experts": 3})), &mixed, &["`top_k_experts` is 3 in"]);
    refused(&experts(true, json!({"intermediate_size": 20})), &mixed, &["`intermediate_size` is 20 in"]);
    // Embeddings of each layer are of all tokens.
    let inputs = ModelConfig { per_layer_width: Some(4), ..own.clone() };
    let with_inputs = |rows: usize| {
        gemma4(
            json!({"global_head_dim": 8, "hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": rows}),
        )
    };
    equal(&with_inputs(32), &inputs);
    refused(&with_inputs(64), &inputs, &["`vocab_size_per_layer_input` is 64 in"]);
    refused(&gemma4(json!({"global_head_dim": 8})), &inputs, &["`hidden_size_per_layer_input` is none in"]);
    // The last layer reads the second one's keys and values. The width of others says nothing.
    let readers = |width: usize| {
        gemma(Values::Normalised, 2).with_each_layer(|number, layer| {
            let LayerConfig { head_dim, rotary_dim, rope_theta, rope_scaling, .. } =
                *gemma(Values::Normalised, 2).layer(2);
            if number > 0 {
                *layer = LayerConfig {
                    head_dim,
                    rotary_dim,
                    rope_theta,
                    rope_scaling,
                    sliding_window: None,
                    kv_source: (number == 2).then_some(1),
                    intermediate_size: if number == 2 { width } else { layer.intermediate_size },
                    ..*layer
                };
            }
        })
    };
    let types = json!(["sliding_attention", "full_attention", "full_attention"]);
    let keys = |shared: usize, is_wide: bool| {
        gemma4(json!({"global_head_dim": 8, "layer_types": types, "num_kv_shared_layers": shared,
            "use_double_wide_mlp": is_wide}))
    };
    let width = own.layer.intermediate_size;
    equal(&keys(1, false), &readers(width));
    equal(&keys(1, true), &readers(2 * width));
    refused(&keys(1, true), &readers(width), &["`use_double_wide_mlp` is True in"]);
    refused(&keys(0, true), &readers(width), &["`num_kv_shared_layers` is none in"]);
}

#[test]
fn queries_may_grow_with_their_position() {
    let yarn = RopeScaling::Yarn(Yarn {
        factor: 4.0,
        original: 8.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        mscale: 1.0,
        mscale_all_dim: 1.0,
        is_truncated: true,
    });
    let model = |beta: Option<f64>| {
        llama().with_layers(|layer| {
            layer.rope_scaling = yarn;
            layer.query_scaling = beta.map(|beta| QueryScaling { beta, original: 8.0 });
        })
    };
    let ministral3 = |more: Value| {
        let mut rope = json!({"type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 8,
            "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3, "max_position_embeddings": 16});
        more.as_object().into_iter().flatten().for_each(|(key, value)| rope[key] = value.clone());
        config("ministral3", json!({"rope_parameters": rope}))
    };
    equal(&ministral3(json!({})), &model(Some(0.3)));
    equal(&ministral3(json!({"llama_4_scaling_beta": 0.0})), &model(None));
    for other in [Some(0.2), None] {
        refused(&ministral3(json!({})), &model(other), &["`rope_parameters` is {"]);
    }
    // What the class fails with, and a type for which there is no key.
    for unsupported in
        [json!({"llama_4_scaling_beta": null}), json!({"type": "linear"}), json!({"type": "default"})]
    {
        refused(&ministral3(unsupported), &model(Some(0.3)), &["`rope_parameters` is {"]);
    }
    // The parameters of the class, which it takes for a null, too.
    for keys in [json!({}), json!({"rope_parameters": null})] {
        let found = faults(&config("ministral3", keys), &llama(), &[]);
        assert!(
            found.len() == 2 && found.iter().any(|line| line.contains("\"llama_4_scaling_beta\":0.1")),
            "{found:?}"
        );
    }
    // Other classes have no such factor.
    refused(
        &config("llama", json!({"rope_theta": 1e4})),
        &model(Some(0.3)),
        &["`rope_scaling` is none by default"],
    );
}

#[test]
fn layers_may_have_windows_and_rotation_of_their_own() {
    let smollm3 = |keys: Value| {
        let mut config = config("smollm3", json!({"tie_word_embeddings": false, "rope_theta": 1e4}));
        keys.as_object().into_iter().flatten().for_each(|(key, value)| config[key] = value.clone());
        config
    };
    let middle = || llama().with_each_layer(|number, layer| layer.rotates = number != 1);
    equal(&smollm3(json!({})), &llama());
    equal(&smollm3(json!({"no_rope_layer_interval": 2})), &middle());
    equal(&smollm3(json!({"no_rope_layers": [1, 0, 1], "no_rope_layer_interval": 3})), &middle());
    let line = "`no_rope_layers` is [1,0] by default in `smollm3`, and this run has none; write `no_rope_layers: [1,0]` in";
    refused(&smollm3(json!({"no_rope_layer_interval": 2})), &llama(), &[line]);
    refused(
        &smollm3(json!({"no_rope_layers": [1, 0]})),
        &middle(),
        &["`no_rope_layers` is 2 entries of 3 layers"],
    );
    refused(&config("llama", json!({})), &middle(), &["`no_rope_layers` is none always in `llama`"]);
    // Where nothing is listed, the layers that do not rotate have the window.
    let windows =
        smollm3(json!({"no_rope_layer_interval": 2, "use_sliding_window": true, "sliding_window": 4}));
    let windowed =
        middle().with_each_layer(|number, layer| layer.sliding_window = (number == 1).then_some(4));
    equal(&windows, &windowed);
    let cwm = |keys: Value| {
        let rope = json!({"rope_type": "default", "rope_theta": 1e4});
        let mut config = config("cwm", json!({"rope_parameters": rope, "sliding_window": 4}));
        keys.as_object().into_iter().flatten().for_each(|(key, value)| config[key] = value.clone());
        config
    };
    let later = llama().with_each_layer(|number, layer| layer.sliding_window = (number > 0).then_some(4));
    equal(&cwm(json!({})), &later);
    refused(&cwm(json!({})), &llama(), &["`layer_types` is", "`sliding_window` is 4"]);
    let own_theta = later.clone().with_layers(|layer| {
        layer.rope_theta = if layer.sliding_window.is_some() { 50.0 } else { layer.rope_theta };
    });
    refused(
        &cwm(json!({})),
        &own_theta,
        &["`sliding_theta` is none always in `cwm`, and this run has 50.0; remove"],
    );
    let none = "`sliding_window` is none, though `layer_types` lists `sliding_attention`";
    refused(&cwm(json!({"sliding_window": null})), &llama(), &[none]);
    let listed = |last: &str| cwm(json!({"layer_types": ["full_attention", "sliding_attention", last]}));
    equal(&listed("sliding_attention"), &later);
    refused(
        &listed("full_attention"),
        &later,
        &["`layer_types` is [\"full_attention\",\"sliding_attention\"] in `cwm`"],
    );
}

/// A fact under another name would be compared with nothing.
#[test]
fn each_fact_of_the_table_is_one_of_ours() {
    let models = exported::exported();
    let ours: std::collections::BTreeSet<_> =
        models.iter().flat_map(|model| ours::facts(model).into_keys()).collect();
    for class in classes::all() {
        let unknown = class.facts.keys().find(|fact| !ours.contains(fact.as_str()));
        assert_eq!(unknown, None, "{}", class.name);
        // `"=true"` would be a word: a value is written as it is.
        let words = class.facts.values().filter_map(|said| said.as_str()?.strip_prefix('='));
        let value = words.into_iter().find(|word| serde_json::from_str::<Value>(word).is_ok());
        assert_eq!(value, None, "{}", class.name);
    }
}

#[test]
fn a_file_that_is_no_configuration_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    check(folder.path(), &llama(), &[]).expect("nothing to check");
    std::fs::write(folder.path().join(FILE), "{\"model_type\": \"lla").unwrap();
    let found = check(folder.path(), &llama(), &[]).unwrap_err().to_string();
    assert!(
        found.contains("not a JSON object") && found.ends_with("fetch it again, or remove it"),
        "{found}"
    );
}

/// A class whose layers with a window rotate by parameters of their own, as in Gemma 3's files, newer and older.
#[test]
fn kinds_of_layers_may_rotate_by_their_own_parameters() {
    let mut class = classes::named("cwm").clone();
    let own = json!({"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window": 4,
        "rope_parameters": {"full_attention": {}, "sliding_attention": {}}});
    class.defaults.extend(own.as_object().cloned().expect("an object"));
    let class: &'static classes::Class = Box::leak(Box::new(class));
    let lines = |keys: Value, model: &ModelConfig| -> Vec<String> {
        let written = config("cwm", keys);
        let reading = Reading { class, written: written.as_object().expect("an object") };
        differences(&reading, model).into_iter().map(|difference| difference.message).collect()
    };
    let model = |global: f64, local: f64, scaling: RopeScaling| {
        let all = llama().with_layers(|layer| (layer.rope_theta, layer.rope_scaling) = (global, scaling));
        all.with_each_layer(|number, layer| {
            if number > 0 {
                (layer.rope_theta, layer.rope_scaling) = (local, RopeScaling::None);
                layer.sliding_window = Some(4);
            }
        })
    };
    let none: [String; 0] = [];
    let (plain, linear) = (model(1e6, 1e4, RopeScaling::None), RopeScaling::Linear { factor: 8.0 });
    assert_eq!(lines(json!({}), &plain), none);
    let older = json!({"rope_theta": 7.0, "rope_local_base_freq": 5.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}});
    assert_eq!(lines(older, &model(7.0, 5.0, linear)), none);
    let kinds = |sliding: Value| {
        json!({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 7.0},
            "sliding_attention": sliding}})
    };
    assert_eq!(
        lines(kinds(json!({"rope_theta": 5.0, "rope_type": "default"})), &model(7.0, 5.0, linear)),
        none
    );
    assert_eq!(lines(kinds(json!(null)), &model(7.0, 1e4, linear)), none);
    // The same base in both, of which only one is scaled, and the same rotation.
    assert_eq!(lines(kinds(json!({"rope_theta": 7.0})), &model(7.0, 7.0, linear)), none);
    let alike = json!({"rope_type": "linear", "factor": 8.0, "rope_theta": 7.0});
    let of_all = model(7.0, 7.0, linear).with_layers(|layer| layer.rope_scaling = linear);
    assert_eq!(lines(kinds(alike), &of_all), none);
    let found = lines(json!({"rope_local_base_freq": 5.0}), &plain);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with(
            "`rope_local_base_freq` is 5.0 in `cwm`, and this run has 10000.0; write `sliding_theta: 5.0`"
        ),
        "{found:?}"
    );
    let scaled = lines(
        kinds(json!({"rope_type": "linear", "factor": 2.0, "rope_theta": 5.0})),
        &model(7.0, 5.0, linear),
    );
    assert!(scaled.len() == 1 && scaled[0].contains("in layers with a window"), "{scaled:?}");
    assert!(scaled[0].contains("which no key changes"), "{scaled:?}");
    // A window that hides nothing leaves the rotation of its layers.
    let wide = |window: usize| {
        plain.clone().with_layers(|layer| {
            layer.wide_window = layer.sliding_window.map(|_| window);
            layer.sliding_window = None;
        })
    };
    assert_eq!(lines(json!({"sliding_window": 4096}), &wide(4096)), none);
    assert_eq!(lines(json!({"sliding_window": 4096}), &llama()).len(), 4, "of windows and of both rotations");
}
