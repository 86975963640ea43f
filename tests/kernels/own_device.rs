//! Kernels on an application's own device, in its buffers and its command encoder.
//!
//! They are used as given; a range or a usage that does not fit is one line.

use gristmill::device::{Gpu, GpuOptions, Guard, Polling, Reader};
use gristmill::element::Element::F32;
use gristmill::ops::add::add;
use gristmill::record::{BufferId, Persistents, Recorder, Tensor, TransientId};
use gristmill::wgpu::{self, BufferUsages};
use pollster::block_on;

const ROWS: u32 = 16;
const COLS: u32 = 16;
const BYTES: u64 = 4 * (ROWS * COLS) as u64;

/// An application's device has no timestamps unless it asks for them.
#[test]
fn launches_are_not_timed_without_timestamps() {
    let (device, queue) = device_with(wgpu::Limits::default());
    let gpu = Gpu::from_device(&device, &queue, &GpuOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let refused = gpu.check_timestamps().expect_err("an error").to_string();
    assert_eq!(refused, format!("{} has no timestamps, so its launches cannot be timed", gpu.report().name));
}

/// A device with these limits, as an application opens it.
fn device_with(required_limits: wgpu::Limits) -> (wgpu::Device, wgpu::Queue) {
    let instance = wgpu::Instance::default();
    let adapter =
        block_on(instance.request_adapter(&wgpu::RequestAdapterOptions::default())).expect("an adapter");
    let descriptor = wgpu::DeviceDescriptor { required_limits, ..wgpu::DeviceDescriptor::default() };
    block_on(adapter.request_device(&descriptor)).expect("a device")
}

fn buffer(device: &wgpu::Device, size: u64, usage: BufferUsages) -> wgpu::Buffer {
    device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
}

/// y = 2 x, recorded on persistent tensors.
struct Doubled {
    persistents: Persistents,
    x: Tensor,
    y: Tensor,
    rec: Recorder,
}

fn doubled(gpu: &Gpu) -> Doubled {
    let mut persistents = Persistents::new();
    let [x, y] = ["x", "y"].map(|label| persistents.tensor(label, ROWS, COLS, F32));
    let mut rec = Recorder::new("doubled", gpu.capabilities());
    add(&mut rec, x, y, 2.0, false);
    Doubled { persistents, x, y, rec }
}

fn values() -> Vec<f32> {
    (0..ROWS * COLS).map(|i| i as f32).collect()
}

/// The application encodes, submits and polls; nothing but the ranges that were given is written.
#[test]
fn an_application_encodes_and_polls() {
    let (device, queue) = device_with(wgpu::Limits::default());
    let options = GpuOptions { polling: Polling::Application, ..GpuOptions::default() };
    let gpu = Gpu::from_device(&device, &queue, &options).unwrap_or_else(|e| panic!("{e}"));
    let input = buffer(&device, 3 * BYTES, BufferUsages::STORAGE | BufferUsages::COPY_DST);
    let output =
        buffer(&device, 3 * BYTES, BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST);
    let readback = buffer(&device, 3 * BYTES, BufferUsages::MAP_READ | BufferUsages::COPY_DST);
    queue.write_buffer(&input, BYTES, bytemuck::cast_slice(&values()));
    queue.write_buffer(&output, 0, &[0xff; 3 * BYTES as usize]);
    let Doubled { persistents, x, y, rec } = doubled(&gpu);
    let places = [(x.buffer, input.slice(BYTES..2 * BYTES)), (y.buffer, output.slice(BYTES..2 * BYTES))];
    let buffers = block_on(gpu.bind_persistent(&persistents, &places)).unwrap_or_else(|e| panic!("{e}"));
    let prepared =
        block_on(gpu.prepare(&[&rec.finish()], &buffers, Guard::Off)).unwrap_or_else(|e| panic!("{e}"));

    let mut commands = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    prepared.programs[0].encode(&mut commands);
    commands.copy_buffer_to_buffer(&output, 0, &readback, 0, 3 * BYTES);
    queue.submit([commands.finish()]);
    readback.map_async(wgpu::MapMode::Read, .., |mapped| mapped.expect("the device works"));
    device.poll(wgpu::PollType::wait_indefinitely()).expect("the device works");
    let bytes = readback.get_mapped_range(..).expect("it is mapped").to_vec();

    let size = BYTES as usize;
    let want: Vec<f32> = values().iter().map(|value| 2.0 * value).collect();
    assert_eq!(F32.decode(&bytes[size..2 * size]), want);
    let around = [&bytes[..size], &bytes[2 * size..]].concat();
    assert!(around.iter().all(|&byte| byte == 0xff), "wrote outside the range");
    assert_eq!(gpu.submissions(), 0);
}

/// Our own futures complete by whoever polls: our thread, or one of the application's.
#[test]
fn futures_complete_by_either_polling() {
    for polling in [Polling::Thread, Polling::Application] {
        let (device, queue) = device_with(wgpu::Limits::default());
        let gpu = Gpu::from_device(&device, &queue, &GpuOptions { polling, ..GpuOptions::default() });
        let gpu = gpu.unwrap_or_else(|e| panic!("{e}"));
        let done = std::sync::atomic::AtomicBool::new(false);
        let doubled = std::thread::scope(|scope| {
            if polling == Polling::Application {
                scope.spawn(|| {
                    while !done.load(std::sync::atomic::Ordering::Relaxed) {
                        device.poll(wgpu::PollType::Poll).expect("the device works");
                        std::thread::yield_now();
                    }
                });
            }
            let doubled = block_on(gpu.run(|job| {
                let (x, y) = (job.input(&values(), ROWS, COLS), job.output(ROWS, COLS));
                add(&mut job.rec, x, y, 2.0, false);
                y
            }));
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            doubled
        });
        let want: Vec<f32> = values().iter().map(|value| 2.0 * value).collect();
        assert_eq!(doubled.unwrap_or_else(|e| panic!("{e}")), want, "{polling:?}");
    }
}

#[test]
fn a_device_with_too_low_limits_is_refused() {
    let limits = wgpu::Limits { max_storage_buffers_per_shader_stage: 4, ..wgpu::Limits::default() };
    let (device, queue) = device_with(limits);
    let error = Gpu::from_device(&device, &queue, &GpuOptions::default()).err().expect("too few bindings");
    let error = error.to_string();
    assert!(error.contains("max_storage_buffers_per_shader_stage 4, and the kernels need 8"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn ranges_that_do_not_fit_are_one_line() {
    let (device, queue) = device_with(wgpu::Limits::default());
    let gpu = Gpu::from_device(&device, &queue, &GpuOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let Doubled { persistents, x, .. } = doubled(&gpu);
    let storage = buffer(&device, 2 * BYTES, BufferUsages::STORAGE);
    let uniform = buffer(&device, 2 * BYTES, BufferUsages::UNIFORM);
    let transient = BufferId::Transient(TransientId(0));
    for (id, slice, what) in [
        (x.buffer, storage.slice(4..), "buffer `x`: its range starts at byte 4;"),
        (
            x.buffer,
            storage.slice(BYTES + 256..),
            "buffer `x`: its range has 768 bytes and its tensors take 1024;",
        ),
        (x.buffer, uniform.slice(..), "buffer `x`: it lacks the usage STORAGE;"),
        (transient, storage.slice(..), "a range was given for Transient(TransientId(0))"),
    ] {
        let error =
            block_on(gpu.bind_persistent(&persistents, &[(id, slice)])).err().expect(what).to_string();
        assert!(error.starts_with(what) && error.lines().count() == 1, "{error}");
    }
}

/// wgpu itself would panic in the application's error handler, or when the commands are submitted.
#[test]
fn what_a_buffer_does_not_allow_is_one_line() {
    let (device, queue) = device_with(wgpu::Limits::default());
    let new = || Gpu::from_device(&device, &queue, &GpuOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let gpu = new();
    let Doubled { persistents, x, y, rec } = doubled(&gpu);
    let recording = rec.finish();
    let storage = buffer(&device, 2 * BYTES, BufferUsages::STORAGE);
    let bind =
        |places: &[_]| block_on(gpu.bind_persistent(&persistents, places)).unwrap_or_else(|e| panic!("{e}"));

    let one_buffer = bind(&[(x.buffer, storage.slice(..BYTES)), (y.buffer, storage.slice(BYTES..))]);
    let error =
        block_on(gpu.prepare(&[&recording], &one_buffer, Guard::Off)).err().expect("read and written");
    let error = error.to_string();
    assert!(error.contains("`x` is read and `y` written in one buffer"), "{error}");

    let buffers = bind(&[(y.buffer, storage.slice(..BYTES))]);
    let prepared =
        block_on(gpu.prepare(&[&recording], &buffers, Guard::Off)).unwrap_or_else(|e| panic!("{e}"));
    let reader = block_on(Reader::new(&gpu, BYTES)).unwrap_or_else(|e| panic!("{e}"));
    let error = block_on(reader.tensor(&gpu, &buffers, &prepared, 0, &y)).expect_err("no COPY_SRC");
    assert!(error.to_string().starts_with("buffer `y` lacks the usage COPY_SRC;"), "{error}");
    let BufferId::Persistent(id) = y.buffer else { panic!("y is persistent") };
    gpu.write(&buffers, id, 0, &[0; 16]);
    let error = gpu.check().expect_err("no COPY_DST").to_string();
    assert!(error.contains("buffer `y` lacks the usage COPY_DST;"), "{error}");
    assert!(new().check().is_ok());
}
