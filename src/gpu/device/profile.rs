//! Per-launch timing with GPU timestamps.

use super::encoder::Encoder;
use super::gpu::Gpu;
use super::prepare::Program;
use super::readback::Reader;
use crate::error::{Error, Result};
use std::ops::Range;
use std::time::Duration;

/// How long a launch took by the device's clock.
#[derive(Clone, Copy, Debug)]
pub struct LaunchTime {
    /// From its start to its end.
    pub time: Duration,
    /// From the end of the launch before it to its start; `None` for the first one of a submission.
    pub gap: Option<Duration>,
}

/// Pairs of timestamps in a query set; WebGPU allows 4096 queries.
const PAIRS: usize = 2048;

impl Encoder<'_> {
    /// Adds every dispatch of `program` as [`replay`](Self::replay) does, but each in a pass of its own between two
    /// timestamps; submits them, and waits for the times. For profiling: it creates buffers.
    ///
    /// # Errors
    /// A program with exchanges, an adapter without timestamps, or a device failure.
    pub async fn replay_timed(&mut self, program: &Program) -> Result<Vec<LaunchTime>> {
        self.gpu().check_timestamps()?;
        if !program.exchanges.is_empty() {
            return Err(Error::Device(format!(
                "{} exchanges with other ranks and is not timed",
                program.name
            )));
        }
        self.flush().await?;
        let all = program.launches.len();
        let ends = program.slices.ends().unwrap_or([all].into());
        let (mut times, mut start) = (Vec::with_capacity(all), 0);
        for end in ends.iter().copied() {
            while start < end {
                let stop = end.min(start + PAIRS);
                times.extend(self.time_launches(program, start..stop).await?);
                start = stop;
            }
        }
        Ok(times)
    }

    /// Submits the launches of `range`, and returns their times.
    async fn time_launches(&mut self, program: &Program, range: Range<usize>) -> Result<Vec<LaunchTime>> {
        let (gpu, count) = (self.gpu(), 2 * range.len() as u32);
        let queries = gpu.device.create_query_set(&wgpu::QuerySetDescriptor {
            label: None,
            ty: wgpu::QueryType::Timestamp,
            count,
        });
        let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        let resolved = gpu.buffer("timestamps", 8 * u64::from(count), usage, Vec::new).await?;
        for (launch, first) in program.launches[range].iter().zip((0..).step_by(2)) {
            let mut pass = self.commands.begin_compute_pass(&wgpu::ComputePassDescriptor {
                label: None,
                timestamp_writes: Some(wgpu::ComputePassTimestampWrites {
                    query_set: &queries,
                    beginning_of_pass_write_index: Some(first),
                    end_of_pass_write_index: Some(first + 1),
                }),
            });
            launch.encode(&mut pass);
        }
        self.commands.resolve_query_set(&queries, 0..count, &resolved, 0);
        self.flush().await?;
        let ticks = gpu.read_ticks(&resolved).await?;
        Ok(times(&ticks, gpu.queue.get_timestamp_period().into()))
    }
}

impl Gpu {
    /// Fails on an adapter without timestamps, which profiling needs.
    ///
    /// # Errors
    /// One line that names the adapter.
    pub fn check_timestamps(&self) -> Result<()> {
        let lacks = || {
            Error::Device(format!(
                "{} has no timestamps, so its launches cannot be timed",
                self.report().name
            ))
        };
        self.has_timestamps().then_some(()).ok_or_else(lacks)
    }

    async fn read_ticks(&self, buffer: &wgpu::Buffer) -> Result<Vec<u64>> {
        let reader = Reader::new(self, buffer.size()).await?;
        let bytes = reader.read_buffer(self, buffer, 0, buffer.size()).await?;
        let tick = |b: &[u8]| u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]);
        Ok(bytes.chunks_exact(8).map(tick).collect())
    }
}

/// The times of the launches of one submission, from the ticks at the start and at the end of each; `period`:
/// nanoseconds per tick.
fn times(ticks: &[u64], period: f64) -> Vec<LaunchTime> {
    let between = |from: u64, to: u64| Duration::from_nanos((to.saturating_sub(from) as f64 * period) as u64);
    let ends = std::iter::once(None).chain(ticks.chunks_exact(2).map(|pair| Some(pair[1])));
    let of = |(pair, before): (&[u64], Option<u64>)| LaunchTime {
        time: between(pair[0], pair[1]),
        gap: before.map(|end| between(end, pair[0])),
    };
    ticks.chunks_exact(2).zip(ends).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_times_and_gaps() {
        let times = times(&[100, 150, 160, 160, 155, 200], 10.0);
        let nanoseconds = |time: Duration| time.as_nanos();
        let got: Vec<_> = times.iter().map(|of| (nanoseconds(of.time), of.gap.map(nanoseconds))).collect();
        // Clocks of compute units may disagree: a launch never starts before the previous one has ended.
        assert_eq!(got, [(500, None), (0, Some(100)), (450, Some(0))]);
    }
}
