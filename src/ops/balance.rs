//! Load-balancing losses of routers, and their gradient.

use super::fold;
use super::route::{RouterConfig, RouterOutput, Score};
use super::tally::{TallyColumns, assert_tally};
use crate::element::Element;
use crate::kernels::{Condition, Kernel};
use crate::record::{Recorder, Tensor, fold_grid};

/// Minimum number of tokens that one invocation counts, if the sequence has that many.
const BLOCK: u32 = 64;

/// Maximum number of blocks of a micro-batch, unless it has more sequences: one workgroup reduces them.
const BLOCKS: u32 = 64;

/// Experts whose choices one workgroup counts.
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

/// The load-balancing losses of a layer over a micro-batch of B sequences of T tokens, N = B · T.
///
/// f_e is the share of choices that fell on expert e, a constant to the gradient, and p_e its mean score, with the
/// scores of each token normalised to sum to 1. E · Σ f_e · p_e is 1 for a uniform load and E if one expert gets
/// everything (Fedus et al., "Switch Transformers", 2021).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Balance {
    /// Factor of E · Σ f_e · p_e over all tokens in the objective; 0 leaves it out.
    pub expert: f32,
    /// Factor of the same loss computed over the tokens of each sequence, averaged over sequences.
    pub sequence: f32,
    /// Factor of the z-loss, the mean over tokens of (ln Σ exp logits)² (Zoph et al., "ST-MoE", 2022).
    pub z: f32,
    /// Tokens of a sequence (T).
    pub tokens: u32,
    /// Micro-batches per step: the losses of each are weighted by 1 / accumulation.
    pub accumulation: u32,
}

impl Balance {
    /// Whether any factor is not 0.
    pub fn is_in_objective(&self) -> bool {
        self.has_score_gradient() || self.z != 0.0
    }

    fn has_score_gradient(&self) -> bool {
        self.expert != 0.0 || self.sequence != 0.0
    }

    pub(super) fn inverse_accumulation(&self) -> f32 {
        1.0 / self.accumulation as f32
    }
}

/// The gradient of the balance losses, which [`route_backward`](super::route::route_backward) adds to the gradient of
/// the gates.
#[derive(Clone, Copy, Debug)]
pub struct BalanceGradient {
    /// The losses.
    pub balance: Balance,
    /// The result of [`balance`] (B, E), f32: the gradient with respect to the normalised scores of every token of a
    /// sequence, at loss scale 1. `None` if only the z-loss has a factor.
    pub d_scores: Option<Tensor>,
    /// `StepState`, for its loss scale.
    pub step: Tensor,
}

impl BalanceGradient {
    #[track_caller]
    pub(super) fn assert_fits(&self, config: &RouterConfig, tokens: u32) {
        let Balance { tokens: sequence, accumulation, .. } = self.balance;
        assert!(self.balance.is_in_objective(), "balance losses whose factors are all 0 have no gradient");
        assert!(
            self.d_scores.is_some() == self.balance.has_score_gradient(),
            "d_scores must be given exactly if the expert or the sequence loss has a factor"
        );
        assert!(accumulation > 0, "a step has at least one micro-batch");
        assert_sequences(tokens, sequence);
        if let Some(d_scores) = self.d_scores {
            let fits = (d_scores.rows, d_scores.cols) == (tokens / sequence, config.experts);
            assert!(fits, "d_scores must have a row for each sequence and a column for each expert");
        }
    }
}

/// Computes the losses of a micro-batch. Returns `d_scores` (B, E), the gradient of the normalised scores, if the
/// expert or the sequence loss has a factor.
///
/// If `tally` is given (see [`TallyColumns`]), the three losses, without factors and divided by the number of
/// micro-batches, are added to a layer's row. Exactly one pass over each micro-batch should do so.
#[track_caller]
pub fn balance(
    rec: &mut Recorder,
    config: &RouterConfig,
    balance: &Balance,
    output: &RouterOutput,
    tally: Option<Tensor>,
) -> Option<Tensor> {
    let (tokens, experts) = (output.scores.rows, output.scores.cols);
    let Balance { expert, sequence: sequence_factor, tokens: sequence, accumulation, .. } = *balance;
    assert_sequences(tokens, sequence);
    assert!(accumulation > 0, "a step has at least one micro-batch");
    assert!(experts == config.experts, "scores of {experts} experts for a router of {}", config.experts);
    if !balance.has_score_gradient() && tally.is_none() {
        return None;
    }
    let sequences = tokens / sequence;
    let block = BLOCK.max(tokens.div_ceil(BLOCKS)).min(sequence);
    let blocks = sequence.div_ceil(block);
    let (e, k, n) = (f64::from(experts), f64::from(config.chosen), f64::from(tokens));
    let params = Params {
        tokens,
        experts,
        stride: output.scores.stride,
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
    let choices = rec.tensor("choices", rows, experts, Element::U32);
    let sums = rec.tensor("sums", rows, experts, Element::F32);
    let d_scores = rec.tensor("d_scores", sequences, experts, Element::F32);

    let is_sigmoid = config.score == Score::Sigmoid;
    let kernel = Kernel::new("balance", "sum_choices", Element::F32)
        .constant("LANES", LANES)
        .constant("CHOSEN", config.chosen)
        .condition(Condition::Sigmoid, is_sigmoid);
    let mut bindings = vec![
        output.counted().bind("ids", Element::U32),
        output.scores.bind("scores", Element::F32),
        choices.bind("choices", Element::U32),
        sums.bind("sums", Element::F32),
    ];
    if is_sigmoid {
        bindings.push(output.statistics.bind("statistics", Element::F32));
    }
    let workgroups = u64::from(params.stride.div_ceil(LANES)) * u64::from(rows);
    rec.dispatch(kernel, &bindings, &params, fold_grid(workgroups));

    let kernel = fold("balance", "balance", Element::F32).constant("CHOSEN", config.chosen);
    let mut bindings = vec![
        choices.bind("choices_in", Element::U32),
        sums.bind("sums_in", Element::F32),
        d_scores.bind("d_scores", Element::F32),
    ];
    if let Some(tally) = tally {
        assert_tally(tally, experts);
        bindings.push(output.statistics.bind("statistics", Element::F32));
        bindings.push(tally.bind("tally", Element::U32));
    }
    rec.dispatch(kernel.condition(Condition::Accumulate, tally.is_some()), &bindings, &params, [1, 1, 1]);
    balance.has_score_gradient().then_some(d_scores)
}

#[track_caller]
fn assert_sequences(tokens: u32, sequence: u32) {
    let divides = sequence > 0 && tokens.is_multiple_of(sequence);
    assert!(divides, "{tokens} tokens are not a whole number of sequences of {sequence}");
}
