//! What else a pipeline trains with, against the run of one rank that accumulates the same micro-batches, and
//! evaluations through it; `layouts.rs` has every model and layout.
//!
//! Sums over micro-batches have another order, since a stage takes its backward halves in turns with forward ones; and
//! what both ends of a pipeline hold is summed there first.

use super::against_one::{BY_LENGTH, ROUNDED, SGD, layers, small};
use super::layouts::{STAGES, gpt2, llama, mixture};
use super::spread::{
    GRADIENTS, MICRO_BATCHES, OPTIMIZER, Spread, TOKENS, VOCABULARY, WEIGHTS, ZERO_1, ZERO_2,
};
use super::trial::{DATA_PARALLEL, IN_BF16, PLAIN, Variation, train_as_one};
use crate::runs::{Setup, on_ranks};
use gristmill::device::Gpu;
use gristmill::train::Trainer;
use gristmill::train::length::RunLength;
use pollster::block_on;

const INTERLEAVED: Spread = Spread { interleaves: 2, ..STAGES };
const PAIRS: Spread = Spread { data: 2, ..STAGES };
const DIVIDED: Spread = Spread { model: 2, ..STAGES };

/// Sums of f32 in another order.
const CLOSE: Variation<'_> = Variation { bounds: DATA_PARALLEL, ..PLAIN };

#[test]
fn pipelines_share_an_optimizer_as_ranks_do() {
    train_as_one(llama, &[ZERO_1, ZERO_2, WEIGHTS].map(|keys| Spread { keys, ..PAIRS }), &CLOSE);
    train_as_one(gpt2, &[Spread { keys: ZERO_1, ..PAIRS }], &CLOSE);
    train_as_one(llama, &[Spread { interleaves: 2, keys: ZERO_2, ..PAIRS }], &CLOSE);
    train_as_one(mixture, &[Spread { expert: 2, ..PAIRS }], &PLAIN);
}

/// More layers than an even share, or fewer, and as many micro-batches as no stage divides.
#[test]
fn any_stages_train_as_one_rank() {
    let offset = &["--model.model_config.offset=[[-1, 0], [0, 1]]"];
    train_as_one(llama, &[Spread { keys: offset, ..INTERLEAVED }], &CLOSE);
    train_as_one(llama, &[STAGES], &Variation { micro_batches: 7, keys: &BY_LENGTH, ..CLOSE });
    let four_layers = || layers().with(&["--model.model_config.num_layers=4"]);
    train_as_one(four_layers, &[INTERLEAVED], &CLOSE);
    let linear = || small(Setup::of_linear_attention("linear attention", ""));
    train_as_one(linear, &[STAGES], &CLOSE);
    let convolutions = || small(Setup::of_convolutions("convolutions", ""));
    train_as_one(convolutions, &[Spread { keys: ZERO_2, ..PAIRS }], &CLOSE);
}

/// An embedding on both ends whose rows are divided; experts spread over ranks that divide them, too.
#[test]
fn ranks_of_a_stage_divide_matrices() {
    train_as_one(gpt2, &[Spread { keys: &[TOKENS, VOCABULARY], ..DIVIDED }], &PLAIN);
    train_as_one(mixture, &[Spread { expert: 2, data: 2, keys: ZERO_1, ..DIVIDED }], &PLAIN);
    let gradients = &[TOKENS, VOCABULARY, OPTIMIZER, GRADIENTS];
    let sharded = Spread { data: 2, keys: gradients, ..DIVIDED };
    train_as_one(llama, &[sharded, Spread { model: 2, ..INTERLEAVED }], &PLAIN);
}

/// Rounding, a loss scale that adapts, losses per token.
#[test]
#[ignore = "long; `every_layout_trains_in_every_variation` has stages"]
fn variants_on_stages_train_as_on_one() {
    train_as_one(llama, &[INTERLEAVED], &Variation { keys: ROUNDED, bounds: IN_BF16, ..PLAIN });
    let adapts = &[
        "--runner_wrapper={scale_sense: {type: AdaptiveLossScaleUpdateCell}, use_clip_grad: True, max_grad_norm: 1.0}",
        "--recompute_config.recompute=True",
    ];
    train_as_one(mixture, &[STAGES], &Variation { keys: adapts, ..PLAIN });
    let narrow =
        || small(Setup::typed("OPTConfig", "opt", "norm_placement: after_sum, word_embed_proj_dim: 20"));
    train_as_one(narrow, &[STAGES], &Variation { keys: &[SGD], ..CLOSE });
    let per_token = &["--runner_wrapper.calculate_per_token_loss=True"];
    train_as_one(llama, &[STAGES], &Variation { keys: per_token, ..CLOSE });
    let muon = &["--optimizer={type: Muon, weight_decay: 0.1}"];
    train_as_one(mixture, &[STAGES], &Variation { keys: muon, ..PLAIN });
    train_as_one(llama, &[DIVIDED], &Variation { keys: muon, ..PLAIN });
}

/// Loss and accuracy, on every rank those of one, and no step is the worse for it.
#[test]
fn an_evaluation_goes_through_all_stages() {
    let evaluates = ["--do_eval", "--train_dataset.eval_fraction=0.3", "--metric={type: Accuracy}"];
    let evaluated = |setup: Setup, gpu: &Gpu, size: usize| {
        let of_rank = |ranks: gristmill::ranks::Ranks| {
            let plan = if size == 1 { setup.plan() } else { setup.plan_on_rank(ranks.rank(), size) };
            let data = plan.load_data().expect("data");
            let eval = data.eval.as_ref().expect("evaluation data");
            let length = RunLength::new(&plan, data.train.steps_per_epoch());
            let mut trainer = block_on(Trainer::on_rank(gpu, &plan, &length, ranks)).expect("a trainer");
            let steps = plan.settings.runner.gradient_accumulation_steps as u64;
            for step in 1..=3 {
                block_on(trainer.step(step, &data.train, (step - 1) * steps)).expect("a step");
                let batches = eval.micro_steps_per_epoch().div_ceil(plan.layout.data as u64);
                block_on(trainer.evaluate(step, eval, batches, |_| Ok(()))).expect("an evaluation");
                block_on(trainer.wait()).expect("the device");
                trainer.finished_steps().expect("states");
            }
            let all = trainer.finished_evaluations().expect("evaluations");
            all.iter().map(|one| (one.loss, one.accuracy.expect("an accuracy"))).collect::<Vec<_>>()
        };
        on_ranks(size, of_rank)
    };
    let divided = Spread { keys: &[TOKENS, VOCABULARY], ..DIVIDED };
    for spread in [STAGES, INTERLEAVED, PAIRS, divided] {
        let setup = || llama().with(&evaluates);
        let gpu = setup().gpu();
        let one = evaluated(Spread::ONE.setup(setup(), MICRO_BATCHES), &gpu, 1).remove(0);
        let ranks = evaluated(spread.setup(setup(), MICRO_BATCHES), &gpu, spread.ranks());
        for (rank, got) in ranks.into_iter().enumerate() {
            assert_eq!(got.len(), one.len());
            for (got, want) in got.iter().zip(&one) {
                let apart = f64::from((got.0 - want.0).abs() / want.0);
                assert!(
                    apart <= 1e-6 && (got.1 - want.1).abs() <= 1e-3,
                    "rank {rank} of {spread:?}: {got:?}, not {want:?}"
                );
            }
        }
    }
}
