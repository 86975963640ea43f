//! What else ranks that share matrices, and tokens, train with, against the run of one; `layouts.rs` has every model
//! and layout.
//!
//! With all that one rank computes: losses, norms, weights, loads of experts. Models whose keys have a bias train by
//! SGD.

use super::against_one::{
    BF16, Bounds, Case, IN_BF16, IN_F32, ROUNDED, SGD, Sharing, dense, dropless, equals_one, on_one, small,
};
use crate::latent::{DIRECT, dense as latent};
use crate::runs::Setup;

/// Two ranks that share each matrix.
const MATRICES: Case = Case { model: 2, ..Case::PAIR };

/// And the tokens between them.
const TOKENS: Case = Case { shares_tokens: true, ..MATRICES };

/// And the vocabulary.
const VOCABULARY: Case = Case { shares_vocabulary: true, ..MATRICES };
const ALL: Case = Case { shares_vocabulary: true, ..TOKENS };

/// Each product is a sum of other terms; see [`IN_F32`].
const BOUNDS: Bounds = IN_F32;

/// The parts of a sum are rounded before they are added, so gradients differ by more roundings than those of
/// data-parallel ranks; losses are means of many tokens.
const PARTS_IN_BF16: Bounds = Bounds { loss: 5e-4, norm: 5e-3, ..IN_BF16 };

fn train_as_one(setup: fn() -> Setup, keys: &[&str]) {
    equals_one(setup, keys, &[MATRICES, TOKENS], BOUNDS);
}

#[test]
fn latent_attention() {
    train_as_one(|| small(latent("latent without a rank of queries", DIRECT)), &[]);
}

/// Experts of a width that two ranks divide.
const WIDTH: &[&str] = &["--moe_config.moe_intermediate_size=40"];

#[test]
fn mixtures() {
    train_as_one(dropless, WIDTH);
    equals_one(dropless, WIDTH, &[Case { size: 4, expert: 2, ..MATRICES }], BOUNDS);
}

#[test]
fn vocabularies() {
    equals_one(dense, &[], &[VOCABULARY, ALL], BOUNDS);
    equals_one(|| small(Setup::gpt2("gpt2", "")), &[SGD], &[VOCABULARY, ALL], BOUNDS);
    let further = ["--model.model_config.mtp_depth=1", "--model.model_config.mtp_loss_factor=0.3"];
    equals_one(dense, &further, &[TOKENS, ALL], BOUNDS);
    equals_one(|| small(Setup::typed("Baichuan2_7BConfig", "baichuan", "")), &[], &[ALL], BOUNDS);
    equals_one(dense, BF16, &[ALL], PARTS_IN_BF16);
}

#[test]
fn data_and_optimizer_too() {
    let on_four = |sharing| Case { size: 4, sharing, accumulated: 2, ..MATRICES };
    let cases = [Sharing::Data, Sharing::Optimizer, Sharing::Gradients, Sharing::Weights].map(on_four);
    equals_one(dense, &[], &cases, BOUNDS);
}

/// Matrices are gathered, orthogonalised as they are and kept in part.
#[test]
fn muon_is_that_of_one() {
    let muon = &["--optimizer={type: Muon, weight_decay: 0.1}"];
    let four = Case { size: 4, model: 4, ..MATRICES };
    equals_one(dense, muon, &[MATRICES, ALL, four], BOUNDS);
    let sharded = Case { size: 4, sharing: Sharing::Optimizer, ..MATRICES };
    equals_one(dropless, &[WIDTH[0], muon[0]], &[MATRICES, Case { expert: 2, ..sharded }], BOUNDS);
    // q, k and v are one matrix in its files. Biases are updated by AdamW; see [`SGD`].
    let bloom = || small(Setup::typed("BloomConfig", "bloom", ""));
    equals_one(bloom, &[muon[0], "--model.model_config.freeze=['.*bqkv']"], &[MATRICES], BOUNDS);
    equals_one(|| small(latent("latent", DIRECT)), muon, &[MATRICES], BOUNDS);
}

/// Of stochastic rounding: a weight that rounds the other way is up to 2^-7 of itself away.
const ROUNDED_PARTS: Bounds = Bounds { weights: 1.0 / 128.0, ..PARTS_IN_BF16 };

#[test]
fn stochastically_rounded_weights() {
    // Of more tokens in a step, as losses are means over them.
    let accumulated = |case: Case| Case { accumulated: 4, ..case };
    let four = Case { size: 4, model: 4, ..MATRICES };
    let sharded = Case { size: 4, sharing: Sharing::Optimizer, ..ALL };
    equals_one(dense, ROUNDED, &[MATRICES, TOKENS, four, sharded].map(accumulated), ROUNDED_PARTS);
    let adapters = "--model.model_config.pet_config={pet_type: lora, random_base: True, lora_rank: 4, lora_alpha: 8, \
                    target_modules: '.*wq|.*wv|.*wo|.*w1|.*w2'}";
    equals_one(dense, &[ROUNDED[0], ROUNDED[1], adapters], &[accumulated(MATRICES)], ROUNDED_PARTS);
    let bloom = || small(Setup::typed("BloomConfig", "bloom", ""));
    equals_one(
        bloom,
        &[ROUNDED[0], "--optimizer={type: SGD, momentum: 0.9, stochastic_rounding: True}"],
        &[accumulated(ALL)],
        ROUNDED_PARTS,
    );
}

/// The same bits round a weight wherever it is: after two steps, of which one changes weights, nearly all are equal.
/// Other bits would round about a third of them the other way.
#[test]
fn parts_are_rounded_by_the_bits_of_one() {
    let muon = [ROUNDED[0], "--optimizer={type: Muon, stochastic_rounding: True}"];
    let sgd = [ROUNDED[0], "--optimizer={type: SGD, momentum: 0.9, stochastic_rounding: True}"];
    let sharded = Case { size: 4, sharing: Sharing::Optimizer, ..ALL };
    for (keys, case) in [(ROUNDED, ALL), (ROUNDED, sharded), (&muon, ALL), (&sgd, MATRICES)] {
        let setup = || dense().with(keys);
        let gpu = setup().gpu();
        let one = on_one(setup(), &gpu, case.micro_batches(), 2);
        let ranks = case.train(setup(), &gpu, 2);
        for (rank, got) in ranks.iter().enumerate() {
            for (tensor, got) in &got.weights {
                let pairs = got.iter().zip(&one.weights[tensor]).filter(|(got, _)| !got.is_nan());
                let (held, others) = pairs.fold((0, 0), |(held, others), (got, want)| {
                    (held + 1, others + usize::from(got != want))
                });
                println!("{keys:?}, {case:?}, rank {rank}: {others} of {held} weights of {tensor} differ");
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
    equals_one(dense, &dropped, &[ALL], BOUNDS);
    equals_one(|| small(Setup::typed("BloomConfig", "bloom", "")), &[PORTABLE, SGD], &[MATRICES], BOUNDS);
}
