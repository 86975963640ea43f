//! Keys set on the command line: what they do, and what they are called where they are at fault.

use super::{BASE, assert_answers, message, resolve};
use gristmill::kernels::Tier;
use gristmill::settings::Dataset;
use gristmill::settings::Resume;

#[test]
fn overrides_are_named_by_their_flag() {
    assert_answers(FLAGS, |_, argument| message(BASE, &[argument.trim()]));
    let missing = "`data_loader.type` is missing; write one of";
    let eval = ["--do_eval", "--eval_dataset.data_loader.shuffle=False", "--seed=3"];
    let line = message(BASE, &eval);
    let expected = format!("--eval_dataset.data_loader.shuffle: {missing}");
    assert!(line.starts_with(&expected), "{line}");
    // The file's own fault stays the file's, though flags are given.
    let line = message(&BASE.replace("num_heads: 4", "num_heads: 5"), &eval[2..]);
    assert!(line.starts_with("x.yaml:8: model.model_config.num_heads: "), "{line}");
    let arguments = [
        "--batch_size",
        "2",
        "--gradient_accumulation_steps=3",
        "--model.model_config.num_attention_heads=2",
        "--callbacks.1.save_checkpoint_steps=5",
        "--callbacks.1.save_checkpoint_steps=6",
        "--train_dataset.data_loader={type: TextDataLoader, dataset_dir: [a, b]}",
        "--context.tier=software",
        "--resume_training",
    ];
    let (plan, _) = resolve(BASE, &arguments).unwrap();
    assert_eq!(
        (
            plan.settings.runner.batch_size,
            plan.settings.runner.gradient_accumulation_steps,
            plan.tokens_per_step
        ),
        (2, 3, 192)
    );
    assert_eq!((plan.model.num_heads, plan.model.layer.head_dim), (2, 32));
    assert_eq!(plan.settings.callbacks.checkpoint.unwrap().save_checkpoint_steps, 6);
    assert_eq!(plan.settings.train_dataset.loader.dataset_files, ["a", "b"]);
    assert_eq!(
        (plan.settings.context.tier, plan.settings.run.resume_training),
        (Some(Tier::Software), Resume::Latest)
    );
}

const FLAGS: &str = "
+ --model.model_config.num_heads=5
= --model.model_config.num_heads: 5 heads do not divide hidden_size 64; change one of them or give `head_dim`
+ --batch_size=many
= --batch_size: expected a whole number from 1 to 2147483648, found `many`
+ --runner_config.epoch=3
= --runner_config.epoch: unknown key; did you mean `epochs`?
+ --runner_config.eod_reset=True
= --runner_config.eod_reset: unknown key; it belongs in `train_dataset`
+ --runner_config.optimizer_level=level1
= --runner_config.optimizer_level: unknown key; it belongs in `parallel.parallel_optimizer_config`
+ --model.model_config.pretrained_model_dir=./model
= --model.model_config.pretrained_model_dir: unknown key; it belongs at the top level
+ --runner_wrapper.scale_sense={type: Fixed}
= --runner_wrapper.scale_sense: type: unknown type `Fixed`; known are FixedLossScaleUpdateCell, DynamicLossScaleUpdateCell, AdaptiveLossScaleUpdateCell
+ --moe_config={expert_num: 8, num_experts_chosen: 99}
= --moe_config: num_experts_chosen: expected a whole number from 1 to 16, found `99`
+ --runer_config.batch_size=2
= --runer_config.batch_size: unknown key; did you mean `runner_config`?
+ --model.model_config.rope_scaling.factr=2
= --model.model_config.rope_scaling.factr: `rope_type` is missing; give it linear, yarn, llama3 or proportional
+ --model.model_config.hidden_size=50
= --model.model_config.hidden_size: makes `model.model_config.num_heads` wrong: 4 heads do not divide hidden_size 50; change one of them or give `head_dim`
+ --seed.x=3
= --seed.x: `seed` is `7`, not a section
+ --callbacks.9.type=x
= --callbacks.9.type: `callbacks` is a list of 2 items, numbered from 0
+ --seed=[
= --seed: `[` is not a valid value: did not find expected node content
";

#[test]
fn a_flag_that_makes_a_key_of_a_base_wrong_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().join("base.yaml");
    std::fs::write(&base, BASE).unwrap();
    let child = format!("base_config: {}\nseed: 3\n", base.display());
    assert_eq!(
        message(&child, &["--seed=4", "--model.model_config.hidden_size=50"]),
        "--model.model_config.hidden_size: makes `model.model_config.num_heads` wrong: 4 heads do not divide hidden_size 50; change one of \
         them or give `head_dim`"
    );
    std::fs::write(&base, BASE.replace("num_heads: 4", "num_heads: 5")).unwrap();
    let line = message(&child, &["--seed=4"]);
    assert!(line.starts_with(&format!("{}:8: model.model_config.num_heads: ", base.display())), "{line}");
}

/// The files that a run reads.
fn sources(text: &str, arguments: &[&str]) -> Vec<String> {
    let plan = resolve(text, arguments).unwrap_or_else(|error| panic!("{error}")).0;
    let Dataset { loader, megatron, .. } = plan.settings.train_dataset;
    let is_file = |path: &String| !["", "json", "csv", "parquet"].contains(&path.as_str());
    let files = loader.files().paths;
    let path = Some(loader.path).filter(is_file).into_iter().collect();
    let of_megatron = megatron.map_or_else(Vec::new, |megatron| megatron.data_path.paths);
    [files, loader.data_files, path, of_megatron].concat()
}

/// A base with `of_base` as its loader, and a child with `of_child`.
fn layered(of_base: &str, of_child: &str, arguments: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let base = BASE.replace("    type: CargoRegistryDataLoader\n    shuffle: True\n", &keys(of_base));
    let base = base.replace("train_dataset_task:\n  dataset_config: *train_dataset\n", "");
    std::fs::write(folder.path().join("base.yaml"), base).unwrap();
    let base = folder.path().join("base.yaml");
    let mut child = format!("base_config: {}\n", base.display());
    if !of_child.is_empty() {
        child += &format!("train_dataset:\n  data_loader:\n{}", keys(of_child));
    }
    sources(&child, arguments)
}

fn keys(loader: &str) -> String {
    loader.split("; ").map(|line| format!("    {line}\n")).collect()
}

#[test]
fn a_flag_that_names_data_replaces_those_of_the_file() {
    let flag = "--train_dataset_dir=new";
    for file in [
        "type: TextDataLoader; dataset_files: old.txt",
        "type: TextDataLoader; dataset_dir: old; dataset_files: [a, b]",
        "type: TokenDataLoader; data_path: [0.3, a, 0.7, b]",
        "type: HFDataLoader; path: json; data_files: old.json",
        "type: HFDataLoader; path: ./old",
    ] {
        assert_eq!(layered(file, "", &[flag]), ["new"], "{file}");
    }
    let file = "type: TextDataLoader; dataset_dir: old";
    // Flags are one layer, and what names nothing replaces nothing.
    let loader = "--train_dataset.data_loader";
    let both = [flag, &format!("{loader}.dataset_files=[a, b]")];
    assert_eq!(layered(file, "", &both), ["new", "a", "b"]);
    assert_eq!(layered(file, "", &[&format!("{loader}.dataset_files=[]")]), ["old"]);
    assert_eq!(layered(file, "", &[&format!("{loader}.shuffle=True")]), ["old"]);
    // One that replaces the whole loader, and one for it.
    let whole = format!("{loader}={{type: TextDataLoader, dataset_files: a}}");
    assert_eq!(layered(file, "", &[&whole, flag]), ["new", "a"]);
}

#[test]
fn a_file_that_names_data_replaces_those_of_its_base() {
    let json = "type: HFDataLoader; path: json; data_files: old.json";
    for (base, child, expected) in [
        ("type: TextDataLoader; dataset_dir: old", "dataset_files: new", vec!["new"]),
        ("type: TextDataLoader; dataset_dir: old", "data_path: [1, new, 2, newer]", vec!["new", "newer"]),
        ("type: HFDataLoader; dataset_dir: ./old", "path: ./new", vec!["./new"]),
        (
            "type: TextDataLoader; dataset_dir: old",
            "type: HFDataLoader; path: json; data_files: new.json",
            vec!["new.json"],
        ),
        // A format belongs to the files that it is of.
        (json, "data_files: new.json", vec!["new.json"]),
        (json, "path: parquet", vec!["old.json"]),
        (json, "path: ./new", vec!["./new"]),
        (json, "dataset_files: new.json", vec!["new.json"]),
        (json, "type: TextDataLoader; dataset_files: new.txt", vec!["new.txt"]),
        (
            "type: TextDataLoader; dataset_dir: old",
            "type: BlendedMegatronDatasetDataLoader; config: {data_path: new}",
            vec!["new"],
        ),
        (
            "type: BlendedMegatronDatasetDataLoader; config: {data_path: old}",
            "type: TextDataLoader; dataset_dir: new",
            vec!["new"],
        ),
        // Two in one file are one set.
        (
            "type: TextDataLoader; dataset_dir: old",
            "dataset_dir: new; dataset_files: newer",
            vec!["new", "newer"],
        ),
        (
            "type: TextDataLoader; dataset_dir: old; dataset_files: older",
            "shuffle: True",
            vec!["old", "older"],
        ),
        (json, "path: ./new; data_files: newer.json", vec!["newer.json", "./new"]),
    ] {
        assert_eq!(layered(base, child, &[]), expected, "{base} under {child}");
    }
}
