use crate::error::Result;
use crate::hugging_face::config_json::check;
use crate::hugging_face::config_json::tests::{exported::exported, small_files};
use crate::hugging_face::export::hugging_face_config;
use crate::settings::{Override, RunConfig};
use serde_json::{Value, json};
use std::path::Path;

const YAML: &str = "load_checkpoint: FOLDER
train_dataset: { data_loader: { type: CargoRegistryDataLoader } }
runner_config: { batch_size: 1 }
lr_schedule: { learning_rate: 1.0e-3 }
";

/// A run that starts from the folder of `config`.
fn started_from(folder: &Path, config: &Value) -> Result<RunConfig> {
    std::fs::write(folder.join("config.json"), config.to_string()).expect("a file");
    let yaml = YAML.replace("FOLDER", &folder.display().to_string());
    RunConfig::parse(&yaml, Path::new("x.yaml"), &[] as &[Override])
}

/// A shape that is taken from a file computes what the file's class does, by the rule by which weights are checked.
#[test]
fn a_folder_says_the_shape_of_every_class() {
    for (class, config) in small_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = started_from(folder.path(), &config).unwrap_or_else(|error| panic!("{class}: {error}"));
        check(folder.path(), &run.plan.model, &[]).unwrap_or_else(|error| panic!("{class}: {error}"));
        let has_linear = matches!(class, "qwen3_next" | "qwen3_5_text" | "qwen3_5_moe_text");
        let differ = has_linear
            || matches!(class, "cwm" | "gemma3_text" | "gemma4_text" | "lfm2" | "lfm2_moe" | "mimo_v2_flash");
        assert_eq!(!run.plan.model.other_layers.is_empty(), differ, "{class}");
        assert_eq!(run.plan.model.layer.query_scaling.is_some(), class == "ministral3", "{class}");
    }
}

/// Our own files say the shape as well, except those of models that no class computes.
#[test]
fn a_folder_of_our_own_says_its_shape() {
    let mut refused = 0;
    for model in exported() {
        let (config, folder) = (hugging_face_config(&model), tempfile::tempdir().expect("a folder"));
        match started_from(folder.path(), &config) {
            Ok(run) => {
                check(folder.path(), &run.plan.model, &[]).unwrap_or_else(|error| panic!("{config}: {error}"))
            }
            Err(error) => {
                assert!(config.get("gristmill_note").is_some(), "{config}: {error}");
                assert!(
                    error.to_string().contains("give model_config the keys of its config.yaml"),
                    "{error}"
                );
                refused += 1;
            }
        }
    }
    assert!((1..exported().len() / 2).contains(&refused), "{refused} refused");
}

fn llama(keys: Value) -> Value {
    let mut config = small_files().find(|(class, _)| *class == "llama").expect("a class").1;
    keys.as_object().into_iter().flatten().for_each(|(key, value)| config[key] = value.clone());
    config
}

/// Written keys count, and the folder says the rest.
#[test]
fn written_keys_count_over_those_of_a_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let config =
        llama(json!({"rope_theta": 5e5, "max_position_embeddings": 8192, "architectures": ["Named"]}));
    let run = started_from(folder.path(), &config).expect("a run");
    assert_eq!((run.plan.model.layer.rope_theta, run.plan.model.seq_length), (5e5, 2048));
    assert_eq!(run.plan.model.max_positions, 8192);
    let file = folder.path().join("config.json");
    let note = format!("load_checkpoint: the shape of the model is that of {}, Named", file.display());
    assert!(run.notices.contains(&note), "{:?}", run.notices);
    assert!(run.plan.settings.train_dataset.keys.tokenizer.is_none());

    std::fs::write(folder.path().join("tokenizer.json"), "{}").expect("a file");
    std::fs::write(folder.path().join("tokenizer_config.json"), r#"{"eos_token": {"content": "</s>"}}"#)
        .expect("a file");
    let own = "model: {model_config: {rope_theta: 1000, seq_length: 12, hidden_dropout: 0.5, num_hidden_layers: 3}}\n";
    let yaml = format!("{own}{}", YAML.replace("FOLDER", &folder.path().display().to_string()));
    let parse = |yaml: &str| RunConfig::parse(yaml, Path::new("x.yaml"), &[] as &[Override]);
    let run = parse(&yaml).expect("a run");
    let model = &run.plan.model;
    assert_eq!(
        (model.layer.rope_theta, model.seq_length, model.hidden_dropout, model.hidden_size),
        (1000.0, 12, 0.5, 16)
    );
    let train = &run.plan.settings.train_dataset;
    assert_eq!(train.tokenizer_file(), Some(&*folder.path().join("tokenizer.json")));
    assert_eq!(train.keys.tokenizer.as_ref().expect("a tokenizer").eos_token, "</s>");

    // A file of weights stands for its folder.
    let weights = folder.path().join("model.safetensors");
    let of_file = parse(&yaml.replace(&folder.path().display().to_string(), &weights.display().to_string()));
    assert_eq!(of_file.expect("a run").plan.settings.train_dataset, *train);

    // A resolved configuration reads no folder.
    std::fs::remove_dir_all(folder.path()).expect("a folder");
    let resolved = parse(&run.plan.settings.to_yaml()).expect("a run");
    assert_eq!(resolved.plan, run.plan);
}

/// A folder may be named for the shape alone, without weights.
#[test]
fn a_folder_may_say_the_shape_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("config.json"), llama(json!({})).to_string()).expect("a file");
    let yaml = YAML
        .replace("load_checkpoint", "pretrained_model_dir")
        .replace("FOLDER", &folder.path().display().to_string());
    let parse = |yaml: &str| RunConfig::parse(yaml, Path::new("x.yaml"), &[] as &[Override]);
    let run = parse(&yaml).expect("a run");
    assert_eq!((run.plan.model.hidden_size, run.plan.settings.run.weights()), (16, None));
    assert!(!run.plan.settings.to_yaml().contains("pretrained_model_dir"));
    let line = |yaml: &str| parse(yaml).expect_err("a line").to_string();
    let none = line(&yaml.replace(folder.path().to_str().expect("a path"), "/nowhere"));
    assert_eq!(
        none,
        "x.yaml:1: pretrained_model_dir: /nowhere: has no config.json; name a folder of Hugging Face's"
    );
}

/// Each error is one line, which names the file or the thing that is not built.
#[test]
fn what_no_run_can_take_is_one_line() {
    for (config, end) in [
        (json!({"model_type": "mamba"}), "accept it by `ignore_config_keys: [model_type]`"),
        (json!({}), "accept it by `ignore_config_keys: [model_type]`"),
        (
            {
                let (_, mut config) =
                    small_files().find(|(class, _)| *class == "glm4_moe_lite").expect("a class");
                config["mlp_layer_types"] = json!(["sparse", "dense"]);
                config
            },
            "`mlp_layer_types` is 2 kinds of 3 layers in `glm4_moe_lite`, which no key here says; accept it by \
             `ignore_config_keys: [mlp_layer_types]`",
        ),
        (
            {
                let (_, mut config) = small_files().find(|(class, _)| *class == "phimoe").expect("a class");
                config["rope_scaling"] = json!({"rope_type": "longrope", "short_factor": [1.0, 1.0], "long_factor": [2.0, 2.0],
                    "original_max_position_embeddings": 8, "short_mscale": 1.3, "long_mscale": 1.2});
                config
            },
            "`rope_scaling` is longrope of two factors, 1.3 and 1.2, in `phimoe`, which no key here says; accept it by \
             `ignore_config_keys: [rope_scaling]`",
        ),
        (
            llama(json!({"rope_scaling": {"rope_type": "spiral", "factor": 2}})),
            "`rope_scaling` is spiral in `llama`, which no key here says; accept it by \
             `ignore_config_keys: [rope_scaling]`",
        ),
        (
            llama(
                json!({"rope_scaling": {"rope_type": "longrope", "long_factor": [1, 1], "short_factor": [1, 0]}}),
            ),
            "load_checkpoint.rope_scaling.short_factor: expected a number above 0, found `0`",
        ),
        (llama(json!({"hidden_act": "relu"})), "not built yet (found `relu`); write `hidden_act: silu`"),
        (
            llama(json!({"vocab_size": "many"})),
            "load_checkpoint.vocab_size: expected a whole number from 1 to 2147483648, found `many`",
        ),
        (
            llama(json!({"num_hidden_layers": 1e18})),
            "load_checkpoint.num_hidden_layers: expected a whole number from 1 to 1000, found `1e18`",
        ),
        (json!([1]), "fetch it again, or remove it"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let line =
            started_from(folder.path(), &config).map(|run| run.plan.model).expect_err("a line").to_string();
        assert!(line.starts_with("x.yaml:1: load_checkpoint") && line.ends_with(end), "{config}: {line}");
        assert_eq!(line.lines().count(), 1, "{line}");
    }
}

/// A run names its tokenizer by a path. If the path is gone when the run resumes and its base is named anew, the
/// tokenizer beside the base takes its place.
#[test]
fn a_tokenizer_moves_with_its_base() {
    let folder = tempfile::tempdir().expect("a folder");
    let beside = folder.path().join("tokenizer.json");
    let own = folder.path().join("own.json");
    std::fs::write(&own, "{}").expect("a file");
    let resolved = |named: &Path, resumes: &str| {
        let yaml = format!(
            "load_checkpoint: {}\nresume_training: {resumes}\nmodel: {{model_config: {{vocab_size: 256, hidden_size: 16, num_layers: 1, num_heads: 2, seq_length: 8}}}}\n\
             lr_schedule: {{learning_rate: 1.0e-3}}\n\
             train_dataset: {{tokenizer: {{tokenizer_file: {}}}, data_loader: {{type: TextDataLoader, dataset_files: [x]}}}}\n",
            folder.path().display(),
            named.display()
        );
        let run = RunConfig::parse(&yaml, Path::new("x.yaml"), &[] as &[Override]).expect("a run");
        let told =
            run.notices.iter().any(|note| note.contains("is not there; that of load_checkpoint is read"));
        (run.plan.settings.train_dataset.tokenizer_file().expect("a tokenizer").to_path_buf(), told)
    };
    let gone = folder.path().join("gone/tokenizer.json");
    assert_eq!(resolved(&gone, "True"), (gone.clone(), false), "there is no other");
    std::fs::write(&beside, "{}").expect("a file");
    assert_eq!(resolved(&gone, "True"), (beside, true));
    assert_eq!(resolved(&gone, "False"), (gone.clone(), false), "a new run names its own");
    assert_eq!(resolved(&own, "True"), (own.clone(), false));
}
