//! The sections of a configuration file, one file each: rows, what fills them in, and what must fit together.

pub(crate) mod callbacks;
pub(crate) mod context;
pub(crate) mod dataset;
pub(crate) mod metric;
pub(crate) mod model;
pub(crate) mod moe;
pub(crate) mod monitor;
pub(crate) mod optimizer;
pub(crate) mod parallel;
pub(crate) mod recompute;
pub(crate) mod run;
pub(crate) mod runner;
pub(crate) mod sample;
pub(crate) mod schedule;
pub(crate) mod tensorboard;
pub(crate) mod unused;
pub(crate) mod wrapper;

use super::dialect::mindformers::NAMES;
use super::engine::{Section, Table};
use std::sync::OnceLock;

/// Every section and its table, by dotted path, in the order of the documentation.
pub(crate) fn tables() -> &'static [(&'static str, Table)] {
    static TABLES: OnceLock<Vec<(&'static str, Table)>> = OnceLock::new();
    TABLES.get_or_init(|| {
        let mut tables = vec![
            ("", run::Run::table()),
            ("runner_config", runner::Runner::table()),
            ("runner_wrapper", wrapper::Wrapper::table()),
            ("runner_wrapper.scale_sense", wrapper::LossScale::table()),
            (monitor::PATH, monitor::Monitor::table()),
            (monitor::STABLE_RANK_PATH, monitor::StableRank::table()),
            ("optimizer", optimizer::Optimizer::table()),
            ("lr_schedule", schedule::Schedule::table()),
            ("grouped_lr_schedule", schedule::grouped_table()),
            ("grouped_lr_schedule.grouped", schedule::GroupKeys::table()),
            ("model", model::outer_table()),
            ("model.model_config", model::Model::table()),
        ];
        tables.extend(model::type_tables());
        tables.extend([
            ("model.model_config.rope_scaling", model::Scaling::table()),
            ("model.model_config.pet_config", model::Pet::table()),
            ("model.arch", model::arch_table()),
            ("moe_config", moe::Moe::table()),
            (recompute::PATH, recompute::table()),
            ("train_dataset", dataset::DatasetKeys::table()),
            ("train_dataset.tokenizer", dataset::Tokenizer::table()),
            ("train_dataset.data_loader", dataset::Loader::table()),
            ("train_dataset.data_loader.config", dataset::Megatron::table()),
            ("train_dataset_task", dataset::task_table()),
            ("metric", metric::MetricKeys::table()),
            ("sample", sample::Sample::table()),
            ("tensorboard", tensorboard::TensorBoard::table()),
            ("context", context::Context::table()),
        ]);
        tables.extend(parallel::tables());
        tables.extend(callbacks::tables());
        tables.extend(unused::tables());
        for (path, table) in &mut tables {
            table.rows.iter_mut().for_each(|row| row.names = NAMES.of(path, row.key).collect());
        }
        tables
    })
}
