//! Collectives over the members of a group, by messages from each member to every other one.
//!
//! Every member calls the same function with the same lengths, and passes the transport of its own rank. Sums start
//! with the group's first member and add the others in order, so they are equal on all members and in every run. Parts
//! are byte ranges, one for each member, in order; they may be empty and need not cover everything.
//!
//! Each member sends (n - 1) / n of the data in a reduce-scatter or an all-gather of n members, which is the minimum.
//! The number of messages grows with n², and so does the latency of small exchanges.

use super::{Group, Transport};
use crate::error::Result;
use half::{bf16, f16};
use std::ops::Range;

/// How the elements of all members are reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Sums of f32.
    SumF32,
    /// Sums of u32, modulo 2^32.
    SumU32,
    /// Sums of f16, added in f32 and rounded once.
    SumF16,
    /// Sums of bfloat16, likewise.
    SumBf16,
    /// The largest u32.
    LargestU32,
}

/// An all-reduce of up to this many bytes is one exchange of everything instead of two exchanges of parts.
const SMALL: usize = 16 << 10;

/// Bytes that are summed over all members before the next block: they stay in the first-level cache.
const BLOCK: usize = 4 << 10;

/// Writes into `own` the sum over the members of this member's part of `data`, which has the same length on all
/// members. `scratch` grows to hold the others' copies of that part.
///
/// # Errors
/// As [`Transport::exchange`].
pub fn reduce_scatter(
    transport: &mut dyn Transport,
    group: &Group,
    data: &[u8],
    parts: &[Range<usize>],
    scratch: &mut Vec<u8>,
    own: &mut [u8],
    reduction: Reduction,
) -> Result<()> {
    let place = place(transport, group, parts.len());
    assert!(own.len().is_multiple_of(4), "sums are of whole elements of 4 bytes");
    assert_eq!(own.len(), parts[place].len(), "the result of a reduce-scatter is as long as the own part");
    let outgoing: Vec<&[u8]> = parts.iter().map(|part| &data[part.clone()]).collect();
    let copies = to_each(transport, group, place, &outgoing, own.len(), scratch)?;
    own.copy_from_slice(outgoing[place]);
    reduce_in_order(own, place, copies, reduction);
    Ok(())
}

/// Completes `whole`, in which each member has filled its own part.
///
/// # Errors
/// As [`Transport::exchange`].
pub fn all_gather(
    transport: &mut dyn Transport,
    group: &Group,
    whole: &mut [u8],
    parts: &[Range<usize>],
) -> Result<()> {
    let place = place(transport, group, parts.len());
    let mut incoming = disjoint(whole, parts);
    let own = std::mem::take(&mut incoming[place]);
    let outgoing: Vec<(usize, &[u8])> = others(group, place).map(|(_, rank)| (rank, &*own)).collect();
    transport.exchange(&outgoing, &mut from_others(group, place, incoming))
}

/// Replaces `data`, equally long on all members, by its reduction over them. `scratch` grows to [`all_reduce_scratch`].
///
/// # Errors
/// As [`Transport::exchange`].
pub fn all_reduce(
    transport: &mut dyn Transport,
    group: &Group,
    data: &mut [u8],
    reduction: Reduction,
    scratch: &mut Vec<u8>,
) -> Result<()> {
    let size = group.size();
    if size == 1 {
        return Ok(());
    }
    let place = place(transport, group, size);
    if data.len() > SMALL {
        let parts = equal_parts(data.len(), size);
        let outgoing: Vec<&[u8]> = parts.iter().map(|part| &data[part.clone()]).collect();
        let copies = to_each(transport, group, place, &outgoing, parts[place].len(), scratch)?;
        reduce_in_order(&mut data[parts[place].clone()], place, copies, reduction);
        return all_gather(transport, group, data, &parts);
    }
    assert!(data.len().is_multiple_of(4), "sums are of whole elements of 4 bytes");
    let copies = to_each(transport, group, place, &vec![&*data; size], data.len(), scratch)?;
    reduce_in_order(data, place, copies, reduction);
    Ok(())
}

/// Bytes that the member at `place` of `size` members sends in an [`all_reduce`] of `length` bytes, and the number of
/// exchanges.
pub(crate) fn all_reduce_sent(length: usize, size: usize, place: usize) -> (u64, u64) {
    let others = size as u64 - 1;
    if length <= SMALL {
        return (others * length as u64, others.min(1));
    }
    let own = equal_parts(length, size)[place].len() as u64;
    (length as u64 - own + others * own, 2)
}

/// Bytes to which the scratch memory of an [`all_reduce`] of `length` bytes grows on the member at `place` of `size`.
pub fn all_reduce_scratch(length: usize, size: usize, place: usize) -> usize {
    let copy = if length <= SMALL { length } else { equal_parts(length, size)[place].len() };
    (size - 1) * copy
}

/// Sends each member its part of `send` and receives this member's part of each, in the order of the members: part i of
/// `receive` must be as long as the part for this member in the data that member i sends.
///
/// # Errors
/// As [`Transport::exchange`].
pub fn all_to_all(
    transport: &mut dyn Transport,
    group: &Group,
    send: &[u8],
    send_parts: &[Range<usize>],
    receive: &mut [u8],
    receive_parts: &[Range<usize>],
) -> Result<()> {
    let place = place(transport, group, send_parts.len());
    let mut incoming = disjoint(receive, receive_parts);
    assert_eq!(incoming.len(), group.size(), "there is a part for each member");
    incoming[place].copy_from_slice(&send[send_parts[place].clone()]);
    let outgoing: Vec<(usize, &[u8])> =
        others(group, place).map(|(member, rank)| (rank, &send[send_parts[member].clone()])).collect();
    transport.exchange(&outgoing, &mut from_others(group, place, incoming))
}

/// Replaces `data`, equally long on all members, by the data of the member with rank `root`.
///
/// # Errors
/// As [`Transport::exchange`].
pub fn broadcast(transport: &mut dyn Transport, group: &Group, root: usize, data: &mut [u8]) -> Result<()> {
    let place = place(transport, group, group.size());
    assert!(group.place(root).is_some(), "the root of a broadcast is a member");
    if transport.rank() != root {
        return transport.exchange(&[], &mut [(root, data)]);
    }
    let outgoing: Vec<(usize, &[u8])> = others(group, place).map(|(_, rank)| (rank, &*data)).collect();
    transport.exchange(&outgoing, &mut [])
}

/// Collects the members' `own` parts in `whole` on the member with rank `root`; on the others `whole` is not used and
/// may be empty.
///
/// # Errors
/// As [`Transport::exchange`].
pub fn gather(
    transport: &mut dyn Transport,
    group: &Group,
    root: usize,
    own: &[u8],
    whole: &mut [u8],
    parts: &[Range<usize>],
) -> Result<()> {
    let place = place(transport, group, parts.len());
    assert!(group.place(root).is_some(), "the root of a gather is a member");
    if transport.rank() != root {
        return transport.exchange(&[(root, own)], &mut []);
    }
    let mut incoming = disjoint(whole, parts);
    incoming[place].copy_from_slice(own);
    transport.exchange(&[], &mut from_others(group, place, incoming))
}

/// `length` bytes in `count` parts of whole elements of 4 bytes; if they do not divide evenly, the first parts are
/// longer by one element.
pub(crate) fn equal_parts(length: usize, count: usize) -> Vec<Range<usize>> {
    assert!(length.is_multiple_of(4), "sums are of whole elements of 4 bytes, not of {length} bytes");
    let (each, longer) = (length / 4 / count, length / 4 % count);
    let start = |part: usize| (part * each + part.min(longer)) * 4;
    (0..count).map(|part| start(part)..start(part + 1)).collect()
}

/// This member's place in the group.
fn place(transport: &dyn Transport, group: &Group, parts: usize) -> usize {
    assert_eq!(parts, group.size(), "there is a part for each member");
    group.place(transport.rank()).expect("only members of a group take part in its collectives")
}

/// The other members, each with its place and rank.
fn others(group: &Group, place: usize) -> impl Iterator<Item = (usize, usize)> {
    group.ranks.iter().copied().enumerate().filter(move |(other, _)| *other != place)
}

/// The parts that are received, which are all except the own one.
fn from_others<'a>(group: &Group, place: usize, parts: Vec<&'a mut [u8]>) -> Vec<(usize, &'a mut [u8])> {
    let all = group.ranks.iter().copied().zip(parts).enumerate();
    all.filter(|(other, _)| *other != place).map(|(_, message)| message).collect()
}

/// Sends each other member its bytes of `outgoing` and receives `length` bytes from each, one after the other in
/// `scratch`.
fn to_each<'a>(
    transport: &mut dyn Transport,
    group: &Group,
    place: usize,
    outgoing: &[&[u8]],
    length: usize,
    scratch: &'a mut Vec<u8>,
) -> Result<&'a mut [u8]> {
    let needed = length * (group.size() - 1);
    if scratch.len() < needed {
        scratch.resize(needed, 0);
    }
    let outgoing: Vec<(usize, &[u8])> =
        others(group, place).map(|(member, rank)| (rank, outgoing[member])).collect();
    // `chunks_exact_mut` refuses a length of 0, of which there is nothing to receive.
    let places = scratch[..needed].chunks_exact_mut(length.max(1));
    let mut incoming: Vec<(usize, &mut [u8])> =
        others(group, place).map(|(_, rank)| rank).zip(places).collect();
    transport.exchange(&outgoing, &mut incoming)?;
    Ok(&mut scratch[..needed])
}

/// Reduces `own`, the share of the member at `place`, with those of the others, from the first member to the last;
/// `copies` holds the shares of the others one after the other and is overwritten.
fn reduce_in_order(own: &mut [u8], place: usize, copies: &mut [u8], reduction: Reduction) {
    let mut copies: Vec<_> = copies.chunks_exact_mut(own.len().max(1)).collect();
    for start in (0..own.len()).step_by(BLOCK) {
        let block = start..own.len().min(start + BLOCK);
        let mut copies: Vec<&mut [u8]> = copies.iter_mut().map(|copy| &mut copy[block.clone()]).collect();
        let (before, after) = copies.split_at_mut(place);
        let own = &mut own[block];
        match reduction {
            Reduction::SumF32 => reduce_words(own, before, after, |a, b| {
                (f32::from_ne_bytes(a) + f32::from_ne_bytes(b)).to_ne_bytes()
            }),
            Reduction::SumU32 => reduce_words(own, before, after, |a, b| {
                u32::from_ne_bytes(a).wrapping_add(u32::from_ne_bytes(b)).to_ne_bytes()
            }),
            Reduction::LargestU32 => reduce_words(own, before, after, |a, b| {
                u32::from_ne_bytes(a).max(u32::from_ne_bytes(b)).to_ne_bytes()
            }),
            Reduction::SumF16 => add_halves::<f16>(own, before, after),
            Reduction::SumBf16 => add_halves::<bf16>(own, before, after),
        }
    }
}

/// Reduces blocks of 4-byte elements by `reduce`. The blocks `before` the own one are overwritten.
fn reduce_words(
    own: &mut [u8],
    before: &mut [&mut [u8]],
    after: &[&mut [u8]],
    reduce: impl Fn([u8; 4], [u8; 4]) -> [u8; 4],
) {
    let reduce = |to: &mut [u8], more: &[u8]| {
        let ((to, _), (more, _)) = (to.as_chunks_mut::<4>(), more.as_chunks::<4>());
        to.iter_mut().zip(more).for_each(|(a, b)| *a = reduce(*a, *b));
    };
    if let Some((first, rest)) = before.split_first_mut() {
        rest.iter().for_each(|copy| reduce(first, copy));
        reduce(own, first);
    }
    after.iter().for_each(|copy| reduce(own, copy));
}

/// Adds blocks of 16-bit elements.
fn add_halves<T: Half>(own: &mut [u8], before: &[&mut [u8]], after: &[&mut [u8]]) {
    let mut sums = [0.0f32; BLOCK / 2];
    let mut add = |addend: &[u8]| {
        let (halves, _) = addend.as_chunks::<2>();
        sums.iter_mut().zip(halves).for_each(|(sum, half)| *sum += T::widen(*half));
    };
    before.iter().for_each(|copy| add(copy));
    add(own);
    after.iter().for_each(|copy| add(copy));
    let (own, _) = own.as_chunks_mut::<2>();
    own.iter_mut().zip(sums).for_each(|(half, sum)| *half = T::narrow(sum));
}

/// A 16-bit float.
trait Half {
    fn widen(bytes: [u8; 2]) -> f32;
    /// Rounds to nearest even.
    fn narrow(value: f32) -> [u8; 2];
}

impl Half for f16 {
    fn widen(bytes: [u8; 2]) -> f32 {
        Self::from_ne_bytes(bytes).to_f32()
    }

    fn narrow(value: f32) -> [u8; 2] {
        Self::from_f32(value).to_ne_bytes()
    }
}

impl Half for bf16 {
    fn widen(bytes: [u8; 2]) -> f32 {
        Self::from_ne_bytes(bytes).to_f32()
    }

    fn narrow(value: f32) -> [u8; 2] {
        Self::from_f32(value).to_ne_bytes()
    }
}

/// The parts of `whole`, which are in order and do not overlap.
fn disjoint<'a>(mut whole: &'a mut [u8], parts: &[Range<usize>]) -> Vec<&'a mut [u8]> {
    let mut end = 0;
    let each = parts.iter().map(|part| {
        assert!(part.start >= end, "parts are in order and do not overlap: {parts:?}");
        let rest = std::mem::take(&mut whole);
        let (own, rest) = rest[part.start - end..].split_at_mut(part.len());
        (whole, end) = (rest, part.end);
        own
    });
    each.collect()
}

#[cfg(test)]
mod tests;
