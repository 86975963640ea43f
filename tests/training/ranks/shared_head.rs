//! The head and its loss on ranks that share the vocabulary, against the f64 reference of the whole.

use super::exchanges::{Case, replay};
use crate::runs::{on_ranks, open_gpu_of};
use gristmill::device::Exchanges;
use gristmill::kernels::Tier;
use gristmill::ops::linear_cross_entropy::{
    CrossEntropy, HeadGradient, OutputProjection, linear_cross_entropy, linear_cross_entropy_forward,
};
use gristmill::ops::matrix_ranks::MatrixRanks;
use gristmill::ops::step_state::{LossState, StepState};
use gristmill::random::Philox;
use gristmill::ranks::{Group, Ranks};
use gristmill::record::{BufferId, Tensor};
use reference::linear_cross_entropy as whole;
use reference::soft_cap::soft_capped;
use reference::storage::Storage;
use std::ops::Range;

const TOKENS: usize = 37;
const WIDTH: usize = 12;
/// Of each rank: rows of logits have pads.
const VOCABULARY: usize = 7;
const IGNORE: u32 = u32::MAX;
const SCALE: f32 = 64.0;

/// h (N, D), the whole head (V, D), targets: whole numbers, so that logits are exact, and equal ones on several ranks
/// are equal.
struct Problem {
    h: Vec<f64>,
    head: Vec<f64>,
    targets: Vec<u32>,
}

impl Problem {
    fn new(ranks: usize) -> Self {
        let random = Philox::new(7, 0);
        let whole = |range: Range<usize>| {
            range.map(|i| (5.0 * random.uniform(i as u64)).floor() - 2.0).collect::<Vec<f64>>()
        };
        let of_h = TOKENS * WIDTH;
        let (h, head) = (whole(0..of_h), whole(of_h..of_h + ranks * VOCABULARY * WIDTH));
        let vocabulary = (ranks * VOCABULARY) as u32;
        let target = |token: u32| if token % 5 == 3 { IGNORE } else { token * 11 % vocabulary };
        Self { h, head, targets: (0..TOKENS as u32).map(target).collect() }
    }

    /// Losses, correct predictions, dh and the gradient of this rank's rows, and the loss and correct predictions of an
    /// evaluation.
    fn on_rank(&self, tier: Tier, ranks: Ranks, cap: Option<f64>) -> [Vec<f32>; 6] {
        let (gpu, place, size) = (open_gpu_of(tier), ranks.rank(), ranks.size());
        let mut case = Case::new(&gpu);
        let f32s = |values: &[f64]| values.iter().map(|value| *value as f32).collect::<Vec<f32>>();
        let own = &self.head[place * VOCABULARY * WIDTH..(place + 1) * VOCABULARY * WIDTH];
        let h = case.rows(TOKENS as u32, f32s(&self.h));
        let head = [case.rows(VOCABULARY as u32, f32s(own))];
        let [losses, eval_losses] = [(); 2].map(|()| case.rows(1, vec![f32::NAN; TOKENS]));
        let [correct, eval_correct] = [(); 2].map(|()| case.rows(1, vec![3.0]));
        let dh = case.rows(TOKENS as u32, vec![f32::NAN; TOKENS * WIDTH]);
        let dhead = [case.rows(VOCABULARY as u32, vec![f32::NAN; VOCABULARY * WIDTH])];
        let matrix_ranks =
            MatrixRanks { group: Group::all(size), place, shares_tokens: false, shares_vocabulary: true };
        let loss = CrossEntropy {
            ignore: IGNORE,
            correct: Some(correct),
            losses: Some(losses),
            accumulation: 2,
            ..CrossEntropy::new(
                case.ids(&self.targets),
                case.state(StepState { loss_scale: SCALE, ..StepState::default() }),
                case.state(LossState::default()),
            )
        };
        let op = OutputProjection {
            h,
            head: &head,
            bias: None,
            factor: None,
            soft_cap: cap.map(|cap| cap as f32),
            ranks: Some(&matrix_ranks),
        };
        let into = HeadGradient { parts: &dhead, accumulate: false };
        linear_cross_entropy(&mut case.rec, &op, &loss, dh, Some(into));
        let eval_loss = case.state(LossState::default());
        let loss =
            CrossEntropy { loss: eval_loss, correct: Some(eval_correct), losses: Some(eval_losses), ..loss };
        linear_cross_entropy_forward(&mut case.rec, &op, &loss);
        let results = replay(&gpu, ranks, case, Exchanges::All);
        let result = |tensor: Tensor| match tensor.buffer {
            BufferId::Persistent(id) => results[id.0 as usize].clone(),
            BufferId::Transient(_) => panic!("results outlive the recording"),
        };
        [losses, correct, dh, dhead[0], eval_losses, eval_correct].map(result)
    }
}

/// Panics if a value is further from the reference than `allowed` of its size plus the root mean square of all.
fn assert_near(name: &str, got: &[f32], want: &[f64], allowed: f64) {
    assert_eq!(got.len(), want.len(), "{name}");
    let rms = (want.iter().map(|x| x * x).sum::<f64>() / want.len() as f64).sqrt();
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs();
        assert!(error <= allowed * (want.abs() + rms), "{name}: element {i} is {got}, not {want}");
    }
}

/// Targets of every rank and of none; the largest logits are often equal, on one rank and on two.
#[test]
fn linear_cross_entropy_of_shares() {
    for (tier, size) in Tier::EVERYWHERE.into_iter().flat_map(|tier| [2, 3].map(|size| (tier, size))) {
        let problem = Problem::new(size);
        let Problem { h, head, targets } = &problem;
        let counted = targets.iter().filter(|target| **target != IGNORE).count();
        let seed = f64::from(SCALE) / 2.0 / counted as f64;
        // The logits of two ranks are capped where they are, before their parts are joined.
        let cap = (size == 2).then_some(9.0);
        let want = whole::stored_linear_cross_entropy(h, head, targets, IGNORE, seed, cap, Storage::Exact);
        let vocabulary = size * VOCABULARY;
        let logits = reference::matmul::linear(h, head, None, TOKENS, vocabulary, WIDTH);
        let logits: Vec<f64> = logits.into_iter().map(|logit| soft_capped(logit, cap)).collect();
        let loss_of =
            |(row, target): (&[f64], &u32)| whole::cross_entropy(row, &[*target], vocabulary, IGNORE).0;
        let losses: Vec<f64> = logits.chunks_exact(vocabulary).zip(targets).map(loss_of).collect();
        let correct = whole::correct(&logits, targets, vocabulary, IGNORE);
        assert!(correct > 0, "a target has the largest logit");

        let ranks = on_ranks(size, |ranks| problem.on_rank(tier, ranks, cap));
        let mut dh = vec![0.0; TOKENS * WIDTH];
        for (rank, [of_losses, of_correct, of_dh, dhead, evaluated, also_correct]) in ranks.iter().enumerate()
        {
            let name = |what: &str| format!("{what} of rank {rank} of {size} [{}]", tier.name());
            // Exponentials and sums of some tens of f32 numbers.
            assert_near(&name("losses"), of_losses, &losses, 4e-6);
            assert_near(&name("losses of an evaluation"), evaluated, &losses, 4e-6);
            assert_eq!([of_correct, also_correct], [&[3.0 + correct as f32]; 2], "{}", name("correct"));
            let own = rank * VOCABULARY * WIDTH..(rank + 1) * VOCABULARY * WIDTH;
            assert_near(&name("dhead"), dhead, &want.dw[own], 4e-6);
            dh.iter_mut().zip(of_dh).for_each(|(sum, part)| *sum += f64::from(*part));
        }
        let dh: Vec<f32> = dh.into_iter().map(|sum| sum as f32).collect();
        assert_near(&format!("dh of {size} [{}]", tier.name()), &dh, &want.dh, 4e-6);
    }
}
