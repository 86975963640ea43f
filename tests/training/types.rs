//! The types of models, each by a file in the original's dialect that is shrunk by overrides only, against an f64 run of the
//! whole trainer.

use crate::against_reference::follows_the_reference;
use crate::runs::Setup;

/// Ten steps without dropout, whose masks the reference does not draw, and with initial weights that are not tiny.
fn follows(name: &'static str, file: &str, dropouts: &[&str]) {
    let none = dropouts.iter().map(|key| format!("--model.model_config.{key}=0"));
    let overrides: Vec<String> =
        none.chain(["--model.model_config.initializer_range=0.1".to_string()]).collect();
    let overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
    follows_the_reference(&Setup::dialect(name, file).with(&overrides), 10);
}

/// Six heads, no power of two.
#[test]
fn bloom_follows_the_reference() {
    follows("bloom", "pretrain_bloom.yaml", &["hidden_dropout_rate", "attention_dropout_rate"]);
}

#[test]
fn baichuan_2_of_13b_follows_the_reference() {
    follows("baichuan2 13b", "finetune_baichuan2_13b.yaml", &[]);
}

#[test]
fn baichuan_2_of_7b_and_baichuan_of_13b_follow_the_reference() {
    for (name, arch) in
        [("baichuan2 7b", "Baichuan7BV2ForCausalLM"), ("baichuan 13b", "Baichuan13BForCausalLM")]
    {
        let arch = format!("--model.arch.type={arch}");
        let weights = "--model.model_config.initializer_range=0.1";
        follows_the_reference(
            &Setup::dialect(name, "finetune_baichuan2_13b.yaml").with(&[&arch, weights]),
            10,
        );
    }
}

#[test]
fn wizardcoder_follows_the_reference() {
    let dropouts = ["dropout_prob", "hidden_dropout_prob", "attention_probs_dropout_prob"];
    follows("wizardcoder", "finetune_wizardcoder.yaml", &dropouts);
}

#[test]
fn pangu_alpha_follows_the_reference() {
    let dropouts = ["embedding_dropout_prob", "hidden_dropout_rate", "attention_dropout_rate"];
    follows("pangu-alpha", "pretrain_pangualpha.yaml", &dropouts);
}

/// The kernels that a GPU runs, and 16 bits.
#[test]
fn each_part_follows_on_other_tiers_and_in_16_bits() {
    let bloom = || Setup::typed("BloomConfig", "bloom", "sliding_window: 7");
    let baichuan = || Setup::typed("Baichuan2_13BConfig", "baichuan2", "n_kv_heads: 2");
    let pangu = || Setup::typed("PanguAlphaConfig", "pangu-alpha", "");
    for setup in [bloom, baichuan, pangu] as [fn() -> Setup; 3] {
        follows_the_reference(&setup().with(&["--context.tier=portable"]), 4);
        for element in ["float16", "bfloat16"] {
            let compute = format!("--model.model_config.compute_dtype={element}");
            follows_the_reference(&setup().with(&[&compute, "--runner_wrapper.scale_sense=1024"]), 6);
        }
    }
}
