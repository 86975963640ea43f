//! Text from a trained model: cached keys and values give the tokens of the f64 reference, and a batch the tokens of
//! each prompt alone.
//!
//! The reference generates without a cache.

use crate::families::FACTORS;
use crate::latent::{DIRECT, HALVES, RANKS, dense};
use crate::runs::{
    FolderRun, GREEDY, Setup, TensorFile, Weights, continuations, in_turn, is_long, newest_checkpoint,
    open_gpu_of, read_tensors, reference_name, reference_shape, trained_model, trained_model_with_tokenizer,
};
use gristmill::infer::{GenerationSettings, InferenceModel, Sampling};
use gristmill::kernels::Tier;
use gristmill::model::selection_bias;
use reference::gpt::{Shape, logits};
use reference::objective::Memories;

/// Choices that training drops.
const EXPERTS: &str = "expert_num: 4, num_experts_chosen: 2, capacity_factor: 0.8";

/// The model of a checkpoint in f64, dropless and without a cache.
pub struct Reference {
    pub shape: Shape,
    pub weights: Weights,
    pub memories: Memories,
}

impl Reference {
    pub fn new(trained: &FolderRun) -> Self {
        let plan = trained.setup.plan();
        let (_, checkpoint) = newest_checkpoint(&trained.folder()).expect("a checkpoint");
        let tensors = read_tensors(&checkpoint.join("model.safetensors")).into_iter();
        let tensors: TensorFile = tensors.map(|(name, tensor)| (reference_name(&name), tensor)).collect();
        let mut shape = reference_shape(&plan.model);
        if let Some(mixture) = &mut shape.mixture {
            mixture.capacity = None; // generation drops nothing
        }
        shape.multi_token = None; // what predicts further does not affect the next token
        let mut memories = shape.memories();
        for (layer, memory) in &mut memories {
            if let Some(bias) = tensors.get(&selection_bias(&plan.model, *layer)) {
                memory.bias = bias.floats();
            }
        }
        let parameters = shape.parameters().into_iter();
        let weights = parameters.map(|(name, _)| (name.clone(), tensors[&name].floats())).collect();
        Self { shape, weights, memories }
    }

    /// The greedy continuation of `prompt`: the whole window is read for every token. A prompt longer than the window
    /// is cut to its last tokens; a text that outgrows the window goes on from the last half of it.
    pub fn write(&self, prompt: &[u32], window: usize) -> Vec<u32> {
        let mut text = prompt[prompt.len().saturating_sub(window)..].to_vec();
        let (prompt, mut start) = (text.len(), 0);
        for _ in 0..GREEDY.tokens {
            if text.len() - start > window {
                start = text.len() - window.div_ceil(2);
            }
            text.push(self.next(&text[start..]));
        }
        text.split_off(prompt)
    }

    /// The likeliest token after `seen`.
    fn next(&self, seen: &[u32]) -> u32 {
        let positions: Vec<u32> = (0..seen.len() as u32).collect();
        let logits = logits(&self.shape, &self.weights, &self.memories, seen, &positions, seen.len());
        let last = &logits[logits.len() - self.shape.vocab_size..];
        (0..last.len()).max_by(|&a, &b| last[a].total_cmp(&last[b])).expect("tokens") as u32
    }
}

/// What the reference writes behind `prompt`.
fn by_reference(trained: &FolderRun, prompt: &str) -> Vec<u32> {
    let window = trained.setup.plan().model.seq_length;
    Reference::new(trained).write(&trained.encode(&[prompt]).remove(0), window)
}

/// Behind a prompt within the window and one that is longer.
pub const PROMPTS: [&str; 2] = ["the mill", "stones that grind slowly grind fine, says the miller"];

/// The tokens of the reference, one text at a time, and the tokens of each text alone, four at once.
pub fn writes_as_alone_and_as_the_reference(trained: &FolderRun, tiers: &[Tier]) {
    writes_as_the_reference(trained, tiers);
    tiers.iter().for_each(|&tier| together_and_alone(trained, tier));
}

fn writes_as_the_reference(trained: &FolderRun, tiers: &[Tier]) {
    let wanted = PROMPTS.map(|prompt| by_reference(trained, prompt));
    for &tier in tiers {
        let gpu = open_gpu_of(tier);
        let mut model = trained.load(&gpu, 1);
        for (prompt, want) in PROMPTS.iter().zip(&wanted) {
            let got = continuations(&mut model, &trained.encode(&[prompt]), &GREEDY).remove(0);
            assert_eq!(got.len(), GREEDY.tokens);
            assert_eq!(got, *want, "{}, {}: {prompt}", trained.setup.name, tier.name());
        }
    }
}

/// Every model on one tier, and one in three four texts at once: how these share caches and launches depends little on
/// what layers compute.
fn write_as_the_reference(setups: impl IntoIterator<Item = Setup>) {
    for (number, setup) in setups.into_iter().enumerate() {
        let (trained, tiers) = (trained_model(setup), in_turn(number, &Tier::EVERYWHERE));
        match is_long() || number % 3 == 0 {
            true => writes_as_alone_and_as_the_reference(&trained, tiers),
            false => writes_as_the_reference(&trained, tiers),
        }
    }
}

#[test]
fn rotated_models_write_as_the_reference() {
    writes_as_alone_and_as_the_reference(&trained_model(Setup::new("llama", "")), &Tier::EVERYWHERE);
    let qwen = "n_kv_heads: 2, qkv_has_bias: True, use_qk_norm: True, tie_word_embeddings: True";
    let factors = Setup::new("factors", &format!("{FACTORS}, hidden_act: gelu_new"));
    write_as_the_reference([
        Setup::new("qwen", qwen),
        factors,
        Setup::of_shared_keys("shared keys", ""),
        Setup::of_layer_inputs("layer inputs", ""),
        Setup::mimo("mimo", ""),
    ]);
    let qk_norm = |name, kind: &str| {
        Setup::new(name, &format!("use_qk_norm: True, qk_norm_kind: {kind}, n_kv_heads: 2"))
    };
    write_as_the_reference([
        Setup::of_layers("layers", ""),
        Setup::of_growing_queries("growing queries", ""),
        Setup::of_soft_caps("soft caps", ""),
        Setup::new("zero-centred", "layernorm_zero_centered_gamma: True, use_qk_norm: True, n_kv_heads: 2"),
        Setup::new("norms after", "norm_placement: after, n_kv_heads: 2"),
        qk_norm("all heads", "all_heads, clip_qkv: 0.75"),
        qk_norm("rotated heads", "rotated_heads"),
        qk_norm("layer norms by head", "layer_norm_by_head"),
    ]);
    let layer_norm = "normalization: LayerNorm, gated_linear_unit: False";
    write_as_the_reference([
        Setup::new(
            "ungated",
            &format!("{layer_norm}, hidden_act: relu2, layernorm_zero_centered_gamma: True"),
        ),
        Setup::new(
            "one norm, xIELU",
            "parallel_residual: one_norm, n_kv_heads: 2, gated_linear_unit: False, hidden_act: xielu",
        ),
        Setup::new(
            "two norms",
            "parallel_residual: two_norms, normalization: LayerNorm, norm_has_bias: False",
        ),
        Setup::new("bias of the head, no weights of norms", "lm_head_has_bias: True, norm_has_weight: False"),
        Setup::typed("OPTConfig", "opt 350m", "norm_placement: after_sum, word_embed_proj_dim: 20"),
    ]);
    let home = tempfile::tempdir().expect("a folder");
    writes_as_alone_and_as_the_reference(
        &trained_model_with_tokenizer(home.path()),
        in_turn(0, &Tier::EVERYWHERE),
    );
}

/// States hold what was read and cannot go back: they go on with an answer whose last token was not read yet, and start
/// anew behind a text that is forgotten in part, and behind the same text.
#[test]
fn linear_attention_writes_as_the_reference() {
    let trained = trained_model(Setup::of_linear_attention("linear attention", ""));
    writes_as_alone_and_as_the_reference(&trained, &Tier::EVERYWHERE);
    goes_on_as_anew(&trained, &Tier::EVERYWHERE);
}

/// The rows that gated convolutions keep are states, too.
#[test]
fn gated_convolutions_write_as_the_reference() {
    let trained = trained_model(Setup::of_convolutions("convolutions", ""));
    writes_as_alone_and_as_the_reference(&trained, &Tier::EVERYWHERE);
    goes_on_as_anew(&trained, in_turn(1, &Tier::EVERYWHERE));
}

/// Four turns of which one goes on, one forgets its end, and one is the same again.
fn goes_on_as_anew(trained: &FolderRun, tiers: &[Tier]) {
    for &tier in tiers {
        let gpu = open_gpu_of(tier);
        let mut kept = trained.load(&gpu, 2);
        let mut prompts = trained.encode(&["the mill", "water"]);
        let settings = GenerationSettings { tokens: 4, ..GREEDY };
        for turn in 0..4 {
            let before = gpu.submissions();
            let got = continuations(&mut kept, &prompts, &settings);
            let taken = gpu.submissions() - before;
            let want = continuations(&mut trained.load(&gpu, 2), &prompts, &settings);
            assert_eq!(got, want, "{}: turn {turn}", tier.name());
            println!("{}: {taken} submissions in turn {turn}", tier.name());
            for (prompt, answer) in prompts.iter_mut().zip(&got) {
                match turn {
                    0 => prompt.extend(answer),
                    1 => prompt.truncate(prompt.len() - 1),
                    _ => {}
                }
            }
        }
    }
}

/// Layers with a window of 7 keep the last 39 tokens of a text of up to 128 in a ring, which two more layers read.
/// Token by token two texts become what passes over the whole texts write, which do not read what is kept: far beyond
/// the ring, behind texts that forget as much as a ring can spare and more, and after a text that was done has run past
/// its end. Weights are random, and tokens that have occurred are unlikely, so that each depends on many.
#[test]
fn rings_write_what_passes_over_whole_texts_write() {
    let random = ["--model.model_config.init_method_std=0.3"];
    let run = FolderRun::new(Setup::of_shared_keys("rings", "max_position_embeddings: 128").with(&random));
    run.train(1);
    let gpu = open_gpu_of(Tier::Software);
    let mut passes = run.load_for(&gpu, 1, 128);
    let mut texts = run.encode(&PROMPTS);
    let mut turns = vec![turn_by_passes(&mut passes, &mut texts, 40)];
    for (forgotten, added) in [(10, 0), (40, 0), (0, 3)] {
        for text in &mut texts {
            text.truncate(text.len() - forgotten);
            text.extend(0..added);
        }
        turns.push(turn_by_passes(&mut passes, &mut texts, 4));
    }
    // The second text ends at once; the first, which has the token already, goes on for more than the second has room.
    texts.iter_mut().for_each(|text| text.extend(10..60));
    let end = write_by_passes(&mut passes, &mut texts.clone()[1..], 1)[0][0];
    texts[0].push(end);
    let (prompts, settings, mut want) = turn_by_passes(&mut passes, &mut texts, 4);
    want[1].truncate(1);
    turns.push((prompts, GenerationSettings { tokens: 32, stops: vec![end], ..settings }, want));
    texts[1].truncate(103);
    turns.push(turn_by_passes(&mut passes, &mut texts, 4));
    for &tier in in_turn(0, &Tier::EVERYWHERE) {
        let gpu = open_gpu_of(tier);
        let mut rings = run.load_for(&gpu, 2, 128);
        for (turn, (prompts, settings, want)) in turns.iter().enumerate() {
            let got = continuations(&mut rings, prompts, settings);
            let is_wanted = got.iter().zip(want).all(|(got, want)| got.starts_with(want));
            assert!(is_wanted, "{}, turn {turn}: {got:?} instead of {want:?}", tier.name());
            assert_eq!(got[0].len(), settings.tokens);
        }
    }
}

/// Prompts, how they are continued, and by what.
type Turn = (Vec<Vec<u32>>, GenerationSettings, Vec<Vec<u32>>);

fn turn_by_passes(model: &mut InferenceModel<'_>, texts: &mut [Vec<u32>], tokens: usize) -> Turn {
    (texts.to_vec(), varied(tokens), write_by_passes(model, texts, tokens))
}

/// Extends `texts` by so many tokens, and returns these. The texts take turns, so that each token is written by a pass
/// over all of its text.
fn write_by_passes(model: &mut InferenceModel<'_>, texts: &mut [Vec<u32>], tokens: usize) -> Vec<Vec<u32>> {
    let begun: Vec<usize> = texts.iter().map(Vec::len).collect();
    for _ in 0..tokens {
        for text in &mut *texts {
            let newest = continuations(model, std::slice::from_ref(text), &varied(1)).remove(0);
            text.extend(newest);
        }
    }
    texts.iter().zip(begun).map(|(text, begun)| text[begun..].to_vec()).collect()
}

/// The likeliest tokens, but those that have not occurred yet rather than others.
fn varied(tokens: usize) -> GenerationSettings {
    let sampling = Sampling { repetition_penalty: 1.5, ..Sampling::GREEDY };
    GenerationSettings { tokens, sampling, ..GREEDY }
}

#[test]
fn latent_models_write_as_the_reference() {
    let direct = format!("{DIRECT}, sliding_window: 7");
    write_as_the_reference([dense("latent", HALVES), dense("latent, direct queries", &direct)]);
}

/// Positions that are learned, and scores that fall with the distance. Each part is in one of the first two; the other
/// models write with `GRISTMILL_LONG`.
#[test]
fn other_models_write_as_the_reference() {
    let setups = [
        Setup::typed("BloomConfig", "bloom", "sliding_window: 17"),
        Setup::experts_of("PanguAlphaConfig", "pangu-alpha with experts", EXPERTS, ""),
        Setup::typed("Baichuan2_13BConfig", "baichuan2", "n_kv_heads: 2"),
        Setup::experts_of("GPT2Config", "gpt2 with experts", "expert_num: 4, capacity_factor: 0.9", ""),
        Setup::gpt2("gpt2", ""),
        Setup::experts_of("BloomConfig", "bloom with experts", EXPERTS, ""),
        Setup::typed("PanguAlphaConfig", "pangu-alpha", ""),
        Setup::typed("WizardCoderConfig", "wizardcoder", ""),
    ];
    write_as_the_reference(setups.into_iter().take(if is_long() { 8 } else { 2 }));
}

/// On the kernels of software adapters with `GRISTMILL_LONG`.
#[test]
#[ignore = "long; others write several at once in f32"]
fn four_at_once_write_in_16_bits_what_each_writes_alone() {
    let half = trained_model(Setup::new("half", "n_kv_heads: 2, compute_dtype: bfloat16"));
    in_turn(1, &Tier::EVERYWHERE).iter().for_each(|tier| together_and_alone(&half, *tier));
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
        let every = if is_long() { 1 } else { 2 };
        for (number, prompt) in prompts.iter().enumerate().step_by(every) {
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
    let long = ["--model.model_config.seq_length=64", "--runner_config.batch_size=1"];
    let trained = trained_model(Setup::new("short", "").with(&long));
    let prompts = ["a", "th"];
    let wanted = prompts.map(|prompt| by_reference(&trained, prompt));
    for tier in Tier::EVERYWHERE {
        assert_eq!(trained.generate(&open_gpu_of(tier), &prompts, &GREEDY), wanted, "{}", tier.name());
    }
}

/// Turns of a conversation in a window of 128, in which texts of up to 64 tokens are read in half of it, and up to two
/// tokens of such a text, or four of a longer one, by steps: a message behind the last answer, an answer that is encoded
/// otherwise at its end, one that is forgotten, the same prompt again, a text that outgrows the window, one behind that,
/// and another text.
#[test]
#[ignore = "long; `a_second_turn_reads_what_is_new_alone` has one turn"]
fn a_conversation_writes_what_each_turn_writes_without_a_cache() {
    let linear = Setup::of_linear_attention("talk, linear", "");
    let setups = [Setup::new("talk", ""), dense("talk, latent", RANKS), linear];
    for (number, setup) in setups.into_iter().enumerate() {
        let long = ["--model.model_config.seq_length=128", "--runner_config.batch_size=1"];
        let trained = trained_model(setup.with(&long));
        for &tier in in_turn(1 + number, &Tier::EVERYWHERE) {
            let gpu = open_gpu_of(tier);
            let mut kept = trained.load(&gpu, 2);
            let mut prompts = trained.encode(&["the mill", "water "]);
            let other = trained.encode(&["stones", "a miller is"]);
            for turn in 0..7 {
                let settings = GenerationSettings { tokens: if turn == 4 { 120 } else { 10 }, ..GREEDY };
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

/// Each step that reads is a submission, and so is a pass. In one over 128 tokens, an eighth of the window, up to 4 are
/// read by steps. One token is written: how many more share a submission depends on how long they take.
#[test]
fn a_second_turn_reads_what_is_new_alone() {
    let overrides = ["--model.model_config.seq_length=512", "--runner_config.batch_size=1"];
    let trained = trained_model(Setup::new("second", "").with(&overrides));
    let gpu = trained.setup.gpu();
    let mut model = trained.load(&gpu, 1);
    let [first, other] = [PROMPTS[1].repeat(2).as_str(), "stones"].map(|text| trained.encode(&[text]));
    let short = GenerationSettings { tokens: 8, ..GREEDY };
    let answer = continuations(&mut model, &first, &short).remove(0);
    let second = [[&first[0][..], &answer, b" a".map(u32::from).as_slice()].concat()];
    let mut counted = || {
        let before = gpu.submissions();
        let text = continuations(&mut model, &second, &GenerationSettings { tokens: 1, ..GREEDY });
        let submissions = gpu.submissions() - before;
        continuations(&mut model, &other, &short); // nothing of the conversation is cached any more
        (text, submissions)
    };
    let ((text, reused), (fresh, all)) = (counted(), counted());
    assert_eq!(text, fresh);
    // The last token of the answer was not read yet.
    assert_eq!(reused - all, 3 - 1, "{reused} submissions instead of {all}");
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
