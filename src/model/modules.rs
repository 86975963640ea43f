//! Selecting the linear maps that get low-rank adapters, by patterns over their names.
//!
//! A map goes by the name that files give its module (`model.layers.0.self_attn.q_proj`), by MindFormers' name
//! (`layers.0.attention.wq`) and by Megatron's (`decoder.layers.0.self_attention.linear_qkv`). A pattern is a regular
//! expression that must match from the start of a name or of a component of it: `wq`, `attention.wq` and `.*wq` mean
//! the same. MindFormers matches only the last component, PEFT the last component or the whole name.
//!
//! The word `all-linear` stands for every map that PEFT takes by it: all but the head and the experts.
//!
//! MindFormers does not descend into a group of layers that a pattern matches.
//!
//! The matrices of all experts of a layer are one parameter in `transformers` (`model.layers.0.mlp.experts.down_proj`),
//! whatever files hold. Patterns of their own select these.

use super::config::{LowRank, ModelConfig};
use super::groups;
use super::names::{EXPERT_PARAMETERS, MixtureNames, Names, megatron_name};
use super::parameters::{Gpt, Piece, Place, Role, Spec, adapted_module, module_of};
use regex::bytes::Regex;
use std::collections::BTreeSet;

/// A list of patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleList {
    /// The maps that get adapters.
    Targets,
    /// The matrices of all experts of a layer that get adapters.
    Parameters,
    /// Maps that get none, although a target matches them.
    Excluded,
}

/// A linear map, or those of all experts of a layer.
#[derive(Clone)]
struct Module {
    /// The map's name in files.
    name: String,
    /// All names of the map.
    names: Vec<String>,
    /// Whether the map can have adapters: experts by themselves and routers cannot.
    can_adapt: bool,
    /// Whether it is of an expert.
    is_of_expert: bool,
    /// Whether PEFT takes it for a linear layer, other than the head; it takes routers, too.
    is_linear: bool,
}

/// The word for all linear layers that are no head, PEFT's.
pub(crate) const ALL_LINEAR: &str = "all-linear";

/// What adapters adapt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selected {
    /// Linear maps.
    pub modules: BTreeSet<String>,
    /// Matrices of all experts of a layer.
    pub parameters: BTreeSet<String>,
}

/// The modules of the model of `config` that `targets` match, and the parameters of experts that `parameters` match,
/// without those that `excluded` match.
///
/// # Errors
/// A pattern that is not a regular expression or matches nothing; targets that match experts, routers, or only excluded
/// maps. With the list to change.
pub(crate) fn select_modules(
    config: &ModelConfig,
    targets: &[String],
    parameters: &[String],
    excluded: &[String],
) -> Result<Selected, (ModuleList, String)> {
    let (modules, stacks) = (modules(config), expert_stacks(config));
    let in_list = |list: ModuleList| move |message: String| (list, message);
    let (all_linear, others): (Vec<String>, _) = targets.iter().cloned().partition(|of| of == ALL_LINEAR);
    let mut taken = matches(&modules, &others, "linear layer").map_err(in_list(ModuleList::Targets))?;
    if !all_linear.is_empty() {
        taken.iter_mut().zip(&modules).for_each(|(taken, module)| *taken |= module.is_linear);
    }
    let taken_stacks =
        matches(&stacks, parameters, "matrices of all experts").map_err(in_list(ModuleList::Parameters))?;
    let all: Vec<Module> = modules.into_iter().chain(stacks).collect();
    let left_out = matches(&all, excluded, "linear layer").map_err(in_list(ModuleList::Excluded))?;
    let chosen = |modules: &[Module], taken: &[bool], left_out: &[bool]| -> Vec<Module> {
        let marked = modules.iter().zip(taken.iter().zip(left_out));
        marked
            .filter(|(_, (taken, left_out))| **taken && !**left_out)
            .map(|(module, _)| module.clone())
            .collect()
    };
    let (maps, stacks) = all.split_at(taken.len());
    let (of_maps, of_stacks) = left_out.split_at(taken.len());
    let modules = chosen(maps, &taken, of_maps);
    let parameters = chosen(stacks, &taken_stacks, of_stacks);
    if let Some(unfit) = modules.iter().find(|module| !module.can_adapt) {
        let name = &unfit.name;
        let message = match stacks.first().filter(|_| unfit.is_of_expert) {
            Some(stack) => format!(
                "matches {name}, and experts have adapters only all together: select them by `target_parameters`, such as {}, \
                 and exclude them here by `exclude_layers`, or match fewer",
                stack.name
            ),
            None => format!(
                "matches {name}, but adapters of experts without a gate, of routers, of the up-projections of latent \
                 attention and of what fuses multi-token prediction are not built; match fewer, or exclude it by \
                 `exclude_layers`"
            ),
        };
        return Err((ModuleList::Targets, message));
    }
    if modules.is_empty() && parameters.is_empty() {
        return Err((
            ModuleList::Excluded,
            "leaves nothing that the target modules match; exclude less".into(),
        ));
    }
    let names = |modules: Vec<Module>| modules.into_iter().map(|module| module.name).collect();
    Ok(Selected { modules: names(modules), parameters: names(parameters) })
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

/// The matrices of all experts of a layer that can have adapters, by the names of their parameters in `transformers`.
pub(crate) fn adaptable_parameters(config: &ModelConfig) -> BTreeSet<String> {
    expert_stacks(config).into_iter().map(|stack| stack.name).collect()
}

/// The matrices of all experts of each layer, by the names of their parameters in `transformers`; none of a model of
/// which no class there has the experts.
fn expert_stacks(config: &ModelConfig) -> Vec<Module> {
    if config.mixture.is_none() {
        return Vec::new();
    }
    let Some(module) = MixtureNames::of(config).module else { return Vec::new() };
    let specs = Gpt::describe(&ModelConfig { low_rank: None, ..config.clone() });
    let stack = |spec: &Spec| {
        let (Role::ExpertStack { .. }, Place::Layer(layer)) = (spec.role, spec.place) else { return None };
        let parameter = EXPERT_PARAMETERS[usize::from(spec.path.ends_with("w_down"))];
        let name = format!("{}.{layer}.{module}.{parameter}", Names::of_model(config).layers);
        let megatron = megatron_name(&spec.path).map(|name| module_of(&name).to_string());
        let names = [name.clone(), spec.path.clone()].into_iter().chain(megatron).collect();
        Some(Module { name, names, can_adapt: true, is_of_expert: true, is_linear: false })
    };
    specs.iter().filter_map(stack).collect()
}

/// The linear maps of the model of `config`. Those that can have adapters are the ones that get them when all are asked
/// for.
fn modules(config: &ModelConfig) -> Vec<Module> {
    let specs = Gpt::describe(&ModelConfig { low_rank: None, ..config.clone() });
    let pieces =
        || specs.iter().flat_map(|spec| (0..).zip(&spec.pieces).map(move |(i, piece)| (spec, i, piece)));
    let all = pieces().map(|(_, _, piece)| module_of(&piece.name).to_string()).collect();
    let low_rank = Some(LowRank { rank: 1, alpha: 1.0, modules: all, ..LowRank::default() });
    let adapted = Gpt::describe(&ModelConfig { low_rank, ..config.clone() });
    let factors = adapted.iter().filter(|spec| spec.role.is_factor()).flat_map(|spec| &spec.pieces);
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
    let is_of_expert = spec.role.stacked_experts().is_some();
    let is_linear =
        matches!(spec.role, Role::Matrix | Role::Router) && !spec.path.starts_with("multi_token.");
    Some(Module { name, names, can_adapt, is_of_expert, is_linear })
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

/// For each module, whether one of `patterns` matches it. Errors call the modules `what`.
fn matches(modules: &[Module], patterns: &[String], what: &str) -> Result<Vec<bool>, String> {
    let mut taken = vec![false; modules.len()];
    for pattern in patterns {
        groups::compile(pattern)?;
        let regex = groups::compile(&format!(r"(?:^|\.)(?:{pattern})"))?;
        let is_match =
            |module: &Module| module.names.iter().any(|name| Regex::is_match(&regex, name.as_bytes()));
        let hits: Vec<bool> = modules.iter().map(is_match).collect();
        if !hits.contains(&true) {
            let there_are = match there_are(modules) {
                kinds if kinds.is_empty() => "this model has none that can have adapters".to_string(),
                kinds => format!("there are {kinds}"),
            };
            return Err(format!("`{}` matches no {what}; {there_are}", pattern.escape_debug()));
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
        let selected = select_modules(config, &list(targets), &[], &list(excluded));
        let modules = selected.unwrap_or_else(|(_, e)| panic!("{e}")).modules;
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
        let all =
            |excluded: &[&str]| select_modules(&llama, &list(&[".*"]), &[], &list(excluded)).unwrap().modules;
        assert_eq!(all(&[]).len(), 14);
        assert_eq!(all(&["feed_forward"]).len(), 8);
        assert!(all(&["0"]).iter().all(|name| name.starts_with("model.layers.1.")));
        assert_eq!(all(&["0", "wo"]).len(), 6);
    }

    #[test]
    fn misfits_say_what_there_is() {
        let llama = ModelConfig::llama(sizes());
        let line = |targets: &[&str], excluded: &[&str]| {
            select_modules(&llama, &list(targets), &[], &list(excluded)).unwrap_err()
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
        for (targets, named, why) in [
            (
                "w1",
                "experts.0.gate_proj",
                "select them by `target_parameters`, such as model.layers.1.mlp.experts",
            ),
            ("router", "mlp.gate", "are not built"),
            ("shared_expert_gate", "shared_expert_gate", "are not built"),
        ] {
            let selected = select_modules(&mixture, &list(&[targets]), &[], &list(&["layers.0"]));
            let (_, message) = selected.unwrap_err();
            assert!(message.contains(named) && message.contains(why), "{message}");
        }
        assert_eq!(first_layer(&mixture, &["w1"], &["1", "2", "multi_token"]), ["mlp.gate_proj"]);
        let shared = select_modules(&mixture, &list(&["shared_expert.*_proj"]), &[], &[]).unwrap().modules;
        assert_eq!(shared.len(), 6, "{shared:?}");
        let of_llama = select_modules(&llama, &[], &list(&["gate_up_proj"]), &[]).unwrap_err();
        assert_eq!(of_llama.0, ModuleList::Parameters);
        assert!(of_llama.1.ends_with("this model has none that can have adapters"), "{}", of_llama.1);
        let (_, message) = select_modules(&mixture, &[], &list(&["w1"]), &[]).unwrap_err();
        assert!(message.contains("there are gate_up_proj (w_gate_up, weight1); down_proj"), "{message}");
    }

    /// Those of the second layer and of the block that predicts further; the first layer is dense.
    #[test]
    fn matrices_of_all_experts_go_by_three_names() {
        let mixture = mixture_example();
        let of = |parameters: &[&str], excluded: &[&str]| {
            let selected = select_modules(&mixture, &[], &list(parameters), &list(excluded)).unwrap();
            assert!(selected.modules.is_empty());
            selected.parameters.into_iter().collect::<Vec<_>>()
        };
        let down = ["1", "2"].map(|layer| format!("model.layers.{layer}.mlp.experts.down_proj"));
        for pattern in
            ["mlp.experts.down_proj", "feed_forward.experts.w_down", "experts.weight2", "down_proj"]
        {
            assert_eq!(of(&[pattern], &[]), down, "{pattern}");
        }
        assert_eq!(of(&[".*"], &[]).len(), 4);
        assert_eq!(of(&[".*"], &["gate_up_proj", "multi_token"]), down[..1]);
    }
}
