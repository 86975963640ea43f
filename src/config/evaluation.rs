//! The keys about evaluation: `do_eval`, `eval_step_interval`, `eval_batches`, `eval_dataset`.

use super::dataset;
use super::document::Document;
use super::node::Node;
use super::section::{Notes, Section};
use crate::data::{DataConfig, Loader};
use crate::error::Result;

/// Evaluation during training.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvalConfig {
    /// Every so many steps.
    pub every_steps: u64,
    /// On this many micro-batches at most, always the same ones.
    pub batches: u64,
}

/// Files of the original carry an `eval_dataset` that `do_eval: False` leaves unused; so do we.
pub(super) fn read_dataset(
    document: &Document,
    do_eval: bool,
    notes: &mut Notes,
) -> Result<Option<DataConfig>> {
    if document.get("eval_dataset").or(document.get("eval_dataset_task")).is_none_or(Node::is_none) {
        return Ok(None);
    }
    if !do_eval {
        notes.add("eval_dataset: unused, as `do_eval` is False");
        return Ok(None);
    }
    let data = dataset::read(document, "eval_dataset", notes)?;
    if data.eval_fraction > 0.0 {
        let message = "belongs under `train_dataset`; an eval_dataset is used whole";
        return Err(document.error("eval_dataset.eval_fraction", message));
    }
    Ok(Some(data))
}

/// When to evaluate; `eval` is the data set of its own, if there is one.
pub(super) fn read(
    top: &Section,
    train: &DataConfig,
    eval: Option<&DataConfig>,
    notes: &mut Notes,
) -> Result<Option<EvalConfig>> {
    if eval.is_none() && !train.keeps_evaluation() {
        let message = match train.loader {
            Loader::Megatron(_) => {
                "needs data: write `split: \"0.95, 0.05, 0\"` under the loader's `config`, or an eval_dataset"
            }
            _ => "needs data: write `eval_fraction: 0.05` under train_dataset, or an eval_dataset",
        };
        return Err(top.error("do_eval", message));
    }
    if eval.is_some() && train.keeps_evaluation() {
        notes.add(
            "train_dataset.eval_fraction: kept out of training, though eval_dataset is what is evaluated",
        );
    }
    if top.or("eval_epoch_interval", -1i64)? > 0 {
        let message = "is not built yet; write `eval_epoch_interval: -1` and use eval_step_interval";
        return Err(top.error("eval_epoch_interval", message));
    }
    let batches = top.positive("eval_batches", 16)?;
    match u64::try_from(top.or("eval_step_interval", 100i64)?) {
        Ok(every_steps) if every_steps > 0 => Ok(Some(EvalConfig { every_steps, batches })),
        _ => {
            notes.add("eval_step_interval: not above 0, so nothing is evaluated");
            Ok(None)
        }
    }
}
