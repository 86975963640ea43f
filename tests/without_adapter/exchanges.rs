//! Where exchanges start, when their results are needed, and what lives how long beside them.

use gristmill::element::Element::F32;
use gristmill::kernels::Capabilities;
use gristmill::ops::add::add;
use gristmill::ops::matrix_ranks::MatrixRanks;
use gristmill::ops::zero::zero;
use gristmill::ranks::Group;
use gristmill::record::{BufferId, Collective, Persistents, Recorder, Recording, Span, Tensor};
use gristmill::tape::{Parameter, Tape};
use std::collections::HashMap;

fn recorder() -> Recorder {
    Recorder::new("exchanges", Capabilities::software())
}

fn tensors<const N: usize>(rec: &mut Recorder) -> [Tensor; N] {
    [0; N].map(|_| rec.tensor("x", 1, 64, F32))
}

/// The sum of `from` over two ranks, in `to`.
fn sum(from: Tensor, to: Tensor) -> Collective {
    let [addends, sums] = [from, to].map(|tensor| vec![Span::of(&tensor)]);
    Collective::sum_into(addends, sums)
}

/// (where it starts, where its result is needed, after which exchange) of each exchange.
fn places(recording: &Recording) -> Vec<(usize, usize, Option<usize>)> {
    recording.exchanges.iter().map(|exchange| (exchange.at, exchange.needed, exchange.after)).collect()
}

fn life(recording: &Recording, tensor: Tensor) -> (usize, usize) {
    let BufferId::Transient(id) = tensor.buffer else { panic!("a transient tensor") };
    (recording.transient(id).first, recording.transient(id).last)
}

#[test]
fn launches_run_until_one_needs_the_result() {
    let mut rec = recorder();
    let [a, b, c, d] = tensors(&mut rec);
    zero(&mut rec, a); // 0
    rec.exchange("sum", sum(a, b), &Group::all(2));
    zero(&mut rec, c); // 1
    zero(&mut rec, d); // 2
    add(&mut rec, b, d, 1.0, true); // 3
    let recording = rec.finish();
    assert_eq!(places(&recording), [(1, 3, None)]);
    assert_eq!(life(&recording, a), (0, 1), "its bytes are copied directly before launch 1");
    assert_eq!(life(&recording, b), (1, 3), "the result may arrive at once");
}

#[test]
fn an_exchange_waits_for_the_one_whose_result_it_reads() {
    let mut rec = recorder();
    let [a, b, c] = tensors(&mut rec);
    zero(&mut rec, a);
    rec.exchange("first", sum(a, b), &Group::all(2));
    rec.exchange("second", sum(b, c), &Group::all(2));
    rec.exchange("another", sum(a, a), &Group::all(2));
    zero(&mut rec, c);
    let recording = rec.finish();
    assert_eq!(places(&recording), [(1, 2, None), (1, 1, Some(0)), (1, 2, None)]);
}

#[test]
fn sums_start_after_the_last_launch_that_adds() {
    let mut rec = recorder();
    let [a, b] = tensors(&mut rec);
    zero(&mut rec, a);
    zero(&mut rec, b);
    rec.exchange_once_complete("a", sum(a, a), &Group::all(2));
    rec.exchange_early("b", sum(b, b), &Group::all(2));
    let recording = rec.finish();
    assert_eq!(places(&recording), [(1, 2, None), (2, 2, None)]);
    assert_eq!([0, 1].map(|i: usize| recording.exchanges[i].once_per_step), [true, false]);
}

/// The gradient of what a divided product reads is summed while that of its weights is computed.
#[test]
fn gradients_of_weights_run_beside_sums_of_divided_products() {
    let mut persistents = Persistents::new();
    let [x, w, dw, dy] = [0; 4].map(|_| persistents.tensor("x", 64, 64, F32));
    let weight = &Parameter { weight: vec![w], gradient: Some(vec![dw]) };
    let mut rec = recorder();
    let ranks =
        MatrixRanks { group: Group::all(2), place: 0, shares_tokens: false, shares_vocabulary: false };
    let mut tape = Tape::new(&mut rec);
    let leaf = tape.leaf(x, true);
    let entered = tape.enter_shared(leaf, &ranks);
    let y = tape.linear(entered, weight, None, None);
    tape.give(y, dy);
    tape.backward();
    let gradient = tape.gradient(leaf).expect("x needs a gradient");
    zero(&mut rec, gradient);
    let recording = rec.finish();
    let [(at, needed, _)] = places(&recording)[..] else { panic!("one exchange") };
    let meanwhile = &recording.dispatches[at..needed];
    assert!(
        meanwhile.iter().any(|dispatch| dispatch.buffers().any(|buffer| buffer == dw.buffer)),
        "{meanwhile:?}"
    );
}

#[test]
fn a_single_rank_exchanges_nothing() {
    let mut rec = recorder();
    let [a] = tensors(&mut rec);
    zero(&mut rec, a);
    rec.exchange("sum", sum(a, a), &Group::all(1));
    assert!(rec.finish().exchanges.is_empty());
}

#[test]
fn what_is_repeated_is_exchanged_again() {
    let mut rec = recorder();
    let [a, b, c] = tensors(&mut rec);
    zero(&mut rec, a);
    let start = rec.position();
    rec.exchange("sum", sum(a, b), &Group::all(2));
    add(&mut rec, b, c, 1.0, false);
    let end = rec.position();
    zero(&mut rec, a);
    let again: HashMap<BufferId, BufferId> =
        [b.buffer, c.buffer].into_iter().map(|buffer| (buffer, rec.another(buffer))).collect();
    rec.repeat(start..end, "again", &again);
    let recording = rec.finish();
    assert_eq!(places(&recording), [(1, 1, None), (3, 3, None)]);
    let repeated = &recording.exchanges[1];
    assert_eq!(repeated.path, "sum.again");
    assert_eq!(repeated.collective.results()[0].buffer, again[&b.buffer]);
    assert_eq!(repeated.collective.sources()[0].buffer, a.buffer);
}

#[test]
fn what_is_inserted_moves_later_exchanges() {
    let mut rec = recorder();
    let [a, b] = tensors(&mut rec);
    zero(&mut rec, b); // 0
    add(&mut rec, b, a, 1.0, true); // 1
    rec.exchange("sum", sum(a, a), &Group::all(2)); // before 2
    rec.before_first_use(Span::of(&a), |rec| rec.scope("start", |rec| zero(rec, a)));
    let recording = rec.finish();
    let paths: Vec<&str> = recording.dispatches.iter().map(|dispatch| dispatch.path.as_str()).collect();
    assert_eq!(paths, ["", "start", ""]);
    assert_eq!(places(&recording), [(3, 3, None)]);
}

#[test]
fn ranks_send_their_share() {
    let mut rec = recorder();
    let [whole, own] = tensors(&mut rec).map(|tensor| Span::of(&tensor));
    let own = own.part(0, 16, F32);
    let parts: Vec<_> = (0..4).map(|rank| 64 * rank..64 * (rank + 1)).collect();
    let group = Group::all(4);
    rec.exchange("a", Collective::sum(vec![whole]), &group);
    rec.exchange("b", Collective::ReduceScatter { own, whole, parts: parts.clone() }, &group);
    rec.exchange("c", Collective::AllGather { own, whole, parts }, &group);
    let sent: Vec<u64> = rec.finish().exchanges.iter().map(|exchange| exchange.sent_bytes()).collect();
    assert_eq!(sent, [2 * 192, 192, 192]);
}
