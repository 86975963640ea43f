//! Kernels on an application's own device: its buffers hold the tensors, its command encoder takes the dispatches, and
//! it submits and polls. `cargo run --release --example own_device`

use gristmill::device::Polling;
use gristmill::ops::matmul::{Epilogue, Layout, matmul};
use gristmill::prelude::*;
use gristmill::wgpu::{self, BufferUsages};
use pollster::block_on;

/// y (N, N) = x wᵀ of x and w (N, N).
const N: u32 = 64;
const BYTES: u64 = 4 * (N * N) as u64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The application's device, with x and w in one of its buffers, y in another, and a third to read y.
    let adapter =
        block_on(wgpu::Instance::default().request_adapter(&wgpu::RequestAdapterOptions::default()))?;
    let (device, queue) = block_on(adapter.request_device(&wgpu::DeviceDescriptor::default()))?;
    let buffer = |label, size, usage| {
        let descriptor =
            wgpu::BufferDescriptor { label: Some(label), size, usage, mapped_at_creation: false };
        device.create_buffer(&descriptor)
    };
    let inputs = buffer("inputs", 2 * BYTES, BufferUsages::STORAGE | BufferUsages::COPY_DST);
    let output = buffer("output", BYTES, BufferUsages::STORAGE | BufferUsages::COPY_SRC);
    let readback = buffer("readback", BYTES, BufferUsages::MAP_READ | BufferUsages::COPY_DST);
    let values: Vec<f32> = (0..2 * N * N).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
    queue.write_buffer(&inputs, 0, bytemuck::cast_slice(&values));

    // Gristmill: a recording whose tensors are ranges of these buffers.
    let options = GpuOptions { polling: Polling::Application, ..GpuOptions::default() };
    let gpu = Gpu::from_device(&device, &queue, &options)?;
    let mut persistents = Persistents::new();
    let [x, w, y] = ["x", "w", "y"].map(|label| persistents.tensor(label, N, N, Element::F32));
    let mut rec = Recorder::new("product", gpu.capabilities());
    matmul(&mut rec, Layout::Nt, x, w, y, Epilogue::default());
    let places =
        [(x.buffer, inputs.slice(..BYTES)), (w.buffer, inputs.slice(BYTES..)), (y.buffer, output.slice(..))];
    let buffers = block_on(gpu.bind_persistent(&persistents, &places))?;
    let prepared = block_on(gpu.prepare(&[&rec.finish()], &buffers, Guard::Off))?;

    // The application's frame: the product is one step among its own commands.
    let mut commands = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    prepared.programs[0].encode(&mut commands);
    commands.copy_buffer_to_buffer(&output, 0, &readback, 0, BYTES);
    queue.submit([commands.finish()]);
    readback.map_async(wgpu::MapMode::Read, .., |mapped| mapped.expect("the device works"));
    device.poll(wgpu::PollType::wait_indefinitely())?;

    let product = bytemuck::pod_collect_to_vec::<u8, f32>(&readback.get_mapped_range(..)?);
    let (x, w) = values.split_at((N * N) as usize);
    let (x_rows, w_rows) = (x.chunks(N as usize), w.chunks(N as usize));
    let dot = |(x, w): (&[f32], &[f32])| -> f64 {
        x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum()
    };
    let want = x_rows.flat_map(|x| w_rows.clone().map(move |w| dot((x, w))));
    let errors = product.iter().zip(want).map(|(product, want)| (f64::from(*product) - want).abs());
    println!("{}: the largest error is {:.1e}", gpu.report().name, errors.fold(0.0, f64::max));
    Ok(())
}
