//! The rotation of a `config.json`: `rope_parameters`, or the older `rope_scaling` and `rope_theta`.
//!
//! In some classes layers with a window rotate otherwise: `rope_parameters` has an entry for each kind of layers, and
//! `rope_local_base_freq` was the base of those with a window.
//!
//! Two rotations are the same if their frequencies and their factors of cos and sin are the same, however they are
//! written.

use super::classes::{FULL, Fact, Facts, Reading, SLIDING};
use crate::hugging_face::export::hugging_face_scaling;
use crate::model::config::{Divisors, Llama3, LongRope, QueryScaling, RopeScaling, Rotary, Yarn};
use crate::ops::rope::Rope;
use serde_json::{Map, Value};

/// The keys of the parameters, in the order in which `transformers` looks.
const PLACES: &str = "rope_scaling|rope_parameters";
/// Names of the base in files and classes.
const BASES: &str = "rope_theta|rotary_emb_base";
/// The older name of the base in layers with a window.
const BASE_OF_WINDOWS: &str = "rope_local_base_freq";
/// Names of the share of a head that rotates.
const SHARES: &str = "partial_rotary_factor|rotary_pct";
/// The number of dimensions of a head that rotate.
const DIMENSIONS: &str = "rotary_dim";
/// Names of the length of the longest text, and of the longest text in the first training.
const LENGTHS: &str = "max_position_embeddings|original_max_position_embeddings";
/// Parameters that occur beside those of a type.
const COMMON: &str = "rope_type type rope_theta partial_rotary_factor";
/// The parameters that each type takes. The last type is of our own files.
const TYPES: [(&str, &str); 8] = [
    ("default", ""),
    ("linear", "factor"),
    ("dynamic", "factor original_max_position_embeddings"),
    (
        "yarn",
        "factor original_max_position_embeddings beta_fast beta_slow mscale mscale_all_dim attention_factor truncate",
    ),
    ("llama3", "factor original_max_position_embeddings low_freq_factor high_freq_factor"),
    ("longrope", "factor original_max_position_embeddings short_factor long_factor attention_factor"),
    ("proportional", ""),
    ("dynamic_ntk", "original_max_position_embeddings"),
];
/// Parameters beside those of any type, of classes whose queries grow with their position. The length is without effect.
const GROWTH: &str = "llama_4_scaling_beta";
const OF_GROWTH: &str = "llama_4_scaling_beta original_max_position_embeddings max_position_embeddings";
/// The factors of cos and sin in Phi-3.5-MoE, of texts up to the original length and of longer ones.
const MAGNITUDES: [&str; 2] = ["short_mscale", "long_mscale"];
/// Two numbers in f32 and f64 count as the same if they differ by at most this share.
const SAME: f64 = 1e-6;

/// A rotation as a file describes it.
struct Rotation {
    theta: f64,
    /// The share of a head that rotates.
    share: f64,
    kind: String,
    parameters: Map<String, Value>,
    /// `None` for a scaling that is not built.
    scaling: Option<RopeScaling>,
    /// How queries grow with their position.
    queries: Option<QueryScaling>,
}

/// Whether `key` says something of a rotation.
pub(super) fn reads(key: &str) -> bool {
    [PLACES, BASES, SHARES, LENGTHS].iter().any(|keys| keys.split('|').any(|known| known == key))
}

/// Adds the facts that a file says of the rotation, for texts of at most `longest` tokens.
pub(super) fn add(reading: &Reading<'_>, longest: usize, facts: &mut Facts) {
    let rotation = Rotation::of(reading, FULL, longest);
    let unbuilt = || rotation.unbuilt(reading);
    let queries = rotation.queries.as_ref();
    let scaling = rotation.scaling.as_ref();
    let scaling = scaling.map_or_else(unbuilt, |scaling| hugging_face_scaling(scaling, queries));
    let found = [("theta", BASES, rotation.theta.into()), ("rotary_percent", SHARES, rotation.share.into())];
    for (fact, keys, value) in found.into_iter().chain([("rope_scaling", PLACES, scaling)]) {
        facts.insert(fact, Fact { key: reading.decided(keys).0, value });
    }
}

/// The base of the rotation in layers with a window; null if they rotate as others do, and a sentence about what is not
/// built.
pub(super) fn sliding_theta(reading: &Reading<'_>, longest: usize) -> Fact {
    let key = match (reading.class.rotates_by_kind(), reading.written.contains_key(BASE_OF_WINDOWS)) {
        (false, _) => "sliding_theta",
        (true, false) => "rope_parameters",
        (true, true) => BASE_OF_WINDOWS,
    };
    let [full, sliding] = [FULL, SLIDING].map(|kind| Rotation::of(reading, kind, longest));
    let is_plain = matches!(sliding.scaling, Some(RopeScaling::None)) && sliding.share == full.share;
    let is_as_others =
        is_same(full.theta, sliding.theta) && full.scaling == sliding.scaling && full.share == sliding.share;
    let value = match is_as_others {
        true => Value::Null,
        false if is_plain => sliding.theta.into(),
        false => format!("{} in layers with a window", Value::Object(sliding.parameters)).into(),
    };
    Fact { key: key.to_string(), value }
}

/// Whether a file's rotation of `width` dimensions of a head in layers of the kind `kind`, for texts of at most
/// `longest` tokens, is the same as `ours`.
pub(super) fn is_same_rotation(
    reading: &Reading<'_>,
    kind: &str,
    longest: usize,
    ours: &Rotary,
    width: f64,
) -> bool {
    Rotation::of(reading, kind, longest).is_as(ours, width)
}

/// The factor that latent attention has on the scores beside the root of the width.
pub(super) fn temperature(reading: &Reading<'_>, longest: usize) -> f64 {
    let rotation = Rotation::of(reading, FULL, longest);
    let (scale, factor) = (rotation.number("mscale_all_dim"), rotation.number("factor"));
    match (scale, factor) {
        (Some(scale), Some(factor)) if rotation.kind != "default" && factor > 1.0 => {
            (0.1 * scale * factor.ln() + 1.0).powi(2)
        }
        _ => 1.0,
    }
}

/// The parameters of the rotation in layers of the kind `kind`, with their base.
fn parameters(reading: &Reading<'_>, kind: &str) -> Map<String, Value> {
    // A class takes its own parameters also where a file writes a null.
    let own = reading.class.defaults.get("rope_parameters").cloned().unwrap_or_default();
    if !reading.class.rotates_by_kind() {
        let written = Some(reading.decided(PLACES).1).filter(Value::is_object);
        return entries(written.unwrap_or(own));
    }
    let of_kind = |kinds: &Value| kinds.get(kind).cloned().unwrap_or_default();
    let written = reading.written.get("rope_parameters").filter(|kinds| !kinds.is_null());
    let mut parameters = entries(of_kind(written.unwrap_or(&own)));
    // Older files scale the rotation of layers without a window alone.
    if kind == FULL {
        parameters.extend(entries(reading.written.get("rope_scaling").cloned().unwrap_or_default()));
    }
    let older = if kind == FULL { BASES } else { BASE_OF_WINDOWS };
    let base = reading.number(older).filter(|_| older.split('|').any(|key| reading.reads(key)));
    if let Some(base) = base.or_else(|| of_kind(&own).get("rope_theta")?.as_f64()) {
        parameters.entry("rope_theta").or_insert(base.into());
    }
    parameters
}

fn entries(parameters: Value) -> Map<String, Value> {
    match parameters {
        Value::Object(parameters) => parameters,
        _ => Map::new(),
    }
}

impl Rotation {
    /// The rotation of layers of the kind `kind`, for texts of at most `longest` tokens.
    fn of(reading: &Reading<'_>, kind: &str, longest: usize) -> Self {
        let parameters = parameters(reading, kind);
        let inner = |key: &str| parameters.get(key).and_then(Value::as_f64);
        let theta = inner("rope_theta").or_else(|| reading.number(BASES)).unwrap_or(10_000.0);
        // MiniMax-M2 reads the number of dimensions where no share is written.
        let is_written = SHARES.split('|').any(|key| reading.writes(key));
        let dimensions = reading.number(DIMENSIONS).filter(|_| reading.reads(DIMENSIONS) && !is_written);
        let of_head = dimensions.zip(reading.number("head_dim")).map(|(rotating, width)| rotating / width);
        // MiMo-V2 passes over a share beside the parameters.
        let default = reading.class.defaults.get("partial_rotary_factor").and_then(Value::as_f64);
        let of_kind = default.filter(|_| reading.class.rotates_by_kind());
        let written = inner("partial_rotary_factor").or(of_head).or(of_kind);
        let mut share = written.or_else(|| reading.number(SHARES)).unwrap_or(1.0);
        let kind = ["rope_type", "type"].iter().find_map(|key| parameters.get(*key)?.as_str());
        // The share of this type is one of the pairs of the whole head.
        share = if kind == Some("proportional") { 1.0 } else { share };
        let is_read = share == 1.0 || SHARES.split('|').any(|key| reading.reads(key));
        // The three parts of a position are the same in text.
        let kind = kind.filter(|kind| *kind != "mrope" || !reading.reads("mrope_section"));
        let mut kind = kind.unwrap_or("default").to_string();
        // Older names in Phi-3.
        if reading.reads("short_factor") && ["su", "yarn"].contains(&kind.as_str()) {
            kind = "longrope".to_string();
        }
        let mut theta = theta * reading.number("rope_ratio").unwrap_or(1.0);
        // Hunyuan's "dynamic" is another base, the same for all lengths; it passes over the other parameters.
        let alpha =
            inner("alpha").filter(|alpha| *alpha != 0.0 && kind == "dynamic" && reading.reads("alpha"));
        if let (Some(alpha), Some(width)) = (alpha, reading.number("head_dim")) {
            theta *= alpha.powf(width / (width - 2.0));
            kind = "default".to_string();
        }
        let mut rotation = Self { theta, share, kind, parameters, scaling: None, queries: None };
        let (beta, original) = (rotation.number(GROWTH), rotation.number("original_max_position_embeddings"));
        let queries = beta.zip(original).map(|(beta, original)| QueryScaling { beta, original });
        let fits = match &queries {
            _ if !reading.reads(GROWTH) => true,
            None => false, // the class fails
            // Our key is one of these types.
            Some(QueryScaling { beta, .. }) => {
                *beta == 0.0 || ["yarn", "llama3"].contains(&rotation.kind.as_str())
            }
        };
        rotation.queries = queries.filter(|queries| reading.reads(GROWTH) && queries.beta != 0.0);
        // Most classes ignore a share, and fail where another factor is with it.
        rotation.scaling = rotation.built(reading, longest as f64).filter(|_| is_read && fits);
        rotation
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.parameters.get(key).and_then(Value::as_f64)
    }

    /// A scaling that is not built, as it is written; a sentence about two factors, which no key of ours says.
    fn unbuilt(&self, reading: &Reading<'_>) -> Value {
        let [short, long] = MAGNITUDES.map(|key| self.parameters.get(key).cloned().unwrap_or_default());
        match short == long || !reading.reads(MAGNITUDES[0]) {
            true => Value::Object(self.parameters.clone()),
            false => format!("{} of two factors, {short} and {long},", self.kind).into(),
        }
    }

    /// The scaling of the rotation for texts of up to `length` tokens; `None` if that scaling is not built.
    fn built(&self, reading: &Reading<'_>, length: f64) -> Option<RopeScaling> {
        let (_, takes) = TYPES.iter().find(|(kind, _)| *kind == self.kind)?;
        let has_magnitudes = reading.reads(MAGNITUDES[0]);
        let more = match () {
            () if reading.reads(GROWTH) => OF_GROWTH,
            () if has_magnitudes => "short_mscale long_mscale",
            () => "",
        };
        let is_known =
            |key: &str| [takes, COMMON, more].iter().any(|keys| keys.split(' ').any(|known| known == key));
        // Parameters of each type of layers are objects.
        let is_plain = |value: &Value| self.kind == "default" && !value.is_object();
        if !self.parameters.iter().all(|(key, value)| value.is_null() || is_known(key) || is_plain(value)) {
            return None;
        }
        // Phi-3 has one scaling, and so has Phi-3.5-MoE, which multiplies that of another type by other factors.
        if (reading.reads("short_factor") || has_magnitudes)
            && !["default", "longrope"].contains(&self.kind.as_str())
        {
            return None;
        }
        let longest = reading.number("max_position_embeddings");
        let original = reading.number("original_max_position_embeddings");
        let original = original.or(self.number("original_max_position_embeddings")).or(longest);
        let factor = self.number("factor");
        match self.kind.as_str() {
            // TeleChat's scaling, which its files do not write as parameters.
            "default" => Some(match (reading.number("base_seqlen"), reading.number("training_seqlen")) {
                (Some(original), Some(length)) if length > original => {
                    RopeScaling::DynamicNtk { original, length }
                }
                _ => RopeScaling::None,
            }),
            "linear" => Some(RopeScaling::Linear { factor: factor? }),
            // The length that this type goes by is that which the model is made for.
            "dynamic" => {
                let dynamic = RopeScaling::Dynamic { factor: factor?, original: longest?, length };
                (factor? >= 1.0).then(|| dynamic.of_texts(length as usize))
            }
            "longrope" => {
                let list = |key: &str| -> Option<Divisors> {
                    let list = self.parameters.get(key)?.as_array()?;
                    let divisors: Option<Vec<f64>> = list.iter().map(Value::as_f64).collect();
                    divisors
                        .filter(|list| list.iter().all(|divisor| *divisor > 0.0))
                        .map(|list| Divisors::new(&list))
                };
                let original = original.filter(|original| *original >= 2.0)?;
                let usual =
                    LongRope::usual_magnitude(factor.or_else(|| Some(longest? / original))?, original);
                // In Phi-3.5-MoE two numbers, of short texts and of long ones, which are the same in published files.
                let magnitude = match MAGNITUDES.map(|key| self.number(key)) {
                    _ if !has_magnitudes => self.number("attention_factor").unwrap_or(usual),
                    [Some(short), Some(long)] if is_same(short, long) => short,
                    _ => return None,
                };
                let long = LongRope {
                    divisors: [list("short_factor")?, list("long_factor")?],
                    original,
                    is_long: length > original,
                    magnitude,
                };
                (long.magnitude > 0.0).then_some(RopeScaling::LongRope(long))
            }
            "dynamic_ntk" => Some(RopeScaling::DynamicNtk { original: original?, length: longest? }),
            "proportional" => {
                let share = self.number("partial_rotary_factor").unwrap_or(1.0);
                (share > 0.0 && share <= 1.0).then_some(RopeScaling::Proportional { share })
            }
            "yarn" => self.yarn(factor.or_else(|| Some(longest? / original?))?, original?),
            _ => Some(RopeScaling::Llama3(Llama3 {
                factor: factor?,
                original: original?,
                low_freq_factor: self.number("low_freq_factor")?,
                high_freq_factor: self.number("high_freq_factor")?,
            })),
        }
    }

    fn yarn(&self, factor: f64, original: f64) -> Option<RopeScaling> {
        let above_zero = |key: &str| self.number(key).filter(|value| *value != 0.0);
        // Both scales count, or neither.
        let scales = above_zero("mscale").zip(above_zero("mscale_all_dim"));
        let (mscale, mscale_all_dim) = scales.unwrap_or((1.0, 0.0));
        let (beta_fast, beta_slow) = (above_zero("beta_fast"), above_zero("beta_slow"));
        let (beta_fast, beta_slow) = (beta_fast.unwrap_or(32.0), beta_slow.unwrap_or(1.0));
        let is_truncated = self.parameters.get("truncate").and_then(Value::as_bool) != Some(false);
        let yarn = RopeScaling::Yarn(Yarn {
            factor,
            original,
            beta_fast,
            beta_slow,
            mscale,
            mscale_all_dim,
            is_truncated,
        });
        let magnitude = self.number("attention_factor").unwrap_or(yarn.magnitude());
        is_same(magnitude, yarn.magnitude()).then_some(yarn)
    }

    fn is_as(&self, ours: &Rotary, width: f64) -> bool {
        let Rotary { rope: ours, scaling: our_scaling, queries } = ours;
        let Some(scaling) = &self.scaling else { return false };
        let rotary_dim = (width * self.share + 1e-6) as u32;
        // The width may be any number in a file, and would make as many frequencies.
        if rotary_dim != ours.rotary_dim {
            return false;
        }
        let mut scaling = *scaling;
        if let (RopeScaling::LongRope(theirs), RopeScaling::LongRope(ours)) = (&mut scaling, our_scaling) {
            if !is_same_list(theirs, ours) {
                return false;
            }
            theirs.is_long = ours.is_long; // this run's texts may be shorter than those that the file is for
        }
        let theirs = Rope { theta: self.theta, ..*ours };
        let (theirs, ours) = (scaling.frequencies(&theirs), our_scaling.frequencies(ours));
        theirs.iter().zip(&ours).all(|(theirs, ours)| is_same(*theirs, *ours))
            && is_same(scaling.magnitude(), our_scaling.magnitude())
            && is_same_growth(self.queries.as_ref(), queries.as_ref())
    }
}

/// Whether two scalings by lists are the same in texts of any length.
fn is_same_list(one: &LongRope, other: &LongRope) -> bool {
    let are_same = |one: &[f64], other: &[f64]| {
        one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same(*one, *other))
    };
    one.original == other.original
        && one.divisors.iter().zip(other.divisors).all(|(one, other)| are_same(one.list(), other.list()))
}

fn is_same_growth(one: Option<&QueryScaling>, other: Option<&QueryScaling>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => is_same(one.beta, other.beta) && is_same(one.original, other.original),
        (one, other) => one.is_none() && other.is_none(),
    }
}

/// Whether two numbers are the same up to the rounding of the type that they were stored in.
pub(super) fn is_same(one: f64, other: f64) -> bool {
    (one - other).abs() <= SAME * one.abs().max(other.abs())
}
