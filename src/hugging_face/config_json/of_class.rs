//! Facts that follow from several keys of one class, or from a key that has another form in it.

use super::NOTE;
use super::classes::{self, Fact, Facts, Reading, SLIDING};
use super::rotary::is_same;
use super::theirs::{Layers, is_rotary};
use serde_json::{Value, json};

/// The switch for experts beside dense networks.
pub(super) const BESIDE: &str = "enable_moe_block";

/// The word for latent attention whose heads rotate in halves.
pub(super) const HALVES: &str = "halves";

/// The word for sinks of all layers.
pub(super) const ALL: &str = "all";

/// The key that MiMo-V2 alone has.
const OF_MIMO: &str = "attention_value_scale";

/// Sets the facts that follow from several keys of one class.
pub(super) fn fill(reading: &Reading<'_>, facts: &mut Facts) {
    let heads = facts.get("num_heads").map(|heads| heads.value.clone()).unwrap_or_default();
    let half = facts.get("head_dim").and_then(|width| width.value.as_u64()).unwrap_or(0) / 2;
    let has_scaled_experts = facts.contains_key("routed_scaling_factor");
    let width_of_head = facts.get("head_dim").map(|width| width.value.clone());
    let [layers, width] = ["num_layers", "hidden_size"].map(|size| facts.get(size)?.value.as_f64());
    let mut insert = |fact, key: &str, value| facts.insert(fact, Fact { key: key.to_string(), value });
    let is_new_falcon = reading.is_on("new_decoder_architecture");
    // GPTBigCode and the first Falcons: a switch instead of a number.
    if reading.reads("multi_query") && !is_new_falcon {
        insert(
            "n_kv_heads",
            "multi_query",
            if reading.is_on("multi_query") { 1.into() } else { heads.clone() },
        );
    }
    // HyperCLOVA X: norms after sublayers beside those before them.
    if reading.reads("use_post_norm") {
        let placement = reading.is_on("use_post_norm").then_some("both");
        insert("norm_placement", "use_post_norm", placement.into());
    }
    // GPT-NeoX and StableLM: a switch. StableLM's feed-forward network then reads the norm of attention.
    if reading.reads("use_parallel_residual") {
        let word = if reading.reads("use_qkv_bias") { "one_norm" } else { "two_norms" };
        let value = reading.is_on("use_parallel_residual").then_some(word);
        insert("parallel_residual", "use_parallel_residual", value.into());
    }
    // Phi-3.5-MoE: a switch.
    if reading.reads("lm_head_bias") {
        insert("lm_head_has_bias", "lm_head_bias", reading.is_on("lm_head_bias").then_some(true).into());
    }
    // Falcon: switches and a number of norms. Other combinations fail in the class itself.
    if reading.reads("num_ln_in_parallel_attn") {
        let (key, norms) = ("num_ln_in_parallel_attn", reading.number("num_ln_in_parallel_attn"));
        let norms = norms.unwrap_or(if is_new_falcon { 2.0 } else { 1.0 });
        let (key, value) = match (is_new_falcon, reading.is_on("parallel_attn")) {
            (false, false) => ("parallel_attn", Value::Null),
            (true, false) => ("parallel_attn", "False beside `new_decoder_architecture`".into()),
            (false, true) if norms != 2.0 => ("parallel_attn", "one_norm".into()),
            (true, true) if norms == 1.0 => (key, "one_norm".into()),
            (true, true) if norms == 2.0 => (key, "two_norms".into()),
            _ => (key, format!("{norms} norms").into()),
        };
        insert("parallel_residual", key, value);
        if reading.is_on("alibi") {
            let why = "True, in steps of bfloat16 that are not built,";
            insert("alibi", "alibi", why.into());
        }
        let is_unlike = reading.number("num_kv_heads").is_some_and(|count| heads != json!(count as u64));
        if !is_new_falcon && !reading.is_on("multi_query") && is_unlike {
            insert("n_kv_heads", "num_kv_heads", "another number than of query heads".into());
        }
    }
    if reading.reads("attn_config") {
        let section = reading.decided("attn_config").1;
        let entries = || section.as_object().into_iter().flatten();
        let other = entries().find(|(key, value)| !is_of_mpt(key, value));
        insert("attn_config", "attn_config", other.map(|(key, value)| format!("{key}: {value}")).into());
        // None is 0, too.
        let limit = section.get("clip_qkv").filter(|limit| limit.as_f64() != Some(0.0));
        insert("clip_qkv", "attn_config", limit.cloned().unwrap_or_default());
        insert(
            "attention_multiplier",
            "attn_config",
            section.get("softmax_scale").cloned().unwrap_or_default(),
        );
        let is_layer_norm =
            reading.decided("norm_type").1.as_str().is_some_and(|kind| kind.ends_with("layernorm"));
        let kind = if is_layer_norm { Value::Null } else { reading.decided("norm_type").1 };
        insert("norm_type", "norm_type", kind);
    }
    // Phi, StableLM and Command R: a switch for LayerNorms of heads.
    let of_heads = match reading.class.name.as_str() {
        "phi" => Some(("qk_layernorm", "layer_norm")),
        "stablelm" => Some(("qk_layernorm", "layer_norm_by_head")),
        "cohere" => Some(("use_qk_norm", "layer_norm_by_head")),
        _ => None,
    };
    if let Some((key, kind)) = of_heads {
        let is_on = reading.is_on(key);
        insert("use_qk_norm", key, is_on.into());
        insert("qk_norm_kind", key, is_on.then_some(kind).into());
    }
    // DeepSeek-V3: a switch, which the class of DeepSeek-V2 passes over.
    if reading.reads("rope_interleave") {
        let value = match (reading.is_on("rope_interleave"), reading.class.name.as_str()) {
            (true, _) => Value::Null,
            (false, "deepseek_v2") if !reading.written.contains_key(NOTE) => {
                "False, which is passed over by transformers".into()
            }
            (false, _) => HALVES.into(),
        };
        insert("latent_rotation", "rope_interleave", value);
    }
    // MiniCPM 3: factors by the numbers of layers and of columns; a null is no factor. Heads share the columns.
    if reading.reads("scale_depth") {
        let other_than_one = |factor: Option<f64>| Value::from(factor.filter(|factor| *factor != 1.0));
        let residual = reading.number("scale_depth").zip(layers).map(|(depth, layers)| depth / layers.sqrt());
        let divisor = reading.number("dim_model_base").zip(width).map(|(base, width)| width / base);
        insert("residual_multiplier", "scale_depth", other_than_one(residual));
        insert("logits_scaling", "dim_model_base", other_than_one(divisor));
        if let (None, Some(width), Some(heads)) = (reading.number("v_head_dim"), width, heads.as_f64()) {
            insert("v_head_dim", "v_head_dim", json!((width / heads) as u64));
        }
    }
    // OPT: a switch for norms, which leave nothing to remove before the head; the embedding may be of another width.
    if reading.reads("word_embed_proj_dim") {
        let is_before = reading.is_on("do_layer_norm_before");
        let placement = (!is_before).then_some("after_sum");
        insert("norm_placement", "do_layer_norm_before", placement.into());
        if !is_before {
            insert("_remove_final_layer_norm", "_remove_final_layer_norm", false.into());
        }
        let width = reading.decided("word_embed_proj_dim").1;
        let is_whole = width.is_null() || width == reading.decided("hidden_size").1;
        insert("word_embed_proj_dim", "word_embed_proj_dim", if is_whole { Value::Null } else { width });
    }
    // GPT-J: a number of dimensions. The class itself fails without it.
    if reading.reads("rotary_dim") && !is_rotary(reading) {
        let share = reading.number("rotary_dim").map(|rotating| rotating / (2 * half) as f64);
        let value = share.filter(|share| share.is_finite()).map_or("all of them".into(), Value::from);
        insert("rotary_percent", "rotary_dim", value);
    }
    // LFM2: a rule for the width of feed-forward layers.
    if reading.reads("block_auto_adjust_ff_dim") {
        let (key, width) = reading.decided("block_ff_dim|intermediate_size");
        let adjusted = width.as_f64().filter(|_| reading.is_on("block_auto_adjust_ff_dim")).map(|width| {
            let width = (2.0 * width / 3.0).trunc();
            let Some(factor) = reading.number("block_ffn_dim_multiplier") else { return width };
            let multiple = reading.number("block_multiple_of").unwrap_or(1.0);
            multiple * ((factor * width).trunc() / multiple).ceil()
        });
        let width = adjusted.map_or(width, |adjusted| json!(adjusted as u64));
        insert("intermediate_size", &key, width);
    }
    // MiMo-V2: a null is no factor of experts, and values may be as wide as keys.
    if reading.reads(OF_MIMO) {
        if has_scaled_experts && reading.decided("routed_scaling_factor").1.is_null() {
            insert("routed_scaling_factor", "routed_scaling_factor", 1.into());
        }
        if Some(reading.decided("v_head_dim").1) == width_of_head {
            insert("v_head_dim", "v_head_dim", Value::Null);
        }
    }
    // ChatGLM: a switch and a number.
    if reading.reads("multi_query_attention") && !reading.is_on("multi_query_attention") {
        insert("n_kv_heads", "multi_query_attention", heads);
    }
    // Gemma 4: embeddings of each layer, for the tokens of the vocabulary.
    if reading.reads("hidden_size_per_layer_input") {
        let width = reading.number("hidden_size_per_layer_input").filter(|width| *width > 0.0);
        let [rows, vocabulary] =
            ["vocab_size_per_layer_input", "vocab_size"].map(|key| reading.number(key).unwrap_or(0.0));
        let rows = Some(rows as u64).filter(|_| width.is_some() && rows != vocabulary);
        let width = width.map(|width| width as u64);
        insert("hidden_size_per_layer_input", "hidden_size_per_layer_input", width.into());
        insert("vocab_size_per_layer_input", "vocab_size_per_layer_input", rows.into());
    }
    // Gemma 4: experts, beside dense networks.
    if reading.reads(BESIDE) {
        let value = match (reading.is_on(BESIDE), reading.number("num_experts")) {
            (false, _) => Value::Null,
            (true, Some(_)) => true.into(),
            (true, None) => "True without `num_experts`".into(),
        };
        insert(BESIDE, BESIDE, value);
    }
    // Gemma 4: of layers that share keys and values.
    if reading.reads("num_kv_shared_layers") {
        let shared = reading.number("num_kv_shared_layers").filter(|layers| *layers > 0.0);
        let is_wide = shared.is_some() && reading.is_on("use_double_wide_mlp");
        let shared = shared.map(|layers| layers as u64);
        insert("num_kv_shared_layers", "num_kv_shared_layers", shared.into());
        insert("use_double_wide_mlp", "use_double_wide_mlp", is_wide.then_some(true).into());
    }
    // Gemma 4: among the tokens of images alone.
    if reading.written.get("use_bidirectional_attention").is_some_and(|kind| kind == "vision") {
        insert("use_bidirectional_attention", "use_bidirectional_attention", Value::Null);
    }
    // Qwen2-VL: the parts of a position rotate shares of a head that make up half of it. The shares of Qwen3-VL are
    // interleaved.
    if reading.reads("mrope_section") && !reading.reads("mrope_interleaved") {
        let (_, parameters) = reading.decided("rope_scaling|rope_parameters");
        let section = parameters.get("mrope_section").and_then(Value::as_array);
        let sum =
            section.map_or(64, |parts| parts.iter().filter_map(Value::as_u64).fold(0, u64::saturating_add));
        let value = if sum == half { Value::Null } else { format!("of {sum} pairs of {half}").into() };
        insert("mrope_section", "mrope_section", value);
    }
}

/// Whether `key` of MPT's section `attn_config` says what is computed here. What the class of `transformers` passes
/// over, such as a norm of q and k, the code that was published with the weights computes.
fn is_of_mpt(key: &str, value: &Value) -> bool {
    match key {
        "alibi" => *value == true,
        "alibi_bias_max" => *value == 8,
        "attn_type" => *value == "multihead_attention",
        "qk_ln" | "prefix_lm" | "attn_uses_sequence_id" => *value == false,
        "softmax_scale" | "clip_qkv" | "attn_impl" | "attn_pdrop" => true,
        _ => classes::is_without_effect(key, value),
    }
}

/// Sets what layers with a window have of their own in MiMo-V2: twice as many key and value heads, and sinks.
pub(super) fn fill_windowed(reading: &Reading<'_>, slides: &[bool], facts: &mut Facts) {
    let Some(heads) = facts.get_mut("n_kv_heads").filter(|_| reading.reads(OF_MIMO)) else { return };
    let (of_full, key) = (heads.value.clone(), heads.key.clone());
    let (some, all) = (slides.contains(&true), !slides.contains(&false));
    if some {
        heads.value = of_full.as_u64().map(|count| count.saturating_mul(2)).into();
    }
    let of_full = if some && !all { of_full } else { Value::Null };
    facts.insert("num_global_key_value_heads", Fact { key, value: of_full });
    let sinks = some.then_some(if all { ALL } else { SLIDING });
    facts.insert("attention_sinks", Fact { key: "layer_types".to_string(), value: sinks.into() });
    let of_windowed = facts.get("n_kv_heads").map(|heads| heads.value.clone()).unwrap_or_default();
    if let Some((key, value)) = contradiction(reading, slides, of_windowed) {
        facts.insert("published_code", Fact { key: key.to_string(), value: value.into() });
    }
}

/// What a file of MiMo-V2 says to the code that was published with the weights, and the class of transformers takes from
/// elsewhere, where the two differ: the key, and a sentence.
fn contradiction(reading: &Reading<'_>, slides: &[bool], heads: Value) -> Option<(&'static str, String)> {
    let decided = |key: &str| reading.decided(key).1;
    let bits = |of: &mut dyn Iterator<Item = bool>| json!(of.map(u8::from).collect::<Vec<_>>());
    let mixed = match decided("mlp_layer_types").as_array() {
        Some(kinds) => bits(&mut kinds.iter().map(|kind| kind == "sparse")),
        None => bits(&mut (0..slides.len()).map(|layer| layer > 0)),
    };
    let theta = decided("rope_parameters")[SLIDING]["rope_theta"].clone();
    let taken = [
        ("hybrid_layer_pattern", bits(&mut slides.iter().copied())),
        ("moe_layer_freq", mixed),
        ("swa_num_attention_heads", decided("num_attention_heads")),
        ("swa_num_key_value_heads", heads),
        ("swa_head_dim", decided("head_dim")),
        ("swa_v_head_dim", decided("v_head_dim")),
        ("swa_rope_theta", theta),
        ("add_swa_attention_sink_bias", true.into()),
        ("add_full_attention_sink_bias", false.into()),
        ("layernorm_epsilon", decided("rms_norm_eps")),
        ("scoring_func", "sigmoid".into()),
        ("topk_method", "noaux_tc".into()),
        ("n_shared_experts", 0.into()),
    ];
    let differs = |said: &Value, taken: &Value| match (said.as_f64(), taken.as_f64()) {
        (Some(said), Some(taken)) => !is_same(said, taken),
        _ => said != taken && !taken.is_null(),
    };
    taken.into_iter().find_map(|(key, taken)| {
        let said = reading.written.get(key).filter(|said| !said.is_null() && differs(said, &taken))?;
        // As a number it is DeepSeek's, which our own files have.
        if key == "moe_layer_freq" && said.is_number() {
            return None;
        }
        Some((key, format!("{said}, where transformers takes {taken},")))
    })
}

/// Sets what layers without a window have of their own: null where it is as in others, or where there are no others, a
/// sentence where these layers are not all alike.
pub(super) fn fill_global(reading: &Reading<'_>, layers: &Layers, slides: &[bool], facts: &mut Facts) {
    const NUMBERS: [[&str; 3]; 2] = [
        ["global_head_dim", "head_dim", "head_dim"],
        ["num_global_key_value_heads", "n_kv_heads", "num_key_value_heads"],
    ];
    if !reading.reads("global_head_dim") {
        return;
    }
    let shares = reading.is_on("attention_k_eq_v");
    facts.entry("attention_k_eq_v").and_modify(|shared| {
        shared.value = if shares { true.into() } else { Value::Null };
    });
    let by_layer = reading.written.get("per_layer_config").and_then(Value::as_object);
    let all_slide = slides.iter().all(|slides| *slides);
    for [fact, usual, key] in NUMBERS {
        let usual_value = facts.get(usual).map(|usual| usual.value.clone()).unwrap_or_default();
        let (key, value) = match by_layer {
            None if fact != "global_head_dim" && !shares => (fact, usual_value.clone()),
            None => (fact, reading.decided(fact).1),
            Some(by_layer) => {
                let own = |layer: usize| by_layer.get(&layer.to_string()).and_then(|own| own.get(key));
                let value = |layer: usize| own(layer).cloned().unwrap_or_else(|| usual_value.clone());
                let mut global = (0..slides.len()).filter(|layer| !slides[*layer]).map(value);
                let first = global.next().unwrap_or_default();
                let are_alike = global.all(|other| other == first)
                    && (0..slides.len())
                        .filter(|layer| slides[*layer])
                        .all(|layer| value(layer) == usual_value);
                let value = if are_alike { first } else { "another in some layers of a kind".into() };
                ("per_layer_config", value)
            }
        };
        let is_own = !all_slide && !value.is_null() && value != usual_value;
        let is_of_all = !slides.contains(&true) && layers.told() > 0;
        if is_own
            && is_of_all
            && let Some(usual) = facts.get_mut(usual)
        {
            *usual = Fact { key: key.to_string(), value: value.clone() };
        }
        let value = if is_own && !is_of_all { value } else { Value::Null };
        facts.insert(fact, Fact { key: key.to_string(), value });
    }
    let others = |own: &Value| {
        let keys = own.as_object().into_iter().flat_map(|own| own.keys());
        keys.into_iter().any(|key| !NUMBERS.iter().any(|[.., known]| known == key))
    };
    if by_layer.is_some_and(|by_layer| by_layer.values().any(others)) {
        let value = "other numbers of some layers".into();
        facts.insert("global_head_dim", Fact { key: "per_layer_config".to_string(), value });
    }
}
