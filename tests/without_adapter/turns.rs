//! Turns of loops: no invocation of a kernel takes more than the driver of its tier allows
//! ([`Capabilities::most_turns`]), at the largest vocabularies, contexts, widths and numbers of experts and parameters
//! that a run may have. A driver ends longer loops without an error. With `GRISTMILL_LONG` whole models are recorded too,
//! and attention, decoding, draws and norms for adapters with other lanes; that takes a minute more.
//!
//! Kernels are interpreted as recorded, with the params of their dispatches. Numbers that they load from tensors are
//! taken to be all zero, all as large as the number of tokens, and zero in the first element only.

use crate::configuration::plan;
use gristmill::element::Element::{F32, U32};
use gristmill::kernels::{Capabilities, Limits, compose, unroll};
use gristmill::ops::attention::{Attention, AttentionTensors, attention, attention_backward};
use gristmill::ops::decode::{Decode, DecodeTensors, decode};
use gristmill::ops::draw::{DRAWS, DrawTensors, SamplingState, draw};
use gristmill::ops::grad_norm::{StepRules, StepTensors, grad_norm};
use gristmill::ops::heads::HeadLayout;
use gristmill::ops::step_state::{LossState, StepState};
use gristmill::record::{Dispatch, Recorder, State};
use gristmill::train::recordings::Recordings;
use interpreter::{Fill, turns};
use std::collections::HashSet;

/// Tokens of the longest micro-batch of the software tier, which the trainer checks.
const TOKENS: u32 = 52_412;

#[test]
fn no_loop_takes_more_turns_than_its_driver_allows() {
    // With room for the widest matrices of layers; a head of so many tokens is in parts.
    let limits = Limits { binding_bytes: 2 << 30, buffer_bytes: 2 << 30 };
    let software = Capabilities { limits, ..Capabilities::software() };
    let others = [
        software.with_lanes(4),
        software.with_lanes(16),
        Capabilities { gathers: true, ..software },
        Capabilities { lanes: 1, ..software },
    ];
    let is_long = std::env::var_os("GRISTMILL_LONG").is_some();
    let adapters = std::iter::once(software).chain(others.into_iter().filter(|_| is_long));
    let mut checked = HashSet::new();
    for capabilities in adapters {
        let most = capabilities.most_turns();
        let mut dispatches = of_heads(capabilities);
        if is_long && capabilities == software {
            dispatches.extend(of_models(capabilities));
        }
        dispatches.extend(of_many_parameters(capabilities));
        for dispatch in dispatches {
            if checked.insert((dispatch.kernel.clone(), dispatch.params.clone())) {
                let (turns, kernel) = (turns_of(&dispatch), &dispatch.kernel);
                assert!(turns <= most, "{kernel} {}: {turns} turns, at most {most}", dispatch.path);
            }
        }
    }
    println!("{} dispatches", checked.len());
}

/// A loop of loops, each with a last turn that leaves it, and one that a driver unrolls.
#[test]
fn turns_are_counted_over_all_loops() {
    let wgsl = "
        struct Params { rows: u32, cols: u32 }
        @group(0) @binding(0) var<uniform> params: Params;
        @group(0) @binding(1) var<storage, read_write> y: array<f32>;
        @compute @workgroup_size(1)
        fn main(@builtin(local_invocation_index) lane: u32) {
            var sums: array<f32, 4>;
            for (var row = lane; row < params.rows; row++) {
                for (var i = 0u; i < 4u; i++) { sums[i] += y[row + i]; }
                for (var column = 0u; column < params.cols; column += 2u) {
                    if (y[column] > 1.0) { break; }
                    sums[0] += y[column];
                }
            }
            y[0] = sums[0] + sums[3];
        }";
    let mut module = naga::front::wgsl::parse_str(wgsl).expect("WGSL");
    unroll(&mut module);
    let params: Vec<u8> = [7u32, 9].iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(turns(&module, "main", &params, Fill::All(0)), 7 + 1 + 7 * (5 + 1));
}

/// What runs of large models dispatch, each kernel once for the same params: one with a vocabulary and layers as large
/// as any, one with a context and micro-batch as long as any, and one of as many experts.
fn of_models(capabilities: Capabilities) -> Vec<Dispatch> {
    let of = |model: &str, rest: &str| {
        let yaml = format!(
            "model: {{ model_config: {{ {model}, num_layers: 1, head_dim: 8 }} }}\n\
             train_dataset: {{ data_loader: {{ type: CargoRegistryDataLoader }} }}\n\
             lr_schedule: {{ learning_rate: 1.0e-3 }}\n{rest}\n"
        );
        let plan = plan(&yaml, &[]).unwrap_or_else(|e| panic!("{e}"));
        let recordings = Recordings::new(&plan, capabilities, 10).unwrap_or_else(|e| panic!("{e}"));
        let mut seen = HashSet::new();
        let dispatches = recordings.all().into_iter().flat_map(|recording| recording.dispatches.clone());
        dispatches.filter(|of| seen.insert((of.kernel.clone(), of.params.clone()))).collect::<Vec<_>>()
    };
    let wide = "vocab_size: 262144, hidden_size: 8192, intermediate_size: 28672, num_heads: 8, n_kv_heads: 2, seq_length: 32";
    let long = format!(
        "vocab_size: 300, hidden_size: 32, intermediate_size: 64, num_heads: 8, n_kv_heads: 1, seq_length: {TOKENS}"
    );
    let experts = "moe_config: { expert_num: 512, num_experts_chosen: 8, use_gmm: True }";
    [
        of(wide, "optimizer: { type: Muon }\nsample: { prompt: a, tokens: 1 }"),
        of(&long, "sample: { prompt: a, tokens: 1 }"),
        of(&long, experts),
    ]
    .concat()
}

/// Attention of 48 heads over one, and of 7 over long sequences; decoding with a cache, and draws.
fn of_heads(capabilities: Capabilities) -> Vec<Dispatch> {
    let mut rec = Recorder::new("heads", capabilities);
    for (heads, tokens, is_causal) in
        [(48, 8192, true), (7, 37_440, false), (7, 43_000, false), (7, TOKENS, false)]
    {
        let layout = HeadLayout { heads, kv_heads: 1, head_dim: 4, value_dim: 4 };
        let shape = Attention {
            layout,
            tokens,
            is_causal,
            scale: 1.0,
            soft_cap: None,
            window: None,
            has_alibi: false,
            head_range: None,
            dropout: None,
        };
        let mut tensor = |cols| rec.tensor("x", tokens, cols, F32);
        let [qkv, dqkv] = [layout.cols(); 2].map(&mut tensor);
        let [out, dout] = [layout.out_cols(); 2].map(&mut tensor);
        let lse = tensor(heads);
        let tensors = AttentionTensors::new(qkv, out, lse);
        attention(&mut rec, &tensors, &shape);
        attention_backward(&mut rec, &tensors, dout, dqkv, &shape);
    }
    for (head_dim, tokens) in [(128, 4096), (128, TOKENS), (64, 131_072), (4, 131_072)] {
        let layout = HeadLayout { heads: 1, kv_heads: 1, head_dim, value_dim: head_dim };
        let shape = Decode { layout, tokens, scale: 1.0, soft_cap: None, window: None, has_alibi: false };
        let [qkv, out] = [layout.cols(), layout.out_cols()].map(|cols| rec.tensor("x", 1, cols, F32));
        let cache = rec.tensor("cache", tokens, shape.cache_cols(), F32);
        let positions = rec.tensor("positions", 1, 1, U32);
        decode(&mut rec, &DecodeTensors { qkv, positions, cache, rope: None, sinks: None, out }, &shape);
    }
    for vocab in [6_000, 50_257, 151_936, 262_144] {
        let mut words = |cols| rec.tensor("words", 1, cols, U32);
        let tensors = DrawTensors {
            sequences: words(4),
            seen: words(DrawTensors::seen_words(vocab)),
            token: words(1),
            position: words(1),
            drawn: words(DRAWS),
            sampling: words(SamplingState::WORDS),
            logits: rec.tensor("logits", 1, vocab, F32),
        };
        draw(&mut rec, &tensors, None);
    }
    rec.finish().dispatches
}

/// The norm of the gradients of 4 and of 70 billion parameters: the first and the last dispatch.
fn of_many_parameters(capabilities: Capabilities) -> Vec<Dispatch> {
    let of = |billions: u32| {
        let mut rec = Recorder::new("many parameters", capabilities);
        let gradients: Vec<_> =
            (0..32 * billions).map(|_| rec.tensor("gradients", 1, 1 << 25, F32)).collect();
        let [state, loss] =
            [StepState::WORDS, LossState::WORDS].map(|cols| rec.tensor("state", 1, cols, U32));
        let schedule = rec.tensor("schedule", 10, 4, F32);
        let rules = StepRules { max_norm: Some(1.0), ..StepRules::default() };
        grad_norm(&mut rec, &gradients, &StepTensors { state, loss, schedule }, &rules);
        let mut dispatches = rec.finish().dispatches;
        [dispatches.remove(0), dispatches.pop().expect("a last one")]
    };
    [of(4), of(70)].concat()
}

/// The most turns of an invocation of the first workgroup: under a causal mask it has the longest walk.
fn turns_of(dispatch: &Dispatch) -> u64 {
    let mut module = compose(&dispatch.kernel).unwrap_or_else(|e| panic!("{e}")).module;
    unroll(&mut module);
    let reads_numbers = dispatch.bindings.iter().any(|binding| binding.element == U32);
    let fills = [Fill::All(0), Fill::All(TOKENS), Fill::AllButFirst(TOKENS)];
    let fills = if reads_numbers { &fills[..] } else { &fills[..1] };
    let turns = |fill: &Fill| turns(&module, dispatch.kernel.entry, &dispatch.params, *fill);
    fills.iter().map(turns).max().unwrap_or(0)
}
