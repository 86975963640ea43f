//! A mixture trained by the program: its log, metrics and files agree, and `token-distribution` draws them.

use crate::launch::{Ended, assert_refused, gristmill, run, train_gpt};
use crate::runs::{Setup, metrics};
use gristmill::ops::permute::capacity_slots;
use gristmill::report::metrics::StepMetrics;
use gristmill::store::npy;
use std::path::Path;

const STEPS: u64 = 6;

/// E.
const EXPERTS: usize = 5;
/// k.
const CHOSEN: u32 = 2;
/// The capacity factor.
const FACTOR: f64 = 0.9;

/// One micro-batch of 3·24 tokens per step, so a step's counts are those of a micro-batch; the first layer is dense.
fn setup(dispatch: &str) -> Setup {
    let routing = format!(
        "expert_num: {EXPERTS}, num_experts_chosen: {CHOSEN}, {dispatch}, first_k_dense_replace: 1, \
         aux_loss_types: [expert], aux_loss_factors: [0.01], z_loss_factor: 0.001, callback_moe_droprate: True, \
         save_token_distribution: True"
    );
    Setup::experts("process", &routing, "mtp_depth: 1, mtp_loss_factor: 0.3")
        .with(&["--gradient_accumulation_steps=1"])
}

fn train(setup: &Setup, home: &Path, expert_num: usize) -> Ended {
    let callbacks = format!(
        "--callbacks=[{{type: MoEDropRateCallback, expert_num: {expert_num}, capacity_factor: {FACTOR}, num_layers: 2, \
         mtp_depth: 1}}, {{type: SummaryMonitor, summary_dir: '{}', collect_freq: 1, \
         collect_tensor_freq: 1}}]",
        home.join("summary").display()
    );
    let arguments = [
        setup.write(home).display().to_string(),
        format!("--output_dir={}", home.display()),
        format!("--stop_step={STEPS}"),
        callbacks,
    ];
    run(&mut train_gpt(arguments.iter().chain(&setup.overrides)))
}

/// The layers with experts: the second one and the multi-token prediction block.
const LAYERS: [usize; 2] = [1, 2];

/// How often each expert was chosen, according to the token distribution's file.
fn counts(home: &Path, layer: usize, step: u64) -> Vec<f64> {
    let file = home.join(format!("summary/export_process/tensor/layer-{layer}_{step}.npy"));
    npy::read(&file).unwrap_or_else(|e| panic!("{e}"))
}

/// The drop rates in the log: (layer, rate), for two layers in each step.
fn logged(ended: &Ended) -> Vec<(usize, String)> {
    let text = format!("{}{}", ended.stdout, ended.stderr);
    let lines = text.lines().filter_map(|line| line.split_once("layer: "));
    let rates = lines.filter_map(|(_, rest)| rest.split_once(", drop_rate: "));
    rates
        .map(|(layer, rate)| (layer.parse().expect("a layer's number"), rate.trim_end().to_string()))
        .collect()
}

#[test]
fn logged_drop_rates_follow_from_the_saved_counts() {
    let home = tempfile::tempdir().expect("a folder");
    let setup = setup(&format!("capacity_factor: {FACTOR}"));
    let ended = train(&setup, home.path(), EXPERTS).succeeded();
    let (metrics, logged) = (metrics(&home.path().join("process")), logged(&ended));
    assert_eq!((metrics.len() as u64, logged.len() as u64), (STEPS, STEPS * 2), "{}", ended.stderr);
    let plan = setup.plan();
    let tokens = (plan.settings.runner.batch_size * plan.model.seq_length) as u32;
    let slots = f64::from(capacity_slots(CHOSEN, tokens, FACTOR, EXPERTS as u32, 1));
    assert_eq!(slots, 18.0, "96 choices, 0.9 of an equal share for five experts");
    let choices = f64::from(tokens * CHOSEN);
    let mut dropped = 0.0;
    for (step, line) in (1..).zip(&metrics) {
        let field = |name: &str, field: &Option<Vec<f32>>| {
            let values = field.clone().unwrap_or_else(|| panic!("step {step} has no {name}"));
            assert_eq!(values.len(), LAYERS.len(), "step {step}: {name}");
            values
        };
        let rates = field("drop_rate", &line.drop_rate);
        let estimates = field("drop_rate_estimate", &line.drop_rate_estimate);
        let entropies = field("expert_load_entropy", &line.expert_load_entropy);
        let busiest = field("expert_load_max_over_mean", &line.expert_load_max_over_mean);
        for (row, layer) in LAYERS.into_iter().enumerate() {
            let counts = counts(home.path(), layer, step);
            assert_eq!((counts.len(), counts.iter().sum::<f64>()), (EXPERTS, choices), "step {step}");
            let over = |most: f64| counts.iter().map(|n| (n - most).max(0.0)).sum::<f64>() / choices;
            let close = |name: &str, got: f32, want: f64| {
                // The rounding of a quotient and of the conversion to f32.
                assert!(
                    (f64::from(got) - want).abs() <= 2e-7 * want.max(1.0),
                    "step {step}: {name} {got}, not {want}"
                );
            };
            let rate = over(slots);
            dropped += rate;
            close("drop_rate", rates[row], rate);
            close("drop_rate_estimate", estimates[row], over(FACTOR * choices / EXPERTS as f64));
            let shares = counts.iter().map(|n| n / choices).filter(|share| *share > 0.0);
            close(
                "entropy",
                entropies[row],
                -shares.map(|f| f * f.ln()).sum::<f64>() / (EXPERTS as f64).ln(),
            );
            let most = counts.iter().copied().fold(0.0, f64::max);
            close("max_over_mean", busiest[row], most * EXPERTS as f64 / choices);
            let line = &logged[2 * (step as usize - 1) + row];
            assert_eq!(*line, (layer, format!("{:.5}", rates[row])), "step {step}");
        }
        for (name, loss) in [
            ("load_balancing_loss", line.load_balancing_loss),
            ("z_loss", line.z_loss),
            ("mtp_loss", line.mtp_loss),
        ] {
            assert!(loss.is_some_and(|loss| loss > 0.0 && loss.is_finite()), "step {step}: {name} {loss:?}");
        }
    }
    assert!(dropped > 0.0, "nothing was dropped, so the rates were not tested");

    let plots = home.path().join("plots/");
    let mut draw =
        gristmill(["token-distribution", "--num_layers=3", "--first_layer=1", "--hot_expert_num=2"]);
    draw.arg(format!("--npy_files_load_path={}", home.path().join("summary").display()))
        .arg(format!("--save_path_prefix={}/", plots.display()));
    let drawn = run(&mut draw).succeeded().stdout;
    assert!(drawn.contains("layer-2 token_distribution generate successful"), "{drawn}");
    let hot: Vec<Vec<usize>> = LAYERS
        .map(|layer| {
            let counts = counts(home.path(), layer, STEPS);
            let mut experts: Vec<usize> = (0..EXPERTS).collect();
            experts.sort_by(|&a, &b| counts[b].total_cmp(&counts[a]));
            experts.truncate(2);
            experts
        })
        .to_vec();
    assert!(
        drawn.contains(&format!("hot_expert_index:  {hot:?}")),
        "{drawn}; the last step's counts give {hot:?}"
    );
    for layer in LAYERS {
        for kind in ["svg", "png"] {
            let plot = plots.join(format!("layer-{layer}_token_distribution.{kind}"));
            assert!(plot.metadata().is_ok_and(|file| file.len() > 100), "{}", plot.display());
        }
    }
}

/// A dropless run logs rates of zero; a callback for another model is refused.
#[test]
fn dropless_runs_report_zero_and_other_models_are_refused() {
    let home = tempfile::tempdir().expect("a folder");
    let grouped = setup("use_gmm: True");
    let ended = train(&grouped, home.path(), EXPERTS).succeeded();
    let logged = logged(&ended);
    assert_eq!(logged.len() as u64, STEPS * 2, "{}", ended.stderr);
    assert!(logged.iter().all(|(_, rate)| rate == "0.00000"), "{logged:?}");
    for line in metrics(&home.path().join("process")) {
        let zeros = Some(vec![0.0; 2]);
        assert_eq!((&line.drop_rate, &line.drop_rate_estimate), (&zeros, &zeros), "step {}", line.step);
    }
    let other = tempfile::tempdir().expect("a folder");
    let ended = train(&grouped, other.path(), EXPERTS + 1);
    assert_refused(
        "another model",
        &ended,
        &["callbacks: 0.expert_num: `expert_num` is `6`, but the model's is `5`"],
    );
}

/// Which experts are hot is seen step by step: drops and their estimate follow from it, and the log says when it
/// changes.
#[test]
fn hot_experts_are_shown_and_count_in_the_estimate() {
    const SHARE: f64 = 0.5;
    let home = tempfile::tempdir().expect("a folder");
    let setup = setup(&format!(
        "capacity_factor: {FACTOR}, enable_cold_hot_expert: True, hot_expert_num: 1, cold_token_percent: {SHARE}, \
         update_step: 100"
    ));
    let ended = train(&setup, home.path(), EXPERTS).succeeded();
    let metrics = metrics(&home.path().join("process"));
    let choices = 96.0;
    let hot_of = |line: &StepMetrics| line.hot_experts.clone().expect("which are hot");
    assert_eq!(hot_of(&metrics[0]), [[0], [0]], "before the first choice");
    for (step, line) in (1..).zip(&metrics) {
        let [rates, estimates] = [&line.drop_rate, &line.drop_rate_estimate];
        for (row, layer) in LAYERS.into_iter().enumerate() {
            let (counts, hot) = (counts(home.path(), layer, step), &hot_of(line)[row]);
            let over = |slots: &dyn Fn(bool) -> f64| {
                let of_expert = |(expert, n): (u32, &f64)| (n - slots(hot.contains(&expert))).max(0.0);
                (0..).zip(&counts).map(of_expert).sum::<f64>() / choices
            };
            let share = FACTOR * choices / EXPERTS as f64;
            for (name, got, want) in [
                ("drop_rate", rates, over(&|is_hot| if is_hot { 18.0 } else { 9.0 })),
                ("estimate", estimates, over(&|is_hot| if is_hot { share } else { share * SHARE })),
            ] {
                let got = f64::from(got.as_ref().expect("a number a layer")[row]);
                assert!((got - want).abs() <= 2e-7, "step {step}, layer {layer}: {name} {got}, not {want}");
            }
        }
    }
    let changes: usize = metrics
        .windows(2)
        .map(|pair| hot_of(&pair[0]).iter().zip(&hot_of(&pair[1])).filter(|(one, next)| one != next).count())
        .sum();
    let text = format!("{}{}", ended.stdout, ended.stderr);
    assert!(changes > 0, "the choice never changed");
    assert_eq!(text.matches(": hot experts of layer ").count(), changes, "{text}");
    assert!(text.contains("step 1: hot experts by layer: 1 [0], 2 [0]"), "{text}");
}
