//! Runs on several ranks of this process, each with its own device.

use super::{Counting, Leased, Setup, Trained};
use gristmill::device::Gpu;
use gristmill::error::Result;
use gristmill::ranks::{Ranks, Transport, in_process};
use gristmill::settings::{Override, RunConfig, RunPlan};
use gristmill::train::TrainingRun;
use gristmill::train::run::Summary;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Runs `body` on `size` ranks in threads and returns what each gives, by rank.
pub fn on_ranks<T: Send>(size: usize, body: impl Fn(Ranks) -> T + Sync) -> Vec<T> {
    on_counting_ranks(size, |ranks, _| body(ranks))
}

/// The same, with the bytes that each has sent so far.
pub fn on_counting_ranks<T: Send>(size: usize, body: impl Fn(Ranks, &AtomicU64) -> T + Sync) -> Vec<T> {
    let ends = in_process::connect(size);
    std::thread::scope(|scope| {
        let threads: Vec<_> = ends
            .into_iter()
            .map(|end| {
                let body = &body;
                scope.spawn(move || {
                    let sent = Arc::new(AtomicU64::new(0));
                    let counting = Counting::new(end, sent.clone());
                    let ranks = Ranks::start(move || Ok(Box::new(counting) as Box<dyn Transport>));
                    body(ranks.unwrap_or_else(|e| panic!("{e}")), &sent)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank that ends well")).collect()
    })
}

/// Runs the file `config` as one of `ranks`, on a device that earlier runs have compiled kernels on. A file that is
/// refused opens none.
pub async fn run_on_rank(config: &Path, arguments: &[String], ranks: Ranks) -> Result<Summary> {
    let loaded = Override::parse_all(arguments)
        .and_then(|overrides| RunConfig::load_on_rank(config, &overrides, ranks.rank(), ranks.size()));
    match loaded {
        Ok(loaded) => {
            let mut gpu = Leased::of_run(&loaded.plan, ranks.rank());
            TrainingRun { gpu: Some(&mut gpu), ranks, ..TrainingRun::new(config, arguments) }.train().await
        }
        Err(_) => TrainingRun { ranks, ..TrainingRun::new(config, arguments) }.train().await,
    }
}

impl Setup {
    /// The plan of rank `rank` of `size`.
    pub fn plan_on_rank(&self, rank: usize, size: usize) -> RunPlan {
        let overrides = Override::parse_all(&self.overrides).expect("overrides");
        let config = RunConfig::parse_on_rank(&self.yaml(), Path::new("test.yaml"), &overrides, rank, size);
        config.unwrap_or_else(|e| panic!("{e}")).plan
    }

    /// Trains `steps` steps on `size` ranks that share a device, and with it the kernels that are compiled.
    pub fn train_on_one_device(&self, gpu: &Gpu, size: usize, steps: u64) -> Vec<Trained> {
        on_ranks(size, |ranks| {
            let plan = match size {
                1 => self.plan(),
                _ => self.plan_on_rank(ranks.rank(), size),
            };
            self.train_on_device(gpu, &plan, None, steps, ranks)
        })
    }

    /// Trains `steps` steps on `size` ranks.
    pub fn train_on_ranks(&self, size: usize, steps: u64) -> Vec<Trained> {
        on_ranks(size, |ranks| self.train_plan_on(&self.plan_on_rank(ranks.rank(), size), None, steps, ranks))
    }
}
