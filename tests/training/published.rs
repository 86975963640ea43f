//! Weights as others publish them: in 16 bits, in several files with an index, of a bare model.
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

/// Writes the tensors that `wanted` names to `path`, each under the name that it returns.
fn publish(path: &Path, tensors: &TensorFile, storage: &Storage, wanted: impl Fn(&str) -> Option<String>) {
    let stored: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .filter_map(|(name, tensor)| {
            let bytes = tensor.words.iter().flat_map(|word| (storage.encode)(f32::from_bits(*word)));
            Some((wanted(name)?, tensor.shape.clone(), bytes.collect()))
        })
        .collect();
    let views = stored.iter().map(|(name, shape, bytes)| {
        (name.as_str(), TensorView::new(storage.dtype, shape.clone(), bytes).expect("a tensor"))
    });
    std::fs::write(path, serialize(views, None).expect("tensors")).expect("a file of tensors");
}

fn rounded(mut tensors: TensorFile, storage: &Storage) -> TensorFile {
    let words = tensors.values_mut().flat_map(|tensor| &mut tensor.words);
    words.for_each(|word| *word = (storage.read)(f32::from_bits(*word)).to_bits());
    tensors
}

/// Attention norms in f32 in one shard, everything else in 16 bits in the other.
#[test]
fn shards_of_16_bits_are_widened_exactly() {
    let setup = || Setup::new("sharded", "qkv_has_bias: True, rotary_interleaved: True");
    let published = weights(&setup(), None);
    let is_norm = |name: &str| name.ends_with("norm.weight");
    for storage in [F16, BF16] {
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
