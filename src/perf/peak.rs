//! Peaks of the adapter: of arithmetic, published or measured, to which MFU refers, and of its memory.

use crate::device::{AdapterReport, Gpu, GpuOptions, Guard, Job};
use crate::error::Result;
use crate::kernels::PublishedGpu;
use crate::ops::add::add;
use crate::ops::matmul::{Epilogue, Layout, matmul};
use std::time::{Duration, Instant};

/// The reference of MFU, in FLOP/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Peak {
    /// The vendor's peak of f32 arithmetic without tensor cores.
    Published {
        /// The GPU.
        model: &'static str,
        /// FLOP/s.
        flops: f64,
    },
    /// The rate that a matrix product reaches ([`probe_matmul_rate`]), if no peak is published.
    Measured {
        /// FLOP/s.
        flops: f64,
    },
}

impl Peak {
    /// The published peak or, for an adapter without one, the rate measured now.
    ///
    /// # Errors
    /// A device that fails.
    pub async fn of(gpu: &Gpu) -> Result<Self> {
        match Self::published(gpu.report()) {
            Some(peak) => Ok(peak),
            None => Ok(Self::Measured { flops: probe_matmul_rate(gpu).await? }),
        }
    }

    /// The published peak of a well-known GPU.
    pub fn published(adapter: &AdapterReport) -> Option<Self> {
        let PublishedGpu { model, flops, .. } = PublishedGpu::named(&adapter.name)?;
        flops.map(|flops| Self::Published { model, flops })
    }

    /// Floating-point operations per second.
    pub const fn flops(self) -> f64 {
        match self {
            Self::Published { flops, .. } | Self::Measured { flops } => flops,
        }
    }
}

impl std::fmt::Display for Peak {
    /// `29.8 TFLOP/s, the published f32 peak of RTX 3080`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Published { model, flops } => {
                write!(f, "{:.1} TFLOP/s, the published f32 peak of {model}", flops / 1e12)
            }
            Self::Measured { flops } => {
                write!(f, "{:.1} GFLOP/s, the measured rate of matrix products", flops / 1e9)
            }
        }
    }
}

/// Sides of the square products that are measured: each takes eight times as long as the previous one.
const SIDES: [u32; 5] = [256, 512, 1024, 2048, 4096];

/// A product that takes this long fills the adapter, and a launch costs little compared to it. A product that takes
/// eight times as long still stays far below the time after which a driver resets a GPU, which a single launch must not
/// exceed.
const LONG_ENOUGH: Duration = Duration::from_millis(5);

/// Floating-point operations per second of a square f32 matrix product with the kernel that training uses, the best of
/// three. Grows the product until it takes 5 ms, so that it suits slow adapters and fast ones.
///
/// # Errors
/// A device that fails.
pub async fn probe_matmul_rate(gpu: &Gpu) -> Result<f64> {
    let mut rate: f64 = 0.0;
    for side in SIDES {
        let time = time_product(gpu, side).await?;
        rate = rate.max(operations(side) / time.as_secs_f64());
        if time >= LONG_ENOUGH {
            break;
        }
    }
    Ok(rate)
}

/// Bytes per second, read and written, of a kernel that only copies 64 MiB (16 MiB on a software adapter), the best
/// of three.
///
/// # Errors
/// A device that fails.
pub async fn probe_memory_rate(gpu: &Gpu) -> Result<f64> {
    let rows: u32 = if gpu.report().is_software { 4096 } else { 16384 };
    let mut job = Job::new("probe", gpu.capabilities());
    let [x, y] = [(); 2].map(|()| job.output(rows, 1024));
    add(&mut job.rec, x, y, 1.0, false);
    Ok(2.0 * x.bytes() as f64 / best_of_three(gpu, job).await?.as_secs_f64())
}

/// What the checks of every buffer access cost that wgpu has Vulkan drivers make.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostOfChecks {
    /// The rate of matrix products without the checks, divided by that with them.
    pub products: f64,
    /// The same of bytes of memory per second.
    pub memory: f64,
}

/// From this ratio on, runs of this crate's own kernels should leave the checks out.
const WORTH_LEAVING_OUT: f64 = 1.05;

impl CostOfChecks {
    /// Measures the adapter that `options` choose, with the checks and without, in turns. `None` where there are none,
    /// which is on every backend but Vulkan.
    ///
    /// # Errors
    /// A device that fails, or that cannot be opened without the checks.
    pub async fn measure(options: &GpuOptions) -> Result<Option<Self>> {
        let mut devices = Vec::new();
        for unchecked_buffers in [false, true] {
            devices.push(Gpu::request(&GpuOptions { unchecked_buffers, ..options.clone() }).await?);
            if devices[0].report().backend != "Vulkan" {
                return Ok(None);
            }
        }
        let mut best = [[0.0f64; 2]; 2];
        for turn in 0..4 {
            let (gpu, best) = (&devices[turn % 2], &mut best[turn % 2]);
            let rates = [probe_matmul_rate(gpu).await?, probe_memory_rate(gpu).await?];
            *best = [best[0].max(rates[0]), best[1].max(rates[1])];
        }
        let [checked, unchecked] = best;
        Ok(Some(Self { products: unchecked[0] / checked[0], memory: unchecked[1] / checked[1] }))
    }
}

impl std::fmt::Display for CostOfChecks {
    /// The two ratios, and what follows for `context.robust_buffers`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { products, memory } = self;
        write!(
            f,
            "without the driver's checks of buffers products are {products:.2} times as fast, memory {memory:.2}"
        )?;
        match products.max(*memory) >= WORTH_LEAVING_OUT {
            true => write!(f, ": write context.robust_buffers: False"),
            false => Ok(()),
        }
    }
}

/// Multiplications and additions of a square product.
fn operations(side: u32) -> f64 {
    2.0 * f64::from(side).powi(3)
}

async fn time_product(gpu: &Gpu, side: u32) -> Result<Duration> {
    let mut job = Job::new("probe", gpu.capabilities());
    let [a, b, y] = [(); 3].map(|()| job.output(side, side));
    matmul(&mut job.rec, Layout::Nn, a, b, y, Epilogue::default());
    best_of_three(gpu, job).await
}

/// The time of a replay of `job`, the best of three after a first one that also compiles and clears.
async fn best_of_three(gpu: &Gpu, job: Job) -> Result<Duration> {
    let probe = gpu.prepare_job(job, Guard::Off).await?;
    let mut best = Duration::MAX;
    for _ in 0..4 {
        let start = Instant::now();
        probe.replay().await?;
        gpu.wait().await?;
        best = best.min(start.elapsed());
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_that_cost_much_name_the_key() {
        let line = |products, memory| CostOfChecks { products, memory }.to_string();
        let start = "without the driver's checks of buffers products are";
        assert_eq!(line(1.04, 0.99), format!("{start} 1.04 times as fast, memory 0.99"));
        let advice = ": write context.robust_buffers: False";
        assert_eq!(line(1.0, 1.31), format!("{start} 1.00 times as fast, memory 1.31{advice}"));
    }

    /// The budget of a submission in training.
    const BUDGET: Duration = Duration::from_millis(200);

    /// The largest launch of a probe on an adapter that reaches `rate` FLOP/s with products of every size.
    fn longest(rate: f64) -> Duration {
        let times = SIDES.map(|side| Duration::from_secs_f64(operations(side) / rate));
        let last = times.iter().position(|time| *time >= LONG_ENOUGH).unwrap_or(times.len() - 1);
        times[last]
    }

    #[test]
    fn a_peak_says_where_it_comes_from() {
        let published = Peak::Published { model: "RTX 3080", flops: 29.8e12 };
        assert_eq!(published.to_string(), "29.8 TFLOP/s, the published f32 peak of RTX 3080");
        let measured = Peak::Measured { flops: 41e9 };
        assert_eq!(measured.to_string(), "41.0 GFLOP/s, the measured rate of matrix products");
    }

    #[test]
    fn no_launch_exceeds_the_budget_of_a_submission() {
        // From 0.2 GFLOP/s, a core without vectors, to 200 TFLOP/s.
        for step in 0..=60 {
            let rate = 2e8 * 10f64.powf(f64::from(step) / 10.0);
            assert!(longest(rate) <= BUDGET, "{rate:e} FLOP/s: a launch takes {:?}", longest(rate));
        }
        // One launch of 4096³ took longer than the budget on every adapter below 687 GFLOP/s.
        assert!(Duration::from_secs_f64(operations(4096) / 68e9) > Duration::from_secs(2));
    }
}
