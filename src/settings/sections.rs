//! The sections of a configuration file, one file each: the rows, the defaults that follow from other keys, and the
//! checks of keys that must fit together.

pub(crate) mod callbacks;
pub(crate) mod context;
pub(crate) mod dataset;
pub(crate) mod metric;
pub(crate) mod model;
pub(crate) mod moe;
pub(crate) mod monitor;
pub(crate) mod optimizer;
pub(crate) mod parallel;
pub(crate) mod preference;
pub(crate) mod recompute;
pub(crate) mod run;
pub(crate) mod runner;
pub(crate) mod sample;
pub(crate) mod schedule;
pub(crate) mod tensorboard;
pub(crate) mod wrapper;

use super::engine::{Section, Table, TableId};

/// Every table, in the order of the documentation.
pub(crate) fn tables() -> Vec<(TableId, Table)> {
    let mut tables = vec![
        run::Run::documented(),
        runner::Runner::documented(),
        wrapper::Wrapper::documented(),
        wrapper::LossScale::documented(),
        preference::Preference::documented(),
        monitor::Monitor::documented(),
        optimizer::Optimizer::documented(),
        schedule::Schedule::documented(),
        schedule::grouped_table(),
        schedule::GroupKeys::documented(),
        model::outer_table(),
        model::Model::documented(),
    ];
    tables.extend(model::type_tables());
    tables.extend([
        model::Scaling::documented(),
        model::Pet::documented(),
        moe::Moe::documented(),
        recompute::Recompute::documented(),
        dataset::DatasetKeys::documented(),
        dataset::Tokenizer::documented(),
        dataset::Loader::documented(),
        dataset::Megatron::documented(),
        metric::MetricKeys::documented(),
        sample::Sample::documented(),
        tensorboard::TensorBoard::documented(),
        context::Context::documented(),
    ]);
    tables.extend(parallel::tables());
    tables.extend(callbacks::tables());
    tables
}
