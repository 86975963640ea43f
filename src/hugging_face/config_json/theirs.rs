//! What the class of a `config.json` computes.

use super::classes::{self, CONVOLUTION, FULL, Fact, Facts, LINEAR, Reading, SLIDING, Windows};
use super::of_class::BESIDE;
use super::{NOTE, of_class, rotary};
use crate::model::config::{LayerConfig, ModelConfig};
use serde_json::{Value, json};

/// The names of activations in files, each with our name. Of several names for one activation, the first is written.
pub(in crate::hugging_face) const ACTIVATIONS: [(&str, &str); 12] = [
    ("silu", "silu"),
    ("gelu_new", "gelu_new"),
    ("swish", "silu"),
    ("gelu", "gelu_exact"),
    ("gelu_python", "gelu_exact"),
    ("quick_gelu", "fast_gelu"),
    ("gelu_pytorch_tanh", "gelu_new"),
    ("gelu_fast", "gelu_new"),
    ("gelu_accurate", "gelu_new"),
    ("geglu", "geglu"),
    ("relu", "relu"),
    ("relu2", "relu2"),
];
/// The keys that say which layers have windows, and the keys that say which layers have experts.
const LAYERS: &str = "sliding_window use_sliding_window max_window_layers layer_types mlp_only_layers decoder_sparse_step \
    first_k_dense_replace mlp_layer_types";
/// More layers than any model has, which a file may name all the same.
pub(super) const MOST_LAYERS: usize = 65_536;

/// Whether the class reads `key`.
pub(super) fn reads(reading: &Reading<'_>, key: &str) -> bool {
    let is_of_windows = key.contains("window") || key == "layer_types";
    let lists_layers = LAYERS.split(' ').any(|known| known == key);
    // Files of some classes without windows carry the keys of windows, and say that windows are off.
    let is_off = reading.written.get("use_sliding_window").is_some_and(|switch| *switch == false);
    let has_windows = reading.class.windows() != Windows::Never || is_off;
    (lists_layers && is_of_windows && has_windows)
        || reading.reads(key)
        || (is_rotary(reading) && rotary::reads(key))
}

/// The facts of the model that is read, for texts of at most `longest` tokens: what masks or stretches only longer
/// texts is left out. A file may name any number of layers: only for the first `most_layers` is it told which have
/// windows.
pub(super) fn facts(reading: &Reading<'_>, longest: usize, most_layers: usize) -> Facts {
    let mut facts = reading.facts();
    let kind = Fact { key: "model_type".to_string(), value: reading.class.kind.as_str().into() };
    facts.insert("type", kind);
    fill_sizes(&mut facts);
    // A factor of 1 is none.
    for fact in ["embedding_multiplier", "residual_multiplier", "logits_scaling", "attention_value_scale"] {
        if let Some(said) = facts.get_mut(fact).filter(|said| said.value.as_f64() == Some(1.0)) {
            said.value = Value::Null;
        }
    }
    for fact in ["hidden_act", "linear_activation"] {
        let Some(Fact { value: Value::String(word), .. }) = facts.get_mut(fact) else { continue };
        // Gemma's first files say `gelu` and mean the form by tanh.
        if reading.class.name == "gemma" && word == "gelu" {
            *word = "gelu_new".to_string();
        }
        let ours = ACTIVATIONS.iter().find(|(theirs, _)| theirs == word);
        *word = ours.map_or(word.clone(), |(_, ours)| (*ours).to_string());
    }
    if reading.reads("moe_topk") {
        ["expert_num", "num_experts_chosen"].into_iter().for_each(|fact| take_one_for_all(&mut facts, fact));
    }
    fill_experts(reading, &mut facts);
    of_class::fill(reading, &mut facts);
    fill_attention(reading, longest, most_layers, &mut facts);
    facts
}

/// Takes two kinds of `facts` out: those that `model` computes the same, though it says them by other numbers, and
/// those that only follow from a difference that stays among them.
pub(super) fn take_out_equal(reading: &Reading<'_>, model: &ModelConfig, facts: &mut Facts) {
    let width = rotating_width(facts).unwrap_or(0.0);
    let is_same = |layer: &LayerConfig| {
        let kind = if model.published_window(layer).is_some() { SLIDING } else { FULL };
        // Another width of these layers is a difference of its own.
        let width = if model.has_own_heads() && kind == FULL { layer.head_dim as f64 } else { width };
        let is_as = |ours| rotary::is_same_rotation(reading, kind, model.max_positions, &ours, width);
        model.rotary(layer).is_none_or(is_as)
    };
    if is_rotary(reading) && model.layer_kinds().all(|(layer, _)| is_same(layer)) {
        let facts_of_it = ["theta", "rotary_percent", "rope_scaling", "sliding_theta"];
        facts_of_it.iter().for_each(|fact| drop(facts.remove(fact)));
    }
    let is_as_wide = number(facts, "head_dim") == Some(model.layer.head_dim as f64);
    if !is_as_wide && follows(reading, "attention_multiplier") {
        facts.remove("attention_multiplier");
    }
}

/// Whether the value of `fact` follows from other facts, as no key of the file says it.
pub(super) fn follows(reading: &Reading<'_>, fact: &str) -> bool {
    let is_of_section =
        reading.decided("attn_config").1.get("softmax_scale").is_some_and(|scale| !scale.is_null());
    let is_null = || reading.facts().get(fact).is_none_or(|scale| scale.value.is_null());
    fact == "attention_multiplier" && !is_of_section && is_null()
}

/// The width of which a share rotates.
fn rotating_width(facts: &Facts) -> Option<f64> {
    let of = if number(facts, "kv_lora_rank").is_some() { "qk_rope_head_dim" } else { "head_dim" };
    number(facts, of)
}

pub(super) fn is_rotary(reading: &Reading<'_>) -> bool {
    reading.reads("rope_theta") || reading.reads("rotary_emb_base")
}

fn number(facts: &Facts, fact: &str) -> Option<f64> {
    facts.get(fact)?.value.as_f64()
}

/// Sets the sizes that a file leaves to follow from the other sizes.
fn fill_sizes(facts: &mut Facts) {
    let size = |fact| number(facts, fact);
    let width = size("hidden_size").unwrap_or(0.0);
    let heads = size("num_heads").unwrap_or(0.0);
    let latent = size("qk_nope_head_dim").zip(size("qk_rope_head_dim")).map(|(nope, rope)| nope + rope);
    // In latent attention `head_dim` is another name of the width that rotates.
    let unlike =
        size("head_dim").filter(|written| latent.is_some() && size("qk_rope_head_dim") != Some(*written));
    let head_dim = latent.or(size("head_dim")).or((heads > 0.0).then(|| (width / heads).floor()));
    let filled = [
        ("n_kv_heads", size("n_kv_heads").unwrap_or(heads)),
        ("head_dim", head_dim.unwrap_or(0.0)),
        ("intermediate_size", size("intermediate_size").unwrap_or(4.0 * width)),
    ];
    for (fact, value) in filled {
        if let Some(fact) = facts.get_mut(fact) {
            fact.value = json!(value as u64);
        }
    }
    if let (Some(written), Some(fact)) = (unlike, facts.get_mut("qk_rope_head_dim")) {
        fact.value = format!("{} beside a `head_dim` of {written}", fact.value).into();
    }
}

/// Makes a list with the same number for each layer, as Hunyuan's files have it, that number.
fn take_one_for_all(facts: &mut Facts, fact: &str) {
    let layers = number(facts, "num_layers").unwrap_or(0.0);
    let Some(said) = facts.get_mut(fact) else { return };
    if let Some([first, others @ ..]) = said.value.as_array().map(Vec::as_slice)
        && others.len() as f64 + 1.0 >= layers
        && others.iter().all(|other| other == first)
    {
        said.value = first.clone();
    }
}

/// Sets the facts of the mixture that follow from which layers have experts.
fn fill_experts(reading: &Reading<'_>, facts: &mut Facts) {
    let layers = number(facts, "num_layers").unwrap_or(0.0).min(MOST_LAYERS as f64) as usize;
    let is_beside_dense = reading.reads(BESIDE);
    let is_without = !reading.is_on(BESIDE) || reading.number("num_experts").is_none();
    if is_beside_dense && is_without {
        return take_out_experts(facts, BESIDE.to_string());
    }
    if facts.get("expert_num").is_none_or(|experts| experts.value.is_null()) {
        return;
    }
    let (key, is_dense) = dense_layers(reading, layers);
    if let Some(kinds) = reading.decided("mlp_layer_types").1.as_array().filter(|kinds| kinds.len() != layers)
    {
        let value = format!("{} kinds of {layers} layers", kinds.len()).into();
        facts.insert("first_k_dense_replace", Fact { key, value });
        return;
    }
    let count = is_dense.iter().filter(|is_dense| **is_dense).count();
    if count == layers {
        return take_out_experts(facts, key);
    }
    if count == 0 && !is_beside_dense {
        facts.remove("intermediate_size");
    }
    let are_first = is_dense[..count].iter().all(|is_dense| *is_dense);
    let numbers = || (0..layers).filter(|layer| is_dense[*layer]).collect::<Vec<_>>();
    let value = if are_first { json!(count) } else { json!(numbers()) };
    facts.insert("first_k_dense_replace", Fact { key, value });
    let width = number(facts, "moe_intermediate_size").unwrap_or(0.0);
    if let Some(shared) = facts.get_mut("moe_shared_expert_intermediate_size") {
        let is_count = ["n_shared_experts", "moe_num_shared_experts"].contains(&shared.key.as_str());
        let each = if is_count { width } else { 1.0 };
        let total = (each * shared.value.as_f64().unwrap_or(0.0)) as u64;
        shared.value = if total == 0 { Value::Null } else { total.into() };
    }
    let groups = (number(facts, "n_group").unwrap_or(1.0), number(facts, "topk_group").unwrap_or(1.0));
    let is_greedy = facts.get("topk_method").is_some_and(|method| method.value == "greedy");
    if is_greedy || groups.1 == groups.0 {
        for fact in ["topk_method", "n_group", "topk_group"] {
            facts.entry(fact).and_modify(|fact| fact.value = Value::Null);
        }
    }
    let normalises = facts.get("norm_topk_prob").is_some_and(|norm| norm.value == true);
    if normalises && reading.class.name == "deepseek_v2" && !reading.written.contains_key(NOTE) {
        let value = "true, which DeepSeek's code computes and transformers does not".into();
        facts.entry("norm_topk_prob").and_modify(|norm| norm.value = value);
    }
    if normalises && number(facts, "num_experts_chosen") == Some(1.0) {
        // In Llama's layers our model leaves a single gate as it is.
        facts.entry("norm_topk_prob").and_modify(|norm| norm.value = "true of a single gate".into());
    }
}

/// Leaves of the facts of a mixture that there is none, as `key` says.
fn take_out_experts(facts: &mut Facts, key: String) {
    facts.insert("expert_num", Fact { key, value: Value::Null });
    let experts = &classes::named("experts").facts;
    let is_of_experts = |fact: &str| fact == "balance_via_topk_bias" || experts.contains_key(fact);
    facts.retain(|fact, _| *fact == "expert_num" || !is_of_experts(fact));
}

/// Which layers are dense, and the key that says so.
fn dense_layers(reading: &Reading<'_>, layers: usize) -> (String, Vec<bool>) {
    let (key, listed) = reading.decided("mlp_layer_types");
    if let Value::Array(kinds) = listed {
        return (
            key,
            (0..layers).map(|layer| kinds.get(layer).is_some_and(|kind| kind == "dense")).collect(),
        );
    }
    // ERNIE 4.5: every so many layers from one to another. The class takes -1 for the last.
    if reading.reads("moe_layer_start_index") {
        let number = |key| reading.number(key);
        let first = number("moe_layer_start_index").unwrap_or(0.0);
        let last = number("moe_layer_end_index").filter(|last| *last != -1.0).unwrap_or(f64::INFINITY);
        let interval = number("moe_layer_interval").unwrap_or(1.0).max(1.0) as usize;
        let has_experts =
            |layer: usize| (layer + 1).is_multiple_of(interval) && (first..=last).contains(&(layer as f64));
        let key = match (interval, last < layers as f64 - 1.0) {
            (1, false) => "moe_layer_start_index",
            (1, true) => "moe_layer_end_index",
            _ => "moe_layer_interval",
        };
        return (key.to_string(), (0..layers).map(|layer| !has_experts(layer)).collect());
    }
    if reading.reads("decoder_sparse_step") {
        let step = reading.number("decoder_sparse_step").unwrap_or(1.0).max(1.0) as usize;
        let (key, only) = reading.decided("mlp_only_layers");
        let is_listed = |layer: usize| only.as_array().is_some_and(|only| only.contains(&json!(layer)));
        let key = if step > 1 { "decoder_sparse_step".to_string() } else { key };
        return (
            key,
            (0..layers).map(|layer| is_listed(layer) || !(layer + 1).is_multiple_of(step)).collect(),
        );
    }
    // MiMo-V2: the first layer.
    if reading.reads("mlp_layer_types") && !reading.reads("first_k_dense_replace") {
        return (key, (0..layers).map(|layer| layer == 0).collect());
    }
    let (key, first) = reading.decided("first_k_dense_replace|num_dense_layers");
    let first = first.as_u64().unwrap_or(0) as usize;
    (key, (0..layers).map(|layer| layer < first).collect())
}

/// Sets the facts of windows, of the rotation, and of the factor of the scores.
fn fill_attention(reading: &Reading<'_>, longest: usize, most_layers: usize, facts: &mut Facts) {
    let head_dim = number(facts, "head_dim").unwrap_or(0.0);
    let is_latent = number(facts, "kv_lora_rank").is_some();
    if is_rotary(reading) {
        rotary::add(reading, longest, facts);
    }
    let said = facts.get("attention_multiplier");
    let key = said.map_or("attention_multiplier".to_string(), |scale| scale.key.clone());
    let scale = said.map(|Fact { value, .. }| value.as_f64().map_or(value.clone(), Value::from));
    let scale = scale.filter(|scale| !scale.is_null());
    let temperature = if is_latent { rotary::temperature(reading, longest) } else { 1.0 };
    let value = scale.unwrap_or_else(|| (temperature / head_dim.sqrt()).into());
    facts.insert("attention_multiplier", Fact { key, value });
    let layers = Layers { whole: number(facts, "num_layers").unwrap_or(0.0), most: most_layers };
    let rotates = match reading.class.rotates_in_windows {
        true => layers_that_may_slide(reading, &layers),
        false => rotating_layers(reading, &layers),
    };
    let of_windows = rotary::sliding_theta(reading, longest);
    let of_rotation = rotates.as_deref().unwrap_or_default();
    let slides = sliding_layers(reading, &layers, of_rotation);
    of_class::fill_global(reading, &layers, &slides, facts);
    of_class::fill_windowed(reading, &slides, facts);
    // Layers whose windows hide nothing still rotate otherwise, have other heads or sinks, or share keys and values.
    let by_kind =
        ["global_head_dim", "num_global_key_value_heads", "attention_k_eq_v", "num_kv_shared_layers"];
    // In gpt-oss all layers have sinks.
    let of_windows_alone = if reading.class.name == "gpt_oss" { None } else { Some("attention_sinks") };
    let mut by_kind = by_kind.into_iter().chain(of_windows_alone);
    let differ_by_kind = by_kind.any(|fact| facts.get(fact).is_some_and(|said| !said.value.is_null()));
    let hides = if of_windows.value.is_null() && !differ_by_kind { longest } else { usize::MAX };
    let [size, mut types] = windows(reading, &layers, of_rotation, hides);
    for (kind, prefix, found) in [
        (LINEAR, "linear_", linear_layers(reading, &layers)),
        (CONVOLUTION, "conv_L_cache", convolved_layers(reading, &layers)),
    ] {
        let Some(found) = found else { continue };
        if !found.as_ref().is_ok_and(|found| found.contains(&true)) {
            facts.retain(|fact, _| !fact.starts_with(prefix));
        }
        types = found.map_or_else(Value::from, |found| types_of(kind, &found));
    }
    let rotates = rotates.map_or_else(Value::from, |rotates| no_rope_layers(&rotates));
    let of_windows = if size.is_null() { Fact { value: Value::Null, ..of_windows } } else { of_windows };
    for (fact, value) in [("sliding_window", size), ("layer_types", types), ("no_rope_layers", rotates)] {
        facts.insert(fact, Fact { key: fact.to_string(), value });
    }
    facts.insert("sliding_theta", of_windows);
}

/// The layers of a file, of which it is told what the first `most` are.
pub(super) struct Layers {
    whole: f64,
    most: usize,
}

impl Layers {
    pub fn told(&self) -> usize {
        self.whole.min(self.most as f64) as usize
    }

    /// A sentence about a list of `key` that does not have an entry for each layer.
    fn misfit(&self, key: &str, listed: &[Value]) -> Option<String> {
        (listed.len() as f64 != self.whole)
            .then(|| format!("{} entries of {} layers ({key})", listed.len(), self.whole))
    }
}

/// Which layers have linear attention, or a sentence; `None` in classes that do not know it.
fn linear_layers(reading: &Reading<'_>, layers: &Layers) -> Option<Result<Vec<bool>, String>> {
    const INTERVAL: &str = "full_attention_interval";
    if !reading.reads(INTERVAL) {
        return None;
    }
    let told = layers.told();
    if let Some(listed) = listed_layers(reading, layers, LINEAR) {
        return Some(listed);
    }
    // The class itself divides by this number.
    let interval = reading.number(INTERVAL).filter(|interval| *interval >= 1.0);
    let by_rule =
        |interval: f64| (1..=told).map(|number| !number.is_multiple_of(interval as usize)).collect();
    Some(
        interval
            .map(by_rule)
            .ok_or("without `layer_types`, and without a number to choose its layers".into()),
    )
}

/// Which layers have a gated convolution, or a sentence; `None` in classes that do not know it. Where LFM2's file does
/// not list kinds, it may have the numbers of the others; all others have attention.
fn convolved_layers(reading: &Reading<'_>, layers: &Layers) -> Option<Result<Vec<bool>, String>> {
    const NUMBERS: &str = "full_attn_idxs";
    if !reading.reads("conv_L_cache") {
        return None;
    }
    let listed = listed_layers(reading, layers, CONVOLUTION);
    Some(listed.unwrap_or_else(|| match reading.decided(NUMBERS).1 {
        // The class itself fails without a list.
        _ if !reading.reads(NUMBERS) => Err("without `layer_types`".to_string()),
        Value::Array(numbers) => {
            Ok((0..layers.told()).map(|layer| !numbers.contains(&json!(layer))).collect())
        }
        _ => Ok(vec![false; layers.told()]),
    }))
}

/// Which layers are of `kind`, where the file lists kinds, or a sentence: the others have full attention.
fn listed_layers(reading: &Reading<'_>, layers: &Layers, kind: &str) -> Option<Result<Vec<bool>, String>> {
    let Value::Array(listed) = reading.decided("layer_types").1 else { return None };
    if let Some(other) = listed.iter().find(|listed| **listed != kind && **listed != FULL) {
        return Some(Err(format!("{other} in some layers")));
    }
    let is_of_kind = listed.iter().take(layers.told()).map(|listed| listed == kind).collect();
    Some(layers.misfit("layer_types", &listed).map_or(Ok(is_of_kind), Err))
}

/// Whether each layer rotates, or a sentence. In SmolLM3 1 stands for a layer that does; without a list one layer in
/// every `no_rope_layer_interval` does not.
fn rotating_layers(reading: &Reading<'_>, layers: &Layers) -> Result<Vec<bool>, String> {
    const KEY: &str = "no_rope_layers";
    let told = layers.told();
    if !reading.reads(KEY) {
        return Ok(vec![true; told]);
    }
    if let Value::Array(listed) = reading.decided(KEY).1 {
        let rotates = listed.iter().take(told).map(|rotates| *rotates != 0 && *rotates != false).collect();
        return layers.misfit(KEY, &listed).map_or(Ok(rotates), Err);
    }
    let interval = reading.number("no_rope_layer_interval").filter(|interval| *interval >= 1.0);
    let interval = interval.ok_or("without an interval above 0")? as usize;
    Ok((1..=told).map(|number| !number.is_multiple_of(interval)).collect())
}

/// Whether each layer rotates, where those do that would have a window however narrow, or all if the file gives none;
/// or a sentence.
fn layers_that_may_slide(reading: &Reading<'_>, layers: &Layers) -> Result<Vec<bool>, String> {
    let told = layers.told();
    // Only Command R of the second generation never rotates elsewhere.
    let has_window = reading.number("sliding_window").is_some() || reading.class.name == "cohere2";
    if let Value::Array(listed) = reading.decided("layer_types").1 {
        let slides = listed.iter().take(told).map(|kind| !has_window || kind == SLIDING).collect();
        return layers.misfit("layer_types", &listed).map_or(Ok(slides), Err);
    }
    // The class itself divides by this number.
    let pattern = reading.number("sliding_window_pattern").filter(|pattern| has_window && *pattern >= 1.0);
    let pattern =
        pattern.ok_or("without `layer_types`, and without a window and a number to choose its layers")?;
    Ok((1..=told).map(|number| !number.is_multiple_of(pattern as usize)).collect())
}

/// The window of the layers that have one, null for none, and which layers these are, null for all; or a sentence. A
/// window of at least `longest` tokens counts as none. `rotates` is whether each layer rotates.
fn windows(reading: &Reading<'_>, layers: &Layers, rotates: &[bool], longest: usize) -> [Value; 2] {
    let none = [Value::Null, Value::Null];
    let rule = reading.class.windows();
    let is_off = reading.reads("use_sliding_window") && !reading.is_on("use_sliding_window");
    let listed = reading.decided("layer_types").1;
    let listed = listed.as_array().filter(|_| !matches!(rule, Windows::Never | Windows::Always));
    // MiMo-V2 may write the tokens before that which attends.
    let before = reading.number("sliding_window_size").filter(|_| reading.reads("sliding_window_size"));
    let size = before.map(|before| before + 1.0).or_else(|| reading.number("sliding_window"));
    let size = size.filter(|size| *size >= 1.0);
    let has_rule = matches!(
        rule,
        Windows::ThreeOfFour | Windows::FirstThreeOfFour | Windows::OneOfTwo | Windows::InnerFiveOfSix
    );
    let lists = listed.map_or(has_rule, |types| types.iter().any(|kind| kind == SLIDING));
    if lists && (is_off || size.is_none()) {
        let word = if is_off { "off" } else { "none" };
        return [format!("{word}, though `layer_types` lists `{SLIDING}`").into(), Value::Null];
    }
    let has_window = |size: &f64| *size < longest as f64 && rule != Windows::Never && !is_off;
    let size = size.filter(has_window).map(|size| size as usize);
    // Other kinds of attention differ whether or not there is a window.
    let other = listed.and_then(|listed| listed.iter().find(|kind| **kind != SLIDING && **kind != FULL));
    if let Some(kind) = other {
        return [size.into(), format!("{kind} in some layers").into()];
    }
    let Some(size) = size else {
        return none;
    };
    if let Some(misfit) = listed.and_then(|listed| layers.misfit("layer_types", listed)) {
        return [size.into(), misfit.into()];
    }
    let slides = sliding_layers(reading, layers, rotates);
    match slides.contains(&true) {
        true => [size.into(), layer_types(&slides)],
        false => none,
    }
}

/// Which layers have the window, if there is one.
fn sliding_layers(reading: &Reading<'_>, layers: &Layers, rotates: &[bool]) -> Vec<bool> {
    let rule = reading.class.windows();
    let listed = reading.decided("layer_types").1;
    let listed = listed.as_array().filter(|_| !matches!(rule, Windows::Never | Windows::Always));
    let border = reading.number("max_window_layers").map_or(0, |layers| layers as usize);
    let pattern = reading.number("sliding_window_pattern").map_or(1, |pattern| pattern as usize);
    let by_rule = |layer: usize| match rule {
        Windows::Never => false,
        Windows::Always | Windows::All => true,
        Windows::Last => layer >= border,
        Windows::Alternate => layer < border && layer.is_multiple_of(2),
        Windows::ThreeOfFour => !layer.is_multiple_of(4),
        Windows::FirstThreeOfFour => !(layer + 1).is_multiple_of(4),
        Windows::OneOfTwo => layer.is_multiple_of(2),
        Windows::Unrotated => rotates.get(layer) == Some(&false),
        Windows::Pattern => !(layer + 1).is_multiple_of(pattern),
        Windows::FiveOfSix => !(layer + 1).is_multiple_of(6),
        Windows::InnerFiveOfSix => layer > 0 && !(layer + 1).is_multiple_of(6),
    };
    let slides = |layer: usize| match listed {
        _ if rule == Windows::FiveOfSix && (layer + 1) as f64 == layers.whole => false,
        Some(types) => types.get(layer).is_some_and(|kind| kind == SLIDING),
        None => by_rule(layer),
    };
    (0..layers.told()).map(slides).collect()
}

/// `layer_types` of layers that have windows or not; null if all have one.
pub(super) fn layer_types(slides: &[bool]) -> Value {
    pattern(slides, true, |slides| if slides { SLIDING } else { FULL }.into())
}

/// `layer_types` of layers of which some are of `kind` and the others have attention; null if none is.
pub(super) fn types_of(kind: &str, are_of_kind: &[bool]) -> Value {
    pattern(are_of_kind, false, |is_of_kind| if is_of_kind { kind } else { FULL }.into())
}

/// `no_rope_layers` of layers that rotate or not; null if all do.
pub(super) fn no_rope_layers(rotates: &[bool]) -> Value {
    pattern(rotates, true, |rotates| u8::from(rotates).into())
}

/// The values of the first layers that are repeated for the others; null if all layers are `usual`.
fn pattern(layers: &[bool], usual: bool, value: impl Fn(bool) -> Value) -> Value {
    if layers.iter().all(|is_so| *is_so == usual) {
        return Value::Null;
    }
    let count = layers.len();
    let period = (1..count).find(|period| layers[*period..] == layers[..count - period]).unwrap_or(count);
    layers[..period].iter().map(|is_so| value(*is_so)).collect()
}
