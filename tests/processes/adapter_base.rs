//! Adapters whose checkpoints name the weights that they were trained on: resumed, generated from and merged where
//! those are, were moved to, are gone, or are others.

use crate::launch::{Ended, assert_refused, gristmill, run};
use crate::place::Place;
use crate::runs::{metrics, read_tensors, write_tensors};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

const ADAPTERS: &str =
    "--model.model_config.pet_config={pet_type: lora, lora_rank: 4, target_modules: '.*wq|.*wv'}";

/// A small model in the folder `base`, and what adapters on it are trained by.
struct Tuned {
    place: Place,
}

impl Tuned {
    /// The base as two files with an index.
    fn new() -> Self {
        let place = Place::with_run();
        let (checkpoint, base) = (place.newest().1, place.path("base"));
        fs::create_dir_all(&base).expect("a folder");
        fs::copy(checkpoint.join("config.json"), base.join("config.json")).expect("a file");
        let tensors = read_tensors(&checkpoint.join("model.safetensors"));
        let (layers, others): (Vec<_>, Vec<_>) =
            tensors.into_iter().partition(|(name, _)| name.contains("layers.0"));
        let files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        let mut map = serde_json::Map::new();
        for (file, tensors) in files.into_iter().zip([layers, others]) {
            map.extend(tensors.iter().map(|(name, _)| (name.clone(), file.into())));
            write_tensors(&base.join(file), &tensors.into_iter().collect());
        }
        let index = serde_json::json!({"metadata": {"total_size": 0}, "weight_map": map});
        fs::write(base.join("model.safetensors.index.json"), index.to_string()).expect("a file");
        Self { place }
    }

    fn base(&self) -> PathBuf {
        self.place.path("base")
    }

    /// Trains or resumes adapters on `base` as the run `name`.
    fn train(&self, name: &str, base: &Path, extra: &[&str]) -> Ended {
        let (name, base) = (format!("--run_name={name}"), format!("--load_checkpoint={}", base.display()));
        let describes = extra.iter().any(|flag| flag.contains("pet_config"));
        let adapters: &[&str] = if describes { &[] } else { &[ADAPTERS] };
        run(&mut self.place.command(&[adapters, &[&name, &base], extra].concat()))
    }

    fn checkpoint(&self, name: &str, step: u64) -> PathBuf {
        self.place.path(&format!("{name}/checkpoint/step_{step:07}"))
    }

    fn losses(&self, name: &str) -> Vec<f32> {
        metrics(&self.place.path(name)).iter().map(|line| line.loss).collect()
    }

    fn generate(&self, model: &Path, extra: &[&str]) -> Ended {
        let flags = ["--prompt=fn ", "--tokens=20", "--temperature=0"];
        run(gristmill(["generate"]).arg(model).args(flags).args(extra))
    }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
        .collect();
    names.sort();
    names
}

fn note(checkpoint: &Path) -> Value {
    serde_json::from_slice(&fs::read(checkpoint.join("adapter/base.json")).expect("a note")).expect("JSON")
}

#[test]
fn a_checkpoint_names_the_base_of_its_adapters() {
    let tuned = Tuned::new();
    tuned.train("whole", &tuned.base(), &[]).succeeded();
    tuned.train("tuned", &tuned.base(), &["--stop_step=2"]).succeeded();
    let checkpoint = tuned.checkpoint("tuned", 2);
    assert_eq!(
        names(&checkpoint),
        [
            "adapter",
            "config.json",
            "optimizer.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
            "trainer_state.json"
        ]
    );
    assert_eq!(
        names(&checkpoint.join("adapter")),
        ["adapter_config.json", "adapter_model.safetensors", "base.json"]
    );
    let path = tuned.base().canonicalize().expect("a folder").display().to_string();
    assert_eq!(note(&checkpoint)["path"], path.as_str());
    let config = fs::read(checkpoint.join("adapter/adapter_config.json")).expect("a file");
    let config: Value = serde_json::from_slice(&config).expect("JSON");
    assert_eq!(config["base_model_name_or_path"], path.as_str());

    // The hash is that of the tensors, whatever files they lie in.
    let whole = tuned.place.path("whole_base");
    fs::create_dir_all(&whole).expect("a folder");
    fs::copy(tuned.base().join("config.json"), whole.join("config.json")).expect("a file");
    let mut tensors = read_tensors(&tuned.base().join("model-00001-of-00002.safetensors"));
    tensors.extend(read_tensors(&tuned.base().join("model-00002-of-00002.safetensors")));
    write_tensors(&whole.join("model.safetensors"), &tensors);
    tuned.train("other_files", &whole, &["--stop_step=1"]).succeeded();
    assert_eq!(note(&tuned.checkpoint("other_files", 1))["hash"], note(&checkpoint)["hash"]);

    let resumed = tuned.train("tuned", &tuned.base(), &["--resume_training=True"]).succeeded();
    assert!(!resumed.stderr.contains("is not read"), "{}", resumed.stderr);
    assert_eq!(tuned.losses("tuned"), tuned.losses("whole"));
    let tensors =
        |name: &str| read_tensors(&tuned.checkpoint(name, 4).join("adapter/adapter_model.safetensors"));
    assert!(tensors("tuned") == tensors("whole"), "the resumed adapters differ");

    // A run that starts from the checkpoint names the same base, and goes on with its adapters.
    let last = tuned.checkpoint("tuned", 4);
    tuned.train("again", &last, &["--stop_step=1"]).succeeded();
    assert_eq!(note(&tuned.checkpoint("again", 1)), note(&last));
    assert!(tuned.losses("again")[0] != tuned.losses("tuned")[0], "the adapters were not loaded");

    // What is merged through the note is what is merged by naming the base.
    let merge = |base: &Path, out: &Path| {
        let ended = run(gristmill(["merge"]).arg(base).arg(&last).arg(out)).succeeded();
        assert!(ended.stdout.starts_with("4 of 21 tensors adapted"), "{}", ended.stdout);
        (read_tensors(&out.join("model.safetensors")), names(out))
    };
    let named = merge(&tuned.base(), &tuned.place.path("named"));
    let through_note = merge(&last, &tuned.place.path("noted"));
    assert!(named == through_note, "{:?} {:?}", named.1, through_note.1);
    assert!(named.0 != tensors_of(&whole), "nothing was merged");
}

fn tensors_of(folder: &Path) -> crate::runs::TensorFile {
    read_tensors(&folder.join("model.safetensors"))
}

#[test]
fn a_base_that_moved_is_named_and_another_one_refused() {
    let tuned = Tuned::new();
    tuned.train("tuned", &tuned.base(), &["--stop_step=2"]).succeeded();
    let (folder, checkpoint, out) =
        (tuned.place.path("tuned"), tuned.checkpoint("tuned", 2), tuned.place.path("merged"));
    let text = tuned.generate(&folder, &[]).succeeded().stdout;
    let moved = tuned.place.path("moved");
    fs::rename(tuned.base(), &moved).expect("a folder");
    let resume = |base: &Path, steps: &str| tuned.train("tuned", base, &["--resume_training=True", steps]);
    let merge = |base: &Path| run(gristmill(["merge"]).arg(base).arg(&checkpoint).arg(&out));

    let missing = ["/base: is not there, and adapters were trained on it", "--load_checkpoint"];
    assert_refused("resume", &resume(&tuned.base(), "--stop_step=3"), &missing);
    assert_refused("generate", &tuned.generate(&folder, &[]), &missing);
    assert_refused("generate", &tuned.generate(&checkpoint, &[]), &missing);
    assert_refused("merge", &merge(&checkpoint), &missing);
    let typed = tuned.generate(&folder, &["--load_checkpoint=/nowhere"]);
    assert_refused("typed", &typed, &["/nowhere: is not there"]);

    resume(&moved, "--stop_step=3").succeeded();
    let path = moved.canonicalize().expect("a folder").display().to_string();
    assert_eq!(note(&tuned.checkpoint("tuned", 3))["path"], path.as_str());
    let named = format!("--load_checkpoint={}", moved.display());
    assert_eq!(tuned.generate(&checkpoint, &[&named]).succeeded().stdout, text);
    merge(&moved).succeeded();
    fs::remove_dir_all(&out).expect("a folder");

    // One value of one tensor is another.
    let file = moved.join("model-00001-of-00002.safetensors");
    let mut bytes = fs::read(&file).expect("a file");
    *bytes.last_mut().expect("a byte") ^= 1;
    fs::write(&file, bytes).expect("a file");
    let hash = note(&checkpoint)["hash"].as_str().expect("a hash").to_string();
    let other = ["moved: is not the base that the adapters were trained on", &hash, "--load_checkpoint"];
    assert_refused("resume", &resume(&moved, "--stop_step=4"), &other);
    assert_refused("generate", &tuned.generate(&checkpoint, &[&named]), &other);
    assert_refused("generate", &tuned.generate(&folder, &[]), &other);
    assert_refused("merge", &merge(&moved), &other);
    assert!(!out.exists());

    fs::write(checkpoint.join("adapter/base.json"), "{\"path\": 1}").expect("a file");
    assert_refused(
        "damaged",
        &tuned.generate(&checkpoint, &[]),
        &["base.json: not a note of an adapter's base"],
    );
}

/// The device holds other values than the base's: a resumed run, a merge and a generator read it anew.
#[test]
#[ignore = "long; quantised bases are compared in `tests/training`"]
fn a_quantised_base_is_read_from_its_files() {
    let tuned = Tuned::new();
    let flag = &ADAPTERS.replace("pet_type: lora", "pet_type: lora, base_dtype: nf4");
    tuned.train("whole", &tuned.base(), &[flag]).succeeded();
    tuned.train("plain", &tuned.base(), &[]).succeeded();
    assert!(tuned.losses("whole") != tuned.losses("plain"), "nothing was quantised");
    tuned.train("tuned", &tuned.base(), &[flag, "--stop_step=2"]).succeeded();
    tuned.train("tuned", &tuned.base(), &[flag, "--resume_training=True"]).succeeded();
    assert_eq!(tuned.losses("tuned"), tuned.losses("whole"));
    let other = tuned.train("tuned", &tuned.base(), &["--resume_training=True"]);
    assert_refused("another type", &other, &["base_dtype"]);

    let checkpoint = tuned.checkpoint("tuned", 4);
    let text = tuned.generate(&tuned.place.path("tuned"), &[]).succeeded().stdout;
    assert_eq!(tuned.generate(&checkpoint, &[]).succeeded().stdout, text);
    let out = tuned.place.path("merged");
    run(gristmill(["merge"]).arg(&checkpoint).arg(&checkpoint).arg(&out)).succeeded();
    let merged = tensors_of(&out);
    let base = read_tensors(&tuned.base().join("model-00001-of-00002.safetensors"));
    let is_same = |name: &str| merged[name] == base[name];
    assert!(is_same("model.layers.0.mlp.down_proj.weight"), "a weight without adapter is not the base's");
    assert!(!is_same("model.layers.0.self_attn.q_proj.weight"), "nothing was merged");
}

/// A checkpoint that holds the whole model instead of naming its base resumes, and the run goes on so.
#[test]
fn a_checkpoint_with_its_model_resumes_and_keeps_it() {
    let tuned = Tuned::new();
    tuned.train("whole", &tuned.base(), &[]).succeeded();
    tuned.train("tuned", &tuned.base(), &["--stop_step=2"]).succeeded();
    let checkpoint = tuned.checkpoint("tuned", 2);
    fs::remove_file(checkpoint.join("adapter/base.json")).expect("a note");
    let files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    for name in [files[0], files[1], "model.safetensors.index.json"] {
        fs::rename(tuned.base().join(name), checkpoint.join(name)).expect("a file");
    }
    tuned.train("tuned", &tuned.base(), &["--resume_training=True"]).succeeded();
    assert_eq!(tuned.losses("tuned"), tuned.losses("whole"));
    let last = tuned.checkpoint("tuned", 4);
    assert!(files.iter().all(|file| last.join(file).is_file()), "{:?}", names(&last));
    assert!(!last.join("adapter/base.json").exists());
}

/// Norms, the embedding and an adapted matrix train beside the adapters, in the adapter's file under PEFT's names.
#[test]
fn what_trains_beside_adapters_is_saved_with_them() {
    let tuned = Tuned::new();
    let adapters = "--model.model_config.pet_config={pet_type: lora, lora_rank: 4, target_modules: '.*wo|.*w2', \
                    freeze_exclude: ['*norm.weight', '*embed_tokens*', '*.0.mlp.down_proj.weight']}";
    let train = |name: &str, extra: &[&str]| tuned.train(name, &tuned.base(), &[&[adapters], extra].concat());
    train("whole", &[]).succeeded();
    train("tuned", &["--stop_step=2"]).succeeded();
    train("tuned", &["--resume_training=True"]).succeeded();
    assert_eq!(tuned.losses("tuned"), tuned.losses("whole"));
    let checkpoint = tuned.checkpoint("tuned", 4);
    let file = |name: &str| tuned.checkpoint(name, 4).join("adapter/adapter_model.safetensors");
    let saved = read_tensors(&file("tuned"));
    assert!(saved == read_tensors(&file("whole")), "the resumed adapters differ");
    assert!(!checkpoint.join("model.safetensors").exists());

    let config = fs::read(checkpoint.join("adapter/adapter_config.json")).expect("a file");
    let config: Value = serde_json::from_slice(&config).expect("JSON");
    let norms = |layer: usize| {
        ["input_layernorm", "post_attention_layernorm"].map(|norm| format!("model.layers.{layer}.{norm}"))
    };
    let mut modules = vec!["model.embed_tokens".to_string()];
    modules.extend([norms(0), norms(1)].concat());
    modules.push("model.norm".into());
    assert_eq!(config["modules_to_save"], serde_json::json!(modules));

    // Each replaces the tensor of the base, and the product is added to the matrix that trained.
    let out = tuned.place.path("merged");
    run(gristmill(["merge"]).arg(&checkpoint).arg(&checkpoint).arg(&out)).succeeded();
    let merged = tensors_of(&out);
    for module in &modules {
        let name = format!("{module}.weight");
        assert!(merged[&name] == saved[&format!("base_model.model.{name}")], "{name}");
    }
    let inside = "base_model.model.model.layers.0.mlp.down_proj.base_layer.weight";
    assert!(merged["model.layers.0.mlp.down_proj.weight"] != saved[inside]);
    let text = |model: &Path| tuned.generate(model, &[]).succeeded().stdout;
    assert_eq!(text(&tuned.place.path("tuned")), text(&out));

    // A run that does not train them would lose them.
    let only = "--model.model_config.pet_config={pet_type: lora, lora_rank: 4, target_modules: '.*wo|.*w2'}";
    let frozen = tuned.train("frozen", &checkpoint, &[only, "--stop_step=1"]);
    assert_refused("frozen", &frozen, &["which this run does not train", "freeze_exclude"]);
}

/// A model with an adapter beside it, an adapter that names its model, and a run as a model: each is opened by one
/// name.
#[test]
fn adapters_and_runs_are_models() {
    let tuned = Tuned::new();
    tuned.train("tuned", &tuned.base(), &[]).succeeded();
    let (checkpoint, run_folder) = (tuned.checkpoint("tuned", 4), tuned.place.path("tuned"));
    let adapter = checkpoint.join("adapter");
    let text = |model: &Path, extra: &[&str]| tuned.generate(model, extra).succeeded().stdout;
    let with = |adapter: &Path| format!("--adapter={}", adapter.display());
    let want = text(&run_folder, &[]);
    assert!(want != text(&tuned.base(), &[]), "the adapter changes nothing");
    assert_eq!(text(&adapter, &[]), want);
    for named in [&adapter, &adapter.join("adapter_model.safetensors"), &checkpoint, &run_folder] {
        assert_eq!(text(&tuned.base(), &[&with(named)]), want, "{}", named.display());
    }
    // In place of the adapter that a run has, which was of another rank, and of more.
    let other = "--model.model_config.pet_config={pet_type: lora, lora_rank: 2, target_modules: '.*', exclude_layers: ['1']}";
    tuned.train("other", &tuned.base(), &[other]).succeeded();
    assert_eq!(text(&tuned.place.path("other"), &[&with(&adapter)]), want);
    let judge = |arguments: &[&str]| {
        let judged =
            run(gristmill(["eval"]).args(arguments).args(["tests/data/mill.txt", "--json"])).succeeded();
        serde_json::from_str::<Value>(&judged.stdout).expect("JSON")["loss"].as_f64().expect("a loss")
    };
    let paths = [&run_folder, &tuned.base(), &adapter].map(|path| path.display().to_string());
    let of_run = judge(&[&paths[0]]);
    assert_eq!(judge(&[&paths[1], &with(&adapter)]), of_run);
    assert_eq!(judge(&[&paths[2]]), of_run);

    // A run goes on from an adapter, and from a run: what that is is its newest checkpoint.
    tuned.train("of_adapter", &adapter, &["--stop_step=1"]).succeeded();
    tuned.train("of_run", &run_folder, &["--stop_step=1"]).succeeded();
    tuned.train("of_checkpoint", &checkpoint, &["--stop_step=1"]).succeeded();
    for name in ["of_adapter", "of_run"] {
        assert_eq!(tuned.losses(name), tuned.losses("of_checkpoint"), "{name}");
        assert_eq!(note(&tuned.checkpoint(name, 1)), note(&checkpoint), "{name}");
    }
    // On a model that it was not trained on it starts nothing.
    let other = tuned.place.newest().1.parent().expect("a folder").join("step_0000001");
    let load = format!(
        "--model.model_config.pet_config={{pet_type: lora, lora_rank: 4, target_modules: '.*wq|.*wv', \
                        adapter_path: {}}}",
        adapter.display()
    );
    let refused = tuned.train("on_another", &other, &[&load]);
    assert_refused("another", &refused, &["step_0000001: is not the base that the adapters were trained on"]);
    assert_refused("another", &tuned.generate(&other, &[&with(&adapter)]), &["is not the base that"]);
    let out = tuned.place.path("merged");
    run(gristmill(["merge"]).args([&adapter, &run_folder, &out])).succeeded();
    assert_eq!(text(&out, &[]), want);
}

#[test]
fn an_adapter_without_a_base_is_one_line() {
    let tuned = Tuned::new();
    tuned.train("tuned", &tuned.base(), &["--stop_step=1"]).succeeded();
    let adapter = tuned.place.path("adapter");
    fs::create_dir_all(&adapter).expect("a folder");
    let of_run = tuned.checkpoint("tuned", 1).join("adapter");
    fs::copy(of_run.join("adapter_model.safetensors"), adapter.join("adapter_model.safetensors"))
        .expect("a file");
    let text = fs::read(of_run.join("adapter_config.json")).expect("a file");
    let mut config: Value = serde_json::from_slice(&text).expect("JSON");
    let mut refuses = |name: &str, base: Value, expected: &str| {
        config["base_model_name_or_path"] = base;
        fs::write(adapter.join("adapter_config.json"), config.to_string()).expect("a file");
        let out = tuned.place.path("out");
        let merge = run(gristmill(["merge"]).args([&adapter, &adapter, &out]));
        let expected = ["adapter_config.json: ", expected, "--base-model"];
        for ended in [tuned.generate(&adapter, &[]), merge, tuned.train(name, &adapter, &[])] {
            assert_refused(name, &ended, &expected);
        }
    };
    refuses(
        "hub",
        "meta-llama/Llama-3.2-1B".into(),
        "its base `meta-llama/Llama-3.2-1B` is no folder on this disk",
    );
    refuses("none", Value::Null, "names no `base_model_name_or_path`");
    let own = adapter.display().to_string();
    refuses("itself", own.into(), "is an adapter itself, and they are not stacked");
    let other = of_run.display().to_string();
    refuses("another", other.into(), "is an adapter itself, and they are not stacked");
    let named = format!("--adapter={}", adapter.display());
    tuned.generate(&tuned.base(), &[&named]).succeeded();
    let missing = tuned.generate(&tuned.base(), &["--adapter=/nowhere"]);
    assert_refused("missing", &missing, &["/nowhere: holds no adapter"]);
    let of_itself = tuned.generate(&tuned.base(), &["--load_checkpoint=/nowhere"]);
    assert_eq!(of_itself.code, Some(2), "{}", of_itself.stderr);
    let plain = tuned.place.folder();
    assert_refused(
        "no adapter",
        &tuned.generate(&tuned.base(), &[&format!("--adapter={}", plain.display())]),
        &["holds no adapter"],
    );
}
