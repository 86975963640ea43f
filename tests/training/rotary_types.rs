//! A file in MindFormers' dialect for each type of model, shrunk by flags alone, against the f64 run of the trainer.

use crate::against_reference::follows_the_reference;
use crate::runs::{Setup, compared_steps};

/// The first steps of `tests/data/dialect/{file}.yaml` on a small text; `sizes` shrink the model by the names that the
/// file has for its keys.
fn follows(name: &'static str, file: &'static str, sizes: &[&str]) {
    let mut keys = vec![
        "runner_config.batch_size=3".to_string(),
        "runner_config.gradient_accumulation_steps=2".to_string(),
        "lr_schedule={type: CosineWithWarmUpLR, learning_rate: 3.e-3, warmup_steps: 3, total_steps: 40}"
            .to_string(),
        "model.model_config.num_layers=2".to_string(),
    ];
    keys.extend(sizes.iter().map(|size| format!("model.model_config.{size}")));
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    follows_the_reference(&Setup::shrunk(name, file, &keys), compared_steps());
}

const LLAMA: [&str; 2] = ["vocab_size=256", "num_heads=4"];
const STD: &str = "init_method_std=0.1";
const WIDTH: &str = "intermediate_size=64";

#[test]
fn llama() {
    follows(
        "llama2",
        "dialect/llama2.yaml",
        &[&LLAMA[..], &["n_kv_heads=2", "multiple_of=16", STD]].concat(),
    );
}

#[test]
fn gpt2() {
    follows("gpt2", "dialect/gpt2.yaml", &[&LLAMA[..], &["initializer_range=0.1"]].concat());
}

#[test]
fn chatglm() {
    let sizes =
        ["padded_vocab_size=256", "num_attention_heads=4", "kv_channels=16", "ffn_hidden_size=64", STD];
    follows("chatglm3", "dialect/chatglm3.yaml", &sizes);
    follows("glm4", "dialect/glm4.yaml", &sizes);
    // Names of Llama, since gate and up of an odd width are not one tensor.
    let odd = ["padded_vocab_size=256", "num_attention_heads=4", "kv_channels=8", "ffn_hidden_size=37", STD];
    follows("chatglm3 odd", "dialect/chatglm3.yaml", &odd);
}

/// Fused tensors, of whose heads a part rotates; and heads that rotate in pairs, with all biases.
#[test]
fn types_of_hugging_face() {
    let sizes = "vocab_size: 256, hidden_size: 48, num_layers: 2, num_heads: 4, n_kv_heads: 2, head_dim: 12, intermediate_size: 64, \
                 seq_length: 24, init_method_std: 0.1";
    for (kind, keys) in [
        ("Phi3Config", "rotary_percent: 0.5"),
        (
            "Ernie4_5Config",
            "qkv_has_bias: True, attn_proj_has_bias: True, add_mlp_fc1_bias_linear: True, add_mlp_fc2_bias_linear: True",
        ),
        ("HeliumConfig", "qkv_has_bias: True"),
    ] {
        let model = format!("--model.model_config={{type: {kind}, {sizes}, {keys}}}");
        follows_the_reference(&Setup::new(kind, "").with(&[&model]), compared_steps());
    }
}

#[test]
fn qwen() {
    follows("qwen", "dialect/qwen.yaml", &[&LLAMA[..], &[WIDTH, "kv_channels=8", STD]].concat());
}

#[test]
fn internlm() {
    follows("internlm", "dialect/internlm.yaml", &[&LLAMA[..], &["multiple_of=16", STD]].concat());
    follows("internlm2", "dialect/internlm2.yaml", &[&LLAMA[..], &["n_kv_heads=2", WIDTH, STD]].concat());
}

#[test]
fn telechat() {
    follows("telechat", "dialect/telechat.yaml", &[&LLAMA[..], &[WIDTH, "sigma=0.1"]].concat());
}

/// All biases that a Llama can have, beside gate and up of an odd width.
#[test]
fn biases_of_every_layer() {
    let sizes = ["intermediate_size=37", "add_bias_linear=True", "sigma=0.1"];
    follows("biased", "dialect/telechat.yaml", &[&LLAMA[..], &sizes].concat());
}
