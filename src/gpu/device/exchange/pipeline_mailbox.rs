//! Rows on their way between the stages of a pipeline: the result of a half waits in host memory until the rank that
//! needs it has its turn (`ranks/pipeline.rs`).
//!
//! All that a turn sends and receives is one job of the communication thread. The host waits for received rows at once,
//! and for sent ones only when it needs their memory again.

use super::copy_sources;
use crate::device::encoder::Encoder;
use crate::device::gpu::Gpu;
use crate::device::mapping::{Mapping, copy_mapped};
use crate::device::prepare::Program;
use crate::device::staging::ToDevice;
use crate::error::{Error, Result};
use crate::ranks::pipeline::Half;
use crate::ranks::{Pending, Ranks};
use crate::record::{Collective, Exchange};
use std::collections::VecDeque;

/// The memory of results that wait to be sent, and of rows under way.
#[derive(Default)]
pub(super) struct PipelineMailbox {
    free: Vec<Outgoing>,
    waiting: Vec<(Half, Outgoing)>,
    under_way: VecDeque<Pending<Job>>,
    /// Used alternately: one is copied to the device while the other is filled.
    incoming: VecDeque<Incoming>,
}

/// The result of a half, on its way to another rank.
struct Outgoing {
    down: wgpu::Buffer,
    mapping: Option<Mapping>,
    bytes: Vec<u8>,
    to: usize,
}

/// Rows that another rank has sent.
struct Incoming {
    up: ToDevice,
    bytes: Vec<u8>,
}

/// The memory that a job gives back: the results it sent, and the rows it received.
type Job = (Vec<Outgoing>, Option<Vec<u8>>);

/// Number of buffers for received rows.
const INCOMING: u64 = 2;

impl PipelineMailbox {
    /// Memory for `waiting` results, and for received rows; `bytes`: size of the largest.
    pub async fn new(gpu: &Gpu, waiting: usize, bytes: u64) -> Result<Self> {
        let mut passing = Self::default();
        if bytes == 0 {
            return Ok(passing);
        }
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        for _ in 0..waiting {
            let down = gpu.buffer("stage, from the device", bytes, usage, Vec::new).await?;
            let bytes = Vec::with_capacity(bytes as usize);
            passing.free.push(Outgoing { down, mapping: None, bytes, to: 0 });
        }
        for _ in 0..INCOMING {
            let up = ToDevice::new(gpu, "stage, to the device", bytes).await?;
            passing.incoming.push_back(Incoming { up, bytes: Vec::with_capacity(bytes as usize) });
        }
        Ok(passing)
    }

    /// Bytes of staging buffers. Host memory takes as many bytes again.
    pub fn staging_bytes(waiting: usize, bytes: u64) -> u64 {
        (waiting as u64 + INCOMING) * bytes
    }

    /// Copies the result of `half`, the sources of an exchange of `program` that sends them to the rank `to`, to the
    /// host.
    pub async fn post(
        &mut self,
        encoder: &mut Encoder<'_>,
        half: Half,
        to: usize,
        (program, exchange): (&Program, &Exchange),
    ) -> Result<()> {
        let mut outgoing = self.take_free().await?;
        copy_sources(encoder, program, exchange, &outgoing.down);
        encoder.flush().await?;
        let bytes = exchange.room().down;
        outgoing.bytes.resize(bytes as usize, 0);
        outgoing.to = to;
        let mapping = Mapping::request(encoder.gpu(), &outgoing.down, wgpu::MapMode::Read, bytes);
        outgoing.mapping = Some(mapping);
        self.waiting.push((half, outgoing));
        Ok(())
    }

    /// Sends the results of the halves `sends`, and copies the rows that an exchange of a program receives to the
    /// device.
    pub async fn pass(
        &mut self,
        encoder: &mut Encoder<'_>,
        ranks: &Ranks,
        sends: &[Half],
        receiving: Option<(&Program, &Exchange)>,
    ) -> Result<()> {
        let gpu = encoder.gpu();
        let mut sent = Vec::with_capacity(sends.len());
        for half in sends {
            let Some(place) = self.waiting.iter().position(|(waiting, _)| waiting == half) else {
                return Err(Error::Device(format!("{half:?} is sent before it is computed")));
            };
            let (_, mut outgoing) = self.waiting.remove(place);
            if let Some(mut mapping) = outgoing.mapping.take() {
                mapping.arrived(gpu).await?;
            }
            copy_mapped(&outgoing.down, &mut outgoing.bytes, 0, |_| None)?;
            sent.push(outgoing);
        }
        let mut incoming = receiving.and_then(|_| self.incoming.pop_front());
        let received = incoming.as_mut().zip(receiving).and_then(|(incoming, (_, exchange))| {
            let Collective::Receive { from, .. } = exchange.collective else { return None };
            let mut bytes = std::mem::take(&mut incoming.bytes);
            bytes.resize(exchange.room().up as usize, 0);
            Some((from, bytes))
        });
        if sent.is_empty() && received.is_none() {
            return Ok(());
        }
        let job = ranks.run(move |transport| {
            let (mut received, from) = received.map_or((None, 0), |(from, bytes)| (Some(bytes), from));
            let outgoing: Vec<_> = sent.iter().map(|one| (one.to, one.bytes.as_slice())).collect();
            let mut into: Vec<_> = received.iter_mut().map(|bytes| (from, bytes.as_mut_slice())).collect();
            transport.exchange(&outgoing, &mut into)?;
            Ok((sent, received))
        });
        let Some((mut incoming, (program, exchange))) = incoming.zip(receiving) else {
            self.under_way.push_back(job);
            return Ok(());
        };
        // The device runs the commands added so far while the host waits.
        encoder.flush().await?;
        let (sent, received) = job.await?;
        self.free.extend(sent);
        incoming.bytes = received.unwrap_or_default();
        let results = program.ranges(exchange.collective.results());
        incoming.up.copy(gpu, encoder, &incoming.bytes, results).await?;
        encoder.flush().await?;
        incoming.up.recycle(gpu);
        self.incoming.push_back(incoming);
        Ok(())
    }

    /// Memory for one more result; if none is free, waits for the oldest job and takes its memory.
    async fn take_free(&mut self) -> Result<Outgoing> {
        while self.free.is_empty() {
            let Some(job) = self.under_way.pop_front() else {
                return Err(Error::Device("there is no staging buffer for the rows of a stage".into()));
            };
            let (sent, _) = job.await?;
            self.free.extend(sent);
        }
        Ok(self.free.pop().expect("one is free"))
    }
}
