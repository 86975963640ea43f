//! `config.json`: a model's shape under Hugging Face's keys.
//!
//! The keys that a class reads are written by the rows of `classes.json`. There is no single class for all mixtures,
//! but their tensors have the same names, except Mixtral's. So the file of a mixture has its keys both under the names
//! of Qwen's classes and under those of DeepSeek's.

mod architecture;

pub(in crate::hugging_face) use architecture::{lacks, nearest};

use super::config_json::classes::{self, CONVOLUTION, Class, FULL, LINEAR, SLIDING};
use super::config_json::{ACTIVATIONS, Windows, facts, has_wide_readers};
use crate::model::config::{
    Family, GroupScore, LatentAttention, LayerConfig, MixtureConfig, ModelConfig, NormPlacement,
    ParallelResidual, Values,
};
use crate::ops::rope_scaling::{Llama3, LongRope, QueryScaling, RopeScaling, Yarn};
use serde_json::{Map, Value, json};

/// The content of `config.json` for `model`.
pub(crate) fn hugging_face_config(model: &ModelConfig) -> Value {
    let class = nearest(model);
    let mut config = match model.family {
        Family::Gpt2 | Family::BigCode | Family::Pangu => gpt2_keys(model),
        Family::Bloom => bloom_keys(model),
        Family::Opt => opt_keys(model),
        _ => llama_keys(model, class),
    };
    config.extend(model.latent.iter().flat_map(|latent| latent_keys(model, latent)));
    config.extend(model.mixture.iter().flat_map(|mixture| mixture_keys(model, mixture)));
    let experts_alone = [
        "mixtral",
        "olmoe",
        "granitemoe",
        "granitemoeshared",
        "hunyuan_v1_moe",
        "minimax_m2",
        "gpt_oss",
        "phimoe",
    ];
    if let (Some(mixture), true) = (&model.mixture, experts_alone.contains(&class.name.as_str())) {
        config.insert("intermediate_size".into(), mixture.intermediate_size.into());
        if let (Some(shared), "granitemoeshared") = (mixture.shared, class.name.as_str()) {
            config.insert("shared_intermediate_size".into(), shared.intermediate_size.into());
        }
        // transformers takes the other of these keys for another name of it.
        let [key, other] = match class.name.as_str() {
            "olmoe" | "hunyuan_v1_moe" => ["num_experts", "num_local_experts"],
            _ => ["num_local_experts", "num_experts"],
        };
        config.insert(key.into(), mixture.experts().into());
        config.remove(other);
        if class.defaults.contains_key("moe_topk") {
            config.insert("moe_topk".into(), mixture.chosen().into());
            config.remove("num_experts_per_tok");
        }
    }
    config.extend(model.multi_token.map(|ahead| ("num_nextn_predict_layers".into(), ahead.depth.into())));
    let named = json!({"architectures": [class.architecture], "model_type": class.name, "torch_dtype": "float32",
        "initializer_range": model.init_std});
    config.extend(entries(named));
    config.extend(note(model).map(|note| ("gristmill_note".into(), note.into())));
    config.into()
}

/// The keys by which files of the class or part `name` say what `model` computes. If a key has several names, the name
/// is used that the class has a default for.
fn keys_of_class(name: &str, model: &ModelConfig) -> Map<String, Value> {
    let (class, facts) = (classes::named(name), facts(model));
    let said = class.facts.iter().filter_map(|(fact, said)| {
        let names = classes::keys_of(said)?;
        let key =
            names.split('|').find(|key| class.defaults.contains_key(*key)).or(names.split('|').next())?;
        let value = facts.get(fact.as_str()).cloned().unwrap_or_default();
        let value = classes::value_of_keys(said, value);
        let theirs = ACTIVATIONS.iter().find(|(_, ours)| fact == "hidden_act" && value == *ours);
        Some((key.to_string(), theirs.map_or(value, |(theirs, _)| (*theirs).into())))
    });
    said.collect()
}

fn entries(object: Value) -> Map<String, Value> {
    match object {
        Value::Object(entries) => entries,
        _ => Map::new(),
    }
}

/// The end of a note whose architecture computes the same, but is not in `transformers`.
const PUBLISHED: &str = "whose code is published with its weights";

/// Whether the architecture that a `config.json` with this note names computes something else than the model.
pub(super) fn lacks_something(note: &str) -> bool {
    !note.ends_with(PUBLISHED)
}

/// What the architecture that `config.json` names cannot compute of `model`; `None` if it computes the same.
pub(crate) fn note(model: &ModelConfig) -> Option<String> {
    let class = nearest(model);
    let lacks = architecture::lacks(class, model);
    let (what, name) = (lacks.join(", no "), &class.architecture);
    match (class.is_published_code, lacks.is_empty()) {
        (false, true) => None,
        (false, false) => Some(format!("{name} is the nearest architecture, but it has no {what}")),
        (true, true) => Some(format!("transformers has no {name}, {PUBLISHED}")),
        (true, false) => Some(format!("transformers has no {name}, {PUBLISHED} and has no {what}")),
    }
}

/// The keys of `BloomConfig`.
fn bloom_keys(model: &ModelConfig) -> Map<String, Value> {
    let mut config = keys_of_class("bloom", model);
    config.extend(entries(json!({
        "seq_length": model.seq_length,
        "hidden_dropout": model.hidden_dropout,
        "attention_dropout": model.attention_dropout,
    })));
    config
}

/// The keys of `OPTConfig`.
fn opt_keys(model: &ModelConfig) -> Map<String, Value> {
    let mut config = keys_of_class("opt", model);
    config.extend(entries(json!({
        "do_layer_norm_before": model.norm_placement == NormPlacement::Before,
        "word_embed_proj_dim": model.embedding_width.unwrap_or(model.hidden_size),
        "dropout": model.hidden_dropout,
        "attention_dropout": model.attention_dropout,
    })));
    config
}

/// The keys of `GPT2Config`.
fn gpt2_keys(model: &ModelConfig) -> Map<String, Value> {
    let mut config = keys_of_class("gpt2 facts", model);
    config.extend(entries(json!({
        "n_ctx": model.max_positions,
        "resid_pdrop": model.hidden_dropout,
        "embd_pdrop": model.embedding_dropout,
        "attn_pdrop": model.attention_dropout,
    })));
    if model.family == Family::BigCode {
        config.insert("multi_query".into(), true.into());
    }
    config
}

/// The keys of `LlamaConfig`, which are also the keys of Mistral, Qwen and GLM, and the further keys that these need.
fn llama_keys(model: &ModelConfig, class: &Class) -> Map<String, Value> {
    let layer = &model.layer;
    let layers: Vec<&LayerConfig> = (0..model.num_layers).map(|number| model.layer(number)).collect();
    // Where windows say which layers rotate, one that hides nothing counts too.
    let window_of = |layer: &&LayerConfig| match class.rotates_in_windows {
        true => layer.window(),
        false => model.published_window(layer),
    };
    let windows: Vec<_> = layers.iter().map(window_of).collect();
    let window = windows.iter().copied().find(Option::is_some).flatten();
    let types =
        windows.iter().map(|window| if window.is_some() { "sliding_attention" } else { "full_attention" });
    let types: Value = types.collect();
    // Hugging Face cannot scale the base by a constant, but that is the same as another base.
    let rope_theta = match layer.rope_scaling {
        RopeScaling::Ntk { factor } => layer.rope_theta * factor,
        _ => layer.rope_theta,
    };
    let mut scaling = hugging_face_scaling(&layer.rope_scaling, layer.query_scaling.as_ref());
    if scaling.is_null() && class.defaults.contains_key("rope_parameters") {
        // Nothing would stand for the scaling of the class.
        scaling = json!({ "rope_type": "default" });
    }
    if let (RopeScaling::LongRope(long), "phimoe") = (&layer.rope_scaling, class.name.as_str()) {
        ["short_mscale", "long_mscale"].iter().for_each(|key| scaling[*key] = long.magnitude.into());
    }
    let mut config = keys_of_class("llama", model);
    config.extend(entries(json!({
        "max_position_embeddings": model.max_positions,
        "rope_theta": rope_theta,
        "rope_scaling": scaling,
        "partial_rotary_factor": rotary_factor(layer),
        "mlp_bias": model.gate_up_bias && model.down_bias,
        "attention_dropout": model.attention_dropout,
        "sliding_window": window,
        "use_sliding_window": window.is_some(),
    })));
    let name = class.name.as_str();
    let more = match name {
        // Those that the model does not have are 1 in the class.
        "granite" | "granitemoe" | "granitemoeshared" => {
            let factors = keys_of_class("factors", model);
            factors.into_iter().filter(|(_, factor)| !factor.is_null()).collect::<Map<_, _>>().into()
        }
        "glm4_moe" => json!({
            "use_qk_norm": model.qk_norm,
            "first_k_dense_replace": model.num_layers,
            "num_nextn_predict_layers": 0,
        }),
        "arcee" | "nemotron" | "starcoder2" | "jais2" | "stablelm" | "cohere" | "cohere2" | "gpt_neox"
        | "phi" | "phimoe" => own_keys(name, model),
        "qwen3_next" | "qwen3_5_text" | "qwen3_5_moe_text" => {
            let linear = |layer: &LayerConfig| if layer.linear().is_some() { LINEAR } else { FULL };
            let mut own = entries(own_keys(name, model));
            own.remove("hidden_act"); // which says the activation of the convolution, too
            own.insert("layer_types".into(), layers.iter().map(|layer| linear(layer)).collect());
            own.into()
        }
        "lfm2" | "lfm2_moe" => {
            let kind = |layer: &LayerConfig| if layer.convolution().is_some() { CONVOLUTION } else { FULL };
            let mut own = entries(own_keys(name, model));
            own.insert("layer_types".into(), layers.iter().map(|layer| kind(layer)).collect());
            if name == "lfm2" {
                own.insert("block_auto_adjust_ff_dim".into(), false.into()); // the width is the layer's own
            }
            own.into()
        }
        "ernie4_5_moe" => {
            let mut own = entries(own_keys(name, model));
            let mixture = model.mixture.as_ref();
            let shared = mixture.and_then(|mixture| Some((mixture.shared?, mixture.intermediate_size)));
            own.insert(
                "moe_num_shared_experts".into(),
                shared.map_or(0, |(shared, width)| shared.intermediate_size.div_ceil(width)).into(),
            );
            let first = mixture.map_or(0, |mixture| mixture.first_dense_layers);
            own.insert("moe_layer_start_index".into(), first.into());
            own.into()
        }
        "falcon" => falcon_keys(model),
        "olmo" | "olmoe" => json!({ "clip_qkv": model.clip_qkv }),
        // The default is a cap.
        "nanochat" => json!({ "final_logit_softcapping": model.logit_cap }),
        "mpt" => {
            let mut own = entries(own_keys(name, model));
            own.insert("max_seq_len".into(), model.max_positions.into());
            own.insert(
                "attn_config".into(),
                json!({
                    "alibi": true, "softmax_scale": model.factors.scores, "clip_qkv": model.clip_qkv,
                }),
            );
            own.into()
        }
        "gptj" => {
            let mut own = entries(own_keys(name, model));
            own.insert("rotary_dim".into(), layer.rotary_dim.into());
            own.into()
        }
        "hyperclovax" => {
            let mut own = keys_of_class(name, model);
            own.insert("use_post_norm".into(), true.into());
            own.into_iter().filter(|(_, value)| !value.is_null()).collect::<Map<_, _>>().into()
        }
        // The default is a token that small vocabularies do not have.
        "glm" | "glm4" | "helium" | "smollm3" | "ministral3" => json!({ "pad_token_id": null }),
        // The class needs a window, whether or not a layer has it.
        "gemma2" | "gemma3_text" => {
            let mut own = keys_of_class(name, model);
            own.insert("sliding_window".into(), window.unwrap_or(model.max_positions).into());
            own.insert("query_pre_attn_scalar".into(), (query_scalar(model).round() as u64).into());
            own.into()
        }
        "gemma4_text" => {
            let full = layers.iter().copied().find(|layer| layer.window().is_none()).unwrap_or(layer);
            let mut own = keys_of_class(name, model);
            own.extend(entries(json!({
                "sliding_window": window.unwrap_or(model.max_positions),
                "global_head_dim": full.head_dim,
                "num_global_key_value_heads": full.num_kv_heads,
                "attention_k_eq_v": full.values == Values::OfKeys,
                "hidden_size_per_layer_input": model.per_layer_width.unwrap_or(0),
                "vocab_size_per_layer_input": model.vocab_size,
                "num_kv_shared_layers": model.kv_readers(),
                "use_double_wide_mlp": has_wide_readers(model),
                "enable_moe_block": model.has_dense_beside_experts(),
            })));
            own.into()
        }
        // The default length is that of the first Phi-3.
        "phi3" => {
            let original = layer.rope_scaling.alike_up_to().unwrap_or(model.max_positions);
            json!({ "pad_token_id": null, "original_max_position_embeddings": original })
        }
        "ernie4_5" => json!({ "use_bias": model.qkv_bias }),
        // None of the last two is none.
        "minicpm3" => json!({
            "scale_emb": model.factors.embedding.unwrap_or(1.0),
            "scale_depth": model.factors.residual.map(|factor| factor * (model.num_layers as f64).sqrt()),
            "dim_model_base": model.factors.logits_divisor.map(|divisor| base_width(model, divisor).round() as u64),
        }),
        // The class needs a window, whether or not a layer has it, and takes no width of values for its own.
        "mimo_v2_flash" => {
            let has_window = |layer: &&LayerConfig| model.published_window(layer).is_some();
            let full = layers.iter().copied().find(|layer| !has_window(layer));
            let kv_heads = full.map_or(layer.num_kv_heads / 2, |full| full.num_kv_heads);
            let kind = |number| if model.mixture_of(number).is_some() { "sparse" } else { "dense" };
            json!({
                "num_key_value_heads": kv_heads,
                "v_head_dim": model.value_dim(layer),
                "attention_value_scale": model.factors.values,
                "sliding_window": window.unwrap_or(model.max_positions),
                "mlp_layer_types": (0..model.num_layers).map(kind).collect::<Vec<_>>(),
            })
        }
        // The class has no word for its gate, and needs a window, whether or not a layer has it.
        "gpt_oss" => json!({ "hidden_act": "silu", "sliding_window": window.unwrap_or(model.max_positions) }),
        // Without these the window would start in a later layer.
        "qwen2" | "qwen3" | "qwen2_moe" if window.is_some() => {
            json!({ "max_window_layers": 0, "layer_types": types })
        }
        _ => Value::Null,
    };
    config.extend(entries(more));
    // Unlike a rule of the class, a list holds of any layers.
    let needs_list = matches!(
        class.windows(),
        Windows::Unrotated
            | Windows::Pattern
            | Windows::OneOfTwo
            | Windows::FirstThreeOfFour
            | Windows::FiveOfSix
            | Windows::InnerFiveOfSix
    );
    if window.is_some() && windows.contains(&None) || needs_list {
        config.insert("layer_types".into(), types);
    }
    for (key, cap) in
        [("attn_logit_softcapping", model.score_cap), ("final_logit_softcapping", model.logit_cap)]
    {
        config.extend(cap.map(|cap| (key.to_string(), cap.into())));
    }
    if class.rotates_by_kind() {
        ["rope_theta", "rope_scaling", "partial_rotary_factor"]
            .iter()
            .for_each(|key| drop(config.remove(*key)));
        config.insert("rope_parameters".into(), rotations_by_kind(model, class));
    }
    // GPT-NeoX has other names for them, but not among these parameters.
    if name == "gpt_neox" {
        let mut parameters = entries(scaling_or_default(&config));
        for key in ["rope_theta", "partial_rotary_factor"] {
            parameters.extend(config.remove(key).map(|value| (key.to_string(), value)));
        }
        config.remove("rope_scaling");
        config.insert("rope_parameters".into(), parameters.into());
    }
    // The length that this scaling goes by.
    if let RopeScaling::Dynamic { original, .. } = layer.rope_scaling {
        config.insert("max_position_embeddings".into(), (original as u64).into());
    }
    // Falcon computes it from other keys and takes no other; GPT-J and MPT have no keys of a rotation.
    let not_of_class: &[&str] = match name {
        "falcon" => &["head_dim"],
        "gptj" | "mpt" => &["rope_theta", "rope_scaling", "partial_rotary_factor"],
        _ => &[],
    };
    not_of_class.iter().for_each(|key| drop(config.remove(*key)));
    let rotates: Vec<u8> = layers.iter().map(|layer| layer.rotates.into()).collect();
    if rotates.contains(&0) && !class.rotates_in_windows {
        config.insert("no_rope_layers".into(), rotates.into());
    }
    config
}

/// The keys of the class `name`, among them those that say more than one fact, or by their absence something else than
/// ours.
fn own_keys(name: &str, model: &ModelConfig) -> Value {
    let mut own = keys_of_class(name, model);
    own.retain(|_, value| !value.is_null());
    let switches = ["qk_layernorm", "use_qk_norm"].into_iter();
    let switches = switches.filter(|key| classes::named(name).defaults.contains_key(*key));
    own.extend(switches.map(|key| (key.to_string(), model.qk_norm.into())));
    if classes::named(name).defaults.contains_key("use_parallel_residual") {
        own.insert("use_parallel_residual".into(), model.parallel_residual.is_some().into());
    }
    if classes::named(name).facts.get("logits_scaling").is_some_and(|said| *said == "1/logit_scale") {
        own.insert("logit_scale".into(), (1.0 / model.factors.logits_divisor.unwrap_or(1.0)).into());
    }
    own.into()
}

/// The keys of Falcon: in its first form, with one key and value head or as many as queries, where that can say it.
fn falcon_keys(model: &ModelConfig) -> Value {
    let has_one_key = model.layer.num_kv_heads == 1;
    let norms = match model.parallel_residual {
        Some(ParallelResidual::TwoNorms) => Some(2),
        Some(ParallelResidual::OneNorm) if !has_one_key => Some(1),
        _ => None,
    };
    let mut own = entries(own_keys("falcon", model));
    own.extend(entries(json!({
        "new_decoder_architecture": norms.is_some(),
        "num_ln_in_parallel_attn": norms,
        "multi_query": has_one_key,
        "parallel_attn": model.parallel_residual.is_some(),
    })));
    own.into()
}

/// The square of the reciprocal of the scores' factor, which Gemma 2 and 3 have as a whole number.
fn query_scalar(model: &ModelConfig) -> f64 {
    f64::from(model.softmax_scale(&model.layer)).powi(-2)
}

/// The scaling of the rotation that `config` has, or the type that is none.
fn scaling_or_default(config: &Map<String, Value>) -> Value {
    let scaling = config.get("rope_scaling").cloned().unwrap_or_default();
    if scaling.is_null() { json!({ "rope_type": "default" }) } else { scaling }
}

/// `rope_parameters` of a class that has them for each kind of layers.
fn rotations_by_kind(model: &ModelConfig, class: &Class) -> Value {
    let of_layers = |has_window: bool| {
        let is_of = |layer: &LayerConfig| model.published_window(layer).is_some() == has_window;
        let mut kinds = model.layer_kinds().map(|(layer, _)| layer);
        let layer = kinds.find(|layer| is_of(layer)).unwrap_or(&model.layer);
        let mut parameters = entries(hugging_face_scaling(&layer.rope_scaling, layer.query_scaling.as_ref()));
        parameters.entry("rope_type").or_insert("default".into());
        parameters.insert("rope_theta".into(), layer.rope_theta.into());
        if class.rotates_a_part() {
            parameters.insert("partial_rotary_factor".into(), rotary_factor(layer).into());
        }
        Value::Object(parameters)
    };
    json!({ FULL: of_layers(false), SLIDING: of_layers(true) })
}

/// The keys that multi-head latent attention adds, as in DeepSeek, and the keys that mean something else there.
fn latent_keys(model: &ModelConfig, latent: &LatentAttention) -> Map<String, Value> {
    let mut keys = keys_of_class("latent", model);
    keys.extend(entries(json!({
        "rope_interleave": model.layer.rotary_interleaved,
        // The frequencies are those of a head of this width, all of which rotates.
        "head_dim": latent.rope_dim,
        "partial_rotary_factor": 1.0,
        // A mixture replaces this number; without a mixture no layer has experts.
        "first_k_dense_replace": model.num_layers,
        "num_nextn_predict_layers": 0,
    })));
    keys
}

/// The keys that `mixture` adds, which replace those of a dense model.
fn mixture_keys(model: &ModelConfig, mixture: &MixtureConfig) -> Map<String, Value> {
    let (experts, groups, losses) = (mixture.experts(), mixture.route.groups, mixture.losses);
    let shared = mixture.shared.map_or(0, |shared| shared.intermediate_size);
    let method = match groups.map(|groups| groups.score) {
        None if !mixture.has_bias => "greedy",
        Some(GroupScore::Best) => "group_limited_greedy",
        None | Some(GroupScore::BestTwo) => "noaux_tc",
    };
    let is_by_sequence = losses.sequence != 0.0;
    let is_dense = |layer: &usize| model.mixture_of(*layer).is_none();
    let mut keys = keys_of_class("v3 router", model);
    keys.extend(entries(json!({
        // DeepSeek's names.
        "n_routed_experts": experts,
        "n_shared_experts": (shared > 0).then(|| shared.div_ceil(mixture.intermediate_size)),
        "first_k_dense_replace": mixture.first_dense_layers,
        "topk_method": method,
        "n_group": groups.map_or(1, |groups| groups.count),
        "topk_group": groups.map_or(1, |groups| groups.chosen),
        "aux_loss_alpha": if is_by_sequence { losses.sequence } else { losses.expert },
        "seq_aux": is_by_sequence,
        // Qwen's names.
        "qkv_bias": model.qkv_bias,
        "shared_expert_intermediate_size": shared,
        "decoder_sparse_step": 1,
        "mlp_only_layers": (0..model.num_layers).filter(is_dense).collect::<Vec<_>>(),
        // In Hugging Face's loss the experts' shares of the choices sum to k, in ours to 1.
        "router_aux_loss_coef": losses.expert / mixture.chosen() as f64,
        "output_router_logits": losses.expert != 0.0,
        // GLM's name.
        "use_qk_norm": model.qk_norm,
    })));
    keys
}

/// The share of a head that rotates, such that its product with `head_dim`, rounded down, is `rotary_dim`.
fn rotary_factor(layer: &LayerConfig) -> f64 {
    let (dim, whole) = (layer.rotary_dim as f64, layer.head_dim as f64);
    let share = dim / whole;
    if share * whole < dim { share.next_up() } else { share }
}

/// The width of which the model is a multiple, as MiniCPM's files say what the logits are divided by.
fn base_width(model: &ModelConfig, divisor: f64) -> f64 {
    model.hidden_size as f64 / divisor
}

/// The entry `rope_scaling`, null if there is none, for `queries` that may grow with their position.
pub(super) fn hugging_face_scaling(scaling: &RopeScaling, queries: Option<&QueryScaling>) -> Value {
    let mut entry = scaling_entry(scaling);
    if let Some(QueryScaling { beta, original }) = queries {
        if entry.is_null() {
            entry = json!({ "rope_type": "default" });
        }
        entry["llama_4_scaling_beta"] = (*beta).into();
        entry["original_max_position_embeddings"] = (*original as u64).into();
    }
    entry
}

fn scaling_entry(scaling: &RopeScaling) -> Value {
    match *scaling {
        RopeScaling::None | RopeScaling::Ntk { .. } => Value::Null,
        RopeScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
        // Hugging Face's "dynamic" is a different formula: better a name it refuses than one it computes differently.
        RopeScaling::DynamicNtk { original, .. } => {
            json!({ "rope_type": "dynamic_ntk", "original_max_position_embeddings": original as u64 })
        }
        RopeScaling::Yarn(yarn) => yarn_entry(yarn),
        RopeScaling::Llama3(Llama3 { factor, original, low_freq_factor, high_freq_factor }) => json!({
            "rope_type": "llama3",
            "factor": factor,
            "original_max_position_embeddings": original as u64,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
        }),
        RopeScaling::Proportional { share } => {
            json!({ "rope_type": "proportional", "partial_rotary_factor": share })
        }
        RopeScaling::Dynamic { factor, original, .. } => json!({
            "rope_type": "dynamic",
            "factor": factor,
            "original_max_position_embeddings": original as u64,
        }),
        RopeScaling::LongRope(LongRope { divisors: [short, long], original, magnitude, .. }) => json!({
            "rope_type": "longrope",
            "short_factor": short.list(),
            "long_factor": long.list(),
            "original_max_position_embeddings": original as u64,
            "attention_factor": magnitude,
        }),
    }
}

fn yarn_entry(yarn: Yarn) -> Value {
    let Yarn { factor, original, beta_fast, beta_slow, mscale, mscale_all_dim, is_truncated } = yarn;
    let mut entry = json!({
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original as u64,
        "beta_fast": beta_fast,
        "beta_slow": beta_slow,
        "mscale": mscale,
        "mscale_all_dim": mscale_all_dim,
    });
    if !is_truncated {
        entry["truncate"] = false.into();
    }
    entry
}

#[cfg(test)]
pub(super) mod tests;
