//! Parameters of the model that train beside adapters, in the adapter's file under the names by which PEFT finds them.
//!
//! PEFT trains copies of whole modules, which `modules_to_save` lists, and puts their tensors under the module's name.
//! Any other tensor of its file it writes to the model itself, under the name that the parameter then has. So a module
//! is listed if all of it is in the file. Other parameters are found by name alone: a bias whose matrix is frozen, the
//! parameters inside an adapted module, and an embedding that is also the head, since PEFT would give the head no copy
//! of it unless it `ensures_weight_tying`.

use super::router_tensors::RouterTensor;
use super::tensor_file::TensorInfo;
use super::weight_files::{HEAD, WeightFiles};
use crate::model::config::LowRank;
use crate::model::names::EXPERT_PARAMETERS;
use crate::model::parameters::{BASE_LAYER, PEFT_PREFIX, Role, Spec, adapted_module};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// The module and the last part of a tensor's name.
pub(super) fn parts(name: &str) -> (&str, &str) {
    name.rsplit_once('.').unwrap_or((name, ""))
}

/// The name in the adapters' file of the tensor `name` of a model with these adapters.
pub(super) fn name_of(low_rank: &LowRank, name: &str) -> String {
    match parts(name) {
        (module, part) if low_rank.modules.contains(module) => inside(module, part, 1),
        (module, part) => inside(module, part, adapted_parameters(low_rank, module)),
    }
}

/// The number of parameters of `module`, the experts of a layer, that are adapted, each by a wrapper of the module.
fn adapted_parameters(low_rank: &LowRank, module: &str) -> usize {
    let is_adapted = |of: &&&str| low_rank.parameters.contains(&format!("{module}.{of}"));
    EXPERT_PARAMETERS.iter().filter(is_adapted).count()
}

/// The name of a tensor of `module` inside as many `wrappers`.
fn inside(module: &str, part: &str, wrappers: usize) -> String {
    format!("{PEFT_PREFIX}{module}{}.{part}", BASE_LAYER.repeat(wrappers))
}

/// The tensor of the model that is called `name` in a file of adapters; `None` if `name` is a factor.
pub(super) fn parameter_of(name: &str) -> Option<String> {
    match adapted_module(name) {
        Some(_) => None,
        None => Some(name.strip_prefix(PEFT_PREFIX)?.replace(BASE_LAYER, "")),
    }
}

/// The name in the adapter's file of the model's tensor `name`, if the file has it.
pub(super) fn find(adapter: &WeightFiles, name: &str) -> Option<String> {
    let (module, part) = parts(name);
    let names = (0..=EXPERT_PARAMETERS.len()).map(|wrappers| inside(module, part, wrappers));
    std::iter::once(format!("{PEFT_PREFIX}{name}")).chain(names).find(|name| adapter.holds(name))
}

/// The `state` of routers, under its names in the adapter's file.
pub(super) fn router_state(low_rank: &LowRank, state: Vec<RouterTensor>) -> Vec<RouterTensor> {
    let renamed = |RouterTensor { info, tensor }| {
        let name = name_of(low_rank, &info.name);
        RouterTensor { info: TensorInfo { name, ..info }, tensor }
    };
    state.into_iter().map(renamed).collect()
}

/// The modules that PEFT is to make copies of. `whole` are the parameters of the model. The `biases` of routers are in
/// the file too if they `are_saved`.
pub(super) fn modules_to_save(
    low_rank: &LowRank,
    whole: &[Spec],
    biases: &[RouterTensor],
    are_saved: bool,
) -> BTreeSet<String> {
    let of_model = || whole.iter().filter(|spec| !spec.role.is_factor());
    let is_tied = !of_model().flat_map(|spec| &spec.pieces).any(|piece| piece.name == HEAD);
    let mut modules: BTreeMap<&str, bool> = BTreeMap::new();
    for spec in of_model() {
        let is_head_too = is_tied && !low_rank.ensures_tying && spec.role == Role::Embedding;
        let is_saved = spec.trains && !is_head_too;
        for piece in &spec.pieces {
            *modules.entry(parts(&piece.name).0).or_insert(true) &= is_saved;
        }
    }
    for bias in biases {
        *modules.entry(parts(&bias.info.name).0).or_insert(true) &= are_saved;
    }
    let is_adapted =
        |module: &str| low_rank.modules.contains(module) || adapted_parameters(low_rank, module) > 0;
    let whole = modules.into_iter().filter(|(module, is_whole)| *is_whole && !is_adapted(module));
    whole.map(|(module, _)| module.to_string()).collect()
}

/// The tensors in the adapter's file that no parameter of `whole` trains, and that checkpoints would therefore lose.
pub(super) fn untrained(
    adapter: &WeightFiles,
    whole: &[Spec],
    biases: &[RouterTensor],
) -> impl Iterator<Item = String> {
    let trained = whole.iter().filter(|spec| spec.trains).flat_map(|spec| &spec.pieces);
    let trained: HashSet<&str> = trained
        .map(|piece| piece.name.as_str())
        .chain(biases.iter().map(|bias| bias.info.name.as_str()))
        .collect();
    let found: HashSet<String> = trained.iter().filter_map(|name| find(adapter, name)).collect();
    let found: HashSet<String> =
        found.iter().filter_map(|name| adapter.stored(name).map(str::to_string)).collect();
    let names = adapter.names().into_iter();
    names.filter(move |name| adapted_module(name).is_none() && !found.contains(name))
}
