//! The losses of preferences: pairs of answers to the same prompt, of which one is chosen.
//!
//! The losses of tokens come out of the head's chunks. Here they become the log-probabilities of answers, the loss of
//! each pair, and the weight with which each token's cross-entropy enters the gradient, all on the device: nothing
//! waits for the host.

use super::linear_cross_entropy::CrossEntropy;
use super::step_state::{LossState, PreferenceState, StepState};
use super::{fold, long_rows, per_row};
use crate::element::Element;
use crate::kernels::Kernel;
use crate::record::{Recorder, State, Tensor};

crate::params! {
    struct Params {
        pairs: u32,
        kind: u32,
        beta: f32,
        smoothing: f32,
        margin: f32,
        ignore: u32,
        inverse_accumulation: f32,
        divisor: f32,
    }
}

/// Words of a pair in [`Preference::pairs`].
pub const PAIR_WORDS: u32 = 4;

/// The loss of a pair, by the log-probabilities of its answers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PairLoss {
    /// Direct preference optimisation (Rafailov et al., 2023), against a reference.
    Dpo {
        /// Factor of the log-ratios, which are then rewards.
        beta: f32,
        /// Assumed share of pairs whose answers are the wrong way round.
        label_smoothing: f32,
    },
    /// Identity preference optimisation (Azar et al., 2023), of log-ratios per token, against a reference.
    Ipo {
        /// Regularisation: the margin that is aimed at is 1 / (2 β).
        beta: f32,
    },
    /// Odds ratio preference optimisation (Hong et al., 2024), without a reference: the mean loss of the chosen
    /// answer's tokens, and the odds ratio.
    Orpo {
        /// Factor of the odds ratio's loss.
        beta: f32,
    },
    /// Simple preference optimisation (Meng et al., 2024), without a reference, of log-probabilities per token.
    SimPo {
        /// Factor of the log-probabilities, which are then rewards.
        beta: f32,
        /// The margin between rewards that is aimed at.
        gamma: f32,
        /// As of DPO.
        label_smoothing: f32,
    },
}

impl PairLoss {
    /// Whether the loss compares with the log-probabilities under another model.
    pub fn has_reference(self) -> bool {
        matches!(self, Self::Dpo { .. } | Self::Ipo { .. })
    }
}

/// The pairs of a micro-batch, and their loss.
#[derive(Clone, Copy, Debug)]
pub struct Preference {
    /// The loss of each.
    pub loss: PairLoss,
    /// (1, 4 P) u32: for each of P places the first token of the chosen answer, the first of the rejected one, which
    /// follows it, the end of that, and 1; zeros for a place without a pair.
    pub pairs: Tensor,
    /// (1, 4 P): the [`log_probabilities`] of the same pairs under the reference; `None` for a loss without one.
    pub reference: Option<Tensor>,
    /// [`PreferenceState`], to which rewards and log-probabilities are added.
    pub state: Tensor,
}

impl Preference {
    fn places(&self) -> u32 {
        self.pairs.cols / PAIR_WORDS
    }

    fn params(&self, loss: &CrossEntropy) -> Params {
        let (kind, beta, smoothing, margin) = match self.loss {
            PairLoss::Dpo { beta, label_smoothing } => (0, beta, label_smoothing, 0.0),
            PairLoss::Ipo { beta } => (1, beta, 0.0, 0.0),
            PairLoss::Orpo { beta } => (2, beta, 0.0, 0.0),
            PairLoss::SimPo { beta, gamma, label_smoothing } => (3, beta, label_smoothing, gamma),
        };
        Params {
            pairs: self.places(),
            kind,
            beta,
            smoothing,
            margin,
            ignore: loss.ignore,
            inverse_accumulation: 1.0 / loss.accumulation as f32,
            divisor: if loss.is_per_token { loss.targets.cols as f32 } else { 0.0 },
        }
    }

    /// A kernel over all answers, and its grid.
    fn over_answers(&self, rec: &Recorder, entry: &'static str, tokens: u32) -> (Kernel, [u32; 3]) {
        let answers = 2 * self.places();
        match u64::from(tokens) <= rec.capabilities().most_turns() {
            true => per_row(rec, "preference", entry, Element::F32, answers),
            false => long_rows("preference", entry, Element::F32, answers),
        }
    }
}

/// (1, 4 P) f32 of the `losses` (1, N) of tokens: for each pair the log-probability of the chosen answer, in nats,
/// its number of targets, and those of the rejected answer; zeros for a place without a pair. They are written to
/// `into`, if it is given.
#[track_caller]
pub fn log_probabilities(
    rec: &mut Recorder,
    preference: &Preference,
    loss: &CrossEntropy,
    losses: Tensor,
    into: Option<Tensor>,
) -> Tensor {
    let tokens = losses.cols;
    assert!(loss.targets.cols == tokens, "a loss for each target");
    let log_probs = into.unwrap_or_else(|| rec.tensor("log_probs", 1, preference.pairs.cols, Element::F32));
    let (kernel, grid) = preference.over_answers(rec, "log_probabilities", tokens);
    let bindings = [
        preference.pairs.bind("pairs", Element::U32),
        loss.targets.bind("targets", Element::U32),
        losses.bind("losses", Element::F32),
        log_probs.bind("log_probs", Element::F32),
    ];
    rec.dispatch(kernel, &bindings, &preference.params(loss), grid);
    log_probs
}

/// Adds the losses of the pairs to the states of `loss` and `preference`, from the `losses` (1, N) of their tokens.
/// Returns (1, 2 P): the derivative of each pair's loss by the log-probability of each answer.
#[track_caller]
pub(super) fn pair_losses(
    rec: &mut Recorder,
    preference: &Preference,
    loss: &CrossEntropy,
    losses: Tensor,
) -> Tensor {
    let has_reference = preference.reference.is_some();
    assert!(has_reference || !preference.loss.has_reference(), "the loss compares with a reference");
    let policy = log_probabilities(rec, preference, loss, losses, None);
    let slopes = rec.tensor("slopes", 1, 2 * preference.places(), Element::F32);
    let bindings = [
        preference.pairs.bind("pairs", Element::U32),
        policy.bind("policy", Element::F32),
        preference.reference.unwrap_or(policy).bind("reference", Element::F32),
        StepState::bind("step", loss.step),
        LossState::bind("loss", loss.loss),
        PreferenceState::bind("sums", preference.state),
        slopes.bind("slopes", Element::F32),
    ];
    let kernel = fold("preference", "pair_losses", Element::F32);
    rec.dispatch(kernel, &bindings, &preference.params(loss), [1, 1, 1]);
    slopes
}

/// (1, `tokens`): the weight of each token of an answer in the gradient. Other tokens get none: their targets are
/// ignored.
#[track_caller]
pub(super) fn token_weights(
    rec: &mut Recorder,
    preference: &Preference,
    loss: &CrossEntropy,
    slopes: Tensor,
) -> Tensor {
    let weights = rec.tensor("weights", 1, loss.targets.cols, Element::F32);
    let (kernel, grid) = preference.over_answers(rec, "token_weights", loss.targets.cols);
    let bindings = [
        preference.pairs.bind("pairs", Element::U32),
        slopes.bind("slopes_in", Element::F32),
        weights.bind("weights", Element::F32),
    ];
    rec.dispatch(kernel, &bindings, &preference.params(loss), grid);
    weights
}
