//! The names and layouts under which some models were first published, which are not those of `transformers`.

use crate::error::{Error, Result};
use serde_json::Value as Json;
use std::ops::Range;
use std::path::Path;

/// A published layout, and the heads of the model that a file of it holds.
pub(super) struct Published {
    layout: &'static Naming,
    heads: Option<Heads>,
}

/// Where a tensor of a model is.
pub(super) struct Location {
    /// The name of the tensor that holds it.
    pub name: String,
    /// Which rows of that one it is.
    pub cut: Cut,
}

/// Rows of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// All of them.
    Whole,
    /// A projection of one that holds q, k and v, all heads of each together.
    Stacked(Projection),
    /// A projection of one that holds them by groups: the query heads of a group, if any, its key head, its value head.
    Grouped(Projection),
}

/// A projection of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Projection {
    Query,
    Key,
    Value,
}

/// Query heads and their width.
#[derive(Clone, Copy)]
struct Heads {
    count: usize,
    width: usize,
}

struct Naming {
    /// The end of a name that only this layout has.
    mark: &'static str,
    /// Theirs for ours outside layers, without `.weight`.
    outside: &'static [(&'static str, &'static str)],
    /// What they write before the number of a layer.
    layers: &'static str,
    /// Ours and theirs in a layer, without `.weight` and `.bias`.
    inside: &'static [(&'static str, &'static str, Cut)],
}

use Cut::{Grouped, Stacked, Whole};
use Projection::{Key, Query, Value};

const NAMINGS: [&Naming; 4] = [
    // ChatGLM2 and 3, GLM-4.
    &Naming {
        mark: "layers.0.self_attention.query_key_value.weight",
        outside: &[
            ("model.embed_tokens", "transformer.embedding.word_embeddings"),
            ("model.norm", "transformer.encoder.final_layernorm"),
            ("lm_head", "transformer.output_layer"),
        ],
        layers: "transformer.encoder.layers",
        inside: &[
            ("input_layernorm", "input_layernorm", Whole),
            ("self_attn.q_proj", "self_attention.query_key_value", Stacked(Query)),
            ("self_attn.k_proj", "self_attention.query_key_value", Stacked(Key)),
            ("self_attn.v_proj", "self_attention.query_key_value", Stacked(Value)),
            ("self_attn.o_proj", "self_attention.dense", Whole),
            ("post_attention_layernorm", "post_attention_layernorm", Whole),
            ("mlp.gate_up_proj", "mlp.dense_h_to_4h", Whole),
            ("mlp.down_proj", "mlp.dense_4h_to_h", Whole),
        ],
    },
    // Qwen 1, whose second matrix is the gate.
    &Naming {
        mark: "h.0.mlp.w2.weight",
        outside: &[("model.embed_tokens", "transformer.wte"), ("model.norm", "transformer.ln_f")],
        layers: "transformer.h",
        inside: &[
            ("input_layernorm", "ln_1", Whole),
            ("self_attn.q_proj", "attn.c_attn", Stacked(Query)),
            ("self_attn.k_proj", "attn.c_attn", Stacked(Key)),
            ("self_attn.v_proj", "attn.c_attn", Stacked(Value)),
            ("self_attn.o_proj", "attn.c_proj", Whole),
            ("post_attention_layernorm", "ln_2", Whole),
            ("mlp.gate_proj", "mlp.w2", Whole),
            ("mlp.up_proj", "mlp.w1", Whole),
            ("mlp.down_proj", "mlp.c_proj", Whole),
        ],
    },
    // InternLM2.
    &Naming {
        mark: "layers.0.attention.wqkv.weight",
        outside: &[("model.embed_tokens", "model.tok_embeddings"), ("lm_head", "output")],
        layers: "model.layers",
        inside: &[
            ("input_layernorm", "attention_norm", Whole),
            ("self_attn.q_proj", "attention.wqkv", Grouped(Query)),
            ("self_attn.k_proj", "attention.wqkv", Grouped(Key)),
            ("self_attn.v_proj", "attention.wqkv", Grouped(Value)),
            ("self_attn.o_proj", "attention.wo", Whole),
            ("post_attention_layernorm", "ffn_norm", Whole),
            ("mlp.gate_proj", "feed_forward.w1", Whole),
            ("mlp.up_proj", "feed_forward.w3", Whole),
            ("mlp.down_proj", "feed_forward.w2", Whole),
        ],
    },
    // TeleChat.
    &Naming {
        mark: "h.0.self_attention.key_value.weight",
        outside: &[("model.embed_tokens", "transformer.word_embeddings"), ("model.norm", "transformer.ln_f")],
        layers: "transformer.h",
        inside: &[
            ("self_attn.q_proj", "self_attention.query", Whole),
            ("self_attn.k_proj", "self_attention.key_value", Grouped(Key)),
            ("self_attn.v_proj", "self_attention.key_value", Grouped(Value)),
            ("self_attn.o_proj", "self_attention.dense", Whole),
            ("input_layernorm", "input_layernorm", Whole),
            ("post_attention_layernorm", "post_attention_layernorm", Whole),
            ("mlp.gate_proj", "mlp.gate_proj", Whole),
            ("mlp.up_proj", "mlp.up_proj", Whole),
            ("mlp.down_proj", "mlp.down_proj", Whole),
        ],
    },
];

impl Published {
    /// The layout of a file with tensors of these `names`, if it is one of those here. Heads are those of `config`, the
    /// `config.json` beside it.
    pub fn recognise<'a>(config: &Json, names: impl Iterator<Item = &'a str> + Clone) -> Option<Self> {
        let has = |mark: &str| names.clone().any(|name| name.ends_with(mark));
        let layout = NAMINGS.into_iter().find(|layout| has(layout.mark))?;
        Some(Self { layout, heads: Heads::of(config) })
    }

    /// Where the tensor is that `transformers` calls `name`; `None` for one that has the same name here or is not
    /// known.
    pub fn place(&self, name: &str) -> Option<Location> {
        let (base, kind) = name.rsplit_once('.')?;
        let Some((layer, part)) = base.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'))
        else {
            let (_, theirs) = self.layout.outside.iter().find(|(ours, _)| *ours == base)?;
            return Some(Location { name: format!("{theirs}.{kind}"), cut: Whole });
        };
        let (_, theirs, cut) = self.layout.inside.iter().find(|(ours, ..)| *ours == part)?;
        Some(Location { name: format!("{}.{layer}.{theirs}.{kind}", self.layout.layers), cut: *cut })
    }

    /// The rows that `cut` takes of a tensor with `total` rows in the file at `path`.
    ///
    /// # Errors
    /// The heads are not known, or do not fit.
    pub fn rows(&self, cut: Cut, total: usize, path: &Path) -> Result<Vec<Range<usize>>> {
        let projection = match cut {
            Whole => return Ok(std::iter::once(0..total).collect()),
            Stacked(projection) | Grouped(projection) => projection,
        };
        let needed = "holds q, k and v as one tensor; put the model's config.json beside it, with `num_attention_heads` and \
                      `hidden_size` that fit";
        let rows = self.heads.and_then(|heads| heads.rows(cut, projection, total, self.has_queries()));
        rows.ok_or_else(|| Error::file(path, needed))
    }

    /// Whether what holds keys and values by groups holds queries too.
    fn has_queries(&self) -> bool {
        self.layout.inside.iter().any(|(.., cut)| matches!(cut, Grouped(Query)))
    }
}

impl Heads {
    /// Those of a `config.json` of Hugging Face.
    fn of(config: &Json) -> Option<Self> {
        let size = |names: &[&str]| {
            let found = names.iter().find_map(|name| config.get(name)?.as_u64());
            found.map(|size| size as usize).filter(|size| *size > 0)
        };
        let count = size(&["num_attention_heads", "n_head"])?;
        let width = size(&["kv_channels", "head_dim"]).or(Some(size(&["hidden_size"])? / count))?;
        Some(Self { count, width })
    }

    /// The rows of `projection`; `None` if these heads do not make up `total` rows.
    fn rows(
        self,
        cut: Cut,
        projection: Projection,
        total: usize,
        has_queries: bool,
    ) -> Option<Vec<Range<usize>>> {
        let queries = self.count.saturating_mul(self.width);
        let is_stacked = matches!(cut, Stacked(_));
        let both = total.checked_sub(if is_stacked || has_queries { queries } else { 0 })?;
        let keys = if both.is_multiple_of(2) { both / 2 } else { 0 };
        let groups = if is_stacked { 1 } else { keys / self.width.max(1) };
        if groups == 0 || keys == 0 || !keys.is_multiple_of(self.width) || !total.is_multiple_of(groups) {
            return None;
        }
        let (block, key) = (total / groups, keys / groups);
        let query = block.checked_sub(2 * key)?;
        let (first, rows) = match projection {
            Query => (0, query),
            Key => (query, key),
            Value => (query + key, key),
        };
        Some((0..groups).map(|group| group * block + first..group * block + first + rows).collect())
    }
}

#[cfg(test)]
mod tests;
