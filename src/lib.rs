//! Hand-written WGSL kernels that train language models on any adapter wgpu reaches: Vulkan, Metal, DX12, or a software
//! adapter (llvmpipe, WARP). No CUDA, no Python.
//!
//! Four ways to use it:
//!
//! * **Train** from a YAML file: [`train::run()`], which is what `cargo run --release --example train_gpt` calls.
//! * **Write your own training loop** on data in memory: [`train::Trainer`], with [`settings::RunConfig::in_memory`]
//!   and [`data::SampleCollector`].
//! * **Build your own model** on the [`tape`]: its ops run a kernel forward and record its backward.
//! * **Use a kernel**: each function in [`ops`] appends one to a [`record::Recorder`]; [`device::Gpu::run`] runs a
//!   recording once, [`device::Gpu::prepare`] prepares it for many replays. [`device::Gpu::from_device`] does both on
//!   an application's own device, and [`kernels::Sources`] adds shader files to those of this crate.
//!
//! The models are Llama and GPT-2, and models that differ little from them: Baichuan, Bloom, WizardCoder, PanGu-α and
//! others. Layers may be mixtures of experts: [`model::config::MixtureConfig`] describes them and the configuration
//! keys that select their variants; [`ops::route`], [`ops::permute`] and [`ops::grouped_matmul`] are their kernels.
//! [`model::config::MultiToken`] configures multi-token prediction.
//!
//! What runs is plain data and separate from where it runs; only one module uses wgpu:
//!
//! ```text
//! settings -> data                               the configuration, and the tokens
//!             model -> tape -> ops -> record -> kernels   what runs: recordings, which need no adapter
//! infer  -> model, device                        text generation with a KV cache, losses of texts
//! train  -> device -> record, kernels            where it runs: adapter, memory pool, pipelines, replay
//!        -> ranks                                the ranks of a run, and what carries bytes between them
//!        -> report -> store                      what a run reports, and what it keeps on disk
//! cli                                            the command lines, which may use every module
//! ```
//!
//! The crate in `tests/reference` has the same mathematics in f64, for tests and readers.
//!
//! # Features
//!
//! All features except `mpi` are on by default. With `default-features = false` the crate has the kernels, recordings,
//! the tape, the model, the settings and the trainer, and none of the dependencies below.
//!
//! | feature | what needs it | dependencies |
//! |---|---|---|
//! | `cli` | the module `cli`, the binary, the progress bar of a run, `train --watch` | clap, ctrlc, httparse, indicatif, pollster |
//! | `tokenizers` | reading and training `tokenizer.json` ([`data::tokenizer`]); without it, doing so is an error | tokenizers |
//! | `mpi` | ranks as processes of MPI ([`ranks::mpi`]); without it, being started by `mpirun` is an error | mpi, an MPI library, libclang |
//! | `parquet` | reading Parquet files of records; without it, doing so is an error | parquet |
//! | `plots` | `gristmill token-distribution`; without it, the command is an error; implies `cli` | plotters, png, fonts |
//!
//! If a feature is off, a file with the same interface replaces the implementation (`report/bars.rs`,
//! `data/tokenizer/absent.rs`, `data/records/no_parquet.rs`, `cli/no_plots.rs`, `ranks/no_mpi.rs`), so nothing else
//! depends on features, and using a missing feature is an error that names it. `.ci/run` checks that the library builds
//! without them.
//!
//! # Examples
//!
//! A matrix product on any adapter:
//!
//! ```
//! use gristmill::ops::matmul::{Epilogue, Layout, matmul};
//! use gristmill::prelude::*;
//!
//! # fn main() -> gristmill::error::Result<()> {
//! # pollster::block_on(async {
//! let gpu = Gpu::request(&GpuOptions::default()).await?;
//! let twice = [2.0, 0.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 2.0];
//! let product = gpu
//!     .run(|job| {
//!         let x = job.input(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], 2, 4);
//!         let w = job.input(&twice, 4, 4);
//!         let y = job.output(2, 4);
//!         matmul(&mut job.rec, Layout::Nt, x, w, y, Epilogue::default()); // y = x wᵀ
//!         y
//!     })
//!     .await?;
//! assert_eq!(product, [2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0]);
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! `examples/flash_attention.rs` runs attention in the same way, `examples/own_device.rs` uses an application's device
//! and buffers, `examples/own_kernel.rs` puts a user's WGSL file with its backward on the tape, and
//! `examples/train_mlp.rs` is an application's own training loop.
#![warn(missing_docs)]

#[cfg(feature = "cli")]
pub mod cli;
pub mod data;
pub mod durable;
pub mod error;
pub mod gpu;
pub mod hugging_face;
pub mod infer;
pub mod model;
pub mod ops;
pub mod perf;
pub mod ranks;
pub mod report;
pub mod settings;
pub mod store;
pub mod tape;
pub mod train;

pub use gpu::{device, element, kernels, random, record};

/// The items that most programs need: to open an adapter and run kernels, to write one, to build a model on the tape,
/// or to train a configuration. Ops are used by name, for example `gristmill::ops::matmul`.
pub mod prelude {
    pub use crate::device::{Gpu, GpuOptions, Guard, Job, PreparedJob};
    pub use crate::element::Element;
    pub use crate::kernels::{Kernel, Sources};
    pub use crate::record::{Persistents, Recorder, Tensor, fold_grid};
    pub use crate::settings::{Override, RunConfig};
    pub use crate::tape::{Parameter, Tape, Var};
    pub use crate::train::length::RunLength;
    pub use crate::train::{Trainer, run};
}

/// The version of bytemuck that this crate uses; [`params!`] derives with it.
pub use bytemuck;
/// The version of wgpu that this crate uses, for [`device::Gpu::from_device`].
pub use wgpu;

// `params!` names this crate in an attribute, where `$crate` cannot be used.
extern crate self as gristmill;
