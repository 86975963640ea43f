//! Files of MindSpore Transformers (MindFormers), and the names of Megatron and Hugging Face that they may use.

mod names;
mod places;

pub(crate) use names::NAMES;

use crate::settings::engine::Source;

/// Puts what `source` says in MindFormers' words where this program's keys are.
pub(crate) fn translate(source: &mut Source) {
    names::unify(source);
    places::gather(source);
}
