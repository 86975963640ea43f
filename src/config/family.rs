//! Which model the `model` section describes, and what that leaves to choose.

use super::document::Document;
use super::section::{Notes, Section};
use crate::error::Result;
use crate::model::config::{Activation, Family, Gelu};

/// Names of a family under `model_config.type` and `arch.type`.
const NAMES: [(Family, &str, &str); 2] =
    [(Family::Llama, "LlamaConfig", "LlamaForCausalLM"), (Family::Gpt2, "GPT2Config", "GPT2LMHeadModel")];

/// Switches that the family has decided: keys, Llama's value, GPT-2's.
const SWITCHES: [(&str, bool, bool); 6] = [
    ("gated_linear_unit", true, false),
    ("add_bias_linear", false, true),
    ("out_proj_has_bias", false, true),
    ("wo_has_bias", false, true),
    ("has_bias", false, true),
    ("post_layernorm_residual", false, false),
];

/// Words that the family has decided: keys, Llama's, GPT-2's; the first is what a remedy says.
const WORDS: [(&str, &str, &str); 2] = [
    ("normalization", "RMSNorm", "LayerNorm"),
    ("position_embedding_type", "rope", "learned_absolute absolute"),
];

/// Keys that say something only of the other family's layers.
const NOT_IN_LLAMA: &str = "expand_ratio";
const NOT_IN_GPT2: &str = "n_kv_heads head_dim multiple_of ffn_dim_multiplier theta rotary_percent rotary_interleaved \
    use_qk_norm extend_method scaling_factor rope_scaling pretrain_seqlen";

/// How files name a family's configuration.
pub(super) fn config_name(family: Family) -> &'static str {
    NAMES.iter().find(|(known, ..)| *known == family).map_or("", |(_, name, _)| name)
}

/// The family that `model_config.type` and `arch.type` name; Llama where neither does.
pub(super) fn read(document: &Document) -> Result<Family> {
    let config = named(document, "model.model_config.type", NAMES.map(|(family, name, _)| (family, name)))?;
    let arch = named(document, "model.arch.type", NAMES.map(|(family, _, name)| (family, name)))?;
    match (config, arch) {
        (Some(config), Some(arch)) if config != arch => {
            let message = format!("is not the model of `{}`; change one of the two", config_name(config));
            Err(document.error("model.arch.type", message))
        }
        _ => Ok(config.or(arch).unwrap_or(Family::Llama)),
    }
}

/// Refuses what the layers of `family` are not: a switch of the other family, or a key about layers it lacks.
pub(super) fn check(section: &Section, family: Family) -> Result<()> {
    let is_llama = family == Family::Llama;
    for (key, llama, gpt2) in SWITCHES {
        let built = if is_llama { llama } else { gpt2 };
        if let Some(found) = section.get::<bool>(key)?.filter(|found| *found != built) {
            let [found, built] = [found, built].map(|value| if value { "True" } else { "False" });
            return Err(section.error(key, format!("not built yet (found `{found}`); write `{built}`")));
        }
    }
    for (key, llama, gpt2) in WORDS {
        let built = if is_llama { llama } else { gpt2 };
        let mut known = built.split_whitespace();
        let found: Option<String> = section.get(key)?;
        if let Some(found) = found.filter(|found| !built.split_whitespace().any(|word| word == found)) {
            let remedy = format!("write `{key}: {}`", known.next().unwrap_or_default());
            return Err(section.error(key, format!("not built yet (found `{found}`); {remedy}")));
        }
    }
    let foreign = if is_llama { NOT_IN_LLAMA } else { NOT_IN_GPT2 };
    if let Some(key) = foreign.split_whitespace().find(|key| section.node(key).is_some()) {
        let message = format!("has no meaning for `{}`; remove it", config_name(family));
        return Err(section.error(key, message));
    }
    Ok(())
}

/// `hidden_act`, or the family's own activation.
pub(super) fn activation(section: &Section, family: Family, notes: &mut Notes) -> Result<Activation> {
    let word: Option<String> = section.get("hidden_act")?;
    match (family, word.as_deref()) {
        (Family::Llama, None | Some("silu" | "swiglu" | "fusedswiglu")) => Ok(Activation::SwiGlu),
        (Family::Gpt2, None | Some("gelu_new" | "gelu_tanh" | "gelu_pytorch_tanh")) => {
            Ok(Activation::Gelu(Gelu::Tanh))
        }
        (Family::Gpt2, Some("gelu_exact")) => Ok(Activation::Gelu(Gelu::Exact)),
        (Family::Gpt2, Some("gelu")) => {
            let text = "`gelu` is the exact form, by the error function; GPT-2 as published has the tanh form, `gelu_new`";
            notes.add(format!("{}: {text}", section.path("hidden_act")));
            Ok(Activation::Gelu(Gelu::Exact))
        }
        (_, Some(word)) => {
            let remedy = if family == Family::Llama { "silu" } else { "gelu_new" };
            let message = format!("not built yet (found `{word}`); write `hidden_act: {remedy}`");
            Err(section.error("hidden_act", message))
        }
    }
}

/// The word that [`activation`] reads as `activation`, without a notice.
pub(super) fn activation_name(activation: Activation) -> &'static str {
    match activation {
        Activation::SwiGlu => "silu",
        Activation::Gelu(Gelu::Exact) => "gelu_exact",
        Activation::Gelu(Gelu::Tanh) => "gelu_new",
    }
}

fn named(document: &Document, path: &str, names: [(Family, &'static str); 2]) -> Result<Option<Family>> {
    let Some(word) = document.word(path) else { return Ok(None) };
    match names.iter().find(|(_, name)| *name == word) {
        Some((family, _)) => Ok(Some(*family)),
        None => {
            let [(_, llama), (_, gpt2)] = names;
            let message = format!("`{word}` is not built yet; write `type: {llama}` or `type: {gpt2}`");
            Err(document.error(path, message))
        }
    }
}
