//! From a YAML file to a plan: [`RunConfig`] is what was written, [`RunPlan`] is every number decided.
//!
//! The keys are those of MindSpore Transformers, section by section, and a few of our own (`run_name`, `eval_batches`,
//! `sample`, `model.model_config.freeze` and `freeze_exclude`, `train_dataset.eval_fraction` and `eod_token_id`, the
//! loaders for text, JSON lines and token files, `context.device_name`, `context.tier`). Every key is used, ignored with a
//! notice, or an error that says where it stands and what to write instead; none is dropped in silence.
//!
//! ```
//! use std::path::Path;
//! use gristmill::config::{Override, RunConfig, RunPlan};
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
//! let plan = RunPlan::resolve(&RunConfig::parse(text, Path::new("small.yaml"), &overrides)?)?;
//! assert_eq!((plan.name.as_str(), plan.tokens_per_step), ("small", 8 * 32));
//! # Ok(())
//! # }
//! ```

mod aliases;
mod balance;
mod callbacks;
mod context;
mod culprit;
mod dataset;
mod document;
mod evaluation;
mod family;
mod groups;
mod instruments;
mod keys;
mod known_keys;
mod locate;
mod mixture;
mod mixture_sections;
mod mixture_shape;
mod model;
mod model_keys;
mod node;
mod optimizer;
mod overrides;
mod plan;
mod resolved;
mod resolved_dataset;
mod resolved_mixture;
mod rope_scaling;
mod routing;
mod run;
mod schedule;
mod section;
mod shape;
#[cfg(test)]
mod tests;
mod training;

pub use callbacks::{CallbacksSection, CheckpointConfig};
pub use context::ContextSection;
pub use evaluation::EvalConfig;
pub use instruments::{Claims, ExpertCallbacks, Instruments, SummaryConfig};
pub use mixture::MixtureSection;
pub use model::ModelSection;
pub use overrides::Override;
pub use plan::{RunLength, RunPlan};
pub use run::{Resume, RunConfig, SampleConfig};
pub use training::{RunnerSection, WrapperSection};
