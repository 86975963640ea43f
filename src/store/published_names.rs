//! The names and layouts under which some models were first published, where these are not those of `transformers`.

use crate::error::{Error, Result};
use crate::hugging_face::config_json::{TensorNames, tensor_names};
use serde_json::Value as Json;
use std::ops::Range;
use std::path::Path;

/// A published layout, and the heads of the model in a file of that layout.
pub(super) struct Published {
    layout: &'static TensorNames,
    heads: Option<Heads>,
}

/// Where a tensor of a model is.
pub(super) struct Location {
    /// The name of the tensor that holds it.
    pub name: String,
    /// Which rows of that tensor it is.
    pub cut: Cut,
}

/// Rows of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// All rows.
    Whole,
    /// One projection in a tensor that holds q, k and v, all heads of each together.
    Stacked(Projection),
    /// One projection in a tensor that holds them by groups: the query heads of a group, if any, its key head, its
    /// value head.
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

use Cut::{Grouped, Stacked, Whole};
use Projection::{Key, Query, Value};

impl Published {
    /// The layout of a file with tensors of these `names`, if the layout is known here. The heads are those of
    /// `config`, the `config.json` beside the file.
    pub fn recognise<'a>(config: &Json, names: impl Iterator<Item = &'a str> + Clone) -> Option<Self> {
        let has = |mark: &str| names.clone().any(|name| name.ends_with(mark));
        let layout = tensor_names().find(|layout| has(&layout.mark))?;
        Some(Self { layout, heads: Heads::of(config) })
    }

    /// Where the tensor that `transformers` calls `name` is; `None` if the tensor has the same name here or is not
    /// known.
    pub fn place(&self, name: &str) -> Option<Location> {
        let (base, kind) = name.rsplit_once('.')?;
        let (layer, part) = match base.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')) {
            Some((layer, part)) => (format!("{}.{layer}.", self.layout.layers), part),
            None => (String::new(), base),
        };
        let theirs = self.layout.names.get(part)?;
        Some(Location { name: format!("{layer}{theirs}.{kind}"), cut: self.cut(part) })
    }

    /// Which rows of the published tensor our `part` is: the rows of one projection, if the tensor holds other
    /// projections too.
    fn cut(&self, part: &str) -> Cut {
        let projection = match part {
            "self_attn.q_proj" => Query,
            "self_attn.k_proj" => Key,
            "self_attn.v_proj" => Value,
            _ => return Whole,
        };
        let names = &self.layout.names;
        match names.values().filter(|theirs| names.get(part) == Some(theirs)).count() {
            0 | 1 => Whole,
            _ if self.layout.is_grouped => Grouped(projection),
            _ => Stacked(projection),
        }
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

    /// Whether the tensor that holds keys and values by groups holds queries too.
    fn has_queries(&self) -> bool {
        self.cut("self_attn.q_proj") == Grouped(Query)
    }
}

impl Heads {
    /// The heads that a `config.json` of Hugging Face describes.
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
