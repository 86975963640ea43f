//! The sections of a run, each filled.

use super::dialect::mindformers;
use super::engine::{Placed, Section, Source, decisions, to_json, write};
use super::sections::callbacks::{self, Callbacks};
use super::sections::context::Context;
use super::sections::dataset::{self, Dataset};
use super::sections::metric::{self, Metrics};
use super::sections::model::{self, Model};
use super::sections::moe::{self, Moe};
use super::sections::monitor::{self, Monitor};
use super::sections::optimizer::{self, Optimizer};
use super::sections::parallel::{self, Distribution, Parallelism, Started};
use super::sections::recompute::{self, LayerFeatures, Recompute};
use super::sections::run::{self, Run};
use super::sections::runner::Runner;
use super::sections::sample::Sample;
use super::sections::schedule::{self, Group, Schedule};
use super::sections::tensorboard::TensorBoard;
use super::sections::wrapper::{self, Wrapper};
use super::tables::row_at;
use serde_json::Value;
use std::collections::BTreeMap;

/// Every setting of a run: what the file says, and in its place the defaults where it is silent.
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
    /// Reads every section of `source`, which afterwards knows what is wrong; with what is spread over the ranks that were
    /// `started`, whose section is still to be decided.
    pub(super) fn read(source: &Source, started: Option<Started>) -> (Self, Distribution) {
        let run = run::read(source);
        let mut model = model::read(source);
        let is_known = source.is_sound("model.model_config.type") && source.is_sound("model.arch.type");
        let moe = is_known.then(|| moe::read(source, &model)).flatten();
        let runner = Runner::read_at(source, "runner_config");
        let monitor = Monitor::read_at(source, monitor::PATH);
        let wrapper = wrapper::read(source);
        let optimizer = optimizer::read(source);
        let (schedule, groups) = schedule::read(source);
        let train_dataset = dataset::read(source, "train_dataset");
        let callbacks = callbacks::read(source);
        run::check_evaluation(source, &run);
        let eval_dataset = dataset::read_eval(source, &run, train_dataset.as_ref());
        callbacks.note_idle(source, moe.as_ref());
        let metric = metric::read(source, run.do_eval);
        let sample = source.node("sample").map(|_| Sample::read_at(source, "sample"));
        let tensorboard = source.node("tensorboard").map(|_| TensorBoard::read_at(source, "tensorboard"));
        let context = Context::read_at(source, "context");
        let mut distribution = parallel::read(source, &run, started);
        distribution.fit_experts(moe.as_ref(), source);
        distribution.stages = parallel::stages(source, &model, &distribution);
        if !run.as_single {
            parallel::check_interleaves(source, &model, &distribution);
        }
        let parts = LayerFeatures { model: &model, moe: moe.as_ref() };
        let mut recompute = recompute::read(source, parts, &distribution);
        mindformers::recompute::translate(source, &mut recompute, parts, &distribution);
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

    /// What decides the shape of the model and the numbers of a run, by the path of each key.
    pub fn decisions(&self) -> BTreeMap<String, Value> {
        decisions(&self.placed())
    }

    /// All sections and where they belong. Every field is named, so that none can be forgotten.
    pub(super) fn placed(&self) -> Vec<Placed> {
        let Self {
            run,
            model,
            moe,
            recompute,
            runner,
            wrapper,
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
            parallel,
        } = self;
        let mut placed = vec![run.placed(""), model.placed(model::PATH)];
        placed.extend(moe.as_ref().map(|moe| moe.placed(moe::PATH)));
        placed.push(recompute.placed(recompute::PATH));
        placed.push(runner.placed("runner_config"));
        placed.push(wrapper.placed("runner_wrapper"));
        placed.push(monitor.placed(monitor::PATH));
        placed.push(optimizer.placed("optimizer"));
        placed.extend(schedule::placed(schedule, groups));
        placed.extend(train_dataset.placed("train_dataset", true));
        placed.extend(eval_dataset.iter().flat_map(|data| data.placed("eval_dataset", false)));
        placed.extend(callbacks.placed());
        placed.extend(metric.placed());
        placed.extend(sample.as_ref().map(|sample| sample.placed("sample")));
        placed.extend(tensorboard.as_ref().map(|tensorboard| tensorboard.placed("tensorboard")));
        placed.push(context.placed("context"));
        placed.extend(parallel.iter().flat_map(Parallelism::placed));
        placed
    }
}

/// The value that a setting has in [`Settings::decisions`] where no file says otherwise; none where its default depends on
/// others.
pub(crate) fn default_decision(path: &str) -> Option<Value> {
    let (section, key) = path.rsplit_once('.').unwrap_or(("", path));
    let row = row_at(section, key, None).filter(|row| row.default_of.is_none())?;
    row.default.as_ref().map(to_json)
}
