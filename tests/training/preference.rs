//! Learning from pairs of answers: a step against the f64 reference, the model without its adapters as what it
//! compares with, and a run that resumes.

use crate::against_reference::ALLOWED;
use crate::runs::{
    FolderRun, Setup, Weights, add_to, evaluated, in_turn, on_ranks, reference_shape, run_on_rank,
};
use gristmill::kernels::Capabilities;
use gristmill::perf::forecast::Forecast;
use gristmill::report::metrics::StepMetrics;
use gristmill::train::recordings::Recordings;
use reference::gpt::loss_and_gradients;
use reference::preference::{Answer, PairLoss};
use std::path::Path;

/// JSON lines made of the text: a part of it, how it goes on, and how another part does.
fn write_pairs(folder: &Path) -> String {
    let text = std::fs::read_to_string("tests/data/mill.txt").expect("the text");
    let text: String = text.chars().filter(char::is_ascii_alphanumeric).collect();
    let pair = |number: usize| {
        let (start, other) = (8 * number, 8 * number + 300);
        let (prompt, chosen) = text[start..start + 8 + number % 7].split_at(4);
        serde_json::json!({"prompt": prompt, "chosen": chosen, "rejected": &text[other..other + 3 + number % 5]})
            .to_string()
    };
    let pairs: Vec<String> = (0..60).map(pair).collect();
    let path = folder.join("pairs.jsonl");
    std::fs::write(&path, pairs.join("\n")).expect("a file");
    format!("{{type: SFTDataLoader, dataset_files: {}, raw: True, packing: best_fit}}", path.display())
}

/// A small model that learns from such pairs, of which some rows have several.
fn on_pairs(setup: Setup, folder: &Path, preference: &str) -> Setup {
    let data = format!("--train_dataset={{data_loader: {}}}", write_pairs(folder));
    let loss = format!("--preference={{{preference}}}");
    setup.with(&[&data, &loss, "--model.model_config.seq_length=56", "--calculate_per_token_loss=True"])
}

const ADAPTERS: &str =
    "pet_config: {pet_type: lora, lora_rank: 4, lora_dropout: 0.0, target_modules: '.*', random_base: True}";

/// Gradients of the mean over the pairs of a step, of which two micro-batches have different numbers.
#[test]
fn a_step_on_pairs_is_the_reference_s() {
    let folder = tempfile::tempdir().expect("a folder");
    let (beta, gamma, smoothing) = (2.0, 0.5, 0.1);
    let keys = format!("type: simpo, beta: {beta}, gamma: {gamma}, label_smoothing: {smoothing}");
    let loss = PairLoss::SimPo { beta, gamma, smoothing };
    let setup = on_pairs(Setup::new("pairs", ""), folder.path(), &keys);
    let trained = setup.train(1);
    let (plan, data, _) = setup.data();
    let (shape, weights) = (reference_shape(&plan.model), setup.initial_weights());
    let micro_steps = plan.settings.runner.gradient_accumulation_steps as u64;
    let batches: Vec<_> = (0..micro_steps).map(|number| data.train.batch(number).expect("a batch")).collect();
    let places = |batch: &gristmill::data::Batch| -> Vec<[usize; 3]> {
        let pairs = batch.pairs.chunks_exact(4).filter(|pair| pair[3] == 1);
        pairs.map(|pair| [0, 1, 2].map(|word| pair[word] as usize)).collect()
    };
    let counts: Vec<usize> = batches.iter().map(|batch| places(batch).len()).collect();
    assert!(counts[0] > plan.settings.runner.batch_size && counts[0] != counts[1], "{counts:?} pairs");
    let all = counts.iter().sum::<usize>() as f64;
    let (mut total, mut gradients) = (0.0, Weights::new());
    for batch in &batches {
        for [start, middle, end] in places(batch) {
            let of = |seed: f64, range: std::ops::Range<usize>| {
                let positions: Vec<u32> = (0..range.len() as u32).collect();
                let (tokens, targets) = (&batch.tokens[range.clone()], &batch.targets[range.clone()]);
                let length = range.len();
                loss_and_gradients(&shape, &weights, tokens, targets, &positions, length, u32::MAX, seed)
            };
            let ranges = [start..middle, middle..end];
            let answers = ranges.clone().map(|range| {
                let (sum, count, _) = of(1.0, range);
                Answer { log_prob: -sum, reference: 0.0, tokens: count as f64 }
            });
            total += loss.of(answers) / all;
            for (slope, range) in loss.slopes(answers).into_iter().zip(ranges) {
                add_to(&mut gradients, of(-slope / all, range).2);
            }
        }
    }
    let norm = gradients.values().flatten().map(|g| g * g).sum::<f64>().sqrt();
    let got = &trained.states[0];
    let error = |got: f32, want: f64| (f64::from(got) - want).abs() / want;
    let off = [error(got.loss, total), error(got.grad_norm, norm)];
    println!("{all} pairs: {off:?} of {ALLOWED}");
    assert!(
        off.iter().all(|off| *off <= ALLOWED),
        "loss {} and {total}, norm {} and {norm}",
        got.loss,
        got.grad_norm
    );
}

/// Before the first update the adapters add nothing: both models are the same to the bit, in each type and mixture,
/// so the loss is that of a coin. Recomputation changes no bit of what follows.
#[test]
fn the_reference_is_the_model_without_its_adapters() {
    let folder = tempfile::tempdir().expect("a folder");
    let dense: fn() -> Setup = || Setup::new("pairs", ADAPTERS);
    let half = || Setup::new("pairs", &format!("compute_dtype: bfloat16, {ADAPTERS}"));
    let experts = || {
        let keys = ADAPTERS.replace("'.*'", "'.*w[qo]', target_parameters: experts");
        Setup::experts("pairs", "expert_num: 4, num_experts_chosen: 2, use_gmm: True", &keys)
    };
    for (number, setup) in in_turn(0, &[dense, half, experts]).iter().enumerate() {
        let make = |keys: &[&str]| on_pairs(setup(), folder.path(), "type: dpo, beta: 0.5").with(keys);
        let kept = make(&[]).train(3);
        let losses: Vec<f32> = kept.states.iter().map(|state| state.loss).collect();
        println!("{number}: {losses:?}");
        assert!((losses[0] - 2f32.ln()).abs() < 1e-6, "{losses:?}");
        assert!(kept.states[0].grad_norm > 0.0 && losses[2] != losses[0], "{losses:?}");
        let again = make(&["--recompute_config.recompute=True"]).train(3);
        assert_eq!(again.states, kept.states, "recomputation changes a bit");
    }
}

/// All weights, compared with the model before the first step, whose log-probabilities the folder keeps.
#[test]
fn a_run_on_pairs_resumes_exactly() {
    let data = tempfile::tempdir().expect("a folder");
    let make = || {
        let setup = on_pairs(Setup::new("pairs", ""), data.path(), "type: dpo, reference: precompute");
        let keys =
            ["--train_dataset.eval_fraction=0", "--train_dataset.eval_samples=12", "--eval_step_interval=3"];
        evaluated(setup, 1000, &[]).setup.with(&keys)
    };
    let want = FolderRun::new(make()).train(6).left();
    let run = FolderRun::new(make());
    run.train(3).train(6).left().assert_equals("3 and 3 on pairs", &want);
    let metrics = &want.metrics;
    let margins: Vec<f32> = metrics.iter().map(|step| step.rewards_margin.expect("a margin")).collect();
    assert!(margins[0] == 0.0 && margins[5] != 0.0, "{margins:?}");
    assert!(metrics[2].eval_rewards_accuracy.is_some() && metrics[5].logps_chosen.is_some());
    let kept = run.folder().join("reference_log_probs.bin");
    std::fs::remove_file(&kept).expect("the file is there");
    let config = run.setup.write(run.home.path());
    let arguments = run.arguments(8);
    let again = gristmill::train::TrainingRun::new(&config, &arguments);
    let error = pollster::block_on(again.train()).expect_err("nothing to compare with").to_string();
    assert!(error.contains("reference_log_probs.bin") && error.contains("restore it"), "{error}");
}

/// Two ranks that share the data, each of which computes what all pairs are compared with, against one rank that
/// accumulates: losses and rewards within what sums in another order make of six steps.
#[test]
fn two_ranks_learn_from_pairs_as_one() {
    const ALLOWED_ON_RANKS: f32 = 1e-5;
    let data = tempfile::tempdir().expect("a folder");
    let make = |keys: &[&str]| {
        let keys = [&["--runner_config.batch_size=1"], keys].concat();
        let preference = "type: dpo, beta: 0.5, reference: precompute";
        FolderRun::new(on_pairs(Setup::new("pairs", ""), data.path(), preference).with(&keys))
    };
    let one = make(&[]);
    let want = one.train(6).left().metrics;
    let spread =
        ["--use_parallel=True", "--parallel_config={data_parallel: 2}", "--gradient_accumulation_steps=1"];
    let two = make(&spread);
    let (config, arguments) = (two.setup.write(two.home.path()), two.arguments(6));
    for result in on_ranks(2, |ranks| pollster::block_on(run_on_rank(&config, &arguments, ranks))) {
        result.unwrap_or_else(|error| panic!("{error}"));
    }
    let got = two.left().metrics;
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(&want) {
        let numbers = |step: &StepMetrics| {
            [Some(step.loss), step.rewards_margin, step.rewards_accuracy, step.logps_chosen]
        };
        for (got, want) in numbers(got).into_iter().zip(numbers(want)) {
            let (got, want) = (got.expect("a number"), want.expect("a number"));
            assert!((got - want).abs() <= ALLOWED_ON_RANKS * (want.abs() + 1.0), "step of {got} and {want}");
        }
    }
}

/// Pairs under adapters take the weights of answers alone, and the activations but for the tables of pairs.
#[test]
fn a_reference_takes_no_second_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let recorded = |setup: Setup| {
        let recordings = Recordings::new(&setup.plan(), Capabilities::software(), 10).expect("a plan");
        let forecast = Forecast::new(&recordings);
        (forecast.weight_bytes, forecast.peak_bytes())
    };
    let answers = "{type: SFTDataLoader, dataset_files: anything.jsonl, raw: True, packing: best_fit}";
    let data = format!("--train_dataset={{data_loader: {answers}}}");
    let keys = [&data, "--model.model_config.seq_length=56", "--calculate_per_token_loss=True"];
    let of_answers = recorded(Setup::new("answers", ADAPTERS).with(&keys));
    let of_pairs = recorded(on_pairs(Setup::new("pairs", ADAPTERS), folder.path(), "type: dpo"));
    println!("{of_pairs:?} {of_answers:?}");
    assert_eq!(of_pairs.0, of_answers.0, "weights");
    assert!(of_pairs.1.abs_diff(of_answers.1) <= of_answers.1 / 50, "{of_pairs:?} and {of_answers:?}");
}
