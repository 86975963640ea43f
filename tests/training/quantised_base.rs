//! Low-rank adapters on a quantised base: as on its dequantised weights, and in the memory that the plan says.

use crate::runs::{
    FolderRun, Setup, in_turn, newest_checkpoint, read_tensors, relative_distance, write_tensors,
};
use gristmill::element::Element::{self, Int8, Nf4};
use gristmill::kernels::Capabilities;
use gristmill::model::parameters::Role;
use gristmill::perf::forecast::Forecast;
use gristmill::train::recordings::Recordings;
use std::path::{Path, PathBuf};

/// Relative difference allowed from a run on the dequantised weights: what it multiplies by is the same to the bit.
const ALLOWED: f64 = 1e-6;

const MIXTURE: &str = "expert_num: 4, num_experts_chosen: 2, use_gmm: True";

fn adapters(keys: &str) -> String {
    format!(
        "pet_config: {{pet_type: lora, lora_rank: 4, lora_dropout: 0.0, target_modules: '.*wq|.*wo', {keys}}}"
    )
}

/// Whether a tensor of a file, in names of Llama, Mixtral or LFM2, is a matrix that `base_dtype` quantises.
fn is_quantised(name: &str) -> bool {
    ["_proj.", ".experts.", ".feed_forward."].iter().any(|part| name.contains(part))
}

/// The weights in `file`, quantised to `element` and widened again, in a file beside it.
fn dequantised(file: &Path, element: Element) -> PathBuf {
    let mut tensors = read_tensors(file);
    let mut changed = 0;
    for (_, tensor) in tensors.iter_mut().filter(|(name, _)| is_quantised(name)) {
        let columns = tensor.shape[1];
        for row in tensor.words.chunks_mut(columns) {
            let values: Vec<f32> = row.iter().copied().map(f32::from_bits).collect();
            let mut bytes = Vec::new();
            element.encode_row(&values, &mut bytes);
            row.iter_mut().zip(element.decode(&bytes)).for_each(|(word, value)| *word = value.to_bits());
        }
        changed += 1;
    }
    assert!(changed > 0, "no matrix in {}", file.display());
    let path = file.with_file_name(format!("{}.safetensors", element.name()));
    write_tensors(&path, &tensors);
    path
}

/// Five steps from the weights in a file on a base of `element`, and on its dequantised weights.
fn follows_dequantised(make: &dyn Fn(&str) -> Setup, element: Element, tier: &str) {
    let run = FolderRun::new(make("random_base: True").with(&["--callbacks=[{type: CheckpointMonitor}]"]));
    run.train(1);
    let (_, checkpoint) = newest_checkpoint(&run.folder()).expect("a checkpoint");
    let file = checkpoint.join("model.safetensors");
    let train = |keys: &str, path: &Path, steps: u64| {
        let load = format!("--load_checkpoint={}", path.display());
        let setup = make(keys).with(&[&load, tier]);
        setup.train_plan(&setup.plan(), Some(path), steps)
    };
    let want = train("", &dequantised(&file, element), 5);
    let got = train(&format!("base_dtype: {}", element.name()), &file, 5);
    for (got, want) in got.states.iter().zip(&want.states) {
        let difference = f64::from((got.loss - want.loss).abs() / want.loss);
        assert!(difference <= ALLOWED, "{element:?} {tier}: losses {} and {}", got.loss, want.loss);
    }
    let distance = relative_distance(&got.gradients, &want.gradients);
    println!("{element:?} {tier}: gradients differ by {distance:.1e}");
    assert!(distance <= 10.0 * ALLOWED, "{element:?} {tier}: gradients differ by {distance}");
    let plain = train("", &file, 1);
    assert!(plain.states[0].loss != want.states[0].loss, "quantising changes nothing");
}

const SOFTWARE: &str = "--context.tier=software";
const PORTABLE: &str = "--context.tier=portable";

/// With magnitudes, whose norms are of quantised rows. One type on the kernels of software adapters; both on both tiers with `GRISTMILL_LONG`.
#[test]
fn adapters_on_a_quantised_base_train_as_on_its_dequantised_weights() {
    for (element, tier) in in_turn(0, &[(Nf4, SOFTWARE), (Nf4, PORTABLE), (Int8, SOFTWARE), (Int8, PORTABLE)])
    {
        let make = |keys: &str| Setup::new("dense", &adapters(&format!("use_dora: True, {keys}")));
        follows_dequantised(&make, *element, tier);
    }
}

#[test]
#[ignore = "long; `adapters_on_a_quantised_base_train_as_on_its_dequantised_weights` has products of every shape"]
fn gated_convolutions_may_be_quantised() {
    let adapters = |keys: &str| {
        let keys = format!("lora_dropout: 0.0, target_modules: 'in_proj|out_proj', {keys}");
        Setup::of_convolutions("lfm2", &format!("pet_config: {{pet_type: lora, lora_rank: 4, {keys}}}"))
    };
    for (element, tier) in [(Nf4, SOFTWARE), (Int8, PORTABLE)] {
        follows_dequantised(&adapters, element, tier);
    }
}

/// The other type on the kernels of GPUs; the first with `GRISTMILL_LONG`. Experts have adapters, too.
#[test]
fn experts_may_be_quantised() {
    let make = |keys: &str| {
        Setup::experts("experts", MIXTURE, &adapters(&format!("target_parameters: experts, {keys}")))
    };
    for (element, tier) in in_turn(1, &[(Nf4, SOFTWARE), (Int8, PORTABLE)]) {
        follows_dequantised(&make, *element, tier);
    }
}

/// Blocks of 64 take 36 bytes in NF4 and 68 in int8; tables, head, router and norms stay as they were.
#[test]
fn a_quantised_base_takes_the_bytes_of_its_blocks() {
    for (element, block) in [(Nf4, 36), (Int8, 68)] {
        let keys = adapters(&format!("base_dtype: {}", element.name()));
        let setup = Setup::experts("bytes", MIXTURE, &format!("compute_dtype: bfloat16, {keys}"));
        let plan = setup.with(&["--load_checkpoint=anywhere"]).plan();
        let recordings = Recordings::new(&plan, Capabilities::software(), 10).expect("a plan");
        let bytes = |(spec, _): &(gristmill::model::parameters::Spec, _)| {
            let elements = (spec.rows * spec.cols) as u64;
            match spec.role {
                Role::Matrix | Role::ExpertStack { .. } => {
                    (spec.rows * spec.cols.div_ceil(64)) as u64 * block
                }
                Role::Router | Role::Lora => 4 * elements,
                _ => 2 * elements,
            }
        };
        let parameters = &recordings.layout.parameters;
        let want: u64 = parameters.iter().map(bytes).sum();
        let slack = Forecast::new(&recordings).weight_bytes.checked_sub(want);
        let most = 4 * 128 * parameters.len() as u64;
        assert!(slack.is_some_and(|slack| slack < most), "{element:?}: {slack:?} bytes more than {want}");
    }
}
