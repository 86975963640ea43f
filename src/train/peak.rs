//! Measured peaks of the adapter: of matrix products, which MFU refers to, and of its memory.

use crate::device::{Gpu, Guard, Job};
use crate::error::Result;
use crate::ops::add::add;
use crate::ops::matmul::{Epilogue, Layout, matmul};
use std::time::{Duration, Instant};

/// Floating-point operations per second of a square f32 matrix product with the kernel that training uses, the best
/// of three. Takes a fraction of a second.
///
/// # Errors
/// A device that fails.
pub async fn probe_matmul_rate(gpu: &Gpu) -> Result<f64> {
    let side: u32 = if gpu.report().is_software { 384 } else { 4096 };
    let mut job = Job::new("probe", gpu.capabilities());
    let [a, b, y] = [(); 3].map(|()| job.output(side, side));
    matmul(&mut job.rec, Layout::Nn, a, b, y, Epilogue::default());
    Ok(2.0 * (side as f64).powi(3) / best_of_three(gpu, job).await?)
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
    Ok(2.0 * x.bytes() as f64 / best_of_three(gpu, job).await?)
}

/// Seconds that a replay of `job` takes, the best of three after a first one that also compiles and clears.
async fn best_of_three(gpu: &Gpu, job: Job) -> Result<f64> {
    let probe = gpu.prepare_job(job, Guard::Off).await?;
    let mut best = Duration::MAX;
    for _ in 0..4 {
        let start = Instant::now();
        probe.replay().await?;
        gpu.wait().await?;
        best = best.min(start.elapsed());
    }
    Ok(best.as_secs_f64())
}
