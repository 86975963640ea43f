//! The row that each choice of a token gets: the device's counting sort against the reference, and its properties.
//!
//! Rows are within capacity, in order, and the same in every run; ties go to the lower index.

use crate::lab::{Case, check};
use ::reference::permute as reference;
use gristmill::element::Element::U32;
use gristmill::ops::hot_experts::{HotLast, HotSteps, hot_experts};
use gristmill::ops::permute::{
    DropOrder, HotAndCold, NONE, Placement, PlacementConfig, RowAllocation, Slots, capacity_slots, place,
    place_hot_last,
};
use gristmill::ops::step_state::StepState;
use gristmill::record::Tensor;
use proptest::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;

/// The contents of a [`Placement`].
#[derive(Clone, Debug, Default, PartialEq)]
struct Placed {
    counts: Vec<u32>,
    offsets: Vec<u32>,
    places: Vec<u32>,
    sources: Vec<u32>,
}

/// Places `ids` and lets `look` check the result.
fn expect_placed(
    case: &mut Case,
    routes: &PlacementConfig,
    ids: &[u32],
    capacities: Option<&[u32]>,
    look: impl Fn(&Placed) + 'static,
) -> Placement {
    let (ids, capacities) = (case.integers(ids), capacities.map(|capacities| case.integers(capacities)));
    let placement = place(&mut case.rec, routes, ids, capacities);
    expect_contents(case, &placement, look);
    placement
}

/// Lets `look` check what is in a placement.
fn expect_contents(case: &mut Case, placement: &Placement, look: impl Fn(&Placed) + 'static) {
    let placed = Rc::new(RefCell::new(Placed::default()));
    let part = |case: &mut Case, tensor: Tensor, name: &str, keep: fn(&mut Placed, Vec<u32>)| {
        let placed = placed.clone();
        case.expect_words(name, tensor, move |words| {
            keep(&mut placed.borrow_mut(), words[..tensor.cols as usize].to_vec());
        });
    };
    part(case, placement.counts, "counts", |placed, words| placed.counts = words);
    part(case, placement.offsets, "offsets", |placed, words| placed.offsets = words);
    part(case, placement.places, "places", |placed, words| placed.places = words);
    part(case, placement.sources, "sources", |placed, words| placed.sources = words);
    case.expect_words("all", placement.counts, move |_| look(&placed.borrow()));
}

/// The reference's allocation for `routes`, whose experts have these `capacities` unless they are dropless.
pub fn reference_rule(routes: &PlacementConfig, capacities: &[u32]) -> reference::RowAllocation {
    match routes.allocation {
        RowAllocation::Dropless { safe_tokens } => {
            reference::RowAllocation::Dropless { extra: usize::from(safe_tokens) }
        }
        RowAllocation::Capacity { order, .. } => reference::RowAllocation::Capacity {
            capacities: capacities.iter().map(|&capacity| capacity as usize).collect(),
            by_choice: order == DropOrder::Choice,
        },
    }
}

fn reference_of(routes: &PlacementConfig, ids: &[u32], capacities: Option<&[u32]>) -> Placed {
    let capacities = match routes.allocation {
        RowAllocation::Dropless { .. } => vec![],
        RowAllocation::Capacity { slots: Slots::Equal(capacity), .. } => {
            vec![capacity; routes.experts as usize]
        }
        RowAllocation::Capacity { .. } => capacities.expect("capacities").to_vec(),
    };
    let allocation = reference_rule(routes, &capacities);
    let ids: Vec<usize> = ids.iter().map(|&id| id as usize).collect();
    let placed = reference::place(&ids, routes.chosen as usize, routes.experts as usize, &allocation);
    let words = |values: &[usize]| values.iter().map(|&v| v as u32).collect();
    let options = |values: &[Option<usize>]| values.iter().map(|v| v.map_or(NONE, |v| v as u32)).collect();
    Placed {
        counts: words(&placed.counts),
        offsets: words(&placed.offsets),
        places: options(&placed.places),
        sources: options(&placed.sources),
    }
}

/// The distribution of choices.
#[derive(Clone, Copy, Debug)]
enum Choices {
    /// k different experts.
    Random,
    /// k different experts with even indices as far as possible, so that the others have empty groups.
    Even,
    /// The same k neighbouring experts for all tokens, so that the others have empty groups.
    Same,
}

fn choose(case: &mut Case, choices: Choices, tokens: u32, chosen: u32, experts: u32) -> Vec<u32> {
    let mut ids = Vec::new();
    for _ in 0..tokens {
        let mut mine = match choices {
            Choices::Random => case.ids_below(1, experts),
            Choices::Even => case.ids_below(1, experts).iter().map(|id| id / 2 * 2).collect(),
            Choices::Same => vec![experts / 2],
        };
        let step = if matches!(choices, Choices::Even) && experts >= 2 * chosen { 2 } else { 1 };
        while mine.len() < chosen as usize {
            let mut next = mine[mine.len() - 1];
            while mine.contains(&next) {
                next = (next + step) % experts.next_multiple_of(step);
            }
            mine.push(next.min(experts - 1));
        }
        ids.extend(mine);
    }
    ids
}

/// Every allocation, with capacities that drop choices.
fn allocations(tokens: u32, chosen: u32, experts: u32) -> Vec<RowAllocation> {
    let capacity = capacity_slots(chosen, tokens, 0.9, experts, 1);
    let two = HotAndCold::new(experts.div_ceil(3), capacity + 1, 0.5);
    let mut allocations = [false, true].map(|safe_tokens| RowAllocation::Dropless { safe_tokens }).to_vec();
    for order in [DropOrder::Choice, DropOrder::Token] {
        for slots in [Slots::Equal(capacity), Slots::Equal(tokens), Slots::Equal(1), Slots::HotAndCold(two)] {
            allocations.push(RowAllocation::Capacity { slots, order });
        }
    }
    allocations
}

/// The capacities of hot and cold experts, of which the last ones are hot.
fn capacities_of(routes: &PlacementConfig) -> Option<Vec<u32>> {
    let RowAllocation::Capacity { slots: Slots::HotAndCold(two), .. } = routes.allocation else {
        return None;
    };
    Some(two.initial(routes.experts).into_iter().rev().collect())
}

#[test]
pub fn placements_are_those_of_the_reference() {
    let shapes = [(1, 1, 1), (31, 1, 1), (1, 16, 16), (257, 2, 8), (33, 4, 4), (1024, 2, 8), (257, 16, 512)];
    for (tokens, chosen, experts) in shapes {
        for allocation in allocations(tokens, chosen, experts) {
            for choices in [Choices::Random, Choices::Even, Choices::Same] {
                let routes = PlacementConfig { tokens, chosen, experts, allocation };
                check(&format!("place {routes:?} {choices:?}"), |case| {
                    let (ids, capacities) =
                        (choose(case, choices, tokens, chosen, experts), capacities_of(&routes));
                    let want = reference_of(&routes, &ids, capacities.as_deref());
                    assert_eq!(
                        want.sources.len(),
                        routes.rows() as usize,
                        "the recording has another number of rows"
                    );
                    expect_placed(case, &routes, &ids, capacities.as_deref(), move |placed| {
                        assert!(*placed == want, "{placed:?}\ninstead of\n{want:?}");
                    });
                });
            }
        }
    }
}

/// The rows of cold experts, then those of hot ones: as if experts stood in that order.
#[test]
pub fn hot_experts_are_placed_last() {
    let shapes =
        [(1, 1, 2, 1), (31, 1, 5, 4), (33, 4, 4, 3), (257, 2, 8, 3), (1024, 2, 9, 1), (257, 16, 512, 100)];
    for (tokens, chosen, experts, hot) in shapes {
        for (order, share) in [(DropOrder::Choice, 0.5), (DropOrder::Token, 1.0)] {
            let capacity = capacity_slots(chosen, tokens, 0.9, experts, 1);
            let two = HotAndCold::new(hot, capacity + 1, share);
            let allocation = RowAllocation::Capacity { slots: Slots::HotAndCold(two), order };
            let routes = PlacementConfig { tokens, chosen, experts, allocation };
            check(&format!("hot last {routes:?}"), |case| {
                let ids = choose(case, Choices::Random, tokens, chosen, experts);
                let counts: Vec<usize> =
                    case.ids_below(experts as usize, 99).into_iter().map(|count| count as usize).collect();
                let of_hot = reference::hot_experts(&counts, hot as usize);
                let is_hot = |expert: u32| of_hot.contains(&(expert as usize));
                let words: Vec<u32> = (0..experts)
                    .map(|e| if is_hot(e) { two.hot_word() } else { two.cold_capacity })
                    .collect();
                let sizes = [two.capacity, two.cold_capacity].map(|rows| rows as usize);
                let last = ::reference::hot_copies::hot_last(experts as usize, &of_hot, sizes[0], sizes[1]);
                let by_place: Vec<u32> = ids.iter().map(|&id| last.groups[id as usize] as u32).collect();
                let rows: Vec<u32> = (0..experts)
                    .map(|place| if place < experts - hot { two.cold_capacity } else { two.capacity })
                    .collect();
                let mut want = reference_of(&routes, &by_place, Some(&rows));
                want.counts = last.groups.iter().map(|&place| want.counts[place]).collect();
                let (ids, capacities) = (case.integers(&ids), case.integers(&words));
                let last = HotLast::new(&mut case.rec, capacities, &two);
                let placement = place_hot_last(&mut case.rec, &routes, ids, &last);
                expect_contents(case, &placement, move |placed| {
                    assert!(*placed == want, "{placed:?}\ninstead of\n{want:?}");
                });
            });
        }
    }
}

/// Where all experts have as many rows a bit says who is hot, which counts no rows.
#[test]
fn who_is_hot_is_seen_where_capacities_are_equal() {
    let two = HotAndCold::new(1, 2, 1.0);
    assert_eq!((two.cold_capacity, two.initial(3)[1..].to_vec()), (2, vec![2, 2]));
    let allocation = RowAllocation::Capacity { slots: Slots::HotAndCold(two), order: DropOrder::Token };
    let routes = PlacementConfig { tokens: 5, chosen: 1, experts: 3, allocation };
    check("hot of equal capacities", |case| {
        let (state, counts) =
            (case.state(StepState { step: 1, ..StepState::default() }), case.integers(&[0, 3, 2]));
        let capacities = case.integers(&two.initial(3));
        let steps = HotSteps { update_step: 1, checkpoint_step: None };
        hot_experts(&mut case.rec, counts, state, capacities, &two, &steps);
        let ids = case.integers(&[1, 2, 1, 2, 1]);
        let placement = place(&mut case.rec, &routes, ids, Some(capacities));
        expect_contents(case, &placement, |placed| {
            assert_eq!(placed.offsets, [0, 2, 4, 6]);
            assert_eq!(placed.places, [2, 4, 3, 5, NONE]);
        });
        case.expect_words("capacities", capacities, move |words| {
            assert_eq!(words[..3], [2, two.hot_word(), 2]);
            assert_eq!(two.hot_among(&words[..3]), [1]);
        });
    });
}

/// The properties of any correct placement.
fn assert_properties(routes: &PlacementConfig, ids: &[u32], capacities: Option<&[u32]>, placed: &Placed) {
    let Placed { counts, offsets, places, sources } = placed;
    let experts = routes.experts as usize;
    assert_eq!((offsets[0], offsets[experts]), (0, routes.rows()));
    assert_eq!(counts.iter().sum::<u32>(), routes.choices());
    let position = |choice: u32| match routes.order() {
        DropOrder::Token => choice,
        DropOrder::Choice => choice % routes.chosen * routes.tokens + choice / routes.chosen,
    };
    for expert in 0..experts {
        let mine = &sources[offsets[expert] as usize..offsets[expert + 1] as usize];
        let filled = mine.iter().take_while(|&&source| source != NONE).count();
        assert!(
            mine[filled..].iter().all(|&source| source == NONE),
            "an empty row is followed by a filled one"
        );
        let claimed = &mine[..filled];
        assert!(claimed.windows(2).all(|two| position(two[0]) < position(two[1])), "not stable");
        assert!(claimed.iter().all(|&choice| ids[choice as usize] as usize == expert));
        let count = counts[expert] as usize;
        match routes.allocation {
            RowAllocation::Dropless { safe_tokens } => {
                assert_eq!((filled, mine.len()), (count, count + usize::from(safe_tokens)));
            }
            RowAllocation::Capacity { slots, .. } => {
                let capacity = match slots {
                    Slots::Equal(capacity) => capacity,
                    Slots::HotAndCold(_) => capacities.expect("capacities")[expert],
                };
                assert_eq!((filled, mine.len()), (count.min(capacity as usize), capacity as usize));
            }
        }
        // Kept choices come before dropped ones.
        if let Some(last) = claimed.last().filter(|_| filled < count) {
            let dropped = (0..ids.len() as u32)
                .filter(|&choice| ids[choice as usize] as usize == expert && places[choice as usize] == NONE);
            assert!(dropped.into_iter().all(|choice| position(choice) > position(*last)));
        }
    }
    for (choice, &row) in places.iter().enumerate().filter(|(_, row)| **row != NONE) {
        assert_eq!(sources[row as usize], choice as u32, "places and sources are not inverse");
    }
    let claimed = sources.iter().filter(|&&source| source != NONE).count();
    assert_eq!(claimed, places.iter().filter(|&&row| row != NONE).count());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn places_and_sources_are_inverse_stable_and_within_capacity(
        tokens in 1u32..300, experts in 1u32..40, wanted in 1u32..=16, allocation in 0usize..10, seed in 0u32..1000,
    ) {
        let chosen = wanted.min(experts);
        let allocation = allocations(tokens, chosen, experts)[allocation];
        let routes = PlacementConfig { tokens, chosen, experts, allocation };
        check(&format!("place {routes:?}"), |case| {
            (0..seed).for_each(|_| { case.normal(); });
            let ids = choose(case, Choices::Random, tokens, chosen, experts);
            let capacities = capacities_of(&routes);
            let (words, rows) = (ids.clone(), capacities.clone());
            expect_placed(case, &routes, &ids, capacities.as_deref(), move |placed| {
                assert_properties(&routes, &words, rows.as_deref(), placed);
            });
        });
    }
}

/// The largest micro-batch allowed, and an odd one: blocks become longer instead of more numerous.
#[test]
fn millions_of_choices() {
    for (tokens, chosen, allocation) in [
        (1 << 17, 16, RowAllocation::Dropless { safe_tokens: true }),
        ((1 << 17) - 1, 3, RowAllocation::Capacity { slots: Slots::Equal(777), order: DropOrder::Choice }),
    ] {
        let routes = PlacementConfig { tokens, chosen, experts: 512, allocation };
        check(&format!("place {routes:?}"), |case| {
            let ids: Vec<u32> =
                (0..routes.choices()).map(|i| (i.wrapping_mul(2_654_435_761)) >> 23).collect();
            let words = ids.clone();
            expect_placed(case, &routes, &ids, None, move |placed| {
                let Placed { counts, offsets, places, sources } = placed;
                let mut next = offsets.clone();
                let mut seen = vec![0; 512];
                let by_token = routes.order() == DropOrder::Token;
                for position in 0..routes.choices() {
                    let by_choice = position % tokens * chosen + position / tokens;
                    let choice = if by_token { position } else { by_choice };
                    let expert = words[choice as usize] as usize;
                    seen[expert] += 1;
                    let is_kept = next[expert] < offsets[expert + 1];
                    assert_eq!(places[choice as usize], if is_kept { next[expert] } else { NONE });
                    if is_kept {
                        assert_eq!(sources[next[expert] as usize], choice);
                        next[expert] += 1;
                    }
                }
                assert_eq!(*counts, seen);
                for expert in 0..512 {
                    let empty = &sources[next[expert] as usize..offsets[expert + 1] as usize];
                    assert!(empty.iter().all(|&source| source == NONE));
                }
            });
        });
    }
}

/// Worked by hand: 4 tokens choose 2 of 3 experts, which have 2 rows each (k·N·f / E = 2 for f = 0.75).
#[test]
fn choices_over_the_capacity_are_dropped_in_order() {
    let ids = [0u32, 1, 1, 0, 0, 2, 0, 1];
    assert_eq!(capacity_slots(2, 4, 0.75, 3, 1), 2);
    let place = |order: DropOrder, want: Placed| {
        let allocation = RowAllocation::Capacity { slots: Slots::Equal(2), order };
        let routes = PlacementConfig { tokens: 4, chosen: 2, experts: 3, allocation };
        check(&format!("dropped by {order:?}"), |case| {
            let want = want.clone();
            expect_placed(case, &routes, &ids, None, move |placed| assert_eq!(*placed, want));
        });
    };
    let (counts, offsets) = (vec![4, 3, 1], vec![0, 2, 4, 6]);
    // First choices are 0, 1, 0, 0: the third token's gets a row, the last one's does not, nor does a second choice of
    // expert 0.
    place(
        DropOrder::Choice,
        Placed {
            counts: counts.clone(),
            offsets: offsets.clone(),
            places: vec![0, 3, 2, NONE, 1, 4, NONE, NONE],
            sources: vec![0, 4, 2, 1, 5, NONE],
        },
    );
    // The second token's second choice comes before the third token's first.
    place(
        DropOrder::Token,
        Placed {
            counts,
            offsets,
            places: vec![0, 2, 3, 1, NONE, 4, NONE, NONE],
            sources: vec![0, 3, 1, 2, 5, NONE],
        },
    );
}

/// Worked by hand: the offsets are cumulative counts, each group one row longer with safe tokens.
#[test]
fn safe_tokens_are_the_last_rows_of_their_groups() {
    for (safe_tokens, offsets, sources) in [
        (false, vec![0, 2, 2, 4], vec![1, 2, 0, 3]),
        (true, vec![0, 3, 4, 7], vec![1, 2, NONE, NONE, 0, 3, NONE]),
    ] {
        let allocation = RowAllocation::Dropless { safe_tokens };
        let routes = PlacementConfig { tokens: 2, chosen: 2, experts: 3, allocation };
        check(&format!("safe tokens {safe_tokens}"), |case| {
            let (offsets, sources) = (offsets.clone(), sources.clone());
            expect_placed(case, &routes, &[2, 0, 0, 2], None, move |placed| {
                assert_eq!((&placed.counts, &placed.offsets), (&vec![2, 0, 2], &offsets));
                assert_eq!(placed.sources, sources);
            });
        });
    }
}

/// Worked by hand: the hot expert has 4 rows, cold ones have trunc(4 · 0.4) = 1; expert 2 is full after its first
/// choice.
#[test]
fn cold_experts_have_fewer_rows() {
    let two = HotAndCold::new(1, 4, 0.4);
    let allocation = RowAllocation::Capacity { slots: Slots::HotAndCold(two), order: DropOrder::Token };
    let routes = PlacementConfig { tokens: 5, chosen: 1, experts: 3, allocation };
    check("hot and cold", |case| {
        expect_placed(case, &routes, &[1, 2, 1, 2, 1], Some(&[1, 4, 1]), |placed| {
            assert_eq!(placed.counts, [0, 3, 2]);
            assert_eq!(placed.offsets, [0, 1, 5, 6]);
            assert_eq!(placed.places, [1, 5, 2, NONE, 3]);
            assert_eq!(placed.sources, [NONE, 0, 2, 4, NONE, 1]);
        });
    });
}

#[test]
pub fn the_busiest_experts_become_hot_at_their_steps() {
    let counts = [3, 9, 3, 7, 0];
    let steps = HotSteps { update_step: 10, checkpoint_step: Some(13) };
    let two = HotAndCold { hot: 3, capacity: 8, cold_capacity: 2 };
    for step in (1..=21).chain([40, 41]) {
        check(&format!("hot experts after step {step}"), |case| {
            let state = case.state(StepState { step, ..StepState::default() });
            // Counts may be part of a longer row.
            let row = case.integers(&[&[u32::MAX; 8][..], &counts, &[u32::MAX; 3]].concat());
            let row = Tensor { offset: row.offset + 32, cols: 5, stride: 8, ..row };
            let initial = two.initial(5);
            assert_eq!(initial, [8, 8, 8, 2, 2]);
            let capacities = case.integers(&initial);
            hot_experts(&mut case.rec, row, state, capacities, &two, &steps);
            let is_due = reference::chooses_hot_experts(step.into(), 10, Some(13));
            assert_eq!(is_due, [1, 2, 4, 8, 10, 13, 20, 40].contains(&step));
            let want = if is_due { vec![8, 8, 2, 8, 2] } else { initial };
            let hot = reference::hot_experts(&counts.map(|c| c as usize), 3);
            assert_eq!(hot, [0, 1, 3]);
            case.expect_words("capacities", capacities, move |words| assert_eq!(words[..5], want));
        });
    }
}

/// As the weights do, at a step at which hot experts would be chosen anew.
#[test]
fn capacities_stand_still_after_an_overflow_and_in_a_halted_run() {
    let steps = HotSteps { update_step: 1, checkpoint_step: Some(4) };
    let two = HotAndCold { hot: 1, capacity: 8, cold_capacity: 2 };
    for (is_overflow, halt) in [(1, 0), (0, 1)] {
        check(&format!("hot experts, overflow {is_overflow}, halted {halt}"), |case| {
            let state = StepState { step: 4, is_overflow, halt, ..StepState::default() };
            let (state, counts) = (case.state(state), case.integers(&[0, 9, 3]));
            let capacities = case.integers(&two.initial(3));
            hot_experts(&mut case.rec, counts, state, capacities, &two, &steps);
            case.expect_words("capacities", capacities, |words| assert_eq!(words[..3], [8, 2, 2]));
        });
    }
}

/// Exactly the configured number of experts is hot, although many counts are equal.
#[test]
fn ties_go_to_the_lower_index() {
    for (experts, hot) in [(1, 0), (1, 1), (257, 31), (512, 512), (512, 100)] {
        check(&format!("{hot} of {experts} experts"), |case| {
            let counts = case.ids_below(experts, 9);
            let (state, tensor) =
                (case.state(StepState { step: 1, ..StepState::default() }), case.integers(&counts));
            let capacities = case.output(1, experts as u32, U32);
            let two = HotAndCold { hot, capacity: 7, cold_capacity: 3 };
            let steps = HotSteps { update_step: 1 << 40, checkpoint_step: None };
            hot_experts(&mut case.rec, tensor, state, capacities, &two, &steps);
            let counts: Vec<usize> = counts.iter().map(|&c| c as usize).collect();
            let mut want = vec![3; experts];
            reference::hot_experts(&counts, hot as usize).into_iter().for_each(|expert| want[expert] = 7);
            case.expect_words("capacities", capacities, move |words| assert_eq!(words[..experts], want));
        });
    }
}
