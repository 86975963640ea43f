//! Which model the `model` section describes, and what that leaves to choose.

use crate::element::Element;
use crate::model::config::{Activation, Family, Gelu};
use crate::settings::engine::*;

/// The section of the model.
pub(crate) const PATH: &str = "model.model_config";

impl Words for Family {
    const WORDS: &'static [(&'static str, Self)] =
        &[("LlamaConfig", Self::Llama), ("GPT2Config", Self::Gpt2)];
}

/// The same families as `model.arch.type` names them.
const ARCHITECTURES: [(&str, Family); 2] =
    [("LlamaForCausalLM", Family::Llama), ("GPT2LMHeadModel", Family::Gpt2)];

impl Words for Element {
    const WORDS: &'static [(&'static str, Self)] =
        &[("float32", Self::F32), ("float16", Self::F16), ("bfloat16", Self::Bf16)];
}

impl Words for Activation {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("silu", Self::SwiGlu),
        ("swiglu", Self::SwiGlu),
        ("fusedswiglu", Self::SwiGlu),
        ("gelu_new", Self::Gelu(Gelu::Tanh)),
        ("gelu_tanh", Self::Gelu(Gelu::Tanh)),
        ("gelu_pytorch_tanh", Self::Gelu(Gelu::Tanh)),
        ("gelu_exact", Self::Gelu(Gelu::Exact)),
        ("gelu", Self::Gelu(Gelu::Exact)),
        ("quick_gelu", Self::Gelu(Gelu::Fast)),
        ("fast_gelu", Self::Gelu(Gelu::Fast)),
    ];
}

/// The table of `model.arch`.
pub(crate) fn arch_table() -> Table {
    const REMEDY: &str = "the model must be `LlamaForCausalLM` or `GPT2LMHeadModel`";
    Table::unused(
        "`model.arch`: the class of the model, which says the same as `model_config.type`.",
        [
            sections("type"),
            refused("auto_register", Passes::Off, REMEDY),
            refused("pet", Passes::Off, "describe adapters in `model.model_config.pet_config`"),
        ],
    )
}

/// Keys whose value the family has decided.
pub(crate) fn family_table(family: Family) -> Table {
    match family {
        Family::Llama => Table::unused(
            "What a Llama is, whatever a file says.",
            [
                refused("gated_linear_unit", Passes::On, "write `True`"),
                refused(
                    "add_bias_linear out_proj_has_bias wo_has_bias has_bias post_layernorm_residual",
                    Passes::Off,
                    "write `False`",
                ),
                refused("normalization", Passes::Words("RMSNorm"), "write `normalization: RMSNorm`"),
            ],
        ),
        Family::Gpt2 => Table::unused(
            "What a GPT-2 is, whatever a file says.",
            [
                refused("gated_linear_unit post_layernorm_residual", Passes::Off, "write `False`"),
                refused("add_bias_linear out_proj_has_bias wo_has_bias has_bias", Passes::On, "write `True`"),
                refused("normalization", Passes::Words("LayerNorm"), "write `normalization: LayerNorm`"),
            ],
        ),
    }
}

/// The family that `model_config.type` and `arch.type` name, Llama where neither does; `None` after a fault.
pub(super) fn of(source: &Source<'_>) -> Option<Family> {
    let config = named(source, &format!("{PATH}.type"), Family::WORDS)?;
    let arch = named(source, "model.arch.type", &ARCHITECTURES)?;
    if let (Some(config), Some(arch)) = (config, arch)
        && config != arch
    {
        let message = format!("is not the model of `{}`; change one of the two", config.word());
        source.fault("model.arch.type", message);
        return None;
    }
    Some(config.or(arch).unwrap_or_default())
}

/// The row of `type` only repeats what [`of`] found.
pub(super) fn read(reader: &Reader<'_>, key: &'static str) -> Option<Family> {
    reader.node(key).and_then(Family::from_node)
}

/// `hidden_act`, which must suit the family.
pub(super) fn activation(reader: &Reader<'_>, key: &'static str) -> Option<Option<Activation>> {
    let is_llama = reader.kind_is(Family::Llama.word());
    let node = reader.node(key)?;
    match Activation::from_node(node) {
        Some(activation) if (activation == Activation::SwiGlu) == is_llama => {
            if node.word() == Some("gelu") {
                let text = "`gelu` is the exact form, by the error function; GPT-2 as published has the tanh form, `gelu_new`";
                reader.note(key, text);
            }
            Some(Some(activation))
        }
        _ => {
            let remedy = if is_llama { "silu" } else { "gelu_new" };
            reader.fault(key, format!("not built yet (found {node}); write `{key}: {remedy}`"));
            None
        }
    }
}

/// `position_embedding_type`: how Llama's rotary frequencies are stretched; GPT-2's positions are learned.
pub(super) fn positions(reader: &Reader<'_>, key: &'static str) -> Option<Option<String>> {
    let word: String = reader.convert(key, reader.node(key)?)?;
    let is_llama = reader.kind_is(Family::Llama.word());
    match (is_llama, word.as_str()) {
        (true, "rope") | (false, "learned_absolute" | "absolute") => Some(None),
        (
            true,
            "learned_absolute" | "absolute" | "none" | "relative" | "mrope" | "partial_rope" | "alibi",
        )
        | (false, _) => {
            let remedy = if is_llama { "rope" } else { "learned_absolute" };
            reader.fault(key, format!("not built yet (found `{word}`); write `{key}: {remedy}`"));
            None
        }
        (true, _) => Some(Some(word)),
    }
}

/// What `path` names, if it names anything; `None` after a fault.
fn named(source: &Source<'_>, path: &str, names: &[(&'static str, Family)]) -> Option<Option<Family>> {
    let Some(node) = source.node(path) else { return Some(None) };
    let word = super::pet::base_architecture(node.word().unwrap_or_default());
    let found = names.iter().find(|(name, _)| *name == word);
    if found.is_none() {
        let known: Vec<String> = names.iter().map(|(name, _)| format!("`type: {name}`")).collect();
        source.fault(path, format!("{node} is not built yet; write {}", known.join(" or ")));
    }
    found.map(|(_, family)| Some(*family))
}
