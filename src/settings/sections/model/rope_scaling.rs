//! `rope_scaling`: how rotary frequencies are stretched.

use crate::model::config::{Divisors, Llama3, LongRope, QueryScaling, RopeScaling, Yarn};
use crate::settings::engine::*;

rows! {
    /// `model.model_config.rope_scaling`: how rotary frequencies are stretched.
    pub struct Scaling in "model.model_config.rope_scaling" {
        /// Method of scaling; in older files the key is `type`.
        kind "rope_type": Method = Numbers.optional().example("ntk"),
        /// Divisor of positions (`linear`), factor of the base (`ntk`), or divisor of the frequencies of slow pairs
        /// (`yarn`; `llama3`: from 1); by how much the base grows with the length (`dynamic`, from 1).
        factor: Option<f64> = Numbers.optional().within(ABOVE_ZERO).of("linear ntk yarn llama3 dynamic").example("2.0"),
        /// Context length of the original training, in tokens.
        original_max_position_embeddings: Option<f64> = Numbers.optional().within(ABOVE_ZERO)
            .of("dynamic_ntk yarn llama3 dynamic longrope").example("16"),
        /// A divisor of the frequency of each pair, in texts of at most `original_max_position_embeddings` tokens.
        /// Training and evaluation have texts of one length, `seq_length`.
        short_factor: Option<Vec<f64>> = Numbers.optional().within(ABOVE_ZERO).of("longrope")
            .example("[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.5, 2.0]"),
        /// The same in longer texts.
        long_factor: Option<Vec<f64>> = Numbers.optional().within(ABOVE_ZERO).of("longrope")
            .example("[2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 3.0, 4.0]"),
        /// The factor of cos and sin. By default, with f = `max_position_embedding` /
        /// `original_max_position_embeddings`, the root of 1 + ln f / ln `original_max_position_embeddings`, or 1 where
        /// f is at most 1.
        attention_factor: Option<f64> = Numbers.optional().within(ABOVE_ZERO).of("longrope").example("1.25"),
        /// Pairs with fewer rotations than this over the original context are divided by `factor`; 1 by default.
        beta_slow: Option<f64> = Numbers.optional().within(ABOVE_ZERO).of("yarn").example("2.0"),
        /// Pairs with more rotations than this over the original context are kept; 32 by default.
        beta_fast: Option<f64> = Numbers.optional().within(ABOVE_ZERO).of("yarn").example("16.0"),
        /// cos and sin are multiplied by m(`mscale`) / m(`mscale_all_dim`), m(s) = 0.1 s ln(`factor`) + 1. The default
        /// of `mscale` is 1.
        mscale: Option<f64> = Numbers.optional().within(FROM_ZERO).of("yarn").example("0.5"),
        /// Argument of the divisor of cos and sin, see `mscale`; 0 by default. With latent attention the scores are
        /// multiplied by m(`mscale_all_dim`)², too.
        mscale_all_dim: Option<f64> = Numbers.optional().within(FROM_ZERO).of("yarn").example("0.5"),
        /// Whether the pairs between these two bounds begin and end at whole pairs; True by default, False in gpt-oss.
        truncate: Option<bool> = Numbers.optional().of("yarn").example("False"),
        /// Pairs whose wavelength is above `original_max_position_embeddings / low_freq_factor` are divided by
        /// `factor`.
        low_freq_factor: Option<f64> = Numbers.optional().within(ABOVE_ZERO).of("llama3").example("1.5"),
        /// Pairs whose wavelength is below `original_max_position_embeddings / high_freq_factor` are kept.
        high_freq_factor: Option<f64> = Numbers.optional().within(ABOVE_ZERO).of("llama3").example("8.0"),
        /// Share of the pairs that rotate, the fast ones; the others do not.
        partial_rotary_factor: Option<f64> = Numbers.optional().within(SHARE_ABOVE_ZERO).of("proportional")
            .example("0.25"),
        /// Queries at position p are multiplied by 1 + this · ln(1 + ⌊p / `original_max_position_embeddings`⌋), as in
        /// Ministral 3; not by default.
        llama_4_scaling_beta: Option<f64> = Numbers.optional().within(ABOVE_ZERO).of("yarn llama3").example("0.1"),
    }
    sections "type"
}

words! {
    /// `rope_type`.
    pub enum Method {
        /// Frequencies are not stretched.
        #[default]
        Default = "default",
        /// Positions are divided by `factor`.
        Linear = "linear",
        /// The base is multiplied by `factor`.
        Ntk = "ntk",
        /// The base grows with the length.
        DynamicNtk = "dynamic_ntk",
        /// Pairs are stretched by parts, depending on how often they turn over the original context.
        Yarn = "yarn",
        /// Pairs are stretched depending on their wavelength.
        Llama3 = "llama3",
        /// Fast pairs alone rotate, as in Gemma 4.
        Proportional = "proportional",
        /// The base grows with the length of texts that are longer than `original_max_position_embeddings`, as in
        /// Hugging Face's `dynamic`.
        Dynamic = "dynamic",
        /// Each pair has a divisor of its own, as in Phi-3.
        LongRope = "longrope",
    }
}

/// The keys that no method needs.
pub(super) const GROWTH: &str = "llama_4_scaling_beta";
const NOT_NEEDED: [&str; 3] = [GROWTH, "truncate", "attention_factor"];

/// A value that was read has every parameter that its method takes.
impl Setting for Scaling {
    fn kind() -> ValueKind {
        ValueKind::Form("a section with `rope_type`")
    }

    fn to_node(&self) -> Option<Node> {
        (self.kind != Method::Default).then(|| self.written())
    }
}

impl Scaling {
    /// How queries grow, in a section that was filled.
    pub(crate) fn query_scaling(&self) -> Option<QueryScaling> {
        let original = self.original_max_position_embeddings?;
        self.llama_4_scaling_beta.map(|beta| QueryScaling { beta, original })
    }

    /// The scaling of a section that was filled, for a model whose longest position is `length`.
    pub(crate) fn config(&self, length: usize) -> RopeScaling {
        let given = Option::unwrap_or_default;
        let (factor, original) = (given(self.factor), given(self.original_max_position_embeddings));
        match self.kind {
            Method::Default => RopeScaling::None,
            Method::Linear => RopeScaling::Linear { factor },
            Method::Ntk => RopeScaling::Ntk { factor },
            Method::DynamicNtk => RopeScaling::DynamicNtk { original, length: length as f64 },
            Method::Yarn => RopeScaling::Yarn(Yarn {
                factor,
                original,
                beta_slow: given(self.beta_slow),
                beta_fast: given(self.beta_fast),
                mscale: given(self.mscale),
                mscale_all_dim: given(self.mscale_all_dim),
                is_truncated: self.truncate != Some(false),
            }),
            Method::Llama3 => RopeScaling::Llama3(Llama3 {
                factor,
                original,
                low_freq_factor: given(self.low_freq_factor),
                high_freq_factor: given(self.high_freq_factor),
            }),
            Method::Proportional => RopeScaling::Proportional { share: given(self.partial_rotary_factor) },
            Method::Dynamic => RopeScaling::Dynamic { factor, original, length: original },
            Method::LongRope => RopeScaling::LongRope(LongRope {
                divisors: [&self.short_factor, &self.long_factor]
                    .map(|list| Divisors::new(list.as_deref().unwrap_or_default())),
                original,
                is_long: false,
                magnitude: self
                    .attention_factor
                    .unwrap_or_else(|| LongRope::usual_magnitude(length as f64 / original, original)),
            }),
        }
    }
}

/// Hugging Face's section: the method is `rope_type`, in older files `type`.
pub(super) fn read_dict(reader: &Reader<'_>, key: &'static str) -> Option<Scaling> {
    let (source, path) = (reader.source, reader.path(key));
    if !matches!(reader.node(key), Some(Node::Map(_))) {
        let found = reader.node(key).map_or("nothing".to_string(), ToString::to_string);
        reader.fault(key, format!("expected {}, found {found}", Scaling::kind().expected()));
        return None;
    }
    let named = ["rope_type", "type"].map(|key| format!("{path}.{key}"));
    let Some((place, word)) = named.iter().find_map(|place| Some((place, source.word(place)?))) else {
        source.fault(&path, "`rope_type` is missing; give it linear, yarn, llama3 or proportional");
        return None;
    };
    let Some(method) = Method::named(word) else {
        let known =
            "default, linear, yarn, llama3, proportional, dynamic and longrope; `extend_method` has others";
        source.fault(place, format!("not built yet (found `{word}`); known are {known}"));
        return None;
    };
    let mut parameters = read_parameters(reader, key, method, word)?;
    if method == Method::Yarn {
        // Hugging Face's defaults.
        parameters.beta_slow.get_or_insert(1.0);
        parameters.beta_fast.get_or_insert(32.0);
        parameters.mscale.get_or_insert(1.0);
        parameters.mscale_all_dim.get_or_insert(0.0);
    }
    require_all(reader, key, parameters, word)
}

/// The parameters in the section `key` that `method`, written `word`, takes; faults for others.
fn read_parameters(reader: &Reader<'_>, key: &'static str, method: Method, word: &str) -> Option<Scaling> {
    let path = reader.path(key);
    let section = Reader::open(reader.source, &path, &[Scaling::ID]).of_type(method.word());
    for (key, _) in section.foreign::<Scaling>() {
        section.fault(key, format!("unknown key; {}", takes(method, word)));
    }
    let parameters = Scaling { kind: method, ..Scaling::read(&section) };
    reader.source.is_sound(&path).then_some(parameters)
}

/// Reports the first parameter that is absent though the method takes it.
fn require_all(reader: &Reader<'_>, key: &str, parameters: Scaling, word: &str) -> Option<Scaling> {
    let (kind, entries) = (parameters.kind, parameters.entries());
    let keys = keys_of(kind);
    let absent = entries.iter().find(|entry| keys.contains(&entry.key) && entry.written.is_none());
    if let Some(absent) = absent {
        reader.fault(key, format!("`{}` is missing; {}", absent.key, takes(kind, word)));
    }
    absent.is_none().then_some(parameters)
}

/// The keys that `method` needs.
pub(crate) fn keys_of(method: Method) -> Vec<&'static str> {
    let table = Scaling::table();
    let is_needed = |row: &&RowText| row.types.contains(&method.word()) && !NOT_NEEDED.contains(&row.key);
    let rows = table.rows.iter().filter(is_needed);
    rows.map(|row| row.key).collect()
}

pub(crate) fn takes(method: Method, word: &str) -> String {
    let keys = keys_of(method);
    let word = if method == Method::Yarn { "YARN" } else { word };
    if keys.is_empty() {
        format!("{word} takes no other key")
    } else {
        format!("{word} takes {}", keys.join(", "))
    }
}

/// What a scaling must fit.
pub(super) struct RotationSizes {
    /// The longest position of the model.
    pub length: usize,
    /// The base.
    pub theta: f64,
    /// The pairs of a head that rotate.
    pub pairs: usize,
}

/// Checks a scaling against the sizes of a model.
pub(super) fn check(parameters: &Scaling, reader: &Reader<'_>, sizes: &RotationSizes) {
    let &RotationSizes { length, theta, pairs } = sizes;
    let fault = |key: &str, message: String| {
        reader.source.fault(&join(&reader.path("rope_scaling"), key), message);
    };
    let original = parameters.original_max_position_embeddings.unwrap_or(0.0);
    match parameters.kind {
        Method::Yarn => {
            if theta <= 1.0 {
                reader.fault("theta", format!("YARN needs a base above 1, found `{theta}`"));
            }
            if let (Some(fast), Some(slow)) = (parameters.beta_fast, parameters.beta_slow)
                && fast < slow
            {
                fault("beta_fast", format!("is below beta_slow, {slow}; exchange the two"));
            }
        }
        Method::Llama3 => {
            if let Some(factor) = parameters.factor.filter(|factor| *factor < 1.0) {
                fault("factor", format!("expected a number from 1, found `{factor}`"));
            }
            if original >= length as f64 {
                let message = format!(
                    "is not below the longest position, {length}; lower it or raise max_position_embeddings"
                );
                fault("original_max_position_embeddings", message);
            }
            if let (Some(low), Some(high)) = (parameters.low_freq_factor, parameters.high_freq_factor)
                && high <= low
            {
                fault("high_freq_factor", format!("is not above low_freq_factor, {low}; raise it"));
            }
        }
        Method::Dynamic => {
            if let Some(factor) = parameters.factor.filter(|factor| *factor < 1.0) {
                fault("factor", format!("expected a number from 1, found `{factor}`"));
            }
        }
        Method::LongRope => {
            let lists =
                [("short_factor", &parameters.short_factor), ("long_factor", &parameters.long_factor)];
            for (key, list) in lists {
                let count = list.as_ref().map_or(0, Vec::len);
                if count != pairs {
                    let message =
                        format!("has {count} numbers, and {pairs} pairs of a head rotate; give it as many");
                    fault(key, message);
                }
            }
            if original < 2.0 {
                let message = format!("expected a number from 2, found `{original}`");
                fault("original_max_position_embeddings", message);
            }
        }
        Method::DynamicNtk if original > length as f64 => {
            let message = format!(
                "{original} is above the longest position, {length}: nothing is extended; lower it or write \
                 `extend_method: None`"
            );
            fault("original_max_position_embeddings", message);
        }
        _ => {}
    }
}
