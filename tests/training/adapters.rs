//! Adapters of PEFT, of every kind that is used: loaded beside their base and merged into it, they compute what PEFT
//! does.
//!
//! `tests/data/adapters.json` has PEFT's numbers; `tests/transformers/adapters.py` writes it.

use gristmill::data::Sequence;
use gristmill::device::{Gpu, GpuOptions};
use gristmill::infer::{OpenedModel, Scorer};
use gristmill::store::merge::merge;
use pollster::block_on;
use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// Absolute difference allowed between two losses of f32 models.
const ALLOWED: f64 = 2e-6;

/// The same numbers as `values` of `tests/transformers/adapters.py`.
fn values(name: &str, shape: &[usize]) -> Vec<u8> {
    let start: u32 = name.bytes().map(u32::from).sum();
    let noise = |i: usize| ((12.9898 * i as f64 + f64::from(start)).sin() * 437.58).fract();
    let (offset, width) = if shape.len() == 1 && name.contains("norm") { (1.0, 0.1) } else { (0.0, 0.4) };
    let value = |i: usize| ((offset + width * noise(i)) as f32).to_le_bytes();
    (0..shape.iter().product()).flat_map(value).collect()
}

/// Writes a file of the tensors with these names and shapes.
fn write(path: &Path, shapes: &Value, ties: bool) {
    let tensors = shapes.as_object().unwrap().iter().map(|(name, shape)| {
        let shape: Vec<usize> = serde_json::from_value(shape.clone()).unwrap();
        // What is tied is in the file twice.
        let source =
            if ties { name.replace("model.lm_head", "model.model.embed_tokens") } else { name.clone() };
        (name.clone(), values(&source, &shape), shape)
    });
    let tensors: Vec<_> = tensors.collect();
    let views = tensors.iter().map(|(name, bytes, shape)| {
        (name.clone(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
    });
    let views: HashMap<String, TensorView<'_>> = views.collect();
    fs::write(path, safetensors::serialize(&views, None).unwrap()).unwrap();
}

struct Fixture {
    written: Value,
    home: tempfile::TempDir,
    gpu: Gpu,
}

impl Fixture {
    fn new() -> Self {
        let written: Value =
            serde_json::from_str(&fs::read_to_string("tests/data/adapters.json").unwrap()).unwrap();
        let home = tempfile::tempdir().unwrap();
        for (name, base) in written["bases"].as_object().unwrap() {
            let folder = home.path().join(name);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("config.json"), base["config"].to_string()).unwrap();
            write(&folder.join("model.safetensors"), &base["tensors"], false);
        }
        let gpu = block_on(Gpu::request(&GpuOptions::default())).expect("an adapter");
        Self { written, home, gpu }
    }

    fn base(&self, name: &str) -> std::path::PathBuf {
        self.home.path().join(name)
    }

    /// The folder of an adapter with these keys and tensors.
    fn adapter(&self, name: &str, keys: &Value, tensors: &Value) -> std::path::PathBuf {
        let folder = self.home.path().join(name);
        fs::create_dir(&folder).unwrap();
        let mut config = Map::from_iter([
            ("peft_type".to_string(), json!("LORA")),
            ("task_type".to_string(), json!("CAUSAL_LM")),
        ]);
        config.extend(keys.as_object().unwrap().clone());
        fs::write(folder.join("adapter_config.json"), Value::from(config).to_string()).unwrap();
        let ties = keys["ensure_weight_tying"] == true;
        write(&folder.join("adapter_model.safetensors"), tensors, ties);
        folder
    }

    fn loss(&self, run: &OpenedModel) -> gristmill::error::Result<f64> {
        let text = self.written["text"].as_str().unwrap().bytes().map(u32::from).collect::<Vec<_>>();
        let sequence = Sequence { tokens: text[..text.len() - 1].to_vec(), targets: text[1..].to_vec() };
        let scorer = block_on(Scorer::load(&self.gpu, run, 64, &[&sequence]))?;
        let losses = block_on(scorer.losses(|_, _| {}))?.remove(0);
        Ok(losses.iter().map(|loss| f64::from(*loss)).sum::<f64>() / losses.len() as f64)
    }
}

#[test]
fn adapters_of_every_kind_compute_what_peft_does() {
    let fixture = Fixture::new();
    let cases = fixture.written["cases"].as_array().unwrap();
    for case in cases {
        let (name, base) = (case["name"].as_str().unwrap(), case["base"].as_str().unwrap());
        let (base, folder) = (fixture.base(base), fixture.adapter(name, &case["keys"], &case["tensors"]));
        let assert_near = |what: &str, found: f64, peft: &Value| {
            let peft = peft.as_f64().unwrap();
            assert!((found - peft).abs() < ALLOWED, "{name}, {what}: {found}, and {peft} in PEFT");
        };
        let run = OpenedModel::open_adapted(&base, &folder, &[]).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_near("used", fixture.loss(&run).unwrap_or_else(|e| panic!("{name}: {e}")), &case["loss"]);
        let out = fixture.home.path().join(format!("{name}, merged"));
        let merged = merge(&base, &folder, &out);
        if case["merged"].is_null() {
            let line = merged.unwrap_err().to_string();
            assert!(line.contains("which has none in the model") && !out.exists(), "{name}: {line}");
            continue;
        }
        merged.unwrap_or_else(|e| panic!("{name}: {e}"));
        let run = OpenedModel::open(&out, &[]).unwrap_or_else(|e| panic!("{name}, merged: {e}"));
        assert_near("merged", fixture.loss(&run).unwrap_or_else(|e| panic!("{name}: {e}")), &case["merged"]);
    }
    assert_eq!(cases.len(), 22);
}

/// A tensor that nobody reads would be left out in silence.
#[test]
fn every_tensor_of_an_adapter_has_a_reader_or_is_named() {
    let fixture = Fixture::new();
    let module = "base_model.model.model.layers.0.self_attn.q_proj";
    let factors =
        json!({format!("{module}.lora_A.weight"): [4, 16], format!("{module}.lora_B.weight"): [16, 4]});
    let further = |name: &str, shape: &[usize]| {
        let mut tensors = factors.clone();
        tensors[name] = json!(shape);
        tensors
    };
    let embedding = "base_model.model.model.embed_tokens";
    for (number, (tensors, named)) in [
        (further(&format!("{module}.lora_magnitude_vector"), &[16]), "lora_magnitude_vector"),
        (further(&format!("{module}.lora_B.bias"), &[16]), "lora_B.bias"),
        (further(&format!("{module}.lora_diag"), &[4]), "lora_diag"),
        (further(&format!("{embedding}.lora_embedding_A"), &[4, 256]), "lora_embedding_A"),
        (
            further(&format!("{embedding}.token_adapter.trainable_tokens_delta"), &[2, 16]),
            "trainable_tokens_delta",
        ),
        (further("base_model.model.model.layers.7.mlp.gate.weight", &[4, 16]), "layers.7.mlp.gate"),
        (further("base_model.model.score.weight", &[2, 16]), "score.weight"),
        (further("prompt_encoder.weight", &[2, 16]), "prompt_encoder"),
        (further("base_model.model.lm_head.lora_A.weight", &[4, 16]), "lm_head.lora_B"),
        (json!({format!("{module}.lora_A.weight"): [4, 16]}), "q_proj.lora_B"),
        (
            json!({format!("{module}.lora_A.weight"): [3, 16], format!("{module}.lora_B.weight"): [16, 3]}),
            "where the rank is 4",
        ),
        (
            json!({format!("{module}.lora_A.weight"): [4, 16], format!("{module}.lora_B.weight"): [16, 3]}),
            "[16, 3]",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let folder = fixture.adapter(&number.to_string(), &json!({"r": 4, "lora_alpha": 8}), &tensors);
        let used = OpenedModel::open_adapted(&fixture.base("llama"), &folder, &[])
            .and_then(|run| fixture.loss(&run));
        let merged = merge(&fixture.base("llama"), &folder, &fixture.home.path().join("never"));
        for line in [used.map(drop).unwrap_err().to_string(), merged.map(drop).unwrap_err().to_string()] {
            assert!(line.contains(named) && line.lines().count() == 1, "{line}");
        }
    }
}
