//! Losses that keep experts equally busy, and their gradient.

use super::fold;
use super::route::{RouterConfig, RouterOutput, Score};
use super::tally::{TallyColumns, assert_tally};
use crate::element::Element;
use crate::kernels::Kernel;
use crate::record::{Recorder, Tensor, fold_grid};

/// Tokens that one invocation counts, at least, if its sequence has as many.
const BLOCK: u32 = 64;

/// Blocks of a micro-batch, at most, if it has fewer sequences: one workgroup folds them.
const BLOCKS: u32 = 64;

/// Experts that a workgroup counts the choices of, side by side.
const LANES: u32 = 32;

crate::params! {
    struct Params {
        tokens: u32,
        experts: u32,
        stride: u32,
        sequences: u32,
        sequence: u32,
        block: u32,
        blocks: u32,
        tally_losses: u32,
        expert_scale: f32,
        sequence_scale: f32,
        expert_factor: f32,
        sequence_factor: f32,
        inverse_accumulation: f32,
    }
}

/// The balance losses of a layer, over a micro-batch of B sequences of T tokens, N = B · T. With f_e the share of choices
/// that fell on expert e (they sum to 1; no gradient passes through them) and p_e the mean of its scores, those of a token
/// made to sum to 1, E · Σ f_e · p_e is 1 where experts are equally busy, and E where one does everything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Balance {
    /// What E · Σ f_e · p_e over all tokens counts in the objective; 0: nothing.
    pub expert: f32,
    /// What the same counts for the tokens of each sequence, averaged over sequences.
    pub sequence: f32,
    /// What the mean over tokens of (ln Σ exp logits)² counts.
    pub z: f32,
    /// Tokens of a sequence (T).
    pub tokens: u32,
    /// Micro-batches in a step: each one counts one part in so many.
    pub accumulation: u32,
}

impl Balance {
    /// Whether the objective has any of the three.
    pub fn is_in_objective(&self) -> bool {
        self.pulls() || self.z != 0.0
    }

    fn pulls(&self) -> bool {
        self.expert != 0.0 || self.sequence != 0.0
    }

    pub(super) fn inverse_accumulation(&self) -> f32 {
        1.0 / self.accumulation as f32
    }
}

/// The gradient of the balance losses, as `route_backward` takes it along.
#[derive(Clone, Copy, Debug)]
pub struct BalanceGradient {
    /// The losses.
    pub balance: Balance,
    /// What [`balance`] made (B, E), f32: their gradient with respect to the normalised scores of any token of a sequence, at
    /// loss scale 1. `None` if only the z loss counts.
    pub pull: Option<Tensor>,
    /// `StepState` (its loss scale is read).
    pub step: Tensor,
}

impl BalanceGradient {
    #[track_caller]
    pub(super) fn assert_fits(&self, route: &RouterConfig, tokens: u32) {
        let Balance { tokens: sequence, accumulation, .. } = self.balance;
        assert!(self.balance.is_in_objective(), "balance losses with no factor have no gradient");
        assert!(
            self.pull.is_some() == self.balance.pulls(),
            "a pull without a factor, or a factor without one"
        );
        assert!(accumulation > 0, "a step has at least one micro-batch");
        assert_sequences(tokens, sequence);
        if let Some(pull) = self.pull {
            let fits = (pull.rows, pull.cols) == (tokens / sequence, route.experts);
            assert!(fits, "the pull has a row a sequence and a column an expert");
        }
    }
}

/// Works out the losses of a micro-batch, and returns their pull (B, E) if one of the factors of its choices is not 0.
///
/// With `tally` (see [`TallyColumns`]) the three losses, before their factors and divided by the number of micro-batches,
/// are added to a layer's row: exactly one pass over each micro-batch should do so.
#[track_caller]
pub fn balance(
    rec: &mut Recorder,
    route: &RouterConfig,
    balance: &Balance,
    routed: &RouterOutput,
    tally: Option<Tensor>,
) -> Option<Tensor> {
    let (tokens, experts) = (routed.scores.rows, routed.scores.cols);
    let Balance { expert, sequence: sequence_factor, tokens: sequence, accumulation, .. } = *balance;
    assert_sequences(tokens, sequence);
    assert!(accumulation > 0, "a step has at least one micro-batch");
    assert!(experts == route.experts, "scores of {experts} experts for a router of {}", route.experts);
    if !balance.pulls() && tally.is_none() {
        return None;
    }
    let sequences = tokens / sequence;
    let block = BLOCK.max(tokens.div_ceil(BLOCKS)).min(sequence);
    let blocks = sequence.div_ceil(block);
    let (e, k, n) = (f64::from(experts), f64::from(route.chosen), f64::from(tokens));
    let params = Params {
        tokens,
        experts,
        stride: routed.scores.stride,
        sequences,
        sequence,
        block,
        blocks,
        tally_losses: TallyColumns::of(experts).expert_loss,
        expert_scale: (e / (k * n * n)) as f32,
        sequence_scale: (e / (k * n * f64::from(sequence))) as f32,
        expert_factor: expert,
        sequence_factor,
        inverse_accumulation: balance.inverse_accumulation(),
    };
    let rows = sequences * blocks;
    let choices = rec.tensor("choices", rows, experts, Element::F32);
    let sums = rec.tensor("sums", rows, experts, Element::F32);
    let pull = rec.tensor("pull", sequences, experts, Element::F32);

    let is_sigmoid = route.score == Score::Sigmoid;
    let kernel = Kernel::new("balance", "sum_choices", Element::F32)
        .constant("LANES", LANES)
        .constant("CHOSEN", route.chosen)
        .feature("sigmoid", is_sigmoid);
    let mut bindings = vec![
        (1, routed.counted().binding()),
        (2, routed.scores.binding()),
        (4, choices.binding()),
        (5, sums.binding()),
    ];
    if is_sigmoid {
        bindings.push((3, routed.statistics.binding()));
    }
    let workgroups = u64::from(params.stride.div_ceil(LANES)) * u64::from(rows);
    rec.dispatch(kernel, &bindings, &params, fold_grid(workgroups));

    let kernel = fold("balance", "balance", Element::F32).constant("CHOSEN", route.chosen);
    let mut bindings = vec![(1, choices.binding()), (2, sums.binding()), (4, pull.binding())];
    if let Some(tally) = tally {
        assert_tally(tally, experts);
        bindings.extend([(3, routed.statistics.binding()), (5, tally.binding())]);
    }
    rec.dispatch(kernel.feature("accumulate", tally.is_some()), &bindings, &params, [1, 1, 1]);
    balance.pulls().then_some(pull)
}

#[track_caller]
fn assert_sequences(tokens: u32, sequence: u32) {
    let divides = sequence > 0 && tokens.is_multiple_of(sequence);
    assert!(divides, "{tokens} tokens are no whole sequences of {sequence}");
}
