//! Per-dispatch timing with GPU timestamps.

use super::gpu::Gpu;
use super::prepare::Program;
use crate::error::{Error, Result};
use std::time::Duration;

/// The duration of one dispatch.
#[derive(Clone, Debug)]
pub struct DispatchTime {
    /// Path of the op that recorded it.
    pub path: String,
    /// The kernel variant.
    pub kernel: String,
    /// GPU time between the timestamps before and after it.
    pub time: Duration,
}

impl std::fmt::Display for DispatchTime {
    /// Path, kernel and microseconds, between tabs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\t{}\t{:.3}", self.path, self.kernel, 1e6 * self.time.as_secs_f64())
    }
}

/// Timestamp pairs per query set; WebGPU allows 4096 queries.
const PAIRS: usize = 2048;

impl Gpu {
    /// Replays `program` with every dispatch in its own pass, between two timestamps. For profiling, not for training.
    ///
    /// # Errors
    /// An adapter without timestamps, or a device failure.
    pub async fn profile(&self, program: &Program) -> Result<Vec<DispatchTime>> {
        if !self.has_timestamps() {
            return Err(Error::Device(format!("{} does not support timestamps", self.report().name)));
        }
        let mut times = Vec::new();
        for launches in program.launches.chunks(PAIRS) {
            let count = 2 * launches.len() as u32;
            let queries = self.device.create_query_set(&wgpu::QuerySetDescriptor {
                label: None,
                ty: wgpu::QueryType::Timestamp,
                count,
            });
            let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
            let resolved = self.buffer("timestamps", 8 * count as u64, usage, Vec::new).await?;
            let mut encoder = self.encoder();
            for (i, launch) in launches.iter().enumerate() {
                let mut pass = encoder.commands.begin_compute_pass(&wgpu::ComputePassDescriptor {
                    label: None,
                    timestamp_writes: Some(wgpu::ComputePassTimestampWrites {
                        query_set: &queries,
                        beginning_of_pass_write_index: Some(2 * i as u32),
                        end_of_pass_write_index: Some(2 * i as u32 + 1),
                    }),
                });
                launch.encode(&mut pass);
            }
            encoder.commands.resolve_query_set(&queries, 0..count, &resolved, 0);
            encoder.submit().await?;
            let ticks = self.read_ticks(&resolved).await?;
            let period = self.queue.get_timestamp_period() as f64;
            for (launch, pair) in launches.iter().zip(ticks.chunks_exact(2)) {
                let nanoseconds = pair[1].saturating_sub(pair[0]) as f64 * period;
                let time = Duration::from_nanos(nanoseconds as u64);
                times.push(DispatchTime {
                    path: launch.path.clone(),
                    kernel: launch.kernel.to_string(),
                    time,
                });
            }
        }
        Ok(times)
    }

    async fn read_ticks(&self, buffer: &wgpu::Buffer) -> Result<Vec<u64>> {
        let mut bytes = Vec::new();
        let reader = super::readback::Reader::new(self, buffer.size()).await?;
        let take = async |piece: &[u8]| {
            bytes.extend_from_slice(piece);
            Ok(())
        };
        reader.read_buffer(self, buffer, 0, buffer.size(), take).await?;
        let tick = |b: &[u8]| u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]);
        Ok(bytes.chunks_exact(8).map(tick).collect())
    }
}
