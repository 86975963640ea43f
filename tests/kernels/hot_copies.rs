//! Copies of hot experts: which experts they are of, what they are filled with, and where their gradients go.

use crate::lab::{Case, allowed, check, sum};
use ::reference::hot_copies as reference;
use gristmill::element::Element::{self, F32};
use gristmill::ops::hot_copies::{HomeRange, Slots, hot_copies, hot_copies_backward};
use gristmill::ops::hot_experts::HotLast;
use gristmill::ops::permute::HotAndCold;
use gristmill::record::Tensor;
use std::ops::Range;

/// The stored capacities of experts of which those in `hot` are hot.
fn words(experts: usize, hot: &[usize], two: &HotAndCold) -> Vec<u32> {
    let word = |expert| if hot.contains(&expert) { two.hot_word() } else { two.cold_capacity };
    (0..experts).map(word).collect()
}

/// Some of `experts` experts, ascending.
fn some(case: &mut Case, experts: usize, hot: usize) -> Vec<usize> {
    let counts: Vec<usize> = case.ids_below(experts, 1000).into_iter().map(|count| count as usize).collect();
    ::reference::permute::hot_experts(&counts, hot)
}

#[test]
pub fn hot_experts_come_last_in_order() {
    for (experts, hot, cold_capacity) in [(2, 1, 3), (5, 4, 7), (8, 3, 7), (257, 31, 3), (512, 511, 3)] {
        check(&format!("{hot} of {experts} experts last, {cold_capacity} rows"), |case| {
            let two = HotAndCold { hot: hot as u32, capacity: 7, cold_capacity };
            let chosen = some(case, experts, hot);
            let stored = words(experts, &chosen, &two);
            assert_eq!(two.hot_among(&stored), chosen);
            let capacities = case.integers(&stored);
            let last = HotLast::new(&mut case.rec, capacities, &two);
            let want = reference::hot_last(experts, &chosen, 7, cold_capacity as usize);
            let wanted = [want.groups, want.cold_offsets, want.hot_offsets];
            let tensors = [last.groups, last.cold_offsets, last.hot_offsets];
            for ((name, tensor), want) in ["groups", "cold", "hot"].into_iter().zip(tensors).zip(wanted) {
                let want: Vec<u32> = want.into_iter().map(|word| word as u32).collect();
                case.expect_words(name, tensor, move |words| assert_eq!(words[..want.len()], want));
            }
        });
    }
}

/// Capacities without marks, as older checkpoints have where cold experts have as many rows.
#[test]
fn of_equal_capacities_the_first_are_hot() {
    check("equal capacities", |case| {
        let capacities = case.integers(&[7; 5]);
        let last =
            HotLast::new(&mut case.rec, capacities, &HotAndCold { hot: 2, capacity: 7, cold_capacity: 7 });
        case.expect_words("groups", last.groups, |words| assert_eq!(words[..5], [3, 4, 0, 1, 2]));
    });
}

const EXPERTS: usize = 7;
const OUT: u32 = 5;

/// Ranges of the experts' matrices that a rank has, in elements of a stack from `first` on.
struct Held {
    first: usize,
    count: usize,
    ranges: Vec<Range<u64>>,
}

fn held(matrix: u64) -> [Held; 4] {
    let all = |count: u64| 0..count * matrix;
    [
        Held { first: 0, count: 7, ranges: vec![all(7)] },
        Held { first: 2, count: 3, ranges: vec![all(3)] },
        // As ranks that share moments have them: borders within a matrix.
        Held { first: 3, count: 4, ranges: vec![0..64, 64..matrix + 128, 3 * matrix..4 * matrix] },
        Held { first: 6, count: 1, ranges: vec![] },
    ]
}

/// Every copy is the bits of its expert, in whatever type; what a rank does not have stays as it was.
#[test]
pub fn copies_are_those_of_the_hot_experts() {
    for element in [F32, Element::F16, Element::Bf16, Element::Nf4, Element::Int8] {
        let cols = if element.is_quantised() { 130 } else { 37 };
        let stride = u64::from(element.stride(cols));
        let matrix = u64::from(OUT) * stride;
        for (number, Held { first, count, ranges }) in held(matrix).into_iter().enumerate() {
            if element.is_quantised() && number == 2 {
                continue; // frozen: nobody has a part of it
            }
            check(&format!("copies in {}, held by rank {number}", element.name()), |case| {
                let two = HotAndCold { hot: 3, capacity: 8, cold_capacity: 8 };
                let hot = some(case, EXPERTS, 3);
                let capacities = case.integers(&words(EXPERTS, &hot, &two));
                let words_of = |elements: u64| (element.bytes_of(elements) / 4) as usize;
                let contents = case.ids_below(words_of(count as u64 * matrix), u32::MAX);
                let stack = case.integers(&contents);
                let typed =
                    |words: Tensor, rows: u32| Tensor::new(words.buffer, words.offset, rows, cols, element);
                let last = HotLast::new(&mut case.rec, capacities, &two);
                // In two tensors, as where a binding is too small.
                for slots in [0..2usize, 2..3] {
                    let before = case.ids_below(words_of(slots.len() as u64 * matrix), u32::MAX);
                    let copies = case.integers(&before);
                    let part = Slots {
                        matrices: typed(copies, slots.len() as u32 * OUT),
                        first: slots.start as u32,
                        count: slots.len() as u32,
                    };
                    let mut want = before.clone();
                    for range in &ranges {
                        let offset = stack.offset + element.bytes_of(range.start);
                        let elements = (range.end - range.start) as u32;
                        let home = HomeRange {
                            elements: Tensor::new(stack.buffer, offset, 1, elements, element),
                            start: range.start,
                            first_expert: first as u32,
                        };
                        hot_copies(&mut case.rec, &home, &last, &part);
                        let words = words_of(matrix);
                        for at in words_of(range.start)..words_of(range.end) {
                            let expert = first + at / words;
                            let slot = slots.clone().find(|&slot| hot[slot] == expert);
                            if let Some(slot) = slot {
                                want[(slot - slots.start) * words + at % words] = contents[at];
                            }
                        }
                    }
                    case.expect_words(&format!("slots {slots:?}"), copies, move |got| {
                        assert_eq!(got[..want.len()], want);
                    });
                }
            });
        }
    }
}

#[test]
pub fn gradients_of_copies_are_added_at_home() {
    let cols = 37;
    let stride = u64::from(F32.stride(cols));
    let matrix = u64::from(OUT) * stride;
    for (number, Held { first, count, ranges }) in held(matrix).into_iter().enumerate() {
        check(&format!("gradients of copies, held by rank {number}"), |case| {
            let two = HotAndCold { hot: 3, capacity: 8, cold_capacity: 2 };
            let hot = some(case, EXPERTS, 3);
            let capacities = case.integers(&words(EXPERTS, &hot, &two));
            // Flat, so that every element of a stack counts, padding included.
            let sums = case.input(1, 3 * matrix as u32, F32);
            let stack = case.input(1, (count as u64 * matrix) as u32, F32);
            let last = HotLast::new(&mut case.rec, capacities, &two);
            for (slot, slots) in [(0, 2), (2, 1)] {
                let offset = sums.tensor.offset + 4 * slot * matrix;
                let matrices = Tensor::new(sums.tensor.buffer, offset, slots * OUT, cols, F32);
                for range in &ranges {
                    let (offset, elements) = (stack.tensor.offset + 4 * range.start, range.end - range.start);
                    let home = HomeRange {
                        elements: Tensor::new(stack.tensor.buffer, offset, 1, elements as u32, F32),
                        start: range.start,
                        first_expert: first as u32,
                    };
                    let slots = Slots { matrices, first: slot as u32, count: slots };
                    hot_copies_backward(&mut case.rec, &slots, &last, &home);
                }
            }
            let added = reference::hot_copies_backward(&sums.values, &hot, EXPERTS, matrix as usize);
            let own = &added[first * matrix as usize..][..stack.values.len()];
            let is_held = |at: usize| ranges.iter().any(|range| range.contains(&(at as u64)));
            let own: Vec<f64> =
                own.iter().enumerate().map(|(at, value)| if is_held(at) { *value } else { 0.0 }).collect();
            case.expect("gradients", stack.tensor, sum(&stack.values, &own), allowed(F32, 1));
        });
    }
}
