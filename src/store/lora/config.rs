//! `adapter_config.json`: what an adapter computes.

use super::keys::refused;
use super::{CONFIG, KIND, MERGED, REMEDY};
use crate::durable::{Pairs, read_json};
use crate::error::{Error, Result};
use crate::model::config::{LowRank, Magnitudes};
use crate::model::groups::compile_end;
use crate::model::last_part;
use crate::model::names::EXPERT_PARAMETERS;
use crate::model::parameters::BASE_LAYER;
use crate::store::wrapped::alone;
use regex::bytes::Regex;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use serde_json::{Map, Value};
use std::path::Path;

/// The keys of `adapter_config.json` that decide what an adapter computes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::store) struct LoraConfig {
    peft_type: String,
    task_type: Option<String>,
    pub base_model_name_or_path: Option<String>,
    #[serde(default = "default_rank")]
    r: usize,
    #[serde(default = "default_alpha")]
    lora_alpha: f64,
    use_rslora: bool,
    /// Whether outputs are scaled by magnitudes.
    pub use_dora: bool,
    /// Whether the model's matrices are (in, out), where its class does not say so.
    pub fan_in_fan_out: bool,
    rank_pattern: Option<Patterns<usize>>,
    alpha_pattern: Option<Patterns<f64>>,
    bias: Option<String>,
    /// Whether B has a bias.
    pub lora_bias: bool,
    /// The parameters that are adapted though they are no linear layers' matrices, by the ends of their names.
    target_parameters: Option<Vec<String>>,
    /// The modules that trained as copies.
    pub modules_to_save: Option<Vec<String>>,
    /// Whether a copy of the embedding is the head too, where the model ties them.
    pub ensure_weight_tying: bool,
    init_lora_weights: Value,
}

/// PEFT's default, where the file has no rank.
fn default_rank() -> usize {
    8
}

fn default_alpha() -> f64 {
    8.0
}

/// What an adapter's initial values left of the base. PEFT takes the rest out of the base again whenever it opens the
/// adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Start {
    /// All of it.
    Whole,
    /// All but the product of its largest singular values, as many as the rank (PiSSA; Meng et al., 2024).
    WithoutPrincipal,
    /// All but the product of the first columns of Q and the first rows of R, as many as the rank, times the factor
    /// (OLoRA; Büyükakyüz, 2024).
    WithoutOrthonormal,
}

impl LoraConfig {
    /// Reads the configuration beside the adapter in the file `weights`; `None` if there is none.
    ///
    /// # Errors
    /// The configuration is not of low-rank adapters, or is of a variant that computes something else.
    pub fn beside(weights: &Path) -> Result<Option<Self>> {
        let path = weights.with_file_name(CONFIG);
        if !path.is_file() {
            return Ok(None);
        }
        let refuse = |key: &str, why: String| Error::file(&path, format!("its `{key}` {why}; {MERGED}"));
        let keys: Map<String, Value> = read_json(&path, KIND, REMEDY)?;
        // In another kind of adapter, the keys mean other things.
        if let Some(kind) = keys.get("peft_type").filter(|kind| *kind != "LORA") {
            return Err(refuse("peft_type", format!("is {kind}, and not \"LORA\"")));
        }
        if let Some((key, why)) = refused(&keys) {
            return Err(refuse(key, why));
        }
        let config: Self = read_json(&path, KIND, REMEDY)?;
        if let Some(task) = config.task_type.as_ref().filter(|task| *task != "CAUSAL_LM") {
            return Err(refuse(
                "task_type",
                format!("is {task}, and not CAUSAL_LM, the task of a language model"),
            ));
        }
        let mut ranks = config.rank_pattern.iter().flat_map(|patterns| &patterns.0);
        let fault = match () {
            () if config.peft_type.is_empty() => Some("`peft_type` is missing"),
            () if config.r == 0 => Some("`r` is 0"),
            () if ranks.any(|(_, rank)| *rank == 0) => Some("`rank_pattern` has a rank of 0"),
            () => None,
        };
        if let Some(fault) = fault {
            return Err(Error::file(&path, format!("its {fault}; {REMEDY}")));
        }
        let bias = config.bias.as_deref().unwrap_or("none");
        // Biases that trained are tensors of the file, and replace those of the model.
        if !["none", "all", "lora_only"].contains(&bias) {
            return Err(refuse("bias", format!("is {bias}, and not none, all or lora_only")));
        }
        config.start().map_err(|why| Error::file(&path, format!("its `init_lora_weights` {why}")))?;
        Ok(Some(config))
    }

    /// The configuration beside the adapter in the file `weights`.
    ///
    /// # Errors
    /// There is none, or it is of something else.
    pub fn required(weights: &Path) -> Result<Self> {
        Self::beside(weights)?.ok_or_else(|| Self::missing(weights))
    }

    /// The error of an adapter in the file `weights` without a configuration.
    pub fn missing(weights: &Path) -> Error {
        Error::file(
            weights,
            "has no adapter_config.json beside it, which says what the product is multiplied by",
        )
    }

    /// The parameter of experts that is adapted by the factors in `wrapper`, as files name it; `None` if these are of a
    /// linear layer. The wrapper of the last parameter is the outermost.
    pub fn parameter_of(&self, wrapper: &str) -> Option<String> {
        let module = wrapper.trim_end_matches(BASE_LAYER);
        let depth = (wrapper.len() - module.len()) / BASE_LAYER.len();
        let is_target = |parameter: &String| {
            let is_end = |target: &String| {
                parameter
                    .strip_suffix(target.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            };
            self.target_parameters.iter().flatten().any(is_end)
        };
        let parameters = EXPERT_PARAMETERS.iter().rev().map(|of| format!("{module}.{of}"));
        parameters.filter(is_target).nth(depth).filter(|_| last_part(module) == "experts")
    }

    /// The rank of the adapter of `module`: the number of rows of A.
    pub fn rank_of(&self, module: &str) -> usize {
        Patterns::of(&self.rank_pattern, module).unwrap_or(self.r)
    }

    /// The scale of the product of A and B of the adapter of `module`, times its rank or the root of it.
    pub fn alpha_of(&self, module: &str) -> f64 {
        Patterns::of(&self.alpha_pattern, module).unwrap_or(self.lora_alpha)
    }

    /// The scale of the product of A and B of the adapter of `module`.
    pub fn scale_of(&self, module: &str) -> f64 {
        let alpha = self.alpha_of(module);
        let rank = self.rank_of(module) as f64;
        alpha / if self.use_rslora { rank.sqrt() } else { rank }
    }

    /// Whether scales have the root of the rank below them.
    #[cfg(feature = "cli")]
    pub fn is_rank_stabilised(&self) -> bool {
        self.use_rslora
    }

    /// What the adapter's initial values left of the base.
    ///
    /// # Errors
    /// The base was changed by something that no file holds, or in a way that is not known.
    pub fn start(&self) -> std::result::Result<Start, String> {
        let word = match &self.init_lora_weights {
            Value::Null | Value::Bool(_) => return Ok(Start::Whole),
            Value::String(word) => word.to_lowercase(),
            other => return Err(format!("is {other}, which is no way to start; {REMEDY}")),
        };
        let unknown = |by: &str| {
            Err(format!(
                "is `{word}`: training changed the base by {by}, which no file holds; save the adapter by PEFT's `save_pretrained` \
                 with `path_initial_model_for_weight_conversion`"
            ))
        };
        match word.as_str() {
            "gaussian" | "eva" | "orthogonal" | "mica" => Ok(Start::Whole),
            "pissa" => Ok(Start::WithoutPrincipal),
            "olora" => Ok(Start::WithoutOrthonormal),
            "corda" => unknown("singular values of its data"),
            "lora_ga" => unknown("the gradients of its data"),
            "loftq" => unknown("a quantisation"),
            other if other.starts_with("pissa") => unknown("singular values that are drawn"),
            _ => Err(format!("is `{word}`, which is not known; {MERGED}")),
        }
    }

    /// Whether the module of the model's tensor `name` trained as a copy.
    pub fn saves(&self, name: &str) -> bool {
        let module = name.rsplit_once('.').map_or(name, |(module, _)| module);
        self.modules_to_save.iter().flatten().any(|saved| module.ends_with(saved.as_str()))
    }

    /// Checks that the adapter in `weights`, of these `modules`, can go on training with `low_rank`.
    ///
    /// # Errors
    /// It has another rank or another scale, or computes more than a product that is added.
    pub fn check(&self, weights: &Path, modules: &[&str], low_rank: &LowRank) -> Result<()> {
        let more = match () {
            () if self.lora_bias => Some("lora_bias"),
            () if self.start() != Ok(Start::Whole) => Some("init_lora_weights"),
            () => None,
        };
        if let Some(key) = more {
            let message = format!(
                "computes more than runs train, by its `{key}`; merge it, and train the merged model"
            );
            return Err(Error::file(weights, message));
        }
        if self.use_dora != (low_rank.magnitudes != Magnitudes::None) {
            let (has, remedy) = if self.use_dora { ("has", "True") } else { ("has no", "False") };
            let message =
                format!("{has} magnitudes, as `use_dora` says; write `use_dora: {remedy}` under pet_config");
            return Err(Error::file(weights, message));
        }
        let differs = |module: &&&str| {
            let (rank, scale) = (self.rank_of(module), self.scale_of(module));
            let own = alone(module);
            rank != low_rank.rank_of(&own) || !is_same_scale(scale, low_rank.scale_of(&own))
        };
        let Some(module) = modules.iter().find(differs) else { return Ok(()) };
        let message = format!(
            "is of rank {} with a factor of {}, and this run's adapters are of rank {} with a factor of {} (`{module}`); change \
             lora_rank and lora_alpha of pet_config, or its rank_pattern, alpha_pattern and use_rslora",
            self.rank_of(module),
            self.scale_of(module),
            low_rank.rank_of(&alone(module)),
            low_rank.scale_of(&alone(module))
        );
        Err(Error::file(weights, message))
    }
}

/// Whether two factors of products differ by rounding alone.
pub(super) fn is_same_scale(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-9 * other
}

/// Values by patterns of module names, in the order of the file. The first pattern that matches the end of a name
/// counts.
#[derive(Clone, Debug)]
struct Patterns<T>(Vec<(Regex, T)>);

impl<T: Copy> Patterns<T> {
    fn of(patterns: &Option<Self>, module: &str) -> Option<T> {
        let mut patterns = patterns.iter().flat_map(|patterns| &patterns.0);
        patterns.find(|(regex, _)| regex.is_match(module.as_bytes())).map(|(_, value)| *value)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Patterns<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let compiled = |(pattern, value): (String, T)| Ok((compile_end(&pattern)?, value));
        let Pairs(pairs) = Pairs::deserialize(deserializer)?;
        pairs
            .into_iter()
            .map(compiled)
            .collect::<std::result::Result<_, String>>()
            .map(Self)
            .map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(keys: &Value) -> Result<LoraConfig> {
        let folder = tempfile::tempdir().unwrap();
        let mut config = json!({"peft_type": "LORA", "r": 4, "lora_alpha": 8});
        config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        std::fs::write(folder.path().join(CONFIG), config.to_string()).unwrap();
        LoraConfig::required(&folder.path().join("adapter_model.safetensors"))
    }

    /// Patterns are found as by `get_pattern_key` of PEFT 0.21.
    #[test]
    fn the_first_pattern_that_matches_the_end_of_a_name_counts() {
        let folder = tempfile::tempdir().unwrap();
        // Not in alphabetical order.
        let text = r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "rank_pattern": {"layers.1.self_attn.q_proj": 2, "q_proj": 16},
            "alpha_pattern": {"v_.*": 32, "self_attn": 1}}"#;
        std::fs::write(folder.path().join(CONFIG), text).unwrap();
        let config = LoraConfig::required(&folder.path().join("x.safetensors")).unwrap();
        let of = |module: &str| (config.rank_of(module), config.scale_of(module));
        assert_eq!(of("model.layers.1.self_attn.q_proj"), (2, 4.0));
        assert_eq!(of("model.layers.0.self_attn.q_proj"), (16, 0.5));
        assert_eq!(of("model.layers.0.self_attn.v_proj"), (4, 8.0));
        assert_eq!(of("model.layers.0.self_attn.k_proj"), (4, 2.0));
        let rank_stabilised = read(&json!({"use_rslora": true, "rank_pattern": {"up": 16}})).unwrap();
        assert_eq!([rank_stabilised.scale_of("a.up"), rank_stabilised.scale_of("a.down")], [2.0, 4.0]);
    }

    /// PEFT wraps `down_proj` last, so that its factors have the name of the module.
    #[test]
    fn the_factors_of_experts_are_told_apart_by_their_wrappers() {
        let of = |targets: &[&str], wrapper: &str| {
            read(&json!({"target_parameters": targets}))
                .unwrap()
                .parameter_of(&format!("model.layers.0.{wrapper}"))
        };
        let named = |of: &str| Some(format!("model.layers.0.mlp.experts.{of}"));
        let both = ["mlp.experts.gate_up_proj", "experts.down_proj"];
        assert_eq!(of(&both, "mlp.experts"), named("down_proj"));
        assert_eq!(of(&both, "mlp.experts.base_layer"), named("gate_up_proj"));
        assert_eq!(of(&both[..1], "mlp.experts"), named("gate_up_proj"));
        assert_eq!(of(&both[..1], "mlp.experts.base_layer"), None);
        assert_eq!(of(&["1.mlp.experts.down_proj", "rts.down_proj", "q_proj.weight"], "mlp.experts"), None);
        assert_eq!(of(&["down_proj"], "mlp.gate_proj"), None);
        assert_eq!(read(&json!({})).unwrap().parameter_of("model.layers.0.mlp.experts"), None);
    }

    #[test]
    fn a_missing_rank_or_factor_is_that_of_peft() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(CONFIG), r#"{"peft_type": "LORA"}"#).unwrap();
        let config = LoraConfig::required(&folder.path().join("x.safetensors")).unwrap();
        assert_eq!((config.rank_of("q_proj"), config.scale_of("q_proj")), (8, 1.0));
    }

    #[test]
    fn what_changed_the_base_is_done_again_or_refused() {
        let start =
            |word: Value| read(&json!({"init_lora_weights": word})).map(|config| config.start().unwrap());
        for word in [
            json!(true),
            json!(false),
            json!(null),
            json!("gaussian"),
            json!("eva"),
            json!("orthogonal"),
            json!("mica"),
        ] {
            assert_eq!(start(word).ok(), Some(Start::Whole));
        }
        assert_eq!(start(json!("pissa")).ok(), Some(Start::WithoutPrincipal));
        assert_eq!(start(json!("olora")).ok(), Some(Start::WithoutOrthonormal));
        for word in ["pissa_niter_16", "corda", "lora_ga", "loftq", "pissb"] {
            let line = start(json!(word)).unwrap_err().to_string();
            assert!(
                line.contains("adapter_config.json: its `init_lora_weights` is") && line.contains(word),
                "{line}"
            );
        }
    }

    #[test]
    fn what_is_not_of_a_language_model_is_refused_by_name() {
        for (keys, named) in [
            (json!({"peft_type": "IA3"}), "its `peft_type` is \"IA3\", and not \"LORA\""),
            (json!({"task_type": "SEQ_CLS"}), "its `task_type` is SEQ_CLS"),
            (json!({"r": 0}), "its `r` is 0"),
            (json!({"rank_pattern": {"q_proj": 0}}), "its `rank_pattern` has a rank of 0"),
            (json!({"bias": "some"}), "its `bias` is some"),
            (json!({"use_qalora": true}), "its `use_qalora` asks for"),
        ] {
            let line = read(&keys).unwrap_err().to_string();
            assert!(line.contains(named), "{line}");
        }
        assert!(read(&json!({"bias": "lora_only", "task_type": null})).is_ok());
    }
}
