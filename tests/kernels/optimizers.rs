//! grad_norm and the elementwise optimizers against the f64 reference.

use crate::lab::{Input, allowed, check};
use gristmill::element::Element::F32;
use gristmill::ops::adamw::{AdamW, AdamWTensors, adamw};
use gristmill::ops::grad_norm::{StepRules, StepTensors, grad_norm, rate_column};
use gristmill::ops::rounding::Rounding;
use gristmill::ops::sgd::{Sgd, SgdTensors, sgd};
use gristmill::ops::step_state::{LossState, StepState};
use gristmill::record::{Recorder, Tensor};
use reference::adamw::Correction;

const SCALE: f32 = 8.0;
const BETAS: [f32; 2] = [0.9, 0.95];

/// An optimizer and what varies of it.
#[derive(Clone, Copy)]
enum Rule {
    AdamW { correction: Correction, epsilon: f32 },
    Sgd { momentum: f32, dampening: f32, is_nesterov: bool },
}

const PUBLISHED: Rule = Rule::AdamW { correction: Correction::Published, epsilon: 1e-8 };

/// The rate and decay of one segment.
#[derive(Clone, Copy)]
struct Group {
    lr: f64,
    decay: f32,
    number: usize,
}

impl Rule {
    /// Moments of a parameter, and whether they are never negative.
    fn moments(self) -> &'static [bool] {
        match self {
            Self::AdamW { .. } => &[false, true],
            Self::Sgd { .. } => &[false],
        }
    }

    /// The factors that correct both moments in the update with this number, counted from 1.
    fn corrections(self, update: u32) -> [f64; 2] {
        match self {
            Self::AdamW { correction: Correction::Absent, .. } | Self::Sgd { .. } => [1.0; 2],
            Self::AdamW { .. } => BETAS.map(|beta| 1.0 / (1.0 - f64::from(beta).powi(update as i32))),
        }
    }

    /// Records the update of `parts`: weights, then moments.
    fn record(
        self,
        rec: &mut Recorder,
        gradients: Tensor,
        parts: &[Tensor],
        step: &StepTensors,
        group: Group,
    ) {
        let rate_column = rate_column(group.number);
        match self {
            Self::AdamW { correction, epsilon } => {
                let &[weights, first_moments, second_moments] = parts else { panic!("two moments") };
                let segment = AdamWTensors { weights, gradients, first_moments, second_moments };
                let settings = AdamW {
                    decay: group.decay,
                    beta1: BETAS[0],
                    beta2: BETAS[1],
                    epsilon,
                    corrects_epsilon: correction == Correction::WithEps,
                    rate_column,
                    rounding: Rounding::default(),
                };
                adamw(rec, &segment, step, &settings);
            }
            Self::Sgd { momentum, dampening, is_nesterov } => {
                let &[weights, moments] = parts else { panic!("one moment") };
                let (decay, rounding) = (group.decay, Rounding::default());
                let settings = Sgd { decay, momentum, dampening, is_nesterov, rate_column, rounding };
                sgd(rec, &SgdTensors { weights, gradients, moments }, step, &settings);
            }
        }
    }

    /// The update with this number on `parts`: weights, then moments.
    fn expect(self, update: u32, g: &[f64], parts: &mut [Vec<f64>], group: Group) {
        let (lr, weight_decay) = (group.lr, f64::from(group.decay));
        match self {
            Self::AdamW { correction, epsilon } => {
                let [p, m, v] = parts else { panic!("two moments") };
                let [beta1, beta2] = BETAS.map(f64::from);
                let eps = f64::from(epsilon);
                let settings = reference::adamw::AdamW { lr, beta1, beta2, eps, weight_decay, correction };
                reference::adamw::adamw(&settings, update, p, g, m, v);
            }
            Self::Sgd { momentum, dampening, is_nesterov: nesterov } => {
                let [p, m] = parts else { panic!("one moment") };
                let [momentum, dampening] = [momentum, dampening].map(f64::from);
                let settings = reference::sgd::Sgd { lr, momentum, dampening, nesterov, weight_decay };
                reference::sgd::sgd(&settings, update, p, g, m);
            }
        }
    }
}

struct Update {
    rule: Rule,
    group: usize,
    global_step: u32,
    norm: f64,
    max_norm: Option<f32>,
    overflow: Option<f32>,
}

/// One update of two segments with different decays, against the reference; after an overflow nothing may change.
fn check_update(name: &str, update: &Update) {
    let Update { rule, group: number, global_step, norm, max_norm, overflow } = *update;
    check(name, |case| {
        let counts = [1u32, 5000];
        let groups = [0.1, 0.0].map(|decay| Group { lr: 1e-2, decay, number });
        // Three groups; the other two have rates whose use would show.
        let rows: Vec<f64> = (0..=global_step + 1)
            .flat_map(|i| {
                let [first, second] = rule.corrections(global_step + 1);
                let mut row = [99.0, first, second, 98.0, 97.0];
                row[rate_column(number) as usize] = groups[0].lr;
                if i == global_step { row } else { [f64::NAN; 5] }
            })
            .collect();
        let schedule = case.input_of(&rows, global_step + 2, 5, F32).tensor;
        let (state, loss) = (
            case.state(StepState { loss_scale: SCALE, global_step, ..StepState::default() }),
            case.state(LossState::default()),
        );
        let mut raw: Vec<Vec<f64>> = counts.map(|n| (0..n).map(|_| case.normal()).collect()).to_vec();
        let length = raw.iter().flatten().map(|g| g * g).sum::<f64>().sqrt();
        raw.iter_mut().flatten().for_each(|g| *g *= SCALE as f64 * norm / length);
        if let Some(value) = overflow {
            raw[1][4321] = value as f64;
        }
        let gradients: Vec<Input> =
            counts.iter().zip(&raw).map(|(&n, g)| case.input_of(g, 1, n, F32)).collect();
        let segments: Vec<Vec<Input>> = counts
            .iter()
            .map(|&n| {
                let mut parts = vec![case.input(1, n, F32)];
                for &is_positive in rule.moments() {
                    let values: Vec<f64> = (0..n).map(|_| case.normal()).collect();
                    let values = values.iter().map(|x| if is_positive { x.abs() } else { *x });
                    parts.push(case.input_of(&values.collect::<Vec<f64>>(), 1, n, F32));
                }
                parts
            })
            .collect();
        let step = StepTensors { state, loss, schedule };
        let tensors: Vec<Tensor> = gradients.iter().map(|g| g.tensor).collect();
        grad_norm(&mut case.rec, &tensors, &step, &StepRules { max_norm, ..StepRules::default() });
        for ((parts, g), group) in segments.iter().zip(&tensors).zip(groups) {
            let parts: Vec<Tensor> = parts.iter().map(|part| part.tensor).collect();
            rule.record(&mut case.rec, *g, &parts, &step, group);
        }

        let coefficient =
            max_norm.map_or(1.0, |max| reference::grad_norm::clip_coefficient(norm, max as f64));
        for ((parts, g), group) in segments.iter().zip(&gradients).zip(groups) {
            let mut want: Vec<Vec<f64>> = parts.iter().map(|part| part.values.clone()).collect();
            if overflow.is_none() {
                let g: Vec<f64> = g.values.iter().map(|g| g * coefficient / SCALE as f64).collect();
                rule.expect(global_step + 1, &g, &mut want, group);
            }
            let bound = if overflow.is_none() { allowed(F32, 16) } else { 0.0 };
            for ((label, part), want) in ["weights", "moment 1", "moment 2"].iter().zip(parts).zip(want) {
                case.expect(label, part.tensor, want, bound);
            }
        }
        let overflowed = overflow.is_some();
        case.expect_words("state", state, move |words| {
            let state: StepState = bytemuck::pod_read_unaligned(bytemuck::cast_slice(words));
            let StepState { is_overflow, overflows, step, .. } = state;
            assert_eq!(state.global_step, global_step + u32::from(!overflowed), "global_step");
            assert_eq!((is_overflow, overflows, step), (overflowed.into(), overflowed.into(), 1), "flags");
            let seen = state.grad_norm as f64;
            assert!(
                overflowed || (seen - norm).abs() <= norm * allowed(F32, 5000),
                "norm {seen}, not {norm}"
            );
        });
    });
}

#[test]
pub fn update_clips_and_steps() {
    let update = |global_step, norm, max_norm| Update {
        rule: PUBLISHED,
        group: 0,
        global_step,
        norm,
        max_norm,
        overflow: None,
    };
    check_update("update, clipped", &update(0, 5.0, Some(1.0)));
    check_update("update, below the bound", &update(6, 0.5, Some(1.0)));
    check_update("update, no clipping", &update(1, 3.0, None));
}

/// Every variant, with an eps as large as the moments, so that the place where it is added matters.
const VARIANTS: [(&str, Rule); 6] = [
    ("uncorrected", Rule::AdamW { correction: Correction::Absent, epsilon: 0.25 }),
    ("eps corrected", Rule::AdamW { correction: Correction::WithEps, epsilon: 0.25 }),
    ("published", Rule::AdamW { correction: Correction::Published, epsilon: 0.25 }),
    ("sgd", Rule::Sgd { momentum: 0.0, dampening: 0.0, is_nesterov: false }),
    ("momentum", Rule::Sgd { momentum: 0.9, dampening: 0.25, is_nesterov: false }),
    ("nesterov", Rule::Sgd { momentum: 0.9, dampening: 0.0, is_nesterov: true }),
];

#[test]
pub fn update_of_every_optimizer_and_group() {
    for (name, rule) in VARIANTS {
        for (group, global_step) in [(0, 0), (1, 6), (2, 2)] {
            let update = Update { rule, group, global_step, norm: 5.0, max_norm: Some(1.0), overflow: None };
            check_update(&format!("update, {name}, group {group}"), &update);
        }
    }
}

#[test]
fn update_does_nothing_on_overflow() {
    for (name, rule) in VARIANTS {
        for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let (max_norm, overflow) = (Some(1.0), Some(value));
            let update = Update { rule, group: 0, global_step: 3, norm: 1.0, max_norm, overflow };
            check_update(&format!("update, {name}, {value} in the gradient"), &update);
        }
    }
}
