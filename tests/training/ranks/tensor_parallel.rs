//! What else ranks that share matrices, and tokens, train with, against the run of one; `layouts.rs` has every model and layout.
//!
//! With all that one rank computes: losses, norms, weights, loads of experts. Models whose keys have a bias train by SGD.

use super::against_one::{
    BF16, Bounds, Case, IN_BF16, IN_F32, SGD, Sharing, dense, dropless, equals_one, small,
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

/// The parts of a sum are rounded before they are added, so gradients differ by more roundings than those of data-parallel ranks;
/// losses are means of many tokens.
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

const PORTABLE: &str = "--context.tier=portable";

/// With masks, slopes, and parts of a row of logits.
#[test]
fn kernels_of_gpus() {
    let dropped =
        [PORTABLE, "--model.model_config.attention_dropout=0.1", "--model.model_config.hidden_dropout=0.1"];
    equals_one(dense, &dropped, &[ALL], BOUNDS);
    equals_one(|| small(Setup::typed("BloomConfig", "bloom", "")), &[PORTABLE, SGD], &[MATRICES], BOUNDS);
}
