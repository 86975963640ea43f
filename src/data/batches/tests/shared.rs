//! Batches of ranks that share a step.

use super::*;

#[test]
fn ranks_take_the_micro_batches_of_one_in_turns() {
    // Three micro-batches in a step on two ranks are six on one rank, epoch after epoch: 249 windows are 20 steps of
    // 12.
    let one = batches(1000, BatchSpec { micro_batches: 6, ..spec(4, 2) }, Some(3)).unwrap();
    for world in [2, 3, 6] {
        for rank in 0..world {
            let spec = BatchSpec { rank, world, ..one.spec().clone() };
            let shared = batches(1000, spec, Some(3)).unwrap();
            assert_eq!((shared.steps_per_epoch(), shared.fingerprint()), (20, one.fingerprint()));
            for number in [0, 1, 19, 20, 41, 77] {
                let among_all = number * world as u64 + rank as u64;
                assert_eq!(shared.batch(number).unwrap(), one.batch(among_all).unwrap(), "{rank} of {world}");
            }
        }
    }
    // A blend counts in rows and has no epochs.
    let one = three(Some(3), None);
    let (spec, sources) = (BatchSpec { rank: 1, world: 2, ..one.spec().clone() }, one.sources.iter());
    let sources = sources.cloned().collect();
    let odd = Batches::of_sources(sources, spec, Some(3), None).unwrap();
    (0..50).for_each(|number| assert_eq!(odd.batch(number).unwrap(), one.batch(2 * number + 1).unwrap()));
}

#[test]
fn an_evaluation_is_the_same_on_any_number_of_ranks() {
    let all = batches(101, spec(4, 2), None).unwrap();
    let one = all.clone().first(7);
    assert_eq!(
        (all.micro_steps_per_epoch(), one.micro_steps_per_epoch(), one.micro_steps_of_rank()),
        (12, 7, 7)
    );
    assert_eq!(all.first(99).micro_steps_per_epoch(), 12, "no more than there are");
    for world in 1..=8 {
        let of_rank = |rank| {
            let share = batches(101, BatchSpec { rank, world, ..spec(4, 2) }, None).unwrap().first(7);
            assert_eq!(share.micro_steps_of_rank(), 7u64.div_ceil(world as u64), "the same on each rank");
            assert_eq!(share.unigram_entropy(), one.unigram_entropy());
            (0..share.micro_steps_of_rank()).map(|number| share.batch(number).unwrap()).collect::<Vec<_>>()
        };
        let of_ranks: Vec<_> = (0..world).map(of_rank).collect();
        let taken: Vec<Batch> = (0..of_ranks[0].len())
            .flat_map(|turn| of_ranks.iter().map(move |own| own[turn].clone()))
            .collect();
        let counts = |batch: &Batch| batch.targets.iter().any(|target| *target != u32::MAX);
        let (counted, idle) = taken.split_at(7);
        assert!(counted.iter().zip(0..).all(|(batch, number)| *batch == one.batch(number).unwrap()));
        assert!(counted.iter().all(counts) && !idle.iter().any(counts), "{world} ranks");
        // The tokens that fill up a rank's share can be read by a model.
        assert!(idle.iter().all(|batch| batch.tokens == counted[6].tokens));
    }
}
