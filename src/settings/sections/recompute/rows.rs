//! The keys of `recompute_config`.

use super::amount::Amount;
use super::operators::Operators;
use super::selection::Selection;
use crate::model::config::KeptOfRanks;
use crate::settings::engine::*;

rows! {
    /// `recompute_config`: which layers, or which of their operators, are computed again in the backward pass, so that their
    /// activations need not be kept. No choice changes a bit of the results. The result of a layer is always kept, and so is
    /// what a router decided.
    pub struct Recompute in "recompute_config" {
        /// The layers to recompute: all of them, or the first of each pipeline stage of MindFormers, as many as the list says.
        /// Stages follow from `pipeline_stage`, `offset` and `pp_interleave_num`; blocks of multi-token prediction count as the
        /// last layers.
        recompute: Amount = Host.default(Amount::Every(false)).read_by(amount).example("True"),
        /// The same as numbers of layers, from 0; the run folder's `config.yaml` says it so.
        layers: Vec<usize> = Host.optional().example("[1]"),
        /// The operators that are recomputed by themselves, each with the numbers of its layers, from 0; the run folder's
        /// `config.yaml` says it so.
        operators: Operators = Host.optional().read_by(operators).example("{feed_forward.mul: [1]}"),
        /// Operators to recompute in layers that are not recomputed as a whole; `True` means the activation of feed-forward
        /// networks. A pattern is a path of regular expressions separated by `\.`, each of which must match a whole name, from
        /// the layer down to an operator or a module; a fused kernel is recomputed if a name that it answers to is matched.
        select_recompute: Selection = Host.default(Selection::NONE).read_by(selection).example("True"),
        /// The same for operators whose results are gathered from other ranks again; `True` means the norms. Where nothing is gathered,
        /// the operators themselves are recomputed. A module is not accepted.
        select_comm_recompute: Selection = Host.default(Selection::NONE).read_by(selection).example("True"),
        /// Operators that are kept, whatever the other keys say: also in layers that are recomputed as a whole. A module is not
        /// accepted.
        select_recompute_exclude: Selection =
            Host.default(Selection::NONE).read_by(selection).example("['feed_forward\\.mul']"),
        /// The same for `select_comm_recompute`; there is no difference between the two.
        select_comm_recompute_exclude: Selection =
            Host.default(Selection::NONE).read_by(selection).example("['.*\\.norm']"),
        /// Whether weights that ranks gather for the forward pass (`parallel.enable_parallel_optimizer`) are dropped after it and
        /// gathered again for the backward pass, of all layers; no effect elsewhere.
        parallel_optimizer_comm_recompute: bool = Host.default(false),
        /// Whether ranks that share matrices exchange activations again where a layer is recomputed; `False` keeps what they have
        /// exchanged. No effect without `model_parallel`.
        mp_comm_recompute: bool = Host.default(true),
        /// Whether ranks that share matrices keep a slice each of the input of a layer that is recomputed as a whole, and gather
        /// the others; no effect without `model_parallel`, nor where they share tokens, which does as much.
        recompute_slice_activation: bool = Host.default(false),
    }
}

/// The keys that select operators, and those that exclude some of theirs.
pub const SELECTIONS: [&str; 4] = [
    "select_recompute",
    "select_comm_recompute",
    "select_recompute_exclude",
    "select_comm_recompute_exclude",
];

impl Recompute {
    /// What ranks that share matrices keep of what is recomputed.
    pub(crate) fn kept_of_ranks(&self) -> KeptOfRanks {
        KeptOfRanks { exchanged: !self.mp_comm_recompute, slices: self.recompute_slice_activation }
    }

    /// Whether a key counts the layers of stages.
    pub(super) fn counts_stages(&mut self) -> bool {
        self.recompute.depends_on_stages()
            || self.selections().iter().any(|selection| selection.depends_on_stages())
    }

    /// What selects operators: two keys, and the two that exclude some of theirs, as [`SELECTIONS`].
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

fn operators(reader: &Reader<'_>, key: &'static str) -> Option<Operators> {
    read_form(reader, key, Operators::read)
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
