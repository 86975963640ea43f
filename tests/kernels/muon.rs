//! muon against the f64 reference.

use crate::lab::{Case, Input, allowed, check};
use gristmill::element::Element::F32;
use gristmill::ops::grad_norm::{StepRules, StepTensors, grad_norm, rate_column};
use gristmill::ops::muon::{Block, DividedMatrix, Matrix, Muon, muon};
use gristmill::ops::rounding::Rounding;
use gristmill::ops::step_state::{LossState, StepState};
use gristmill::record::Tensor;

const SCALE: f32 = 8.0;
const LR: f64 = 0.5;

/// Each Newton-Schulz step multiplies the error of a small singular value by the first coefficient.
fn bound(rows: u32, cols: u32, steps: u32) -> f64 {
    3.4445f64.powi(steps as i32) * allowed(F32, rows.max(cols))
}

/// The matrix is rows `first..first + rows` of a tensor of `of` rows.
struct Problem {
    of: u32,
    first: u32,
    rows: u32,
    cols: u32,
    settings: Muon,
    overflow: Option<f32>,
}

const SETTINGS: Muon = Muon {
    momentum: 0.95,
    is_nesterov: true,
    steps: 5,
    rms: 0.2,
    decay: 0.1,
    rate_column: rate_column(1),
    rounding: Rounding::consecutive(0, 0),
};

fn problem(rows: u32, cols: u32) -> Problem {
    Problem { of: rows, first: 0, rows, cols, settings: SETTINGS, overflow: None }
}

fn check_muon(name: &str, problem: &Problem) {
    let Problem { of, first, rows, cols, settings, overflow } = *problem;
    check(name, |case| {
        let mut raw: Vec<f64> = (0..of * cols).map(|_| SCALE as f64 * case.normal()).collect();
        if let Some(value) = overflow {
            raw[(of * cols) as usize / 2] = value as f64;
        }
        let gradients = case.input_of(&raw, of, cols, F32);
        let weights: Vec<f64> = (0..of * cols).map(|_| 0.1 * case.normal()).collect();
        let (weights, moments) = (case.input_of(&weights, of, cols, F32), case.input(of, cols, F32));
        let step = step_tensors(case);
        // One flat segment, as in the trainer; rows have no gaps.
        let stride = gradients.tensor.stride;
        let flat = Tensor { rows: 1, cols: of * stride, stride: of * stride, ..gradients.tensor };
        grad_norm(&mut case.rec, &[flat], &step, &StepRules { max_norm: Some(1.0), ..StepRules::default() });
        let [w, g, m] = [&weights, &gradients, &moments].map(|input| input.tensor.rows(first, rows));
        muon(&mut case.rec, &Matrix { weights: w, gradients: g, moments: m }, &step, &settings);

        let (want_w, want_m) = match overflow {
            Some(_) => (weights.values.clone(), moments.values.clone()),
            None => expected(problem, &weights, &gradients, &moments),
        };
        let exact = overflow.is_some();
        let of_weights = if exact { 0.0 } else { bound(rows, cols, settings.steps) };
        case.expect("w", weights.tensor, want_w, of_weights);
        case.expect("m", moments.tensor, want_m, if exact { 0.0 } else { allowed(F32, 16) });
    });
}

/// The tensors of a first step; only the rate of group 1 is used.
fn step_tensors(case: &mut Case) -> StepTensors {
    let row = [99.0, 98.0, 97.0, LR, 96.0];
    let schedule = case.input_of(&[row, [f64::NAN; 5]].concat(), 2, 5, F32).tensor;
    StepTensors {
        state: case.state(StepState { loss_scale: SCALE, ..StepState::default() }),
        loss: case.state(LossState::default()),
        schedule,
    }
}

fn expected(problem: &Problem, w: &Input, g: &Input, m: &Input) -> (Vec<f64>, Vec<f64>) {
    let Problem { first, rows, cols, settings, .. } = *problem;
    let g: Vec<f64> = g.values.iter().map(|g| g / SCALE as f64).collect();
    let norm = reference::grad_norm::grad_norm([g.as_slice()].into_iter());
    let coefficient = reference::grad_norm::clip_coefficient(norm, 1.0);
    let g: Vec<f64> = g.iter().map(|g| g * coefficient).collect();
    let settings = reference::muon::Muon {
        lr: LR,
        momentum: settings.momentum as f64,
        nesterov: settings.is_nesterov,
        steps: settings.steps,
        rms: settings.rms as f64,
        weight_decay: settings.decay as f64,
    };
    let (mut w, mut m) = (w.values.clone(), m.values.clone());
    let (start, end) = ((first * cols) as usize, ((first + rows) * cols) as usize);
    let (rows, cols) = (rows as usize, cols as usize);
    reference::muon::muon(&settings, &mut w[start..end], &g[start..end], &mut m[start..end], rows, cols);
    (w, m)
}

#[test]
pub fn matrices_of_all_shapes_match_the_reference() {
    for (rows, cols) in [(1, 1), (1, 31), (31, 1), (33, 31), (31, 33), (48, 48), (12, 257), (257, 12)] {
        check_muon(&format!("muon {rows}x{cols}"), &problem(rows, cols));
    }
}

/// The bound after one step is 140 times tighter than after five.
#[test]
fn all_settings_match_the_reference() {
    let one = Muon { steps: 1, ..SETTINGS };
    let settings = [
        ("one step", one),
        ("without Nesterov momentum", Muon { is_nesterov: false, ..one }),
        ("without momentum and decay", Muon { momentum: 0.0, decay: 0.0, ..one }),
        ("another size", Muon { rms: 0.7, steps: 2, ..one }),
    ];
    for (name, settings) in settings {
        check_muon(&format!("muon, {name}"), &Problem { settings, ..problem(37, 22) });
    }
}

/// A matrix inside a tensor, at an offset where no binding can start.
#[test]
fn a_piece_leaves_its_neighbours_alone() {
    check_muon("muon, a piece", &Problem { of: 40, first: 7, ..problem(20, 18) });
}

#[test]
fn does_nothing_on_overflow() {
    for value in [f32::INFINITY, f32::NAN] {
        check_muon(
            &format!("muon, {value} in the gradient"),
            &Problem { overflow: Some(value), ..problem(33, 20) },
        );
    }
}

/// The parts of ranks are put into their places, orthogonalised, and taken from there: rows and columns in any order,
/// of which two ranks hold some alike.
#[test]
pub fn parts_are_orthogonalised_as_the_matrix() {
    let block = |[row, rows]: [u32; 2], [col, cols]: [u32; 2], whole| Block {
        held: [row, col],
        whole,
        size: [rows, cols],
    };
    // Of a matrix (33, 24) the first rank has 20 rows, its columns in another order, the second the others and the same
    // 7.
    let first = vec![block([0, 20], [0, 8], [13, 16]), block([0, 20], [8, 16], [13, 0])];
    let second = vec![block([0, 13], [0, 24], [0, 0]), block([13, 7], [0, 24], [26, 0])];
    check("parts under muon", move |case| {
        let whole = case.input(33, 24, F32);
        // Where each element of the parts, which are one below the other, is in the matrix.
        let mut places = vec![0; 40 * 24];
        for (rank, Block { held, whole, size }) in
            first.iter().map(|block| (0, *block)).chain(second.iter().map(|block| (1, *block)))
        {
            for (row, col) in (0..size[0]).flat_map(|row| (0..size[1]).map(move |col| (row, col))) {
                let at =
                    |[first_row, first_col]: [u32; 2]| ((first_row + row) * 24 + first_col + col) as usize;
                places[at([20 * rank + held[0], held[1]])] = at(whole);
            }
        }
        let taken = |values: &[f64]| places.iter().map(|place| values[*place]).collect::<Vec<f64>>();
        let of_ranks = case.input_of(&taken(&whole.values), 40, 24, F32).tensor;
        let step = step_tensors(case);
        let [weights, gradients, moments] = [0; 3].map(|_| case.input(20, 24, F32).tensor);
        let part = DividedMatrix {
            name: "matrix".into(),
            matrix: Matrix { weights, gradients, moments },
            settings: SETTINGS,
            whole: [33, 24],
            blocks: vec![first.clone(), second.clone()],
        };
        let updates = part.orthogonalise(&mut case.rec, of_ranks, &step);
        // With weights of 0, and no momentum, the reference subtracts the update, times its scale.
        let (lr, rms) = (1.0, 1.0 / 33f64.sqrt());
        let of =
            reference::muon::Muon { lr, momentum: 0.0, nesterov: false, steps: 5, rms, weight_decay: 0.0 };
        let (mut want, mut m) = (vec![0.0; 33 * 24], vec![0.0; 33 * 24]);
        reference::muon::muon(&of, &mut want, &whole.values, &mut m, 33, 24);
        want.iter_mut().for_each(|update| *update = -*update);
        case.expect("updates", updates, taken(&want), bound(33, 24, SETTINGS.steps));
    });
}
