//! Products of f16, bf16, split f32 and quantised weights by cooperative matrices against the f64 reference, on
//! adapters that have some: what the tests of every tier do not reach. Each tile ends past the edges of its result, and
//! sums past the end of a slice.

use crate::grouped::all_three;
use crate::lab::{Case, allowed, check_matrices};
use crate::matmul::{product, product_of};
use crate::packed::columns;
use crate::swiglu_products::{Gates, SILU, TANH, forward};
use gristmill::device::{Gpu, GpuOptions};
use gristmill::element::Element::{self, Bf16, F16, F32, Int8, Nf4};
use gristmill::kernels::{Capabilities, Tier};
use gristmill::ops::matmul::{Epilogue, Layout, Problem, matmul, plan};
use gristmill::ops::swiglu::gate_up_cols;

const ELEMENTS: [Element; 3] = [F16, Bf16, F32];
const LAYOUTS: [Layout; 3] = [Layout::Nt, Layout::Nn, Layout::Tn];

/// The types of both factors.
const FACTORS: [[Element; 2]; 9] = [
    [F16, F16],
    [Bf16, Bf16],
    [F32, F32],
    [F16, Nf4],
    [Bf16, Nf4],
    [F32, Nf4],
    [F16, Int8],
    [Bf16, Int8],
    [F32, Int8],
];

/// The layouts of products of these factors: quantised weights have no gradient.
fn layouts_of(factors: [Element; 2]) -> &'static [Layout] {
    if factors[1].is_quantised() { &LAYOUTS[..2] } else { &LAYOUTS }
}

#[test]
fn the_tier_is_for_adapters_with_matrices_and_software_does_not_choose_it() {
    let open = |options| pollster::block_on(Gpu::request(&options));
    let chosen = open(GpuOptions { tries_matrices: true, ..GpuOptions::default() }).expect("a device");
    let listed = &chosen.report().matrices;
    let has_matrices = listed.iter().any(|shape| [[8; 3], [16; 3]].contains(shape));
    let is_for_matrices = listed.contains(&[16; 3]) && !chosen.report().is_software;
    assert_eq!(chosen.capabilities().tier == Tier::Matrix, is_for_matrices, "{}", chosen.capabilities());
    match open(GpuOptions { tier: Some(Tier::Matrix), ..GpuOptions::default() }) {
        Ok(forced) => {
            assert!(has_matrices, "{}", forced.report().matrix_shapes());
            let Capabilities { tier, matrices, .. } = forced.capabilities();
            assert!(tier == Tier::Matrix && matrices.is_some(), "{}", forced.capabilities());
        }
        Err(error) => {
            assert!(!has_matrices, "{error}");
            let line = error.to_string();
            assert!(line.contains("cannot run tier matrix: it has ") && !line.contains('\n'), "{line}");
        }
    }
}

/// Every pair of one of each.
fn pairs<A: Copy, B: Copy, const N: usize, const M: usize>(
    a: [A; N],
    b: [B; M],
) -> impl Iterator<Item = (A, B)> {
    a.into_iter().flat_map(move |a| b.into_iter().map(move |b| (a, b)))
}

/// The subgroups with which each patch of the largest tile has one of its own.
fn enough_for_all(side: u32) -> u32 {
    if side == 8 { 8 } else { 32 }
}

/// Asserts that the plan has a tile of so many groups of 64 rows and columns, by matrices. Split f32 has others where the
/// largest would not fit in workgroup memory.
fn uses_tiles(case: &Case, element: Element, problem: Problem, [rows, columns]: [u32; 2]) {
    let kernel = plan(problem, element, case.rec.capabilities()).kernel;
    let has = |constant| kernel.constants().contains(&constant);
    let has_another = element == F32 && [rows, columns] == [2, 2];
    let has_tile = has_another || has(("TM4", rows)) && has(("TN4", columns));
    assert!(kernel.file == "matmul/matrix" && has_tile, "{problem:?}: the plan has another tile: {kernel}");
}

/// Sizes m, n, k, compute units, and the tile that they make the plan choose. The smallest is for groups of few rows
/// alone.
const TILES: [([u32; 3], u32, [u32; 2]); 4] = [
    ([70, 65, 95], 64, [2, 2]),
    ([33, 1000, 37], 1, [1, 2]),
    ([1000, 33, 37], 1, [2, 1]),
    ([200, 610, 70], 1, [2, 2]),
];

#[test]
pub fn tiles_of_every_size_and_layout() {
    for (([m, n, k], units, tile), factors) in pairs(TILES, FACTORS) {
        for &layout in layouts_of(factors) {
            let name = format!("{layout:?} {m}x{n}x{k} {factors:?} by matrices for {units} units");
            check_matrices(&name, units, &enough_for_all, &|case| {
                uses_tiles(case, factors[0], Problem { layout, m, n, k }, tile);
                let (a, b, want) = product_of(case, layout, (m, n, k), factors);
                let y = case.output(m, n, factors[0]);
                matmul(&mut case.rec, layout, a, b, y, Epilogue::default());
                let allowed = case.allowed(factors, k);
                case.expect("y", y, want, allowed);
            });
        }
    }
}

/// A driver may make subgroups smaller or larger than kernels are written for: then some take patches in turns, or have
/// none.
#[test]
fn subgroups_of_another_size() {
    let (m, n, k) = (200, 610, 70);
    for (subgroup, factors) in pairs([4, 16, 32, 64], FACTORS) {
        for &layout in layouts_of(factors) {
            let name = format!("{layout:?} {m}x{n}x{k} {factors:?} by matrices in subgroups of {subgroup}");
            check_matrices(&name, 1, &|side| subgroup.max(if side == 8 { 4 } else { 32 }), &|case| {
                let (a, b, want) = product_of(case, layout, (m, n, k), factors);
                let y = case.output(m, n, factors[0]);
                matmul(&mut case.rec, layout, a, b, y, Epilogue::default());
                let allowed = case.allowed(factors, k);
                case.expect("y", y, want, allowed);
            });
        }
    }
}

#[test]
fn bias_residual_and_previous_contents() {
    for (([m, n, k], units, tile), factors) in pairs([TILES[0], TILES[1]], FACTORS) {
        // A factor alone, and with everything that it may stand beside.
        for parts in (0..9).chain([15]) {
            let [has_bias, has_residual, accumulate, has_factor] = [1, 2, 4, 8].map(|part| parts & part != 0);
            let factor = has_factor.then_some(0.75f32);
            let name = format!("epilogue {parts} of {m}x{n}x{k} {factors:?} by matrices");
            check_matrices(&name, units, &enough_for_all, &|case| {
                uses_tiles(case, factors[0], Problem { layout: Layout::Nt, m, n, k }, tile);
                let (a, b, mut want) = product_of(case, Layout::Nt, (m, n, k), factors);
                let (bias, residual) = (case.input(1, n, factors[0]), case.input(m, n, factors[0]));
                let before = accumulate.then(|| case.input(m, n, factors[0]));
                let y = before.as_ref().map_or_else(|| case.output(m, n, factors[0]), |before| before.tensor);
                for (i, want) in want.iter_mut().enumerate() {
                    *want += if has_bias { bias.values[i % n as usize] } else { 0.0 };
                    *want *= f64::from(factor.unwrap_or(1.0));
                    *want += if has_residual { residual.values[i] } else { 0.0 };
                    *want += before.as_ref().map_or(0.0, |before| before.values[i]);
                }
                let bias = has_bias.then_some(bias.tensor);
                let residual = has_residual.then_some(residual.tensor);
                matmul(
                    &mut case.rec,
                    Layout::Nt,
                    a,
                    b,
                    y,
                    Epilogue { factor, bias, residual, accumulate, activated: None },
                );
                let allowed = case.allowed(factors, k);
                case.expect("y", y, want, allowed);
            });
        }
    }
}

#[test]
pub fn gate_beside_up_of_all_factors() {
    for factors in FACTORS {
        check_gated([70, 35, 95], factors, 64, &enough_for_all, Some([2, 2]), SILU);
        check_gated([70, 35, 95], factors, 64, &enough_for_all, Some([2, 2]), TANH);
    }
}

#[test]
fn gate_beside_up_in_tiles_of_every_size() {
    let sizes = [([200, 305, 70], [2, 2]), ([33, 500, 37], [1, 2]), ([1000, 30, 37], [2, 1])];
    for ((size, tile), factors) in pairs(sizes, [[Bf16, Nf4], [F16, F16], [F32, F32]]) {
        check_gated(size, factors, 1, &enough_for_all, Some(tile), SILU);
    }
}

/// Patches that take turns, and subgroups without one.
#[test]
fn gate_beside_up_in_subgroups_of_another_size() {
    for (subgroup, factors) in pairs([4, 64], [[F16, F16], [Bf16, Nf4], [F32, F32]]) {
        let subgroup = |side| subgroup.max(if side == 8 { 4 } else { 32 });
        check_gated([200, 305, 70], factors, 1, &subgroup, None, SILU);
    }
}

/// Checks a product through SwiGLU of these rows, columns of gate and k, by the `tile` that so many compute units make
/// the plan choose.
fn check_gated(
    [m, f, k]: [u32; 3],
    factors: [Element; 2],
    units: u32,
    subgroup: &dyn Fn(u32) -> u32,
    tile: Option<[u32; 2]>,
    gates: Gates,
) {
    let matrices = format!("matrices of 8 in subgroups of {} for {units} units", subgroup(8));
    check_matrices(
        &format!("{m}x{f}x{k} {factors:?} through {:?} by {matrices}", gates.0),
        units,
        subgroup,
        &|case| {
            if let Some(tile) = tile {
                uses_tiles(case, factors[0], Problem { layout: Layout::Nt, m, n: gate_up_cols(f), k }, tile);
            }
            forward(case, (m, f, k), factors, gates);
        },
    );
}

/// Gradients of parameters are f32, and added to those of other micro-batches.
#[test]
fn gradients_in_f32() {
    for (([m, n, k], units, tile), element) in pairs(TILES, ELEMENTS) {
        check_matrices(
            &format!("gradient of {m}x{n}x{k} {element:?} by matrices"),
            units,
            &enough_for_all,
            &|case| {
                uses_tiles(case, element, Problem { layout: Layout::Tn, m, n, k }, tile);
                let (a, b, mut want) = product(case, Layout::Tn, m, n, k, element);
                let y = case.input(m, n, F32);
                want.iter_mut().zip(&y.values).for_each(|(want, before)| *want += before);
                let epilogue = Epilogue { accumulate: true, ..Epilogue::default() };
                matmul(&mut case.rec, Layout::Tn, a, b, y.tensor, epilogue);
                case.expect("y", y.tensor, want, allowed(F32, k));
            },
        );
    }
}

/// Few tiles with long sums: parts of which the last ends within a group of 4.
#[test]
fn sums_in_parts() {
    for ((m, n, k), factors) in pairs([(70, 31, 1030), (5, 65, 2570)], FACTORS) {
        for &layout in layouts_of(factors) {
            let name = format!("{layout:?} {m}x{n}x{k} {factors:?} by matrices in parts");
            check_matrices(&name, 64, &enough_for_all, &|case| {
                let plan = plan(Problem { layout, m, n, k }, factors[0], case.rec.capabilities());
                assert!(plan.grid[2] > 1 && plan.kernel.file == "matmul/matrix", "{plan:?}");
                let (a, b, mut want) = product_of(case, layout, (m, n, k), factors);
                let residual = case.input(m, n, factors[0]);
                want.iter_mut().zip(&residual.values).for_each(|(want, residual)| *want += residual);
                let y = case.output(m, n, factors[0]);
                let epilogue = Epilogue { residual: Some(residual.tensor), ..Epilogue::default() };
                matmul(&mut case.rec, layout, a, b, y, epilogue);
                let allowed = case.allowed(factors, k);
                case.expect("y", y, want, allowed);
            });
        }
    }
}

#[test]
fn ranges_of_columns() {
    let (m, n, k) = (70, 64, 40);
    for element in ELEMENTS {
        check_matrices(&format!("ranges of wider {element:?} by matrices"), 64, &enough_for_all, &|case| {
            let (a, b, y) =
                (case.input(m, 64, element), case.input(n, k, element), case.input(m, 96, element));
            let part = columns(&a.values, 64, 8..48);
            let product = reference::matmul::matmul_nt(&part, &b.values, m as usize, n as usize, k as usize);
            let mut want = y.values.clone();
            for (row, sums) in want.chunks_mut(96).zip(product.chunks(n as usize)) {
                row[16..16 + n as usize].copy_from_slice(sums);
            }
            let (a, out) = (a.tensor.columns(8, k), y.tensor.columns(16, n));
            matmul(&mut case.rec, Layout::Nt, a, b.tensor, out, Epilogue::default());
            case.expect("y", y.tensor, want, allowed(element, k));
        });
    }
}

/// Rows of each expert, rows and columns of its matrix, experts of each part of the stack, and compute units.
type Groups = (&'static [u32], [u32; 2], &'static [u32], u32);

/// Groups around the tiles of every size, empty ones, and stacks in parts: forward, and both backward.
#[test]
pub fn grouped_products() {
    let cases: [Groups; 5] = [
        (&[63, 0, 64, 65, 1], [31, 33], &[5], 64),
        (&[7, 0, 0, 2, 31, 0], [65, 129], &[2, 4], 64),
        (&[513], [129, 257], &[1], 64),
        (&[500, 431, 0, 700, 419], [12, 140], &[2, 3], 64),
        (&[7, 0, 9, 1, 0, 3, 0, 0, 2, 31, 8], [193, 350], &[4, 7], 1),
    ];
    for ((sizes, [out, cols], parts, units), factors) in pairs(cases, FACTORS) {
        let name = format!("grouped {sizes:?} {out}x{cols} {factors:?} by matrices for {units} units");
        check_matrices(&name, units, &enough_for_all, &|case| {
            all_three(case, sizes, (out, cols), factors, parts);
        });
    }
}
