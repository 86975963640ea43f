//! The parameters of what follows attention in a layer.

use super::{Ranges, bias, matrix, path_of, residual_std};
use crate::model::config::{Activation, MixtureConfig, ModelConfig, SharedExpert};
use crate::model::names::{self, Names};
use crate::model::parameters::{DenseFeedForward, FeedForward, Mixture, Shared, Spec};

impl FeedForward<Spec> {
    /// Of layer number `layer`.
    pub(super) fn describe(config: &ModelConfig, layer: usize) -> Self {
        match config.mixture_of(layer) {
            None => Self::Dense(DenseFeedForward::describe(config, layer)),
            Some(mixture) => Self::Mixture(Mixture::describe(config, mixture, layer)),
        }
    }
}

impl DenseFeedForward<Spec> {
    fn describe(config: &ModelConfig, layer: usize) -> Self {
        let ModelConfig { hidden_size: width, intermediate_size: inner, init_std: std, .. } = *config;
        let names = Names::of(config.family);
        let path = |of: &str| path_of(config, layer, &format!("feed_forward.{of}"));
        let name = |name: &str| format!("{}.{layer}.{name}", names.layers);
        let gate_up = match config.activation {
            // Each half starts at a multiple of 4 rows: see `ops::swiglu`.
            Activation::SwiGlu => Ranges::of(names.gate_up.iter().map(|n| name(n)), &[inner, inner], 4),
            Activation::Gelu(_) => Ranges::of(names.gate_up.iter().map(|n| name(n)), &[inner], 1),
        };
        let down = Ranges::of([name(names.w_down)], &[width], 1);
        let weight = |of: &str, ranges: &Ranges, cols: usize, std: f64| {
            matrix(path(of), ranges.rows, cols, std, ranges.weights(names.is_transposed))
        };
        let bias = |of: &str, ranges: &Ranges| config.linear_bias.then(|| bias(path(of), ranges));
        Self {
            w_gate_up: weight("w_gate_up", &gate_up, width, std),
            b_gate_up: bias("b_gate_up", &gate_up),
            w_down: weight("w_down", &down, inner, residual_std(config)),
            b_down: bias("b_down", &down),
        }
    }
}

impl Mixture<Spec> {
    /// Files hold the matrices of each expert alone; here those of all experts are one matrix.
    fn describe(config: &ModelConfig, mixture: &MixtureConfig, layer: usize) -> Self {
        let (width, experts) = (config.hidden_size, mixture.experts());
        let path = |of: &str| path_of(config, layer, &format!("feed_forward.{of}"));
        let name = |name: &str| format!("{}.{layer}.{name}", Names::of(config.family).layers);
        let router = Ranges::of([name(names::ROUTER)], &[experts], 1);
        let each: Vec<String> = (0..experts).map(|e| format!("{}.{e}", name(names::EXPERTS))).collect();
        let [w_gate_up, w_down] = gated(config, &path("experts."), &each, mixture.intermediate_size);
        // A part of a stack is whole experts, so that each lies in one binding.
        let [w_gate_up, w_down] =
            [w_gate_up, w_down].map(|spec| Spec { split_rows: Some(spec.rows / experts), ..spec });
        let std = mixture.router_init_std;
        let shared = |shared: &SharedExpert| {
            let names = [name(names::shared_expert(shared))];
            let [w_gate_up, w_down] = gated(config, &path("shared."), &names, shared.intermediate_size);
            let ranges = Ranges::of([name(names::SHARED_GATE)], &[1], 1);
            let gate = || matrix(path("shared.gate"), 1, width, std, ranges.weights(false));
            Shared { w_gate_up, w_down, gate: shared.is_gated.then(gate) }
        };
        Self {
            router: matrix(path("router"), router.rows, width, std, router.weights(false)),
            w_gate_up,
            w_down,
            shared: mixture.shared.as_ref().map(shared),
        }
    }
}

/// w_gate_up and w_down of networks of these names, `inner` wide, one after the other.
fn gated(config: &ModelConfig, path: &str, networks: &[String], inner: usize) -> [Spec; 2] {
    let width = config.hidden_size;
    let gate_up = networks.iter().flat_map(|name| names::EXPERT_GATE_UP.map(|of| format!("{name}.{of}")));
    let down = networks.iter().map(|name| format!("{name}.{}", names::EXPERT_DOWN));
    // Each half starts at a multiple of 4 rows, as in a dense network.
    let gate_up = Ranges::of(gate_up, &vec![inner; 2 * networks.len()], 4);
    let down = Ranges::of(down, &vec![width; networks.len()], 1);
    let weight = |of: &str, ranges: &Ranges, cols: usize, std: f64| {
        matrix(format!("{path}{of}"), ranges.rows, cols, std, ranges.weights(false))
    };
    [
        weight("w_gate_up", &gate_up, width, config.init_std),
        weight("w_down", &down, inner, residual_std(config)),
    ]
}

#[cfg(test)]
mod tests;
