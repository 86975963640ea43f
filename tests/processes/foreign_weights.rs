//! Weights that a run starts from: what the `config.json` beside them says, before a device opens.

use crate::launch::{assert_refused, gristmill, run, train_gpt, without_adapter};
use crate::place::Place;
use crate::runs::{metrics, read_tensors, write_tensors};
use std::fs;
use std::path::{Path, PathBuf};

/// The weights and the `config.json` of a run's checkpoint in a folder of their own, with `change` made in the latter.
fn weights_with(place: &Place, change: impl Fn(&mut serde_json::Value)) -> PathBuf {
    let (checkpoint, folder) = (place.newest().1, place.path("weights"));
    fs::create_dir_all(&folder).expect("a folder");
    fs::copy(checkpoint.join("model.safetensors"), folder.join("model.safetensors")).expect("a file");
    let text = fs::read(checkpoint.join("config.json")).expect("a file");
    let mut config = serde_json::from_slice(&text).expect("JSON");
    change(&mut config);
    fs::write(folder.join("config.json"), config.to_string()).expect("a file");
    folder
}

fn load(folder: &Path) -> String {
    format!("--load_checkpoint={}", folder.display())
}

#[test]
fn what_config_json_says_is_compared_before_a_device_opens() {
    let place = Place::with_run();
    let folder = weights_with(&place, |config| {
        config["rope_theta"] = 5e5.into();
        config["rms_norm_eps"] = 1e-6.into();
        config["clip_qkv"] = 8.into();
    });
    let load = load(&folder);
    let lines = [
        "weights/config.json: `rms_norm_eps` is 1e-6 in `llama`, and this run has 0.00001; write `rms_norm_eps: 1e-6`",
        "weights/config.json: `rope_theta` is 500000.0 in `llama`, and this run has 10000.0; write `theta: 500000.0`",
        "weights/config.json: `clip_qkv: 8` is not a key of `llama` that is known here",
    ];
    let arguments = place.arguments(&[&load, "--run_name=new"]);
    let train = run(without_adapter(&mut place.command(&[&load, "--run_name=new"])));
    let plan = run(without_adapter(&mut gristmill([vec!["plan".to_string()], arguments].concat())));
    for ended in [train, plan] {
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        lines.iter().for_each(|line| assert!(ended.stderr.contains(line), "{line}\n{}", ended.stderr));
    }
    assert!(!place.path("new").exists(), "a run that never started left a folder");
    place.refuses(
        "two keys of three accepted",
        &[&load, "--run_name=new", "--ignore_config_keys=[rope_theta, clip_qkv]"],
        &["`rms_norm_eps` is 1e-6 in `llama`"],
    );
    let accepted = "--ignore_config_keys=[rope_theta, rms_norm_eps, clip_qkv]";
    run(&mut place.command(&[&load, "--run_name=new", accepted, "--stop_step=1"])).succeeded();
    // A run that resumes starts from none of it.
    run(&mut place.command(&[&load, "--resume_training=True", "--stop_step=3"])).succeeded();
}

/// A configuration without a model takes that of the weights, trains the same, and resumes where they are gone.
#[test]
fn a_folder_is_the_description_of_its_model() {
    let place = Place::with_run();
    let folder = weights_with(&place, |_| {});
    run(&mut place.command(&[&load(&folder), "--run_name=described", "--stop_step=2"])).succeeded();
    let described = fs::read_to_string(place.path("described/config.yaml")).expect("a file");
    let start = described.find("model:\n").expect("a section");
    let (_, rest) = described[start..].split_once("recompute_config:").expect("the next section");
    let config = place.path("folder.yaml");
    fs::write(&config, format!("{}recompute_config:{rest}", &described[..start])).expect("a file");
    let config = config.display().to_string();
    let ended = run(&mut train_gpt([config.as_str(), "--run_name=folder"])).succeeded();
    let note = "load_checkpoint: the shape of the model is that of ";
    assert!(
        ended.stderr.contains(note) && ended.stderr.contains("config.json, LlamaForCausalLM"),
        "{}",
        ended.stderr
    );
    let losses = |name: &str| metrics(&place.path(name)).iter().map(|line| line.loss).collect::<Vec<_>>();
    assert_eq!(losses("folder"), losses("described"));

    fs::remove_dir_all(&folder).expect("a folder");
    let resolved = place.path("folder/config.yaml").display().to_string();
    run(&mut train_gpt([resolved.as_str(), "--resume_training=True", "--stop_step=3"])).succeeded();
    assert_eq!(losses("folder").len(), 3);
    let ended = run(without_adapter(&mut train_gpt([config.as_str(), "--run_name=new"])));
    assert_refused("no folder", &ended, &["model.model_config: describes no model"]);
}

/// The language model of a Llava trains as it does alone, and leaves inside it.
#[test]
fn a_language_model_inside_another_is_read_and_written_there() {
    let place = Place::with_run();
    let alone = weights_with(&place, |_| {});
    run(&mut place.command(&[&load(&alone), "--run_name=alone", "--stop_step=1"])).succeeded();
    let (file, config) = (alone.join("model.safetensors"), alone.join("config.json"));
    let tensors = read_tensors(&file);
    let tower = ("vision_tower.patches".to_string(), tensors["model.norm.weight"].clone());
    let inside = |tensors: &crate::runs::TensorFile| {
        let inside = tensors.iter().map(|(name, tensor)| (format!("language_model.{name}"), tensor.clone()));
        inside.chain([tower.clone()]).collect()
    };
    write_tensors(&file, &inside(&tensors));
    let text: serde_json::Value = serde_json::from_slice(&fs::read(&config).expect("a file")).expect("JSON");
    let llava = serde_json::json!({"model_type": "llava", "vision_config": {}, "text_config": text});
    fs::write(&config, llava.to_string()).expect("a file");
    let ended = run(&mut place.command(&[&load(&alone), "--run_name=inside", "--stop_step=1"])).succeeded();
    let left = "the language model alone is read; tensors of other towers are left: vision_tower (1)";
    assert!(ended.stderr.contains(left), "{}", ended.stderr);
    let losses = |name: &str| metrics(&place.path(name)).iter().map(|line| line.loss).collect::<Vec<_>>();
    assert_eq!(losses("inside"), losses("alone"));

    let (checkpoint, out) = (place.path("inside/checkpoint/step_0000001"), place.path("out"));
    let arguments = [&checkpoint, &alone, &out].map(|path| path.display().to_string());
    let exported = run(&mut gristmill(["export".to_string()].into_iter().chain(arguments))).succeeded();
    let said = format!(
        "{} trained tensors and 1 of {} written to {}",
        tensors.len(),
        alone.display(),
        out.display()
    );
    assert!(exported.stdout.contains(&said), "{}", exported.stdout);
    let trained = read_tensors(&checkpoint.join("model.safetensors"));
    assert!(read_tensors(&out.join("model.safetensors")) == inside(&trained));
    assert_eq!(fs::read(out.join("config.json")).expect("a file"), fs::read(&config).expect("a file"));
}

/// Published files have tensors that their class passes over. Which ones is said: the loss is that without them.
#[test]
fn what_a_class_passes_over_is_named() {
    let home = tempfile::tempdir().expect("a folder");
    for (family, further, left) in [
        ("qwen3_5_text", "mtp.fc.weight", "1 tensors of layers of multi-token prediction are left"),
        (
            "mimo_v2_flash",
            "model.mtp.layers.0.enorm.weight",
            "1 tensors of layers of multi-token prediction are left",
        ),
        (
            "gemma4_text",
            "model.layers.3.self_attn.k_proj.weight",
            "1 tensors of keys and values of layers that read those of others are left",
        ),
    ] {
        let (original, folder) = (Path::new("tests/data/folders").join(family), home.path().join(family));
        fs::create_dir_all(&folder).expect("a folder");
        fs::copy(original.join("config.json"), folder.join("config.json")).expect("a file");
        let mut tensors = read_tensors(&original.join("model.safetensors"));
        let norm = tensors["model.norm.weight"].clone();
        assert!(tensors.insert(further.to_string(), norm).is_none(), "{family} has {further}");
        write_tensors(&folder.join("model.safetensors"), &tensors);
        let train = |name: &str, weights: &Path| {
            let file = home.path().join("run.yaml");
            let config = serde_json::json!({
                "output_dir": home.path(), "run_name": name, "load_checkpoint": weights,
                "train_dataset": {"data_loader": {"type": "TextDataLoader", "dataset_files": ["tests/data/mill.txt"]}},
                "lr_schedule": {"learning_rate": 1e-3}, "runner_config": {"epochs": 1, "stop_step": 1},
            });
            fs::write(&file, config.to_string()).expect("a file");
            let ended = run(&mut train_gpt([file])).succeeded();
            (ended.stderr, metrics(&home.path().join(name))[0].loss)
        };
        let (said, with) = train(&format!("{family} with"), &folder);
        assert!(said.contains(left), "{said}");
        let (said, without) = train(&format!("{family} without"), &original);
        assert!(!said.contains("are left"), "{said}");
        assert_eq!(with, without, "{family}");
    }
}

#[test]
fn a_class_that_is_not_known_is_refused_by_name() {
    let place = Place::with_run();
    let load = load(&weights_with(&place, |config| config["model_type"] = "gemma3n_text".into()));
    place.refuses(
        "a Gemma 3n",
        &[&load, "--run_name=new"],
        &["weights/config.json: `model_type: gemma3n_text`: not a class"],
    );
    let accepted = "--ignore_config_keys=[model_type]";
    run(&mut place.command(&[&load, "--run_name=new", accepted, "--stop_step=1"])).succeeded();
}

/// A checkpoint of MindSpore is not a damaged one of ours, whose folder may go.
#[test]
fn files_of_other_formats_are_named() {
    let place = Place::new();
    for (name, why) in [
        (
            "llama.ckpt",
            "llama.ckpt: is of MindSpore (or PyTorch), whose format is not read: convert it to safetensors",
        ),
        (
            "pytorch_model.bin",
            "pytorch_model.bin: is a pickle of PyTorch, which is not read, since it may run code; convert it by `python3 -c \"import",
        ),
    ] {
        let folder = place.path(name).with_extension("");
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join(name), b"\x08\x01weights").expect("a file");
        for path in [folder.join(name), folder] {
            let ended = run(&mut place.command(&[&load(&path)]));
            assert_eq!(ended.code, Some(2));
            assert!(ended.stderr.contains(why) && !ended.stderr.contains("delete"), "{}", ended.stderr);
        }
    }
    let cut = place.path("cut.safetensors");
    fs::write(&cut, b"no").expect("a file");
    let ended = run(&mut place.command(&[&load(&cut)]));
    assert!(ended.stderr.contains("shorter than 8 bytes"), "{}", ended.stderr);
    assert!(ended.stderr.contains("fetch or convert it again, or load another"), "{}", ended.stderr);
}
