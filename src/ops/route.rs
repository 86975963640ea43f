//! The router: which experts a token visits, and with which gates.
//!
//! Exactly `topk_group` groups of experts are kept, ties going to the lower index, and experts outside of them are
//! never chosen. MindFormers keeps every group as good as the last kept one, and sets the scores of the others to 0,
//! which can exceed a biased score.

use super::balance::BalanceGradient;
use super::per_row;
use super::step_state::StepState;
use crate::element::Element;
use crate::kernels::{Condition, Kernel, Tier};
use crate::record::{Recorder, State, Tensor, fold_grid};

crate::params! {
    struct Params {
        tokens: u32,
        experts: u32,
        stride: u32,
        gates_stride: u32,
        groups: u32,
        groups_chosen: u32,
        groups_stride: u32,
        takes_best_two: u32,
        normalises: u32,
        gate_epsilon: f32,
        gate_floor: f32,
        scaling: f32,
        tolerance: f32,
        sequence: u32,
        d_scores_stride: u32,
        inverse_accumulation: f32,
        z_factor: f32,
    }
}

/// How a router scores and chooses experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterConfig {
    /// Experts (E), 1 to 512.
    pub experts: u32,
    /// Experts that a token visits (k), 1 to 16 and at most E.
    pub chosen: u32,
    /// The function from logits to scores.
    pub score: Score,
    /// Group-limited routing: experts are chosen from the best groups only (DeepSeek-V2, 2024).
    pub groups: Option<ExpertGroups>,
    /// What the gates of a token are divided by, if they are made to sum to 1; the gate of a single choice is then 1.
    pub norm: Option<GateNorm>,
    /// Factor of the gates, applied last.
    pub scaling: f32,
}

impl RouterConfig {
    #[track_caller]
    pub(super) fn assert_valid(&self) {
        let Self { experts, chosen, groups, .. } = *self;
        assert!((1..=512).contains(&experts), "a router must have 1 to 512 experts, not {experts}");
        let most = experts.min(16);
        assert!(
            (1..=most).contains(&chosen),
            "a token must visit 1 to {most} of {experts} experts, not {chosen}"
        );
        if self.score.tolerance().is_some() {
            let is_plain = groups.is_none() && self.norm.is_none();
            assert!(
                chosen == 2 && is_plain,
                "SparseMixer chooses 2 of all experts, whose gates are not normalised"
            );
        }
        let Some(ExpertGroups { count, chosen: kept, score }) = groups else { return };
        assert!(
            count > 0 && experts.is_multiple_of(count),
            "{experts} experts cannot form {count} equal groups"
        );
        assert!(
            (1..=count).contains(&kept),
            "1 to {count} of {count} groups of experts must be kept, not {kept}"
        );
        let size = experts / count;
        assert!(chosen <= kept * size, "{kept} groups of {size} experts have fewer than {chosen} experts");
        let has_two = size > 1 || score == GroupScore::Best;
        assert!(has_two, "groups of one expert cannot be scored by their two best experts");
    }
}

/// What makes the gates of a token sum to 1: they are divided by their sum, which is kept from 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GateNorm {
    /// By their sum plus this.
    Plus(f32),
    /// By their sum, or by this if it is larger: such gates sum to less than 1 (ERNIE 4.5, 2025).
    AtLeast(f32),
}

impl GateNorm {
    /// By their sum + 1e-9.
    pub const SUM: Self = Self::Plus(1e-9);
}

/// The function from logits to scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Score {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each expert's logit.
    Sigmoid,
    /// Softmax, but k is 2, and gates are not the scores (SparseMixer in Phi-3.5-MoE; Liu et al., "GRIN", 2024): the
    /// first gate is that of the largest logit in a softmax over the experts near it, the second that of the next in
    /// a softmax over those near that, without the first. Their gradient is that of these softmaxes. Scores serve the
    /// balance losses.
    SparseMixer {
        /// ε: an expert with logit z is near a chosen one with logit z' if (z' - z) / max(|z|, z') is at most 2 ε.
        jitter: f32,
    },
}

impl Score {
    fn tolerance(self) -> Option<f32> {
        match self {
            Self::SparseMixer { jitter } => Some(2.0 * jitter),
            Self::Softmax | Self::Sigmoid => None,
        }
    }
}

/// Groups of E / `count` consecutive experts; a token chooses from the best `chosen` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups.
    pub count: u32,
    /// Groups that a token may choose from.
    pub chosen: u32,
    /// The score of a group.
    pub score: GroupScore,
}

/// The score of a group of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupScore {
    /// The best score of its experts (`group_limited_greedy`, DeepSeek-V2).
    Best,
    /// The sum of its two best scores (`noaux_tc`, DeepSeek-V3).
    BestTwo,
}

/// The output of a router for N tokens.
#[derive(Clone, Copy, Debug)]
pub struct RouterOutput {
    /// The chosen experts (1, N · k), u32: choice j of token t at t · k + j, best first.
    pub ids: Tensor,
    /// The gates (N, k), f32: the factors of the chosen experts' outputs, in the same order.
    pub gates: Tensor,
    /// The scores of all experts (N, E), f32, without the bias.
    pub scores: Tensor,
    /// For each token (N, 4), f32: ln Σ exp(logits), the sum of its scores, the sum of its chosen scores, 0; of
    /// [`Score::SparseMixer`] the two gates before their factor in place of the last two.
    pub statistics: Tensor,
    /// The experts that would have been chosen without the bias (1, N · k), u32, for the balance losses of a router
    /// with a bias.
    pub unbiased: Option<Tensor>,
}

impl RouterOutput {
    /// Transient tensors for the output for `tokens` tokens.
    #[track_caller]
    pub fn new(rec: &mut Recorder, config: &RouterConfig, tokens: u32, keeps_unbiased: bool) -> Self {
        let choices = tokens * config.chosen;
        Self {
            ids: rec.tensor("ids", 1, choices, Element::U32),
            gates: rec.tensor("gates", tokens, config.chosen, Element::F32),
            scores: rec.tensor("scores", tokens, config.experts, Element::F32),
            statistics: rec.tensor("statistics", tokens, 4, Element::F32),
            unbiased: keeps_unbiased.then(|| rec.tensor("unbiased ids", 1, choices, Element::U32)),
        }
    }

    /// The choices that the balance losses count.
    pub fn counted(&self) -> Tensor {
        self.unbiased.unwrap_or(self.ids)
    }

    #[track_caller]
    fn assert_fits(&self, config: &RouterConfig, logits: Tensor) {
        let (tokens, RouterConfig { experts, chosen, .. }) = (logits.rows, *config);
        let is_f32 = [logits, self.gates, self.scores].iter().all(|tensor| tensor.element == Element::F32);
        assert!(is_f32, "the router needs f32 tensors, whatever the activations are");
        assert!(logits.cols == experts, "{} logits a token for {experts} experts", logits.cols);
        let scores_fit = (self.scores.rows, self.scores.cols, self.scores.stride);
        assert!(scores_fit == (tokens, experts, logits.stride), "scores must have the shape of logits");
        assert!((self.gates.rows, self.gates.cols) == (tokens, chosen), "gates must be {tokens} x {chosen}");
        assert!(
            (self.statistics.rows, self.statistics.stride) == (tokens, 4),
            "statistics must be {tokens} x 4"
        );
        for ids in [Some(self.ids), self.unbiased].into_iter().flatten() {
            assert!(
                ids.rows == 1 && ids.cols == tokens * chosen,
                "ids must be one row of {tokens} x {chosen}"
            );
        }
    }
}

/// Scores the logits (N, E) and chooses experts. `bias` (1, E) is added to the scores for the choice only (Wang et al.,
/// "Auxiliary-Loss-Free Load Balancing", 2024).
///
/// Experts outside the kept groups cannot be chosen, as in Megatron; MindSpore Transformers sets their scores to 0,
/// which may exceed a biased score. Exactly [`ExpertGroups::chosen`] groups are kept. Ties go to the lower index.
#[track_caller]
pub fn route(
    rec: &mut Recorder,
    config: &RouterConfig,
    logits: Tensor,
    bias: Option<Tensor>,
    out: &RouterOutput,
) {
    config.assert_valid();
    out.assert_fits(config, logits);
    let has_place = bias.is_none() || config.score.tolerance().is_none();
    assert!(has_place, "SparseMixer chooses by logits, to which no bias is added");
    let has_use = bias.is_some() || out.unbiased.is_none();
    assert!(has_use, "without a bias the unbiased choices are the choices and need no tensor of their own");
    let group_keys = group_keys(rec, config, logits.rows);
    let params = Params { groups_stride: group_keys.map_or(0, |keys| keys.stride), ..params(config, logits) };
    let (kernel, grid) = plan(rec, config, "route", logits.rows);
    let mut bindings = vec![
        logits.bind("logits", Element::F32),
        out.scores.bind("scores", Element::F32),
        out.statistics.bind("statistics", Element::F32),
        out.ids.bind("ids", Element::U32),
        out.gates.bind("gates", Element::F32),
    ];
    if let Some(bias) = bias {
        assert!(
            (bias.cols, bias.element) == (config.experts, Element::F32),
            "the bias must be one f32 for each expert"
        );
        bindings.push(bias.bind("bias", Element::F32));
    }
    bindings.extend(group_keys.map(|keys| keys.bind("group_keys", Element::U32)));
    let kernel = kernel
        .condition(Condition::Bias, bias.is_some())
        .condition(Condition::GroupLimited, group_keys.is_some());
    rec.dispatch(kernel, &bindings, &params, grid);

    if let Some(unbiased) = out.unbiased {
        let (kernel, grid) = plan(rec, config, "choose", logits.rows);
        let mut bindings = vec![out.scores.bind("scores", Element::F32), unbiased.bind("ids", Element::U32)];
        bindings.extend(group_keys.map(|keys| keys.bind("group_keys", Element::U32)));
        rec.dispatch(
            kernel.condition(Condition::GroupLimited, group_keys.is_some()),
            &bindings,
            &params,
            grid,
        );
    }
}

/// Writes d_logits (N, E): the gradient through the gates, given `d_gates` (N, k), plus that of the balance losses; at
/// least one of the two must be given. `logits` and `output` are those of the forward pass.
#[track_caller]
pub fn route_backward(
    rec: &mut Recorder,
    config: &RouterConfig,
    output: &RouterOutput,
    logits: Tensor,
    d_gates: Option<Tensor>,
    balance: Option<&BalanceGradient>,
    d_logits: Tensor,
) {
    config.assert_valid();
    output.assert_fits(config, logits);
    let fits = (d_logits.rows, d_logits.cols, d_logits.element) == (logits.rows, logits.cols, Element::F32);
    assert!(fits, "d_logits must have the shape of logits");
    assert!(
        d_gates.is_some() || balance.is_some(),
        "the backward of a router needs d_gates, balance losses or both"
    );
    let mut params = params(config, logits);
    let mut bindings = vec![
        output.scores.bind("scores_in", Element::F32),
        output.statistics.bind("statistics_in", Element::F32),
    ];
    if let Some(d_gates) = d_gates {
        let shape = (d_gates.rows, d_gates.cols, d_gates.element);
        assert!(
            shape == (logits.rows, config.chosen, Element::F32),
            "d_gates must be f32 with the shape of gates"
        );
        bindings.push(output.ids.bind("ids_in", Element::U32));
        bindings.push(d_gates.bind("d_gates", Element::F32));
    }
    let mut z = 0.0;
    if let Some(gradient) = balance {
        gradient.assert_fits(config, logits.rows);
        params.sequence = gradient.balance.tokens;
        params.inverse_accumulation = gradient.balance.inverse_accumulation();
        z = gradient.balance.z;
        params.z_factor = 2.0 * z / logits.rows as f32;
        if let Some(d_scores) = gradient.d_scores {
            params.d_scores_stride = d_scores.stride;
            bindings.push(d_scores.bind("d_scores", Element::F32));
        }
        bindings.push(StepState::bind("step", gradient.step));
    }
    bindings.push(d_logits.bind("d_logits", Element::F32));
    let is_mixer = config.score.tolerance().is_some();
    if z != 0.0 && config.score == Score::Sigmoid || d_gates.is_some() && is_mixer {
        bindings.push(logits.bind("logits_in", Element::F32));
    }
    let (kernel, grid) = plan(rec, config, "route_backward", logits.rows);
    let kernel = kernel
        .condition(Condition::Gradient, d_gates.is_some())
        .condition(Condition::Balance, balance.is_some_and(|gradient| gradient.d_scores.is_some()))
        .condition(Condition::ZLoss, z != 0.0);
    rec.dispatch(kernel, &bindings, &params, grid);
}

/// As `per_row`, but with at most one invocation per two experts: every choice is a reduction over the workgroup.
fn plan(rec: &Recorder, config: &RouterConfig, entry: &'static str, tokens: u32) -> (Kernel, [u32; 3]) {
    let (kernel, grid) = match rec.capabilities().tier {
        Tier::Software => per_row(rec, "route", entry, Element::F32, tokens),
        Tier::Portable | Tier::Matrix => {
            let lanes = (config.experts / 2).next_power_of_two().clamp(32, 128);
            let kernel = Kernel::new("route", entry, Element::F32).constant("LANES", lanes);
            (kernel.condition(Condition::SharedTile, true), fold_grid(tokens.into()))
        }
    };
    (
        kernel
            .constant("CHOSEN", config.chosen)
            .condition(Condition::Sigmoid, config.score == Score::Sigmoid)
            .condition(Condition::SparseMixer, config.score.tolerance().is_some()),
        grid,
    )
}

fn group_keys(rec: &mut Recorder, config: &RouterConfig, tokens: u32) -> Option<Tensor> {
    config.groups.map(|groups| rec.tensor("group keys", tokens, groups.count, Element::U32))
}

fn params(config: &RouterConfig, logits: Tensor) -> Params {
    let groups = config.groups.unwrap_or(ExpertGroups { count: 1, chosen: 1, score: GroupScore::Best });
    let (gate_epsilon, gate_floor) = match config.norm {
        None => (0.0, 0.0),
        Some(GateNorm::Plus(epsilon)) => (epsilon, 0.0),
        Some(GateNorm::AtLeast(floor)) => (0.0, floor),
    };
    Params {
        tokens: logits.rows,
        experts: config.experts,
        stride: logits.stride,
        gates_stride: crate::element::stride_of(config.chosen),
        groups: groups.count,
        groups_chosen: groups.chosen,
        groups_stride: 0,
        takes_best_two: (groups.score == GroupScore::BestTwo).into(),
        normalises: config.norm.is_some().into(),
        gate_epsilon,
        gate_floor,
        scaling: config.scaling,
        tolerance: config.score.tolerance().unwrap_or(0.0),
        sequence: logits.rows,
        d_scores_stride: 0,
        inverse_accumulation: 0.0,
        z_factor: 0.0,
    }
}
