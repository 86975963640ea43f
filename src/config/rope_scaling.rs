//! `extend_method` with `scaling_factor`, or Hugging Face's `rope_scaling`: how rotary frequencies are stretched.

use super::document::Document;
use super::node::{FromNode, Node};
use super::section::Section;
use crate::error::{Error, Result};
use crate::model::config::{Llama3, RopeScaling, Yarn};

/// The parameters of each method that takes a section of them.
const LINEAR: &[&str] = &["factor"];
const YARN: &[&str] =
    &["factor", "original_max_position_embeddings", "beta_slow", "beta_fast", "mscale", "mscale_all_dim"];
const LLAMA3: &[&str] =
    &["factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"];

/// The length that DYNAMIC_NTK starts from where the file does not say: the original's default.
const PRETRAIN_SEQLEN: u64 = 2048;

/// Reads the scaling of a model whose longest position is `length` and whose base is `theta`.
pub(super) fn read(document: &Document, model: &Section, length: usize, theta: f64) -> Result<RopeScaling> {
    let method: Option<String> = model.get("extend_method")?;
    let scaling = if let Some(dict) = model.node("rope_scaling") {
        if method.is_some() {
            let message = "says the same as `extend_method` does; keep one of them";
            return Err(model.error("rope_scaling", message));
        }
        read_dict(document, model.path("rope_scaling"), dict, length)?
    } else {
        read_method(document, model, method.as_deref(), length)?
    };
    if matches!(scaling, RopeScaling::Yarn(_)) && theta <= 1.0 {
        return Err(model.error("theta", format!("YARN needs a base above 1, found `{theta}`")));
    }
    Ok(scaling)
}

/// What [`read`] reads as `scaling`: `extend_method`, and its parameters under the key that they belong to.
pub(super) fn written(scaling: &RopeScaling) -> Option<(&'static str, &'static str, Node)> {
    let section = |keys: &[&str], values: &[f64]| {
        let entries = keys.iter().zip(values).map(|(key, value)| (key.to_string(), Node::Float(*value)));
        Node::Map(entries.collect())
    };
    Some(match *scaling {
        RopeScaling::None => return None,
        RopeScaling::Linear { factor } => ("PI", "scaling_factor", factor.into()),
        RopeScaling::Ntk { factor } => ("NTK", "scaling_factor", factor.into()),
        RopeScaling::DynamicNtk { original, .. } => {
            ("DYNAMIC_NTK", "pretrain_seqlen", (original as u64).into())
        }
        RopeScaling::Yarn(Yarn { factor, original, beta_fast, beta_slow, mscale, mscale_all_dim }) => {
            let values = [factor, original, beta_slow, beta_fast, mscale, mscale_all_dim];
            ("YARN", "scaling_factor", section(YARN, &values))
        }
        RopeScaling::Llama3(Llama3 { factor, original, low_freq_factor, high_freq_factor }) => {
            let values = [factor, original, low_freq_factor, high_freq_factor];
            ("LLAMA3", "scaling_factor", section(LLAMA3, &values))
        }
    })
}

fn read_method(
    document: &Document,
    model: &Section,
    method: Option<&str>,
    length: usize,
) -> Result<RopeScaling> {
    let factor = model.node("scaling_factor");
    let parameters =
        |method, keys| Parameters::open(document, model.path("scaling_factor"), factor, method, keys);
    match method {
        Some("PI") => Ok(RopeScaling::Linear { factor: positive(model, "PI")? }),
        Some("NTK") => Ok(RopeScaling::Ntk { factor: positive(model, "NTK")? }),
        Some("DYNAMIC_NTK") => dynamic(model, length),
        Some("linear" | "LINEAR") => parameters("linear", LINEAR)?.linear(),
        Some("yarn" | "YARN") => parameters("YARN", YARN)?.yarn(None),
        Some("llama3" | "LLAMA3") => parameters("LLAMA3", LLAMA3)?.llama3(length),
        Some(word) => {
            let known = "None, PI, NTK, linear, DYNAMIC_NTK, YARN and LLAMA3";
            Err(model.error("extend_method", format!("unknown method `{word}`; known are {known}")))
        }
        // Files of the original carry a factor of 1 without a method.
        None if factor.is_some_and(|node| !node.is_off() && f64::from_node(node) != Some(1.0)) => {
            let message = "has no effect without `extend_method`; name a method or remove it";
            Err(model.error("scaling_factor", message))
        }
        None => Ok(RopeScaling::None),
    }
}

/// Hugging Face's section: the method is `rope_type`, in older files `type`.
fn read_dict(document: &Document, path: String, dict: &Node, length: usize) -> Result<RopeScaling> {
    let kind = ["rope_type", "type"].into_iter().find_map(|key| Some((key, dict.get(key)?.word()?)));
    let parameters = |method, keys| Parameters::open(document, path.clone(), Some(dict), method, keys);
    match kind {
        Some((_, "default")) => parameters("default", &[]).map(|_| RopeScaling::None),
        Some((_, "linear")) => parameters("linear", LINEAR)?.linear(),
        // What Hugging Face takes where its file is silent.
        Some((_, "yarn")) => parameters("yarn", YARN)?.yarn(Some([1.0, 32.0, 1.0, 0.0])),
        Some((_, "llama3")) => parameters("llama3", LLAMA3)?.llama3(length),
        Some((key, word)) => {
            let known = "default, linear, yarn and llama3; `extend_method` has others";
            let message = format!("not built yet (found `{word}`); known are {known}");
            Err(document.error(&format!("{path}.{key}"), message))
        }
        None => Err(document.error(&path, "`rope_type` is missing; give it linear, yarn or llama3")),
    }
}

fn positive(model: &Section, method: &str) -> Result<f64> {
    let wrong = |found: &dyn std::fmt::Display| {
        model.error("scaling_factor", format!("{method} takes a number above 0, found {found}"))
    };
    match model.node("scaling_factor") {
        None => Err(wrong(&"nothing")),
        Some(node) => f64::from_node(node).filter(|&factor| factor > 0.0).ok_or_else(|| wrong(node)),
    }
}

fn dynamic(model: &Section, length: usize) -> Result<RopeScaling> {
    if model.node("scaling_factor").is_some_and(|node| f64::from_node(node) != Some(1.0)) {
        let message = "has no meaning for DYNAMIC_NTK, which takes `pretrain_seqlen`; remove it";
        return Err(model.error("scaling_factor", message));
    }
    let original = model.positive("pretrain_seqlen", PRETRAIN_SEQLEN)?;
    if original > length as u64 {
        let message = format!(
            "{original} is above the longest position, {length}: nothing is extended; lower it or write \
             `extend_method: None`"
        );
        return Err(model.error("pretrain_seqlen", message));
    }
    Ok(RopeScaling::DynamicNtk { original: original as f64, length: length as f64 })
}

/// The parameters of one method; none is missing in silence, and none is too many.
struct Parameters<'a> {
    document: &'a Document,
    path: String,
    entries: &'a [(String, Node)],
    takes: String,
}

impl<'a> Parameters<'a> {
    fn open(
        document: &'a Document,
        path: String,
        node: Option<&'a Node>,
        method: &str,
        keys: &[&str],
    ) -> Result<Self> {
        let takes = match keys {
            [] => format!("{method} takes no other key"),
            keys => format!("{method} takes {}", keys.join(", ")),
        };
        let Some(Node::Map(entries)) = node else {
            let found = node.map_or("nothing".to_string(), ToString::to_string);
            return Err(document.error(&path, format!("expected a section, found {found}; {takes}")));
        };
        let is_kind = |key: &str| path.ends_with("rope_scaling") && ["type", "rope_type"].contains(&key);
        if let Some((key, _)) = entries.iter().find(|(key, _)| !keys.contains(&key.as_str()) && !is_kind(key))
        {
            return Err(document.error(&format!("{path}.{key}"), format!("unknown key; {takes}")));
        }
        Ok(Self { document, path, entries, takes })
    }

    fn linear(&self) -> Result<RopeScaling> {
        Ok(RopeScaling::Linear { factor: self.above_zero("factor", None)? })
    }

    /// `defaults` of beta_slow, beta_fast, mscale and mscale_all_dim.
    fn yarn(&self, defaults: Option<[f64; 4]>) -> Result<RopeScaling> {
        let default = |i: usize| defaults.map(|defaults| defaults[i]);
        let from_zero = |key, default| self.number(key, default, "a number from 0", |x| x >= 0.0);
        let yarn = Yarn {
            factor: self.above_zero("factor", None)?,
            original: self.above_zero("original_max_position_embeddings", None)?,
            beta_slow: self.above_zero("beta_slow", default(0))?,
            beta_fast: self.above_zero("beta_fast", default(1))?,
            mscale: from_zero("mscale", default(2))?,
            mscale_all_dim: from_zero("mscale_all_dim", default(3))?,
        };
        if yarn.beta_fast < yarn.beta_slow {
            let message = format!("is below beta_slow, {}; exchange the two", yarn.beta_slow);
            return Err(self.error("beta_fast", message));
        }
        Ok(RopeScaling::Yarn(yarn))
    }

    fn llama3(&self, length: usize) -> Result<RopeScaling> {
        let llama = Llama3 {
            factor: self.number("factor", None, "a number from 1", |factor| factor >= 1.0)?,
            original: self.above_zero("original_max_position_embeddings", None)?,
            low_freq_factor: self.above_zero("low_freq_factor", None)?,
            high_freq_factor: self.above_zero("high_freq_factor", None)?,
        };
        if llama.original >= length as f64 {
            let message = format!(
                "is not below the longest position, {length}; lower it or raise max_position_embeddings"
            );
            return Err(self.error("original_max_position_embeddings", message));
        }
        if llama.high_freq_factor <= llama.low_freq_factor {
            let message = format!("is not above low_freq_factor, {}; raise it", llama.low_freq_factor);
            return Err(self.error("high_freq_factor", message));
        }
        Ok(RopeScaling::Llama3(llama))
    }

    fn above_zero(&self, key: &str, default: Option<f64>) -> Result<f64> {
        self.number(key, default, "a number above 0", |number| number > 0.0)
    }

    fn number(
        &self,
        key: &str,
        default: Option<f64>,
        range: &str,
        accepts: impl Fn(f64) -> bool,
    ) -> Result<f64> {
        match (self.entries.iter().find(|(name, _)| name == key), default) {
            (Some((_, node)), _) => f64::from_node(node)
                .filter(|&number| accepts(number))
                .ok_or_else(|| self.error(key, format!("expected {range}, found {node}"))),
            (None, Some(default)) => Ok(default),
            (None, None) => {
                Err(self.document.error(&self.path, format!("`{key}` is missing; {}", self.takes)))
            }
        }
    }

    fn error(&self, key: &str, message: String) -> Error {
        self.document.error(&format!("{}.{key}", self.path), message)
    }
}
