//! `moe_config`: the mixture of experts. The same keys may be written under `model.model_config`.

mod balance;
mod config;
mod fill;
mod routing;
mod rows;

pub use rows::{Moe, RoutingPolicy};

use super::model::Model;
use crate::model::config::Activation;
use crate::settings::engine::*;

pub(crate) const PATH: &str = "moe_config";
const MAY_STAND_IN_DENSE_MODELS: [&str; 2] = ["expert_num", "use_moe"];

/// Reads the mixture of `model`; `None` for a dense model.
pub(crate) fn read(source: &Source, model: &Model) -> Option<Moe> {
    let reader = Reader::open(source, PATH, &[Moe::ID]);
    let experts = reader.node("expert_num").map_or(Some(1), usize::from_node);
    if experts == Some(1) {
        ignore_all(&reader);
        // The section is read only to report its faults.
        Moe::read(&reader);
        return None;
    }
    let has_biases = model.config.gate_up_bias || model.config.down_bias;
    if has_biases && model.config.activation.gate().is_some() {
        reader.note("expert_num", "experts have no biases here; dense layers and attention keep theirs");
    }
    if model.config.activation == Activation::Xielu {
        let message = "not built yet with `hidden_act: xielu`; write another activation, or remove it";
        reader.fault("expert_num", message);
    }
    let mut moe = Moe::read(&reader);
    fill::fill(&mut moe, &reader, model);
    Some(moe)
}

/// Notes all keys that only a mixture reads: in a dense model they have no meaning. Switches are noted whichever way
/// they stand.
fn ignore_all(reader: &Reader<'_>) {
    let is_idle = |key: &&str| !MAY_STAND_IN_DENSE_MODELS.contains(key);
    let is_switch = |key: &&str| reader.node(key).and_then(bool::from_node).is_some();
    let (switches, others): (Vec<&str>, Vec<&str>) = reader.keys().filter(is_idle).partition(is_switch);
    reader.ignore_any(&switches);
    reader.ignore(&others);
}
