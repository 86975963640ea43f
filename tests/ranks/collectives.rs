//! Collectives against what they mean, computed on each rank by itself.

use crate::transports::on_every_transport;
use gristmill::ranks::collectives::{
    Reduction, all_gather, all_reduce, all_to_all, broadcast, gather, reduce_scatter,
};
use gristmill::ranks::{Group, Ranks, Transport};
use std::ops::Range;

/// Numbers of elements: none, less than there are ranks, odd, those of several messages of MPI.
const COUNTS: [usize; 6] = [0, 1, 3, 1000, 50_001, 800_003];

/// `count` numbers of `rank`, whose sum depends on the order in which they are added.
fn numbers(rank: usize, count: usize) -> Vec<f32> {
    let mut state = (rank as u32 + 1).wrapping_mul(0x9E37_79B9);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next() * [1.0, 1e3, 1e-3][(next().to_bits() % 3) as usize]).collect()
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

fn sum_of(group: &Group, count: usize) -> Vec<u8> {
    let shares = group.ranks.iter().map(|&rank| numbers(rank, count));
    let sum = shares.reduce(|sum, share| sum.iter().zip(&share).map(|(a, b)| a + b).collect());
    bytes(&sum.expect("a member"))
}

/// Parts of `count` elements for `members`: the first has none, the others grow.
fn growing_parts(members: usize, count: usize) -> Vec<Range<usize>> {
    let end = |member: usize| count * member * (member + 1) / (members * (members - 1)).max(1);
    let ends = (0..members).map(|member| if member + 1 == members { count } else { end(member) });
    let mut start = 0;
    ends.map(|end| std::mem::replace(&mut start, end) * 4..end * 4).collect()
}

/// All ranks, the even ones, and all but the first.
fn groups(size: usize) -> Vec<Group> {
    let even = Group::new((0..size).step_by(2).collect());
    let later = (size > 1).then(|| Group::new((1..size).collect()));
    [Group::all(size), even].into_iter().chain(later).collect()
}

/// Does `job` on the communication thread in each group that this rank is a member of, for every count.
fn in_each_group(ranks: &Ranks, job: fn(&mut dyn Transport, &Group, usize)) {
    let done = ranks.run(move |transport| {
        for count in COUNTS {
            for group in groups(transport.size()) {
                if group.place(transport.rank()).is_some() {
                    job(transport, &group, count);
                }
            }
        }
        Ok(())
    });
    pollster::block_on(done).expect("no rank ends");
}

fn sums(transport: &mut dyn Transport, group: &Group, count: usize) {
    let mut scratch = Vec::new();
    let mut data = bytes(&numbers(transport.rank(), count));
    all_reduce(transport, group, &mut data, Reduction::SumF32, &mut scratch).expect("a sum");
    assert!(data == sum_of(group, count), "an all-reduce of {count} in {group:?} is another sum");
}

fn parts_of_sums(transport: &mut dyn Transport, group: &Group, count: usize) {
    let place = group.place(transport.rank()).expect("a member");
    let parts = growing_parts(group.size(), count);
    let data = bytes(&numbers(transport.rank(), count));
    let mut own = vec![0; parts[place].len()];
    reduce_scatter(transport, group, &data, &parts, &mut Vec::new(), &mut own, Reduction::SumF32)
        .expect("a sum");
    let mut whole = vec![0; data.len()];
    whole[parts[place].clone()].copy_from_slice(&own);
    all_gather(transport, group, &mut whole, &parts).expect("the others' parts");
    assert!(whole == sum_of(group, count), "the gathered parts of {count} in {group:?} are another sum");
}

fn rows_to_each(transport: &mut dyn Transport, group: &Group, count: usize) {
    let own = transport.rank();
    // From rank i to rank j: as many bytes as both say, of a value that both say.
    let row = |from: usize, to: usize| vec![(16 * from + to) as u8; count / 7 * from + to];
    let lay = |rows: Vec<Vec<u8>>| {
        let ends = rows.iter().scan(0, |end, row| {
            *end += row.len();
            Some(*end - row.len()..*end)
        });
        let parts: Vec<Range<usize>> = ends.collect();
        (rows.concat(), parts)
    };
    let (send, send_parts) = lay(group.ranks.iter().map(|&to| row(own, to)).collect());
    let (expected, receive_parts) = lay(group.ranks.iter().map(|&from| row(from, own)).collect());
    let mut received = vec![0; expected.len()];
    all_to_all(transport, group, &send, &send_parts, &mut received, &receive_parts).expect("rows");
    assert!(received == expected, "an all-to-all in {group:?} brings other rows");
}

fn to_and_from_a_root(transport: &mut dyn Transport, group: &Group, count: usize) {
    let (own, root) = (transport.rank(), group.ranks[group.size() / 2]);
    let mut data = bytes(&numbers(own, count));
    broadcast(transport, group, root, &mut data).expect("the root's data");
    assert!(data == bytes(&numbers(root, count)), "a broadcast in {group:?} brings other data");
    let parts = growing_parts(group.size(), count);
    let part = parts[group.place(own).expect("a member")].clone();
    let mut whole = vec![0; if own == root { data.len() } else { 0 }];
    gather(transport, group, root, &data[part], &mut whole, &parts).expect("the others' parts");
    assert!(own != root || whole == data, "a gather in {group:?} brings other data");
}

#[test]
fn all_reduce_is_the_sum_in_order() {
    on_every_transport("collectives::all_reduce_is_the_sum_in_order", |ranks| in_each_group(ranks, sums));
}

#[test]
fn reduce_scatter_and_all_gather_are_an_all_reduce() {
    let test = "collectives::reduce_scatter_and_all_gather_are_an_all_reduce";
    on_every_transport(test, |ranks| in_each_group(ranks, parts_of_sums));
}

#[test]
fn all_to_all_brings_each_its_rows() {
    on_every_transport("collectives::all_to_all_brings_each_its_rows", |ranks| {
        in_each_group(ranks, rows_to_each);
    });
}

#[test]
fn broadcast_and_gather_have_a_root() {
    on_every_transport("collectives::broadcast_and_gather_have_a_root", |ranks| {
        in_each_group(ranks, to_and_from_a_root);
    });
}
