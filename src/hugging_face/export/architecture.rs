//! The published architecture nearest to a model, and what it lacks.
//!
//! | the model | architecture | computes the same if |
//! |---|---|---|
//! | is a GPT-2 | `GPT2LMHeadModel` | no window, no experts |
//! | is a Bloom | `BloomForCausalLM` | tanh GELU, a feed-forward network four times as wide as the model, no window, no experts |
//! | is an OPT | `OPTForCausalLM`, also with norms after sums and an embedding of another width | an epsilon of 1e-5, no window, no experts |
//! | is a GPTBigCode | `GPTBigCodeForCausalLM` | no window, no experts |
//! | is a Baichuan | `BaichuanForCausalLM`, whose code is published with its weights and not in `transformers` | no window, and a plain head: the published code divides by the length without an epsilon |
//! | is a PanGu-α | `GPTPanguForCausalLM`, the same | no window, no experts |
//! | has latent attention | `DeepseekV2ForCausalLM` with softmax scores, else `DeepseekV3ForCausalLM`, also where all layers are dense | an epsilon of 1e-6 in the norms of latent vectors, no window; a shared expert as under GLM; of V2: rotation in pairs, gates that are not normalised, no selection bias, groups scored by their best expert; of V3: groups scored by their best two |
//! | is dense and has latent attention that rotates in halves | `MiniCPM3ForCausalLM`, also with factors but that of the scores, and with biases in the feed-forward layers | an epsilon of 1e-6 in the norms of latent vectors, `num_heads` divides `hidden_size`, no window |
//! | is a GLM | `GlmForCausalLM` | no window |
//! | is a Phi-3 | `Phi3ForCausalLM` | no biases, and no scaling of the rotation but LongRoPE |
//! | is an ERNIE 4.5 | `Ernie4_5ForCausalLM` | biases in all layers or in none, no window, whole heads rotate |
//! | and has experts | `Ernie4_5_MoeForCausalLM`, also with dense layers | the same without biases; softmax scores with a bias of the choice, no groups, gates that sum to 1 above a least sum, a shared expert whose width is a multiple of an expert's and without a gate |
//! | is a Helium | `HeliumForCausalLM` | no bias of attention's output projection, heads as wide together as the model, no window, whole heads rotate |
//! | is a GLM with norms before and after sublayers | `Glm4ForCausalLM` | no window |
//! | is dense and has norms after sublayers alone, and q and k normalised over all heads | `Olmo2ForCausalLM`, with a window `Olmo3ForCausalLM`, also with biases in all of attention | always |
//! | is dense and has norms of rotated heads | `HunYuanDenseV1ForCausalLM`, also with biases in all of attention | no window |
//! | is dense and has norms after sublayers alone | `Exaone4ForCausalLM` | QK-norm, no biases; where some layers have a window, the others do not rotate, otherwise all do |
//! | is dense and its norms multiply by 1 + w | `GemmaForCausalLM`, also with biases in all of attention | the gate's activation is GELU or SiLU, the factor of the embedding is the root of `hidden_size`, and there is no other; no window, no QK-norm, whole heads rotate |
//! | and stand before and after sublayers | `Gemma2ForCausalLM`, with QK-norm `Gemma3ForCausalLM` | the same, with a factor of the scores that is one over the root of a whole number, windows in any layers and a soft cap of the logits; of Gemma 2: a soft cap of the scores; of Gemma 3: a rotation of their own in layers with a window |
//! | is dense, and its norms stand before and after sublayers | `HyperCLOVAXForCausalLM`, also with factors, and with biases in all of attention or of the feed-forward layers | no window, no QK-norm, whole heads rotate |
//! | and values are normalised, or layers read the keys and values of others, or embeddings of their own | `Gemma4ForCausalLM`, also with biases in all of attention | each layer has a factor, the factor of the scores is 1, that of the embedding the root of `hidden_size`; QK-norm, norms before and after sublayers that multiply by w, no window in the last layer |
//! | is dense and has factors | `GraniteForCausalLM`, also with biases in all of attention or of the feed-forward layers | no window, no QK-norm, whole heads rotate |
//! | is a GPT-NeoX | `GPTNeoXForCausalLM`, also with attention before the feed-forward network | biases in all of attention or in none, and in the feed-forward layers; two norms where the two stand beside each other, no window |
//! | is a Falcon | `FalconForCausalLM`, also with attention before the feed-forward network or beside it | biases in all layers or in none, heads as wide together as the model; with attention before the feed-forward network as many key and value heads as queries, or one; no window |
//! | is a GPT-J | `GPTJForCausalLM` | biases of feed-forward layers and of the head alone, one norm of attention and feed-forward network beside each other, as many key and value heads as queries, heads as wide together as the model, a base of 10000 that is not scaled; no window |
//! | is a Phi-1 or Phi-2 | `PhiForCausalLM` | a bias in every linear layer and the head, one norm of attention and feed-forward network beside each other, also with LayerNorms of heads that share a weight, no window |
//! | is an MPT | `MptForCausalLM`, also with a factor of the scores | GELU by the error function, a feed-forward network four times as wide as the model, LayerNorm without a bias, no biases, as many key and value heads as queries, heads as wide together as the model, attention before the feed-forward network, no window |
//! | is a nanochat | `NanoChatForCausalLM`, also with biases in all of attention and a soft cap of the logits | RMSNorms without weights, also of rotated heads; attention before the feed-forward network, no window |
//! | is a Command R | `CohereForCausalLM`, with windows `Cohere2ForCausalLM`, where the other layers do not rotate; also with a factor of the logits, with biases in all of attention, and, without windows, with a LayerNorm of each head | LayerNorm without a bias, one norm that attention and feed-forward network read, whole heads rotate |
//! | is dense and its norms have no weights | `OlmoForCausalLM`, also with biases in all of attention, and with clipped q, k and v | LayerNorm without a bias and with an epsilon of 1e-5, no window, no QK-norm, whole heads rotate |
//! | is dense and has xIELU | `ApertusForCausalLM`, also with biases in all of attention | RMSNorms before sublayers, QK-norm of single heads before the rotation, no window, whole heads rotate |
//! | is dense and has no gates | `ArceeForCausalLM`, with LayerNorm `Starcoder2ForCausalLM`, `Jais2ForCausalLM` with ReLU or its square, or `NemotronForCausalLM` where it multiplies by 1 + w | attention before the feed-forward network, no QK-norm; a window in StarCoder 2 alone, in all layers; a part of each head rotates in Nemotron alone; biases in all layers of StarCoder 2 or in none, in the others in all of attention or of the feed-forward layers |
//! | is dense and has LayerNorm | `StableLmForCausalLM`, also with q/k/v biases, with a LayerNorm of each head, and with one norm that attention and feed-forward network read | no other biases, no window, no other QK-norm, heads as wide together as the model |
//! | is dense and rotates a part of each head, or has QK-norm and q/k/v biases | `Glm4MoeForCausalLM`, all of whose layers are dense | no window |
//! | has queries that grow with their position | `Ministral3ForCausalLM` | no biases, no QK-norm, a window in all layers or in none |
//! | has layers that do not rotate, and no QK-norm | `SmolLM3ForCausalLM`, also with biases in all of attention | always |
//! | is dense otherwise | `Qwen3ForCausalLM` with QK-norm, also with biases in all of attention, `Qwen2ForCausalLM` with q/k/v biases, `MistralForCausalLM` with a window in all layers, `MinistralForCausalLM` with one in some, or `CwmForCausalLM` if the feed-forward layers have biases, else `LlamaForCausalLM`, also with biases in all of attention | always |
//! | has values of another width than keys, a factor of the values, or sinks, and no latent attention | `MiMoV2FlashForCausalLM`, also with biases of q, k and v and with dense layers | sinks in the layers with a window and nowhere else, which have twice as many key and value heads as the others; no other factors, no QK-norm; of experts: sigmoid scores with a bias of the choice, groups scored by their best two, no shared expert |
//! | has a gated shared expert | `Qwen2MoeForCausalLM` | plain softmax, no QK-norm |
//! | has linear attention, or gates of attention's output | `Qwen3_5ForCausalLM`, with experts `Qwen3_5MoeForCausalLM`, of its own type `Qwen3NextForCausalLM`, also with biases in all of attention | norms before sublayers that multiply by 1 + w, QK-norm of single heads and gates of attention's output; no window, no factors; of experts: plain softmax, a shared expert with a gate, of Qwen3.5: gates that sum to 1, no dense layers; Qwen3-Next has experts |
//! | is an LFM2 | `Lfm2ForCausalLM`, with experts `Lfm2MoeForCausalLM`, also with dense layers | RMSNorms before sublayers, QK-norm of single heads, SwiGLU, no biases, no window, whole heads rotate, no factors; of experts: sigmoid scores, no groups, no shared expert |
//! | is what [`ModelConfig::is_minimax_m2`] says | `MiniMaxM2ForCausalLM` | no window, no bias of attention's output projection |
//! | chooses by SparseMixer | `PhimoeForCausalLM`, also with a bias of the head, with biases in all of attention and with a window in all layers | LayerNorm with a bias, no QK-norm, no shared expert, no dense layers, whole heads rotate, no scaling but LongRoPE |
//! | has sigmoid scores | `Glm4MoeForCausalLM`: DeepSeek-V3's router and tensors with ordinary attention | it has a shared expert whose width is a multiple of an expert's; groups, if any, are scored by their best two experts; no window |
//! | has norms of rotated heads | `HunYuanMoEV1ForCausalLM`, also with biases in all of attention | plain softmax, gates that sum to 1, a shared expert as wide as the others and without a gate, no dense layers, no window, whole heads rotate |
//! | has q and k normalised over all heads | `OlmoeForCausalLM`, also with biases in all of attention | plain softmax, no shared expert, no window, heads as wide together as the model |
//! | is a mixture of Granite's | `GraniteMoeForCausalLM`, with a shared expert `GraniteMoeSharedForCausalLM`, also with biases in all of attention | plain softmax, gates that sum to 1, the shared expert has no gate, no dense layers, no QK-norm, no window, whole heads rotate |
//! | is what [`ModelConfig::is_mixtral`] says | `MixtralForCausalLM` | always |
//! | has a shared expert without a gate, or groups, or no QK-norm | `DeepseekForCausalLM` (DeepSeek-MoE) | plain softmax, no QK-norm, no q/k/v biases, no window, heads as wide together as the model; the shared expert, if any, as above |
//! | otherwise | `Qwen3MoeForCausalLM` | plain softmax, no q/k/v biases |
//!
//! No architecture has dynamic NTK scaling as MindFormers computes it. "Plain softmax"
//! means no selection bias, no groups, and gates that are not scaled. Only `Glm4MoeForCausalLM`, `GlmForCausalLM` and
//! `Phi3ForCausalLM` rotate a part of each head. Capacity, which drops tokens in training, has no key. Llama and Qwen3
//! have a bias of attention's output projection only together with those of q, k and v. Llama has biases of the
//! feed-forward layer only if all its projections have one.

use super::{base_width, hugging_face_scaling, query_scalar};
use crate::hugging_face::config_json::classes::{Class, named, of_type};
use crate::hugging_face::config_json::{Windows, facts, has_wide_readers, type_of};
use crate::model::config::{
    Activation, Factors, Family, Gate, Gelu, LayerConfig, MixtureConfig, ModelConfig, Norm, NormPlacement,
    ParallelResidual, QkNorm, Values, kv_source,
};
use crate::ops::rope_scaling::RopeScaling;
use crate::ops::route::{GateNorm, GroupScore, RouterConfig, Score};
use serde_json::Value;

/// The class nearest to `model`.
pub(in crate::hugging_face) fn nearest(model: &ModelConfig) -> &'static Class {
    if model.family == Family::Glm && model.norm_placement == NormPlacement::Both {
        return named("glm4");
    }
    if model.family == Family::Cohere {
        let has_windows = model.layer_kinds().any(|(layer, _)| layer.window().is_some());
        return named(if has_windows { "cohere2" } else { "cohere" });
    }
    if model.family == Family::GraniteMoe {
        let has_shared = model.mixture.as_ref().is_some_and(|mixture| mixture.shared.is_some());
        return named(if has_shared { "granitemoeshared" } else { "granitemoe" });
    }
    if model.family == Family::Lfm2 && model.mixture.is_some() {
        return named("lfm2_moe");
    }
    if model.family == Family::Ernie45 && model.mixture.is_some() {
        return named("ernie4_5_moe");
    }
    if model.family != Family::Llama {
        return of_type(type_of(model.family));
    }
    if model.attention_gate || model.has_linear_attention() {
        return named(if model.mixture.is_some() { "qwen3_5_moe_text" } else { "qwen3_5_text" });
    }
    if model.latent.is_none() && has_attention_of_mimo(model) {
        return named("mimo_v2_flash");
    }
    named(match &model.mixture {
        Some(mixture) if model.latent.is_some() && mixture.route.score == Score::Softmax => "deepseek_v2",
        None if model.latent.is_some() && !model.layer.rotary_interleaved => "minicpm3",
        _ if model.latent.is_some() => "deepseek_v3",
        None => nearest_dense(model),
        Some(mixture) => nearest_mixture(model, mixture),
    })
}

fn nearest_dense(model: &ModelConfig) -> &'static str {
    let windows = Extent::of(model, |layer| model.published_window(layer).is_some());
    match (model.qk_norm, model.qkv_bias, windows) {
        _ if model.has_layer_scalars || norms_values(model) || has_own_inputs(model) => "gemma4_text",
        (.., Extent::None) if normalises_all_heads(model) => "olmo2",
        _ if normalises_all_heads(model) => "olmo3",
        _ if model.qk_norm && model.qk_norm_kind == QkNorm::RotatedHeads => "hunyuan_v1_dense",
        _ if model.activation == Activation::Xielu => "apertus",
        _ if !model.norm_weight => "olmo",
        _ if model.activation.gate().is_none() => match (model.norm, model.zero_centered_norms) {
            (Norm::RmsNorm, _) => "arcee",
            (Norm::LayerNorm, true) => "nemotron",
            (Norm::LayerNorm, false) if model.activation.is_rectified() => "jais2",
            (Norm::LayerNorm, false) => "starcoder2",
        },
        _ if model.norm == Norm::LayerNorm => "stablelm",
        _ if model.norm_placement == NormPlacement::After => "exaone4",
        _ if model.zero_centered_norms => match (model.norm_placement, model.qk_norm) {
            (NormPlacement::Both, true) => "gemma3_text",
            (NormPlacement::Both, false) => "gemma2",
            _ => "gemma",
        },
        _ if model.norm_placement == NormPlacement::Both => "hyperclovax",
        _ if has_factors(model) => "granite",
        _ if rotates_a_part(model) => "glm4_moe",
        _ if has_growing_queries(model) => "ministral3",
        (false, ..) if has_unrotated(model) => "smollm3",
        (true, true, _) if model.output_bias => "qwen3",
        (true, true, _) => "glm4_moe",
        (true, false, _) => "qwen3",
        (false, true, Extent::None) if model.output_bias => "llama",
        (false, true, _) => "qwen2",
        (false, false, Extent::None) => "llama",
        (false, false, Extent::All) => "mistral",
        (false, false, Extent::Some) if model.gate_up_bias && model.down_bias => "cwm",
        (false, false, Extent::Some) => "ministral",
    }
}

fn nearest_mixture(model: &ModelConfig, mixture: &MixtureConfig) -> &'static str {
    match (mixture.shared, mixture.route.score) {
        (_, Score::SparseMixer { .. }) => "phimoe",
        _ if mixture.is_beside_dense => "gemma4_text",
        (Some(shared), _) if shared.is_gated => "qwen2_moe",
        _ if model.is_minimax_m2() => "minimax_m2",
        (_, Score::Sigmoid) => "glm4_moe",
        _ if model.qk_norm && model.qk_norm_kind == QkNorm::RotatedHeads => "hunyuan_v1_moe",
        _ if normalises_all_heads(model) => "olmoe",
        _ if model.is_mixtral() => "mixtral",
        (None, Score::Softmax) if mixture.route.groups.is_none() && model.qk_norm => "qwen3_moe",
        (_, Score::Softmax) => "deepseek",
    }
}

/// The features that `model` has and `class` does not.
pub(in crate::hugging_face) fn lacks(class: &Class, model: &ModelConfig) -> Vec<&'static str> {
    let name = class.name.as_str();
    let is_latent = matches!(name, "deepseek_v2" | "deepseek_v3" | "minicpm3");
    let is_granite = matches!(name, "granite" | "granitemoe" | "granitemoeshared" | "hyperclovax");
    let is_cohere = matches!(name, "cohere" | "cohere2");
    let has_no_qk_norm = matches!(
        name,
        "arcee"
            | "nemotron"
            | "starcoder2"
            | "jais2"
            | "stablelm"
            | "gpt_neox"
            | "falcon"
            | "olmo"
            | "gptj"
            | "phi"
            | "phimoe"
            | "mimo_v2_flash"
    ) || is_cohere
        || name == "mpt";
    let has_own_norms = match name {
        "phi" => model.qk_norm_kind == QkNorm::LayerNorm,
        "stablelm" | "cohere" => model.qk_norm_kind == QkNorm::LayerNormByHead,
        _ => false,
    };
    let is_gemma = matches!(name, "gemma" | "gemma2" | "gemma3_text");
    let is_gemma4 = name == "gemma4_text";
    let has_linear = matches!(name, "qwen3_next" | "qwen3_5_text" | "qwen3_5_moe_text");
    let (is_mpt, is_minicpm3, is_mimo) = (name == "mpt", name == "minicpm3", name == "mimo_v2_flash");
    let splits_evenly = model.hidden_size.is_multiple_of(model.num_heads);
    let is_wide = model.layer.intermediate_size != 4 * model.hidden_size;
    let is_dense = matches!(name, "gpt2" | "bloom" | "gpt_bigcode" | "gpt_pangu" | "opt");
    let of_experts = model.mixture.as_ref().map(|mixture| match is_dense {
        true => vec!["experts"],
        false => lacks_of_experts(name, mixture),
    });
    let windows = Extent::of(model, |layer| model.published_window(layer).is_some());
    let is_clamped = model.activation == Activation::Gated(Gate::Clamped);
    let has_own_heads = model.layer.head_dim * model.num_heads != model.hidden_size;
    let checks = [
        (!class.rotates_a_part() && !is_latent && rotates_a_part(model), "partial rotary embedding"),
        (class.windows() == Windows::Never && windows != Extent::None, "sliding window"),
        (
            class.windows() == Windows::Always && windows == Extent::Some,
            "sliding window of some layers alone",
        ),
        (
            !matches!(name, "smollm3" | "exaone4" | "cohere2") && has_unrotated(model),
            "layers without rotation",
        ),
        (
            matches!(name, "exaone4" | "cohere2") && !rotates_in_windows(model),
            "rotation but that of the layers with a window",
        ),
        (name == "exaone4" && !model.qk_norm, "attention without QK-norm"),
        // HyperCLOVA X has a switch for it.
        (name != "hyperclovax" && differs(class, "norm_placement", model), "norms in these places"),
        (model.qk_norm && !has_own_norms && differs(class, "qk_norm_kind", model), "QK-norm of this kind"),
        (name != "ministral3" && has_growing_queries(model), "queries that grow with their position"),
        (
            (is_granite || has_no_qk_norm || matches!(name, "ministral3" | "gemma" | "gpt_oss"))
                && model.qk_norm
                && !has_own_norms,
            "QK-norm",
        ),
        (
            !is_granite
                && !is_gemma
                && !is_gemma4
                && !is_cohere
                && !is_mpt
                && !is_minicpm3
                && !is_mimo
                && has_factors(model),
            "factors of activations",
        ),
        (
            is_mimo && Factors { values: None, ..model.factors } != Factors::default(),
            "factors of activations but that of the values",
        ),
        (!is_mimo && model.factors.values.is_some(), "factor of the values"),
        (!is_mimo && model.value_head_dim.is_some(), "values of another width than keys"),
        (!is_mimo && differs(class, "attention_sinks", model), "sinks in these layers"),
        (
            is_mimo && !has_sinks_in_windows(model),
            "sinks but in the layers with a window, all of which have them",
        ),
        (
            is_mimo && !has_twice_the_keys_in_windows(model),
            "key and value heads but twice as many in layers with a window",
        ),
        (is_minicpm3 && model.factors.scores.is_some(), "factor of the scores"),
        (is_minicpm3 && !has_whole_base(model), "divisor of the logits but hidden_size over a whole number"),
        (name == "deepseek_v2" && !model.layer.rotary_interleaved, "rotation in halves"),
        (
            is_cohere && Factors { logits_divisor: None, ..model.factors } != Factors::default(),
            "factors of activations but that of the logits",
        ),
        (
            is_mpt && Factors { scores: None, ..model.factors } != Factors::default(),
            "factors of activations but that of the scores",
        ),
        (is_mpt && model.activation != Activation::Gelu(Gelu::Exact), "GELU but that by the error function"),
        (differs(class, "gated_linear_unit", model), "feed-forward networks of this kind"),
        (differs(class, "normalization", model), "norms of this kind"),
        (differs(class, "norm_has_bias", model), "LayerNorm of this kind"),
        (
            differs(class, "norm_has_weight", model),
            if model.norm_weight { "norms with weights" } else { "norms without weights" },
        ),
        (
            name != "phimoe" && differs(class, "lm_head_has_bias", model),
            if model.head_bias { "bias of the head" } else { "head without a bias" },
        ),
        (matches!(name, "olmo" | "opt") && model.norm_eps != 1e-5, "rms_norm_eps other than 1e-5"),
        (has_other_residual(class, model), "feed-forward networks beside attention in this way"),
        (
            matches!(name, "gpt_neox" | "gptj" | "phi") && !(model.gate_up_bias && model.down_bias),
            "feed-forward layers without biases",
        ),
        (
            name == "falcon"
                && model.parallel_residual.is_none()
                && ![1, model.num_heads].contains(&model.layer.num_kv_heads),
            "groups of heads where attention is before the feed-forward network",
        ),
        (name == "phi" && !(model.qkv_bias && model.output_bias), "attention without biases"),
        (
            (is_mpt || name == "gptj") && model.layer.num_kv_heads != model.num_heads,
            "number of key and value heads but that of queries",
        ),
        (
            name == "gptj"
                && (model.layer.rope_theta != 1e4 || model.layer.rope_scaling != RopeScaling::None),
            "base of the rotation but 10000, or scaling of it",
        ),
        (is_gemma4 && model.factors.scores != Some(1.0), "factor of the scores but 1"),
        (
            is_gemma4 && !(model.has_layer_scalars && norms_values(model)),
            "layers without a factor, or a norm of values",
        ),
        (is_gemma4 && !ends_without_window(model), "sliding window of the last layer"),
        (
            is_gemma4 && model.mixture.is_some() && !model.has_dense_beside_experts(),
            "experts without a dense network beside them",
        ),
        (!is_gemma4 && model.has_dense_beside_experts(), "dense network beside experts"),
        (
            is_gemma4 && has_other_kv_heads(model),
            "other number of key and value heads where values are no keys",
        ),
        (!is_gemma4 && !is_mimo && model.has_own_heads(), "heads of other kinds in some layers"),
        (!is_gemma4 && model.kv_readers() > 0, "layers that read the keys and values of others"),
        (!is_gemma4 && model.per_layer_width.is_some(), "embeddings of each layer"),
        (is_gemma4 && !shares_by_kind(model), "layers that read the keys and values of these layers"),
        (has_other_widths(model, is_gemma4), "feed-forward networks of other widths in some layers"),
        (
            (is_gemma || is_gemma4) && !has_factors_of_gemma(name, model),
            "other factors than the root of hidden_size, of the embedding",
        ),
        (
            matches!(name, "gemma2" | "gemma3_text") && !has_whole_scalar(model),
            "factor of the scores but one over the root of a whole number",
        ),
        (
            !class.rotates_by_kind() && model.layer_kinds().any(|(layer, _)| model.has_own_rotation(layer)),
            "rotation of their own in layers with a window",
        ),
        (
            matches!(model.layer.rope_scaling, RopeScaling::DynamicNtk { .. }),
            "dynamic NTK scaling by powers of two",
        ),
        (
            matches!(name, "phi3" | "phimoe")
                && hugging_face_scaling(&model.layer.rope_scaling, None).is_object()
                && !matches!(model.layer.rope_scaling, RopeScaling::LongRope(_)),
            "scaling of this type",
        ),
        (name == "bloom" && model.activation != Activation::Gelu(Gelu::Tanh), "GELU but the tanh form"),
        (name == "gpt_bigcode" && model.layer.num_kv_heads != 1, "number of key and value heads but one"),
        (matches!(name, "bloom" | "mpt") && is_wide, "feed-forward network of this width"),
        (
            !is_gemma && !has_linear && name != "nemotron" && model.zero_centered_norms,
            "norms that multiply by 1 + w",
        ),
        (has_linear && !model.zero_centered_norms, "norms that multiply by w"),
        (differs(class, "attention_output_gate", model), "attention with such an output"),
        (name == "qwen3_next" && model.mixture.is_none(), "form without experts"),
        (
            model.has_linear_attention() && model.activation != Activation::Gated(Gate::Silu),
            "activation but SiLU beside linear attention",
        ),
        (
            matches!(name, "lfm2" | "lfm2_moe") && model.activation != Activation::Gated(Gate::Silu),
            "activation but SiLU",
        ),
        (name != "gemma2" && model.score_cap.is_some(), "soft cap of attention scores"),
        (!matches!(name, "olmo" | "olmoe" | "mpt") && model.clip_qkv.is_some(), "clipping of q, k and v"),
        (name != "gpt_oss" && is_clamped, "clamped gate"),
        (name != "apertus" && model.activation == Activation::Xielu, "xIELU"),
        (name == "gpt_oss" && !is_clamped, "gate but the clamped one"),
        (name == "gpt_oss" && model.mixture.is_none(), "form without experts"),
        (
            !matches!(name, "gemma2" | "gemma3_text" | "gemma4_text" | "nanochat")
                && model.logit_cap.is_some(),
            "soft cap of logits",
        ),
        (name != "opt" && model.embedding_width.is_some(), "embedding of another width"),
        (name == "gpt2" && model.norm_placement != NormPlacement::Before, "norms in these places"),
        (model.head_epsilon.is_some(), "epsilon under the root of the length of the head's rows"),
        (
            matches!(name, "qwen3_moe" | "deepseek" | "mixtral") && model.qkv_bias,
            "biases of q, k and v alone",
        ),
        (matches!(name, "qwen2_moe" | "deepseek" | "mixtral") && model.qk_norm, "QK-norm"),
        (
            matches!(
                name,
                "deepseek" | "helium" | "olmoe" | "stablelm" | "gpt_neox" | "falcon" | "gptj" | "mpt"
            ) && has_own_heads,
            "head_dim of its own",
        ),
        (
            (has_linear
                || matches!(
                    name,
                    "olmo2"
                        | "olmo3"
                        | "olmoe"
                        | "hunyuan_v1_dense"
                        | "hunyuan_v1_moe"
                        | "gemma4_text"
                        | "nanochat"
                        | "apertus"
                        | "lfm2"
                        | "lfm2_moe"
                ))
                && !model.qk_norm,
            "attention without QK-norm",
        ),
        (
            is_latent && model.latent_norm_eps.unwrap_or(model.norm_eps) != 1e-6,
            "epsilon other than 1e-6 in the norms of latent vectors",
        ),
        (
            matches!(name, "deepseek_v2" | "minicpm3" | "cwm" | "gemma2" | "gemma3_text" | "hyperclovax")
                && !splits_evenly,
            "hidden_size that num_heads does not divide",
        ),
    ];
    let of_layers = checks.into_iter().chain(lacks_of_biases(name, model));
    let of_layers = of_layers.filter(|(lacks, _)| *lacks).map(|(_, what)| what);
    of_experts.into_iter().flatten().chain(of_layers).collect()
}

/// Biases of layers, each with whether `model` has it and the class does not.
fn lacks_of_biases(class: &str, model: &ModelConfig) -> [(bool, &'static str); 4] {
    let has_none = !matches!(class, "gpt2" | "bloom" | "gpt_bigcode" | "gpt_pangu" | "opt");
    let all_of_mlp = model.gate_up_bias && model.down_bias;
    let [all_of_attention, all_of_mlp] = match class {
        "llama" | "granite" | "hyperclovax" | "smollm3" | "arcee" | "nemotron" | "jais2" | "gpt_neox"
        | "phi" => [model.qkv_bias, all_of_mlp],
        "olmo" | "olmo2" | "olmo3" | "olmoe" | "hunyuan_v1_dense" | "hunyuan_v1_moe" | "gpt_oss" => {
            [model.qkv_bias, false]
        }
        "granitemoe" | "granitemoeshared" | "nanochat" | "apertus" | "phimoe" => [model.qkv_bias, false],
        "cwm" | "minicpm3" => [false, all_of_mlp],
        "qwen3" | "gemma" | "gemma2" | "gemma3_text" | "gemma4_text" | "cohere" | "cohere2"
        | "qwen3_next" | "qwen3_5_text" | "qwen3_5_moe_text" => [model.qkv_bias, false],
        "helium" | "gptj" => [false, all_of_mlp],
        "ernie4_5" | "starcoder2" | "falcon" => [model.qkv_bias && model.output_bias && all_of_mlp; 2],
        _ => [false, false],
    };
    let of_all_or_none = matches!(class, "ernie4_5" | "starcoder2" | "falcon") && !all_of_mlp;
    let all_or_none = [
        "granite",
        "granitemoe",
        "granitemoeshared",
        "hyperclovax",
        "gemma",
        "gemma2",
        "gemma3_text",
        "gemma4_text",
        "smollm3",
        "nanochat",
        "apertus",
        "olmo",
        "olmo2",
        "olmo3",
        "olmoe",
        "hunyuan_v1_dense",
        "hunyuan_v1_moe",
        "arcee",
        "nemotron",
        "jais2",
        "cohere",
        "cohere2",
        "gpt_neox",
        "gpt_oss",
        "phimoe",
        "qwen3_next",
        "qwen3_5_text",
        "qwen3_5_moe_text",
    ];
    let of_attention_or_none = all_or_none.contains(&class) && !model.output_bias;
    let has_no_qkv = matches!(
        class,
        "phi3" | "ministral3" | "exaone4" | "gptj" | "mpt" | "lfm2" | "lfm2_moe" | "ernie4_5_moe"
    ) || of_all_or_none
        || of_attention_or_none;
    [
        (has_no_qkv && model.qkv_bias, "biases of q, k and v alone"),
        (has_none && model.output_bias && !all_of_attention, "bias of attention's output projection alone"),
        (has_none && model.gate_up_bias && !all_of_mlp, "bias of the gate and up projections"),
        (has_none && model.down_bias && !all_of_mlp, "bias of the down projection alone"),
    ]
}

fn lacks_of_experts(class: &str, mixture: &MixtureConfig) -> Vec<&'static str> {
    let RouterConfig { score, groups, norm, scaling, .. } = mixture.route;
    let norm_top_k = norm.is_some();
    let is_v2 = class == "deepseek_v2";
    let is_mimo = class == "mimo_v2_flash";
    let has_v3_router = is_mimo || matches!(class, "glm4_moe" | "deepseek_v3");
    let is_lfm2 = class == "lfm2_moe";
    let is_ernie = class == "ernie4_5_moe";
    let is_plain = !is_v2 && !has_v3_router && !is_lfm2 && class != "minimax_m2"; // a plain softmax
    let odd_width = mixture
        .shared
        .is_some_and(|shared| !shared.intermediate_size.is_multiple_of(mixture.intermediate_size));
    let count = |score| groups.is_some_and(|groups| groups.score == score);
    let needs_shared = is_v2 || has_v3_router && !is_mimo || class == "hunyuan_v1_moe";
    let is_granite = matches!(class, "granitemoe" | "granitemoeshared");
    let is_as_wide =
        mixture.shared.is_none_or(|shared| shared.intermediate_size == mixture.intermediate_size);
    let is_qwen = matches!(class, "qwen3_next" | "qwen3_5_moe_text");
    let is_gated = mixture.shared.is_some_and(|shared| shared.is_gated);
    let checks = [
        (is_plain && score == Score::Sigmoid, "sigmoid scores"),
        ((is_plain && !is_ernie || is_v2) && mixture.has_bias, "bias on the choice of experts"),
        (is_ernie != matches!(norm, Some(GateNorm::AtLeast(_))), "gates that are divided by this sum"),
        (is_v2 && norm_top_k, "gates that are made to sum to 1"),
        (is_v2 && count(GroupScore::BestTwo), "groups that count by their two best experts"),
        (is_lfm2 && score == Score::Softmax, "softmax scores"),
        (class != "phimoe" && matches!(score, Score::SparseMixer { .. }), "choice by SparseMixer"),
        ((is_plain || is_lfm2) && groups.is_some(), "groups of experts"),
        (is_plain && scaling != 1.0, "routed_scaling_factor"),
        (has_v3_router && count(GroupScore::Best), "groups that count by their best expert"),
        (is_mimo && score == Score::Softmax, "softmax scores"),
        ((is_ernie || is_mimo) && !mixture.has_bias, "form without a bias on the choice of experts"),
        ((needs_shared || is_granite || is_ernie) && is_gated, "gate of the shared expert"),
        (needs_shared && mixture.shared.is_none(), "form without a shared expert"),
        (
            matches!(class, "olmoe" | "gpt_oss" | "lfm2_moe" | "phimoe" | "mimo_v2_flash")
                && mixture.shared.is_some(),
            "shared expert",
        ),
        (
            (matches!(class, "olmoe" | "hunyuan_v1_moe" | "gpt_oss" | "phimoe") || is_granite)
                && mixture.first_dense_layers > 0,
            "dense layers",
        ),
        (
            (is_granite || matches!(class, "hunyuan_v1_moe" | "gpt_oss")) && !norm_top_k,
            "gates that are not made to sum to 1",
        ),
        (class == "hunyuan_v1_moe" && !is_as_wide, "shared expert but one as wide as the others"),
        (class != "qwen2_moe" && !is_qwen && !is_granite && odd_width, "shared expert of this width"),
        (class == "gemma4_text" && mixture.shared.is_some(), "shared expert"),
        (class == "gemma4_text" && mixture.first_dense_layers > 0, "layers without experts"),
        (class == "gemma4_text" && !norm_top_k, "gates that are not made to sum to 1"),
        (is_qwen && !is_gated, "form without a shared expert that has a gate"),
        (class == "qwen3_5_moe_text" && mixture.first_dense_layers > 0, "dense layers"),
        (class == "qwen3_5_moe_text" && !norm_top_k, "gates that are not made to sum to 1"),
    ];
    checks.into_iter().filter(|(lacks, _)| *lacks).map(|(_, what)| what).collect()
}

/// Whether `class`, which always computes the same of `fact`, computes something else than `model`.
fn differs(class: &Class, fact: &str, model: &ModelConfig) -> bool {
    let word = |value: &Value| match value.as_str() {
        Some(word) => word.trim_start_matches('=').into(),
        None => value.clone(),
    };
    let ours = facts(model).get(fact).map(word).unwrap_or_default();
    class.facts.get(fact).is_some_and(|theirs| word(theirs) != ours)
}

/// Whether `class` puts attention and feed-forward network beside each other otherwise than `model`. Three classes have
/// switches for it.
fn has_other_residual(class: &Class, model: &ModelConfig) -> bool {
    match class.name.as_str() {
        "stablelm" => model.parallel_residual == Some(ParallelResidual::TwoNorms),
        "gpt_neox" => model.parallel_residual == Some(ParallelResidual::OneNorm),
        "falcon" => false,
        _ => differs(class, "parallel_residual", model),
    }
}

/// Whether the layers that rotate are those with a window, or all if none has one.
fn rotates_in_windows(model: &ModelConfig) -> bool {
    let slides = |layer: &LayerConfig| layer.window().is_some();
    let has_windows = Extent::of(model, slides) != Extent::None;
    model.layer_kinds().all(|(layer, _)| layer.rotates == (!has_windows || slides(layer)))
}

/// Whether all heads of q are normalised together, and all of k.
fn normalises_all_heads(model: &ModelConfig) -> bool {
    model.qk_norm && model.qk_norm_kind == QkNorm::AllHeads
}

fn rotates_a_part(model: &ModelConfig) -> bool {
    model.layer_kinds().any(|(layer, _)| model.rotary(layer).is_some() && layer.rotary_dim < layer.head_dim)
}

/// Whether the model has something that of all classes without latent attention MiMo-V2 alone has.
fn has_attention_of_mimo(model: &ModelConfig) -> bool {
    let has_sinks = || model.layer_kinds().any(|(layer, _)| layer.has_sinks);
    model.value_head_dim.is_some() || model.factors.values.is_some() || has_sinks()
}

/// Whether the layers that have sinks are those with a window.
fn has_sinks_in_windows(model: &ModelConfig) -> bool {
    let mut kinds = model.layer_kinds().map(|(layer, _)| layer);
    kinds.all(|layer| layer.has_sinks == model.published_window(layer).is_some())
}

/// Whether heads differ between layers as in MiMo-V2: in the numbers of keys and values alone.
fn has_twice_the_keys_in_windows(model: &ModelConfig) -> bool {
    let kinds = || model.layer_kinds().map(|(layer, _)| layer);
    let has_window = |layer: &LayerConfig| model.published_window(layer).is_some();
    // A class whose layers all have windows takes half a number of them.
    let full = kinds()
        .find(|layer| !has_window(layer))
        .map_or(model.layer.num_kv_heads / 2, |full| full.num_kv_heads);
    kinds().all(|layer| {
        let heads = if has_window(layer) { 2 * full } else { full };
        (layer.num_kv_heads, layer.head_dim, layer.values) == (heads, model.layer.head_dim, Values::Plain)
    })
}

/// Whether values are normalised, in all layers.
fn norms_values(model: &ModelConfig) -> bool {
    model.layer_kinds().all(|(layer, _)| layer.values != Values::Plain)
}

/// Whether layers whose values are not their keys have another number of key and value heads.
fn has_other_kv_heads(model: &ModelConfig) -> bool {
    let is_other = |layer: &LayerConfig| {
        layer.values != Values::OfKeys && layer.num_kv_heads != model.layer.num_kv_heads
    };
    model.layer_kinds().any(|(layer, _)| is_other(layer))
}

/// Whether layers read more than the residual stream: keys and values of others, or embeddings of their own.
fn has_own_inputs(model: &ModelConfig) -> bool {
    model.kv_readers() > 0 || model.per_layer_width.is_some()
}

/// Whether layers read the keys and values of others as Gemma 4 has it, if they do.
fn shares_by_kind(model: &ModelConfig) -> bool {
    let first = model.num_layers - model.kv_readers();
    let slides = |number: usize| model.published_window(model.layer(number)).is_some();
    (0..model.num_layers).all(|number| model.layer(number).kv_source == kv_source(number, first, slides))
}

/// Whether dense layers are not all as wide, but for those of Gemma 4 that read the keys and values of others, which
/// may be twice as wide.
fn has_other_widths(model: &ModelConfig, is_gemma4: bool) -> bool {
    let width = |layer: &LayerConfig| match layer.kv_source {
        Some(_) if is_gemma4 && has_wide_readers(model) => 2 * model.layer.intermediate_size,
        _ => model.layer.intermediate_size,
    };
    model.layer_kinds().any(|(layer, _)| layer.intermediate_size != width(layer))
}

fn ends_without_window(model: &ModelConfig) -> bool {
    model.num_layers == 0 || model.layer(model.num_layers - 1).window().is_none()
}

fn has_factors(model: &ModelConfig) -> bool {
    model.factors != Factors::default()
}

/// Whether the embedding is multiplied by the root of its width, and nothing else by anything, but for the scores of
/// Gemma 2 and 3.
fn has_factors_of_gemma(class: &str, model: &ModelConfig) -> bool {
    let root = (model.hidden_size as f64).sqrt();
    let is_root = model.factors.embedding.is_some_and(|factor| (factor / root - 1.0).abs() < 1e-6);
    let scores = model.factors.scores.filter(|_| class == "gemma");
    is_root && Factors { embedding: None, scores, ..model.factors } == Factors::default()
}

fn has_whole_scalar(model: &ModelConfig) -> bool {
    let scalar = query_scalar(model);
    (scalar / scalar.round() - 1.0).abs() < 1e-6
}

fn has_whole_base(model: &ModelConfig) -> bool {
    model.factors.logits_divisor.is_none_or(|divisor| {
        let base = base_width(model, divisor);
        base >= 0.5 && (base / base.round() - 1.0).abs() < 1e-6
    })
}

fn has_growing_queries(model: &ModelConfig) -> bool {
    model.layer_kinds().any(|(layer, _)| layer.query_scaling.is_some())
}

fn has_unrotated(model: &ModelConfig) -> bool {
    model.layer_kinds().any(|(layer, _)| !layer.rotates)
}

/// Which layers have a property.
#[derive(Clone, Copy, PartialEq)]
enum Extent {
    None,
    Some,
    All,
}

impl Extent {
    fn of(model: &ModelConfig, has: impl Fn(&LayerConfig) -> bool) -> Self {
        let [mut any, mut all] = [false, true];
        for (layer, _) in model.layer_kinds() {
            (any, all) = (any || has(layer), all && has(layer));
        }
        match (any, all) {
            (false, _) => Self::None,
            (true, false) => Self::Some,
            (true, true) => Self::All,
        }
    }
}
