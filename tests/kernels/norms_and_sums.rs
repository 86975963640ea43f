//! rms_norm, l2_norm, layer_norm, qk_norm, column_sum, embedding, add and cast against the f64 reference.

use crate::lab::{Case, allowed, check, order_by_id, sum, tensors, values};
use crate::packed::{columns, pack_qkv, split_qkv};
use gristmill::element::Element::{self, Bf16, F16, F32};
use gristmill::ops::heads::HeadLayout;
use gristmill::ops::layer_norm::LayerNorm;
use gristmill::ops::qk_layer_norm;
use gristmill::ops::qk_norm::{self, Values};
use gristmill::ops::rms_norm::{RmsNorm, RmsNormSaved};
use gristmill::ops::{add, cast, column_sum, embedding, l2_norm, layer_norm, rms_norm};
use gristmill::record::Tensor;

const SHAPES: [(u32, u32); 6] = [(1, 1), (3, 31), (33, 4), (31, 33), (70, 128), (129, 257)];

#[test]
pub fn rms_norm_and_its_backward() {
    for element in [F32, F16, Bf16] {
        for (rows, cols) in SHAPES {
            check(&format!("rms_norm {rows}x{cols} {element:?}"), |case| {
                check_rms_norm(case, [rows, cols], element, RmsNorm::new(1e-5));
            });
        }
    }
}

/// Norms that multiply by 1 + w: of rows, and of heads.
#[test]
fn zero_centered_norms_and_their_backward() {
    let norm = RmsNorm { is_zero_centered: true, ..RmsNorm::new(1e-5) };
    for (element, shapes) in [(F32, &SHAPES[..]), (F16, &SHAPES[3..4]), (Bf16, &SHAPES[4..])] {
        for (rows, cols) in shapes {
            check(&format!("zero-centred rms_norm {rows}x{cols} {element:?}"), |case| {
                check_rms_norm(case, [*rows, *cols], element, norm);
            });
        }
        for (heads, kv_heads, head_dim, value_dim, tokens) in HEADS {
            let layout = HeadLayout { heads, kv_heads, head_dim, value_dim };
            check(&format!("zero-centred qk_norm {tokens} tokens of {layout:?} {element:?}"), |case| {
                check_qk_norm(case, layout, Values::Plain, [tokens, 0], element, norm);
            });
        }
    }
}

/// Norms with a factor, which both gradients have too.
#[test]
fn scaled_norms_and_their_backward() {
    for (element, shapes, is_zero_centered) in
        [(F32, &SHAPES[..3], false), (F16, &SHAPES[3..4], true), (Bf16, &SHAPES[4..], false)]
    {
        for (rows, cols) in shapes {
            let norm = RmsNorm { epsilon: 1e-5, is_zero_centered, factor: Some(0.3) };
            check(&format!("scaled rms_norm {rows}x{cols} {element:?}"), |case| {
                check_rms_norm(case, [*rows, *cols], element, norm);
            });
        }
    }
}

/// The factors of `norm` with the weights `w`.
pub fn factors(norm: RmsNorm, w: &[f64]) -> Vec<f64> {
    let factor = f64::from(norm.factor.unwrap_or(1.0));
    w.iter().map(|w| factor * if norm.is_zero_centered { 1.0 + w } else { *w }).collect()
}

/// The gradient of the weights of `norm`, given that of its [`factors`].
pub fn of_weights(norm: RmsNorm, dfactors: &[f64]) -> Vec<f64> {
    dfactors.iter().map(|dw| f64::from(norm.factor.unwrap_or(1.0)) * dw).collect()
}

fn check_rms_norm(case: &mut Case, [rows, cols]: [u32; 2], element: Element, norm: RmsNorm) {
    let (x, w) = (case.input(rows, cols, element), case.input(1, cols, element));
    let (y, rstd) = (case.output(rows, cols, element), case.output(1, rows, F32));
    rms_norm::rms_norm(&mut case.rec, x.tensor, w.tensor, y, rstd, norm);
    let w_values = factors(norm, &w.values);
    let want = reference::rms_norm::rms_norm(&x.values, &w_values, cols as usize, 1e-5);
    case.expect("y", y, want.clone(), allowed(element, cols));
    let inverse =
        |row: &[f64]| 1.0 / (row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64 + 1e-5).sqrt();
    let want_rstd: Vec<f64> = x.values.chunks(cols as usize).map(inverse).collect();
    case.expect_vector("rstd", rstd, want_rstd.clone(), allowed(F32, cols));

    let (residual, sum_y) = (case.input(rows, cols, element), case.output(rows, cols, element));
    let again = RmsNormSaved { x: x.tensor, w: w.tensor, rstd: case.output(1, rows, F32) };
    rms_norm::add_rms_norm(&mut case.rec, residual.tensor, &again, sum_y, norm);
    case.expect("y on a residual", sum_y, sum(&residual.values, &want), allowed(element, cols));

    let dy = case.input(rows, cols, element);
    let (dx, more) = (case.output(rows, cols, element), case.input(rows, cols, element));
    let dw = case.input(1, cols, F32);
    let saved = RmsNormSaved { x: x.tensor, w: w.tensor, rstd };
    rms_norm::rms_norm_backward(&mut case.rec, &saved, norm, dy.tensor, dx, false);
    rms_norm::rms_norm_backward(&mut case.rec, &saved, norm, dy.tensor, more.tensor, true);
    rms_norm::rms_norm_backward_weight(&mut case.rec, &saved, norm, dy.tensor, dw.tensor);
    let (want_dx, want_dw) =
        reference::rms_norm::rms_norm_backward(&x.values, &w_values, &dy.values, cols as usize, 1e-5);
    let want_dw = of_weights(norm, &want_dw);
    let want_more = sum(&more.values, &want_dx);
    // dx = rstd · (h − x · pull): with one column all but a millionth cancels.
    let terms: Vec<f64> = want_rstd
        .iter()
        .zip(dy.values.chunks(cols as usize))
        .flat_map(|(rstd, row)| row.iter().zip(&w_values).map(move |(dy, w)| rstd * dy * w))
        .collect();
    let bound = allowed(element, cols);
    if cols == 1 {
        case.expect_difference("dx", dx, want_dx, bound, &terms);
        case.expect_difference("dx on top", more.tensor, want_more, bound, &terms);
    } else {
        case.expect("dx", dx, want_dx, bound);
        case.expect("dx on top", more.tensor, want_more, bound);
    }
    case.expect("dw", dw.tensor, sum(&dw.values, &want_dw), allowed(F32, rows));
}

#[test]
pub fn l2_norm_and_its_backward() {
    for element in [F32, F16, Bf16] {
        for (rows, cols) in SHAPES {
            check(&format!("l2_norm {rows}x{cols} {element:?}"), |case| {
                // A large epsilon, which an error in its place would show.
                let (d, eps) = (cols as usize, 0.5);
                let (x, y) = (case.input(rows, cols, element), case.output(rows, cols, element));
                l2_norm::l2_norm(&mut case.rec, x.tensor, y, eps as f32);
                let bound = allowed(element, cols);
                case.expect("y", y, reference::l2_norm::l2_norm(&x.values, d, eps), bound);

                let (dy, dx) = (case.input(rows, cols, F32), case.input(rows, cols, F32));
                l2_norm::l2_norm_backward(&mut case.rec, x.tensor, dy.tensor, dx.tensor, eps as f32);
                let want = reference::l2_norm::l2_norm_backward(&x.values, &dy.values, d, eps);
                case.expect("dx", dx.tensor, sum(&dx.values, &want), allowed(F32, cols));
            });
        }
    }
}

/// Parts of a table start at offsets of their own.
#[test]
fn l2_norm_of_rows_that_are_not_aligned() {
    check("l2_norm of a range of rows", |case| {
        let (x, y) = (case.input(9, 12, F32), case.output(4, 12, F32));
        l2_norm::l2_norm(&mut case.rec, x.tensor.rows(5, 4), y, 1e-5);
        let want = reference::l2_norm::l2_norm(&x.values[5 * 12..], 12, 1e-5);
        case.expect("y", y, want, allowed(F32, 12));
    });
}

#[test]
pub fn layer_norm_and_its_backward() {
    for element in [F32, F16, Bf16] {
        for (rows, cols) in SHAPES {
            check(&format!("layer_norm {rows}x{cols} {element:?}"), |case| {
                check_layer_norm(case, [rows, cols], element, LayerNorm::new(1e-5), true);
            });
        }
    }
}

/// Norms that multiply by 1 + w, and without a bias.
#[test]
fn other_layer_norms_and_their_backward() {
    for (element, shapes) in [(F32, &SHAPES[..3]), (F16, &SHAPES[3..4]), (Bf16, &SHAPES[4..])] {
        for (rows, cols) in shapes {
            for (is_zero_centered, has_bias) in [(true, true), (false, false)] {
                let name = if has_bias { "zero-centred" } else { "unbiased" };
                check(&format!("{name} layer_norm {rows}x{cols} {element:?}"), |case| {
                    let norm = LayerNorm { epsilon: 1e-5, is_zero_centered };
                    check_layer_norm(case, [*rows, *cols], element, norm, has_bias);
                });
            }
        }
    }
}

fn check_layer_norm(
    case: &mut Case,
    [rows, cols]: [u32; 2],
    element: Element,
    norm: LayerNorm,
    has_bias: bool,
) {
    let (d, eps) = (cols as usize, 1e-5);
    let x = case.input(rows, cols, element);
    let [w, b] = [0; 2].map(|_| case.input(1, cols, element));
    let b = Some(b).filter(|_| has_bias);
    let b_values = b.as_ref().map_or(vec![0.0; d], |b| b.values.clone());
    let w_values: Vec<f64> =
        w.values.iter().map(|w| if norm.is_zero_centered { 1.0 + w } else { *w }).collect();
    let y = case.output(rows, cols, element);
    let [mean, rstd] = [0; 2].map(|_| case.output(1, rows, F32));
    let saved = layer_norm::LayerNormSaved { x: x.tensor, w: w.tensor, mean, rstd };
    layer_norm::layer_norm(&mut case.rec, &saved, b.as_ref().map(|b| b.tensor), y, norm);
    let want = reference::layer_norm::layer_norm(&x.values, &w_values, &b_values, d, eps);
    case.expect("y", y, want, allowed(element, cols));
    let mean_of = |row: &[f64]| row.iter().sum::<f64>() / d as f64;
    let want_mean: Vec<f64> = x.values.chunks(d).map(mean_of).collect();
    let want_rstd: Vec<f64> = x
        .values
        .chunks(d)
        .zip(&want_mean)
        .map(|(row, mean)| {
            1.0 / (row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / d as f64 + eps).sqrt()
        })
        .collect();
    case.expect_vector("mean", mean, want_mean, allowed(F32, cols));
    case.expect_vector("rstd", rstd, want_rstd.clone(), allowed(F32, cols));

    let dy = case.input(rows, cols, element);
    let (dx, more) = (case.output(rows, cols, element), case.input(rows, cols, element));
    let [dw, db] = [0; 2].map(|_| case.input(1, cols, F32));
    let db = Some(db).filter(|_| has_bias);
    layer_norm::layer_norm_backward(&mut case.rec, &saved, norm, dy.tensor, dx, false);
    layer_norm::layer_norm_backward(&mut case.rec, &saved, norm, dy.tensor, more.tensor, true);
    let of_bias = db.as_ref().map(|db| db.tensor);
    layer_norm::layer_norm_backward_weight(&mut case.rec, &saved, dy.tensor, dw.tensor, of_bias);
    let (want_dx, want_dw, want_db) =
        reference::layer_norm::layer_norm_backward(&x.values, &w_values, &dy.values, d, eps);
    let (want_more, bound) = (sum(&more.values, &want_dx), allowed(element, cols));
    if cols <= 4 {
        // dx loses 2 of its D directions, so with few columns most of it cancels.
        let terms: Vec<f64> = want_rstd
            .iter()
            .zip(dy.values.chunks(d))
            .flat_map(|(rstd, row)| row.iter().zip(&w_values).map(move |(dy, w)| rstd * dy * w))
            .collect();
        case.expect_difference("dx", dx, want_dx, bound, &terms);
        case.expect_difference("dx on top", more.tensor, want_more, bound, &terms);
    } else {
        case.expect("dx", dx, want_dx, bound);
        case.expect("dx on top", more.tensor, want_more, bound);
    }
    case.expect("dw", dw.tensor, sum(&dw.values, &want_dw), allowed(F32, rows));
    if let Some(db) = db {
        case.expect("db", db.tensor, sum(&db.values, &want_db), allowed(F32, rows));
    }
}

/// Rows far from zero: the variance must not be computed as a difference of two large squares.
#[test]
fn layer_norm_keeps_a_small_variance_beside_a_large_mean() {
    check("layer_norm of 1000 ± 1", |case| {
        let values: Vec<f64> = (0..3 * 64).map(|_| 1000.0 + case.normal()).collect();
        let x = case.input_of(&values, 3, 64, F32);
        let [w, b] = [0; 2].map(|_| case.input(1, 64, F32));
        let y = case.output(3, 64, F32);
        let [mean, rstd] = [0; 2].map(|_| case.output(1, 3, F32));
        let saved = layer_norm::LayerNormSaved { x: x.tensor, w: w.tensor, mean, rstd };
        layer_norm::layer_norm(&mut case.rec, &saved, Some(b.tensor), y, LayerNorm::new(1e-5));
        let want = reference::layer_norm::layer_norm(&x.values, &w.values, &b.values, 64, 1e-5);
        // The mean has an error of half an ulp of 1000, 3e-5, and the roundings of a sum of 64 terms.
        case.expect("y", y, want, 1000.0 * allowed(F32, 64));
    });
}

/// Query heads, key heads, head_dim, value_dim and tokens: 1, odd, more tokens than a block of the weight gradient.
const HEADS: [(u32, u32, u32, u32, u32); 5] =
    [(1, 1, 4, 12, 1), (4, 2, 8, 8, 9), (3, 1, 32, 16, 33), (2, 2, 64, 64, 31), (6, 2, 128, 128, 70)];

#[test]
pub fn qk_norm_and_its_backward() {
    for element in [F32, F16, Bf16] {
        for (heads, kv_heads, head_dim, value_dim, tokens) in HEADS {
            let layout = HeadLayout { heads, kv_heads, head_dim, value_dim };
            check(&format!("qk_norm {tokens} tokens of {layout:?} {element:?}"), |case| {
                check_qk_norm(case, layout, Values::Plain, [tokens, 0], element, RmsNorm::new(1e-6));
            });
        }
    }
}

/// Values that are normalised too, or made of keys.
#[test]
fn qk_norm_of_values() {
    for (element, heads) in [(F32, &HEADS[2..]), (F16, &HEADS[3..4]), (Bf16, &HEADS[4..])] {
        for &(heads, kv_heads, head_dim, _, tokens) in heads {
            let layout = HeadLayout { heads, kv_heads, head_dim, value_dim: head_dim };
            for values in [Values::Normalised, Values::OfKeys] {
                check(&format!("qk_norm {tokens} tokens of {layout:?} {element:?} {values:?}"), |case| {
                    check_qk_norm(case, layout, values, [tokens, 0], element, RmsNorm::new(1e-6));
                });
            }
        }
    }
}

/// Heads that are a range of wider rows.
#[test]
pub fn qk_norm_of_ranges() {
    for (element, (heads, kv_heads, head_dim, value_dim, tokens)) in
        [(F32, HEADS[1]), (F16, HEADS[2]), (Bf16, HEADS[4])]
    {
        let layout = HeadLayout { heads, kv_heads, head_dim, value_dim };
        check(&format!("qk_norm of a range, {tokens} tokens of {layout:?} {element:?}"), |case| {
            check_qk_norm(case, layout, Values::Plain, [tokens, 20], element, RmsNorm::new(1e-6));
        });
    }
}

fn check_qk_norm(
    case: &mut Case,
    layout: HeadLayout,
    values: Values,
    [tokens, lead]: [u32; 2], // columns before them in wider rows
    element: Element,
    norm: RmsNorm,
) {
    let HeadLayout { heads, kv_heads, head_dim: width, value_dim } = layout;
    let mut x = case.input(tokens, lead + values.input_cols(&layout), element);
    let whole = (lead > 0).then(|| case.output(tokens, x.tensor.cols, element));
    let range = whole.map(|whole| whole.columns(lead, layout.cols()));
    let wide = x.tensor.cols as usize;
    x.tensor = x.tensor.columns(lead, x.tensor.cols - lead);
    x.values = x.values.chunks(wide).flat_map(|row| row[lead as usize..].to_vec()).collect();
    let dy = case.input(tokens, layout.cols(), element);
    let [wq, wk] = [0; 2].map(|_| case.input(1, width, element));
    let [dwq, dwk] = [0; 2].map(|_| case.input(1, width, F32));
    let y = case.output(tokens, layout.cols(), element);
    let rstd = case.output(tokens, values.normalised_heads(&layout), F32);
    let saved = qk_norm::QkNormSaved { x: x.tensor, wq: wq.tensor, wk: wk.tensor, rstd, values };
    qk_norm::qk_norm(&mut case.rec, &saved, y, &layout, norm);
    let gradients = [Some(dwq.tensor), Some(dwk.tensor)];
    qk_norm::qk_norm_backward_weight(&mut case.rec, &saved, dy.tensor, gradients, &layout);
    let dx = qk_norm::qk_norm_backward(&mut case.rec, &saved, dy.tensor, range, &layout, norm);
    let (epsilon, dim) = (f64::from(norm.epsilon), width as usize);
    let [wq, wk] = [wq, wk].map(|w| factors(norm, &w.values));

    let ones = vec![1.0; dim];
    let (mut want_y, mut want_dx) = (Vec::new(), vec![0.0; x.values.len()]);
    let [mut want_dwq, mut want_dwk] = [dwq.values, dwk.values];
    let x_cols = values.input_cols(&layout) as usize;
    for (token, dy) in dy.values.chunks(layout.cols() as usize).enumerate() {
        for head in 0..heads + 2 * kv_heads {
            let first_value = heads + kv_heads;
            let before = head.min(first_value) * width + head.saturating_sub(first_value) * value_dim;
            let is_value = head >= first_value;
            let source =
                if is_value && values == Values::OfKeys { before - kv_heads * width } else { before };
            let count = if is_value { value_dim } else { width } as usize;
            let from = token * x_cols + source as usize..token * x_cols + source as usize + count;
            let (x, dy) = (&x.values[from.clone()], &dy[before as usize..before as usize + count]);
            if is_value && values == Values::Plain {
                want_y.extend(x);
                want_dx[from].copy_from_slice(dy);
                continue;
            }
            let w = if is_value { &ones } else { [&wq, &wk][usize::from(head >= heads)] };
            want_y.extend(reference::rms_norm::rms_norm(x, w, dim, epsilon));
            let (dx, dw) = reference::rms_norm::rms_norm_backward(x, w, dy, dim, epsilon);
            want_dx[from].iter_mut().zip(dx).for_each(|(sum, dx)| *sum += dx);
            if !is_value {
                let sums = if head < heads { &mut want_dwq } else { &mut want_dwk };
                *sums = sum(sums, &dw);
            }
        }
    }
    case.expect("y", y, want_y, allowed(element, width));
    match whole {
        None => case.expect("dx", dx, want_dx, allowed(element, width)),
        Some(whole) => {
            let columns = lead..lead + layout.cols();
            case.expect_columns("dx", whole, columns, want_dx, allowed(element, width));
        }
    }
    case.expect("dwq", dwq.tensor, want_dwq, allowed(F32, tokens * heads));
    case.expect("dwk", dwk.tensor, want_dwk, allowed(F32, tokens * kv_heads));
}

/// All heads share a weight and a bias, or each has a weight of its own and none has a bias.
#[test]
pub fn qk_layer_norm_and_its_backward() {
    for element in [F32, F16, Bf16] {
        for (number, (heads, kv_heads, head_dim, value_dim, tokens)) in HEADS.into_iter().enumerate() {
            let layout = HeadLayout { heads, kv_heads, head_dim, value_dim };
            let is_shared = number.is_multiple_of(2) == (element != F16);
            let norm = LayerNorm { epsilon: 1e-2, is_zero_centered: number > 2 && element == Bf16 };
            let shared = if is_shared { "one weight" } else { "own weights" };
            check(&format!("qk_layer_norm {tokens} tokens of {layout:?} {element:?} {shared}"), |case| {
                check_qk_layer_norm(case, layout, is_shared, tokens, element, norm);
            });
        }
    }
}

fn check_qk_layer_norm(
    case: &mut Case,
    layout: HeadLayout,
    is_shared: bool,
    tokens: u32,
    element: Element,
    norm: LayerNorm,
) {
    let HeadLayout { heads, kv_heads, head_dim, .. } = layout;
    let counts = [heads, kv_heads];
    let weight_cols = counts.map(|count| head_dim * if is_shared { 1 } else { count });
    let [x, dy] = [0; 2].map(|_| case.input(tokens, layout.cols(), element));
    let weights = weight_cols.map(|cols| case.input(1, cols, element));
    let biases = weight_cols.map(|cols| case.input(1, cols, element));
    let dweights = weight_cols.map(|cols| case.input(1, cols, F32));
    let dbiases = weight_cols.map(|cols| case.input(1, cols, F32));
    let y = case.output(tokens, layout.cols(), element);
    let [mean, rstd] = [0; 2].map(|_| case.output(tokens, heads + kv_heads, F32));
    let [wq, wk] = [&weights[0], &weights[1]].map(|w| w.tensor);
    let saved = qk_layer_norm::QkLayerNormSaved { x: x.tensor, weights: [wq, wk], mean, rstd };
    let given = is_shared.then(|| [biases[0].tensor, biases[1].tensor]);
    qk_layer_norm::qk_layer_norm(&mut case.rec, &saved, given, y, &layout, norm);
    let gradients = [0, 1].map(|i| [Some(dweights[i].tensor), is_shared.then_some(dbiases[i].tensor)]);
    qk_layer_norm::qk_layer_norm_backward_weight(&mut case.rec, &saved, dy.tensor, gradients, &layout);
    qk_layer_norm::qk_layer_norm_backward(&mut case.rec, &saved, dy.tensor, &layout, norm);

    let (dim, epsilon) = (head_dim as usize, f64::from(norm.epsilon));
    let mut rows = split_qkv(&x.values, &layout);
    let mut gradients = split_qkv(&dy.values, &layout);
    for i in 0..2 {
        let count = counts[i] as usize;
        let factors: Vec<f64> =
            weights[i].values.iter().map(|w| w + f64::from(u8::from(norm.is_zero_centered))).collect();
        let [mut dw, mut db] = [dweights[i].values.clone(), dbiases[i].values.clone()];
        let places = rows[i].chunks_mut(dim).zip(gradients[i].chunks_mut(dim)).enumerate();
        for (place, (x, dy)) in places {
            let first = if is_shared { 0 } else { place % count * dim };
            let own = first..first + dim;
            let bias = if is_shared { biases[i].values.clone() } else { vec![0.0; dim] };
            let [w, saved_x] = [&factors[own.clone()], &x.to_vec()[..]].map(<[f64]>::to_vec);
            let (dx, dw_of_it, db_of_it) =
                reference::layer_norm::layer_norm_backward(&saved_x, &w, dy, dim, epsilon);
            x.copy_from_slice(&reference::layer_norm::layer_norm(&saved_x, &w, &bias, dim, epsilon));
            dw[own.clone()].iter_mut().zip(dw_of_it).for_each(|(sum, dw)| *sum += dw);
            db[own].iter_mut().zip(db_of_it).for_each(|(sum, db)| *sum += db);
            dy.copy_from_slice(&dx);
        }
        let terms = tokens * if is_shared { counts[i] } else { 1 };
        case.expect(["dwq", "dwk"][i], dweights[i].tensor, dw, allowed(F32, terms));
        if is_shared {
            case.expect(["dbq", "dbk"][i], dbiases[i].tensor, db, allowed(F32, terms));
        }
    }
    case.expect("y", y, pack_qkv(&rows, &layout), allowed(element, head_dim));
    case.expect("dx", dy.tensor, pack_qkv(&gradients, &layout), allowed(element, 2 * head_dim));
}

/// A number of a checkpoint times rows.
#[test]
fn rows_are_scaled_by_one_number() {
    for element in [F32, F16, Bf16] {
        check(&format!("scale {element:?}"), |case| {
            let (x, factor) = (case.input(5, 39, element), case.input(1, 1, element));
            let y = case.output(5, 39, element);
            add::scale(&mut case.rec, x.tensor, factor.tensor, y);
            let want = x.values.iter().map(|x| x * factor.values[0]).collect();
            case.expect("y", y, want, allowed(element, 1));
        });
    }
}

#[test]
pub fn column_sum_adds_rows() {
    for element in [F32, Bf16] {
        // Enough rows that lanes add several partial sums each.
        for (rows, cols) in SHAPES.into_iter().chain([(2500, 70)]) {
            check(&format!("column_sum {rows}x{cols} {element:?}"), |case| {
                let x = case.input(rows, cols, element);
                let mut sums = vec![0.0; cols as usize];
                for row in x.values.chunks(cols as usize) {
                    sums = sum(&sums, row);
                }
                for factor in [None, Some(-0.75f32)] {
                    let y = case.input(1, cols, F32);
                    column_sum::column_sum(&mut case.rec, x.tensor, y.tensor, factor);
                    let scaled: Vec<f64> = scaled(&sums, factor);
                    case.expect("y", y.tensor, sum(&y.values, &scaled), allowed(F32, rows));
                }
            });
        }
    }
}

/// Columns of a wider table, times a factor on top of y, and their gradient, beside which nothing changes.
#[test]
pub fn embedding_of_columns() {
    for element in [F32, F16, Bf16] {
        for (tokens, vocab, cols, range, parts) in [(33, 7, 44, 12..20, 1), (129, 40, 36, 0..16, 2)] {
            check(&format!("embedding {tokens} of {vocab}x{cols} in {range:?} {element:?}"), |case| {
                let ids = case.ids_below(tokens as usize, vocab);
                let (ids_tensor, order) = (case.integers(&ids), case.integers(&order_by_id(&ids)));
                let (first, width, factor) = (range.start, range.len() as u32, Some(-0.75f32));
                let inside = |tensors: Vec<Tensor>| -> Vec<Tensor> {
                    tensors.iter().map(|part| part.columns(first, width)).collect()
                };
                let table: Vec<_> = (0..parts).map(|_| case.input(vocab / parts, cols, element)).collect();
                let dtable: Vec<_> = (0..parts).map(|_| case.input(vocab / parts, cols, F32)).collect();
                let (y, dy) = (case.input(tokens, width, element), case.input(tokens, width, element));
                let rec = &mut case.rec;
                embedding::add_embedding(rec, ids_tensor, &inside(tensors(&table)), (0, factor), y.tensor);
                let parts = inside(tensors(&dtable));
                embedding::embedding_backward(rec, ids_tensor, order, dy.tensor, &parts, factor);
                let all = reference::embedding::embedding(&values(&table), &ids, cols as usize);
                let own = |row: &[f64]| row[first as usize..][..width as usize].to_vec();
                let rows: Vec<f64> = all.chunks(cols as usize).flat_map(own).collect();
                case.expect("y", y.tensor, sum(&y.values, &scaled(&rows, factor)), allowed(element, 2));
                let [vocab, width] = [vocab, width].map(|size| size as usize);
                let gradient = reference::embedding::embedding_backward(&dy.values, &ids, vocab, width);
                let widened = scaled(&gradient, factor);
                let row = |row: &[f64]| {
                    let (before, after) = (first as usize, cols as usize - first as usize - width);
                    [vec![0.0; before], row.to_vec(), vec![0.0; after]].concat()
                };
                let mut rest: Vec<f64> = widened.chunks(width).flat_map(row).collect();
                for part in &dtable {
                    let others = rest.split_off(part.values.len());
                    let want = sum(&part.values, &std::mem::replace(&mut rest, others));
                    case.expect("dtable", part.tensor, want, allowed(F32, tokens));
                }
            });
        }
    }
}

/// factor · x; x without a factor.
fn scaled(x: &[f64], factor: Option<f32>) -> Vec<f64> {
    x.iter().map(|x| f64::from(factor.unwrap_or(1.0)) * x).collect()
}

#[test]
pub fn embedding_gathers_and_scatters() {
    for element in [F32, F16, Bf16] {
        for (tokens, vocab, cols, parts) in
            [(1, 1, 1, 1), (33, 7, 31, 1), (129, 40, 36, 2), (64, 257, 130, 3)]
        {
            check(&format!("embedding {tokens} of {vocab}x{cols} in {parts} parts {element:?}"), |case| {
                let ids = case.ids_below(tokens as usize, vocab);
                let (ids_tensor, order_tensor) = (case.integers(&ids), case.integers(&order_by_id(&ids)));
                let rows = |part: u32| vocab / parts + if part == parts - 1 { vocab % parts } else { 0 };
                let table: Vec<_> = (0..parts).map(|p| case.input(rows(p), cols, element)).collect();
                let dtable: Vec<_> = (0..parts).map(|p| case.input(rows(p), cols, F32)).collect();
                let (y, dy) = (case.output(tokens, cols, element), case.input(tokens, cols, element));
                let factor = (element == F32 || parts > 1).then_some(-0.75f32);
                embedding::embedding(&mut case.rec, ids_tensor, &tensors(&table), factor, y);
                let parts = tensors(&dtable);
                let dy_tensor = dy.tensor;
                embedding::embedding_backward(
                    &mut case.rec,
                    ids_tensor,
                    order_tensor,
                    dy_tensor,
                    &parts,
                    factor,
                );
                let rows = reference::embedding::embedding(&values(&table), &ids, cols as usize);
                let more = case.input(tokens, cols, element);
                embedding::add_embedding(&mut case.rec, ids_tensor, &tensors(&table), (0, None), more.tensor);
                case.expect("y on top", more.tensor, sum(&more.values, &rows), allowed(element, 1));
                // A factor rounds once more; as they are, rows stay the same.
                let rounded = if factor.is_some() { allowed(element, 1) } else { 0.0 };
                case.expect("y", y, scaled(&rows, factor), rounded);
                let want =
                    reference::embedding::embedding_backward(&dy.values, &ids, vocab as usize, cols as usize);
                let want = scaled(&want, factor);
                let mut rest = &want[..];
                for part in &dtable {
                    let (mine, others) = rest.split_at(part.values.len());
                    rest = others;
                    case.expect("dtable", part.tensor, sum(&part.values, mine), allowed(F32, tokens));
                }
            });
        }
    }
}

#[test]
pub fn add_scales_and_accumulates() {
    for element in [F32, Bf16] {
        check(&format!("add {element:?}"), |case| {
            let (x, y) = (case.input(31, 33, element), case.input(31, 33, element));
            let z = case.output(31, 33, element);
            add::add(&mut case.rec, x.tensor, z, -0.5, false);
            add::add(&mut case.rec, x.tensor, y.tensor, 2.0, true);
            case.expect("z", z, x.values.iter().map(|v| -0.5 * v).collect(), allowed(element, 1));
            let want = x.values.iter().zip(&y.values).map(|(x, y)| y + 2.0 * x).collect();
            case.expect("y", y.tensor, want, allowed(element, 1));
        });
    }
}

/// Rounding, subnormals, overflow and infinity, bit for bit as on the host; NaN stays NaN.
#[test]
pub fn cast_rounds_to_nearest_even() {
    let mut values: Vec<f32> = vec![
        0.0,
        -0.0,
        1.0,
        -1.5,
        65504.0,
        65519.0,
        65520.0,
        -65520.0,
        1e30,
        3.4e38,
        f32::INFINITY,
        f32::NEG_INFINITY,
        5.96e-8,
        2.98e-8,
        2.981e-8,
        6.1e-5,
        6.097e-5,
        1.0009766,
        1.0014648,
        1.0039063,
        1.0117188,
        0.1,
        -0.3,
    ];
    values.extend((0..1001).map(|i| (i as f32 - 500.0) * 1.2345e-3));
    for element in [F16, Bf16] {
        let values = values.clone();
        check(&format!("cast {element:?}"), move |case| {
            let cols = values.len() as u32;
            let wide: Vec<f64> = values.iter().map(|&v| v as f64).collect();
            let x = case.input_of(&wide, 1, cols, F32);
            let (narrow, back) = (case.output(1, cols, element), case.output(1, cols, F32));
            cast::cast(&mut case.rec, x.tensor, narrow);
            cast::cast(&mut case.rec, narrow, back);
            let mut bytes = Vec::new();
            element.encode_row(&values, &mut bytes);
            let same = |want: Vec<u8>| {
                move |words: &[u32]| {
                    let got: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
                    assert!(got == want, "the device rounds differently from the host");
                }
            };
            let widened: Vec<u8> = element.decode(&bytes).iter().flat_map(|v| v.to_le_bytes()).collect();
            case.expect_words("narrowed", narrow, same(bytes));
            case.expect_words("widened", back, same(widened));
        });
    }
    check_nan(F16);
    check_nan(Bf16);
}

fn check_nan(element: Element) {
    check(&format!("cast of NaN {element:?}"), |case| {
        let x = case.bits(&[0x7f80_0001, 0xffff_ffff, 0x7fc0_0000, 0xff80_0001]);
        let x = Tensor { element: F32, ..x };
        let (narrow, back) = (case.output(1, 4, element), case.output(1, 4, F32));
        cast::cast(&mut case.rec, x, narrow);
        cast::cast(&mut case.rec, narrow, back);
        case.expect_words("back", back, |words| {
            assert!(words.iter().all(|&w| f32::from_bits(w).is_nan()), "a NaN became {words:x?}");
        });
    });
}

/// A range of columns equals the same columns in a tensor of their own, and the columns beside it are not touched.
#[test]
fn rms_norm_of_a_range_of_columns() {
    for (element, rows, range) in [(F32, 9u32, 8..20u32), (Bf16, 70, 4..136)] {
        check(&format!("rms_norm of columns {range:?} {element:?}"), |case| {
            let (first, cols) = (range.start, range.end - range.start);
            let (whole, w) = (case.input(rows, 160, element), case.input(1, cols, element));
            let inside = |values: &[f64]| columns(values, 160, first as usize..(first + cols) as usize);
            let x = inside(&whole.values);
            let (y, rstd) = (case.output(rows, cols, element), case.output(1, rows, F32));
            let (dy, gradient) = (case.input(rows, cols, element), case.input(rows, 160, element));
            let dw = case.input(1, cols, F32);
            let saved = RmsNormSaved { x: whole.tensor.columns(first, cols), w: w.tensor, rstd };
            let norm = RmsNorm::new(1e-5);
            rms_norm::rms_norm(&mut case.rec, saved.x, w.tensor, y, rstd, norm);
            rms_norm::rms_norm_backward_weight(&mut case.rec, &saved, norm, dy.tensor, dw.tensor);
            let into = gradient.tensor.columns(first, cols);
            rms_norm::rms_norm_backward(&mut case.rec, &saved, norm, dy.tensor, into, true);
            let width = cols as usize;
            case.expect(
                "y",
                y,
                reference::rms_norm::rms_norm(&x, &w.values, width, 1e-5),
                allowed(element, cols),
            );
            let (dx, want_dw) =
                reference::rms_norm::rms_norm_backward(&x, &w.values, &dy.values, width, 1e-5);
            let mut want = gradient.values.clone();
            for (row, dx) in want.chunks_mut(160).zip(dx.chunks(width)) {
                row[first as usize..][..width].iter_mut().zip(dx).for_each(|(sum, dx)| *sum += dx);
            }
            case.expect("gradient", gradient.tensor, want, allowed(element, cols));
            case.expect("dw", dw.tensor, sum(&dw.values, &want_dw), allowed(F32, rows));
        });
    }
}
