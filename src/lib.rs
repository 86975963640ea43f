//! Hand-written WGSL kernels that train language models on any adapter wgpu reaches: Vulkan, Metal, DX12, or a software
//! adapter (llvmpipe, WARP). No CUDA, no Python.
//!
//! Three ways in:
//!
//! * **Train** from a YAML file: [`train::run()`], which is what `cargo run --release --example train_gpt` calls.
//! * **Build a model** of your own on the [`tape`]: its ops run a kernel forward and know its backward.
//! * **Use a kernel**: each function in [`ops`] appends one to a [`record::Recorder`]; [`device::Gpu`] prepares the
//!   recording and replays it.
//!
//! The models are Llama and GPT-2. Llama's layers may be mixtures of experts: [`model::config::MixtureConfig`] describes
//! them and the configuration keys that select their variants, [`ops::route`], [`ops::permute`] and [`ops::grouped_matmul`]
//! are their kernels, [`reference::mixture`] is the f64 reference. [`model::config::MultiToken`] configures multi-token
//! prediction.
//!
//! What runs is plain data; where it runs is separate, and only one module uses wgpu:
//!
//! ```text
//! settings -> data                               the configuration, and the tokens
//!             model -> tape -> ops -> record -> kernels   what runs: recordings, which need no adapter
//! generate -> model, device                      text generation with a KV cache
//! train  -> device -> record, kernels            where it runs: adapter, memory pool, pipelines, replay
//!        -> report -> store                      what a run reports, and what it keeps on disk
//! cli                                            the command lines, which may use every module
//! reference                                      the same mathematics in f64, for tests and readers
//! ```
//!
//! # Examples
//!
//! A matrix product on whatever adapter there is:
//!
//! ```
//! use gristmill::device::{Gpu, GpuOptions, Guard, Reader};
//! use gristmill::element::Element::F32;
//! use gristmill::ops::matmul::{Epilogue, Layout, matmul};
//! use gristmill::record::{BufferId, Persistents, Recorder};
//!
//! # fn main() -> gristmill::error::Result<()> {
//! # pollster::block_on(async {
//! let gpu = Gpu::request(&GpuOptions::default()).await?;
//! let mut persistents = Persistents::new();
//! let x = persistents.tensor("x", 2, 4, F32);
//! let w = persistents.tensor("w", 4, 4, F32);
//! let y = persistents.tensor("y", 2, 4, F32);
//!
//! let mut recorder = Recorder::new("example", gpu.capabilities());
//! matmul(&mut recorder, Layout::Nt, x, w, y, Epilogue::default()); // y = x wᵀ
//! let recording = recorder.finish();
//!
//! let buffers = gpu.make_persistent(&persistents).await?;
//! let prepared = gpu.prepare(&[&recording], &buffers, Guard::Off).await?;
//! let (BufferId::Persistent(x_id), BufferId::Persistent(w_id)) = (x.buffer, w.buffer) else { unreachable!() };
//! gpu.write(&buffers, x_id, 0, bytemuck::cast_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]));
//! let twice = [2.0f32, 0., 0., 0., 0., 2., 0., 0., 0., 0., 2., 0., 0., 0., 0., 2.];
//! gpu.write(&buffers, w_id, 0, bytemuck::cast_slice(&twice));
//!
//! let mut encoder = gpu.encoder();
//! encoder.replay(&prepared.programs[0]).await?;
//! encoder.submit().await?;
//! let bytes = Reader::new(&gpu, 1024).tensor(&gpu, &buffers, &prepared, 0, &y).await?;
//! assert_eq!(F32.decode(&bytes), [2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0]);
//! # Ok(())
//! # })
//! # }
//! ```
#![warn(missing_docs)]

pub mod cli;
pub mod data;
pub mod device;
pub mod durable;
pub mod element;
pub mod error;
pub mod generate;
pub mod kernels;
pub mod model;
pub mod ops;
pub mod random;
pub mod record;
pub mod reference;
pub mod report;
pub mod settings;
pub mod store;
pub mod tape;
pub mod train;
