//! `recompute_config`: which layers, and which of their operators, are computed again in the backward pass, by their
//! numbers.

use super::model::Model;
use super::moe::Moe;
use super::parallel::{self, Distribution};
use crate::model::config::{Activation, Feature, Operator, Recomputed};
use crate::ranks::RankLayout;
use crate::settings::engine::*;

rows! {
    /// `recompute_config`: which layers, or which of their operators, are computed again in the backward pass, so that
    /// their activations need not be kept. No choice changes a bit of the results. The result of a layer is always
    /// kept, and so are the decisions of a router. Other forms of these keys are `recompute: True`, which means all
    /// layers, and patterns of operators.
    pub struct Recompute in "recompute_config" {
        /// Layers that are recomputed as a whole, by their numbers from 0; blocks of multi-token prediction come last.
        layers: Vec<usize> = Host.optional().example("[1]"),
        /// The operators that are recomputed by themselves, each with the numbers of its layers, from 0.
        operators: Operators = Host.optional()
            .read_by(|reader, key| reader.form(key, Operators::read))
            .example("{feed_forward.mul: [1]}"),
        /// Whether weights that ranks gather for the forward pass (`parallel.enable_parallel_optimizer`) are dropped
        /// after it and gathered again for the backward pass, of all layers; no effect elsewhere.
        parallel_optimizer_comm_recompute: bool = Host.default(false),
        /// Whether tensor-parallel ranks exchange activations again when a layer is recomputed; `False` keeps the
        /// exchanged activations. No effect without `model_parallel`.
        mp_comm_recompute: bool = Host.default(true),
        /// Whether each tensor-parallel rank keeps only a slice of the input of a layer that is recomputed as a whole,
        /// and gathers the other slices. No effect without `model_parallel`, nor with `use_seq_parallel`, which saves
        /// as much.
        recompute_slice_activation: bool = Host.default(false),
    }
}

pub(crate) const PATH: &str = Recompute::ID.section;

/// A model and its mixture, from which the operators of each layer follow.
#[derive(Clone, Copy)]
pub(crate) struct LayerFeatures<'a> {
    pub model: &'a Model,
    pub moe: Option<&'a Moe>,
}

/// The numbers of the layers of each operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operators(pub Vec<(Operator, Vec<usize>)>);

/// Reads the section of a model whose layers have the operators of `parts`.
pub(crate) fn read(source: &Source, parts: LayerFeatures<'_>, parallel: &Distribution) -> Recompute {
    let reader = Reader::open(source, PATH, &[Recompute::ID]);
    let mut recompute = Recompute::read(&reader);
    note_communication(&reader, &recompute, parallel);
    if parallel::is_shape_sound(source) {
        recompute.check(&reader, parts);
    }
    recompute
}

/// Notes the switches about exchanges between ranks that have no effect in this run.
fn note_communication(reader: &Reader<'_>, recompute: &Recompute, parallel: &Distribution) {
    let Recompute {
        parallel_optimizer_comm_recompute, mp_comm_recompute, recompute_slice_activation, ..
    } = *recompute;
    let RankLayout { data, model, .. } = parallel.layout;
    let shares_optimizer = data > 1 && parallel.asked.context.enable_parallel_optimizer;
    let (of_optimizer, of_matrices) = ("parallel.enable_parallel_optimizer: True", "model_parallel");
    let switches = [
        (
            "parallel_optimizer_comm_recompute",
            parallel_optimizer_comm_recompute,
            shares_optimizer,
            of_optimizer,
        ),
        ("mp_comm_recompute", !mp_comm_recompute, model > 1, of_matrices),
        ("recompute_slice_activation", recompute_slice_activation, model > 1, of_matrices),
    ];
    for (key, _, _, needed) in switches.into_iter().filter(|(_, differs, counts, _)| *differs && !counts) {
        match parallel.layout.world() {
            1 => reader.note(key, "no effect on one device"),
            _ => reader.note(key, format!("no effect without `{needed}`")),
        }
    }
}

impl Recompute {
    /// The layers and operators in the form that a model's configuration has.
    pub(crate) fn recomputed(&self) -> Recomputed {
        Recomputed {
            layers: self.layers.clone(),
            operators: self.operators.0.clone(),
            keeps_exchanged: !self.mp_comm_recompute,
            keeps_slices: self.recompute_slice_activation,
        }
    }

    /// Checks that the model has the listed layers and operators, and sorts the lists.
    fn check(&mut self, reader: &Reader<'_>, parts: LayerFeatures<'_>) {
        let layers = parts.model.blocks();
        let last = layers.saturating_sub(1);
        let missing = |layer: &usize| format!("there is no layer {layer}; the last is {last}");
        if let Some(layer) = self.layers.iter().find(|layer| **layer > last) {
            reader.fault("layers", missing(layer));
        }
        sort(&mut self.layers);
        for (operator, numbers) in &mut self.operators.0 {
            let has = |layer: &usize| *layer < layers && parts.has(*operator, *layer);
            match numbers.iter().find(|layer| !has(layer)) {
                Some(layer) if *layer >= layers => reader.fault("operators", missing(layer)),
                Some(layer) => {
                    let there = paths(parts.operators(*layer)).join(", ");
                    let path = operator.path();
                    reader.fault("operators", format!("layer {layer} has no {path}, but {there}"));
                }
                None => {}
            }
            sort(numbers);
        }
    }
}

fn sort(layers: &mut Vec<usize>) {
    layers.sort_unstable();
    layers.dedup();
}

impl LayerFeatures<'_> {
    /// Whether `layer` has `operator`.
    pub fn has(&self, operator: Operator, layer: usize) -> bool {
        let model = &self.model.config;
        let is_query_layer = model.layer(layer).has_query_table;
        let mixture = self.moe.filter(|moe| layer >= moe.first_k_dense_replace && !is_query_layer);
        let shared = mixture.filter(|moe| moe.moe_shared_expert_intermediate_size.is_some());
        let (has_gate, has_xielu) = (self.has_gate(), model.activation == Activation::Xielu);
        let (is_linear, has_softmax) =
            (model.layer(layer).linear().is_some(), model.layer(layer).has_softmax());
        let has_dense = mixture.is_none_or(|moe| moe.enable_moe_block);
        match operator.needs() {
            Feature::Any => true,
            Feature::NormsBefore => model.has_layer_norms(),
            Feature::FeedForwardNorm => model.has_ffn_norm(),
            Feature::NormsAfter => model.norm_placement.is_after(),
            Feature::Softmax => has_softmax,
            Feature::LinearAttention => is_linear,
            Feature::Convolution => !has_softmax,
            Feature::QkNorm => model.qk_norm && has_softmax,
            Feature::AttentionGate => model.attention_gate && has_softmax,
            Feature::Latent => model.latent.is_some(),
            Feature::LatentQueries => model.latent.is_some_and(|latent| latent.q_rank.is_some()),
            Feature::Dense => has_dense,
            Feature::DenseSwiGlu => has_dense && has_gate,
            Feature::DenseGelu => has_dense && !has_gate && !has_xielu,
            Feature::DenseXielu => has_dense && has_xielu,
            Feature::DenseBesideExperts => mixture.is_some() && has_dense,
            Feature::Experts => mixture.is_some(),
            Feature::ExpertsSwiGlu => mixture.is_some() && has_gate,
            Feature::ExpertsGelu => mixture.is_some() && !has_gate,
            Feature::SharedExpert => shared.is_some(),
            Feature::SharedExpertGate => shared.is_some_and(|moe| moe.use_shared_expert_gating),
        }
    }

    /// Whether the activation of feed-forward networks is a product with a gate.
    pub fn has_gate(&self) -> bool {
        self.model.config.activation.gate().is_some()
    }

    /// The operators of `layer`.
    pub fn operators(&self, layer: usize) -> impl Iterator<Item = Operator> {
        Operator::all().filter(move |operator| self.has(*operator, layer))
    }
}

impl Operators {
    /// Reads `node`.
    ///
    /// # Errors
    /// The part of it that is no operator, or no layers.
    fn read(node: &Node) -> Result<Self, String> {
        let Node::Map(entries) = node else { return Err(node.to_string()) };
        let read = |(name, node): &(String, Node)| {
            let name = name.escape_debug().to_string();
            let operator = Operator::named(&name)
                .ok_or_else(|| format!("`{name}`; operators are {}", paths(Operator::all()).join(", ")))?;
            let layers = Vec::from_node(node).ok_or_else(|| format!("{node} for `{name}`"))?;
            Ok((operator, layers))
        };
        entries.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// Adds `layer` to the layers of `operators`. Layers are added in ascending order.
    pub(crate) fn add(&mut self, layer: usize, operators: Vec<Operator>) {
        for operator in operators {
            match self.0.iter_mut().find(|(other, _)| *other == operator) {
                Some((_, layers)) if layers.last() == Some(&layer) => {}
                Some((_, layers)) => layers.push(layer),
                None => self.0.push((operator, vec![layer])),
            }
        }
        self.0.sort_unstable_by_key(|(operator, _)| *operator);
    }

    /// The operators of `layer`.
    pub(crate) fn of(&self, layer: usize) -> Vec<Operator> {
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
pub(crate) fn paths(operators: impl IntoIterator<Item = Operator>) -> Vec<&'static str> {
    operators.into_iter().map(Operator::path).collect()
}
