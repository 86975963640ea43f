use super::{InProcess, connect};
use crate::ranks::Transport;

/// Sends `bytes` from `to` and `from` to each other.
fn swap(transport: &mut InProcess, peer: usize, bytes: &mut [u8]) -> crate::error::Result<()> {
    let own = bytes.to_vec();
    transport.exchange(&[(peer, &own)], &mut [(peer, bytes)])
}

fn pair() -> (InProcess, InProcess) {
    let [a, b] = connect(2).try_into().ok().expect("two ranks");
    (a, b)
}

#[test]
fn messages_keep_their_order() {
    let (mut a, mut b) = pair();
    a.exchange(&[(1, b"first"), (1, b""), (1, b"second")], &mut []).expect("sent");
    let (mut first, mut second) = ([0; 5], [0; 6]);
    b.exchange(&[], &mut [(0, &mut first), (0, &mut []), (0, &mut second)]).expect("received");
    assert_eq!((&first, &second), (b"first", b"second"));
}

#[test]
fn what_a_rank_sent_arrives_after_its_end() {
    let (mut a, mut b) = pair();
    a.exchange(&[(1, b"last")], &mut []).expect("sent");
    drop(a);
    let mut last = [0; 4];
    b.exchange(&[], &mut [(0, &mut last)]).expect("received");
    assert_eq!(&last, b"last");
    let error = b.exchange(&[], &mut [(0, &mut last)]).expect_err("the rank has ended");
    assert_eq!(error.to_string(), "rank 0 has ended, and the run cannot go on without it");
    b.exchange(&[], &mut []).expect_err("a transport that failed keeps failing");
}

#[test]
fn a_message_of_another_length_is_an_error() {
    let (mut a, mut b) = pair();
    a.exchange(&[(1, b"four")], &mut []).expect("sent");
    let error = b.exchange(&[], &mut [(0, &mut [0; 8])]).expect_err("4 bytes are not 8");
    assert!(error.to_string().starts_with("rank 0 sent 4 bytes where 8 were expected"), "{error}");
}

#[test]
fn errors_name_the_rank_that_ended_first() {
    let [mut a, mut b, c] = connect(3).try_into().ok().expect("three ranks");
    drop(c);
    assert!(swap(&mut b, 2, &mut [0]).expect_err("rank 2 has ended").to_string().starts_with("rank 2"));
    // Rank 1 is still there, but it has failed because of rank 2.
    assert!(swap(&mut a, 1, &mut [0]).expect_err("rank 1 has failed").to_string().starts_with("rank 2"));
}

#[test]
fn an_abort_ends_the_rank() {
    let (mut a, mut b) = pair();
    a.abort();
    assert!(swap(&mut b, 0, &mut [0]).expect_err("rank 0 has aborted").to_string().starts_with("rank 0"));
}
