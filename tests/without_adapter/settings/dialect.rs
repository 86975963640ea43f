//! Files in the dialect of MindSpore Transformers: what becomes of each class of key, and of each type of model.
//!
//! A file is a plan, or one line for each thing that is not built; every alias is known; one device does the steps
//! of several.

use super::{BASE, assert_reads_back, message, resolve};
use gristmill::error::Result;
use gristmill::model::config::Family;
use gristmill::settings::{Override, RunConfig};
use std::path::{Path, PathBuf};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/without_adapter/settings/dialect").join(name)
}

/// What `plan` reads, which needs no data.
fn outline(path: &Path, flags: &[&str]) -> Result<RunConfig> {
    RunConfig::outline(path, &Override::parse_all(flags.to_vec())?, None)
}

/// The lines that answer a file, without its place.
fn answers(name: &str, flags: &[&str], needs_data: bool) -> Vec<String> {
    let path = file(name);
    let overrides = Override::parse_all(flags.to_vec()).unwrap();
    let read = if needs_data {
        RunConfig::load(&path, &overrides)
    } else {
        RunConfig::outline(&path, &overrides, None)
    };
    let text = read.map(|config| config.notices).unwrap_err().to_string();
    let place = format!("{}:", path.display());
    let short = |line: &str| {
        line.strip_prefix(&place).map_or(line, |rest| rest.split_once(": ").unwrap().1).to_string()
    };
    text.lines().map(short).collect()
}

#[test]
fn a_pretraining_file_for_sixteen_devices_becomes_a_plan_for_one() {
    let config =
        outline(&file("pretrain_llama.yaml"), &["--as-single"]).unwrap_or_else(|error| panic!("{error}"));
    let plan = &config.plan;
    // batch_size x micro_batch_num x data_parallel x micro_batch_interleave_num; accumulation does not count beside
    // stages.
    assert_eq!(plan.settings.runner.gradient_accumulation_steps, 8 * 2 * 2);
    assert_eq!(plan.tokens_per_step, 3 * 32 * 64);
    // Of the first of two stages one layer.
    assert_eq!(plan.model.recomputed.layers, [0]);
    assert_eq!((plan.model.norm_eps, plan.model.layer.rope_theta), (1e-5, 1e6));
    let checkpoint = plan.settings.callbacks.checkpoint.clone().unwrap();
    assert_eq!((checkpoint.save_checkpoint_steps, checkpoint.prefix.as_str()), (1000, "small"));
    assert_eq!(
        config.notices,
        [
            "model.model_config.pad_token_id: is left out of the loss in rows of MindDataset; other loaders know padding by its place and \
             not by an id",
            "eval_dataset: unused, as `do_eval` is False",
            "parallel_config asks for data_parallel 2, model_parallel 4, pipeline_stage 2; this run is one rank and takes 1",
            "recompute_config.recompute_slice_activation: no effect on one device",
            "num_layers per stage: [[2, 2]]",
            "Accumulated num_layers per stage: [[2, 4]]",
            "Formative layer_recompute: [[1, 0]]",
            "Set full recompute at layer 0",
            "context.max_device_memory: not applied with `as_single`, as it is about the file's own devices",
            "runner_config.gradient_accumulation_steps: `4` does not count beside pipeline stages, as in MindFormers",
            "runner_config.gradient_accumulation_steps: 32 keeps the 96 windows of a step (parallel_config.micro_batch_num 8 x \
             parallel_config.data_parallel 2 x micro_batch_interleave_num 2)",
            "without meaning here and ignored: auto_trans_ckpt, metric, processor, eval_callbacks, auto_tune, filepath_prefix, \
             autotune_per_step, profile_start_step, profile_stop_step, init_start_profile, profile_communication, \
             profile_memory, layer_decay, lr_scale_factor, remote_save_url, parallel.{gradients_mean, enable_alltoall, \
             full_batch, search_mode, enable_parallel_optimizer, strategy_ckpt_config}, \
             parallel.parallel_optimizer_config.parallel_optimizer_threshold, parallel_config.{use_seq_parallel, \
             optimizer_shard, gradient_aggregation_group}, trainer.model_name, runner_config.{sink_mode, sink_size}, \
             train_dataset.{num_parallel_workers, python_multiprocessing, drop_remainder, batch_size, numa_enable, \
             prefetch_size}, moe_config.{capacity_factor, aux_loss_factor, num_experts_chosen}, callbacks.ObsMonitor, \
             callbacks.1.{integrated_save, async_save}, context.{device_target, max_call_depth}, \
             model.model_config.{batch_size, bos_token_id, eos_token_id, use_past, use_flash_attention, \
             repetition_penalty, max_decode_length, top_k, top_p, do_sample}",
        ]
    );
    assert!(config.data_faults.is_empty());
    assert_eq!(config.plan.settings.train_dataset.keys.pad_token_id, Some(0));
    // Files of MindFormers leave the folder to the launcher: the data is what is missing then, and only training misses
    // it.
    let unset = ["--as-single", "--train_dataset.data_loader.dataset_dir=''"];
    let needed = "needs `dataset_dir` or `dataset_files`: a .mindrecord file, a folder or a pattern";
    let config = outline(&file("pretrain_llama.yaml"), &unset).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.data_faults.len(), 1);
    assert!(config.data_faults[0].to_string().ends_with(needed), "{}", config.data_faults[0]);
    let refused = answers("pretrain_llama.yaml", &unset, true);
    let flag = "--train_dataset.data_loader.dataset_dir: makes `train_dataset.data_loader.type` wrong";
    assert_eq!(refused, [format!("{flag}: {needed}")]);
}

/// Hugging Face's and Megatron's names side by side, as files of MindFormers' newer models have them.
#[test]
fn a_file_of_deepseek_becomes_a_plan() {
    let path = Path::new("tests/data/dialect/deepseek3.yaml");
    let config = outline(path, &["--as-single"]).unwrap_or_else(|error| panic!("{error}"));
    let model = &config.plan.model;
    let latent = model.latent.expect("latent attention");
    assert_eq!((latent.q_rank, latent.kv_rank, model.layer.head_dim), (Some(24), 16, 24));
    assert_eq!(model.multi_token.map(|ahead| ahead.depth), Some(1));
    // m(1) = 0.1 ln 4 + 1, squared.
    let scale = f64::from(model.softmax_scale(&model.layer)) * 24f64.sqrt();
    assert!((scale - (0.1 * 4f64.ln() + 1.0).powi(2)).abs() < 1e-6, "{scale}");
    let mixture = model.mixture.as_ref().expect("experts");
    assert_eq!((mixture.first_dense_layers, mixture.has_bias, mixture.bias_update_rate), (1, true, 1e-3));
    assert_eq!((mixture.losses.sequence, mixture.route.scaling), (1e-4, 2.5));
    let operators: Vec<&str> = model.recomputed.operators.iter().map(|(one, _)| one.path()).collect();
    let expected = ["attention.heads", "attention.kv_norm", "feed_forward.mul"];
    assert!(expected.iter().all(|path| operators.contains(path)), "{operators:?}");
    // What patterns select is told once.
    let plain = ["--as-single", "--recompute_config.select_recompute=False"];
    let plain = outline(path, &plain).unwrap_or_else(|error| panic!("{error}"));
    assert_reads_back(&plain.plan);
}

#[test]
fn several_devices_need_a_word() {
    let needed = "parallel_config: asks for 16 ranks (data_parallel 2, model_parallel 4, pipeline_stage 2), and 1 was started; start 16 \
                  (`mpirun -n 16 gristmill train ...` or `--ranks 16`), change the degrees, or start one with `--as-single`, which \
                  does the work of all";
    assert_eq!(answers("pretrain_llama.yaml", &[], true), [needed]);
    let shared = ["--parallel_config.model_parallel=1", "--parallel_config.pipeline_stage=1"];
    let needed = "--parallel_config.pipeline_stage: asks for 2 ranks (data_parallel 2), and 1 was started; start 2 (`mpirun -n 2 gristmill train ...` \
                  or `--ranks 2`), change the degrees, or start one with `--as-single`, which does the work of all";
    assert_eq!(answers("pretrain_llama.yaml", &shared, true), [needed]);
    // In its other modes MindFormers takes every degree as 1 itself.
    for flag in ["--use_parallel=False", "--parallel.parallel_mode=0", "--parallel.parallel_mode=STAND_ALONE"]
    {
        let config =
            outline(&file("pretrain_llama.yaml"), &[flag]).unwrap_or_else(|error| panic!("{flag}: {error}"));
        assert_eq!(config.plan.tokens_per_step, 3 * 4 * 64, "{flag}");
    }
    // Without stages the steps that were written count, and micro_batch_num does not.
    let config =
        outline(&file("finetune_mixtral.yaml"), &["--as-single"]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.plan.settings.runner.gradient_accumulation_steps, 3 * 2);
    assert_reads_back(&config.plan);
    let huge = ["--as-single", "--parallel_config.data_parallel=4000000000"];
    assert_eq!(
        answers("finetune_mixtral.yaml", &huge, false),
        [
            "--parallel_config.data_parallel: makes more micro-batches a step than can be accumulated; lower the degrees"
        ]
    );
}

/// One line for each thing that is not built, and none about keys that belong to it.
#[test]
fn what_is_not_built_is_one_line_each() {
    let tokenizer =
        "train_dataset.tokenizer: `tokenizer_file` is missing; give it the path of a tokenizer.json";
    assert_eq!(answers("finetune_glm.yaml", &[], true), [tokenizer]);
    let kind = "--model.model_config.type=MambaConfig";
    let flags = [kind, "--model.arch.type=Other", "--model.arch.auto_register=a.B"];
    let lines = answers("finetune_glm.yaml", &flags, true);
    assert!(lines.len() == 2 && lines[1] == tokenizer, "{lines:?}");
    let unknown = "--model.model_config.type: `MambaConfig` is not built; `gristmill explain model.model_config.type` lists \
                   those that are";
    assert_eq!(lines[0], unknown);
    let adapters = "--model.model_config.pet_config={pet_type: lora, lora_rank: 8, target_modules: '.*wq'}";
    assert_eq!(answers("finetune_glm.yaml", &[kind, adapters], false), [unknown]);
    let other = "--model.model_config.pet_config={pet_type: ptuning2, pre_seq_len: 128}";
    for (file, flags) in
        [("finetune_glm.yaml", &[other][..]), ("pretrain_llama.yaml", &["--as-single", other])]
    {
        let lines = answers(file, flags, false);
        assert!(
            lines
                .iter()
                .any(|line| line.ends_with("pet_config: pet_type: `ptuning2` is not built yet; write lora")),
            "{lines:?}"
        );
    }
    let elsewhere =
        "pretrained_model_dir: path/to/model: has no config.json; name a folder of Hugging Face's";
    assert_eq!(answers("template_mcore.yaml", &["--as-single"], false), [elsewhere]);
    let none = "model.model_config: describes no model; write at least `vocab_size`, `hidden_size`, `num_layers`, `num_heads`, \
                `seq_length`";
    let empty = ["--pretrained_model_dir=''", "--as-single"];
    assert_eq!(answers("template_mcore.yaml", &empty, false), [none]);
    // A class around the data keeps them from loading, as a missing loader does.
    let task = message(BASE, &["--train_dataset_task.type=TranslationDataset"]);
    assert_eq!(
        task,
        "--train_dataset_task.type: `TranslationDataset` is not built; write `type: CausalLanguageModelDataset`"
    );
    let task = message(BASE, &["--train_dataset_task.type=CausalLanguageModelDataSet"]);
    assert!(task.ends_with("did you mean `CausalLanguageModelDataset`?"), "{task}");
}

#[test]
fn a_file_builds_on_others() {
    let path = file("pretrain_gpt2.yaml");
    let config = outline(&path, &[]).unwrap_or_else(|error| panic!("{error}"));
    let (plan, runner) = (&config.plan, &config.plan.settings.runner);
    assert_eq!((plan.model.family, plan.model.num_layers, plan.model.num_heads), (Family::Gpt2, 3, 4));
    assert_eq!((runner.batch_size, runner.stop_step, plan.model.hidden_dropout), (2, 7, 0.1));
    assert_reads_back(plan);

    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let answer = |name: &str| {
        let error = RunConfig::load(&folder.path().join(name), &[])
            .map(|config| config.notices)
            .unwrap_err()
            .to_string();
        error.replace(&format!("{}/", folder.path().display()), "")
    };
    // A fault is where its key was written; of several bases the last has all of a section.
    write("a.yaml", &BASE.replace("num_heads: 4", "num_heads: 5"));
    write("b.yaml", "runner_config: {batch_size: 9}\n");
    write("top.yaml", "base_config: [a.yaml, b.yaml]\nseed: 1\n");
    assert_eq!(
        answer("top.yaml"),
        "a.yaml:8: model.model_config.num_heads: 5 heads do not divide hidden_size 64; change one of them or give `head_dim`"
    );
    write("a.yaml", BASE);
    let config = RunConfig::load(&folder.path().join("top.yaml"), &[]).unwrap();
    let runner = &config.plan.settings.runner;
    assert_eq!((runner.batch_size, runner.epochs, config.plan.settings.run.seed), (9, 1, 1));
    write("loop.yaml", "seed: 1\nbase_config: loop2.yaml\n");
    write("loop2.yaml", "base_config: loop.yaml\n");
    assert_eq!(
        answer("loop.yaml"),
        "loop2.yaml:1: base_config: loop.yaml builds on this file in its turn; remove it"
    );
    // However the path is spelt.
    std::fs::create_dir(folder.path().join("d")).unwrap();
    write("d/self.yaml", "base_config: ../d/self.yaml\n");
    assert_eq!(
        answer("d/self.yaml"),
        "d/self.yaml:1: base_config: d/../d/self.yaml builds on this file in its turn; remove it"
    );
    write("lost.yaml", "seed: 1\nbase_config: nowhere.yaml\n");
    let lost = answer("lost.yaml");
    assert!(lost.starts_with("lost.yaml:2: base_config: nowhere.yaml cannot be read: "), "{lost}");
    write("list.yaml", "base_config: [[1]]\n");
    assert!(
        answer("list.yaml")
            .starts_with("list.yaml:1: base_config: expected a value or a list of values, found a list")
    );
    let flag = [format!("--base_config={}", folder.path().join("b.yaml").display())];
    let (plan, _) = resolve(&BASE.replace("  batch_size: 4\n", ""), &[&flag[0]]).unwrap();
    assert_eq!(plan.settings.runner.batch_size, 9);
}

#[test]
fn repeated_keys_as_pyyaml_reads_them() {
    let text = BASE.replace("  epochs: 2\n", "  epochs: 2\n  batch_size: 64\n");
    let (plan, notices) =
        resolve(&text, &["--runner_wrapper={use_clip_grad: False, use_clip_grad: True}"]).unwrap();
    assert_eq!(plan.settings.runner.batch_size, 4);
    assert_eq!(
        notices,
        [
            "x.yaml:13: runner_config.batch_size: written more than once; the last value counts, as PyYAML reads it",
            "--runner_wrapper: use_clip_grad: written more than once; the last value counts, as PyYAML reads it",
        ]
    );
    // A fault of it is on the line that counts.
    let wrong = text.replace("batch_size: 4", "batch_size: 0");
    assert!(message(&wrong, &[]).starts_with("x.yaml:13: runner_config.batch_size: expected"));
    // Merged keys are no repeated ones, and files of other systems are the same.
    let merged = BASE.replace(
        "train_dataset_task:",
        "eval_dataset: {<<: *train_dataset, data_loader: {}}\ntrain_dataset_task:",
    );
    assert_eq!(
        resolve(&merged, &["--runner_wrapper.use_clip_grad=True"]).unwrap().1,
        ["eval_dataset: unused, as `do_eval` is False"]
    );
    let windows = format!("\u{feff}{}", BASE.replace('\n', "\r\n"));
    assert_eq!(resolve(&windows, &[]).unwrap().0, resolve(BASE, &[]).unwrap().0);
    let tabbed = message(&BASE.replace("  epochs", "\tepochs"), &[]);
    assert!(tabbed.starts_with("x.yaml:11: not valid YAML: "), "{tabbed}");
}

/// Every set of names that MindFormers accepts for one key (its table of conversions for Megatron's configuration).
const ALIASES: &str = "
parallel_config data_parallel|data_parallel_size model_parallel|tensor_model_parallel_size
parallel_config pipeline_stage|pipeline_model_parallel_size pp_interleave_num|virtual_pipeline_model_parallel_size
parallel_config use_seq_parallel|sequence_parallel
model.model_config param_init_type|params_dtype mtp_depth|num_nextn_predict_layers|mtp_num_layers
model.model_config mtp_loss_factor|mtp_loss_scaling_factor num_heads|num_attention_heads|n_head
model.model_config n_kv_heads|num_key_value_heads|num_query_groups intermediate_size|ffn_hidden_size head_dim|kv_channels
model.model_config rms_norm_eps|layernorm_epsilon|layer_norm_epsilon qkv_has_bias|attention_bias|add_qkv_bias
model.model_config num_layers|num_hidden_layers|n_layer use_qk_norm|qk_layernorm extend_method|position_embedding_type
model.model_config init_method_std|initializer_range use_fused_rope|apply_rope_fusion use_fused_swiglu|bias_swiglu_fusion
model.model_config theta|rope_theta|rotary_base scaling_factor|factor|rotary_scaling_factor
moe_config use_fused_ops_permute|moe_permute_fusion expert_num|n_routed_experts|num_experts|num_moe_experts
moe_config moe_intermediate_size|moe_ffn_hidden_size num_experts_chosen|num_experts_per_tok|moe_router_topk
moe_config n_group|moe_router_num_groups topk_group|moe_router_group_topk
moe_config routed_scaling_factor|moe_router_topk_scaling_factor
moe_config use_gating_sigmoid|scoring_func|moe_router_score_function router_dense_type|moe_router_dtype
moe_config balance_via_topk_bias|moe_router_enable_expert_bias topk_bias_update_rate|moe_router_bias_update_rate
moe_config use_gmm|moe_grouped_gemm z_loss_factor|moe_z_loss_coeff capacity_factor|moe_expert_capacity_factor
moe_config enable_sdrop|moe_token_drop_policy enable_gmm_safe_tokens|use_pad_tokens n_shared_experts|shared_expert_num
swap_config swap|cpu_offloading
";

#[test]
fn each_name_of_a_key_is_known_and_two_that_disagree_are_an_error() {
    for line in ALIASES.lines().filter(|line| !line.is_empty()) {
        let (section, sets) = line.split_once(' ').unwrap();
        for names in sets.split(' ').map(|set| set.split('|').collect::<Vec<_>>()) {
            for name in &names {
                let found = message(BASE, &[&format!("--{section}.{name}=9")]);
                assert!(!found.contains("unknown key"), "{section}.{name}: {found}");
            }
            for other in &names[1..] {
                let found = message(&given_twice(section, [names[0], other]), &[]);
                let has = |line: &str, name: &str| {
                    line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name)
                };
                let names_both = |line: &str| has(line, names[0]) && has(line, other);
                assert!(found.lines().any(names_both), "{section}.{names:?}: {found}");
            }
        }
    }
}

/// A configuration in which `section` gives a key under two names, with different values.
fn given_twice(section: &str, names: [&str; 2]) -> String {
    // A switch, a word and a number: whatever the key takes, the two differ.
    let values = if names[0] == "extend_method" { ["NTK", "YARN"] } else { ["8", "16"] };
    let [first, second] = [0, 1].map(|index| format!("{}: {}", names[index], values[index]));
    if section != "model.model_config" {
        return format!("{BASE}{section}: {{{first}, {second}}}\n");
    }
    // Keys that the base gives under the first name would be a third.
    let is_third = |line: &&str| line.trim_start().starts_with(&format!("{}:", names[0]));
    let base: Vec<&str> = BASE.lines().filter(|line| !is_third(line)).collect();
    let at = base.iter().position(|line| line.contains("seq_length:")).expect("a length");
    let (before, after) = base.split_at(at);
    format!("{}\n    {first}\n    {second}\n{}\n", before.join("\n"), after.join("\n"))
}

#[test]
fn the_flags_of_the_original_launcher() {
    let flags = [
        "--run_mode",
        "finetune",
        "--load_checkpoint",
        "./weights",
        "--seed",
        "5",
        "--epochs",
        "3",
        "--batch_size",
        "2",
        "--gradient_accumulation_steps",
        "4",
        "--output_dir",
        "./runs",
        "--use_parallel",
        "False",
        "--sink_mode",
        "True",
        "--device_target",
        "Ascend",
        "--mode",
        "0",
        "--device_id",
        "1",
        "--auto_trans_ckpt",
        "True",
        "--options",
        "lr_schedule.learning_rate=2e-3",
        "optimizer.betas=0.8,0.9",
        "--resume_training",
    ];
    let (plan, _) = resolve(BASE, &flags).unwrap_or_else(|error| panic!("{error}"));
    let (run, runner) = (&plan.settings.run, &plan.settings.runner);
    assert_eq!(
        (run.seed, runner.epochs, runner.batch_size, runner.gradient_accumulation_steps),
        (5, 3, 2, 4)
    );
    assert_eq!(
        (run.output_dir.as_path(), run.load_checkpoint.as_path()),
        (Path::new("./runs"), Path::new("./weights"))
    );
    assert_eq!(
        (plan.settings.schedule.rate(), plan.settings.optimizer.corrected_betas()),
        (2e-3, Some([0.8, 0.9]))
    );
    let wrong = message(BASE, &["--options", "runner_config.batch_size=many"]);
    assert_eq!(
        wrong,
        "--options runner_config.batch_size: expected a whole number from 1 to 2147483648, found `many`"
    );
    assert!(
        message(BASE, &["--num_samples", "9"])
            .contains("--num_samples: not built yet (found `9`); set runner_config")
    );
}

/// Real files, where there are some: a folder of them is named by the environment.
#[test]
fn real_files_are_plans_or_precise_answers() {
    let Some(folder) = std::env::var_os("GRISTMILL_MINDFORMERS_YAML") else {
        println!("skipped: GRISTMILL_MINDFORMERS_YAML names no folder of configurations");
        return;
    };
    let entries = std::fs::read_dir(&folder).expect("the folder that GRISTMILL_MINDFORMERS_YAML names");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "yaml"));
    paths.sort();
    // The work of all on one device, and that of the first of as many as the file asks for.
    for flags in [&["--as-single"][..], &[]] {
        let (mut plans, mut spread, mut trained) = (0, 0, 0);
        for path in &paths {
            match outline(path, flags) {
                Ok(config) => {
                    let is_spread = config.plan.layout.world() > 1;
                    (plans, spread) = (plans + 1, spread + usize::from(is_spread));
                    trained += usize::from(is_spread && config.unsupported.is_empty());
                }
                Err(error) => {
                    let answer = error.to_string();
                    println!("{answer}");
                    assert!(!answer.contains("unknown key"), "{answer}");
                    let is_precise =
                        |line: &str| line.contains("not built") || line.contains("describes no model");
                    assert!(answer.lines().all(is_precise), "{answer}");
                }
            }
        }
        let of = format!("of {} files with {flags:?}", paths.len());
        println!("{plans} {of} end in a plan, {spread} for several ranks, of which {trained} can be trained");
        // More, as types of models are built.
        assert!(!paths.is_empty() && plans * 100 >= paths.len() * 92);
    }
}
