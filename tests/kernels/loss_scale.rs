//! Loss scales that adapt: MindFormers' own traces and the corner cases of its state machine, bit for bit.
//!
//! `tests/data/loss_scales.txt` holds what `AdaptiveLossScaleUpdateCell` of MindSpore Transformers did.

use crate::lab::{Case, check, check_tier};
use gristmill::kernels::Tier;
use gristmill::ops::loss_scale::{LossScaleState, LossScaler, loss_scale};
use gristmill::ops::step_state::{HALTED, StepState};
use gristmill::settings::{Adaptation, Override, RunConfig};
use reference::loss_scale::{Adaptive, Dynamic};
use std::path::Path;

const TRACES: &str = include_str!("../data/loss_scales.txt");

/// A cell of MindFormers, the steps that overflowed, and the scale after each step.
struct Trace {
    cell: [f64; 5],
    overflows: Vec<bool>,
    scales: Vec<f64>,
}

fn traces() -> Vec<Trace> {
    let lines: Vec<Vec<&str>> = TRACES
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.split(' ').collect())
        .collect();
    let number = |word: &str| word.parse::<f64>().expect("a number");
    let trace = |lines: &[Vec<&str>]| {
        let [cell, overflows, scales] = lines else { panic!("a trace has three lines") };
        assert_eq!((cell[0], overflows[0], scales[0]), ("cell", "overflows", "scales"));
        let runs = scales[1..].iter().map(|run| run.split_once('x').expect("VALUExSTEPS"));
        let scales: Vec<f64> =
            runs.flat_map(|(value, steps)| vec![number(value); number(steps) as usize]).collect();
        let overflowed: Vec<f64> = overflows[1..].iter().map(|step| number(step)).collect();
        Trace {
            cell: [1, 2, 3, 4, 5].map(|index| number(cell[index])),
            overflows: (1..=scales.len()).map(|step| overflowed.contains(&(step as f64))).collect(),
            scales,
        }
    };
    lines.chunks(3).map(trace).collect()
}

/// How the cell adapts, as the settings read it.
fn adaptation([value, factor, window, max, min]: [f64; 5]) -> Adaptation {
    let base = include_str!("../without_adapter/settings/base.yaml");
    let flag = format!(
        "--runner_wrapper.scale_sense={{type: AdaptiveLossScaleUpdateCell, loss_scale_value: {value}, scale_factor: {factor}, \
         scale_window: {window}, max_scale_window: {max}, min_scale_window: {min}}}"
    );
    let flags = Override::parse_all([flag.as_str()]).expect("an override");
    let config = RunConfig::parse(base, Path::new("x.yaml"), &flags).unwrap_or_else(|e| panic!("{e}"));
    config.plan.settings.wrapper.scale_sense.adaptation().expect("a scale that adapts")
}

fn reference(value: f64, adaptation: &Adaptation) -> Adaptive {
    let windows: Vec<u64> = adaptation.windows.iter().map(|&steps| steps.into()).collect();
    Adaptive::new(value, adaptation.factor, &windows, adaptation.first)
}

/// The words of the state on the device that stands where the reference does.
fn words_of(scale: &Adaptive, used: f64) -> Vec<u32> {
    let state = LossScaleState {
        loss_scale: scale.scale.scale as f32,
        window: scale.scale.window as u32,
        index: scale.index.map_or(-1, |index| index as i32),
        increases: scale.increases as u32,
        decreases: scale.decreases as u32,
        step: scale.scale.step as u32,
        last_change: scale.scale.last_change as u32,
        used: used as f32,
    };
    bytemuck::cast_slice(&[state]).to_vec()
}

/// Records a step for each of `overflows`. Expects the bits of the reference: the scale after every step, and all of
/// the state after the last.
fn expect_steps(case: &mut Case, name: &str, value: f64, adaptation: &Adaptation, overflows: &[bool]) {
    let Adaptation { factor, windows, first } = adaptation;
    let scaler = LossScaler {
        state: case.state(LossScaleState::new(value as f32, windows, *first)),
        windows: case.integers(windows),
        factor: *factor as f32,
    };
    let mut scale = reference(value, adaptation);
    let mut used = value;
    for (index, &overflow) in overflows.iter().enumerate() {
        let loss_scale_before = scale.scale.scale as f32;
        let step = case.state(StepState {
            loss_scale: loss_scale_before,
            is_overflow: overflow.into(),
            ..StepState::default()
        });
        loss_scale(&mut case.rec, &scaler, step);
        used = scale.scale.scale;
        scale.update(overflow);
        let (name, want) = (format!("{name}, step {}", index + 1), (scale.scale.scale as f32).to_bits());
        case.expect_words("scale", step, move |words| {
            assert_eq!(f32::from_bits(words[0]), f32::from_bits(want), "{name}");
        });
    }
    let (name, want) = (format!("{name}, {} steps", overflows.len()), words_of(&scale, used));
    case.expect_words("scaler", scaler.state, move |words| assert_eq!(words, want, "{name}"));
}

#[test]
fn traces_of_the_original() {
    let traces = traces();
    assert_eq!(traces.len(), 14);
    for (number, Trace { cell, overflows, scales }) in traces.iter().enumerate() {
        let adaptation = adaptation(*cell);
        let mut scale = reference(cell[0], &adaptation);
        for (step, (&overflow, &want)) in (1..).zip(overflows.iter().zip(scales)) {
            scale.update(overflow);
            assert_eq!(scale.scale.scale, want, "the reference, trace {number}, step {step}");
        }
        let name = format!("trace {number}");
        check_tier(&name, Tier::Portable, &|case| expect_steps(case, &name, cell[0], &adaptation, overflows));
    }
}

/// (step, log2 of the scale, window, index, increases, decreases) after steps of a run from 2^32 with windows of 20 to
/// 1000 whose steps 310 to 315 overflow.
const GOLDEN: [(usize, i32, u64, Option<usize>, u64, u64); 22] = [
    (20, 33, 20, Some(0), 1, 0),
    (40, 34, 20, Some(0), 2, 0),
    (60, 35, 30, Some(1), 0, 0),
    (90, 36, 30, Some(1), 1, 0),
    (120, 37, 30, Some(1), 2, 0),
    (150, 38, 40, Some(2), 0, 0),
    (190, 39, 40, Some(2), 1, 0),
    (230, 40, 40, Some(2), 2, 0),
    (270, 41, 50, Some(3), 0, 0),
    (309, 41, 50, Some(3), 0, 0),
    (310, 40, 50, Some(3), 0, 1),
    (311, 39, 50, Some(3), 0, 2),
    (312, 38, 1, None, 0, 0),
    (313, 37, 1, None, 0, 1),
    (314, 36, 1, None, 0, 2),
    (315, 35, 1, None, 0, 3),
    (316, 36, 1, None, 1, 0),
    (317, 37, 1, None, 2, 0),
    (318, 38, 20, Some(0), 0, 0),
    (338, 39, 20, Some(0), 1, 0),
    (358, 40, 20, Some(0), 2, 0),
    (378, 41, 30, Some(1), 0, 0),
];

#[test]
fn the_golden_trace() {
    let adaptation = adaptation([4294967296.0, 2.0, 20.0, 1000.0, 20.0]);
    let overflows: Vec<bool> = (1..=378).map(|step| (310..=315).contains(&step)).collect();
    let mut scale = reference(4294967296.0, &adaptation);
    for (step, &overflow) in (1..).zip(&overflows) {
        scale.update(overflow);
        for &(_, log2, window, index, increases, decreases) in GOLDEN.iter().filter(|row| row.0 == step) {
            let Adaptive { scale: Dynamic { scale: value, window: got, .. }, .. } = scale;
            assert_eq!((value.log2(), got, scale.index), (f64::from(log2), window, index), "step {step}");
            assert_eq!((scale.increases, scale.decreases), (increases, decreases), "step {step}");
        }
    }
    for steps in [60, 311, 312, 315, 318, 378] {
        check_tier("the golden trace", Tier::Portable, &|case| {
            expect_steps(case, "the golden trace", 4294967296.0, &adaptation, &overflows[..steps]);
        });
    }
}

/// Overflows and clean steps, as a text of `x` and `.`.
fn steps(text: &str) -> Vec<bool> {
    text.chars().filter(|c| !c.is_whitespace()).map(|c| c == 'x').collect()
}

/// The reference after the steps of `text`.
fn after(windows: &[u32], first: usize, text: &str) -> Adaptive {
    let mut scale = reference(1024.0, &Adaptation { factor: 2.0, windows: windows.to_vec(), first });
    steps(text).into_iter().for_each(|overflow| scale.update(overflow));
    scale
}

#[test]
pub fn corner_cases() {
    let windows = [2, 3, 4];
    let cases = [
        ("clean steps between decreases do not count", 1, "x.x.x"),
        ("an increase between decreases does", 1, "xx...x"),
        ("decreases in the first window", 0, "xxxxx"),
        ("decreases in the window of one step", 1, "xxx xxxx"),
        ("increases in the last window", 2, ".... .... .... .... ...."),
        ("an overflow restarts the window", 1, "..x..."),
        ("an overflow in the step that completes the window", 0, ".x"),
        ("from the window of one step to the list", 2, "xxx... .."),
        ("what was counted in the last window counts after the list begins again", 2, ".... .... .... xxx ."),
    ];
    for (name, first, text) in cases {
        let adaptation = Adaptation { factor: 2.0, windows: windows.to_vec(), first };
        check(name, |case| expect_steps(case, name, 1024.0, &adaptation, &steps(text)));
    }
    assert_eq!(after(&windows, 1, "x.x.x").index, None, "(a) three decreases, no increase between them");
    assert_eq!(after(&windows, 1, "xx...x").index, Some(1), "(a) an increase between them");
    let cycled = after(&windows, 0, "xxxxx");
    assert_eq!(
        (cycled.index, cycled.decreases),
        (Some(0), 1),
        "(b) decreases count modulo 4 in the first window"
    );
    let cycled = after(&windows, 1, "xxx xxxx");
    assert_eq!((cycled.index, cycled.decreases), (None, 0), "(b) and in the window of one step");
    let cycled = after(&windows, 2, ".... .... .... .... ....");
    assert_eq!(
        (cycled.index, cycled.increases),
        (Some(2), 1),
        "(c) increases count modulo 4 in the last window"
    );
    assert_eq!(after(&windows, 1, "..x..").scale.scale, 512.0, "(d) two clean steps after it are not three");
    assert_eq!(after(&windows, 1, "..x...").scale.scale, 1024.0, "(d) three are");
    assert_eq!(after(&windows, 0, ".x").scale.scale, 512.0, "(e) only the decrease");
}

/// (f): the scale stops at 2^64, and at 1.
#[test]
fn the_scale_stays_within_its_bounds() {
    let adaptation = Adaptation { factor: 2.0, windows: vec![1], first: 0 };
    check("the largest scale", |case| {
        expect_steps(case, "the largest scale", 2f64.powi(62), &adaptation, &[false; 4]);
    });
    check("the smallest scale", |case| {
        expect_steps(case, "the smallest scale", 4.0, &adaptation, &[true, true, true, false]);
    });
    // An odd factor, whose steps are rounded: the bounds hold just the same.
    let adaptation = Adaptation { factor: 3.0, windows: vec![1], first: 0 };
    check("a factor of 3", |case| {
        let scaler = LossScaler {
            state: case.state(LossScaleState::new(2f32.powi(63), &adaptation.windows, 0)),
            windows: case.integers(&adaptation.windows),
            factor: 3.0,
        };
        let step = case.state(StepState::default());
        loss_scale(&mut case.rec, &scaler, step);
        case.expect_words("scale", step, |words| assert_eq!(f32::from_bits(words[0]), 2f32.powi(64)));
    });
}

#[test]
fn a_scale_with_one_window_is_the_dynamic_cell() {
    let adaptation = Adaptation { factor: 2.0, windows: vec![3], first: 0 };
    let overflows = steps("... .x. ...x xxxxx ............ x.x.x.x. ........");
    let mut dynamic = Dynamic::new(65536.0, 2.0, 3);
    let mut scale = reference(65536.0, &adaptation);
    for &overflow in &overflows {
        dynamic.update(overflow);
        scale.update(overflow);
        assert_eq!(scale.scale, dynamic);
    }
    check("one window", |case| expect_steps(case, "one window", 65536.0, &adaptation, &overflows));
}

#[test]
fn a_halted_run_keeps_its_scale() {
    check("halted", |case| {
        let before = LossScaleState::new(8.0, &[1], 0);
        let scaler = LossScaler { state: case.state(before), windows: case.integers(&[1]), factor: 2.0 };
        let step =
            case.state(StepState { loss_scale: 8.0, is_overflow: 1, halt: HALTED, ..StepState::default() });
        loss_scale(&mut case.rec, &scaler, step);
        let want = LossScaleState { used: 8.0, ..before };
        case.expect_words("scaler", scaler.state, move |words| {
            assert_eq!(words, bytemuck::cast_slice::<_, u32>(&[want]));
        });
        case.expect_words("step", step, |words| assert_eq!(f32::from_bits(words[0]), 8.0));
    });
}
