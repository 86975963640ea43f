//! Orders on random degrees, without devices.

use super::*;
use crate::ranks::{Ranks, Transport, in_process};

const FORWARD: Direction = Direction::Forward;

/// Degrees with few and with many micro-batches; interleaved ones have whole groups of them.
fn degrees() -> Vec<(Pipeline, usize)> {
    let plain = (1..=6).flat_map(|stages| [1, 2, 3, 4, 7, 8, 13].map(|count| (stages, 1, count)));
    let sizes = (2..=6).flat_map(|stages| (2..=4).map(move |interleaves| (stages, interleaves)));
    let interleaved = sizes
        .flat_map(|(stages, interleaves)| [1, 2, 3, 5].map(|groups| (stages, interleaves, groups * stages)));
    let all = plain.chain(interleaved);
    all.map(|(stages, interleaves, count)| (Pipeline { stages, interleaves }, count)).collect()
}

fn half(text: &str) -> Half {
    let (direction, numbers) = text.split_at(1);
    let (chunk, micro_batch) = numbers.split_once('.').expect("chunk.micro_batch");
    let direction = if direction == "F" { FORWARD } else { Direction::Backward };
    Half { chunk: chunk.parse().unwrap(), micro_batch: micro_batch.parse().unwrap(), direction }
}

fn halves(turns: &[Turn]) -> Vec<Half> {
    turns.iter().filter_map(|turn| turn.half).collect()
}

#[test]
fn stages_take_forward_and_backward_halves_in_turn() {
    let order = |pipeline: Pipeline, stage| halves(&pipeline.turns(stage, 4));
    let listed = |text: &str| text.split(' ').map(half).collect::<Vec<_>>();
    let two = Pipeline { stages: 2, interleaves: 1 };
    assert_eq!(order(two, 0), listed("F0.0 F0.1 B0.0 F0.2 B0.1 F0.3 B0.2 B0.3"));
    assert_eq!(order(two, 1), listed("F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 F0.3 B0.3"));
    let interleaved = Pipeline { stages: 2, interleaves: 2 };
    assert_eq!(
        order(interleaved, 1),
        listed("F0.0 F0.1 F1.0 B1.0 F1.1 B1.1 F0.2 B0.0 F0.3 B0.1 F1.2 B1.2 F1.3 B1.3 B0.2 B0.3")
    );
    let pairs: Vec<Turn> = two.turns(0, 4).into_iter().filter(|turn| turn.receives).collect();
    assert_eq!(pairs[0].sends, [half("F0.1")], "what is sent and what is received are one exchange");
}

#[test]
fn early_stages_keep_more_micro_batches() {
    let four = |interleaves| Pipeline { stages: 4, interleaves };
    let kept = |interleaves, count| [0, 1, 3].map(|stage| four(interleaves).in_flight(stage, count));
    assert_eq!(kept(1, 8), [[4], [3], [1]]);
    assert_eq!(kept(1, 2), [[2], [2], [1]], "no more than there are");
    assert_eq!(kept(2, 8), [[8, 4], [8, 4], [5, 1]]);
}

#[test]
fn every_micro_batch_goes_through_every_chunk_and_back_in_order() {
    for (pipeline, count) in degrees() {
        for stage in 0..pipeline.stages {
            let order = halves(&pipeline.turns(stage, count));
            assert_eq!(order.len(), 2 * count * pipeline.interleaves);
            for chunk in 0..pipeline.interleaves {
                let of = |direction| -> Vec<usize> {
                    let is_of = |half: &&Half| half.chunk == chunk && half.direction == direction;
                    order.iter().filter(is_of).map(|half| half.micro_batch).collect()
                };
                let all: Vec<usize> = (0..count).collect();
                assert_eq!((of(FORWARD), of(Direction::Backward)), (all.clone(), all), "{pipeline:?}");
            }
            let last = order.last().expect("a half");
            assert_eq!((last.chunk, last.micro_batch), (0, count - 1), "the gradients of all are complete");
        }
    }
}

/// Each job sends and receives at once and ends when all of that is done, as with MPI's rendezvous.
#[test]
fn no_order_of_jobs_blocks() {
    for (pipeline, count) in degrees() {
        for turns in [Pipeline::turns, Pipeline::forward_turns] {
            let all: Vec<Vec<Turn>> =
                (0..pipeline.stages).map(|stage| turns(pipeline, stage, count)).collect();
            let mut next = vec![0; pipeline.stages];
            let mut posted: HashSet<(Placed, bool)> = HashSet::new();
            while next.iter().zip(&all).any(|(next, turns)| *next < turns.len()) {
                let before = (next.clone(), posted.len());
                for (stage, turns) in all.iter().enumerate() {
                    let Some(turn) = turns.get(next[stage]) else { continue };
                    let sent = turn.sends.iter().map(|&half| (stage, half));
                    let received = turn.half.and_then(|half| pipeline.sender((stage, half)));
                    assert_eq!(turn.receives, received.is_some());
                    posted.extend(sent.clone().map(|message| (message, true)));
                    posted.extend(received.map(|message| (message, false)));
                    let is_done = sent.map(|message| (message, false)).all(|other| posted.contains(&other))
                        && received.is_none_or(|message| posted.contains(&(message, true)));
                    next[stage] += usize::from(is_done);
                }
                assert_ne!(before, (next.clone(), posted.len()), "{pipeline:?} with {count} blocks");
            }
            let sent: usize = all.iter().flatten().map(|turn| turn.sends.len()).sum();
            let received = all.iter().flatten().filter(|turn| turn.receives).count();
            assert_eq!(sent, received, "{pipeline:?}: everything sent is received");
        }
    }
}

/// No result is sent before it is computed, and few results wait.
#[test]
fn results_are_sent_after_they_are_computed() {
    for (pipeline, count) in degrees() {
        for stage in 0..pipeline.stages {
            let turns = pipeline.turns(stage, count);
            let mut computed = HashSet::new();
            for turn in &turns {
                assert!(turn.sends.iter().all(|half| computed.remove(half)));
                let sends = |half: &Half| pipeline.receiver((stage, *half)).is_some();
                computed.extend(turn.half.filter(sends));
            }
            assert!(computed.is_empty(), "everything is sent");
            let most = waiting(&turns, |half| pipeline.receiver((stage, half)).is_some());
            assert!(most <= 2 * pipeline.stages + 1, "{most} results wait on stage {stage} of {pipeline:?}");
        }
    }
}

/// Ranks on threads that exchange the names of halves, each in its own order.
#[test]
fn ranks_receive_what_they_compute_with() {
    let pipeline = Pipeline { stages: 3, interleaves: 2 };
    let name = |(stage, half): Placed| format!("{stage} {half:?}").into_bytes();
    std::thread::scope(|scope| {
        for end in in_process::connect(pipeline.stages) {
            scope.spawn(move || {
                let stage = end.rank();
                let ranks = Ranks::start(move || Ok(Box::new(end) as Box<dyn Transport>)).expect("a rank");
                for turn in pipeline.turns(stage, 6) {
                    let to = |half| pipeline.receiver((stage, half)).expect("a receiver").0;
                    let sent: Vec<_> =
                        turn.sends.iter().map(|&half| (to(half), name((stage, half)))).collect();
                    let from = turn.half.and_then(|half| pipeline.sender((stage, half)));
                    let want = from.map(|from| (from.0, name(from)));
                    let mut got: Vec<_> =
                        want.iter().map(|(from, want)| (*from, vec![0; want.len()])).collect();
                    let job = ranks.run(move |transport| {
                        let sent: Vec<_> = sent.iter().map(|(to, bytes)| (*to, bytes.as_slice())).collect();
                        let mut into: Vec<_> =
                            got.iter_mut().map(|(from, bytes)| (*from, bytes.as_mut_slice())).collect();
                        transport.exchange(&sent, &mut into)?;
                        Ok(got)
                    });
                    if let Some(want) = want {
                        assert_eq!(pollster::block_on(job).expect("an exchange"), [want]);
                    }
                }
            });
        }
    });
}
