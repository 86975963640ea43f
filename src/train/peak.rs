//! The rate that MFU is measured against.

use crate::device::{Gpu, Guard};
use crate::element::Element;
use crate::error::Result;
use crate::ops::matmul::{Epilogue, Layout, matmul};
use crate::record::{Persistents, Recorder};
use std::time::{Duration, Instant};

/// Floating-point operations per second of a square f32 matrix product with the kernel that training uses, the best of
/// three: what the adapter could do if training were nothing else. Takes a fraction of a second.
///
/// # Errors
/// A device that fails.
pub async fn probe_matmul_rate(gpu: &Gpu) -> Result<f64> {
    let side: u32 = if gpu.report().is_software { 384 } else { 4096 };
    let mut persistents = Persistents::new();
    let [a, b, y] = ["a", "b", "y"].map(|label| persistents.tensor(label, side, side, Element::F32));
    let mut rec = Recorder::new("probe", gpu.capabilities());
    matmul(&mut rec, Layout::Nn, a, b, y, Epilogue::default());
    let recording = rec.finish();
    let buffers = gpu.make_persistent(&persistents).await?;
    let prepared = gpu.prepare(&[&recording], &buffers, Guard::Off).await?;
    let mut best = Duration::MAX;
    for _ in 0..4 {
        let start = Instant::now(); // the first round also compiles and clears; the best of the others counts
        let mut encoder = gpu.encoder();
        encoder.replay(&prepared.programs[0]).await?;
        encoder.submit().await?;
        gpu.wait().await?;
        best = best.min(start.elapsed());
    }
    Ok(2.0 * (side as f64).powi(3) / best.as_secs_f64())
}
