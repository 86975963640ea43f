//! Weights leave as the folder has them that they came from: names, layout, types, what is beside them.

use crate::published::{BLOCK, Stored, in_fp8, weights, write};
use crate::runs::{Setup, new_trainer, save_checkpoint};
use gristmill::store::export::{Exported, export};
use half::bf16;
use safetensors::tensor::{Dtype, SafeTensors};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The file of weights that a trainer of `setup` leaves with which loaded `weights`, as the folder `like` has them.
pub fn exported(setup: &Setup, weights: &Path, like: &Path) -> PathBuf {
    let (_, out) = left(setup, Some(weights), like);
    out.join("model.safetensors")
}

/// What a trainer of `setup` leaves, which loaded weights or starts with its own, and the folder.
fn left(setup: &Setup, weights: Option<&Path>, like: &Path) -> (Exported, PathBuf) {
    let home = tempfile::tempdir().expect("a folder").keep();
    let checkpoint = checkpoint(setup, weights, &home);
    let out = home.join("out");
    let exported = export(&checkpoint, like, &out, None).unwrap_or_else(|error| panic!("{error}"));
    (exported, out)
}

/// A checkpoint in `home` of what a trainer of `setup` loaded, or starts with.
pub fn checkpoint(setup: &Setup, weights: Option<&Path>, home: &Path) -> PathBuf {
    let (plan, _, length) = setup.data();
    let gpu = setup.gpu();
    let trainer = new_trainer(&gpu, &plan, &length);
    if let Some(path) = weights {
        trainer.load_weights(path, false).unwrap_or_else(|error| panic!("{error}"));
    }
    save_checkpoint(&trainer, 1, home)
}

/// The tensors of a file as they are stored, by name.
fn stored(path: &Path) -> Vec<Stored> {
    let bytes = std::fs::read(path).expect("a file");
    let tensors = SafeTensors::deserialize(&bytes).expect("tensors").tensors().into_iter();
    let mut stored: Vec<Stored> = tensors
        .map(|(name, view)| (name, view.dtype(), view.shape().to_vec(), view.data().to_vec()))
        .collect();
    stored.sort_unstable();
    stored
}

fn sorted(mut stored: Vec<Stored>) -> Vec<Stored> {
    stored.sort_unstable();
    stored
}

/// Inside a model of images, in bfloat16 but for norms.
#[test]
fn a_wrapper_keeps_its_names_types_and_towers() {
    let setup = || Setup::new("wrapper", "rotary_interleaved: True");
    let inside = weights(&setup(), None).into_iter().map(|(name, tensor)| {
        let name = match name.strip_prefix("model.") {
            Some(rest) => format!("language_model.model.{rest}"),
            None => format!("language_model.{name}"),
        };
        let values = tensor.floats().into_iter();
        match name.contains("norm") {
            true => (name, Dtype::F64, tensor.shape, values.flat_map(f64::to_le_bytes).collect()),
            false => {
                let bytes = values.flat_map(|value| bf16::from_f64(value).to_le_bytes());
                (name, Dtype::BF16, tensor.shape, bytes.collect())
            }
        }
    });
    let mut theirs: Vec<Stored> = inside.collect();
    theirs.push(("vision_tower.patches".to_string(), Dtype::I8, vec![3], vec![1, 2, 3]));
    theirs.push(("multi_modal_projector.linear_1.weight".to_string(), Dtype::F16, vec![1, 2], vec![9; 4]));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("model.safetensors");
    write(&file, &theirs);
    for (name, text) in [
        ("config.json", "{\"model_type\": \"llava\"}"),
        ("chat_template.jinja", "{{ messages }}"),
        ("optimizer.safetensors", ""),
    ] {
        std::fs::write(folder.path().join(name), text).expect("a file");
    }
    let (count, out) = left(&setup().with(&["--seed=9"]), Some(&file), folder.path());
    assert_eq!(stored(&out.join("model.safetensors")), sorted(theirs.clone()));
    assert_eq!(count, Exported { trained: theirs.len() - 2, copied: 2 });
    let beside = |name: &str| std::fs::read_to_string(out.join(name));
    assert_eq!(beside("config.json").expect("a file"), "{\"model_type\": \"llava\"}");
    assert_eq!(beside("chat_template.jinja").expect("a file"), "{{ messages }}");
    assert!(beside("optimizer.safetensors").is_err());
}

/// A file that repeats the embedding as a head gets the trained one at both places.
#[test]
fn a_repeated_head_is_the_trained_embedding() {
    let setup = || Setup::new("tied", "tie_word_embeddings: True");
    let f32_of = |tensors: crate::runs::TensorFile| -> Vec<Stored> {
        let bytes = |words: Vec<u32>| words.into_iter().flat_map(u32::to_le_bytes).collect();
        let tensors = tensors.into_iter();
        tensors.map(|(name, tensor)| (name, Dtype::F32, tensor.shape, bytes(tensor.words))).collect()
    };
    let with_head = |mut tensors: Vec<Stored>| {
        let (_, dtype, shape, bytes) =
            tensors.iter().find(|tensor| tensor.0.contains("embed_tokens")).expect("an embedding").clone();
        tensors.push(("lm_head.weight".to_string(), dtype, shape, bytes));
        sorted(tensors)
    };
    let folder = tempfile::tempdir().expect("a folder");
    write(&folder.path().join("model.safetensors"), &with_head(f32_of(weights(&setup(), None))));
    let other = || setup().with(&["--seed=9"]);
    let (_, out) = left(&other(), None, folder.path());
    assert!(stored(&out.join("model.safetensors")) == with_head(f32_of(weights(&other(), None))));
}

#[test]
fn fp8_leaves_as_bfloat16_without_scales() {
    let setup = || Setup::new("fp8 out", "");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("model.safetensors");
    let (theirs, values) = in_fp8(&weights(&setup(), None), |index| (index % 120) as u8);
    write(&file, &theirs);
    let config = json!({"torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8", "weight_block_size": BLOCK}});
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("a file");
    let (count, out) = left(&setup(), Some(&file), folder.path());
    let expected = theirs.into_iter().filter(|tensor| !tensor.0.ends_with("_scale_inv")).map(|tensor| {
        if tensor.1 != Dtype::F8_E4M3 {
            return tensor;
        }
        let rounded = values[&tensor.0].floats().into_iter().map(|value| bf16::from_f32(value as f32));
        (tensor.0, Dtype::BF16, tensor.2, rounded.flat_map(bf16::to_le_bytes).collect())
    });
    let found = stored(&out.join("model.safetensors"));
    assert_eq!(count, Exported { trained: found.len(), copied: 0 });
    assert!(found == sorted(expected.collect()));
    let config: Value =
        serde_json::from_slice(&std::fs::read(out.join("config.json")).expect("a file")).expect("JSON");
    assert_eq!(config, json!({"torch_dtype": "bfloat16"}));
}

#[test]
fn what_does_not_belong_together_is_one_line() {
    let home = tempfile::tempdir().expect("a folder");
    let at = |name: &str| {
        let path = home.path().join(name);
        std::fs::create_dir_all(&path).expect("a folder");
        path
    };
    let plain = checkpoint(&Setup::new("plain", ""), None, &at("plain"));
    let biased = checkpoint(&Setup::new("biased", "qkv_has_bias: True"), None, &at("biased"));
    let narrow = checkpoint(&Setup::new("narrow", "intermediate_size: 32"), None, &at("narrow"));
    let line = |checkpoint: &Path, like: &Path, out: &Path| {
        let error = export(checkpoint, like, out, None).expect_err("a line").to_string();
        assert!(!error.contains('\n'), "{error}");
        error
    };
    let out = home.path().join("out");
    let bias = line(&biased, &plain, &out);
    assert!(
        bias.contains("self_attn.k_proj.bias` has no place in") && bias.contains("started from"),
        "{bias}"
    );
    let width = line(&narrow, &plain, &out);
    assert!(width.contains("F32 [32, 64] there, F32 [32, 32] in this model"), "{width}");
    assert!(!out.exists());
    let taken = line(&plain, &plain, &plain);
    assert!(taken.contains("is there already and not empty"), "{taken}");
}

const ADAPTERS: &str =
    "pet_config: {pet_type: lora, random_base: True, lora_rank: 2, target_modules: '.*wq|.*wo'}";

/// The names of modules are those of the class, not those of its file.
#[test]
fn an_adapter_leaves_for_the_folder_it_was_trained_on() {
    let home = tempfile::tempdir().expect("a folder");
    let adapted = checkpoint(&Setup::new("adapted", ADAPTERS), None, home.path());
    let tensors = || weights(&Setup::new("plain", ""), None);
    let folder_of = |name: &str, called: fn(&str) -> String, tower: &str| {
        let folder = home.path().join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        let stored = tensors().into_iter().map(|(name, tensor)| {
            let bytes = tensor.words.into_iter().flat_map(u32::to_le_bytes).collect();
            (called(&name), Dtype::F32, tensor.shape, bytes)
        });
        let tower = (!tower.is_empty()).then(|| (tower.to_string(), Dtype::U8, vec![1], vec![0]));
        write(&folder.join("model.safetensors"), &stored.chain(tower).collect::<Vec<_>>());
        folder
    };
    let inside = |name: &str| format!("language_model.{name}");
    for (folder, body) in [
        (folder_of("llama", str::to_string, ""), "model."),
        (folder_of("llava", inside, "vision_tower.patches"), "model.language_model."),
        (folder_of("qwen2_vl", str::to_string, "visual.patches"), "model.language_model."),
    ] {
        let out = folder.with_extension("out");
        let count = export(&adapted, &folder, &out, None).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(count, Exported { trained: 8, copied: 0 });
        let found = stored(&out.join("adapter_model.safetensors"));
        let ours = stored(&adapted.join("adapter/adapter_model.safetensors"));
        let renamed = ours.into_iter().map(|(name, dtype, shape, bytes)| {
            (
                name.replace("base_model.model.model.", &format!("base_model.model.{body}")),
                dtype,
                shape,
                bytes,
            )
        });
        assert!(found == sorted(renamed.collect()), "{body}");
        let config: Value =
            serde_json::from_slice(&std::fs::read(out.join("adapter_config.json")).expect("a file"))
                .expect("JSON");
        let module = |layer: usize, part: &str| format!("{body}layers.{layer}.self_attn.{part}");
        let modules: Vec<String> =
            (0..2).flat_map(|layer| ["o_proj", "q_proj"].map(|part| module(layer, part))).collect();
        assert_eq!((&config["target_modules"], &config["r"]), (&json!(modules), &json!(2)));
        assert_eq!(config["base_model_name_or_path"], json!(folder.display().to_string()));
    }
    let other = folder_of("other", |name| name.replace("o_proj", "out"), "");
    let error = export(&adapted, &other, &home.path().join("out"), None).expect_err("another model");
    assert!(error.to_string().contains("adapts `model.layers.0.self_attn.o_proj`, which"), "{error}");
}
