use crate::error::{Error, Result};
use crate::ranks::{Ranks, Transport, in_process};
use pollster::block_on;

/// The result of `body` on each of `size` ranks.
fn on_ranks<T: Send>(size: usize, body: impl Fn(Ranks) -> T + Sync) -> Vec<T> {
    let body = &body;
    std::thread::scope(|scope| {
        let run = |end: in_process::InProcess| {
            scope.spawn(move || {
                body(Ranks::start(|| Ok(Box::new(end) as Box<dyn Transport>)).expect("a thread"))
            })
        };
        let threads: Vec<_> = in_process::connect(size).into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn line(result: Result<usize>) -> String {
    result.map_or_else(|error| error.to_string(), |number| number.to_string())
}

#[test]
fn all_fail_where_one_does() {
    let agreed = |failing: &'static [usize]| {
        on_ranks(3, move |ranks| {
            let (rank, fails) = (ranks.rank(), failing.contains(&ranks.rank()));
            let own = if fails { Err(Error::Plan(format!("{rank} has no data"))) } else { Ok(rank) };
            line(block_on(ranks.agree(own)))
        })
    };
    assert_eq!(agreed(&[]), ["0", "1", "2"]);
    assert_eq!(agreed(&[1]), ["rank 1: 1 has no data", "1 has no data", "rank 1: 1 has no data"]);
    assert_eq!(agreed(&[0, 2]), ["0 has no data"; 3]);
}

#[test]
fn the_first_rank_finds_for_all() {
    let found = |result: fn() -> Result<usize>| {
        on_ranks(3, |ranks| {
            let is_first = ranks.is_first();
            line(block_on(ranks.by_first(|| {
                assert!(is_first, "only the first rank looks");
                result()
            })))
        })
    };
    assert_eq!(found(|| Ok(70_000)), ["70000"; 3]);
    assert_eq!(found(|| Err(Error::Plan("nothing there".into()))), ["nothing there"; 3]);
}

#[test]
fn a_single_rank_agrees_with_itself() {
    let alone = Ranks::alone();
    assert_eq!(line(block_on(alone.agree(Ok(3)))), "3");
    assert_eq!(line(block_on(alone.by_first(|| Ok(4)))), "4");
    assert_eq!(block_on(alone.at_first(vec![1, 2])).expect("its own"), [1, 2]);
}

#[test]
fn what_ranks_have_arrives_in_their_order() {
    let all = on_ranks(3, |ranks| block_on(ranks.at_first(vec![ranks.rank() as u8; 2])).expect("bytes"));
    assert_eq!(all, [vec![0, 0, 1, 1, 2, 2], vec![], vec![]]);
}
