//! MindFormers' lines: those in its documentation, and cases that these leave open.
//!
//! They agree character by character.

use super::*;

/// Step 123 of epoch 2 of 10.
fn metrics() -> StepMetrics {
    StepMetrics {
        step: 6623,
        loss: 3.25,
        lr: 3e-4,
        loss_scale: 65536.0,
        global_norm: 0.5,
        tokens_per_second: 1523.4,
        ..StepMetrics::default()
    }
}

/// The line of a step of `ms` in epochs of `steps` steps.
fn line(plan: LogPlan, metrics: &StepMetrics, steps: u64, ms: f64) -> String {
    let plan = LogPlan { total_steps: steps * plan.epochs, steps_per_epoch: steps, ..plan };
    let window = StepWindow { steps: 1, ms, tokens: metrics.tokens_per_second * ms / 1e3 };
    plan.loss_line(metrics, &window)
}

/// Epochs, and the operations of a step that a device of 100 GFLOP/s takes.
fn of_work(epochs: u64, flops: f64) -> LogPlan {
    let work = Work { tokens_per_step: 1, flops_per_token: flops, peak_flops: 1e11 };
    LogPlan { epochs, work, ..LogPlan::default() }
}

#[test]
fn the_first_line_reads_as_the_original_and_ours_comes_last() {
    let start = "{ Epoch:[  2/ 10], step:[  123/ 6500], loss: 3.250000, per_step_time: 672ms, lr: 0.0003, \
                 overflow cond: False, loss_scale: 65536.0, global_norm: [0.5], train_throughput_per_npu: 0.041T";
    let step = of_work(10, 0.0412e12 * 0.6729);
    assert_eq!(line(step, &metrics(), 6500, 672.9), format!("{start}, tokens/s: 1523, mfu: 41.2%"));
}

#[test]
fn an_overflow_has_the_original_words() {
    let overflow = StepMetrics { loss: f32::NAN, overflow: true, global_norm: f32::INFINITY, ..metrics() };
    let text = line(of_work(10, 1e9), &overflow, 6500, 672.9);
    assert!(text.contains("loss:   nan, ") && text.contains("overflow cond: True"), "{text}");
    assert!(text.contains("global_norm: [inf]"), "{text}");
}

#[test]
fn floats_read_as_in_python() {
    let pairs = [
        (0.0, "0.0"),
        (1.0, "1.0"),
        (3e-4, "0.0003"),
        (1e-4, "0.0001"),
        (9.9e-5, "9.9e-05"),
        (1e-5, "1e-05"),
        (-2.5e-12, "-2.5e-12"),
        (1e16, "1e+16"),
        (f32::NEG_INFINITY, "-inf"),
    ];
    for (number, text) in pairs {
        assert_eq!(python_float::<f32>(number), text);
    }
    assert_eq!(python_float(4_294_967_296.0_f64), "4294967296.0");
}

#[test]
fn norms_read_as_in_numpy() {
    // numpy 2's output for arrays of one float32.
    let pairs = [
        (2.0, "2."),
        (0.5, "0.5"),
        (0.0, "0."),
        (1e-5, "1.e-05"),
        (2.564_102_5e-8, "2.5641025e-08"),
        (1.234_567_8e-4, "0.00012346"),
        (9.9999e-5, "9.9999e-05"),
        (0.001_234_567, "0.00123457"),
        (0.012_345_678, "0.01234568"),
        (123_456.79, "123456.79"),
        (12_345_678.0, "12345678."),
        (1e8, "1.e+08"),
        (1.5e8, "1.5e+08"),
        (3.4e38, "3.4e+38"),
        (1e-45, "1.e-45"),
        (0.333_333_34, "0.33333334"),
        (f32::INFINITY, "inf"),
        (f32::NAN, "nan"),
    ];
    for (number, text) in pairs {
        assert_eq!(numpy_float(number), text);
    }
}

/// A documented line: its step, loss, time, learning rate, norm and throughput, and its text.
type Example = (u64, u64, f32, f64, f32, f32, f64, &'static str);

/// The lines in the documentation of MindSpore Transformers (skipping data by the global norm, and high availability),
/// with the points and colons of norms that were lost there. They are from versions that printed three decimals of the
/// loss; 1.7.0 prints six.
const DOCUMENTED: [Example; 6] = [
    (
        1,
        6500,
        0.0,
        166_756.0,
        0.0,
        44.313_248,
        2.849,
        "{ Epoch:[  1/  2], step:[    1/ 6500], loss: 0.000, per_step_time: 166756ms, lr: 0.0, \
         overflow cond: False, loss_scale: 1.0, global_norm: [44.313248], train_throughput_per_npu: 2.849T",
    ),
    (
        2,
        6500,
        0.0,
        7637.0,
        0.0,
        47.329_006,
        62.211,
        "{ Epoch:[  1/  2], step:[    2/ 6500], loss: 0.000, per_step_time: 7637ms, lr: 0.0, \
         overflow cond: False, loss_scale: 1.0, global_norm: [47.329006], train_throughput_per_npu: 62.211T",
    ),
    (
        2,
        19,
        10.633,
        1752.0,
        1e-5,
        1.508_834,
        170.738,
        "{ Epoch:[  1/  2], step:[    2/   19], loss: 10.633, per_step_time: 1752ms, lr: 1e-05, \
         overflow cond: False, loss_scale: 1.0, global_norm: [1.508834], train_throughput_per_npu: 170.738T",
    ),
    (
        3,
        19,
        9.673,
        1754.0,
        9.981_987e-6,
        10.579_812,
        170.523,
        "{ Epoch:[  1/  2], step:[    3/   19], loss: 9.673, per_step_time: 1754ms, lr: 9.981987e-06, \
         overflow cond: False, loss_scale: 1.0, global_norm: [10.579812], train_throughput_per_npu: 170.523T",
    ),
    (
        4,
        19,
        9.287,
        1756.0,
        9.928_079e-6,
        21.932_272,
        170.319,
        "{ Epoch:[  1/  2], step:[    4/   19], loss: 9.287, per_step_time: 1756ms, lr: 9.928079e-06, \
         overflow cond: False, loss_scale: 1.0, global_norm: [21.932272], train_throughput_per_npu: 170.319T",
    ),
    (
        5,
        19,
        8.867,
        1758.0,
        9.838_664_5e-6,
        16.986_555,
        170.173,
        "{ Epoch:[  1/  2], step:[    5/   19], loss: 8.867, per_step_time: 1758ms, lr: 9.8386645e-06, \
         overflow cond: False, loss_scale: 1.0, global_norm: [16.986555], train_throughput_per_npu: 170.173T",
    ),
];

#[test]
fn documented_lines_are_the_same_character_by_character() {
    for (step, steps, loss, step_ms, lr, norm, tflops, documented) in DOCUMENTED {
        let metrics =
            StepMetrics { step, loss, lr, loss_scale: 1.0, global_norm: norm, ..StepMetrics::default() };
        let text = line(of_work(2, tflops * 1e12 * step_ms / 1e3), &metrics, steps, step_ms);
        let six_decimals = documented.replacen(&format!("loss: {loss:.3}"), &format!("loss: {loss:.6}"), 1);
        assert_eq!(text, six_decimals + ", tokens/s: 0");
    }
    let remaining = Duration::from_secs(25 * 86_400 + 2 * 3600 + 7 * 60 + 47);
    let empty = " ".repeat(50);
    assert_eq!(
        bar_line(1.0 / 13_000.0, 0.006, remaining),
        format!("   0.0% |{empty}| 0.00600 samples/s/p  25 days, 2:07:47 }}")
    );
    assert_eq!(
        skip_line(0, 3.0, true),
        "opt_global_step: 0, skip_data_grad_norm_threshold: 3.0, is_skip: [ True]"
    );
    let parameters = [("norm".to_string(), 48), ("output".to_string(), 12288)];
    assert_eq!(
        local_norm_lines(&parameters, &[0.5, 2.0]),
        " norm_size: [48, 12288]\nlocal_norm:\nnorm 0.5\noutput 2.0"
    );
}

#[test]
fn the_parts_of_a_loss_follow_it() {
    let parts = LossParts { balance_scale: Some(0.02), mtp_factor: Some(0.5) };
    let with = |load_balancing_loss, mtp_loss| {
        let plan = LogPlan { loss_parts: Some(parts), ..of_work(10, 1e9) };
        line(plan, &StepMetrics { load_balancing_loss, mtp_loss, ..metrics() }, 6500, 672.9)
    };
    let all = with(Some(0.025), Some(1.0));
    let parts = "lm_loss: 3.250000, load_balancing_loss: 1.250000, mtp_loss: 0.500000, per_step_time: ";
    assert!(all.contains(&format!("loss: 3.250000, {parts}")), "{all}");
    let few = with(Some(0.0), None);
    assert!(few.contains("loss: 3.250000, lm_loss: 3.250000, per_step_time: "), "{few}");
}

#[test]
fn the_parts_are_those_of_the_original() {
    let metrics = StepMetrics {
        loss: 3.0,
        load_balancing_loss: Some(0.04),
        mtp_loss: Some(2.0),
        ..StepMetrics::default()
    };
    let both = LossParts { balance_scale: Some(0.02), mtp_factor: Some(0.5) };
    assert_eq!(both.of(&metrics), SeparateLosses { lm: 3.0, load_balancing: Some(2.0), mtp: Some(1.0) });
    assert_eq!(
        LossParts::default().of(&metrics),
        SeparateLosses { lm: 3.0, load_balancing: None, mtp: None }
    );
}

#[test]
fn the_bar_fills_and_the_time_counts_days() {
    let line = |share, seconds| bar_line(share, 0.0, Duration::from_secs(seconds));
    assert!(line(1.0, 0).starts_with(&format!(" 100.0% |{}|", "█".repeat(50)).replace(" 100", "  100")));
    assert!(line(7.0, 0).contains(&format!("|{}|", "█".repeat(50))));
    assert!(line(0.0, 0).starts_with(&format!("   0.0% |{}|", " ".repeat(50))));
    assert!(line(0.5, 86_400 + 7_384).ends_with("  1 day, 2:03:04 }"));
    assert!(line(0.5, 2 * 86_400 + 59).ends_with("  2 days, 0:00:59 }"));
}

fn plan() -> LogPlan {
    LogPlan {
        total_steps: 25,
        start_step: 2,
        epochs: 3,
        steps_per_epoch: 10,
        samples_per_rank: 4.0,
        log_every: 10,
        ..LogPlan::default()
    }
}

#[test]
fn steps_are_placed_in_their_epoch() {
    let place = |step| {
        let Position { epoch, step, steps, .. } = plan().position(step);
        (epoch, step, steps)
    };
    assert_eq!([1, 10, 11, 20, 25].map(place), [(1, 1, 10), (1, 10, 10), (2, 1, 10), (2, 10, 10), (3, 5, 5)]);
    let nothing = LogPlan::default().position(0);
    assert_eq!((nothing.epoch, nothing.step), (1, 1));
}

#[test]
fn a_run_that_stops_within_an_epoch_counts_its_own_steps() {
    let plan = LogPlan { total_steps: 200, epochs: 2, steps_per_epoch: 7782, ..plan() };
    assert_eq!(plan.position(1), Position { epoch: 1, epochs: 1, step: 1, steps: 200 });
}

#[test]
fn the_first_the_last_and_every_nth_step_are_logged() {
    let logged: Vec<u64> = (3..=25).filter(|&step| plan().is_logged(step)).collect();
    assert_eq!(logged, [3, 10, 20, 25]);
    let each = LogPlan { log_every: 0, ..plan() };
    assert!((3..=25).all(|step| each.is_logged(step)));
}

#[test]
fn lines_of_monitors_read_as_the_original() {
    let place = Position { epoch: 12, epochs: 1000, step: 123_456, steps: 7 };
    let tag = "local_norm/layers.0.attention.wo";
    let texts = |numbers| {
        let lines = monitor_lines(&place, &MonitorValue { tag: tag.into(), numbers });
        let head = format!("Epoch:[ 12/1000], step:[123456/    7] {tag}: ");
        let text = |line: &String| line.strip_prefix(&head).expect("the head of every line").to_string();
        lines.iter().map(text).collect::<Vec<_>>()
    };
    assert_eq!(texts(Numbers::One(0.00004)), ["0.0000"]);
    assert_eq!(texts(Numbers::One(123_456.79)), ["123456.7891"]);
    assert_eq!(texts(Numbers::Lines(vec![f32::INFINITY, f32::NAN])), ["inf", "nan"]);
    assert_eq!(texts(Numbers::List(vec![1.0, -2.5])), ["[1.0000, -2.5000]"]);
}
