//! The largest magnitude of tensors of bf16 and f32, and products by matrices of tensors of any magnitude, which it
//! scales.

use crate::grouped::starts;
use crate::lab::{Case, allowed, check_matrices, check_tier};
use gristmill::element::Element::{self, Bf16, F16, F32, Int8, Nf4};
use gristmill::kernels::Tier;
use gristmill::ops::grouped_matmul::{grouped_matmul, grouped_matmul_backward_weight};
use gristmill::ops::largest::largest;
use gristmill::ops::matmul::{Epilogue, Layout, matmul};
use gristmill::ops::work_list::WorkList;
use gristmill::record::Tensor;

/// Expects the largest of the parts to be `want`, of f32 its upper half.
fn expect_largest(case: &mut Case, x: Tensor, offsets: Option<Tensor>, want: f32) {
    let parts = largest(&mut case.rec, x, offsets);
    case.expect_words("largest", parts, move |words| {
        let top = words.iter().max().expect("parts");
        assert_eq!(*top, want.to_bits() & 0xffff_0000, "{} instead of {want}", f32::from_bits(*top));
    });
}

/// Sizes that fill no turn, one, and several; the largest in the first and in the last place, positive and negative.
#[test]
fn the_largest_of_each_size() {
    for (rows, cols) in [(1, 1), (3, 5), (130, 257), (1031, 1030)] {
        for (place, value) in [(0, -1e30f64), (rows * cols - 1, 77.0), (rows * cols / 2, f64::NEG_INFINITY)] {
            for element in [Bf16, F32] {
                check_tier(
                    &format!("{rows} x {cols} {element:?}, {value} at {place}"),
                    Tier::Portable,
                    &|case| {
                        let mut values: Vec<f64> =
                            (0..rows * cols).map(|i| f64::from(i % 61) - 30.0).collect();
                        values[place as usize] = value;
                        let x = case.input_of(&values, rows, cols, element);
                        let want = x.values.iter().fold(0f64, |top, value| top.max(value.abs()));
                        expect_largest(case, x.tensor, None, want as f32);
                    },
                );
            }
        }
    }
}

/// A NaN is above infinity, and what lies beside a range of columns or behind the last row of experts does not count.
#[test]
fn the_largest_of_parts_of_tensors() {
    for element in [Bf16, F32] {
        check_tier(&format!("NaN {element:?}"), Tier::Portable, &|case| {
            let x = case.input_of(&[f64::INFINITY, 1.0, f64::NAN, 2.0], 2, 2, element);
            let parts = largest(&mut case.rec, x.tensor, None);
            case.expect_words("largest", parts, |words| assert!(*words.iter().max().unwrap() > 0x7f80_0000));
        });
    }
    let (rows, cols) = (70, 44);
    let values: Vec<f64> =
        (0..rows * cols).map(|i| if (8..28).contains(&(i % cols)) { 2.5 } else { 1e9 }).collect();
    for element in [Bf16, F32] {
        check_tier(&format!("columns of {element:?}"), Tier::Portable, &|case| {
            let x = case.input_of(&values, rows, cols, element);
            expect_largest(case, x.tensor.columns(8, 20), None, 2.5);
        });
    }
    for (used, element) in [(0, Bf16), (1, F32), (69, Bf16), (69, F32)] {
        check_tier(&format!("{used} rows of experts in {element:?}"), Tier::Portable, &|case| {
            let values: Vec<f64> =
                (0..rows * cols).map(|i| if i < used * cols { 3.0 } else { f64::NAN }).collect();
            let x = case.input_of(&values, rows, cols, element);
            let offsets = case.integers(&[0, used, used]);
            expect_largest(case, x.tensor, Some(offsets), if used == 0 { 0.0 } else { 3.0 });
        });
    }
}

/// The subgroups for which kernels are written.
fn subgroup(side: u32) -> u32 {
    if side == 8 { 8 } else { 32 }
}

/// The largest error of an operand whose tensor has the largest magnitude `largest`: `shaders/lib/half_scale.wgsl`.
fn operand_error(element: Element, value: f64, largest: f64) -> f64 {
    let exponent = largest.max(2f64.powi(-126)).log2().floor() as i32;
    let below = |power: i32| 2f64.powi((exponent - power).max(-126));
    match element {
        F32 if value.abs() < below(28) => value.abs() + below(39),
        F32 => value.abs() * 2f64.powi(-23) + below(39),
        _ => below(29),
    }
}

/// Every finite value of bf16 times a power of two: those that are within 29 binades of the largest are exact.
#[test]
fn every_value_at_several_scales() {
    for field in [254, 200, 142, 127, 90, 60, 16, 15, 1, 0] {
        let all = (0..0x8000u32).filter(|bits| bits >> 7 <= field);
        let values: Vec<f64> = all
            .flat_map(|bits| [bits, bits | 0x8000])
            .map(|bits| f64::from(f32::from_bits(bits << 16)))
            .collect();
        let power = 2f64.powi((127 - field as i32).clamp(-126, 126));
        check_matrices(&format!("values up to exponent {field}"), 64, &subgroup, &|case| {
            let m = values.len() as u32;
            let (a, b) = (case.input_of(&values, m, 1, Bf16), case.input_of(&[power], 1, 1, Bf16));
            let y = case.output(m, 1, F32);
            matmul(&mut case.rec, Layout::Nt, a.tensor, b.tensor, y, Epilogue::default());
            let top = a.values.iter().fold(0f64, |top, value| top.max(value.abs()));
            let error = operand_error(Bf16, 0.0, top);
            let errors = a.values.iter().map(|value| if value.abs() < error { error * power } else { 0.0 });
            let errors = errors.collect();
            let want = a.values.iter().map(|value| value * power).collect();
            case.expect_terms("y", y, 0..1, want, 1.0, errors);
        });
    }
}

/// Values of f32 in every binade, with significands that end in ones, between numbers of f16 and at random, times a
/// power of two: within 2^-23 of themselves, a last rounding, and what is below the range of the low terms.
#[test]
fn values_of_f32_at_several_scales() {
    for field in [254, 200, 127, 60, 1] {
        let power = 2f64.powi((127 - field as i32).clamp(-126, 126));
        check_matrices(&format!("values of f32 up to exponent {field}"), 64, &subgroup, &|case| {
            let mut values = Vec::new();
            for exponent in 0..=field {
                let random = [(); 6].map(|()| (case.normal().abs() * 1e6) as u32 & 0x7f_ffff);
                let ends = [0, 1, 0x7f_ffff, 0x0f_ffff, 0x1000, 0x0fff, 0x1001, 0x2fff];
                let bits = ends.into_iter().chain(random).map(|significand| exponent << 23 | significand);
                values.extend(bits.map(|bits| f64::from(f32::from_bits(bits))));
            }
            let m = values.len() as u32;
            let (a, b) = (case.input_of(&values, m, 1, F32), case.input_of(&[power], 1, 1, F32));
            let y = case.output(m, 1, F32);
            matmul(&mut case.rec, Layout::Nt, a.tensor, b.tensor, y, Epilogue::default());
            let top = a.values.iter().fold(0f64, |top, value| top.max(value.abs()));
            let rounding = 2f64.powi(-24);
            let error = |value: &f64| (operand_error(F32, *value, top) + value.abs() * rounding) * power;
            let errors = a.values.iter().map(error).collect();
            let want = a.values.iter().map(|value| value * power).collect();
            case.expect_terms("y", y, 0..1, want, 1.0, errors);
        });
    }
}

/// The errors of products of f32 are at most four times those of sums in f32 with fused multiply-adds, as root mean
/// squares. Three times is expected of a single product and less of longer sums, whose own roundings grow.
#[test]
fn products_of_f32_err_nearly_as_f32_does() {
    for k in [1u32, 3, 16, 95, 1030] {
        let (m, n) = (70, 65);
        check_matrices(&format!("errors of {k} products"), 64, &subgroup, &|case| {
            let (a, b) = (case.input(m, k, F32), case.input(n, k, F32));
            let mut squares = 0.0;
            let mut want = Vec::new();
            for (row, column) in (0..m).flat_map(|row| (0..n).map(move |column| (row, column))) {
                let (mut exact, mut rounded) = (0f64, 0f32);
                for step in 0..k {
                    let (a, b) =
                        (a.values[(row * k + step) as usize], b.values[(column * k + step) as usize]);
                    exact += a * b;
                    rounded = (a as f32).mul_add(b as f32, rounded);
                }
                squares += (f64::from(rounded) - exact).powi(2);
                want.push(exact);
            }
            let y = case.output(m, n, F32);
            matmul(&mut case.rec, Layout::Nt, a.tensor, b.tensor, y, Epilogue::default());
            let stride = y.stride as usize;
            case.expect_words("y", y, move |words| {
                let rows = words.chunks(stride).zip(want.chunks(n as usize));
                let pairs = rows.flat_map(|(row, want)| row.iter().zip(want));
                let of_terms: f64 =
                    pairs.map(|(word, want)| (f64::from(f32::from_bits(*word)) - want).powi(2)).sum();
                let ratio = (of_terms / squares).sqrt();
                println!("errors of {k} products: {ratio:.2} times those of f32");
                assert!(ratio <= 4.0, "the errors are {ratio} times those of f32");
            });
        });
    }
}

/// Values over 120 binades, in tensors of large, ordinary and small values. Each result is within the sum of what the
/// operands' errors and roundings of an f32 sum in any order can amount to.
#[test]
fn products_of_any_magnitude() {
    let scales = [[0, 0], [60, -60], [-50, 70], [-40, -40]];
    for ([of_a, of_b], element) in scales.into_iter().flat_map(|of| [(of, Bf16), (of, F32)]) {
        for layout in [Layout::Nt, Layout::Nn, Layout::Tn] {
            let (m, n, k) = (70, 65, 95);
            let name = format!("{layout:?}, {element:?}, 2^{of_a} by 2^{of_b}");
            check_matrices(&name, 64, &subgroup, &|case| {
                let mut factor = |rows: u32, cols: u32, power: i32| {
                    let value = |i| case.normal() * 2f64.powi(power - (i * 7 % 121) as i32 / 2);
                    let values: Vec<f64> = (0..rows * cols).map(value).collect();
                    case.input_of(&values, rows, cols, element)
                };
                let a = if layout == Layout::Tn { factor(k, m, of_a) } else { factor(m, k, of_a) };
                let b = if layout == Layout::Nt { factor(n, k, of_b) } else { factor(k, n, of_b) };
                let a_at = |row: u32, step: u32| match layout {
                    Layout::Tn => a.values[(step * m + row) as usize],
                    _ => a.values[(row * k + step) as usize],
                };
                let b_at = |step: u32, column: u32| match layout {
                    Layout::Nt => b.values[(column * k + step) as usize],
                    _ => b.values[(step * n + column) as usize],
                };
                let [a_top, b_top] =
                    [&a, &b].map(|x| x.values.iter().fold(0f64, |top, value| top.max(value.abs())));
                // Of two terms the low ones' product is left out; twice as many others are 2^-11 as large, and added
                // last.
                let rounding = f64::from(k + 2) * 2f64.powi(-24);
                let rounding = if element == F32 { 1.01 * rounding + 5.0 * 2f64.powi(-24) } else { rounding };
                let (mut want, mut errors) = (Vec::new(), Vec::new());
                for (row, column) in (0..m).flat_map(|row| (0..n).map(move |column| (row, column))) {
                    let (mut sum, mut error) = (0.0, 0.0);
                    for (a, b) in (0..k).map(|step| (a_at(row, step), b_at(step, column))) {
                        sum += a * b;
                        error += rounding * (a * b).abs();
                        let a_error = operand_error(element, a, a_top);
                        let b_error = operand_error(element, b, b_top);
                        error += a_error * b.abs() + a.abs() * b_error + a_error * b_error;
                    }
                    want.push(sum);
                    errors.push(error);
                }
                let y = case.output(m, n, F32);
                matmul(&mut case.rec, layout, a.tensor, b.tensor, y, Epilogue::default());
                case.expect_terms("y", y, 0..n, want, 1.0, errors);
            });
        }
    }
}

/// Quantised weights over 40 binades, each alone in a sum. Matrices take them to 11 bits of significand, so within
/// 2^-11 of themselves (with activations of f32 in two terms), and where f16 has fewer bits within 2^-29 of a power of
/// two: that of the largest weight that the scales allow, which for int8 is of code 128. The largest in each block has
/// 24 bits that f16 would round up to the next power of two.
#[test]
fn quantised_weights_of_any_magnitude() {
    for (weights, element, top) in [
        (Nf4, Bf16, -60),
        (Nf4, F16, 0),
        (Nf4, Bf16, 60),
        (Nf4, F32, -60),
        (Nf4, F32, 60),
        (Int8, Bf16, 20),
        (Int8, F16, 0),
        (Int8, F32, 20),
    ] {
        for layout in [Layout::Nt, Layout::Nn] {
            let (n, k) = (150, 70);
            check_matrices(
                &format!("{layout:?} {element:?} by {weights:?} up to 2^{top}"),
                64,
                &subgroup,
                &|case| {
                    let [rows, cols] = if layout == Layout::Nt { [n, k] } else { [k, n] };
                    let value = |i: u32| {
                        let (row, column) = (i / cols, i % cols);
                        let scale = (2.0 - 2f64.powi(-23)) * 2f64.powi(top - (row * 40 / rows) as i32);
                        let part = if column % 32 == row % 32 {
                            1.0
                        } else {
                            (case.normal() / 3.0).clamp(-1.0, 1.0)
                        };
                        part * scale
                    };
                    let values: Vec<f64> = (0..rows * cols).map(value).collect();
                    let b = case.input_of(&values, rows, cols, weights);
                    let one: Vec<f64> = (0..k * k).map(|i| f64::from(i / k == i % k)).collect();
                    let a = case.input_of(&one, k, k, element);
                    let y = case.output(k, n, F32);
                    matmul(&mut case.rec, layout, a.tensor, b.tensor, y, Epilogue::default());
                    let want: Vec<f64> = match layout {
                        Layout::Nt => (0..k * n).map(|i| b.values[(i % n * k + i / n) as usize]).collect(),
                        _ => b.values,
                    };
                    let top = want.iter().fold(0f64, |top, value| top.max(value.abs()));
                    let rounding = 2f64.powi(if element == F32 { -24 } else { -11 });
                    let error = |value: &f64| {
                        value.abs() * rounding + operand_error(element, *value, top * 128.0 / 127.0)
                    };
                    let errors = want.iter().map(error).collect();
                    case.expect_terms("y", y, 0..n, want, 1.0, errors);
                },
            );
        }
    }
}

/// One value that is not finite, in either factor, makes all results NaN: whatever a test for overflow reads, it sees.
#[test]
fn what_is_not_finite_is_seen() {
    let (m, n, k) = (70, 12, 33);
    for value in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
        for (is_in_a, [factor, weights, element]) in [
            (true, [Bf16, Bf16, Bf16]),
            (false, [Bf16, Bf16, Bf16]),
            (true, [Bf16, Bf16, F32]),
            (true, [Bf16, Nf4, Bf16]),
            (false, [Bf16, Nf4, Bf16]),
            (false, [Bf16, Int8, F32]),
            (true, [F32, F32, F32]),
            (false, [F32, F32, F32]),
            (true, [F32, Nf4, F32]),
            (false, [F32, Int8, F32]),
        ] {
            let name = format!("{value} in a: {is_in_a}, {factor:?} by {weights:?} to {element:?}");
            check_matrices(&name, 64, &subgroup, &|case| {
                let mut a: Vec<f64> = (0..m * k).map(|i| f64::from(i % 7)).collect();
                let mut b = vec![0.0; (n * k) as usize];
                if is_in_a {
                    a[1000] = value
                } else {
                    b[200] = value
                }
                let (a, b) = (case.input_of(&a, m, k, factor), case.input_of(&b, n, k, weights));
                let y = case.output(m, n, element);
                matmul(&mut case.rec, Layout::Nt, a.tensor, b.tensor, y, Epilogue::default());
                let halves = if element == F32 { 1 } else { 2 };
                case.expect_words("y", y, move |words| {
                    assert_eq!(words.len() as u32, m * n / halves);
                    let is_nan =
                        |word: &u32| f32::from_bits(*word).is_nan() && f32::from_bits(word << 16).is_nan();
                    assert!(words.iter().all(|word| match halves {
                        1 => f32::from_bits(*word).is_nan(),
                        _ => is_nan(word),
                    }));
                });
            });
        }
    }
}

/// Rows behind those of the last expert hold anything, and are neither measured nor multiplied.
#[test]
fn rows_of_no_expert() {
    let (sizes, rows, out, cols) = ([3, 0, 70], 100, 12, 20);
    for element in [Bf16, F32] {
        check_matrices(&format!("rows of no expert in {element:?}"), 64, &subgroup, &|case| {
            let offsets = starts(&sizes);
            let used = offsets[sizes.len()];
            let mut rows_of = |cols: u32| {
                let value = |i| if i < used * cols { case.normal() } else { f64::NAN };
                let values: Vec<f64> = (0..rows * cols).map(value).collect();
                case.input_of(&values, rows, cols, element)
            };
            let (x, dy) = (rows_of(cols), rows_of(out));
            let stack = case.input(3 * out, cols, element);
            let at: Vec<usize> = offsets.iter().map(|&start| start as usize).collect();
            let starts = case.integers(&offsets);
            let work = WorkList::new(&mut case.rec, starts, rows);
            let [x_used, dy_used] =
                [(&x, cols), (&dy, out)].map(|(x, cols)| &x.values[..(used * cols) as usize]);
            let (o, i) = (out as usize, cols as usize);
            let want = reference::grouped_matmul::grouped_matmul(x_used, &stack.values, &at, o, i);
            let (_, want_dw) =
                reference::grouped_matmul::grouped_matmul_backward(x_used, &stack.values, &at, dy_used, o, i);
            let y = case.output(rows, out, element);
            grouped_matmul(&mut case.rec, x.tensor, &[stack.tensor], &work, y, Epilogue::default());
            case.expect("y", y.rows(0, used), want, allowed(element, cols));
            let dw = case.input_of(&vec![0.0; (3 * out * cols) as usize], 3 * out, cols, F32);
            grouped_matmul_backward_weight(&mut case.rec, dy.tensor, x.tensor, &work, &[dw.tensor]);
            case.expect("dw", dw.tensor, want_dw, allowed(F32, used));
        });
    }
}
