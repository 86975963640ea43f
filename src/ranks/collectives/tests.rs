use super::*;
use crate::ranks::in_process;
use proptest::prelude::*;
use std::thread;

/// Runs `body` on each of `size` ranks, each on its own thread, and returns the results in order.
fn on_ranks<T: Send>(size: usize, body: impl Fn(&mut dyn Transport) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let body = &body;
        let spawn = |mut end| scope.spawn(move || body(&mut end));
        let threads: Vec<_> = in_process::connect(size).into_iter().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// `count` numbers of `rank` whose sum depends on the order in which they are added.
fn numbers(seed: u64, rank: usize, count: usize) -> Vec<f32> {
    let mut state = seed ^ (rank as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 20) as f32 * f32::powi(10.0, (state >> 33) as i32 % 5)
    };
    (0..count).map(|_| next() - 8.0).collect()
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

/// The sum over `ranks` from the first to the last.
fn sequential(seed: u64, ranks: &[usize], count: usize) -> Vec<u8> {
    let shares = ranks.iter().map(|&rank| numbers(seed, rank, count));
    let sum = shares.reduce(|sum, share| sum.iter().zip(&share).map(|(a, b)| a + b).collect());
    bytes(&sum.expect("at least one rank"))
}

/// Parts that end at `cuts`, in elements of `count`.
fn parts(cuts: &[usize], members: usize, count: usize) -> Vec<Range<usize>> {
    let mut ends: Vec<usize> = cuts.iter().take(members - 1).map(|cut| cut % (count + 1)).collect();
    ends.sort_unstable();
    ends.push(count);
    let starts = std::iter::once(0).chain(ends.clone());
    starts.zip(ends).map(|(start, end)| start * 4..end * 4).collect()
}

/// A group of some of `size` ranks: those whose bit is set in `chosen`, and the last.
fn some_of(size: usize, chosen: u8) -> Group {
    Group::new((0..size).filter(|rank| chosen >> rank & 1 == 1 || *rank == size - 1).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Both forms of the all-reduce, on all ranks and on some, give the sequential sum bit for bit.
    #[test]
    fn all_reduce_is_the_sequential_sum(size in 1usize..=5, chosen: u8, count in 0usize..9000, seed: u64) {
        let group = some_of(size, chosen);
        let expected = sequential(seed, &group.ranks, count);
        let sums = on_ranks(size, |transport| {
            let rank = transport.rank();
            let mut data = bytes(&numbers(seed, rank, count));
            if group.place(rank).is_some() {
                all_reduce(transport, &group, &mut data, Reduction::SumF32, &mut Vec::new()).expect("a sum");
                assert!(data == expected, "rank {rank} of {group:?} has another sum");
            }
        });
        prop_assert_eq!(sums.len(), size);
    }

    /// Parts of any length, some of them empty; the parts are then gathered again.
    #[test]
    fn reduce_scatter_and_all_gather(
        size in 1usize..=5, chosen: u8, count in 0usize..300, cuts: [usize; 4], seed: u64,
    ) {
        let group = some_of(size, chosen);
        let parts = parts(&cuts, group.size(), count);
        let expected = sequential(seed, &group.ranks, count);
        on_ranks(size, |transport| {
            let Some(place) = group.place(transport.rank()) else { return };
            let data = bytes(&numbers(seed, transport.rank(), count));
            let part = parts[place].clone();
            let (mut own, mut scratch) = (vec![0; part.len()], vec![7; 5]);
            reduce_scatter(transport, &group, &data, &parts, &mut scratch, &mut own, Reduction::SumF32).expect("a sum");
            assert!(own == expected[part.clone()], "another sum");
            let mut whole = vec![0; data.len()];
            whole[part].copy_from_slice(&own);
            all_gather(transport, &group, &mut whole, &parts).expect("the others' parts");
            assert!(whole == expected, "other parts");
        });
    }

    /// Member i sends member j a part whose length and bytes follow from (i, j).
    #[test]
    fn all_to_all_is_a_transposition(size in 1usize..=5, chosen: u8, seed: u64) {
        let group = some_of(size, chosen);
        let length = |from: usize, to: usize| (seed >> (from * 5 + to) & 7) as usize * from.max(to);
        let content = |from: usize, to: usize| vec![(from * 16 + to) as u8; length(from, to)];
        let ranges = |lengths: &mut dyn Iterator<Item = usize>| -> Vec<Range<usize>> {
            let starts = lengths.scan(0, |end, length| { *end += length; Some(*end - length..*end) });
            starts.collect()
        };
        on_ranks(size, |transport| {
            let own = transport.rank();
            if group.place(own).is_none() { return }
            let send: Vec<u8> = group.ranks.iter().flat_map(|&to| content(own, to)).collect();
            let expected: Vec<u8> = group.ranks.iter().flat_map(|&from| content(from, own)).collect();
            let send_parts = ranges(&mut group.ranks.iter().map(|&to| length(own, to)));
            let receive_parts = ranges(&mut group.ranks.iter().map(|&from| length(from, own)));
            let mut received = vec![0; expected.len()];
            all_to_all(transport, &group, &send, &send_parts, &mut received, &receive_parts).expect("parts");
            assert_eq!(received, expected);
        });
    }

    /// Two groups that share ranks take turns.
    #[test]
    fn groups_take_turns(size in 2usize..=5, first: u8, second: u8, count in 1usize..50, seed: u64) {
        let groups = [some_of(size, first), some_of(size, second)];
        on_ranks(size, |transport| {
            for turn in 0..6 {
                let (group, seed) = (&groups[turn % 2], seed ^ turn as u64);
                if group.place(transport.rank()).is_none() { continue }
                let mut data = bytes(&numbers(seed, transport.rank(), count));
                all_reduce(transport, group, &mut data, Reduction::SumF32, &mut Vec::new()).expect("a sum");
                assert_eq!(data, sequential(seed, &group.ranks, count));
            }
        });
    }

    /// A rank that ends after any number of exchanges: the others get an error that names it, and none waits forever.
    #[test]
    fn a_rank_that_ends_is_named(size in 2usize..=5, ends in 0usize..5, after in 0usize..4, count in 1usize..6000) {
        let (ends, group) = (ends % size, Group::all(size));
        let lines = on_ranks(size, |transport| {
            let mut data = bytes(&numbers(1, transport.rank(), count));
            for round in 0.. {
                if transport.rank() == ends && round == after {
                    transport.abort();
                    return None;
                }
                if let Err(error) = all_reduce(transport, &group, &mut data, Reduction::SumF32, &mut Vec::new()) {
                    return Some(error.to_string());
                }
            }
            None
        });
        for (rank, line) in lines.into_iter().enumerate().filter(|(rank, _)| *rank != ends) {
            let line = line.expect("an error");
            prop_assert!(line.starts_with(&format!("rank {ends} has ended")), "rank {} says: {}", rank, line);
        }
    }
}

#[test]
fn counts_are_summed_modulo_2_to_the_32() {
    let sums = on_ranks(3, |transport| {
        let mut data = [u32::MAX, transport.rank() as u32].map(u32::to_ne_bytes).concat();
        all_reduce(transport, &Group::all(3), &mut data, Reduction::SumU32, &mut Vec::new()).expect("a sum");
        data
    });
    let expected = [u32::MAX - 2, 3].map(u32::to_ne_bytes).concat();
    assert!(sums.iter().all(|sum| *sum == expected));
}

#[test]
fn the_largest_of_each_is_taken() {
    let largest = on_ranks(3, |transport| {
        let own = transport.rank() as u32;
        let mut data = [7 * own, 9 - own, u32::MAX >> own].map(u32::to_ne_bytes).concat();
        let group = Group::all(3);
        all_reduce(transport, &group, &mut data, Reduction::LargestU32, &mut Vec::new())
            .expect("the largest");
        data
    });
    let expected = [14, 9, u32::MAX].map(u32::to_ne_bytes).concat();
    assert!(largest.iter().all(|largest| *largest == expected));
}

#[test]
fn broadcast_and_gather_have_a_root() {
    let group = Group::new(vec![0, 2, 3]);
    let wholes = on_ranks(4, |transport| {
        let rank = transport.rank();
        let Some(place) = group.place(rank) else { return Vec::new() };
        let mut data = vec![rank as u8; 3];
        broadcast(transport, &group, 2, &mut data).expect("the root's data");
        assert_eq!(data, [2; 3]);
        let parts = [0..1, 1..1, 1..3];
        let mut whole = vec![0; if rank == 3 { 3 } else { 0 }];
        gather(transport, &group, 3, &vec![rank as u8; parts[place].len()], &mut whole, &parts)
            .expect("parts");
        whole
    });
    assert_eq!(wholes, [vec![], vec![], vec![], vec![0, 3, 3]]);
}

#[test]
fn equal_parts_are_of_whole_elements() {
    assert_eq!(equal_parts(28, 3), [0..12, 12..20, 20..28]);
    assert_eq!(equal_parts(4, 3), [0..4, 4..4, 4..4]);
}
