//! Measured peaks of the adapter: of matrix products, which MFU refers to, and of its memory.

use crate::device::{Gpu, Guard};
use crate::element::Element;
use crate::error::Result;
use crate::ops::add::add;
use crate::ops::matmul::{Epilogue, Layout, matmul};
use crate::record::{Persistents, Recorder, Recording};
use std::time::{Duration, Instant};

/// Floating-point operations per second of a square f32 matrix product with the kernel that training uses, the best
/// of three. Takes a fraction of a second.
///
/// # Errors
/// A device that fails.
pub async fn probe_matmul_rate(gpu: &Gpu) -> Result<f64> {
    let side: u32 = if gpu.report().is_software { 384 } else { 4096 };
    let mut persistents = Persistents::new();
    let [a, b, y] = ["a", "b", "y"].map(|label| persistents.tensor(label, side, side, Element::F32));
    let mut rec = Recorder::new("probe", gpu.capabilities());
    matmul(&mut rec, Layout::Nn, a, b, y, Epilogue::default());
    Ok(2.0 * (side as f64).powi(3) / best_of_three(gpu, &persistents, rec.finish()).await?)
}

/// Bytes per second, read and written, of a kernel that only copies 64 MiB (16 MiB on a software adapter), the best
/// of three.
///
/// # Errors
/// A device that fails.
pub async fn probe_memory_rate(gpu: &Gpu) -> Result<f64> {
    let rows: u32 = if gpu.report().is_software { 4096 } else { 16384 };
    let mut persistents = Persistents::new();
    let [x, y] = ["x", "y"].map(|label| persistents.tensor(label, rows, 1024, Element::F32));
    let mut rec = Recorder::new("probe", gpu.capabilities());
    add(&mut rec, x, y, 1.0, false);
    Ok(2.0 * x.bytes() as f64 / best_of_three(gpu, &persistents, rec.finish()).await?)
}

/// Seconds that a replay of `recording` takes, the best of three after a first one that also compiles and clears.
async fn best_of_three(gpu: &Gpu, persistents: &Persistents, recording: Recording) -> Result<f64> {
    let buffers = gpu.make_persistent(persistents).await?;
    let prepared = gpu.prepare(&[&recording], &buffers, Guard::Off).await?;
    let mut best = Duration::MAX;
    for _ in 0..4 {
        let start = Instant::now();
        let mut encoder = gpu.encoder();
        encoder.replay(&prepared.programs[0]).await?;
        encoder.submit().await?;
        gpu.wait().await?;
        best = best.min(start.elapsed());
    }
    Ok(best.as_secs_f64())
}
