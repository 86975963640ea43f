//! Checkpoints that several ranks write, and that any number of ranks reads.

use super::spread::Spread;
use crate::runs::{FolderRun, Left, Setup, metrics};
use safetensors::SafeTensors;
use std::collections::BTreeMap;

/// Relative error allowed between runs that differ in how they are spread.
const ALLOWED: f64 = 1e-6;

/// A run with evaluations in between.
fn evaluated(setup: Setup) -> FolderRun {
    let keys = [
        "--train_dataset.eval_fraction=0.3",
        "--do_eval=True",
        "--eval_step_interval=3",
        "--callbacks=[{type: CheckpointMonitor, save_checkpoint_steps: 100}]",
    ];
    FolderRun::new(setup.with(&keys))
}

/// A run in bfloat16 with dropout: ranks hold a part of the master weights, and masks follow from the data.
fn half() -> FolderRun {
    let keys = "compute_dtype: bfloat16, hidden_dropout: 0.1, attention_dropout: 0.1";
    evaluated(Setup::new("half", keys))
}

/// A run with experts, whose biases move.
fn mixture() -> FolderRun {
    let routing = "expert_num: 4, num_experts_chosen: 2, use_gmm: True, balance_via_topk_bias: True, \
                   topk_bias_update_rate: 0.01, norm_topk_prob: True, use_gating_sigmoid: True";
    evaluated(Setup::experts("mixture", routing, ""))
}

/// A run that trains adapters alone: checkpoints share the files of the model.
fn adapted() -> FolderRun {
    let adapters =
        "pet_config: {pet_type: lora, lora_rank: 4, lora_dropout: 0.2, target_modules: '.*wq|.*w2'}";
    evaluated(Setup::new("adapted", &format!("compute_dtype: bfloat16, {adapters}")))
}

/// Trains three steps as `before` and three more as each of `after`, and compares with six as `before`: bit for bit if both are the
/// same.
fn resumes(new: fn() -> FolderRun, before: Spread, after: &[Spread]) {
    let want = new();
    before.train(&want, 6);
    for &after in after {
        let run = new();
        before.train(&run, 3);
        after.train(&run, 6);
        let name = format!("{before:?}, then {after:?}");
        match before == after {
            true => run.left().assert_equals(&name, &want.left()),
            false => compare(&name, &run, &want),
        }
    }
}

fn compare(name: &str, got: &FolderRun, want: &FolderRun) {
    let [got_lines, want_lines] = [got, want].map(|run| metrics(&run.folder()));
    assert_eq!(got_lines.len(), want_lines.len());
    for (got, want) in got_lines.iter().zip(&want_lines) {
        let apart = f64::from((got.loss - want.loss).abs() / want.loss);
        println!("{name}, step {}: {apart:.1e} apart", got.step);
        assert!(apart <= ALLOWED, "{name}, step {}: {} and {}", got.step, got.loss, want.loss);
    }
    let [got, want] = [got, want].map(|run| tensors(&run.left()));
    assert!(got.keys().eq(want.keys()), "{name}: the same tensors");
    for (tensor, (shape, bytes)) in &want {
        let (got_shape, got_bytes) = &got[tensor];
        assert_eq!((got_shape, got_bytes.len()), (shape, bytes.len()), "{name}: {tensor}");
    }
}

/// The tensors of a checkpoint, in whatever files they are: shape and bytes.
fn tensors(left: &Left) -> BTreeMap<String, (Vec<usize>, Vec<u8>)> {
    let files = left.checkpoint.iter().filter(|(name, _)| name.ends_with(".safetensors"));
    let tensors = files.flat_map(|(_, bytes)| {
        let file = SafeTensors::deserialize(bytes).expect("tensors");
        let tensors = file.tensors().into_iter();
        tensors.map(|(name, view)| (name, (view.shape().to_vec(), view.data().to_vec()))).collect::<Vec<_>>()
    });
    tensors.collect()
}

#[test]
fn a_sharded_run_in_16_bits_resumes_on_any_number_of_ranks() {
    let [four, two] = [Spread::sharded(4), Spread::sharded(2)];
    resumes(half, four, &[four, two, Spread::ONE]);
}

/// Two ranks each hold one copy of moments, gradients and weights together.
const BLOCKS: Spread = Spread {
    ranks: 4,
    expert: 1,
    sharding: &[
        "--parallel.enable_parallel_optimizer=True",
        "--parallel.parallel_optimizer_config={gradient_accumulation_shard: True, optimizer_weight_shard_size: 2}",
        "--recompute_config.parallel_optimizer_comm_recompute=True",
    ],
};

#[test]
fn a_run_sharded_in_blocks_resumes_on_any_number_of_ranks() {
    resumes(half, BLOCKS, &[Spread::ONE]);
    resumes(half, Spread::ONE, &[BLOCKS]);
}

#[test]
fn spread_experts_resume_on_any_number_of_ranks() {
    let both = Spread { expert: 2, ..Spread::sharded(4) };
    let experts = Spread { ranks: 2, expert: 2, sharding: &[] };
    resumes(mixture, both, &[both, experts, Spread::ONE]);
}

#[test]
fn adapters_resume_on_any_number_of_ranks() {
    let two = Spread::sharded(2);
    resumes(adapted, two, &[two, Spread::ONE]);
}

/// What is written does not depend on who writes it.
#[test]
fn ranks_write_the_tensors_of_one() {
    let written = |spread: Spread| {
        let run = half();
        spread.train(&run, 1);
        run.left()
    };
    let (one, four) = (written(Spread::ONE), written(Spread::sharded(4)));
    let [one, many] = [&one, &four].map(tensors);
    assert!(one.keys().eq(many.keys()));
    let names: Vec<&String> = four.checkpoint.keys().collect();
    for stem in ["model", "optimizer"] {
        for number in 1..=4 {
            assert!(names.contains(&&format!("{stem}-0000{number}-of-00004.safetensors")), "{names:?}");
        }
        let index: serde_json::Value =
            serde_json::from_slice(&four.checkpoint[&format!("{stem}.safetensors.index.json")])
                .expect("JSON");
        let map = index["weight_map"].as_object().expect("a map");
        let total: usize = map.keys().map(|name| many[name].1.len()).sum();
        assert_eq!(index["metadata"]["total_size"], total);
        let sizes =
            (1..=4).map(|number| four.checkpoint[&format!("{stem}-0000{number}-of-00004.safetensors")].len());
        let (least, most) = (sizes.clone().min().unwrap(), sizes.max().unwrap());
        assert!(most < 2 * least, "{stem}: files of {least} to {most} bytes");
    }
}
