//! `operators`: layers by operator, and what the documentation says of operators.

use crate::model::config::{Activation, Feature, Operator, WITHOUT_OUTPUT};
use crate::settings::engine::*;
use crate::settings::sections::model::Model;
use crate::settings::sections::moe::Moe;
use std::fmt::Write;

/// Which operators the layers of a model have.
#[derive(Clone, Copy)]
pub(super) struct LayerFeatures<'a> {
    pub model: &'a Model,
    pub moe: Option<&'a Moe>,
}

impl LayerFeatures<'_> {
    /// Whether `layer` has `operator`.
    pub fn has(&self, operator: Operator, layer: usize) -> bool {
        let is_query_layer = self.model.kind.learns_queries() && layer + 1 == self.model.num_layers;
        let mixture = self.moe.filter(|moe| layer >= moe.first_k_dense_replace && !is_query_layer);
        let shared = mixture.filter(|moe| moe.moe_shared_expert_intermediate_size.is_some());
        let has_gate = self.has_gate();
        match operator.needs() {
            Feature::Any => true,
            Feature::QkNorm => self.model.use_qk_norm == Some(true) && self.model.kv_lora_rank.is_none(),
            Feature::Latent => self.model.kv_lora_rank.is_some(),
            Feature::LatentQueries => self.model.q_lora_rank.is_some(),
            Feature::Dense => mixture.is_none(),
            Feature::DenseSwiGlu => mixture.is_none() && has_gate,
            Feature::DenseGelu => mixture.is_none() && !has_gate,
            Feature::Experts => mixture.is_some(),
            Feature::ExpertsSwiGlu => mixture.is_some() && has_gate,
            Feature::ExpertsGelu => mixture.is_some() && !has_gate,
            Feature::SharedExpert => shared.is_some(),
            Feature::SharedExpertGate => shared.is_some_and(|moe| moe.use_shared_expert_gating),
        }
    }

    /// Whether the activation of feed-forward networks is a product with a gate.
    pub fn has_gate(&self) -> bool {
        self.model.hidden_act == Some(Activation::SwiGlu)
    }

    /// The operators of `layer`.
    pub fn operators(&self, layer: usize) -> impl Iterator<Item = Operator> {
        Operator::all().filter(move |operator| self.has(*operator, layer))
    }
}

/// The numbers of the layers of each operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operators(pub Vec<(Operator, Vec<usize>)>);

impl Operators {
    /// Reads `node`.
    ///
    /// # Errors
    /// What was found that is no operator, or no layers.
    pub(super) fn read(node: &Node) -> Result<Self, String> {
        let Node::Map(entries) = node else { return Err(node.to_string()) };
        let read = |(name, node): &(String, Node)| {
            let name = name.escape_debug();
            let operator = Operator::named(&name.to_string());
            let operator = operator
                .ok_or_else(|| format!("`{name}`; operators are {}", paths(Operator::all()).join(", ")))?;
            let layers = Vec::from_node(node).ok_or_else(|| format!("{node} for `{name}`"))?;
            Ok((operator, layers))
        };
        entries.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// Adds `layer` to the layers of `operator`. Layers are added in ascending order.
    pub(super) fn add(&mut self, operator: Operator, layer: usize) {
        match self.0.iter_mut().find(|(other, _)| *other == operator) {
            Some((_, layers)) => layers.push(layer),
            None => self.0.push((operator, vec![layer])),
        }
        self.0.sort_unstable_by_key(|(operator, _)| *operator);
    }

    /// The operators of `layer`.
    pub(super) fn of(&self, layer: usize) -> Vec<Operator> {
        let of_layer = self.0.iter().filter(|(_, layers)| layers.contains(&layer));
        of_layer.map(|(operator, _)| *operator).collect()
    }
}

impl Setting for Operators {
    fn kind() -> ValueKind {
        ValueKind::Form("layers by operator as in {feed_forward.mul: [0, 1]}")
    }

    fn to_node(&self) -> Option<Node> {
        let layers = |(operator, layers): &(Operator, Vec<usize>)| {
            Some((operator.path().to_string(), layers.to_node()?))
        };
        (!self.0.is_empty()).then(|| Node::Map(self.0.iter().filter_map(layers).collect()))
    }
}

/// The paths of `operators`.
pub(super) fn paths(operators: impl IntoIterator<Item = Operator>) -> Vec<&'static str> {
    operators.into_iter().map(Operator::path).collect()
}

/// Checks operators that were written with their layers, where `selects` says that others are selected by pattern.
pub(super) fn check(
    operators: &mut Operators,
    reader: &Reader<'_>,
    parts: &LayerFeatures<'_>,
    layers: usize,
    selects: bool,
) {
    for (operator, numbers) in &mut operators.0 {
        let path = operator.path();
        match numbers.iter().find(|layer| **layer >= layers || !parts.has(*operator, **layer)) {
            Some(layer) if *layer >= layers => {
                let last = layers.saturating_sub(1);
                reader.fault("operators", format!("there is no layer {layer}; the last is {last}"));
            }
            Some(layer) => {
                let there = paths(parts.operators(*layer)).join(", ");
                reader.fault("operators", format!("layer {layer} has no {path}, but {there}"));
            }
            None => {}
        }
        numbers.sort_unstable();
        numbers.dedup();
    }
    let beside = "given beside `select_recompute` or one of its kin; keep one of them";
    reader.require(&["operators"], operators.0.is_empty() || !selects, beside);
}

/// The operators, and the names that they answer to, for the documentation of the section.
pub(super) fn listing() -> String {
    let mut text = " Operators, and the names of MindFormers that they answer to:\n".to_string();
    for operator in Operator::all() {
        let others: Vec<String> = operator.names().skip(1).map(|name| format!("`{name}`")).collect();
        let others = if others.is_empty() { String::new() } else { format!(": {}", others.join(", ")) };
        let _ = write!(text, "\n- `{}`{others}", operator.path());
    }
    text += "\n\nWhat has no output of its own that could be dropped:\n";
    for (reason, names) in WITHOUT_OUTPUT {
        let names: Vec<String> = names.split_whitespace().map(|name| format!("`{name}`")).collect();
        let _ = write!(text, "\n- {}: each {reason}", names.join(", "));
    }
    text
}
