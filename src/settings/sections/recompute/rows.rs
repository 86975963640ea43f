//! The keys of `recompute_config`.

use super::amount::Amount;
use super::selection::Selection;
use crate::settings::engine::*;

rows! {
    /// `recompute_config`: which layers are computed again in the backward pass, so that their activations need not be kept.
    /// No choice changes a bit of the results.
    pub struct Recompute {
        /// The layers to recompute: all of them, or the first of each pipeline stage of the original, as many as the list says.
        /// Stages follow from `pipeline_stage`, `offset` and `pp_interleave_num`; blocks of multi-token prediction count as the
        /// last layers.
        recompute: Amount = Host.default(Amount::Every(false)).read_by(amount).example("True"),
        /// The same as numbers of layers, from 0; the run folder's `config.yaml` says it so.
        layers: Vec<usize> = Host.optional().example("[1]"),
        /// Operators to recompute in layers that are not recomputed as a whole. Checked, but not done yet.
        select_recompute: Selection = Host.default(Selection::NONE).read_by(selection).example("True"),
        /// The same for operators that communicate in the original. Checked, but not done yet.
        select_comm_recompute: Selection = Host.default(Selection::NONE).read_by(selection).example("True"),
        /// Operators that are not recomputed, whatever the other keys say. Checked, but not done yet.
        select_recompute_exclude: Selection =
            Host.default(Selection::NONE).read_by(selection).example("['feed_forward\\.mul']"),
        /// The same for operators that communicate in the original. Checked, but not done yet.
        select_comm_recompute_exclude: Selection =
            Host.default(Selection::NONE).read_by(selection).example("['.*\\.norm']"),
        /// Whether weights are gathered again; no effect on one device.
        parallel_optimizer_comm_recompute: bool = Host.default(false),
        /// Whether the exchange between parts of a matrix is done again; no effect on one device.
        mp_comm_recompute: bool = Host.default(true),
        /// Whether devices share what is kept of a layer; no effect on one device.
        recompute_slice_activation: bool = Host.default(false),
    }
    others []
}

impl Recompute {
    /// Whether a key counts the layers of stages.
    pub(super) fn counts_stages(&mut self) -> bool {
        self.recompute.depends_on_stages()
            || self.selections().iter().any(|selection| selection.depends_on_stages())
    }

    /// What selects operators: two keys, and the two that exclude some of theirs.
    pub(super) fn selections(&mut self) -> [&mut Selection; 4] {
        [
            &mut self.select_recompute,
            &mut self.select_comm_recompute,
            &mut self.select_recompute_exclude,
            &mut self.select_comm_recompute_exclude,
        ]
    }
}

fn amount(reader: &Reader<'_>, key: &'static str) -> Option<Amount> {
    read_form(reader, key, Amount::read)
}

fn selection(reader: &Reader<'_>, key: &'static str) -> Option<Selection> {
    read_form(reader, key, Selection::read)
}

/// The value of `key`, or a fault that says which part of it is wrong.
fn read_form<T: Setting>(
    reader: &Reader<'_>,
    key: &'static str,
    read: impl Fn(&Node) -> Result<T, String>,
) -> Option<T> {
    let form = T::kind().expected();
    let value = read(reader.node(key)?);
    value.map_err(|found| reader.fault(key, format!("expected {form}, found {found}"))).ok()
}
