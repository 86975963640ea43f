//! Selecting the linear maps that get low-rank adapters, by patterns over their names.
//!
//! A map goes by the name that files give its module (`model.layers.0.self_attn.q_proj`), by MindFormers' name
//! (`layers.0.attention.wq`) and by Megatron's (`decoder.layers.0.self_attention.linear_qkv`). A pattern is a regular
//! expression that must match from the start of a name or of a component of it: `wq`, `attention.wq` and `.*wq` mean
//! the same. MindFormers matches only the last component, PEFT the last component or the whole name.
//!
//! MindFormers does not descend into a group of layers that a pattern matches.

use super::config::{FactorInit, LowRank, ModelConfig};
use super::groups;
use super::names::megatron_name;
use super::parameters::{Gpt, Piece, Role, Spec, adapted_module, module_of};
use regex::bytes::Regex;
use std::collections::BTreeSet;

/// A list of patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleList {
    /// The maps that get adapters.
    Targets,
    /// Maps that get none, although a target matches them.
    Excluded,
}

/// A linear map.
struct Module {
    /// The map's name in files.
    name: String,
    /// All names of the map.
    names: Vec<String>,
    /// Whether the map can have adapters: experts and routers cannot.
    can_adapt: bool,
}

/// The modules of the model of `config` that `targets` match and `excluded` do not.
///
/// # Errors
/// A pattern that is not a regular expression or matches nothing; targets that match experts, routers, or only excluded
/// maps. With the list to change.
pub(crate) fn select_modules(
    config: &ModelConfig,
    targets: &[String],
    excluded: &[String],
) -> Result<BTreeSet<String>, (ModuleList, String)> {
    let modules = modules(config);
    let taken = matches(&modules, targets).map_err(|message| (ModuleList::Targets, message))?;
    let left_out = matches(&modules, excluded).map_err(|message| (ModuleList::Excluded, message))?;
    let is_chosen = |index: &usize| taken[*index] && !left_out[*index];
    let chosen: Vec<&Module> = (0..modules.len()).filter(is_chosen).map(|index| &modules[index]).collect();
    if let Some(unfit) = chosen.iter().find(|module| !module.can_adapt) {
        let message = format!(
            "matches {}, but adapters of experts, routers, the up-projections of latent attention and what fuses multi-token \
             prediction are not built; match fewer, or exclude it by `exclude_layers`",
            unfit.name
        );
        return Err((ModuleList::Targets, message));
    }
    if chosen.is_empty() {
        return Err((
            ModuleList::Excluded,
            "leaves nothing that the target modules match; exclude less".into(),
        ));
    }
    Ok(chosen.into_iter().map(|module| module.name.clone()).collect())
}

/// The names in files of the linear maps that can have adapters, each kind once; for a mixture only those of attention.
pub fn adaptable(config: &ModelConfig) -> BTreeSet<String> {
    let is_meant = |module: &&Module| {
        module.can_adapt
            && (config.mixture.is_none() || module.names.iter().any(|name| name.contains("attention")))
    };
    modules(config).iter().filter(is_meant).map(|module| last_part(&module.name).to_string()).collect()
}

/// The names in files of the linear maps that can have adapters.
pub(crate) fn adaptable_modules(config: &ModelConfig) -> BTreeSet<String> {
    modules(config).into_iter().filter(|module| module.can_adapt).map(|module| module.name).collect()
}

/// The linear maps of the model of `config`. Those that can have adapters are the ones that get them when all are asked
/// for.
fn modules(config: &ModelConfig) -> Vec<Module> {
    let specs = Gpt::describe(&ModelConfig { low_rank: None, ..config.clone() });
    let pieces =
        || specs.iter().flat_map(|spec| (0..).zip(&spec.pieces).map(move |(i, piece)| (spec, i, piece)));
    let all = pieces().map(|(_, _, piece)| module_of(&piece.name).to_string()).collect();
    let low_rank = Some(LowRank {
        rank: 1,
        alpha: 1.0,
        dropout: 0.0,
        init: FactorInit::default(),
        base: None,
        modules: all,
    });
    let adapted = Gpt::describe(&ModelConfig { low_rank, ..config.clone() });
    let factors = adapted.iter().filter(|spec| spec.role == Role::Lora).flat_map(|spec| &spec.pieces);
    let can_adapt: BTreeSet<&str> = factors.filter_map(|piece| adapted_module(&piece.name)).collect();
    pieces().filter_map(|(spec, i, piece)| module(spec, i, piece, &can_adapt)).collect()
}

/// The linear map in piece number `index` of a parameter, if it is one.
fn module(spec: &Spec, index: usize, piece: &Piece, can_adapt: &BTreeSet<&str>) -> Option<Module> {
    let is_map = matches!(spec.role, Role::Matrix | Role::ExpertStack { .. } | Role::Router);
    let name = is_map.then(|| module_of(&piece.name).to_string())?;
    let can_adapt = can_adapt.contains(name.as_str());
    let megatron = megatron_name(&spec.path).map(|name| module_of(&name).to_string());
    let (place, own) = spec.path.rsplit_once('.').unwrap_or(("", &spec.path));
    let theirs = originals_names(place, own, index).map(|leaf| format!("{place}.{leaf}"));
    let names = [name.clone()].into_iter().chain(megatron).chain(theirs).collect();
    Some(Module { name, names, can_adapt })
}

/// The names in MindFormers' models of piece number `index` of the parameter `own` in `place`: on its own, or as a part
/// of a matrix that they store as one.
fn originals_names(place: &str, own: &str, index: usize) -> impl Iterator<Item = &'static str> {
    let is_attention = place.ends_with("attention");
    let (each, whole) = match own {
        "wqkv" => (["wq dense1", "wk dense2", "wv dense3"].get(index), "w_qkv query_key_value qkv_proj"),
        "w_gate_up" => (["w1", "w3"].get(index), "w_gate_hidden dense_h_to_4h mapping gate_up_proj"),
        "wo" => (Some(&"wo"), if is_attention { "dense projection" } else { "" }),
        "w_down" => (Some(&"w2"), "dense_4h_to_h projection"),
        _ => (None, ""),
    };
    each.copied().unwrap_or_default().split_whitespace().chain(whole.split_whitespace())
}

/// For each module, whether one of `patterns` matches it.
fn matches(modules: &[Module], patterns: &[String]) -> Result<Vec<bool>, String> {
    let mut taken = vec![false; modules.len()];
    for pattern in patterns {
        groups::compile(pattern)?;
        let regex = groups::compile(&format!(r"(?:^|\.)(?:{pattern})"))?;
        let is_match =
            |module: &Module| module.names.iter().any(|name| Regex::is_match(&regex, name.as_bytes()));
        let hits: Vec<bool> = modules.iter().map(is_match).collect();
        if !hits.contains(&true) {
            let message = format!(
                "`{}` matches no linear layer; there are {}",
                pattern.escape_debug(),
                there_are(modules)
            );
            return Err(message);
        }
        taken.iter_mut().zip(hits).for_each(|(taken, hit)| *taken |= hit);
    }
    Ok(taken)
}

/// The kinds of modules, each once: `q_proj (wq)`.
fn there_are(modules: &[Module]) -> String {
    let mut kinds: Vec<String> = Vec::new();
    for module in modules.iter().filter(|module| module.can_adapt) {
        let leaf = last_part(&module.name);
        let theirs = module.names.iter().skip(1).map(|name| last_part(name));
        let theirs: Vec<&str> = theirs.filter(|name| *name != leaf).collect();
        let kind =
            if theirs.is_empty() { leaf.to_string() } else { format!("{leaf} ({})", theirs.join(", ")) };
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds.join("; ")
}

/// The last part of a module's name, such as `q_proj`.
pub(crate) fn last_part(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::Sizes;
    use crate::model::parameters::tests::mixture_example;

    fn sizes() -> Sizes {
        Sizes {
            vocab_size: 16,
            hidden_size: 8,
            num_layers: 2,
            num_heads: 2,
            intermediate_size: 8,
            seq_length: 8,
        }
    }

    fn list(patterns: &[&str]) -> Vec<String> {
        patterns.iter().map(|pattern| pattern.to_string()).collect()
    }

    /// The modules selected in layer 0, without the name of the layer.
    fn first_layer(config: &ModelConfig, targets: &[&str], excluded: &[&str]) -> Vec<String> {
        let modules =
            select_modules(config, &list(targets), &list(excluded)).unwrap_or_else(|(_, e)| panic!("{e}"));
        let names = modules.iter().filter_map(|name| name.split_once(".0."));
        names.map(|(_, name)| name.to_string()).collect()
    }

    #[test]
    fn a_map_goes_by_three_names() {
        let llama = ModelConfig::llama(sizes());
        let [q, k, v, o] = ["q_proj", "k_proj", "v_proj", "o_proj"].map(|of| format!("self_attn.{of}"));
        let of = |targets: &[&str]| first_layer(&llama, targets, &[]);
        for pattern in [".*wq|.*wv", "q_proj|v_proj", "attention.w[qv]", r"layers\.\d+\.attention\.(wq|wv)$"]
        {
            assert_eq!(of(&[pattern]), [q.clone(), v.clone()], "{pattern}");
        }
        assert_eq!(of(&["q_proj", "wv"]), [q.clone(), v.clone()]);
        assert_eq!(of(&[".*wq|.*wk|.*wv|.*wo"]), [k.clone(), o.clone(), q.clone(), v.clone()]);
        assert_eq!(of(&[".*query_key_value"]), [k.clone(), q.clone(), v.clone()]);
        assert_eq!(of(&["linear_qkv"]), [k, q, v]);
        assert_eq!(of(&["feed_forward.w1"]), ["mlp.gate_proj"]);
        assert_eq!(of(&[".*w3|.*w2"]), ["mlp.down_proj", "mlp.up_proj"]);
        assert_eq!(of(&[".*dense|.*linear"]).len(), 7);
        assert_eq!(of(&[".*"]).len(), 7);
        let gpt2 = ModelConfig::gpt2(sizes());
        assert_eq!(first_layer(&gpt2, &["c_attn|mlp.c_proj"], &[]), ["attn.c_attn", "mlp.c_proj"]);
        assert_eq!(first_layer(&gpt2, &[".*projection"], &[]), ["attn.c_proj", "mlp.c_proj"]);
    }

    #[test]
    fn layers_are_excluded_by_any_part_of_a_name() {
        let llama = ModelConfig::llama(sizes());
        let all = |excluded: &[&str]| select_modules(&llama, &list(&[".*"]), &list(excluded)).unwrap();
        assert_eq!(all(&[]).len(), 14);
        assert_eq!(all(&["feed_forward"]).len(), 8);
        assert!(all(&["0"]).iter().all(|name| name.starts_with("model.layers.1.")));
        assert_eq!(all(&["0", "wo"]).len(), 6);
    }

    #[test]
    fn misfits_say_what_there_is() {
        let llama = ModelConfig::llama(sizes());
        let line = |targets: &[&str], excluded: &[&str]| {
            select_modules(&llama, &list(targets), &list(excluded)).unwrap_err()
        };
        let (list_of, message) = line(&[".*wx"], &[]);
        assert_eq!(list_of, ModuleList::Targets);
        assert!(
            message.starts_with("`.*wx` matches no linear layer; there are q_proj (linear_qkv, wq, "),
            "{message}"
        );
        assert_eq!(line(&["*wq"], &[]).1.split(':').next(), Some("`*wq` is no regular expression"));
        assert_eq!(line(&["wq"], &["attention"]).0, ModuleList::Excluded);
        assert_eq!(line(&["wq"], &["foo"]).0, ModuleList::Excluded);
        let mixture = mixture_example();
        for (targets, named) in
            [("w1", "experts.0.gate_proj"), ("router", "mlp.gate"), ("shared_expert.down", "down_proj")]
        {
            let (_, message) = select_modules(&mixture, &list(&[targets]), &list(&["layers.0"])).unwrap_err();
            assert!(message.contains(named) && message.contains("are not built"), "{message}");
        }
        assert_eq!(first_layer(&mixture, &["w1"], &["1", "2", "multi_token"]), ["mlp.gate_proj"]);
    }
}
