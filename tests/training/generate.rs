//! Text from a trained model: cached keys and values give the tokens of the f64 reference, and a batch the tokens of
//! each prompt alone.
//!
//! The reference generates without a cache.

use crate::latent::{DIRECT, RANKS, dense};
use crate::runs::{
    FolderRun, GREEDY, Setup, Weights, continuations, is_long, newest_checkpoint, open_gpu_of, read_tensors,
    reference_shape, trained_model, trained_model_with_tokenizer,
};
use gristmill::infer::{GenerationSettings, Sampling};
use gristmill::kernels::Tier;

/// Choices that training drops.
const EXPERTS: &str = "expert_num: 4, num_experts_chosen: 2, capacity_factor: 0.8";

/// The greedy continuation of `prompt` by `count` tokens without a cache: `next` reads the whole window for every
/// token. A prompt longer than the window is cut to its last tokens; a text that outgrows the window goes on from the
/// last half of it.
pub fn uncached(prompt: &[u32], window: usize, count: usize, next: impl Fn(&[u32]) -> u32) -> Vec<u32> {
    let mut text = prompt[prompt.len().saturating_sub(window)..].to_vec();
    let (prompt, mut start) = (text.len(), 0);
    for _ in 0..count {
        if text.len() - start > window {
            start = text.len() - window.div_ceil(2);
        }
        text.push(next(&text[start..]));
    }
    text.split_off(prompt)
}

/// The greedy continuation by the f64 reference.
fn by_reference(trained: &FolderRun, prompt: &str) -> Vec<u32> {
    let plan = trained.setup.plan();
    let (_, checkpoint) = newest_checkpoint(&trained.folder()).expect("a checkpoint");
    let tensors = read_tensors(&checkpoint.join("model.safetensors"));
    let weights: Weights = tensors.into_iter().map(|(name, tensor)| (name, tensor.floats())).collect();
    let (mut shape, vocab) = (reference_shape(&plan.model), plan.model.vocab_size);
    if let Some(mixture) = &mut shape.mixture {
        mixture.capacity = None; // generation drops nothing
    }
    let prompt = trained.encode(&[prompt]).remove(0);
    uncached(&prompt, plan.model.seq_length, GREEDY.tokens, |seen| {
        let positions: Vec<u32> = (0..seen.len() as u32).collect();
        let logits = reference::gpt::logits(&shape, &weights, seen, &positions, seen.len());
        let last = &logits[logits.len() - vocab..];
        (0..vocab).max_by(|&a, &b| last[a].total_cmp(&last[b])).expect("tokens") as u32
    })
}

/// The tokens of the reference, one text at a time, and the tokens of each text alone, four at once.
fn writes_as_alone_and_as_the_reference(trained: &FolderRun) {
    let prompts = ["the mill", "a", "stones that grind slowly grind fine, says the miller"];
    let wanted = prompts.map(|prompt| by_reference(trained, prompt));
    for tier in Tier::EVERYWHERE {
        let gpu = open_gpu_of(tier);
        let mut model = trained.load(&gpu, 1);
        for (prompt, want) in prompts.iter().zip(&wanted) {
            let got = continuations(&mut model, &trained.encode(&[prompt]), &GREEDY).remove(0);
            assert_eq!(got.len(), GREEDY.tokens);
            assert_eq!(got, *want, "{}, {}: {prompt}", trained.setup.name, tier.name());
        }
        together_and_alone(trained, tier);
    }
}

#[test]
fn rotated_models_write_as_the_reference() {
    let qwen = "n_kv_heads: 2, qkv_has_bias: True, use_qk_norm: True, tie_word_embeddings: True";
    for (name, keys) in [("llama", ""), ("qwen", qwen), ("window", "sliding_window: 7")] {
        writes_as_alone_and_as_the_reference(&trained_model(Setup::new(name, keys)));
    }
    let home = tempfile::tempdir().expect("a folder");
    writes_as_alone_and_as_the_reference(&trained_model_with_tokenizer(home.path()));
}

#[test]
fn latent_models_write_as_the_reference() {
    let direct = format!("{DIRECT}, sliding_window: 7");
    for setup in [dense("latent", RANKS), dense("latent, direct queries", &direct)] {
        writes_as_alone_and_as_the_reference(&trained_model(setup));
    }
}

/// Positions that are learned, and scores that fall with the distance.
#[test]
fn other_models_write_as_the_reference() {
    for setup in [
        Setup::gpt2("gpt2", ""),
        Setup::typed("BloomConfig", "bloom", "sliding_window: 17"),
        Setup::typed("Baichuan2_13BConfig", "baichuan2", "n_kv_heads: 2"),
        Setup::typed("WizardCoderConfig", "wizardcoder", ""),
        Setup::typed("PanguAlphaConfig", "pangu-alpha", ""),
        Setup::experts_of("GPT2Config", "gpt2 with experts", "expert_num: 4, capacity_factor: 0.9", ""),
        Setup::experts_of("PanguAlphaConfig", "pangu-alpha with experts", EXPERTS, ""),
        Setup::experts_of("BloomConfig", "bloom with experts", EXPERTS, ""),
    ] {
        writes_as_alone_and_as_the_reference(&trained_model(setup));
    }
}

#[test]
fn four_at_once_write_in_16_bits_what_each_writes_alone() {
    let half = trained_model(Setup::new("half", "n_kv_heads: 2, compute_dtype: bfloat16"));
    Tier::EVERYWHERE.into_iter().for_each(|tier| together_and_alone(&half, tier));
}

fn together_and_alone(trained: &FolderRun, tier: Tier) {
    let gpu = open_gpu_of(tier);
    let prompts = trained.encode(&["the mill", "a", "stones that grind slowly", "water "]);
    let [mut of_four, mut of_one] = [4, 1].map(|batch| trained.load(&gpu, batch));
    // More tokens than a window of 24, so that the caches are refilled on the way.
    let greedy = GenerationSettings { tokens: 30, ..GREEDY };
    let drawn = GenerationSettings {
        sampling: Sampling { temperature: 0.7, top_k: 20, ..Sampling::default() },
        ..greedy.clone()
    };
    // What is greedy is compared with the reference above, one text at a time.
    for settings in [drawn].into_iter().chain(is_long().then_some(greedy)) {
        let together = continuations(&mut of_four, &prompts, &settings);
        for (number, prompt) in prompts.iter().enumerate() {
            // The seed of a text is the batch's plus its index, so alone it is drawn with that sum.
            let alone = GenerationSettings { seed: settings.seed + number as u64, ..settings.clone() };
            let alone = continuations(&mut of_one, std::slice::from_ref(prompt), &alone).remove(0);
            assert_eq!(together[number], alone, "{}, {}: prompt {number}", trained.setup.name, tier.name());
        }
    }
}

/// In a window of 64 a context of up to two tokens is read token by token; the shorter one reads its first token twice.
#[test]
fn short_prompts_are_read_token_by_token() {
    let trained = trained_model(Setup::new("short", "").with(&["--model.model_config.seq_length=64"]));
    let prompts = ["a", "th"];
    let wanted = prompts.map(|prompt| by_reference(&trained, prompt));
    for tier in Tier::EVERYWHERE {
        assert_eq!(trained.generate(&open_gpu_of(tier), &prompts, &GREEDY), wanted, "{}", tier.name());
    }
}

/// Turns of a conversation in a window of 128, in which up to four tokens are read by steps: a message behind the last
/// answer, an answer that is encoded otherwise at its end, one that is forgotten, the same prompt again, a text that
/// outgrows the window, one behind that, and another text.
#[test]
fn a_conversation_writes_what_each_turn_writes_without_a_cache() {
    for setup in [Setup::new("talk", ""), dense("talk, latent", RANKS)] {
        let trained = trained_model(setup.with(&["--model.model_config.seq_length=128"]));
        for tier in Tier::EVERYWHERE {
            let gpu = open_gpu_of(tier);
            let mut kept = trained.load(&gpu, 2);
            let mut prompts = trained.encode(&["the mill", "water "]);
            let other = trained.encode(&["stones", "a miller is"]);
            for turn in 0..7 {
                let settings = GenerationSettings { tokens: if turn == 4 { 130 } else { 20 }, ..GREEDY };
                let got = continuations(&mut kept, &prompts, &settings);
                let want = continuations(&mut trained.load(&gpu, 2), &prompts, &settings);
                assert_eq!(got, want, "{}, {}: turn {turn}", trained.setup.name, tier.name());
                for ((prompt, answer), other) in prompts.iter_mut().zip(got).zip(&other) {
                    match turn {
                        1 => prompt.extend([&answer[..answer.len() - 1], &other[..2]].concat()),
                        2 => prompt.truncate(prompt.len() - 3),
                        3 => {}
                        5 => prompt.clone_from(other),
                        _ => prompt.extend(answer.iter().chain(&other[..1])),
                    }
                }
            }
        }
    }
}

/// Each step is a submission. In a window of 512 up to 16 tokens are read by steps.
#[test]
fn a_second_turn_reads_what_is_new_alone() {
    let overrides = ["--model.model_config.seq_length=512", "--runner_config.batch_size=1"];
    let trained = trained_model(Setup::new("second", "").with(&overrides));
    let gpu = trained.setup.gpu();
    let mut model = trained.load(&gpu, 1);
    let [first, other] = ["mill", "stones"].map(|text| trained.encode(&[text]));
    let short = GenerationSettings { tokens: 8, ..GREEDY };
    let answer = continuations(&mut model, &first, &short).remove(0);
    let second = [[&first[0][..], &answer, b" a".map(u32::from).as_slice()].concat()];
    let mut counted = || {
        let before = gpu.submissions();
        let text = continuations(&mut model, &second, &short);
        let submissions = gpu.submissions() - before;
        continuations(&mut model, &other, &short); // nothing of the conversation is cached any more
        (text, submissions)
    };
    let ((text, reused), (fresh, all)) = (counted(), counted());
    assert_eq!(text, fresh);
    // The last token of the answer was not read yet.
    assert_eq!(all - reused, 4 + 8 - 1, "{reused} submissions instead of {all}");
}

#[test]
fn a_text_ends_where_it_is_told_to() {
    let trained = trained_model(Setup::new("ends", ""));
    let gpu = trained.setup.gpu();
    let whole = trained.generate(&gpu, &["the mill"], &GREEDY).remove(0);
    let stop = whole[5];
    let first = whole.iter().position(|token| *token == stop).expect("the sixth token");
    let ended =
        trained.generate(&gpu, &["the mill"], &GenerationSettings { stops: vec![stop], ..GREEDY }).remove(0);
    assert_eq!(ended, whole[..=first]);
    assert!(
        trained
            .generate(&gpu, &["the mill"], &GenerationSettings { tokens: 0, ..GREEDY })
            .remove(0)
            .is_empty()
    );
}
