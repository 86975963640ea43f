//! Attention by cooperative matrices, tier `matrix`.

use super::parts::key_parts_in;
use super::{BASE, EVERYTHING, Row, Terms, backward, forward, largest};
use crate::lab::{allowed, check_matrices};
use crate::packed::split_qkv;
use ::reference::attention as reference;
use gristmill::element::Element::{Bf16, F16, F32};
use gristmill::kernels::{Capabilities, Matrices, Units};
use gristmill::ops::attention::{AttentionTensors, attention, attention_backward};

/// The most that rounding the weights w to f16 does to a sum Σ w x.
pub(super) struct Rounding {
    relative: f64,
    absolute: f64,
}

impl Rounding {
    /// To a sum whose terms w x have absolute values that add up to `size`, and in which no |x| exceeds `largest`.
    pub fn of(&self, size: f64, largest: f64) -> f64 {
        self.relative * size + self.absolute * largest
    }
}

/// By the standard model of rounding (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, sections 2.2 and
/// 3.1), for sums over `walked` rows:
///
/// - What matrices multiply is f16, and two significands of 11 bits make one of 22: products are exact in f32. Scores,
///   softmax and sums are f32, and `allowed` has them as on the other tiers. qkv, dout and out are f16 before, or bf16,
///   which becomes f16 exactly from 2^-29 of its tensor's largest on (`shaders/lib/half_scale.wgsl`; one of 10^8 normal
///   deviates is smaller). So a term w x meets one rounding to f16, that of its weight, which is p or ds; none meets
///   more.
/// - A weight from 2^-14 on, the smallest normal f16, becomes w (1 + δ). With 11 bits |δ| is at most 2^-11 to nearest,
///   and 2^-10 in either direction, which WGSL permits. So the sum is off by |δ| Σ |w x| at most.
/// - A smaller weight is off by half the spacing of subnormals, 2^-25, to nearest, and where an adapter makes zero of
///   it, as WGSL permits too, by up to 2^-14. Kernels store weights times 64 backward, and forward relative to a total
///   of which the largest is 2^7 or more. So the sum is off by a 64th of that for each row at most, times |x|. Of bf16
///   ds is stored in units of `unit_of_slopes` over that, which is a factor on this error.
///
/// Conversions to nearest are those of adapters that a test found to have them (`src/gpu/device/f16_probe.rs`).
pub(super) fn rounding(capabilities: Capabilities, walked: u32) -> Rounding {
    const GAIN: f64 = 64.0;
    let (relative, of_small) = match capabilities.native_f16 {
        true => (2f64.powi(-11), 2f64.powi(-25)),
        false => (2f64.powi(-10), 2f64.powi(-14)),
    };
    Rounding { relative, absolute: f64::from(walked) * of_small / GAIN }
}

/// What one 64th stands for where ds is stored, as attention/matrix/scales.wgsl says: 1 in f16. In bf16 |ds| is at most
/// V |dout| |v| (f + f), with f the factor of dropout and the largest elements of dout and of qkv. With each of these
/// rounded up to a power of two, GAIN times that becomes 2^16.
pub(super) fn unit_of_slopes(row: &Row, qkv: [&[f64]; 3], dout: &[f64]) -> f64 {
    const GAIN: f64 = 64.0;
    if row.element != Bf16 {
        return 1.0;
    }
    let above = |x: f64| 2f64.powf(x.log2().floor() + 1.0);
    let of_qkv = qkv.map(largest).into_iter().fold(0.0, f64::max);
    let factor = 1.0 / (1.0 - f64::from(row.dropout));
    let columns = f64::from(row.dims.1.next_power_of_two());
    GAIN * columns * above(largest(dout)) * above(of_qkv) * 2.0 * above(factor) / 2f64.powi(16)
}

/// Heads up to 4 matrices of 8 x 8 wide, whole and in part; blocks and tiles that end within a matrix, with one, and
/// after many; each mask and all of them; heads that share keys.
const BY_MATRICES: [Row; 20] = [
    BASE,
    Row { batch: 3, tokens: 1, dims: (4, 4), ..BASE },
    Row { tokens: 5, heads: (3, 1), dims: (12, 4), causal: false, ..BASE },
    Row { tokens: 31, heads: (5, 1), dims: (20, 32), ..BASE },
    Row { batch: 1, tokens: 64, heads: (4, 4), dims: (8, 16), ..BASE },
    Row { batch: 1, tokens: 65, heads: (1, 1), dims: (32, 12), causal: false, ..BASE },
    Row { batch: 1, tokens: 257, heads: (2, 1), dims: (24, 24), ..BASE },
    Row { tokens: 130, heads: (2, 1), dims: (8, 12), window: Some(7), ..BASE },
    Row { batch: 1, tokens: 257, heads: (1, 1), dims: (32, 8), window: Some(100), ..BASE },
    Row { tokens: 130, heads: (2, 1), dims: (12, 8), documents: &[1, 40, 3, 86], ..BASE },
    Row { tokens: 130, heads: (4, 2), dims: (8, 12), dropout: 0.25, ..BASE },
    Row { tokens: 35, heads: (2, 1), dims: (12, 4), causal: false, dropout: 0.5, ..BASE },
    Row { tokens: 131, heads: (6, 2), dims: (8, 12), alibi: true, ..BASE },
    EVERYTHING,
    Row { heads: (12, 4), dims: (32, 32), alibi: true, ..EVERYTHING },
    Row { batch: 1, tokens: 1000, heads: (1, 1), dims: (16, 16), ..BASE },
    Row { tokens: 130, heads: (4, 2), dims: (12, 20), soft_cap: Some(1.5), ..BASE },
    Row { soft_cap: Some(0.5), alibi: true, ..EVERYTHING },
    Row { tokens: 130, heads: (6, 2), dims: (8, 12), sinks: true, ..BASE },
    Row { sinks: true, ..EVERYTHING },
];

/// Heads up to 8 matrices of 8 x 8 wide.
const OF_WIDE_HEADS: [Row; 7] = [
    Row { batch: 1, tokens: 70, heads: (2, 1), dims: (64, 64), ..BASE },
    Row { batch: 1, tokens: 33, heads: (1, 1), dims: (36, 4), causal: false, ..BASE },
    Row { batch: 2, tokens: 1, heads: (2, 2), dims: (4, 60), ..BASE },
    Row { batch: 1, tokens: 131, heads: (2, 1), dims: (40, 36), window: Some(50), alibi: true, ..BASE },
    Row { batch: 1, tokens: 35, heads: (2, 2), dims: (12, 44), causal: false, dropout: 0.5, ..BASE },
    Row { heads: (4, 1), dims: (56, 48), ..EVERYTHING },
    Row { heads: (4, 1), dims: (56, 48), soft_cap: Some(1.5), ..EVERYTHING },
];

#[test]
fn attention_by_matrices() {
    by_matrices(&BY_MATRICES, &BY_MATRICES[3]);
}

#[test]
fn attention_of_wide_heads_by_matrices() {
    by_matrices(&OF_WIDE_HEADS, &OF_WIDE_HEADS[3]);
}

/// Each row in f16 and bf16 with the subgroups of llvmpipe or of most GPUs, and one with smaller and larger ones than
/// there are. Turns of strips are what only a driver with larger subgroups than a kernel is written for takes:
/// llvmpipe's 8 lanes make as many subgroups as there are strips.
fn by_matrices(rows: &[Row], one: &Row) {
    let of = |element| rows.iter().map(move |row| (Row { element, ..*row }, 8));
    let others = [4, 16, 32].map(|subgroup| (Row { element: F16, ..*one }, subgroup));
    for (row, subgroup) in of(F16).chain(of(Bf16)).chain(others) {
        let name = format!("attention {row} by matrices in subgroups of {subgroup}");
        check_matrices(
            &name,
            64,
            &|side| if side == 8 { subgroup } else { (4 * subgroup).min(64) },
            &|case| {
                let files = row.files(case.rec.capabilities());
                let of_passes = files.iter().filter(|file| file.starts_with("attention/matrix/"));
                assert_eq!(of_passes.count(), 3, "{row}");
                forward(case, &row, 1.0);
                backward(case, &row);
            },
        );
    }
}

/// Wider heads have none, and neither has f32.
#[test]
fn attention_is_by_matrices_where_they_fit() {
    let passes = |dims, element, side| {
        let row = Row { dims, element, ..BASE };
        let files = row.files(Capabilities::matrix().with_matrices(Matrices { side, subgroup: 32 }));
        files.into_iter().filter(|file| file.starts_with("attention/matrix")).count()
    };
    for (side, dims, count) in [
        (16, (64, 64), 3),
        (16, (4, 64), 3),
        (16, (68, 64), 3),
        (16, (64, 128), 3),
        (16, (128, 128), 3),
        (16, (132, 4), 0),
        (16, (192, 128), 0),
        (8, (32, 32), 3),
        (8, (32, 36), 3),
        (8, (64, 64), 3),
        (8, (64, 68), 0),
    ] {
        let of_elements = [F32, F16, Bf16].map(|element| passes(dims, element, side));
        assert_eq!(of_elements, [0, count, count], "{dims:?} by matrices of {side}");
    }
}

/// Several workgroups that share the queries of few heads of keys, on so many units.
#[test]
fn attention_by_matrices_with_parts_of_the_keys() {
    for (units, row) in [
        (8, Row { tokens: 257, heads: (12, 2), dims: (16, 12), ..BASE }),
        (32, Row { tokens: 257, heads: (6, 1), dims: (32, 32), causal: false, ..BASE }),
        (16, Row { tokens: 257, heads: (12, 2), window: None, documents: &[200, 57], ..EVERYTHING }),
        (64, Row { tokens: 513, heads: (12, 3), dims: (20, 32), alibi: true, ..BASE }),
        (32, Row { tokens: 257, heads: (6, 1), dims: (20, 12), element: Bf16, ..BASE }),
        (32, Row { tokens: 257, heads: (6, 1), dims: (40, 64), ..BASE }),
    ] {
        let element = if row.element == F32 { F16 } else { row.element };
        let row = Row { batch: 1, element, ..row };
        check_matrices(&format!("attention {row} in parts of keys"), units, &|side| side, &|case| {
            let recorded = row.recorded(case.rec.capabilities());
            assert!(key_parts_in(&recorded, &row) > 1, "{row} on {units} units");
            backward(case, &row);
        });
    }
    let llama = Row { batch: 1, tokens: 2048, heads: (32, 4), dims: (64, 64), element: F16, ..BASE };
    let wide = Row { batch: 4, heads: (32, 8), ..llama };
    for (row, units, parts) in [(llama, 132, 4), (llama, 96, 4), (wide, 132, 1)] {
        let capabilities = Capabilities::matrix().with_units(Units { count: units, ..Units::ASSUMED });
        assert_eq!(key_parts_in(&row.recorded(capabilities), &row), parts, "{row} on {units} units");
    }
}

/// Scores that rise along the keys: each tile exceeds the reference of those before it, and sums are multiplied again
/// and again.
#[test]
fn attention_by_matrices_with_rising_scores() {
    for (dims, element) in [((16, 16), F16), ((16, 32), F16), ((32, 64), F16), ((16, 32), Bf16)] {
        let row = Row { batch: 1, tokens: 200, heads: (1, 1), dims, element, ..BASE };
        check_matrices(&format!("attention {row} of rising scores"), 64, &|side| 4 * side, &|case| {
            let (layout, n) = (row.shape().layout, row.tokens);
            let cols = layout.cols() as usize;
            let mut values: Vec<f64> = (0..n as usize * cols).map(|_| case.normal()).collect();
            for (token, values) in values.chunks_mut(cols).enumerate() {
                values[0] = 4.0;
                values[layout.k_start() as usize] =
                    40.0 * (token as f64 / 200.0) * f64::from(row.dims.0).sqrt();
            }
            let qkv = case.input_of(&values, n, layout.cols(), element);
            let [q, k, v] = split_qkv(&qkv.values, &layout);
            let (out, lse) = (case.output(n, layout.out_cols(), element), case.output(n, 1, F32));
            attention(&mut case.rec, &AttentionTensors::new(qkv.tensor, out, lse), &row.shape());
            let (want, want_lse) = reference::attention(&q, &k, &v, &row.reference(&[], &[], None));
            let absolute: Vec<f64> = v.iter().map(|v| v.abs()).collect();
            let (sizes, _) = reference::attention(&q, &k, &absolute, &row.reference(&[], &[], None));
            let sizes = row.sizes(case, &want, &Terms { sizes, largest: largest(&v) });
            case.expect_terms("out", out, 0..layout.out_cols(), want, row.allowed(), sizes);
            case.expect("lse", lse, want_lse, allowed(F32, row.terms()));
        });
    }
}

/// Tensors of bf16 far beyond the range of f16, and far below.
#[test]
fn attention_by_matrices_at_every_scale() {
    for powers in [(-60, -100), (-60, 90), (50, -100), (50, 60), (0, -20), (3, 0)] {
        for row in [BASE, Row { tokens: 70, heads: (2, 1), dims: (12, 20), dropout: 0.6, ..BASE }] {
            let row = Row { powers, element: Bf16, ..row };
            check_matrices(&format!("attention {row} by matrices"), 64, &|side| side, &|case| {
                forward(case, &row, 1.0);
                backward(case, &row);
            });
        }
    }
}

/// One value that is not finite in qkv, or in dout, makes all results NaN that follow from the tensor: whoever tests
/// for overflow must see it, and conversions to f16 need not keep it.
#[test]
fn attention_by_matrices_of_what_is_not_finite() {
    for (value, is_of_qkv) in [f64::NAN, f64::INFINITY].into_iter().flat_map(|x| [(x, true), (x, false)]) {
        let row = Row { batch: 1, tokens: 37, heads: (2, 1), element: Bf16, ..BASE };
        check_matrices(
            &format!("attention {row} of {value} in qkv: {is_of_qkv}"),
            64,
            &|side| side,
            &|case| {
                let (layout, n) = (row.shape().layout, row.tokens);
                let mut tensor = |cols: u32, has_it: bool| {
                    let mut values: Vec<f64> = (0..n * cols).map(|_| case.normal()).collect();
                    values[100] = if has_it { value } else { values[100] };
                    case.input_of(&values, n, cols, Bf16).tensor
                };
                let (qkv, dout) = (tensor(layout.cols(), is_of_qkv), tensor(layout.out_cols(), !is_of_qkv));
                let (out, lse) = (case.output(n, layout.out_cols(), Bf16), case.output(n, 2, F32));
                let dqkv = case.output(n, layout.cols(), Bf16);
                let tensors = AttentionTensors::new(qkv, out, lse);
                attention(&mut case.rec, &tensors, &row.shape());
                attention_backward(&mut case.rec, &tensors, dout, dqkv, &row.shape());
                for tensor in [(is_of_qkv, out), (true, dqkv)]
                    .into_iter()
                    .filter_map(|(is_nan, of)| is_nan.then_some(of))
                {
                    case.expect_words("results", tensor, |words| {
                        let halves = words.iter().flat_map(|word| [word & 0xffff, word >> 16]);
                        // Before they are written, they are NaN of all ones.
                        let is_written = |half: u32| half & 0x7fff > 0x7f80 && half != 0xffff;
                        assert!(halves.into_iter().all(is_written), "a result that is not NaN");
                    });
                }
            },
        );
    }
}
