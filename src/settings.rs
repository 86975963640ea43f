//! From a YAML file to a plan: [`RunConfig`] reads a file, [`RunPlan`] is every number decided, [`Settings`] its sections.
//!
//! The keys are those of MindSpore Transformers (MindFormers), section by section, and a few of our own. Every key is one row of a
//! table in `sections`: its name, type, default, range, documentation and what it decides. Reading, checking, writing back, the
//! comparison of a resumed run, `gristmill explain` and `configs/README.md` are derived from the rows. What other programs write
//! is translated to these keys before, by `dialect`; `decide` leaves what counts. A key is used, ignored with a notice, or an error
//! that says where it stands and what to write instead; none is dropped in silence.
//!
//! ```
//! use std::path::Path;
//! use gristmill::settings::{Override, RunConfig};
//!
//! # fn main() -> gristmill::error::Result<()> {
//! let text = "
//! model:
//!   model_config: { vocab_size: 256, hidden_size: 64, num_layers: 2, num_heads: 4, seq_length: 32 }
//! lr_schedule: { learning_rate: 1e-3 }
//! train_dataset:
//!   data_loader: { type: CargoRegistryDataLoader }
//! ";
//! let overrides = Override::parse_all(["--batch_size", "8"])?;
//! let plan = RunConfig::parse(text, Path::new("small.yaml"), &overrides)?.plan;
//! assert_eq!((plan.settings.run.run_name.as_str(), plan.tokens_per_step), ("small", 8 * 32));
//! # Ok(())
//! # }
//! ```

mod config;
mod decide;
mod dialect;
mod engine;
mod explain;
mod flags;
mod matrix_checks;
mod micro_batches;
mod model_config;
mod monitor_checks;
mod plan;
mod resolved;
mod sections;
mod tables;
#[cfg(test)]
mod tests;
mod values;

pub use config::RunConfig;
#[cfg(feature = "cli")]
pub(crate) use dialect::mindformers::recompute::SELECTIONS;
#[cfg(feature = "cli")]
pub(crate) use engine::Words;
pub use engine::{Node, Override};
pub(crate) use explain::{ABOUT_LAZY_INLINE, LAZY_INLINE};
pub use explain::{explain, reference};
pub use plan::RunPlan;
pub use resolved::Resolved;
pub use sections::callbacks::{Callbacks, CheckpointMonitor, ColdHotMonitor, LossMonitor, SummaryMonitor};
pub use sections::context::{Bytes, Context};
pub use sections::dataset::{Dataset, DatasetKeys, Loader, Megatron, Tokenizer};
pub use sections::metric::{MetricKeys, MetricType, Metrics};
pub use sections::model::{BaseType, Model, Pet, PetType, Scaling};
pub use sections::moe::Moe;
pub use sections::monitor::{Formats, Monitor};
pub use sections::optimizer::*;
pub use sections::parallel::{
    Offset, OptimizerShards, Parallel, ParallelContext, ParallelMode, Parallelism, PipelineConfig, Sharded,
    Sharding,
};
pub use sections::recompute::{Operators, Recompute};
pub use sections::run::{Resume, Run};
pub use sections::runner::Runner;
pub use sections::sample::Sample;
pub use sections::schedule::{Decay, Group, GroupKeys, Schedule, ScheduleType};
pub use sections::tensorboard::TensorBoard;
pub use sections::wrapper::{Adaptation, Growth, LossScale, LossScaleKind, Wrapper};
pub use values::Settings;
pub(crate) use values::default_decision;
