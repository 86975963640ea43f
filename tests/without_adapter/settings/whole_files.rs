//! Whole files: in the style of MindFormers and of Megatron, the repository's own, absent ones, and random text.

use super::{BASE, assert_reads_back, message, plan, resolve};
use gristmill::settings::{Resume, RunConfig};
use std::path::{Path, PathBuf};

/// In the style of MindFormers' Llama files.
const LLAMA_STYLE: &str = include_str!("llama_style.yaml");
/// In the style of Megatron: other names, and merge keys.
const MEGATRON_STYLE: &str = include_str!("megatron_style.yaml");

#[test]
fn numbers_and_words_of_yaml_1_1() {
    let text = BASE
        .replace("1e-3", "1.e-3")
        .replace("type: LlamaConfig", "rms_norm_eps: '1e-6'\n    extend_method: \"None\"");
    let text =
        text.replace("seed: 7", "seed: 7\nload_checkpoint: ''\nresume_training: no\ncontext: {tier: None}");
    let plan = plan(&text);
    assert_eq!((plan.settings.schedule.rate(), plan.model.norm_eps), (1e-3, 1e-6));
    assert_eq!(
        (plan.settings.run.load_checkpoint, plan.settings.run.resume_training, plan.settings.context.tier),
        (PathBuf::new(), Resume::No, None)
    );
}

#[test]
fn a_file_of_the_original() {
    let (plan, notices) = resolve(LLAMA_STYLE, &["--as-single"]).unwrap();
    assert_eq!(
        (plan.settings.run.run_name.as_str(), plan.settings.run.folder().as_path()),
        ("x", Path::new("./runs/x"))
    );
    let model = &plan.model;
    assert_eq!(
        (
            model.layer.intermediate_size,
            model.layer.num_kv_heads,
            model.layer.head_dim,
            model.layer.rotary_dim
        ),
        (11008, 32, 128, 128)
    );
    assert_eq!((model.init_std, model.ignore_id, model.layer.rope_theta), (0.01, u32::MAX, 1e4));
    assert_eq!(
        (
            plan.settings.wrapper.clip(),
            plan.settings.wrapper.scale_sense.loss_scale_value,
            plan.tokens_per_step
        ),
        (Some(1.0), 4294967296.0, 8 * 4 * 6 * 4096)
    );
    assert_eq!(plan.settings.optimizer.corrected_betas(), Some([0.9, 0.95]));
    assert_eq!(plan.settings.schedule.warmup_ratio, Some(0.03));
    assert_eq!(plan.settings.context.max_device_memory, None);
    let (stand_alone, _) = resolve(LLAMA_STYLE, &["--use_parallel=False"]).unwrap();
    assert_eq!(stand_alone.settings.context.max_device_memory.map(|size| size.0), Some(58 << 30));
    assert_eq!(stand_alone.tokens_per_step, 6 * 4096);
    let checkpoint = plan.settings.callbacks.checkpoint.clone().unwrap();
    assert_eq!(
        (checkpoint.save_checkpoint_steps, checkpoint.keep_checkpoint_max, checkpoint.prefix.as_str()),
        (1, 5, "llama_7b")
    );
    assert_eq!(
        notices,
        [
            "parallel_config asks for data_parallel 8, pipeline_stage 2; this run is one rank and takes 1",
            "context.max_device_memory: not applied with `as_single`, as it is about the file's own devices",
            "runner_config.gradient_accumulation_steps: 32 keeps the 192 windows of a step (parallel_config.micro_batch_num 4 \
             x parallel_config.data_parallel 8)",
            "model.model_config.param_init_type: float32 here, which is more precise",
            "without meaning here and ignored: auto_trans_ckpt, trainer.model_name, runner_config.{sink_mode, sink_size}, \
             train_dataset.{input_columns, drop_remainder}, moe_config.capacity_factor, callbacks.ObsMonitor, \
             callbacks.1.async_save, context.device_target, model.model_config.use_flash_attention",
        ]
    );
}

#[test]
fn a_file_with_the_names_of_megatron() {
    let (plan, notices) = resolve(MEGATRON_STYLE, &[]).unwrap();
    let model = &plan.model;
    assert_eq!(
        (model.num_layers, model.num_heads, model.layer.num_kv_heads, model.layer.head_dim),
        (3, 6, 2, 32)
    );
    assert_eq!((model.layer.intermediate_size, model.layer.rotary_dim, model.ignore_id), (100, 16, 3));
    assert!(model.qk_norm && model.qkv_bias && model.tie_word_embeddings);
    assert_eq!((model.layer.rope_theta, model.norm_eps, model.init_std), (5e5, 1e-6, 0.02));
    assert_eq!(
        (plan.settings.runner.epochs, plan.settings.runner.batch_size, plan.settings.runner.stop_step),
        (3, 2, 9)
    );
    assert_eq!((plan.settings.run.eval_interval(), plan.settings.run.eval_batches), (Some(20), 16));
    assert_eq!(notices, ["runner_wrapper is absent: gradients are clipped at norm 1.0, as in MindFormers"]);
    let schedule = &plan.settings.schedule;
    assert_eq!((schedule.total_steps, schedule.warmup_epochs), (Some(50), Some(1)));
    let anchored = MEGATRON_STYLE.replace("eval_epoch_interval", "defaults: &loader\neval_epoch_interval");
    assert!(message(&anchored, &[]).starts_with("x.yaml:4: defaults: unknown key"));
}

#[test]
fn a_resolved_plan_reads_back_as_itself() {
    let keys = [
        "sliding_window: 5",
        "attention_dropout_rate: 0.05",
        "hidden_dropout: 0.1",
        "embedding_dropout_prob: 0.2",
    ];
    let windowed = BASE.replace("seq_length: 32", &format!("seq_length: 32\n    {}", keys.join("\n    ")));
    for text in [BASE, &windowed, LLAMA_STYLE, MEGATRON_STYLE] {
        for arguments in [&[][..], &["--resume_training=step_0000020", "--context.max_device_memory=1.5MB"]] {
            let arguments = [arguments, &["--as-single"]].concat();
            assert_reads_back(&resolve(text, &arguments).unwrap().0);
        }
    }
}

#[test]
fn files_that_are_not_there() {
    let error = RunConfig::load(Path::new("no/such.yaml"), &[]).map(|config| config.notices).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no/such.yaml: no such file; name a configuration, such as configs/tiny.yaml"
    );
    let folder = tempfile::tempdir().unwrap();
    let load = |path: &str| {
        let loader = format!("--train_dataset.data_loader={{type: TextDataLoader, dataset_dir: '{path}'}}");
        let (plan, _) = resolve(BASE, &[&loader]).unwrap();
        plan.load_data().map(|data| data.summary).unwrap_err().to_string()
    };
    let empty = folder.path().display().to_string();
    let expected = format!("{empty}: no text found; name text files with `dataset_dir` or `dataset_files`");
    assert_eq!(load(&empty), expected);
    let expected = "no/such/file: no such file or folder; correct `dataset_dir` or `dataset_files`";
    assert_eq!(load("no/such/file"), expected);
}

#[test]
fn every_configuration_of_the_repository_resolves() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    let mut count = 0;
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    for path in paths.filter(|path| path.extension().is_some_and(|ending| ending == "yaml")) {
        let config = RunConfig::load(&path, &[]).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(config.notices, [""; 0], "our own files need no notice");
        count += 1;
    }
    assert!(count > 0);
}

proptest::proptest! {
    /// Whatever is written, the answer is a plan or a few lines.
    #[test]
    fn no_text_panics(line in 0usize..30, garbage in "[ -~\n]{0,40}") {
        let mut lines: Vec<&str> = BASE.lines().collect();
        lines.insert(line.min(lines.len()), &garbage);
        if let Err(error) = resolve(&lines.join("\n"), &[]) {
            let text = error.to_string();
            proptest::prop_assert!(text.lines().count() <= 21 && text.lines().all(|line| !line.is_empty()));
        }
    }
}
