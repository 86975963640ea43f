//! Which experts a token visits, and how much each counts.

use super::balance::BalanceGradient;
use super::per_row;
use crate::element::Element;
use crate::kernels::{Kernel, Tier};
use crate::record::{Recorder, Tensor, fold_grid};

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
        scaling: f32,
        sequence: u32,
        pull_stride: u32,
        inverse_accumulation: f32,
        z_factor: f32,
    }
}

/// How a router chooses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterConfig {
    /// E, 1 to 512.
    pub experts: u32,
    /// k, 1 to 16, at most E.
    pub chosen: u32,
    /// From logits to scores.
    pub score: Score,
    /// Groups of neighbouring experts of which only the best may be chosen from.
    pub groups: Option<ExpertGroups>,
    /// Whether the gates of a token are divided by their sum + [`RouterConfig::GATE_EPSILON`] (only for k > 1).
    pub norm_top_k: bool,
    /// What the gates are multiplied with at last.
    pub scaling: f32,
}

impl RouterConfig {
    /// Added to the sum that gates are divided by.
    pub const GATE_EPSILON: f32 = 1e-9;

    #[track_caller]
    pub(super) fn assert_valid(&self) {
        let Self { experts, chosen, groups, .. } = *self;
        assert!((1..=512).contains(&experts), "a router has 1 to 512 experts, not {experts}");
        let most = experts.min(16);
        assert!(
            (1..=most).contains(&chosen),
            "a token visits 1 to {most} of {experts} experts, not {chosen}"
        );
        let Some(ExpertGroups { count, chosen: kept, score }) = groups else { return };
        assert!(count > 0 && experts.is_multiple_of(count), "{experts} experts are no {count} equal groups");
        assert!(
            (1..=count).contains(&kept),
            "of {count} groups of experts 1 to {count} are kept, not {kept}"
        );
        let size = experts / count;
        assert!(chosen <= kept * size, "{kept} groups of {size} experts have fewer than {chosen}");
        let has_two = size > 1 || score == GroupScore::Best;
        assert!(has_two, "the two best experts of a group are asked for, and groups have one");
    }
}

/// From logits to scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// Over all experts.
    Softmax,
    /// Of each expert alone.
    Sigmoid,
}

/// Groups of E / `count` neighbouring experts; a token chooses from the best `chosen` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// How many groups.
    pub count: u32,
    /// How many of them a token may choose from.
    pub chosen: u32,
    /// What makes a group good.
    pub score: GroupScore,
}

/// What makes a group of experts good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupScore {
    /// Its best score (`group_limited_greedy`).
    Best,
    /// The sum of its two best (`noaux_tc`).
    BestTwo,
}

/// What a router makes of N tokens.
#[derive(Clone, Copy, Debug)]
pub struct RouterOutput {
    /// The experts that tokens chose (1, N · k), u32: choice j of token t at t · k + j, the best score first.
    pub ids: Tensor,
    /// How much each choice counts (N, k), f32, in the same order.
    pub gates: Tensor,
    /// The score of every expert (N, E), f32, without bias.
    pub scores: Tensor,
    /// Per token (N, 4): ln Σ exp(logits), the sum of its scores, the sum of its chosen scores, 0; f32.
    pub statistics: Tensor,
    /// What tokens would have chosen without a bias (1, N · k), u32, by the same rule, groups included: the balance losses
    /// count these where there is one.
    pub unbiased: Option<Tensor>,
}

impl RouterOutput {
    /// Transient tensors for `tokens` tokens.
    #[track_caller]
    pub fn new(rec: &mut Recorder, route: &RouterConfig, tokens: u32, keeps_unbiased: bool) -> Self {
        let choices = tokens * route.chosen;
        Self {
            ids: rec.tensor("ids", 1, choices, Element::F32),
            gates: rec.tensor("gates", tokens, route.chosen, Element::F32),
            scores: rec.tensor("scores", tokens, route.experts, Element::F32),
            statistics: rec.tensor("statistics", tokens, 4, Element::F32),
            unbiased: keeps_unbiased.then(|| rec.tensor("unbiased ids", 1, choices, Element::F32)),
        }
    }

    /// The choices that the balance losses count.
    pub fn counted(&self) -> Tensor {
        self.unbiased.unwrap_or(self.ids)
    }

    #[track_caller]
    fn assert_fits(&self, route: &RouterConfig, logits: Tensor) {
        let (tokens, RouterConfig { experts, chosen, .. }) = (logits.rows, *route);
        let is_f32 = [logits, self.gates, self.scores].iter().all(|tensor| tensor.element == Element::F32);
        assert!(is_f32, "the router works in f32, whatever the activations are");
        assert!(logits.cols == experts, "{} logits a token for {experts} experts", logits.cols);
        let scores_fit = (self.scores.rows, self.scores.cols, self.scores.stride);
        assert!(scores_fit == (tokens, experts, logits.stride), "scores have another shape than logits");
        assert!((self.gates.rows, self.gates.cols) == (tokens, chosen), "gates are {tokens} x {chosen}");
        assert!((self.statistics.rows, self.statistics.stride) == (tokens, 4), "statistics are {tokens} x 4");
        for ids in [Some(self.ids), self.unbiased].into_iter().flatten() {
            assert!(ids.rows == 1 && ids.cols == tokens * chosen, "ids are one row of {tokens} x {chosen}");
        }
    }
}

/// Scores the logits (N, E) and chooses. `bias` (1, E) is added to the scores for the choice, and only for that.
///
/// Experts outside the groups that are kept cannot be chosen (as in Megatron; the original sets their score to 0, which may
/// be above a biased one). Exactly [`ExpertGroups::chosen`] groups are kept. Of equal experts or groups the lower index is chosen.
#[track_caller]
pub fn route(
    rec: &mut Recorder,
    route: &RouterConfig,
    logits: Tensor,
    bias: Option<Tensor>,
    out: &RouterOutput,
) {
    route.assert_valid();
    out.assert_fits(route, logits);
    let has_use = bias.is_some() || out.unbiased.is_none();
    assert!(
        has_use,
        "without a bias the choices without a bias are the choices: there is nothing to keep apart"
    );
    let group_keys = group_keys(rec, route, logits.rows);
    let params = Params { groups_stride: group_keys.map_or(0, |keys| keys.stride), ..params(route, logits) };
    let (kernel, grid) = plan(rec, route, "route", logits.rows);
    let mut bindings = vec![
        (1, logits.binding()),
        (2, out.scores.binding()),
        (3, out.statistics.binding()),
        (4, out.ids.binding()),
        (5, out.gates.binding()),
    ];
    if let Some(bias) = bias {
        assert!((bias.cols, bias.element) == (route.experts, Element::F32), "one f32 bias an expert");
        bindings.push((6, bias.binding()));
    }
    bindings.extend(group_keys.map(|keys| (7, keys.binding())));
    let kernel = kernel.feature("bias", bias.is_some()).feature("group_limited", group_keys.is_some());
    rec.dispatch(kernel, &bindings, &params, grid);

    if let Some(unbiased) = out.unbiased {
        let (kernel, grid) = plan(rec, route, "choose", logits.rows);
        let mut bindings = vec![(2, out.scores.binding()), (4, unbiased.binding())];
        bindings.extend(group_keys.map(|keys| (7, keys.binding())));
        rec.dispatch(kernel.feature("group_limited", group_keys.is_some()), &bindings, &params, grid);
    }
}

/// d_logits (N, E), written: the gradient through the gates, given `d_gates` (N, k), plus that of the balance losses. The
/// choices are those of `routed`. At least one of the two gradients must be there. `logits` are those of the forward pass.
#[track_caller]
pub fn route_backward(
    rec: &mut Recorder,
    route: &RouterConfig,
    routed: &RouterOutput,
    logits: Tensor,
    d_gates: Option<Tensor>,
    balance: Option<&BalanceGradient>,
    d_logits: Tensor,
) {
    route.assert_valid();
    routed.assert_fits(route, logits);
    let fits = (d_logits.rows, d_logits.cols, d_logits.element) == (logits.rows, logits.cols, Element::F32);
    assert!(fits, "the gradient of the logits has another shape than they");
    assert!(d_gates.is_some() || balance.is_some(), "a router without any gradient has no backward");
    let mut params = params(route, logits);
    let mut bindings = vec![(1, routed.scores.binding()), (2, routed.statistics.binding())];
    if let Some(d_gates) = d_gates {
        let shape = (d_gates.rows, d_gates.cols, d_gates.element);
        assert!(
            shape == (logits.rows, route.chosen, Element::F32),
            "gates' gradient is no f32 of their shape"
        );
        bindings.extend([(3, routed.ids.binding()), (4, d_gates.binding())]);
    }
    let mut z = 0.0;
    if let Some(gradient) = balance {
        gradient.assert_fits(route, logits.rows);
        params.sequence = gradient.balance.tokens;
        params.inverse_accumulation = gradient.balance.inverse_accumulation();
        z = gradient.balance.z;
        params.z_factor = 2.0 * z / logits.rows as f32;
        if let Some(pull) = gradient.pull {
            params.pull_stride = pull.stride;
            bindings.push((5, pull.binding()));
        }
        bindings.push((6, gradient.step.binding()));
    }
    bindings.push((7, d_logits.binding()));
    if z != 0.0 && route.score == Score::Sigmoid {
        bindings.push((8, logits.binding()));
    }
    let (kernel, grid) = plan(rec, route, "route_backward", logits.rows);
    let kernel = kernel
        .feature("gradient", d_gates.is_some())
        .feature("balance", balance.is_some_and(|gradient| gradient.pull.is_some()))
        .feature("z_loss", z != 0.0);
    rec.dispatch(kernel, &bindings, &params, grid);
}

/// As `per_row`, but a workgroup has no more invocations than half of the experts: every choice is a reduction over it.
fn plan(rec: &Recorder, route: &RouterConfig, entry: &'static str, tokens: u32) -> (Kernel, [u32; 3]) {
    let (kernel, grid) = match rec.capabilities().tier {
        Tier::Software => per_row(rec, "route", entry, Element::F32, tokens),
        Tier::Portable => {
            let lanes = (route.experts / 2).next_power_of_two().clamp(32, 128);
            let kernel = Kernel::new("route", entry, Element::F32).constant("LANES", lanes);
            (kernel.feature("shared_tile", true), fold_grid(tokens.into()))
        }
    };
    (kernel.constant("CHOSEN", route.chosen).feature("sigmoid", route.score == Score::Sigmoid), grid)
}

fn group_keys(rec: &mut Recorder, route: &RouterConfig, tokens: u32) -> Option<Tensor> {
    route.groups.map(|groups| rec.tensor("group keys", tokens, groups.count, Element::F32))
}

fn params(route: &RouterConfig, logits: Tensor) -> Params {
    let groups = route.groups.unwrap_or(ExpertGroups { count: 1, chosen: 1, score: GroupScore::Best });
    Params {
        tokens: logits.rows,
        experts: route.experts,
        stride: logits.stride,
        gates_stride: crate::element::stride_of(route.chosen),
        groups: groups.count,
        groups_chosen: groups.chosen,
        groups_stride: 0,
        takes_best_two: (groups.score == GroupScore::BestTwo).into(),
        normalises: (route.norm_top_k && route.chosen > 1).into(),
        scaling: route.scaling,
        sequence: logits.rows,
        pull_stride: 0,
        inverse_accumulation: 0.0,
        z_factor: 0.0,
    }
}
