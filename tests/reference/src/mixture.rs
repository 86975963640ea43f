//! A mixture of experts: the layer that replaces a feed-forward network (Shazeer et al. 2017, arXiv:1701.06538), with
//! its load-balancing losses.
//!
//! y = Σⱼ gateⱼ·expertⱼ(x) over the k experts that a token chose, plus the shared expert's output. An expert is a
//! [`Network`]. A router (E, D) computes the logits that determine choices and gates.
//!
//! N tokens of width D, E experts of width F, k choices per token; choice j of token t has index t·k + j.

mod balance;
mod choice;
mod experts;
mod layer;
mod slots;

use crate::gelu::Gelu;
pub use crate::route::GateNorm;
use crate::swiglu::Gate;

pub use choice::{Choices, choose};
pub use layer::{Layer, Visit};
pub use slots::capacity_slots;

/// Sizes and routing rules of a mixture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mixture {
    /// E, the number of experts.
    pub experts: usize,
    /// k, experts per token.
    pub chosen: usize,
    /// The function from logits to scores.
    pub score: Score,
    /// Group-limited routing: experts are chosen from the best groups only.
    pub groups: Option<ExpertGroups>,
    /// What the gates of a token are divided by, if by anything.
    pub norm: Option<GateNorm>,
    /// Factor of the gates, applied last.
    pub scaling: f64,
    /// Update of the selection bias per step.
    pub bias_update_rate: f64,
    /// What an expert is; a shared one is gated.
    pub network: Network,
    /// Router and gated experts have biases, as in gpt-oss.
    pub has_biases: bool,
    /// F, the width of an expert.
    pub intermediate_size: usize,
    /// Number of leading layers that are dense.
    pub first_dense_layers: usize,
    /// Beside the dense network of the layer, as in Gemma 4: the router has a norm, and a factor of each expert.
    pub is_beside_dense: bool,
    /// The shared expert, if any.
    pub shared: Option<Shared>,
    /// Factors of the balance losses in the objective.
    pub losses: Losses,
    /// Expert capacity; `None`: dropless.
    pub capacity: Option<Capacity>,
}

/// The network of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// down_proj(activation(gate_proj·x)·up_proj·x).
    Gated(Gate),
    /// W·gelu(V·x + v) + w, as in GPT-2.
    Gelu {
        /// The activation.
        activation: Gelu,
        /// What V and W are called.
        names: [&'static str; 2],
        /// Whether they are stored (in, out).
        is_transposed: bool,
    },
}

/// The function from logits to scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Score {
    /// e^logit / Σ e^logit.
    Softmax,
    /// 1 / (1 + e^−logit), per expert.
    Sigmoid,
    /// The softmax, and gates by [`sparse_mixer`](crate::sparse_mixer) with this ε instead of scores.
    SparseMixer(f64),
}

/// ExpertGroups of E / `count` consecutive experts; a token chooses from the best `chosen` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups.
    pub count: usize,
    /// Number of groups that a token may choose from.
    pub chosen: usize,
    /// A group is scored by the sum of this many of its best scores: 1 or 2.
    pub best: usize,
}

/// The shared expert, which every token visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// Its width.
    pub intermediate_size: usize,
    /// Whether its output is multiplied by σ(x·w), w (D).
    pub is_gated: bool,
}

/// The balance losses of a [`Visit`], or their factors in the objective.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Losses {
    /// E·Σ f·p over the tokens of a micro-batch (Fedus et al. 2021, arXiv:2101.03961, section 2.2).
    pub expert: f64,
    /// The same per sequence, averaged over sequences (DeepSeek-V3 2024, arXiv:2412.19437, section 2.1).
    pub sequence: f64,
    /// The mean over tokens of (log Σ e^logit)² (Zoph et al. 2022, arXiv:2202.08906, section 3.3).
    pub z: f64,
}

/// Expert capacity: choices beyond it are dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Capacity factor, see [`capacity_slots`].
    pub factor: f64,
    /// Whether slots are assigned token by token; otherwise all first choices come before all second ones.
    pub is_token_major: bool,
    /// Whether the gates of the choices that were kept are scaled to the sum of all gates of the token.
    pub renormalises: bool,
    /// Hot experts with more slots than the others, if any.
    pub hot: Option<Hot>,
}

/// Hot experts: the busiest ones keep all slots, the others have fewer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hot {
    /// Number of hot experts.
    pub count: usize,
    /// Slots of a cold expert, as a fraction of a hot expert's.
    pub cold_token_share: f64,
    /// Hot experts are reassigned after every multiple of this many steps, and before the first after every power of
    /// two.
    pub update_step: u32,
    /// They are also reassigned after this step.
    pub checkpoint_step: Option<u32>,
}

/// State of a router that persists between steps and has no gradient.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    /// Selection bias (E), added to the scores when experts are chosen.
    pub bias: Vec<f64>,
    /// The hot experts, if the mixture has any.
    pub hot: Vec<usize>,
}

impl Memory {
    /// The initial state: zero bias, and the first experts are hot.
    pub fn new(mixture: &Mixture) -> Self {
        let hot = mixture.capacity.and_then(|capacity| capacity.hot).map_or(0, |hot| hot.count);
        Self { bias: vec![0.0; mixture.experts], hot: (0..hot).collect() }
    }

    /// Updates the state after a step, given the choices per expert (E) of each micro-batch.
    ///
    /// bias += rate·sign(mean − choices), over all micro-batches (Wang et al. 2024, arXiv:2408.15664). At the steps
    /// where hot experts are reassigned, they become those with the most choices in the step; ties go to the lower
    /// index.
    pub fn update(&mut self, mixture: &Mixture, step: u32, counts: &[Vec<usize>]) {
        let total = |expert: usize| counts.iter().map(|counts| counts[expert]).sum::<usize>() as f64;
        let mean = (0..mixture.experts).map(total).sum::<f64>() / mixture.experts as f64;
        for (expert, bias) in self.bias.iter_mut().enumerate() {
            let missing = mean - total(expert);
            *bias += mixture.bias_update_rate * if missing == 0.0 { 0.0 } else { missing.signum() };
        }
        let hot = mixture.capacity.and_then(|capacity| capacity.hot);
        if let Some(hot) = hot.filter(|hot| hot.changes_at(step)) {
            let chosen = |expert: usize| counts.iter().map(|counts| counts[expert]).sum::<usize>();
            let mut experts: Vec<usize> = (0..mixture.experts).collect();
            experts.sort_by_key(|&expert| std::cmp::Reverse(chosen(expert)));
            experts.truncate(hot.count);
            experts.sort_unstable();
            self.hot = experts;
        }
    }
}

impl Hot {
    /// Whether hot experts are reassigned after `step`, counted from 1.
    pub fn changes_at(&self, step: u32) -> bool {
        (step < self.update_step && step.is_power_of_two())
            || Some(step) == self.checkpoint_step
            || step.is_multiple_of(self.update_step)
    }
}

impl Mixture {
    /// (name, number of elements) of its tensors, named relative to the layer's `mlp.`; `hidden` is D.
    pub fn parameters(&self, hidden: usize) -> Vec<(String, usize)> {
        let mut list = vec![(format!("{ROUTER}.weight"), self.experts * hidden)];
        if self.has_biases {
            list.push((format!("{ROUTER}.bias"), self.experts));
        }
        if self.is_beside_dense {
            list.push((EXPERT_SCALE.to_string(), self.experts));
        }
        let gated = |path: &str, inner: usize| {
            experts::NAMES.map(|name| (format!("{path}.{name}.weight"), inner * hidden))
        };
        let inner = self.intermediate_size;
        for path in (0..self.experts).map(|expert| format!("experts.{expert}")) {
            match self.network {
                Network::Gated(_) => {
                    list.extend(gated(&path, inner));
                    if self.has_biases {
                        let biases = experts::NAMES.into_iter().zip([inner, inner, hidden]);
                        list.extend(biases.map(|(name, count)| (format!("{path}.{name}.bias"), count)));
                    }
                }
                Network::Gelu { names: [up, down], .. } => list.extend([
                    (format!("{path}.{up}.weight"), inner * hidden),
                    (format!("{path}.{up}.bias"), inner),
                    (format!("{path}.{down}.weight"), hidden * inner),
                    (format!("{path}.{down}.bias"), hidden),
                ]),
            }
        }
        if let Some(shared) = self.shared {
            list.extend(gated(shared.name(), shared.intermediate_size));
            if shared.is_gated {
                list.push((format!("{SHARED_GATE}.weight"), hidden));
            }
        }
        list
    }
}

impl Shared {
    /// Its name in DeepSeek, or in Qwen2 if it is gated.
    fn name(&self) -> &'static str {
        if self.is_gated { "shared_expert" } else { "shared_experts" }
    }
}

const ROUTER: &str = "gate";
const EXPERT_SCALE: &str = "expert_scale";
const SHARED_GATE: &str = "shared_expert_gate";

#[cfg(test)]
mod tests;
