//! Ranks that end at any moment: the others end too, and the run goes on from its newest checkpoint as if nothing had happened.

use crate::runs::{FolderRun, Setup};
use gristmill::error::{Error, Result};
use gristmill::random::Philox;
use gristmill::ranks::{Ranks, Transport, in_process};
use gristmill::train::run::{Summary, run_on_ranks};
use pollster::block_on;
use std::sync::Arc;
use std::time::{Duration, Instant};

const RANKS: usize = 3;
const STEPS: u64 = 16;
const DEATHS: u64 = 30;

/// How long the others may take to end.
const WITHIN: Duration = Duration::from_secs(30);

/// A rank that ends after so many exchanges: its messages so far arrive, then nothing.
struct Mortal {
    end: Option<in_process::InProcess>,
    rank: usize,
    exchanges: u64,
}

impl Transport for Mortal {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        RANKS
    }

    fn local_rank(&self) -> usize {
        self.rank
    }

    fn exchange(&mut self, outgoing: &[(usize, &[u8])], incoming: &mut [(usize, &mut [u8])]) -> Result<()> {
        if self.exchanges == 0 {
            self.end = None;
        }
        self.exchanges = self.exchanges.saturating_sub(1);
        match &mut self.end {
            Some(end) => end.exchange(outgoing, incoming),
            None => Err(Error::Ranks("this rank has died".into())),
        }
    }
}

/// A tiny run that saves every second step.
fn tiny() -> FolderRun {
    let keys = [
        "--model.model_config={type: LlamaConfig, vocab_size: 256, hidden_size: 16, num_layers: 1, num_heads: 2, seq_length: 8, \
         intermediate_size: 16}",
        "--callbacks=[{type: CheckpointMonitor, save_checkpoint_steps: 2, keep_checkpoint_max: 2}]",
        "--gradient_accumulation_steps=1",
        "--use_parallel=True",
        "--parallel_config.data_parallel=3",
        "--parallel.enable_parallel_optimizer=True",
    ];
    FolderRun::new(Setup::new("mortal", "").with(&keys))
}

/// One life of the run: `victim` ends after `exchanges` of its exchanges, if the run lasts so long.
fn live(run: &FolderRun, victim: usize, exchanges: u64) -> Vec<Result<Summary>> {
    let config = run.setup.write(run.home.path());
    let mut arguments = run.setup.overrides.clone();
    arguments.extend([format!("--stop_step={STEPS}"), "--resume_training=auto".into()]);
    let of_rank = |end: in_process::InProcess| {
        let rank = end.rank();
        let exchanges = if rank == victim { exchanges } else { u64::MAX };
        let ranks = Ranks::start(move || Ok(Box::new(Mortal { end: Some(end), rank, exchanges }) as Box<_>));
        block_on(run_on_ranks(&config, &arguments, Arc::default(), ranks.expect("a thread")))
    };
    std::thread::scope(|scope| {
        let of_rank = &of_rank;
        let threads: Vec<_> =
            in_process::connect(RANKS).into_iter().map(|end| scope.spawn(move || of_rank(end))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

#[test]
fn a_rank_may_end_at_any_moment() {
    let random = Philox::new(7, 0);
    let want = tiny();
    live(&want, 0, u64::MAX).into_iter().for_each(|result| drop(result.expect("a whole run")));
    let want = want.left();
    let (mut run, mut whole) = (tiny(), 0);
    for death in 0..DEATHS {
        let [victim, moment, ..] = random.block(death);
        let (victim, moment) = (victim as usize % RANKS, 20 + u64::from(moment) % 160);
        let since = Instant::now();
        let results = live(&run, victim, moment);
        let took = since.elapsed();
        let newest = run.newest();
        println!("rank {victim} ends after {moment} exchanges: {took:.1?}, newest checkpoint {newest:?}");
        assert!(took < WITHIN, "the others took {took:?}");
        if results[victim].is_ok() {
            // The run was shorter than its life.
            results.into_iter().for_each(|result| drop(result.expect("a whole run")));
            run.left().assert_equals("interrupted by deaths", &want);
            (run, whole) = (tiny(), whole + 1);
            continue;
        }
        for (rank, result) in results.into_iter().enumerate().filter(|(rank, _)| *rank != victim) {
            let line = result.expect_err("no rank goes on alone").to_string();
            let expected = format!("rank {victim} has ended, and the run cannot go on without it");
            assert!(line.ends_with(&expected), "rank {rank}: {line}");
        }
    }
    live(&run, 0, u64::MAX).into_iter().for_each(|result| drop(result.expect("a whole run")));
    run.left().assert_equals("interrupted by deaths", &want);
    println!("{} runs lasted through {DEATHS} deaths", whole + 1);
}
