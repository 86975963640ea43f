//! Layers share their kernels: what a run compiles does not depend on how many there are.

use crate::configuration::plan;
use gristmill::kernels::{Kernel, Tier};
use gristmill::train::recordings::{Recordings, assumed_capabilities};
use std::collections::HashSet;

/// What `moe_config` says.
const MODELS: [&str; 2] = ["", "use_gmm: True, expert_num: 4, num_experts_chosen: 2"];

/// The kernels of a run with so many layers, and the launches of a micro-batch.
fn recorded(moe: &str, layers: u32, tier: Tier) -> (HashSet<Kernel>, usize) {
    let yaml = format!(
        "
model:
  model_config: {{ vocab_size: 300, hidden_size: 32, num_layers: {layers}, num_heads: 4, intermediate_size: 48,
                  seq_length: 16 }}
moe_config: {{ {moe} }}
train_dataset: {{ data_loader: {{ type: CargoRegistryDataLoader }} }}
lr_schedule: {{ learning_rate: 1.0e-3 }}
"
    );
    let plan = plan(&yaml, &[]).unwrap_or_else(|e| panic!("{e}"));
    let recordings = Recordings::new(&plan, assumed_capabilities(tier), 10).expect("recordings");
    (recordings.kernels().into_iter().cloned().collect(), recordings.micro_step().dispatches.len())
}

#[test]
fn pipelines_do_not_depend_on_the_number_of_layers() {
    for (moe, tier) in MODELS.into_iter().flat_map(|moe| Tier::ALL.map(|tier| (moe, tier))) {
        let [(two, few), (more, some), (many, most)] = [2, 3, 24].map(|layers| recorded(moe, layers, tier));
        println!("{}: {} kernels, {few} launches with 2 layers, {most} with 24", tier.name(), many.len());
        assert!(two == many && more == many, "{}: other kernels with 24 layers", tier.name());
        assert_eq!(most - few, 22 * (some - few), "{}: launches of a layer", tier.name());
    }
}
