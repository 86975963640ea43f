//! The words of the `model` section, and what they mean for a type of model.

use super::LLAMA;
use crate::element::Element;
use crate::model::config::{Activation, Gelu};
use crate::settings::engine::*;

/// The section of the model.
pub(crate) const PATH: &str = "model.model_config";

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
        ("gelu", Self::Gelu(Gelu::Tanh)),
        ("gelu_exact", Self::Gelu(Gelu::Exact)),
        ("quick_gelu", Self::Gelu(Gelu::Fast)),
        ("fast_gelu", Self::Gelu(Gelu::Fast)),
    ];
}

/// `hidden_act`, which must suit the type.
pub(super) fn activation(reader: &Reader<'_>, key: &'static str) -> Option<Activation> {
    let is_llama = reader.kind_is(LLAMA);
    let node = reader.node(key)?;
    match Activation::from_node(node) {
        Some(activation) if (activation == Activation::SwiGlu) == is_llama => {
            if node.word() == Some("gelu") {
                let text = "`gelu` is the tanh form, as in MindFormers; `gelu_exact` is the one by the error function";
                reader.note(key, text);
            }
            Some(activation)
        }
        _ => {
            let remedy = if is_llama { "silu" } else { "gelu_new" };
            reader.fault(key, format!("not built yet (found {node}); write `{key}: {remedy}`"));
            None
        }
    }
}
