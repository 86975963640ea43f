//! The types of models, one entry each.
//!
//! A type is a class of MindFormers' configuration (`model_config.type`) together with the classes of
//! `model.arch.type` that compute it alike. Most types read the rows of another type (`LlamaConfig` or
//! `GPT2Config`) and differ from it in defaults and keys of their own (`prepare`, which turns them into the rows of
//! the base), in keys that they do not use, in the names of a checkpoint's tensors (`Family`), and in what follows
//! beyond the rows (`finish`). Classes that stay out are in `outside.rs`, each with its reason.
//!
//! To add a type that our layers compute, write an entry in a file of this folder and list it in [`TYPES`], a row
//! in `configs/MINDFORMERS.md`, a file in `tests/data/dialect` with a test in `tests/training/rotary_types.rs`, and
//! a line in `tests/transformers/compare.py`.

mod baichuan;
mod bloom;
mod chatglm2;
mod deepseek;
mod gpt2;
mod internlm;
mod llama;
mod outside;
mod pangu;
mod qwen;
mod telechat;
mod wizardcoder;

pub(crate) use outside::{OUTSIDE, stays_out};

use super::words::PATH;
use super::{GPT2, LLAMA, Model};
use crate::model::config::{Family, ModelConfig};
use crate::settings::engine::*;

const ARCH: &str = "model.arch.type";

/// Every type. Where several share a class, the first one is meant unless `model.arch.type` names another.
pub(crate) const TYPES: [&TypeEntry; 15] = [
    &llama::LLAMA,
    &gpt2::GPT2,
    &chatglm2::CHATGLM2,
    &qwen::QWEN,
    &internlm::INTERNLM,
    &internlm::INTERNLM2,
    &telechat::TELECHAT,
    &baichuan::BAICHUAN2_7B,
    &baichuan::BAICHUAN_13B,
    &baichuan::BAICHUAN2_13B,
    &bloom::BLOOM,
    &wizardcoder::WIZARDCODER,
    &pangu::PANGU,
    &deepseek::V3,
    &deepseek::V2,
];

/// A type of model: which keys it has, what they are by default, and what follows from the type alone.
#[derive(Clone, Copy)]
pub struct ModelType(&'static TypeEntry);

/// What there is to know of a type.
pub(crate) struct TypeEntry {
    /// What is written as `type`. Unique.
    pub word: &'static str,
    /// The class of its configuration in MindFormers, where that is another word.
    pub class: Option<&'static str>,
    /// The classes of `model.arch.type` that go with it, between spaces.
    pub architectures: &'static str,
    /// What it is here, and how it differs from MindFormers, for the documentation.
    pub about: &'static str,
    /// The type whose rows, rules and defaults it shares: [`LLAMA`] or [`GPT2`].
    pub base: &'static str,
    /// Keys of its own that are not used.
    pub others: &'static [Other],
    /// Sets what it fixes, its defaults, and keys of its own that stand for others. Comes before the defaults of its base.
    pub prepare: fn(&mut Model, &Reader<'_>),
    /// The published family whose names its checkpoint has.
    pub family: Family,
    /// What follows from the type beyond its rows.
    pub finish: fn(&Model, &mut ModelConfig),
}

impl ModelType {
    /// What is written as `type`.
    pub fn word(self) -> &'static str {
        self.0.word
    }

    /// The words of the types whose rows it reads.
    pub(crate) fn reads(self) -> [&'static str; 2] {
        [self.0.word, self.0.base]
    }

    /// Whether it shares the rows and rules of `base`.
    pub(crate) fn is(self, base: &str) -> bool {
        self.reads().contains(&base)
    }

    /// What there is to know of it.
    pub(crate) fn entry(self) -> &'static TypeEntry {
        self.0
    }

    /// Every type.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        TYPES.into_iter().map(Self)
    }

    /// The type that `model_config.type` and `arch.type` name, Llama where neither does; `None` after a fault.
    pub(crate) fn find(source: &Source) -> Option<Self> {
        let class = format!("{PATH}.type");
        if stays_out(source) {
            return None;
        }
        let of_class: Vec<Self> = match source.node(&class) {
            None => Self::all().collect(),
            Some(node) => {
                Self::all().filter(|kind| kind.is_called(node.word().unwrap_or_default())).collect()
            }
        };
        let Some(first) = of_class.first() else {
            let found = source.node(&class).map_or(String::new(), ToString::to_string);
            let list = "`gristmill explain model.model_config.type` lists those that are";
            source.fault(&class, format!("{found} is not built; {list}"));
            return None;
        };
        let Some(arch) = source.node(ARCH) else { return Some(*first) };
        let goes_with = |kind: &&Self| kind.0.goes_with(arch.word().unwrap_or_default());
        let found = of_class.iter().find(goes_with);
        if found.is_none() {
            source.fault(ARCH, first.does_not_go_with(arch, source.node(&class).is_some()));
        }
        found.copied()
    }

    /// Whether `word` names its configuration.
    fn is_called(self, word: &str) -> bool {
        self.0.word == word || self.0.class == Some(word)
    }

    /// Why `arch` is not its class.
    fn does_not_go_with(self, arch: &Node, is_written: bool) -> String {
        let is_known = Self::all().any(|kind| kind.0.goes_with(arch.word().unwrap_or_default()));
        if is_known {
            return format!("is not the model of `{}`; change one of the two", self.word());
        }
        let of_others = Self::all().filter(|kind| !is_written || kind.is_called(self.word()));
        let known: Vec<&str> = of_others.filter_map(|kind| words(kind.0.architectures).next()).collect();
        format!("{arch} is not built; write `type: {}`", known.join("` or `type: "))
    }
}

impl TypeEntry {
    fn goes_with(&self, arch: &str) -> bool {
        words(self.architectures).any(|known| known == arch)
    }

    /// The keys that it does not use.
    pub fn table(&self) -> Table {
        let base = if self.base == LLAMA { llama::FIXED } else { gpt2::FIXED };
        let own = self.others.iter().chain(base).copied();
        let mut about = self.about.to_string();
        if let Some(class) = self.class {
            about += &format!(" In MindFormers its configuration is `{class}`.");
        }
        let arches: Vec<&str> = words(self.architectures).collect();
        about += &format!(" `model.arch.type`: `{}`.", arches.join("`, `"));
        if self.base != self.word {
            about += &format!(" It reads the keys of `{}`.", self.base);
        }
        Table::unused(&about, own.collect::<Vec<_>>())
    }
}

impl Default for ModelType {
    fn default() -> Self {
        Self(&llama::LLAMA)
    }
}

impl PartialEq for ModelType {
    fn eq(&self, other: &Self) -> bool {
        self.0.word == other.0.word
    }
}

impl std::fmt::Debug for ModelType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.word)
    }
}

impl Setting for ModelType {
    fn kind() -> Kind {
        Kind::Words(TYPES.iter().map(|entry| entry.word).collect())
    }

    fn to_node(&self) -> Option<Node> {
        Some(self.word().into())
    }
}

/// Nothing beyond the rows of the base.
fn nothing(_: &Model, _: &mut ModelConfig) {}

/// No defaults but those of the base.
fn plain(_: &mut Model, _: &Reader<'_>) {}
