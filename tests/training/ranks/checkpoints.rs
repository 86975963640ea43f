//! Checkpoints that several ranks write, and that any number of ranks reads.
//!
//! They have the tensors of one rank's. Resuming is exact to the bit where the layout is the same, and within 1e-6
//! where it is not.

use super::against_one::SGD;
use super::layouts::{NARROW, WIDE};
use super::spread::Spread;
use crate::runs::{FolderRun, Left, Setup, every_third, is_long, metrics, new_trainer, save_checkpoint};
use safetensors::tensor::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;
use tempfile::TempDir;

/// Relative error allowed between runs that differ in how they are spread.
const ALLOWED: f64 = 1e-6;

/// A run with evaluations in between.
fn evaluated(setup: Setup) -> FolderRun {
    let keys = [
        "--train_dataset.eval_fraction=0.3",
        "--do_eval=True",
        "--eval_step_interval=2",
        "--callbacks=[{type: CheckpointMonitor, save_checkpoint_steps: 100}]",
    ];
    FolderRun::new(setup.with(&keys))
}

/// A run in bfloat16 with dropout: ranks hold a part of the master weights, and masks follow from the data.
fn half() -> FolderRun {
    let keys = "compute_dtype: bfloat16, hidden_dropout: 0.1, attention_dropout: 0.1";
    evaluated(Setup::new("half", keys))
}

/// The same in f32: a sum of parts that are rounded is not one that is rounded.
fn single() -> FolderRun {
    evaluated(Setup::new("single", "hidden_dropout: 0.1, attention_dropout: 0.1"))
}

/// A run whose head is the embedding, with dropout.
fn tied() -> FolderRun {
    evaluated(Setup::new("tied", "tie_word_embeddings: True, hidden_dropout: 0.1"))
}

/// A run with experts, whose biases move.
fn mixture() -> FolderRun {
    evaluated(Setup::experts("mixture", ROUTING, ""))
}

/// A run whose experts have biases, and matrices that lie transposed in files.
fn experts_of_gpt2() -> FolderRun {
    let routing = "expert_num: 4, num_experts_chosen: 2, capacity_factor: 1.0";
    let setup = Setup::experts_of("GPT2Config", "experts of gpt2", routing, "");
    evaluated(setup.with(&["--moe_config.moe_intermediate_size=48", SGD]))
}

/// A run that trains adapters alone: checkpoints share the files of the model.
fn adapted() -> FolderRun {
    let adapters = "pet_config: {pet_type: lora, random_base: True, lora_rank: 4, lora_dropout: 0.2, target_modules: '.*wq|.*w2'}";
    evaluated(Setup::new("adapted", &format!("compute_dtype: bfloat16, {adapters}")))
}

/// Hot experts, which change at powers of two and at the first checkpoint, and of which ranks that spread experts have
/// copies.
fn hot() -> FolderRun {
    evaluated(Setup::experts("hot", HOT, ""))
}

const HOT: &str = "expert_num: 4, num_experts_chosen: 2, capacity_factor: 1.1, enable_cold_hot_expert: True, \
                   hot_expert_num: 1, cold_token_percent: 0.75, update_step: 3";

const ROUTING: &str = "expert_num: 4, num_experts_chosen: 2, use_gmm: True, balance_via_topk_bias: True, \
                       topk_bias_update_rate: 0.01, norm_topk_prob: True, use_gating_sigmoid: True";

/// A run of adapters on a mixture from files, beside which norms, the embedding and the biases of routers change: its
/// checkpoints name the model.
fn adapted_to_files() -> FolderRun {
    static BASE: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, base) = BASE.get_or_init(|| initial(ROUTING));
    let adapters = "pet_config: {pet_type: lora, lora_rank: 4, lora_dropout: 0.2, target_modules: '.*wq|.*wo', \
                    freeze_exclude: ['*norm.weight', '*embed_tokens*']}";
    let load = format!("--load_checkpoint={}", base.display());
    evaluated(Setup::experts("adapted", ROUTING, adapters).with(&[&load]))
}

/// The weights that a mixture starts with, in a folder.
fn initial(routing: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let setup = Setup::experts("base", routing, "");
    let (plan, _, length) = setup.data();
    let gpu = setup.gpu_for(&plan);
    let base = save_checkpoint(&new_trainer(&gpu, &plan, &length), 1, folder.path());
    (folder, base)
}

/// A run of adapters on hot experts that are quantised.
fn adapted_hot() -> FolderRun {
    static BASE: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, base) = BASE.get_or_init(|| initial(HOT));
    let adapters = "pet_config: {pet_type: lora, lora_rank: 4, use_dora: True, target_modules: '.*wq|.*wo', base_dtype: nf4}";
    let load = format!("--load_checkpoint={}", base.display());
    evaluated(Setup::experts("adapted", HOT, adapters).with(&[&load]))
}

/// Trains two steps as `before` and two more as [`every_third`] of `after`, and compares with four as `before`: bit for
/// bit if both are the same.
fn resumes(new: fn() -> FolderRun, before: Spread, after: &[Spread]) {
    let [want, half] = [new(), new()];
    before.train(&want, 4);
    before.train(&half, 2);
    for &after in every_third(after) {
        let run = half.copy(new());
        after.train(&run, 4);
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
    let [got, want] = [got, want].map(FolderRun::left);
    for file in ["config.json", "trainer_state.json"] {
        assert!(got.checkpoint[file] == want.checkpoint[file], "{name}: {file} depends on the ranks");
    }
    compare_tensors(name, &tensors(&got), &tensors(&want));
}

/// Every tensor by itself: a norm's weights would not show beside an embedding's. Masters and moments are f32; what is
/// stored in 16 bits is frozen, so it is as it was.
fn compare_tensors(name: &str, got: &BTreeMap<String, Stored>, want: &BTreeMap<String, Stored>) {
    assert!(got.keys().eq(want.keys()), "{name}: the same tensors");
    let mut worst = BTreeMap::new();
    for (tensor, want) in want {
        let got = &got[tensor];
        assert_eq!((got.dtype, &got.shape), (want.dtype, &want.shape), "{name}: {tensor}");
        if want.dtype != Dtype::F32 {
            assert!(got.bytes == want.bytes, "{name}: {tensor} is not what it was");
            continue;
        }
        let apart = distance(&got.floats(), &want.floats());
        let kind = tensor.split_once('.').map_or("weights", |(kind, _)| kind);
        let kind = if kind.starts_with("exp_avg") { kind } else { "weights" };
        let worst = worst.entry(kind).or_insert((0.0, tensor));
        *worst = if apart > worst.0 { (apart, tensor) } else { *worst };
    }
    for (kind, (apart, tensor)) in worst {
        println!("{name}: {kind} {apart:.1e} apart, the furthest {tensor}");
        assert!(apart <= ALLOWED, "{name}: {tensor} is {apart:.1e} apart");
    }
}

/// ‖a − b‖ / ‖b‖; 0 where both are nothing.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    let difference: f64 = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
    let norm: f64 = b.iter().map(|b| b * b).sum();
    assert!(difference.is_finite() && norm.is_finite(), "the tensors of a checkpoint are finite");
    if difference == 0.0 { 0.0 } else { (difference / norm).sqrt() }
}

/// A tensor of a checkpoint.
struct Stored {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Stored {
    /// Its elements, which are f32.
    fn floats(&self) -> Vec<f64> {
        let words = self.bytes.as_chunks::<4>().0;
        words.iter().map(|word| f64::from(f32::from_le_bytes(*word))).collect()
    }
}

/// The tensors of a checkpoint, in whatever files they are.
fn tensors(left: &Left) -> BTreeMap<String, Stored> {
    let files = left.checkpoint.iter().filter(|(name, _)| name.ends_with(".safetensors"));
    let mut tensors = BTreeMap::new();
    for (name, bytes) in files {
        let file = SafeTensors::deserialize(bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        for (tensor, view) in file.tensors() {
            let stored =
                Stored { dtype: view.dtype(), shape: view.shape().to_vec(), bytes: view.data().to_vec() };
            assert!(tensors.insert(tensor.clone(), stored).is_none(), "{tensor} is in two files");
        }
    }
    tensors
}

#[test]
fn a_sharded_run_in_16_bits_resumes_on_any_number_of_ranks() {
    let [four, two] = [Spread::sharded(4), Spread::sharded(2)];
    resumes(half, four, &[Spread::ONE, two, four]);
}

/// Two ranks each hold one copy of moments, gradients and weights together.
const BLOCKS: Spread = Spread {
    data: 4,
    keys: &[
        "--parallel.enable_parallel_optimizer=True",
        "--parallel.parallel_optimizer_config={gradient_accumulation_shard: True, optimizer_weight_shard_size: 2}",
        "--recompute_config.parallel_optimizer_comm_recompute=True",
    ],
    ..Spread::ONE
};

#[test]
fn a_run_sharded_in_blocks_resumes_on_any_number_of_ranks() {
    resumes(half, BLOCKS, &[Spread::ONE, BLOCKS]);
    resumes(half, Spread::ONE, &[BLOCKS]);
}

#[test]
#[ignore = "long; `every_layout_resumes_every_other` has spread experts"]
fn spread_experts_resume_on_any_number_of_ranks() {
    let both = Spread { expert: 2, ..Spread::sharded(4) };
    let experts = Spread { data: 2, expert: 2, ..Spread::ONE };
    resumes(mixture, both, &[Spread::ONE, experts, both]);
    resumes(experts_of_gpt2, both, &[Spread::ONE, experts]);
}

/// Copies of hot experts are nowhere in a checkpoint, and there again after it.
#[test]
fn hot_experts_resume_on_any_number_of_ranks() {
    let two = Spread { data: 2, expert: 2, ..Spread::ONE };
    let four = Spread { data: 4, expert: 4, ..Spread::ONE };
    resumes(hot, four, &[Spread::ONE, two, four]);
    resumes(adapted_hot, two, &[Spread::ONE, two]);
}

/// A stage writes the tensors of its layers, and reads its own of whatever wrote them.
#[test]
fn stages_resume_on_any_number_of_ranks() {
    let two = Spread::stages(2);
    let both = Spread { stages: 2, ..Spread::sharded(2) };
    resumes(tied, two, &[Spread::ONE, both, two]);
    resumes(tied, both, &[both]);
    resumes(adapted, two, &[Spread::ONE]);
}

fn grouped() -> FolderRun {
    let layers = ["--model.model_config.num_layers=4"];
    evaluated(Setup::new("grouped", "n_kv_heads: 2, hidden_dropout: 0.1").with(&layers))
}

/// With experts that four ranks divide.
fn wide_mixture() -> FolderRun {
    let wide = ["--moe_config.moe_intermediate_size=48", "--model.model_config.num_layers=4"];
    evaluated(Setup::experts("mixture", ROUTING, "").with(&wide))
}

/// Layouts of which every pair resumes the other's checkpoint, with and without experts.
fn any_layout(has_experts: bool) -> Vec<Spread> {
    let all = [Spread::ONE].into_iter().chain(NARROW).chain(WIDE);
    all.filter(|spread| has_experts || spread.expert == 1).collect()
}

/// Two steps on each layout and two more on every one with `GRISTMILL_LONG`, else on every sixth one and on the
/// next, as four on one rank.
#[test]
fn every_layout_resumes_every_other() {
    for (new, has_experts) in [(grouped as fn() -> FolderRun, false), (wide_mixture, true)] {
        let want = new();
        Spread::ONE.train(&want, 4);
        let layouts = any_layout(has_experts);
        let (first, stride) = if is_long() { (0, 1) } else { (3 * usize::from(has_experts), 6) };
        for (index, before) in layouts.iter().enumerate().skip(first).step_by(stride) {
            let half = new();
            before.train(&half, 2);
            for after in
                layouts.iter().cycle().skip(index + 1).take(if is_long() { layouts.len() } else { 1 })
            {
                let run = half.copy(new());
                after.train(&run, 4);
                compare(&format!("{before:?}, then {after:?}"), &run, &want);
            }
        }
    }
}

/// `every_layout_resumes_every_other` has the products of data and matrices, with experts and without; with
/// `GRISTMILL_LONG` those with stages have dropout, too.
#[test]
#[ignore = "long; `every_layout_resumes_every_other` has divided matrices"]
fn divided_matrices_resume_on_any_number_of_ranks() {
    let two = Spread::divided(2);
    let four = Spread { data: 2, ..two };
    resumes(half, four, &[four]);
    let experts = Spread { expert: 2, ..four };
    resumes(experts_of_gpt2, experts, &[Spread::ONE, experts]);
    if is_long() {
        let stages = Spread { stages: 2, ..two };
        resumes(single, stages, &[stages]);
    }
}

#[test]
fn adapters_resume_on_any_number_of_ranks() {
    let two = Spread::sharded(2);
    resumes(adapted, two, &[Spread::ONE, two]);
}

#[test]
#[ignore = "long; adapters resume on one rank, and models on ranks"]
fn adapters_on_a_model_from_files_resume_on_any_number_of_ranks() {
    let two = Spread::sharded(2);
    resumes(adapted_to_files, two, &[Spread::ONE, two]);
    let run = adapted_to_files();
    two.train(&run, 1);
    let left = run.left();
    let names: Vec<&str> = left.checkpoint.keys().map(String::as_str).collect();
    assert!(names.contains(&"adapter/base.json"), "{names:?}");
    assert!(!names.iter().any(|name| name.starts_with("model")), "{names:?}");
    let tensors = tensors(&left);
    let names: Vec<&String> = tensors.keys().collect();
    for kept in
        ["model.norm.weight", "model.embed_tokens.weight", "model.layers.1.mlp.gate.e_score_correction_bias"]
    {
        assert!(names.iter().any(|name| **name == format!("base_model.model.{kept}")), "{kept} in {names:?}");
    }
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
        let total: usize = map.keys().map(|name| many[name].bytes.len()).sum();
        assert_eq!(index["metadata"]["total_size"], total);
        let sizes =
            (1..=4).map(|number| four.checkpoint[&format!("{stem}-0000{number}-of-00004.safetensors")].len());
        let (least, most) = (sizes.clone().min().unwrap(), sizes.max().unwrap());
        assert!(most < 2 * least, "{stem}: files of {least} to {most} bytes");
    }
}
