//! A mixture of experts: the whole layer that stands in the place of a feed-forward network (Shazeer et al. 2017,
//! arXiv:1701.06538), with the losses that keep its experts busy.
//!
//! y = Σⱼ gateⱼ·expertⱼ(x) over the k experts that a token chose, + the shared expert's output. An expert is
//! down_proj(silu(gate_proj·x)·up_proj·x). A router (E, D) makes the logits from which choices and gates follow.
//!
//! N tokens of width D, E experts of width F, k choices of a token: choice j of token t has the index t·k + j.

mod balance;
mod choice;
mod experts;
mod layer;
mod slots;

pub use choice::{Choices, choose};
pub use layer::{Layer, Visit};
pub use slots::capacity_slots;

/// The sizes and rules of a mixture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mixture {
    /// E.
    pub experts: usize,
    /// k.
    pub chosen: usize,
    /// From logits to scores.
    pub score: Score,
    /// Groups of neighbouring experts of which only the best may be chosen from.
    pub groups: Option<ExpertGroups>,
    /// Whether the gates of a token are divided by their sum + 1e-9 (only for k > 1).
    pub norm_top_k: bool,
    /// What the gates are multiplied with at last.
    pub scaling: f64,
    /// By how much the bias of the choice moves after a step.
    pub bias_update_rate: f64,
    /// F.
    pub intermediate_size: usize,
    /// So many layers, the first ones, are no mixtures.
    pub first_dense_layers: usize,
    /// The expert that every token visits, if there is one.
    pub shared: Option<Shared>,
    /// What the objective adds.
    pub losses: Losses,
    /// How many tokens an expert takes; `None`: all that chose it.
    pub capacity: Option<Capacity>,
}

/// From logits to scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// e^logit / Σ e^logit.
    Softmax,
    /// 1 / (1 + e^−logit), of each expert alone.
    Sigmoid,
}

/// Groups of E / `count` neighbouring experts; a token chooses from the best `chosen` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// How many groups.
    pub count: usize,
    /// How many of them a token may choose from.
    pub chosen: usize,
    /// A group is as good as the sum of so many of its best scores: 1 or 2.
    pub best: usize,
}

/// The expert that every token visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// Its width.
    pub intermediate_size: usize,
    /// Whether its output is multiplied with σ(x·w), w (D).
    pub is_gated: bool,
}

/// The losses of a [`Visit`], or the factors with which the objective adds them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Losses {
    /// E·Σ f·p over the tokens of a micro-batch (Fedus et al. 2021, arXiv:2101.03961, section 2.2).
    pub expert: f64,
    /// The mean over sequences of the same over the tokens of each (DeepSeek-V3 2024, arXiv:2412.19437, section 2.1).
    pub sequence: f64,
    /// The mean of (log Σ e^logit)² (Zoph et al. 2022, arXiv:2202.08906, section 3.3).
    pub z: f64,
}

/// How many tokens an expert takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// See [`capacity_slots`].
    pub factor: f64,
    /// Whether slots go to all choices of a token before those of the next; otherwise all first choices come first.
    pub is_token_major: bool,
    /// Whether the gates of choices that found a slot are scaled to the sum that all would have.
    pub renormalises: bool,
    /// Experts with more slots than the others, if there are such.
    pub hot: Option<Hot>,
}

/// Experts that were busiest lately keep all slots.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hot {
    /// How many are hot.
    pub count: usize,
    /// Slots of the others, as a share.
    pub cold_token_share: f64,
    /// The busiest are chosen anew every so many steps, before that at every power of two.
    pub update_step: u32,
    /// And after this step.
    pub checkpoint_step: Option<u32>,
}

/// What a router remembers between steps; no gradient reaches it.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    /// Added to the scores where experts are chosen, (E).
    pub bias: Vec<f64>,
    /// The hot experts, where there are such.
    pub hot: Vec<usize>,
}

impl Memory {
    /// Before the first step: no bias, and the first experts are the hot ones.
    pub fn new(mixture: &Mixture) -> Self {
        let hot = mixture.capacity.and_then(|capacity| capacity.hot).map_or(0, |hot| hot.count);
        Self { bias: vec![0.0; mixture.experts], hot: (0..hot).collect() }
    }

    /// After a step, given each micro-batch's choices of each expert (E).
    ///
    /// bias += rate·sign(mean − choices), over all micro-batches (Wang et al. 2024, arXiv:2408.15664). At the steps
    /// where hot experts change they are those with most choices in the step, the first of equals.
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
    /// Whether the hot experts are chosen anew after that step, counted from 1.
    pub fn changes_at(&self, step: u32) -> bool {
        (step < self.update_step && step.is_power_of_two())
            || Some(step) == self.checkpoint_step
            || step.is_multiple_of(self.update_step)
    }
}

impl Mixture {
    /// Its tensors, by their names after the layer's `mlp.`, with the elements of each; tokens are `hidden` wide.
    pub fn parameters(&self, hidden: usize) -> Vec<(String, usize)> {
        let mut list = vec![(format!("{ROUTER}.weight"), self.experts * hidden)];
        let mut add = |path: &str, inner: usize| {
            list.extend(experts::NAMES.map(|name| (format!("{path}.{name}.weight"), inner * hidden)));
        };
        (0..self.experts).for_each(|expert| add(&format!("experts.{expert}"), self.intermediate_size));
        if let Some(shared) = self.shared {
            add(shared.name(), shared.intermediate_size);
            if shared.is_gated {
                list.push((format!("{SHARED_GATE}.weight"), hidden));
            }
        }
        list
    }
}

impl Shared {
    /// DeepSeek's name, or Qwen2's, whose shared expert is the gated one.
    fn name(&self) -> &'static str {
        if self.is_gated { "shared_expert" } else { "shared_experts" }
    }
}

const ROUTER: &str = "gate";
const SHARED_GATE: &str = "shared_expert_gate";

#[cfg(test)]
mod tests;
