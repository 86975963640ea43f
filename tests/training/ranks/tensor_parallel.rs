//! Ranks that share matrices, and tokens, against the run of one.
//!
//! With all that one rank computes: losses, norms, weights, masks, loads of experts. Models whose keys have a bias train by SGD.

use super::against_one::{
    BF16, Bounds, Case, IN_BF16, IN_F16, IN_F32, RECOMPUTED, SGD, STEPS, Sharing, capacity, dense, dropless,
    equals_one, small,
};
use crate::latent::{DIRECT, RANKS, dense as latent};
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
fn llama_with_grouped_queries() {
    train_as_one(dense, &[]);
    let four = Case { size: 4, model: 4, ..MATRICES };
    equals_one(dense, &[], &[four, Case { shares_tokens: true, ..four }], BOUNDS);
}

/// They exchange again, keep what was exchanged, or keep a slice of each layer's input.
#[test]
fn recomputed_layers() {
    let recomputed = |key: &'static str| [RECOMPUTED[0], key];
    train_as_one(dense, RECOMPUTED);
    train_as_one(dense, &recomputed("--recompute_config.mp_comm_recompute=False"));
    train_as_one(dense, &recomputed("--recompute_config.recompute_slice_activation=True"));
    train_as_one(dense, &["--recompute_config.select_comm_recompute=True"]);
    train_as_one(
        dense,
        &["--recompute_config.select_recompute={feed_forward.mul: True, attention_norm: True}"],
    );
}

#[test]
fn biases_and_tied_heads() {
    train_as_one(|| small(Setup::gpt2("gpt2", "")), &[SGD]);
}

#[test]
fn linear_biases_of_attention() {
    train_as_one(|| small(Setup::typed("BloomConfig", "bloom", "")), &[SGD]);
}

#[test]
fn interleaved_rotation() {
    train_as_one(|| small(Setup::typed("ChatGLM2Config", "glm", "")), &[SGD]);
}

#[test]
fn latent_attention() {
    train_as_one(|| small(latent("latent", RANKS)), &[]);
    train_as_one(|| small(latent("latent without a rank of queries", DIRECT)), &[]);
}

/// Experts of a width that two ranks divide.
const WIDTH: &[&str] = &["--moe_config.moe_intermediate_size=40"];

#[test]
fn mixtures() {
    train_as_one(capacity, WIDTH);
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

#[test]
fn masks_are_those_of_one() {
    let dropout = &[
        "--model.model_config.hidden_dropout=0.1",
        "--model.model_config.attention_dropout=0.1",
        "--model.model_config.emb_dropout_prob=0.1",
    ];
    train_as_one(dense, dropout);
}

#[test]
fn adapters() {
    let adapters = "--model.model_config.pet_config={pet_type: lora, random_base: True, lora_rank: 4, lora_alpha: 8, \
                    lora_dropout: 0.1, target_modules: '.*wq|.*wv|.*wo|.*w1|.*w2'}";
    train_as_one(dense, &[adapters]);
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

/// Bit for bit, whatever the threads of the ranks do first.
#[test]
fn runs_repeat() {
    let case = Case { size: 4, ..ALL };
    let run = || {
        let setup = dense();
        let gpu = setup.gpu();
        case.train(setup, &gpu, STEPS)
    };
    let [first, second] = [run(), run()];
    for (first, second) in first.iter().zip(&second) {
        assert!(
            format!("{:?} {:?}", first.states, first.weights)
                == format!("{:?} {:?}", second.states, second.weights)
        );
    }
}

#[test]
fn an_overflow_is_that_of_all() {
    let scale = "--runner_wrapper.scale_sense={type: DynamicLossScaleUpdateCell, loss_scale_value: 33554432, scale_window: 2}";
    let keys = ["--model.model_config.compute_dtype=float16", scale];
    let ones = equals_one(dense, &keys, &[MATRICES, ALL], IN_F16);
    let overflows: u32 = ones[0].states.iter().map(|state| state.is_overflow).sum();
    assert!((1..STEPS as u32).contains(&overflows), "{overflows} of {STEPS} steps overflow");
}

#[test]
fn models_in_bf16() {
    equals_one(dense, BF16, &[MATRICES, TOKENS], PARTS_IN_BF16);
}
