//! From a YAML file to a plan: [`RunConfig`] reads a file, [`Settings`] are its sections, and [`RunPlan`] is every
//! number decided.
//!
//! The keys are those of MindSpore Transformers (MindFormers), section by section, and a few of our own. Every key is
//! one row of a table in `sections`: its name, type, default, range, documentation and what it decides. Reading,
//! checking, writing back, the comparison of a resumed run, `gristmill explain` and `configs/README.md` are derived
//! from the rows. Files of other programs are first translated to these keys, by `dialect`. `decide` then settles what
//! follows from several sections, and leaves out settings that have no effect. A key is used, ignored with a notice, or
//! an error that says where it stands and what to write instead; none is dropped in silence.
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
mod plan;
mod resolved;
mod sections;
#[cfg(test)]
mod tests;

pub use config::RunConfig;
#[cfg(feature = "cli")]
pub(crate) use dialect::SELECTIONS;
pub(crate) use dialect::{ABOUT_LAZY_INLINE, LAZY_INLINE};
#[cfg(feature = "cli")]
pub(crate) use engine::Words;
pub use engine::{Node, Override};
pub use explain::{explain, reference};
pub use plan::RunPlan;
pub use resolved::Resolved;
pub use sections::callbacks::{Callbacks, CheckpointMonitor, ColdHotMonitor, LossMonitor, SummaryMonitor};
pub use sections::context::{Bytes, Context, F32Products};
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
pub use sections::preference::{Preference, PreferenceType, ReferenceType};
pub use sections::recompute::{Operators, Recompute};
pub use sections::run::{Resume, Run};
pub use sections::runner::Runner;
pub use sections::sample::Sample;
pub use sections::schedule::{Decay, Group, GroupKeys, Schedule, ScheduleType};
pub use sections::tensorboard::TensorBoard;
pub use sections::wrapper::{Adaptation, Growth, LossScale, LossScaleKind, Wrapper};

use engine::{Placed, Section, Source, decisions, to_json, write};
use explain::row_at;
use sections::parallel::{Distribution, Started};
use sections::recompute::LayerFeatures;
use sections::{
    callbacks, dataset, metric, model, moe, monitor, optimizer, parallel, preference, recompute, run,
    schedule, wrapper,
};
use serde_json::Value;
use std::collections::BTreeMap;

/// Every setting of a run: the value that the file gives, or the default where the file is silent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The top level.
    pub run: Run,
    /// `model.model_config`.
    pub model: Model,
    /// `moe_config`; a dense model has none.
    pub moe: Option<Moe>,
    /// `recompute_config`.
    pub recompute: Recompute,
    /// `runner_config`.
    pub runner: Runner,
    /// `runner_wrapper`.
    pub wrapper: Wrapper,
    /// `preference`; a run that learns from answers alone has none.
    pub preference: Option<Preference>,
    /// `monitor_config`.
    pub monitor: Monitor,
    /// `optimizer`.
    pub optimizer: Optimizer,
    /// `lr_schedule`, or the default of `grouped_lr_schedule`.
    pub schedule: Schedule,
    /// `grouped_lr_schedule.grouped`.
    pub groups: Vec<Group>,
    /// `train_dataset`.
    pub train_dataset: Dataset,
    /// `eval_dataset`, where it is used.
    pub eval_dataset: Option<Dataset>,
    /// `callbacks`.
    pub callbacks: Callbacks,
    /// `metric`.
    pub metric: Metrics,
    /// `sample`.
    pub sample: Option<Sample>,
    /// `tensorboard`.
    pub tensorboard: Option<TensorBoard>,
    /// `context`.
    pub context: Context,
    /// `parallel_config` and `parallel`; a run of one rank has none.
    pub parallel: Option<Parallelism>,
}

impl Settings {
    /// Reads every section of `source`, and reports faults to it. Also returns how the run is spread over the ranks
    /// that were `started`; the settings of that section are still to be decided.
    fn read(source: &Source, started: Option<Started>) -> (Self, Distribution) {
        let run = run::read(source);
        let mut model = model::read(source);
        let is_known = source.is_sound("model.model_config.type") && source.is_sound("model.arch.type");
        let moe = is_known.then(|| moe::read(source, &model)).flatten();
        let runner = Runner::read_at(source, "runner_config");
        let monitor = Monitor::read_at(source, monitor::PATH);
        let wrapper = wrapper::read(source);
        let optimizer = optimizer::read(source);
        let (schedule, groups) = schedule::read(source);
        let preference = preference::read(source, model.pet_config.as_ref());
        let mut train_dataset = dataset::read(source, "train_dataset");
        let callbacks = callbacks::read(source);
        run::check_evaluation(source, &run);
        let mut eval_dataset = dataset::read_eval(source, &run, train_dataset.as_ref());
        if preference.is_some() {
            let datasets = [("train_dataset", &mut train_dataset), ("eval_dataset", &mut eval_dataset)];
            for (path, dataset) in datasets.into_iter().filter_map(|(path, one)| Some((path, one.as_mut()?)))
            {
                dataset.learn_pairs(source, path);
            }
        }
        callbacks.note_idle(source, moe.as_ref());
        let metric = metric::read(source, run.do_eval);
        let sample = source.node("sample").map(|_| Sample::read_at(source, "sample"));
        let tensorboard = source.node("tensorboard").map(|_| TensorBoard::read_at(source, "tensorboard"));
        let context = Context::read_at(source, "context");
        let mut distribution = parallel::read(source, &run, started);
        dialect::note_differences(source, &distribution);
        distribution.fit_experts(moe.as_ref(), source);
        distribution.stages = parallel::stages(source, &model, &distribution);
        if !run.as_single {
            parallel::check_interleaves(source, &model, &distribution);
        }
        let parts = LayerFeatures { model: &model, moe: moe.as_ref() };
        let mut recompute = recompute::read(source, parts, &distribution);
        dialect::translate_recompute(source, &mut recompute, parts, &distribution);
        model.offset = model.offset.filter(|_| distribution.layout.pipeline > 1);
        model.pp_interleave_num = None; // `parallel_config` has it
        let train_dataset = train_dataset.unwrap_or_default();
        let settings = Self {
            run,
            model,
            moe,
            recompute,
            runner,
            wrapper,
            preference,
            monitor,
            optimizer,
            schedule,
            groups,
            train_dataset,
            eval_dataset,
            callbacks,
            metric,
            sample,
            tensorboard,
            context,
            parallel: None,
        };
        (settings, distribution)
    }

    /// The settings as a configuration file: reading it gives the same settings.
    pub fn to_yaml(&self) -> String {
        write(&self.placed())
    }

    /// The values that decide the shape of the model and the numbers of a run, by the path of each key.
    pub fn decisions(&self) -> BTreeMap<String, Value> {
        decisions(&self.placed())
    }

    /// All sections and where they belong.
    fn placed(&self) -> Vec<Placed> {
        let mut placed = vec![self.run.placed(""), self.model.written_rows()];
        placed.extend(self.moe.as_ref().map(|moe| moe.placed(moe::PATH)));
        placed.push(self.recompute.placed(recompute::PATH));
        placed.push(self.runner.placed("runner_config"));
        placed.push(self.wrapper.placed("runner_wrapper"));
        placed.extend(self.preference.as_ref().map(|preference| preference.placed(preference::PATH)));
        placed.push(self.monitor.placed(monitor::PATH));
        placed.push(self.optimizer.placed("optimizer"));
        placed.extend(schedule::placed(&self.schedule, &self.groups));
        placed.extend(self.train_dataset.placed("train_dataset", true));
        placed.extend(self.eval_dataset.iter().flat_map(|data| data.placed("eval_dataset", false)));
        placed.extend(self.callbacks.placed());
        placed.extend(self.metric.placed());
        placed.extend(self.sample.as_ref().map(|sample| sample.placed("sample")));
        placed.extend(self.tensorboard.as_ref().map(|tensorboard| tensorboard.placed("tensorboard")));
        placed.push(self.context.placed("context"));
        placed.extend(self.parallel.iter().flat_map(Parallelism::placed));
        placed
    }
}

/// The value that a setting has in [`Settings::decisions`] if no file says otherwise; `None` if its default depends on
/// other settings.
pub(crate) fn default_decision(path: &str) -> Option<Value> {
    let (section, key) = path.rsplit_once('.').unwrap_or(("", path));
    let row = row_at(section, key, None).filter(|row| row.default_of.is_none())?;
    row.default.as_ref().map(to_json)
}
