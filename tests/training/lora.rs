//! Low-rank adapters: against the f64 trainer, what they take, how they are saved, loaded and merged.
//!
//! Only adapters have gradients and moments; merged weights evaluate the same; the files have PEFT's names.

use crate::against_reference::follows_the_reference;
use crate::runs::{
    FolderRun, GREEDY, Setup, Weights, compared_steps, evaluated, in_turn, metrics, new_trainer,
    newest_checkpoint, read_tensors,
};
use gristmill::element::Element;
use gristmill::kernels::Capabilities;
use gristmill::model::count;
use gristmill::model::parameters::Role;
use gristmill::perf::forecast::Forecast;
use gristmill::store::merge::merge;
use gristmill::train::recordings::Recordings;
use pollster::block_on;
use std::path::{Path, PathBuf};

/// Absolute difference allowed between the evaluation losses of a model with adapters and of the merged one.
const ALLOWED_OF_MERGED: f64 = 1e-6;

fn adapters(keys: &str) -> String {
    format!("pet_config: {{pet_type: lora, random_base: True, lora_dropout: 0.0, {keys}}}")
}

/// Adapters of experts, which have no dropout.
fn adapters_of_experts(keys: &str) -> String {
    format!("pet_config: {{pet_type: lora, random_base: True, {keys}}}")
}

fn follows(setup: &Setup) {
    follows_the_reference(setup, compared_steps());
}

#[test]
fn adapters_follow_the_reference() {
    let of_attention = adapters("lora_rank: 8, lora_alpha: 16, target_modules: '.*wq|.*wv'");
    follows(&Setup::new("q and v", &of_attention));
    let all = adapters("lora_rank: 3, lora_alpha: 32, target_modules: '.*'");
    let model = format!(
        "n_kv_heads: 2, qkv_has_bias: True, use_qk_norm: True, tie_word_embeddings: True, rotary_interleaved: True, \
         partial_rotary_factor: 0.5, intermediate_size: 37, {all}"
    );
    follows(&Setup::new("all of a Qwen", &model));
    let one = adapters(
        "lora_rank: 1, lora_alpha: 2, target_modules: [k_proj, w3], exclude_layers: ['0'], lora_a_init: normal",
    );
    follows(&Setup::new("rank 1 in one layer", &one));
    let several = adapters(
        "lora_rank: 4, lora_alpha: 6, use_rslora: True, target_modules: all-linear, \
         rank_pattern: {layers.1.self_attn.q_proj: 2, '[qk]_proj': 5}, alpha_pattern: {v_proj: 9, '0.mlp.*': 3}",
    );
    follows(&Setup::new("several ranks", &format!("n_kv_heads: 2, {several}")));
    let of_outputs = adapters("lora_rank: 4, target_modules: '.*wq|.*wo|.*down_proj'");
    follows(&Setup::new("norms after", &format!("norm_placement: after, {of_outputs}")));
    follows(&Setup::of_layers("layers", &adapters("lora_rank: 4, target_modules: '.*wq|.*wk|.*wo'")));
    follows(&Setup::gpt2("gpt2", &adapters("lora_rank: 5, target_modules: c_attn|.*c_proj")));
}

/// Magnitudes of all outputs and of some: of a Qwen with biases, of a GPT-2, whose matrices are transposed and whose
/// residual is added to scaled columns, and beside norms that train.
#[test]
fn magnitudes_follow_the_reference() {
    let all = adapters("lora_rank: 3, lora_alpha: 12, use_dora: True, target_modules: '.*'");
    let qwen = "n_kv_heads: 2, qkv_has_bias: True, use_qk_norm: True, rotary_interleaved: True, intermediate_size: 37";
    follows(&Setup::new("magnitudes", &format!("{qwen}, {all}")));
    let some = adapters(
        "lora_rank: 4, use_dora: True, rank_pattern: {v_proj: 2}, target_modules: '.*wq|.*wv|.*w3|.*wo', \
         freeze_exclude: ['*norm.weight', '*proj.bias']",
    );
    let biased = format!("qkv_has_bias: True, {some}");
    follows_the_reference(&Setup::new("some", &biased).with(&["--context.tier=portable"]), 4);
    let of_gpt2 = adapters("lora_rank: 5, use_dora: True, target_modules: c_attn|.*c_proj");
    follows(&Setup::gpt2("gpt2", &of_gpt2));
}

/// Factors of each expert: of an odd width, beside adapters of attention, in a layer that is dense at first, of gate and
/// up alone, and of gpt-oss, whose files hold all experts as one tensor.
#[test]
fn adapters_of_experts_follow_the_reference() {
    let routing =
        "expert_num: 4, num_experts_chosen: 2, use_gmm: True, shared_expert_num: 1, first_k_dense_replace: 1";
    let both = adapters_of_experts(
        "lora_rank: 3, lora_alpha: 12, target_modules: '.*wq|.*shared_experts.*proj', target_parameters: experts",
    );
    follows_the_reference(&Setup::experts("experts", routing, &both), 4);
    let dropped = "expert_num: 4, num_experts_chosen: 2, capacity_factor: 0.8";
    let gate_up = adapters_of_experts("lora_rank: 4, target_parameters: 'experts.gate_up_proj'");
    let portable = ["--context.tier=portable"];
    follows_the_reference(&Setup::experts("gate and up", dropped, &gate_up).with(&portable), 4);
    let down = adapters_of_experts(
        "lora_rank: 1, target_parameters: ['experts.w_down', gate_up_proj], exclude_layers: ['1.*down'], \
         rank_pattern: {experts.gate_up_proj: 3}",
    );
    follows_the_reference(&Setup::gpt_oss("gpt-oss", &down), 4);
}

/// The other type, on the kernels of GPUs, with `GRISTMILL_LONG`.
#[test]
fn adapters_of_experts_train_in_16_bits() {
    let routing = "expert_num: 4, num_experts_chosen: 2, use_gmm: True";
    for (compute, tier) in in_turn(0, &[("bfloat16", "software"), ("float16", "portable")]) {
        let keys = adapters_of_experts("lora_rank: 4, target_parameters: experts");
        let model = format!("compute_dtype: {compute}, {keys}");
        let tier = format!("--context.tier={tier}");
        let trained = Setup::experts("half", routing, &model).with(&[&tier]).train(10);
        assert!(trained.states[9].loss < trained.states[0].loss - 0.01, "{compute}: the loss does not fall");
    }
}

/// The kernels that a GPU runs.
#[test]
fn adapters_on_the_portable_tier_follow_the_reference() {
    let model = adapters("lora_rank: 6, target_modules: '.*'");
    follows_the_reference(&Setup::new("portable", &model).with(&["--context.tier=portable"]), 4);
}

#[test]
fn adapters_train_in_16_bits() {
    for compute in ["bfloat16", "float16"] {
        let model = format!("compute_dtype: {compute}, {}", adapters("target_modules: '.*wq|.*wo'"));
        let setup = Setup::new("half", &model);
        let trained = setup.train(10);
        assert!(trained.states[9].loss < trained.states[0].loss, "{compute}: the loss does not fall");
    }
}

/// Norms train beside the adapters, and the adapters of one layer do not.
#[test]
fn freeze_lists_and_adapters_work_together() {
    let lists = adapters("target_modules: '.*wq|.*w2', freeze_exclude: ['*norm.weight']");
    follows(&Setup::new("lists", &lists).with(&["--model.model_config.freeze=['layers.1.mlp']"]));
    let held = adapters("target_modules: '.*wq|.*w2', freeze_include: ['layers.0.*.lora_?']");
    let trained = Setup::new("held", &held).train(1);
    assert!(trained.gradients.keys().all(|name| name.contains(".layers.1.") && name.contains(".lora_")));
    assert_eq!(trained.gradients.len(), 4);
}

#[test]
fn the_attention_of_a_mixture_has_adapters() {
    let routing = "expert_num: 4, num_experts_chosen: 2, use_gmm: True, aux_loss_types: [expert], aux_loss_factors: [0.1]";
    let model = format!("mtp_depth: 1, mtp_loss_factor: 0.3, {}", adapters("target_modules: '.*wq|.*wo'"));
    let trained = Setup::experts("experts", routing, &model).with(&["--batch_size=3"]).train(5);
    assert_eq!(trained.gradients.len(), 3 * 2 * 2);
    assert!(trained.states[4].loss < trained.states[0].loss);
}

/// B, and what trains as vectors, learn as in a group with that rate.
#[test]
fn b_has_a_rate_of_its_own() {
    let weights = |more: &str, flags: &[&str]| {
        let keys =
            format!("target_modules: '.*wq', freeze_exclude: ['*norm.weight'], use_dora: True, {more}");
        Setup::new("rates", &adapters(&keys)).with(flags).train(4).weights
    };
    let grouped = "--grouped_lr_schedule={default: {type: ConstantWarmUpLR, learning_rate: 1.e-3}, \
                   grouped: [{type: ConstantWarmUpLR, learning_rate: 4.e-3, params: [lora_b, lora_mag, norm]}]}";
    let rate = "--lr_schedule={type: ConstantWarmUpLR, learning_rate: 1.e-3}";
    let own = weights("loraplus_lr_ratio: 4", &[rate]);
    assert_eq!(own, weights("loraplus_lr_ratio: 1", &[grouped]));
    assert_ne!(own, weights("loraplus_lr_ratio: 1", &[rate]));
}

/// Copies of an embedding that is the head, too: what trains of the two is written as PEFT does, and evaluates
/// alike when it is merged into the base, where magnitudes are as well.
#[test]
fn copies_of_a_tied_embedding_train_and_merge() {
    let tied = "tie_word_embeddings: True";
    let of_base = trained("base", Setup::new("base", tied));
    let (_, base) = newest_checkpoint(&of_base.folder()).expect("a checkpoint");
    let keys = "use_dora: True, target_modules: '.*wq|.*w2', modules_to_save: [embed_tokens]";
    let setup = Setup::new("copies", &format!("{tied}, {}", adapters(keys)));
    let run = trained("copies", setup.with(&[&format!("--load_checkpoint={}", base.display())]));
    let (_, checkpoint) = newest_checkpoint(&run.folder()).expect("a checkpoint");
    let tensors = read_tensors(&checkpoint.join("adapter/adapter_model.safetensors"));
    assert!(tensors.contains_key("base_model.model.model.embed_tokens.weight"));
    assert!(!tensors.contains_key("base_model.model.lm_head.weight"));
    let text = std::fs::read(checkpoint.join("adapter/adapter_config.json")).expect("a configuration");
    let config: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    assert_eq!(config["modules_to_save"], serde_json::json!(["model.embed_tokens"]));
    let merged = run.home.path().join("merged");
    let done = merge(&base, &checkpoint, &merged).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(done.adapted, 2 * 2 + 2);
    let with_adapters = evaluation(&run.setup, &[&checkpoint]);
    let merged = evaluation(&Setup::new("copies", ""), &[&merged]);
    assert!((with_adapters - merged).abs() <= ALLOWED_OF_MERGED, "{with_adapters} and {merged}");
}

/// Gradients and moments are those of adapters, and nothing else of the model is stored twice.
#[test]
fn only_adapters_have_gradients_and_moments() {
    let keys = "lora_rank: 4, target_modules: '.*wq|.*wv'";
    for (compute, element) in [("float32", Element::F32), ("bfloat16", Element::Bf16)] {
        let model = format!("compute_dtype: {compute}, {}", adapters(keys));
        let plan = Setup::new("memory", &model).plan();
        let recordings = Recordings::new(&plan, Capabilities::software(), 10).expect("a plan");
        let forecast = Forecast::new(&recordings);
        // Two layers, q and v in each: A (4, 32) and B (32, 4).
        let of_adapters = 2 * 2 * 2 * 4 * 32u64;
        assert_eq!(count::lora(&plan.model) as u64, of_adapters);
        // Segments are whole multiples of 128 elements, as each stack of A and of B is here.
        assert_eq!(forecast.gradient_bytes, 4 * of_adapters);
        assert_eq!(forecast.moment_bytes, 2 * 4 * of_adapters);
        let copies = if element == Element::F32 { 0 } else { element.bytes() * of_adapters };
        assert_eq!(forecast.copy_bytes, copies);
        let specs = recordings.layout.parameters.iter().map(|(spec, _)| spec);
        let of_model: u64 = specs
            .filter(|spec| spec.role != Role::Lora)
            .map(|spec| (spec.rows * spec.cols) as u64 * element.bytes())
            .sum();
        let slack = forecast.weight_bytes - 4 * of_adapters - of_model;
        assert!(slack < 128 * element.bytes() * recordings.layout.parameters.len() as u64, "{slack}");
        // Nothing that nobody uses is computed: the backward of a frozen matrix is one product.
        let frozen = |path: &str| {
            let launches = recordings.micro_step().dispatches.iter();
            launches.filter(|launch| launch.path == format!("layers.1.{path}.backward")).count()
        };
        assert_eq!(frozen("feed_forward.w_down"), 1);
        assert_eq!(frozen("attention.wo"), 1);
        assert_eq!(frozen("ffn_norm"), 1);
    }
}

#[test]
fn a_run_with_adapters_resumes_exactly_and_stores_its_model_once() {
    let dense =
        adapters("target_modules: '.*wq|.*w1|.*w2'").replace("lora_dropout: 0.0", "lora_dropout: 0.2");
    let of_experts = adapters_of_experts("target_modules: '.*wq', target_parameters: experts");
    for (compute, keys) in [("float32", dense), ("bfloat16", of_experts)] {
        let new = || {
            let model = format!("compute_dtype: {compute}, {keys}");
            let routing = "expert_num: 4, num_experts_chosen: 2, use_gmm: True";
            let setup = match compute {
                "float32" => Setup::new("resumed", &model),
                _ => Setup::experts("resumed", routing, &model),
            };
            evaluated(setup, 3, &[])
        };
        let want = new().train(10).left();
        let run = new();
        run.train(5).train(10).left().assert_equals("5 and 5 with adapters", &want);
        let losses: Vec<f64> = metrics(&run.folder()).iter().map(|line| f64::from(line.loss)).collect();
        assert!(losses[9] < losses[0], "the loss does not fall: {losses:?}");
        let config: serde_json::Value =
            serde_json::from_slice(&want.checkpoint["config.json"]).expect("JSON");
        assert_eq!(config["torch_dtype"], compute);
        let checkpoints = std::fs::read_dir(run.folder().join("checkpoint")).expect("checkpoints");
        let folders = checkpoints.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
        let models: Vec<PathBuf> = folders.map(|path| path.join("model.safetensors")).collect();
        assert_eq!(models.len(), 2);
        assert_same_file(&models[0], &models[1]);
    }
}

#[cfg(unix)]
fn assert_same_file(one: &Path, other: &Path) {
    use std::os::unix::fs::MetadataExt;
    let number = |path: &Path| std::fs::metadata(path).expect("a file").ino();
    assert_eq!(number(one), number(other), "the model takes room twice");
}

#[cfg(not(unix))]
fn assert_same_file(_: &Path, _: &Path) {}

/// A run after 20 steps at a high rate.
fn trained(name: &'static str, setup: Setup) -> FolderRun {
    let run = FolderRun::new(setup.with(&[
        "--lr_schedule.learning_rate=1.e-2",
        "--callbacks=[{type: CheckpointMonitor, save_checkpoint_steps: 20}]",
    ]));
    assert_eq!(run.setup.name, name);
    run.train(20);
    run
}

/// The evaluation loss of the weights at the first of `load`, with the adapters at the second, if there is one.
fn evaluation(setup: &Setup, load: &[&Path]) -> f64 {
    let (plan, data, length) = setup.data();
    let gpu = setup.gpu();
    let mut trainer = new_trainer(&gpu, &plan, &length);
    if let [weights, adapters @ ..] = load {
        trainer.load_weights(weights, false).unwrap_or_else(|e| panic!("{e}"));
        adapters.iter().for_each(|path| trainer.load_lora(path).unwrap_or_else(|e| panic!("{e}")));
    }
    block_on(trainer.evaluate(0, &data.train, 8, |_| Ok(()))).expect("an evaluation");
    block_on(trainer.wait()).expect("the device");
    f64::from(trainer.finished_evaluations().expect("losses")[0].loss)
}

#[test]
fn merged_weights_evaluate_as_the_adapters_do() {
    let llama = "n_kv_heads: 2, rotary_interleaved: True";
    let keys = adapters("lora_rank: 4, target_modules: '.*'");
    let mixture: fn(&'static str, &str) -> Setup = |name, model| {
        let routing = "expert_num: 3, num_experts_chosen: 2, use_gmm: True, shared_expert_num: 1";
        let targets = "target_modules: '.*self_attn.*|.*shared_experts.*', target_parameters: experts";
        Setup::experts(name, routing, &model.replace("target_modules: '.*'", targets))
    };
    let [of_llama, of_gpt2]: [fn(&'static str, &str) -> Setup; 2] = [Setup::new, Setup::gpt2];
    let cases = [
        ("llama", of_llama, llama, 14),
        ("gpt2", of_gpt2, "max_position_embeddings: 24", 8),
        ("mixture", mixture, "n_kv_heads: 2", 2 * (4 + 3 + 3 * 3)),
    ];
    for (name, make, model, adapted) in cases {
        let run = trained(name, make(name, &format!("{model}, {keys}")));
        let (_, checkpoint) = newest_checkpoint(&run.folder()).expect("a checkpoint");
        let merged = run.home.path().join("merged");
        let done = merge(&checkpoint, &checkpoint, &merged).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(done.adapted, adapted);
        let plain = make(name, model);
        let with_adapters = evaluation(&run.setup, &[&checkpoint]);
        let (base, merged_loss) = (evaluation(&plain, &[&checkpoint]), evaluation(&plain, &[&merged]));
        println!("{name}: base {base:.7}, adapters {with_adapters:.7}, merged {merged_loss:.7}");
        assert!(
            (with_adapters - merged_loss).abs() <= ALLOWED_OF_MERGED,
            "{with_adapters} and {merged_loss}"
        );
        assert!(base - with_adapters > 0.1, "the adapters change little: {base} and {with_adapters}");
        // An adapter from elsewhere, on the model alone.
        let model = checkpoint.join("model.safetensors");
        let both = evaluation(&run.setup, &[&model, &checkpoint.join("adapter")]);
        assert_eq!(both, with_adapters);
        let config = std::fs::read(merged.join("config.json")).expect("a configuration");
        assert_eq!(config, std::fs::read(checkpoint.join("config.json")).expect("a configuration"));
    }
}

#[test]
fn the_files_are_those_of_peft() {
    let run = trained(
        "peft",
        Setup::new(
            "peft",
            &adapters(
                "lora_rank: 4, lora_alpha: 6, target_modules: '.*wq|.*w2', exclude_layers: ['0.feed_forward']",
            ),
        ),
    );
    let (_, checkpoint) = newest_checkpoint(&run.folder()).expect("a checkpoint");
    let tensors = read_tensors(&checkpoint.join("adapter/adapter_model.safetensors"));
    let shapes: Vec<(&str, &[usize])> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), &tensor.shape[..])).collect();
    assert_eq!(
        shapes,
        [
            ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", &[4usize, 32][..]),
            ("base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", &[32, 4]),
            ("base_model.model.model.layers.1.mlp.down_proj.lora_A.weight", &[4, 64]),
            ("base_model.model.model.layers.1.mlp.down_proj.lora_B.weight", &[32, 4]),
            ("base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight", &[4, 32]),
            ("base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight", &[32, 4]),
        ]
    );
    let text = std::fs::read(checkpoint.join("adapter/adapter_config.json")).expect("a configuration");
    let config: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    assert_eq!(
        (&config["peft_type"], &config["r"], &config["lora_alpha"]),
        (&"LORA".into(), &4.into(), &6.0.into())
    );
    assert_eq!(config["target_modules"], serde_json::json!(["model.layers.1.mlp.down_proj", "q_proj"]));
    assert!(read_tensors(&checkpoint.join("model.safetensors")).keys().all(|name| !name.contains("lora")));
    // What a run without adapters would start from.
    let plain = Setup::new("peft", "").initial_weights();
    let model = read_tensors(&checkpoint.join("model.safetensors"));
    let held: Weights = model.iter().map(|(name, tensor)| (name.clone(), tensor.floats())).collect();
    assert_eq!(held, plain);
}

#[test]
fn a_run_with_adapters_generates_and_continues_from_its_weights() {
    let run = trained("text", Setup::new("text", &adapters("target_modules: '.*wq|.*wv|.*w2'")));
    let gpu = run.setup.gpu();
    let text = run.generate(&gpu, &["fn main"], &GREEDY);
    let (_, checkpoint) = newest_checkpoint(&run.folder()).expect("a checkpoint");
    let merged = run.home.path().join("merged");
    merge(&checkpoint, &checkpoint, &merged).unwrap_or_else(|e| panic!("{e}"));
    assert!(!text[0].is_empty());
    std::fs::remove_dir_all(checkpoint.join("adapter")).expect("an adapter");
    let error = gristmill::infer::InferenceModel::load;
    let line = block_on(error(&gpu, &run.open(), 1, 8)).err().expect("no adapter").to_string();
    assert!(line.contains("holds no adapter; name a folder with adapter_model.safetensors"), "{line}");
}

#[test]
fn adapters_that_do_not_fit_are_one_line() {
    let run = trained("misfit", Setup::new("misfit", &adapters("lora_rank: 4, target_modules: '.*wq'")));
    let (_, checkpoint) = newest_checkpoint(&run.folder()).expect("a checkpoint");
    let line = |keys: &str| {
        let setup = Setup::new("misfit", &adapters(keys));
        let (plan, _, length) = setup.data();
        let gpu = setup.gpu();
        let trainer = new_trainer(&gpu, &plan, &length);
        trainer.load_weights(&checkpoint, false).expect_err("an error").to_string()
    };
    assert!(
        line("lora_rank: 8, target_modules: '.*wq'")
            .contains("is of rank 4 with a factor of 4, and this run's adapters")
    );
    assert!(
        line("lora_rank: 4, lora_alpha: 4, target_modules: '.*wq'")
            .contains("change lora_rank and lora_alpha")
    );
    assert!(
        line("lora_rank: 4, target_modules: '.*wk'")
            .contains("holds no tensor `base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight`")
    );
    let out = run.home.path().join("merged");
    let merging = |base: &Path, adapter: &Path| merge(base, adapter, &out).expect_err("an error").to_string();
    assert!(merging(&checkpoint, run.home.path()).contains("holds no adapter"));
    let gpt2 = trained("gpt2", Setup::gpt2("gpt2", &adapters("target_modules: c_attn")));
    let (_, other) = newest_checkpoint(&gpt2.folder()).expect("a checkpoint");
    assert!(
        merging(&checkpoint, &other)
            .contains("adapts `transformer.h.0.attn.c_attn`, which the model does not have")
    );
    assert!(!out.exists());
    std::fs::create_dir_all(out.join("something")).expect("a folder");
    assert!(merging(&checkpoint, &checkpoint).contains("is there already and not empty"));
}
