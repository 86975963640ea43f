//! `moe_config`: the mixture of experts. The same keys may be written under `model.model_config`.

mod balance;
mod fill;
mod routing;
mod rows;

pub use rows::{Dispatcher, Moe, RoutingPolicy, TopkMethod};

use super::model::{self, Model};
use crate::settings::engine::*;

pub(crate) const PATH: &str = "moe_config";
const MAY_STAND_IN_DENSE_MODELS: [&str; 2] = ["expert_num", "use_moe"];

/// Reads the mixture of `model`; `None` for a dense model.
pub(crate) fn read(source: &Source, model: &Model) -> Option<Moe> {
    let reader = Reader::open(source, PATH, &[PATH]);
    let experts = reader.node("expert_num").map_or(Some(1), usize::from_node);
    if experts == Some(1) {
        if reader.node("use_moe").and_then(bool::from_node) == Some(true) {
            reader.fault("use_moe", "asks for experts; give `expert_num` a number above 1");
        }
        ignore_all(&reader);
        return None;
    }
    if !model.kind.is(model::LLAMA) {
        reader.fault(
            "expert_num",
            "only Llama's layers can hold experts; write `type: LlamaConfig`, or 1 here",
        );
        return None;
    }
    if model.add_mlp_fc1_bias_linear == Some(true) || model.add_mlp_fc2_bias_linear == Some(true) {
        reader.note("expert_num", "experts have no biases here; dense layers and attention keep theirs");
    }
    let mut moe = Moe::read(&reader);
    if moe.use_moe.take() == Some(false) {
        reader.fault("use_moe", format!("contradicts `expert_num`, {}; remove it", moe.expert_num));
    }
    fill::fill(&mut moe, &reader, model);
    Some(moe)
}

/// Says how routed tokens are exchanged where they are: between `ranks` that share the experts.
pub(crate) fn decide_dispatcher(moe: &mut Moe, ranks: usize, source: &Source) {
    let Some(dispatcher) = moe.moe_token_dispatcher_type.take() else { return };
    let path = format!("{PATH}.moe_token_dispatcher_type");
    if ranks == 1 {
        source.ignore(&path);
    } else if dispatcher != Dispatcher::AllToAll {
        let (path, word) = (source.document.written(&path), dispatcher.word());
        source.note(format!("{path}: `{word}` is computed as `alltoall`, with the same results"));
    }
}

/// Notes all keys that only a mixture reads: in a dense model they have no meaning.
fn ignore_all(reader: &Reader<'_>) {
    let table = Moe::table();
    let is_idle = |key: &&str| table.row(key).is_some() && !MAY_STAND_IN_DENSE_MODELS.contains(key);
    reader.ignore(&reader.keys().filter(is_idle).collect::<Vec<_>>());
}
