//! What else ranks that share matrices, and tokens, train with, against the run of one; `layouts.rs` has every model
//! and layout.
//!
//! Models whose keys have a bias train by SGD.

use super::against_one::{BF16, BY_LENGTH, ROUNDED, SGD, dense, dropless, gpt_oss, layers, mimo, small};
use super::layouts::{SEQUENCE, TENSOR};
use super::spread::{DATA, OPTIMIZER, Spread, TOKENS, VOCABULARY, WEIGHTS, ZERO_1, ZERO_2};
use super::trial::{Model, PARTS_IN_BF16, PLAIN, ROUNDED_PARTS, Variation, on_one, train_as_one};
use crate::latent::{DIRECT, dense as latent};
use crate::runs::Setup;

/// Two ranks that share each matrix, and the vocabulary; and the tokens between products.
const OF_WORDS: Spread = Spread { keys: &[VOCABULARY], ..TENSOR };
const ALL: Spread = Spread::divided(2);

/// One micro-batch a step of each rank, or of each pair.
const ONCE: Variation<'_> = Variation { micro_batches: 1, ..PLAIN };
const OF_TWO: Variation<'_> = Variation { micro_batches: 2, ..PLAIN };

/// Experts of a width that two ranks divide.
const WIDTH: &str = "--moe_config.moe_intermediate_size=40";
const MUON: &str = "--optimizer={type: Muon, weight_decay: 0.1}";

const GPT2: Model = || small(Setup::gpt2("gpt2", ""));
const BLOOM: Model = || small(Setup::typed("BloomConfig", "bloom", ""));
const DIRECT_LATENT: Model = || small(latent("latent without a rank of queries", DIRECT));

#[test]
fn latent_attention() {
    train_as_one(DIRECT_LATENT, &[TENSOR, SEQUENCE], &ONCE);
}

#[test]
fn layers_that_differ() {
    train_as_one(layers, &[TENSOR, SEQUENCE], &ONCE);
}

/// Factors of what each rank adds to, looks up and multiplies by; biases are added by the first rank, but for that of
/// the head, of which each has its own part. Beside them rotations by length and clipped projections, of which each has
/// the heads that are its own.
#[test]
fn factors() {
    let keys = [
        "embedding_multiplier=3.0",
        "residual_multiplier=0.6",
        "attention_multiplier=0.3",
        "logits_scaling=2.0",
        "lm_head_has_bias=True",
    ];
    let keys = keys.map(|key| format!("--model.model_config.{key}"));
    let biases = ["--model.model_config.attn_proj_has_bias=True", SGD];
    let keys: Vec<&str> = keys.iter().map(String::as_str).chain(biases).chain(BY_LENGTH).collect();
    train_as_one(dense, &[TENSOR, ALL], &Variation { keys: &keys, ..ONCE });
}

/// Norms of sums, of which ranks that share tokens have their own rows.
#[test]
fn norms_of_sums() {
    let opt = || small(Setup::typed("OPTConfig", "opt", "norm_placement: after_sum"));
    train_as_one(opt, &[ALL], &Variation { keys: &[SGD], ..ONCE });
}

/// Attention and feed-forward network beside each other, which read one norm without a weight, or a LayerNorm each. Of
/// the numbers of xIELU each rank has one term of the gradient.
#[test]
fn parallel_residuals() {
    for (residual, more, has_weight, activation) in
        [("one_norm", "RMSNorm", "False", "xielu"), ("two_norms", "LayerNorm", "True", "relu")]
    {
        let keys = [
            format!("--model.model_config.parallel_residual={residual}"),
            format!("--model.model_config.normalization={more}"),
            format!("--model.model_config.norm_has_weight={has_weight}"),
            "--model.model_config.gated_linear_unit=False".to_string(),
            format!("--model.model_config.hidden_act={activation}"),
        ];
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        train_as_one(dense, &[SEQUENCE], &Variation { keys: &keys, ..ONCE });
    }
}

#[test]
fn mixtures() {
    let spreads = [TENSOR, SEQUENCE, Spread { data: 2, expert: 2, ..TENSOR }];
    train_as_one(dropless, &spreads, &Variation { keys: &[WIDTH], ..OF_TWO });
}

/// Sinks are divided as heads are, and the biases of experts as their widths; the router is whole on each rank.
#[test]
fn sinks_and_biases_of_experts() {
    train_as_one(gpt_oss, &[TENSOR, SEQUENCE], &OF_TWO);
    train_as_one(mimo, &[ALL], &OF_TWO);
}

#[test]
fn vocabularies() {
    train_as_one(dense, &[OF_WORDS, ALL], &ONCE);
    train_as_one(GPT2, &[ALL, OF_WORDS], &Variation { keys: &[SGD], ..ONCE });
    let further = ["--model.model_config.mtp_depth=1", "--model.model_config.mtp_loss_factor=0.3"];
    train_as_one(dense, &[SEQUENCE, ALL], &Variation { keys: &further, ..ONCE });
    train_as_one(|| small(Setup::typed("Baichuan2_7BConfig", "baichuan", "")), &[ALL], &ONCE);
    train_as_one(dense, &[ALL], &Variation { keys: BF16, bounds: PARTS_IN_BF16, ..ONCE });
}

#[test]
fn data_and_optimizer_too() {
    let on_four = |keys| Spread { data: 2, keys, ..TENSOR };
    train_as_one(dense, &[DATA, ZERO_1, ZERO_2, WEIGHTS].map(on_four), &PLAIN);
}

/// Matrices are gathered, orthogonalised as they are and kept in part.
#[test]
fn muon_is_that_of_one() {
    let muon = Variation { keys: &[MUON], ..ONCE };
    train_as_one(dense, &[TENSOR, ALL, Spread { model: 4, ..TENSOR }], &muon);
    let sharded = Spread { data: 2, expert: 2, keys: ZERO_1, ..TENSOR };
    train_as_one(dropless, &[TENSOR, sharded], &Variation { keys: &[WIDTH, MUON], ..OF_TWO });
    // q, k and v are one matrix in its files. Biases are updated by AdamW; see [`SGD`].
    let frozen = [MUON, "--model.model_config.freeze=['.*bqkv']"];
    train_as_one(BLOOM, &[TENSOR], &Variation { keys: &frozen, ..ONCE });
    train_as_one(DIRECT_LATENT, &[TENSOR], &muon);
}

/// Of four micro-batches in a step, as losses are means over them.
#[test]
#[ignore = "long; `parts_are_rounded_by_the_bits_of_one` has two steps"]
fn stochastically_rounded_weights() {
    let rounded = Variation { keys: ROUNDED, bounds: ROUNDED_PARTS, ..PLAIN };
    let sharded = Spread { data: 2, keys: &[TOKENS, VOCABULARY, OPTIMIZER], ..TENSOR };
    train_as_one(dense, &[SEQUENCE, Spread { model: 4, ..TENSOR }, sharded], &rounded);
    let adapters = "--model.model_config.pet_config={pet_type: lora, random_base: True, lora_rank: 4, lora_alpha: 8, \
                    target_modules: '.*wq|.*wv|.*wo|.*w1|.*w2'}";
    train_as_one(dense, &[TENSOR], &Variation { keys: &[ROUNDED[0], ROUNDED[1], adapters], ..rounded });
    let sgd = "--optimizer={type: SGD, momentum: 0.9, stochastic_rounding: True}";
    train_as_one(BLOOM, &[ALL], &Variation { keys: &[ROUNDED[0], sgd], ..rounded });
}

/// The same bits round a weight wherever it is: after two steps, of which one changes weights, nearly all are equal.
/// Other bits would round about a third of them the other way.
#[test]
fn parts_are_rounded_by_the_bits_of_one() {
    let muon = [ROUNDED[0], "--optimizer={type: Muon, stochastic_rounding: True}"];
    let sgd = [ROUNDED[0], "--optimizer={type: SGD, momentum: 0.9, stochastic_rounding: True}"];
    let sharded = Spread { data: 2, keys: &[TOKENS, VOCABULARY, OPTIMIZER], ..TENSOR };
    for (keys, spread) in [(ROUNDED, ALL), (ROUNDED, sharded), (&muon, ALL), (&sgd, TENSOR)] {
        let setup = || dense().with(keys);
        let gpu = setup().gpu();
        let one = on_one(setup(), &gpu, spread.data, 2);
        let ranks = spread.setup(setup(), spread.data).train_on_one_device(&gpu, spread.ranks(), 2);
        for (rank, got) in ranks.iter().enumerate() {
            for (tensor, got) in &got.weights {
                let pairs = got.iter().zip(&one.weights[tensor]).filter(|(got, _)| !got.is_nan());
                let (held, others) = pairs.fold((0, 0), |(held, others), (got, want)| {
                    (held + 1, others + usize::from(got != want))
                });
                println!("{keys:?}, {spread:?}, rank {rank}: {others} of {held} weights of {tensor} differ");
                assert!(10 * others <= held + 20, "rank {rank} rounds {tensor} by other bits");
            }
        }
    }
}

const PORTABLE: &str = "--context.tier=portable";

/// With masks, slopes, and parts of a row of logits.
#[test]
fn kernels_of_gpus() {
    let dropped =
        [PORTABLE, "--model.model_config.attention_dropout=0.1", "--model.model_config.hidden_dropout=0.1"];
    train_as_one(dense, &[ALL], &Variation { keys: &dropped, ..ONCE });
    train_as_one(BLOOM, &[TENSOR], &Variation { keys: &[PORTABLE, SGD], ..ONCE });
}
