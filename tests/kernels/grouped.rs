//! Grouped products against the f64 reference: group sizes around those of tiles, empty groups, all rows in one group,
//! stacks in parts.

use crate::lab::{Bits, Case, Input, allowed, check, check_units, sum, tensors, values};
use ::reference::grouped_matmul as reference;
use gristmill::element::Element::{self, Bf16, F16, F32, Int8, Nf4};
use gristmill::ops::grouped_matmul::{
    grouped_matmul, grouped_matmul_backward, grouped_matmul_backward_weight,
};
use gristmill::ops::matmul::Epilogue;
use gristmill::ops::work_list::WorkList;

/// Rows of each expert: around tiles of 16 and 64 rows, a single expert, all rows on one expert, mostly empty experts.
const GROUPS: [&[u32]; 9] = [
    &[0, 1, 15, 16, 17],
    &[63, 0, 64, 65, 1],
    &[0, 0, 131, 0],
    &[97, 0, 0],
    &[1],
    &[33],
    &[1, 1, 1, 1, 1, 1, 1, 1],
    &[7, 0, 0, 0, 0, 0, 0, 0, 2, 31, 0],
    &[129, 127],
];

/// Rows and columns of an expert's matrix: 1, odd, one more than a tile.
const SHAPES: [(u32, u32); 4] = [(1, 1), (31, 33), (129, 7), (12, 257)];

/// The first row of each group, and the end of the last one.
pub fn starts(sizes: &[u32]) -> Vec<u32> {
    let mut sum = 0;
    let ends = sizes.iter().map(|size| {
        sum += size;
        sum
    });
    [0].into_iter().chain(ends).collect()
}

/// The operands of the three products of one case.
struct Problem {
    x: Input,
    dy: Input,
    /// The experts' matrices, in parts of whole experts.
    stack: Vec<Input>,
    /// The first row of each group, and the end.
    offsets: Vec<usize>,
    work: WorkList,
}

impl Problem {
    /// `parts` are the numbers of experts in each part of the stack.
    fn new(
        case: &mut Case,
        sizes: &[u32],
        (out, cols): (u32, u32),
        [element, weights]: [Element; 2],
        parts: &[u32],
    ) -> Self {
        let starts = starts(sizes);
        let rows = starts[sizes.len()];
        let (x, dy) = (case.input(rows, cols, element), case.input(rows, out, element));
        let stack = parts.iter().map(|&experts| case.input(experts * out, cols, weights)).collect();
        let offsets = case.integers(&starts);
        let work = WorkList::new(&mut case.rec, offsets, rows);
        Self { x, dy, stack, offsets: starts.iter().map(|&start| start as usize).collect(), work }
    }
}

fn check_all_three(sizes: &[u32], shape: (u32, u32), element: Element, parts: &[u32]) {
    check_with_weights(sizes, shape, [element; 2], parts);
}

fn check_with_weights(
    sizes: &[u32],
    (out, cols): (u32, u32),
    [element, weights]: [Element; 2],
    parts: &[u32],
) {
    check(&format!("grouped {sizes:?} {out}x{cols} {element:?} by {weights:?} in {parts:?}"), |case| {
        all_three(case, sizes, (out, cols), [element, weights], parts);
    });
}

pub fn all_three(
    case: &mut Case,
    sizes: &[u32],
    (out, cols): (u32, u32),
    [element, weights]: [Element; 2],
    parts: &[u32],
) {
    let problem = Problem::new(case, sizes, (out, cols), [element, weights], parts);
    let (stack, stack_parts, work) = (values(&problem.stack), tensors(&problem.stack), problem.work);
    let (x, dy) = (&problem.x, &problem.dy);
    let rows = x.tensor.rows;
    let (o, i) = (out as usize, cols as usize);
    let want = reference::grouped_matmul(&x.values, &stack, &problem.offsets, o, i);
    let (want_dx, want_dw) =
        reference::grouped_matmul_backward(&x.values, &stack, &problem.offsets, &dy.values, o, i);

    let y = case.output(rows, out, element);
    grouped_matmul(&mut case.rec, x.tensor, &stack_parts, &work, y, Epilogue::default());
    let allowed_y = case.allowed([element, weights], cols);
    case.expect("y", y, want.clone(), allowed_y);
    let more = case.input(rows, out, element);
    let add = Epilogue { accumulate: true, ..Default::default() };
    grouped_matmul(&mut case.rec, x.tensor, &stack_parts, &work, more.tensor, add);
    case.expect("y added", more.tensor, sum(&want, &more.values), allowed_y);

    let dx = case.output(rows, cols, element);
    grouped_matmul_backward(&mut case.rec, dy.tensor, &stack_parts, &work, dx, Epilogue::default());
    let allowed_dx = case.allowed([element, weights], out);
    case.expect("dx", dx, want_dx.clone(), allowed_dx);
    let more = case.input(rows, cols, element);
    grouped_matmul_backward(
        &mut case.rec,
        dy.tensor,
        &stack_parts,
        &work,
        more.tensor,
        Epilogue { accumulate: true, ..Default::default() },
    );
    case.expect("dx added", more.tensor, sum(&want_dx, &more.values), allowed_dx);

    let before: Vec<Input> = parts.iter().map(|&experts| case.input(experts * out, cols, F32)).collect();
    grouped_matmul_backward_weight(&mut case.rec, dy.tensor, x.tensor, &work, &tensors(&before));
    let mut first = 0;
    for (number, part) in before.iter().enumerate() {
        let added = &want_dw[first..first + part.values.len()];
        let want = sum(&part.values, added);
        case.expect(&format!("dw, part {number}"), part.tensor, want, allowed(F32, rows));
        first += part.values.len();
    }
}

#[test]
pub fn each_group_is_multiplied_by_its_expert_s_matrix() {
    for sizes in GROUPS {
        check_all_three(sizes, (31, 33), F32, &[sizes.len() as u32]);
    }
}

#[test]
fn odd_sizes() {
    for shape in SHAPES {
        check_all_three(&[5, 0, 33, 1], shape, F32, &[4]);
    }
}

#[test]
fn sixteen_bits() {
    for element in [F16, Bf16] {
        for sizes in [GROUPS[0], GROUPS[1], GROUPS[5]] {
            check_all_three(sizes, (31, 33), element, &[sizes.len() as u32]);
        }
        check_all_three(&[5, 0, 33, 1], (129, 7), element, &[4]);
    }
}

#[test]
fn quantised_experts() {
    for weights in [Nf4, Int8] {
        check_with_weights(&[5, 0, 33, 1], (31, 133), [F32, weights], &[4]);
        check_with_weights(&[15, 65, 0, 2, 3], (129, 65), [F16, weights], &[2, 3]);
        check_with_weights(&[1, 16, 7], (12, 257), [Bf16, weights], &[3]);
    }
}

#[test]
fn a_stack_in_parts_of_whole_experts() {
    for element in [F32, Bf16] {
        check_all_three(&[0, 1, 15, 16, 17], (31, 33), element, &[2, 3]);
        check_all_three(&[64, 0, 3, 70], (31, 33), element, &[1, 1, 1, 1]);
    }
}

/// From 512 rows per expert on, the tiles of the portable tier are 128 rows high, and with few units they are wide.
#[test]
fn many_rows() {
    check_all_three(&[700, 324], (33, 12), F32, &[2]);
    check_all_three(&[513], (129, 257), F32, &[1]); // several columns of tiles
    check_all_three(&[500, 431, 0, 700, 419], (12, 140), F32, &[2, 3]);
    for (sizes, shape) in [(&[513][..], (129, 257)), (&[500, 31, 0, 219, 9], (12, 140))] {
        check_units(&format!("grouped {sizes:?} {shape:?}"), 1, &|case| {
            all_three(case, sizes, shape, [F32; 2], &[sizes.len() as u32]);
        });
    }
}

/// On one unit, the portable tier uses large tiles for the weight gradients of many experts: here 2 x 3 for each of 11,
/// and 3 x 3, flat ones, where the second row of tiles would be nearly empty.
#[test]
fn large_gradients() {
    let (sizes, parts) = ([7, 0, 9, 1, 0, 3, 0, 0, 2, 31, 8], [4, 7]);
    for out in [193, 129] {
        check_units(&format!("grouped gradients of {out}x350"), 1, &|case| {
            all_three(case, &sizes, (out, 350), [F32; 2], &parts);
        });
    }
}

/// Compared with a loop on the host.
#[test]
fn the_work_list_has_every_tile_once() {
    let many: Vec<u32> = (0..130).map(|expert| expert % 5 * 9).collect();
    for sizes in GROUPS.into_iter().chain([&many[..], &[0, 0, 9]]) {
        check(&format!("work list {sizes:?}"), |case| {
            let starts = starts(sizes);
            let offsets = case.integers(&starts);
            let work = WorkList::new(&mut case.rec, offsets, starts[sizes.len()]);
            let height = work.tile_rows();
            let mut want = Vec::new();
            for (expert, pair) in starts.windows(2).enumerate() {
                for first in (pair[0]..pair[1]).step_by(height as usize) {
                    want.extend([expert as u32, first, pair[1].min(first + height), 0]);
                }
            }
            let count = want.len() as u32 / 4;
            assert!(count <= work.tile_bound(), "{count} tiles, bound {}", work.tile_bound());
            assert!(work.tile_bound() <= starts[sizes.len()] / height + sizes.len() as u32);
            let words = want.clone();
            case.expect_words("tiles", work.tiles, move |tiles| {
                assert_eq!(tiles[..words.len()], words, "the tiles in use");
            });
            case.expect_words("grids", work.grids, move |grids| {
                for (number, grid) in grids.chunks(4).enumerate() {
                    assert_eq!(grid, [number as u32 + 1, count, 1, 0], "grid {number}");
                }
            });
        });
    }
}

/// Rows after the last group, or all rows if every group is empty, are not written.
#[test]
fn rows_outside_the_groups_are_untouched() {
    const ROWS: u32 = 40;
    for (sizes, used) in [(&[0u32, 0, 0][..], 0), (&[3, 0, 18], 21)] {
        check(&format!("grouped {sizes:?} of {ROWS} rows"), |case| {
            let offsets = case.integers(&starts(sizes));
            let work = WorkList::new(&mut case.rec, offsets, ROWS);
            let (x, stack) = (case.input(ROWS, 8, F32), case.input(3 * 12, 8, F32));
            let y = case.output(ROWS, 12, F32);
            grouped_matmul(&mut case.rec, x.tensor, &[stack.tensor], &work, y, Epilogue::default());
            case.expect_words("y", y, move |words| {
                let (written, left) = words.split_at(used * 12);
                assert!(written.iter().all(|&word| word != u32::MAX), "a row of a group is not written");
                assert!(left.iter().all(|&word| word == u32::MAX), "a row outside the groups is written");
            });
            let (dy, gradient) = (case.input(ROWS, 12, F32), case.output(3 * 12, 8, F32));
            grouped_matmul_backward_weight(&mut case.rec, dy.tensor, x.tensor, &work, &[gradient]);
            // The gradient starts as NaN. Additions may change a NaN's bits; expert 1 has no rows, so its NaN keeps
            // them.
            case.expect_words("dw", gradient, move |words| {
                assert!(words[96..192].iter().all(|&word| word == u32::MAX), "expert 1 has no rows");
            });
        });
    }
}

/// An expert without rows keeps the bits of its gradient, and two runs of all products are bit-equal.
#[test]
fn empty_groups_are_untouched_and_runs_repeat() {
    for element in [F32, Bf16] {
        check(&format!("grouped, twice {element:?}"), |case| {
            let (out, cols, sizes) = (31, 20, [0, 40, 3, 0, 21]);
            let problem = Problem::new(case, &sizes, (out, cols), [element; 2], &[5]);
            let rows = problem.x.tensor.rows;
            let before: Vec<f64> = (0..5 * out * cols).map(|i| (i as f64).sin()).collect();
            let bits = Bits::default();
            for _ in 0..2 {
                let (y, dx) = (case.output(rows, out, element), case.output(rows, cols, element));
                let dw = case.input_of(&before, 5 * out, cols, F32);
                let (stack, work) = (tensors(&problem.stack), problem.work);
                grouped_matmul(&mut case.rec, problem.x.tensor, &stack, &work, y, Epilogue::default());
                grouped_matmul_backward(
                    &mut case.rec,
                    problem.dy.tensor,
                    &stack,
                    &work,
                    dx,
                    Epilogue::default(),
                );
                let (dy, x) = (problem.dy.tensor, problem.x.tensor);
                grouped_matmul_backward_weight(&mut case.rec, dy, x, &work, &[dw.tensor]);
                for (name, tensor) in [("y", y), ("dx", dx), ("dw", dw.tensor)] {
                    bits.expect(case, name, tensor);
                }
                let before = before.clone();
                case.expect_words("dw", dw.tensor, move |words| {
                    let matrix = (out * cols) as usize;
                    for expert in [0, 3] {
                        let range = expert * matrix..(expert + 1) * matrix;
                        let kept = before[range.clone()].iter().map(|&value| (value as f32).to_bits());
                        assert!(kept.eq(words[range].iter().copied()), "expert {expert} has no rows");
                    }
                });
            }
        });
    }
}
