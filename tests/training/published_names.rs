//! Weights under the names, and in the layouts, in which models were first published.

use crate::export::{checkpoint, exported};
use crate::published::weights;
use crate::runs::{Setup, TensorFile, Words, new_trainer, read_tensors, write_tensors};
use gristmill::store::export::export;
use std::path::Path;

/// A layout: ours and theirs outside layers, theirs before a layer's number, and for each of theirs in a layer the ones
/// of ours whose rows it holds, group by group.
struct Naming {
    kind: &'static str,
    outside: &'static [(&'static str, &'static str)],
    layers: &'static str,
    inside: &'static [(&'static str, &'static [&'static str], usize)],
}

const QKV: &[&str] = &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];

const NAMINGS: [Naming; 4] = [
    Naming {
        kind: "ChatGLM2Config",
        outside: &[
            ("model.embed_tokens", "transformer.embedding.word_embeddings"),
            ("model.norm", "transformer.encoder.final_layernorm"),
            ("lm_head", "transformer.output_layer"),
        ],
        layers: "transformer.encoder.layers",
        inside: &[
            ("input_layernorm", &["input_layernorm"], 1),
            ("self_attention.query_key_value", QKV, 1),
            ("self_attention.dense", &["self_attn.o_proj"], 1),
            ("post_attention_layernorm", &["post_attention_layernorm"], 1),
            ("mlp.dense_h_to_4h", &["mlp.gate_up_proj"], 1),
            ("mlp.dense_4h_to_h", &["mlp.down_proj"], 1),
        ],
    },
    Naming {
        kind: "QwenConfig",
        outside: &[
            ("model.embed_tokens", "transformer.wte"),
            ("model.norm", "transformer.ln_f"),
            ("lm_head", "lm_head"),
        ],
        layers: "transformer.h",
        inside: &[
            ("ln_1", &["input_layernorm"], 1),
            ("attn.c_attn", QKV, 1),
            ("attn.c_proj", &["self_attn.o_proj"], 1),
            ("ln_2", &["post_attention_layernorm"], 1),
            ("mlp.w1", &["mlp.up_proj"], 1),
            ("mlp.w2", &["mlp.gate_proj"], 1),
            ("mlp.c_proj", &["mlp.down_proj"], 1),
        ],
    },
    Naming {
        kind: "InternLM2Config, n_kv_heads: 2",
        outside: &[
            ("model.embed_tokens", "model.tok_embeddings"),
            ("model.norm", "model.norm"),
            ("lm_head", "output"),
        ],
        layers: "model.layers",
        inside: &[
            ("attention_norm", &["input_layernorm"], 1),
            ("attention.wqkv", QKV, 2),
            ("attention.wo", &["self_attn.o_proj"], 1),
            ("ffn_norm", &["post_attention_layernorm"], 1),
            ("feed_forward.w1", &["mlp.gate_proj"], 1),
            ("feed_forward.w3", &["mlp.up_proj"], 1),
            ("feed_forward.w2", &["mlp.down_proj"], 1),
        ],
    },
    Naming {
        kind: "TelechatConfig, n_kv_heads: 2",
        outside: &[
            ("model.embed_tokens", "transformer.word_embeddings"),
            ("model.norm", "transformer.ln_f"),
            ("lm_head", "lm_head"),
        ],
        layers: "transformer.h",
        inside: &[
            ("input_layernorm", &["input_layernorm"], 1),
            ("self_attention.query", &["self_attn.q_proj"], 1),
            ("self_attention.key_value", &["self_attn.k_proj", "self_attn.v_proj"], 2),
            ("self_attention.dense", &["self_attn.o_proj"], 1),
            ("post_attention_layernorm", &["post_attention_layernorm"], 1),
            ("mlp.gate_proj", &["mlp.gate_proj"], 1),
            ("mlp.up_proj", &["mlp.up_proj"], 1),
            ("mlp.down_proj", &["mlp.down_proj"], 1),
        ],
    },
];

/// Of each group the rows of every part, one part after the other.
fn fused(parts: &[&Words], groups: usize) -> Words {
    let of_group = |part: &Words, group: usize| {
        let length = part.words.len() / groups;
        part.words[group * length..][..length].to_vec()
    };
    let words = (0..groups).flat_map(|group| parts.iter().flat_map(move |part| of_group(part, group)));
    let rows = parts.iter().map(|part| part.shape[0]).sum();
    let shape = std::iter::once(rows).chain(parts[0].shape[1..].iter().copied());
    Words { shape: shape.collect(), words: words.collect() }
}

impl Naming {
    /// Our tensors as they were published.
    fn published(&self, ours: &TensorFile) -> TensorFile {
        let mut theirs = TensorFile::new();
        for kind in ["weight", "bias"] {
            for (our, their) in self.outside {
                let tensor = ours.get(&format!("{our}.{kind}"));
                theirs.extend(tensor.map(|tensor| (format!("{their}.{kind}"), tensor.clone())));
            }
            for layer in 0..2 {
                for (their, parts, groups) in self.inside {
                    let names = parts.iter().map(|our| format!("model.layers.{layer}.{our}.{kind}"));
                    let found: Vec<&Words> = names.filter_map(|name| ours.get(&name)).collect();
                    if found.len() == parts.len() {
                        let name = format!("{}.{layer}.{their}.{kind}", self.layers);
                        theirs.insert(name, fused(&found, *groups));
                    }
                }
            }
        }
        theirs
    }
}

/// PEFT adapts a fused module as one, and adapters here are of its parts.
fn refuses_adapters(layout: &Naming, folder: &Path) {
    let model = format!(
        "--model.model_config={{type: {}, vocab_size: 256, hidden_size: 48, num_layers: 2, num_heads: 4, intermediate_size: 64, \
         seq_length: 24, pet_config: {{pet_type: lora, random_base: True, lora_rank: 2, target_modules: '.*wv'}}}}",
        layout.kind
    );
    let home = tempfile::tempdir().expect("a folder");
    let checkpoint = checkpoint(&Setup::new("adapted", "").with(&[&model]), None, home.path());
    let error = export(&checkpoint, folder, &home.path().join("out"), None).expect_err("a part").to_string();
    assert!(error.contains("adapts `model.layers.0.self_attn.v_proj`, some rows of `"), "{error}");
}

#[test]
fn each_layout_is_loaded_and_left_in() {
    for layout in NAMINGS {
        let model = format!(
            "--model.model_config={{type: {}, vocab_size: 256, hidden_size: 48, num_layers: 2, num_heads: 4, \
             intermediate_size: 64, seq_length: 24, init_method_std: 0.1}}",
            layout.kind
        );
        let setup = || Setup::new("published", "").with(&[&model]);
        let mut ours = weights(&setup(), None);
        // Biases start as zeros, which would hide a wrong order.
        let biases = ours.iter_mut().filter(|(name, _)| name.ends_with(".bias"));
        biases.flat_map(|(_, bias)| bias.words.iter_mut().enumerate()).for_each(|(index, word)| {
            *word = (index as f32 + 1.0).to_bits();
        });
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.safetensors");
        write_tensors(&path, &layout.published(&ours));
        let (plan, _, length) = setup().data();
        let gpu = setup().gpu();
        let error = new_trainer(&gpu, &plan, &length).load_weights(&path, false).expect_err("no config.json");
        assert!(error.to_string().contains("put the model's config.json beside it"), "{error}");
        let heads = "{\"num_attention_heads\": 4, \"hidden_size\": 48}";
        std::fs::write(folder.path().join("config.json"), heads).expect("a file");
        let loaded = weights(&setup().with(&["--seed=9"]), Some(&path));
        assert!(loaded == ours, "{}", layout.kind);
        refuses_adapters(&layout, folder.path());
        let exported = exported(&setup(), &path, folder.path());
        assert!(read_tensors(&exported) == layout.published(&ours), "{}", layout.kind);
    }
}
