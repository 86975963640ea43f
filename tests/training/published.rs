//! Weights as others publish them: in 8, 16 and 64 bits, in several files with an index, of a bare model.
//!
//! They load as the f32 that they stand for.

use crate::runs::{Setup, TensorFile, new_trainer, read_tensors, save_checkpoint};
use half::{bf16, f16};
use safetensors::tensor::{Dtype, TensorView, serialize};
use std::path::Path;

/// A way to store floats, and the f32 that each then stands for.
struct Storage {
    dtype: Dtype,
    encode: fn(f32) -> Vec<u8>,
    read: fn(f32) -> f32,
}

const F32: Storage = Storage { dtype: Dtype::F32, encode: |v| v.to_le_bytes().to_vec(), read: |v| v };
const F16: Storage = Storage {
    dtype: Dtype::F16,
    encode: |v| f16::from_f32(v).to_le_bytes().to_vec(),
    read: |v| f16::from_f32(v).to_f32(),
};
const BF16: Storage = Storage {
    dtype: Dtype::BF16,
    encode: |v| bf16::from_f32(v).to_le_bytes().to_vec(),
    read: |v| bf16::from_f32(v).to_f32(),
};
const F64: Storage = Storage {
    dtype: Dtype::F64,
    // Nearer to it than to any other f32.
    encode: |v| (f64::from(v) * (1.0 + 1e-9)).to_le_bytes().to_vec(),
    read: |v| v,
};

/// The weights that a trainer of `setup` starts with, or those that it loads.
pub fn weights(setup: &Setup, load: Option<&Path>) -> TensorFile {
    let (plan, _, length) = setup.data();
    let gpu = setup.gpu();
    let trainer = new_trainer(&gpu, &plan, &length);
    if let Some(path) = load {
        trainer.load_weights(path, false).unwrap_or_else(|e| panic!("{e}"));
    }
    let folder = tempfile::tempdir().expect("a folder");
    read_tensors(&save_checkpoint(&trainer, 1, folder.path()).join("model.safetensors"))
}

/// Name, type, shape and bytes.
pub type Stored = (String, Dtype, Vec<usize>, Vec<u8>);

/// Writes the tensors that `wanted` names to `path`, each under the name that it returns.
fn publish(path: &Path, tensors: &TensorFile, storage: &Storage, wanted: impl Fn(&str) -> Option<String>) {
    let stored: Vec<Stored> = tensors
        .iter()
        .filter_map(|(name, tensor)| {
            let bytes = tensor.words.iter().flat_map(|word| (storage.encode)(f32::from_bits(*word)));
            Some((wanted(name)?, storage.dtype, tensor.shape.clone(), bytes.collect()))
        })
        .collect();
    write(path, &stored);
}

pub fn write(path: &Path, stored: &[Stored]) {
    let views = stored.iter().map(|(name, dtype, shape, bytes)| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor"))
    });
    std::fs::write(path, serialize(views, None).expect("tensors")).expect("a file of tensors");
}

fn rounded(mut tensors: TensorFile, storage: &Storage) -> TensorFile {
    let words = tensors.values_mut().flat_map(|tensor| &mut tensor.words);
    words.for_each(|word| *word = (storage.read)(f32::from_bits(*word)).to_bits());
    tensors
}

/// Attention norms in f32 in one shard, everything else in other bits in the other.
#[test]
fn shards_of_16_bits_are_widened_exactly_and_those_of_64_narrowed() {
    let setup = || Setup::new("sharded", "qkv_has_bias: True, rotary_interleaved: True");
    let published = weights(&setup(), None);
    let is_norm = |name: &str| name.ends_with("norm.weight");
    for storage in [F16, BF16, F64] {
        let folder = tempfile::tempdir().expect("a folder");
        let files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        publish(&folder.path().join(files[0]), &published, &F32, |name| {
            is_norm(name).then(|| name.to_string())
        });
        publish(&folder.path().join(files[1]), &published, &storage, |name| {
            (!is_norm(name)).then(|| name.to_string())
        });
        let map: serde_json::Map<String, serde_json::Value> =
            published.keys().map(|name| (name.clone(), files[usize::from(!is_norm(name))].into())).collect();
        let index = folder.path().join("model.safetensors.index.json");
        std::fs::write(&index, serde_json::json!({ "metadata": {}, "weight_map": map }).to_string())
            .expect("a file");
        let want = rounded(published.clone(), &storage);
        for path in [folder.path(), &index] {
            let loaded = weights(&setup().with(&["--seed=9"]), Some(path));
            assert!(loaded == want, "{:?} from {}", storage.dtype, path.display());
        }
        std::fs::remove_file(folder.path().join(files[1])).expect("a file");
        let (plan, _, length) = setup().data();
        let gpu = setup().gpu();
        let error =
            new_trainer(&gpu, &plan, &length).load_weights(&index, false).expect_err("a shard is missing");
        assert!(
            error.to_string().ends_with("00002-of-00002.safetensors: cannot open: no such file or folder"),
            "{error}"
        );
    }
}

/// The published file of GPT-2 has no prefix and holds the causal masks.
#[test]
fn a_bare_gpt2_is_loaded() {
    let model = "--model.model_config={type: GPT2Config, vocab_size: 256, n_embd: 48, n_layer: 2, n_head: 4, \
                 seq_length: 24}";
    let setup = || Setup::new("bare", "").with(&[model]);
    let published = weights(&setup(), None);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    publish(&path, &published, &F32, |name| name.strip_prefix("transformer.").map(str::to_string));
    assert!(weights(&setup().with(&["--seed=9"]), Some(&path)) == published);
}

/// Rows and columns of what has a scale here: neither divides the matrices.
pub const BLOCK: [usize; 2] = [20, 36];

/// The linear layers of `tensors` as FP8 of the codes that `code` names, with scales, the others in f32; and the values
/// of all.
pub fn in_fp8(tensors: &TensorFile, code: impl Fn(usize) -> u8) -> (Vec<Stored>, TensorFile) {
    let (mut stored, mut values) = (Vec::new(), tensors.clone());
    for (name, tensor) in &mut values {
        if !name.contains("proj.weight") {
            let bytes = tensor.words.iter().flat_map(|word| word.to_le_bytes());
            stored.push((name.clone(), Dtype::F32, tensor.shape.clone(), bytes.collect()));
            continue;
        }
        let [rows, columns] = [tensor.shape[0], tensor.shape[1]];
        let shape = vec![rows.div_ceil(BLOCK[0]), columns.div_ceil(BLOCK[1])];
        let scale = |block: usize| bf16::from_f32(0.01 * (block + 1) as f32);
        let codes: Vec<u8> = (0..rows * columns).map(&code).collect();
        for (index, (word, code)) in tensor.words.iter_mut().zip(&codes).enumerate() {
            let (row, column) = (index / columns, index % columns);
            let scale = scale(row / BLOCK[0] * shape[1] + column / BLOCK[1]);
            let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7) / 8.0);
            let magnitude = match exponent {
                0 => mantissa * f32::powi(2.0, -6),
                _ => (1.0 + mantissa) * f32::powi(2.0, exponent - 7),
            };
            let sign = if *code < 128 { 1.0 } else { -1.0 };
            *word = (sign * magnitude * scale.to_f32()).to_bits();
        }
        let scales = (0..shape[0] * shape[1]).flat_map(|block| scale(block).to_le_bytes()).collect();
        stored.push((name.clone(), Dtype::F8_E4M3, vec![rows, columns], codes));
        stored.push((format!("{name}_scale_inv"), Dtype::BF16, shape, scales));
    }
    (stored, values)
}

#[test]
fn fp8_is_multiplied_by_the_scales_of_its_blocks() {
    let setup = || Setup::new("fp8", "rotary_interleaved: True").wide();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let config =
        serde_json::json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": BLOCK}});
    // All codes but the two that are no numbers.
    let code = |index: usize| [index % 127, 128 + index % 127][index / 127 % 2] as u8;
    let (stored, values) = in_fp8(&weights(&setup(), None), code);
    write(&path, &stored);
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("a file");
    assert!(weights(&setup().with(&["--seed=9"]), Some(&path)) == values);

    let refuses = |change: &dyn Fn(&mut Stored) -> bool, why: &str| {
        let mut stored = stored.clone();
        stored.retain_mut(change);
        write(&path, &stored);
        let (plan, _, length) = setup().data();
        let gpu = setup().gpu();
        let error = new_trainer(&gpu, &plan, &length).load_weights(&path, false).expect_err(why).to_string();
        assert!(error.contains(why) && !error.contains('\n'), "{error}");
    };
    let scale = "model.layers.1.mlp.up_proj.weight_scale_inv";
    refuses(&|tensor| tensor.0 != scale, "up_proj.weight` is F8_E4M3 [64, 48] without its scales");
    refuses(
        &|tensor| {
            if tensor.0 == scale {
                (tensor.2, tensor.3) = (vec![4, 1], vec![0; 8]);
            }
            true
        },
        "up_proj.weight_scale_inv` BF16 [4, 1], not floats for each of its blocks of 20 x 36",
    );
    refuses(
        &|tensor| {
            if tensor.0 == scale {
                (tensor.1, tensor.3) = (Dtype::I16, vec![0; 16]);
            }
            true
        },
        "up_proj.weight_scale_inv` I16 [4, 2], not floats",
    );
    refuses(
        &|tensor| {
            if tensor.0 == "model.norm.weight" {
                (tensor.1, tensor.3) = (Dtype::F8_E4M3, vec![0; 48]);
            }
            true
        },
        "`model.norm.weight` is F8_E4M3 [48] without its scales",
    );
    refuses(
        &|tensor| {
            if tensor.0 == scale.trim_end_matches("_scale_inv") {
                (tensor.1, tensor.3) = (Dtype::F32, vec![0; 64 * 48 * 4]);
            }
            true
        },
        "1 of its tensors have no place in this model, `model.layers.1.mlp.up_proj.weight_scale_inv` among them",
    );
}
