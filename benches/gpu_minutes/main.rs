//! Ten minutes of a GPU: what it is, whether its results are right, and how fast it is, beside what a model expects of
//! it.
//!
//! `cargo bench --bench gpu_minutes [-- --device-name NAME] [--tier software] [--only STAGE]... [--peer COMMAND]...
//! [--small]` runs the stages below one after the other and prints what each finds at once, so that whatever time there
//! was has told something; stages that fail are named at the end. Please send what it prints, whole, with a bug report
//! or a measurement.
//!
//! A COMMAND trains the same shape by another program; `{}` in it stands for V D L H F T B and steps, as in `--peer
//! 'python3 torch_train.py {} --device cuda'`. `--small` does a little of each stage on any adapter, and so does a run
//! by `cargo test`. For a machine without cargo copy this program, and beside it the test binary `kernels` as
//! `test-kernels`.

#[path = "../../tests/driver/mod.rs"]
mod compiled;
mod driver;
#[path = "../main_kernels/mod.rs"]
mod main_kernels;
mod probes;
#[path = "../random_run/mod.rs"]
mod random_run;
mod rates;
mod training;

use gristmill::device::{Gpu, GpuOptions, Guard, Job, PreparedJob};
use gristmill::error::Result;
use gristmill::kernels::{PublishedGpu, Tier};
use gristmill::record::Tensor;
use pollster::block_on;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// Its name, what it decides, and what it does.
type Stage = (&'static str, &'static str, fn(&Context));

/// What decides most in the first minute comes first. Before all of them is said whether Vulkan has a driver.
const STAGES: [Stage; 11] = [
    ("adapter", "which GPU it is: its tier, limits, units, shapes of matrices", driver::adapter),
    (
        "compiler",
        "whether its own compiler keeps what the main kernels compute with in registers",
        driver::compiler,
    ),
    ("probes", "what the model of a step may assume: multiply-adds, memory, launches", probes::probes),
    ("losses", "whether a user may train on it", training::losses),
    ("products", "which tile each product should have, and how far from the peak it is", rates::products),
    ("attention", "the same of attention, forward and backward", rates::attentions),
    (
        "steps",
        "whether steps take what the model of a step says; if not, what the profile shows",
        training::steps,
    ),
    ("checks", "whether runs should leave out the driver's checks of buffers", driver::checks),
    ("matrices", "whether the tier `matrix` may be chosen by itself", driver::matrices),
    ("peers", "how far other programs are ahead on this GPU", training::peers),
    ("tests", "whether each variant of each kernel is right", driver::tests),
];

/// What the stages share.
pub struct Context {
    gpu: Gpu,
    /// How f16 is converted.
    f16: String,
    published: Option<PublishedGpu>,
    is_small: bool,
    peers: Vec<String>,
}

struct Arguments {
    device_name: Option<String>,
    tier: Tier,
    only: Vec<String>,
    peers: Vec<String>,
    is_small: bool,
}

fn main() {
    // `cargo test NAME` passes the name to every program that it runs.
    if std::env::args().nth(1).is_some_and(|word| !word.starts_with('-') && !"gpu_minutes".contains(&word)) {
        return;
    }
    let arguments = Arguments::read(std::env::args().skip(1));
    let options = GpuOptions {
        device_name: arguments.device_name.clone(),
        tier: Some(arguments.tier),
        sources: probes::sources(),
        ..GpuOptions::default()
    };
    println!("== vulkan\n{}", compiled::vulkan_gpus().map_or_else(|e| e, |gpus| gpus.join("\n")));
    let mut gpu = block_on(Gpu::request(&options)).unwrap_or_else(|e| panic!("{e}"));
    let f16 = format!("{}; {}", block_on(gpu.try_native_f16()), block_on(gpu.check_widening()));
    let published = PublishedGpu::named(&gpu.report().name);
    let context = Context { gpu, f16, published, is_small: arguments.is_small, peers: arguments.peers };
    let is_wanted = |name: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == name);
    let mut failed = Vec::new();
    for (name, decides, stage) in STAGES.into_iter().filter(|(name, ..)| is_wanted(name)) {
        println!("\n== {name}: {decides}");
        let begin = Instant::now();
        if catch_unwind(AssertUnwindSafe(|| stage(&context))).is_err() {
            failed.push(name);
        }
        println!("== {name}: {:.1} s", begin.elapsed().as_secs_f64());
    }
    match failed.is_empty() {
        true => println!("\nall stages passed"),
        false => {
            println!("\nFAILED: {}", failed.join(", "));
            std::process::exit(1);
        }
    }
}

impl Arguments {
    /// Cargo passes `--bench` for a bench; a test is a small run.
    fn read(words: impl Iterator<Item = String>) -> Self {
        let words: Vec<String> = words.collect();
        let after = |flag: &str| {
            let values = words.windows(2).filter(|pair| pair[0] == flag).map(|pair| pair[1].clone());
            values.collect::<Vec<String>>()
        };
        let has = |flag: &str| words.iter().any(|word| word == flag);
        let only = after("--only");
        if let Some(unknown) = only.iter().find(|only| STAGES.iter().all(|(name, ..)| name != only)) {
            panic!("there is no stage `{unknown}`: {:?}", STAGES.map(|(name, ..)| name));
        }
        Self {
            device_name: after("--device-name").pop(),
            tier: after("--tier").pop().map_or(Tier::Portable, |name| Tier::named(&name).expect("a tier")),
            only,
            peers: after("--peer"),
            is_small: has("--small") || !has("--bench"),
        }
    }
}

impl Context {
    fn job(&self) -> Job {
        Job::new("gpu_minutes", self.gpu.capabilities())
    }

    /// The value of what the device or the crate was asked for.
    fn wait<T>(&self, result: Result<T>) -> T {
        result.unwrap_or_else(|e| panic!("{e}"))
    }

    fn prepare(&self, job: Job) -> PreparedJob<'_> {
        self.wait(block_on(self.gpu.prepare_job(job, Guard::Off)))
    }

    /// The seconds of a job, and what `outputs` hold after it.
    fn time(&self, job: Job, outputs: &[Tensor]) -> (f64, Vec<Vec<f32>>) {
        let prepared = self.prepare(job);
        let seconds = self.launch_seconds(&prepared).iter().sum();
        let values = outputs.iter().map(|output| self.wait(block_on(prepared.values(output))));
        (seconds, values.collect())
    }

    /// The seconds of each launch in the fastest of three replays, after one that compiles; without timestamps the time
    /// of all is that of the first.
    fn launch_seconds(&self, prepared: &PreparedJob<'_>) -> Vec<f64> {
        let replay = || {
            let begin = Instant::now();
            if self.gpu.has_timestamps() {
                let times = self.wait(block_on(prepared.replay_timed()));
                return times.iter().map(|launch| launch.time.as_secs_f64()).collect::<Vec<f64>>();
            }
            self.wait(block_on(prepared.replay()));
            self.wait(block_on(self.gpu.wait()));
            vec![begin.elapsed().as_secs_f64()]
        };
        replay();
        let total = |times: &Vec<f64>| times.iter().sum::<f64>();
        let replays = (0..if self.is_small { 1 } else { 3 }).map(|_| replay());
        replays.min_by(|a, b| total(a).total_cmp(&total(b))).expect("a replay")
    }

    /// A rate's share of the published peak, in words.
    fn of_peak(&self, flops: f64) -> String {
        let peak = self.published.and_then(|gpu| gpu.flops);
        peak.map_or(String::new(), |peak| format!(", {:.2} of the published peak", flops / peak))
    }
}
