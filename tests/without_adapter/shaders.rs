//! Every shader variant that a run can ask for: it composes, naga validates it, and its bindings and its params struct
//! are those of Rust. Each is composed once, for all that is checked of it.
//!
//! No shader reads the size of its grid, which DX12 does not provide in indirect dispatches.

use crate::configuration::plan;
use crate::variants::{
    convolutions, delta_rules, grouped_products, head_layer_norms, heads_in_halves, learned_activations,
    of_several_ranks, other_layer_norms, permutations, preferences, products_of_few_rows,
    products_through_gelu, products_through_swiglu, quantised_products, routers, scaled_launches,
};
use crate::{finite, uniformity, writers};
use gristmill::device::lane_probe;
use gristmill::element::Element::{self, F32, U32};
use gristmill::kernels::{
    Access, Capabilities, Composed, Condition, Kernel, Matrices, Sources, Tier, Variable, compose,
};
use gristmill::ops::add::add;
use gristmill::ops::attention::{
    Attention, AttentionTensors, DocumentBounds, Sinks, attention, attention_backward,
};
use gristmill::ops::column_scale::{ColumnFactors, Terms, column_scale, column_scale_backward_weight};
use gristmill::ops::decode::{Decode, DecodeTensors, decode};
use gristmill::ops::dropout::{Dropout, DropoutState, random_words};
use gristmill::ops::heads::HeadLayout;
use gristmill::ops::l2_norm::{l2_norm, l2_norm_backward};
use gristmill::ops::loss_scale::LossScaleState;
use gristmill::ops::row_squares::{LowRankFactors, row_factors, row_norms, row_squares};
use gristmill::ops::step_state::{LossState, StepState};
use gristmill::record::{Binding, Dispatch, Field, Recorder, Recording, Scalar, State};
use gristmill::settings::OptimizerType;
use gristmill::train::recordings::Recordings;
use naga::{AddressSpace, Handle, Module, StructMember, Type, TypeInner, VectorSize};
use std::collections::{BTreeSet, HashSet};
use std::path::Path;

/// A model that uses every kernel.
const EVERYTHING: &str = "
model:
  model_config: { vocab_size: 300, hidden_size: 36, num_layers: 1, num_heads: 4, n_kv_heads: 2, head_dim: 12,
                  intermediate_size: 37, seq_length: 16, qkv_has_bias: True, use_qk_norm: True }
train_dataset: { data_loader: { type: CargoRegistryDataLoader } }
lr_schedule: { learning_rate: 1.0e-3 }
sample: { prompt: a, tokens: 1 }
";

fn everything(overrides: &[&str], capabilities: Capabilities) -> Vec<Dispatch> {
    let plan = plan(EVERYTHING, overrides).unwrap_or_else(|e| panic!("{e}"));
    let recordings = Recordings::new(&plan, capabilities, 10).expect("recordings");
    recordings.all().into_iter().flat_map(|recording| recording.dispatches.clone()).collect()
}

/// Attention within documents, with window and dropout, and the kernel that only tests use.
fn packed_documents(capabilities: Capabilities) -> Vec<Dispatch> {
    let mut rec = Recorder::new("packed documents", capabilities);
    let layout = HeadLayout { heads: 4, kv_heads: 2, head_dim: 8, value_dim: 12 };
    let element = if capabilities.tier == Tier::Matrix { Element::F16 } else { F32 }; // whose kernels differ from those of portable
    let tensor = |rec: &mut Recorder, cols| rec.tensor("x", 16, cols, element);
    let [starts, ends, words] = [16, 16, 16].map(|cols| rec.tensor("integers", 1, cols, U32));
    let state = rec.tensor("dropout state", 1, DropoutState::WORDS, U32);
    let (qkv, dqkv) = (tensor(&mut rec, layout.cols()), tensor(&mut rec, layout.cols()));
    let (out, dout) = (tensor(&mut rec, layout.out_cols()), tensor(&mut rec, layout.out_cols()));
    let [lse, logits] = [0; 2].map(|_| rec.tensor("x", 16, layout.heads, F32));
    let place = Dropout { probability: 0.1, seed: 0, site: 0, state, part: None };
    random_words(&mut rec, words, &place);
    for (window, dropout) in [(None, None), (Some(3), None), (None, Some(place)), (Some(3), Some(place))] {
        for has_alibi in [false, true] {
            let shape = Attention {
                layout,
                tokens: 16,
                is_causal: true,
                scale: 1.0,
                soft_cap: None,
                window,
                has_alibi,
                head_range: None,
                dropout,
            };
            let documents = Some(DocumentBounds { starts, ends });
            attention(
                &mut rec,
                &AttentionTensors { documents, ..AttentionTensors::new(qkv, out, lse) },
                &shape,
            );
            attention(
                &mut rec,
                &AttentionTensors { documents, logits: Some(logits), ..AttentionTensors::new(qkv, out, lse) },
                &shape,
            );
            attention_backward(
                &mut rec,
                &AttentionTensors { documents, ..AttentionTensors::new(qkv, out, lse) },
                dout,
                dqkv,
                &shape,
            );
        }
    }
    rec.finish().dispatches
}

/// Attention of so many sequences and heads that on GPUs one backward pass leaves the gradient of the queries in parts,
/// with every combination of masks; and of so few heads of keys that those of keys and values are in parts too, or
/// alone where heads are wide, and on the software tier where their loops would be too long.
fn backward_in_parts(capabilities: Capabilities) -> Vec<Dispatch> {
    let of = |[heads, kv_heads, head_dim, value_dim]: [u32; 4], tokens, masks: &[u32]| {
        let layout = HeadLayout { heads, kv_heads, head_dim, value_dim };
        masked_backward(capabilities, layout, tokens, masks)
    };
    let all: Vec<u32> = (0..17).chain([31]).collect();
    let narrow = of([24, 2, 36, 12], 2048, &[0, 15, 16, 31]);
    let wide = of([24, 1, 68, 12], 2048, &[0, 15]);
    let narrowest = of([24, 1, 12, 8], 2048, &[0, 15]); // which matrices of 8 x 8 compute, too
    let longest = of([48, 1, 12, 8], 2048, &[0, 15]);
    let dispatches = [of([48, 24, 8, 12], 256, &all), narrow, wide, narrowest, longest].concat();
    let is_gpu = capabilities.tier != Tier::Software;
    for (queries, keys) in [(true, false), (true, true), (false, true)] {
        let has = |dispatch: &Dispatch, condition| dispatch.kernel.conditions().any(|of| of == condition);
        let are_parts = |dispatch: &Dispatch| {
            (has(dispatch, Condition::Split), has(dispatch, Condition::KeyParts)) == (queries, keys)
        };
        let is_expected = is_gpu || (queries, keys) == (false, true);
        assert_eq!(
            dispatches.iter().any(are_parts),
            is_expected,
            "parts of queries {queries}, of keys {keys}"
        );
    }
    let are_by_matrices = |dispatch: &Dispatch| {
        dispatch.kernel.is_by_matrices() && dispatch.kernel.conditions().any(|of| of == Condition::KeyParts)
    };
    assert_eq!(
        dispatches.iter().any(are_by_matrices),
        capabilities.matrices.is_some(),
        "parts of keys by matrices"
    );
    dispatches
}

/// The backward pass with masks whose bits are a window, documents, dropout, ALiBi and a soft cap of the scores.
fn masked_backward(
    capabilities: Capabilities,
    layout: HeadLayout,
    tokens: u32,
    masks: &[u32],
) -> Vec<Dispatch> {
    let mut rec = Recorder::new("backward in parts", capabilities);
    const ROWS: u32 = 2048;
    let [starts, ends] = [(); 2].map(|()| rec.tensor("bounds", 1, ROWS, U32));
    let state = rec.tensor("dropout state", 1, DropoutState::WORDS, U32);
    let lse = rec.tensor("lse", ROWS, layout.heads, F32);
    for element in [F32, Element::F16, Element::Bf16] {
        let mut tensor = |cols| rec.tensor("x", ROWS, cols, element);
        let [qkv, dqkv] = [layout.cols(); 2].map(&mut tensor);
        let [out, dout] = [layout.out_cols(); 2].map(&mut tensor);
        for bits in masks {
            let [is_windowed, is_packed, is_dropping, has_alibi, is_capped] =
                [1, 2, 4, 8, 16].map(|bit| bits & bit != 0);
            let shape = Attention {
                layout,
                tokens,
                is_causal: true,
                scale: 1.0,
                soft_cap: is_capped.then_some(30.0),
                window: is_windowed.then_some(tokens - 56),
                has_alibi,
                head_range: None,
                dropout: is_dropping.then_some(Dropout {
                    probability: 0.1,
                    seed: 0,
                    site: 0,
                    state,
                    part: None,
                }),
            };
            let documents = is_packed.then_some(DocumentBounds { starts, ends });
            let tensors = AttentionTensors { documents, ..AttentionTensors::new(qkv, out, lse) };
            attention_backward(&mut rec, &tensors, dout, dqkv, &shape);
            if !is_windowed && !is_packed && !has_alibi && !is_capped {
                let shape = Attention { is_causal: false, ..shape };
                attention_backward(&mut rec, &tensors, dout, dqkv, &shape);
            }
        }
    }
    rec.finish().dispatches
}

/// The rows of a head, divided by their length.
fn unit_rows(capabilities: Capabilities) -> Vec<Dispatch> {
    let mut rec = Recorder::new("unit rows", capabilities);
    for element in [F32, Element::F16, Element::Bf16] {
        let [x, y] = [0; 2].map(|_| rec.tensor("x", 16, 12, element));
        let [dx, dy] = [0; 2].map(|_| rec.tensor("gradient", 16, 12, F32));
        l2_norm(&mut rec, x, y, 1e-5);
        l2_norm_backward(&mut rec, x, dy, dx, 1e-5);
    }
    rec.finish().dispatches
}

/// Norms of rows of all types, and columns scaled by magnitudes over them, with all terms and without.
fn magnitudes(capabilities: Capabilities) -> Vec<Dispatch> {
    let mut rec = Recorder::new("magnitudes", capabilities);
    for element in [F32, Element::F16, Element::Bf16] {
        let [a, b] = [(4, 64), (16, 3)].map(|(rows, cols)| rec.tensor("factor", rows, cols, element));
        let [squares, m, dm] = [0; 3].map(|_| rec.tensor("numbers of rows", 1, 16, F32));
        for weights in [element, Element::Nf4, Element::Int8] {
            let w = rec.tensor("w", 16, 64, weights);
            row_squares(&mut rec, w, Some(LowRankFactors { a, b, factor: 0.5 }), squares);
            if weights == element || element == F32 {
                row_squares(&mut rec, w, None, squares);
            }
        }
        row_norms(&mut rec, squares, m);
        row_factors(&mut rec, squares, m);
        let [x, y, residual] = [0; 3].map(|_| rec.tensor("x", 8, 16, element));
        let bias = rec.tensor("bias", 1, 16, element);
        for number in 0..16 {
            let is_on = |bit: u32| number >> bit & 1 == 1;
            let of = ColumnFactors { magnitudes: m, squares: is_on(0).then_some(squares) };
            let terms = Terms {
                bias: is_on(1).then_some(bias),
                factor: is_on(2).then_some(0.5),
                residual: is_on(3).then_some(residual),
            };
            column_scale(&mut rec, x, of, terms, y);
        }
        let of = ColumnFactors { magnitudes: m, squares: Some(squares) };
        column_scale_backward_weight(&mut rec, x, y, of, None, dm);
    }
    rec.finish().dispatches
}

/// Attention whose scores fall with distance, or are capped softly, or stand beside sinks, with every mask but
/// documents, and decoding.
fn other_scores(capabilities: Capabilities) -> Vec<Dispatch> {
    let mut rec = Recorder::new("other scores", capabilities);
    let layout = HeadLayout { heads: 6, kv_heads: 2, head_dim: 8, value_dim: 12 };
    let [state, positions] = [DropoutState::WORDS, 16].map(|cols| rec.tensor("integers", 1, cols, U32));
    let place = Dropout { probability: 0.1, seed: 0, site: 0, state, part: None };
    let lse = rec.tensor("lse", 16, layout.heads, F32);
    for element in [F32, Element::F16, Element::Bf16] {
        let tensor = |rec: &mut Recorder, cols| rec.tensor("x", 16, cols, element);
        let [qkv, dqkv] = [0; 2].map(|_| tensor(&mut rec, layout.cols()));
        let [out, dout] = [0; 2].map(|_| tensor(&mut rec, layout.out_cols()));
        let sinks = Sinks {
            logits: rec.tensor("sinks", 1, layout.heads, element),
            gradient: Some(rec.tensor("gradient", 1, layout.heads, F32)),
        };
        let scores = [
            (true, None, None),
            (false, Some(30.0), None),
            (true, Some(30.0), None),
            (false, None, Some(sinks)),
        ];
        let masks = [(None, None), (Some(3), None), (None, Some(place)), (Some(3), Some(place))];
        for ((has_alibi, soft_cap, sinks), (window, dropout)) in
            scores.into_iter().flat_map(|score| masks.map(|masks| (score, masks)))
        {
            let shape = Attention {
                layout,
                tokens: 16,
                is_causal: true,
                scale: 1.0,
                soft_cap,
                window,
                has_alibi,
                head_range: None,
                dropout,
            };
            let tensors = AttentionTensors { sinks, ..AttentionTensors::new(qkv, out, lse) };
            attention(&mut rec, &tensors, &shape);
            attention_backward(&mut rec, &tensors, dout, dqkv, &shape);
        }
        let whole = [8, 512].into_iter().flat_map(|tokens| scores.map(|score| (tokens, None, score)));
        let rings = [4, 512].into_iter().map(|window| (2 * window, Some(window), scores[2]));
        for (tokens, window, (has_alibi, soft_cap, sinks)) in whole.chain(rings) {
            let shape = Decode { layout, tokens, scale: 1.0, soft_cap, window, has_alibi };
            let cache = rec.tensor("cache", 16 * window.unwrap_or(tokens), shape.cache_cols(), element);
            decode(&mut rec, &DecodeTensors { qkv, positions, cache, rope: None, sinks, out }, &shape);
        }
    }
    rec.finish().dispatches
}

/// A kernel in all ways in which an adapter may convert f16, each once.
pub fn conversions(kernel: Kernel) -> impl Iterator<Item = Kernel> {
    let mut all = Vec::new();
    for (native, integers) in [(false, false), (true, false), (false, true), (true, true)] {
        let capabilities = Capabilities::portable().with_native_f16(native).with_integer_widening(integers);
        let kernel = kernel.clone().converting(capabilities);
        if !all.contains(&kernel) {
            all.push(kernel);
        }
    }
    all.into_iter()
}

/// Every variant of the tier for any GPU that a run can ask for.
pub fn portable_variants() -> Vec<Kernel> {
    let mut kernels: Vec<Kernel> =
        variants_of(&[Capabilities::portable()]).into_iter().map(|dispatch| dispatch.kernel).collect();
    let mut seen = HashSet::new();
    kernels.retain(|kernel| seen.insert(kernel.clone()));
    kernels
}

/// One dispatch of every variant that a recording can contain.
fn variants() -> Vec<Dispatch> {
    let software = Capabilities::software();
    let by_matrices = Capabilities::matrix().with_split_f32(true);
    let of_8 = by_matrices.with_matrices(Matrices { side: 8, subgroup: 32 });
    let others = [
        Capabilities { lanes: 1, ..software },
        software.with_lanes(4),
        Capabilities { gathers: true, ..software },
        software.with_lanes(16),
        Capabilities { lanes: 1, ..software.with_lanes(16) },
        Capabilities::portable(),
        by_matrices,
        of_8,
    ];
    let mut seen = HashSet::new();
    variants_of(&[&[software][..], &others].concat())
        .into_iter()
        .chain([4, 8, 16].into_iter().flat_map(|lanes| lane_probe(lanes, true).0.rec.finish().dispatches))
        .filter(|dispatch| seen.insert(dispatch.kernel.clone()))
        .collect()
}

/// What recordings for `capabilities` dispatch.
fn variants_of(capabilities: &[Capabilities]) -> Vec<Dispatch> {
    let plain = [
        "--model.model_config.use_qk_norm=False",
        "--model.model_config.qkv_has_bias=False",
        "--model.model_config.sliding_window=5",
    ];
    let tied =
        ["--model.model_config.tie_word_embeddings=True", "--model.model_config.rotary_interleaved=True"];
    let dropping = [
        "--model.model_config.attention_dropout=0.1",
        "--model.model_config.hidden_dropout=0.1",
        "--model.model_config.emb_dropout_prob=0.1",
    ];
    let gpt2 = [
        "--model.model_config={type: GPT2Config, vocab_size: 300, hidden_size: 36, num_layers: 1, num_heads: 3, \
         seq_length: 16}",
    ];
    let exact = [
        "--model.model_config={type: GPT2Config, vocab_size: 300, hidden_size: 36, num_layers: 1, num_heads: 3, \
         seq_length: 16, hidden_act: gelu_exact}",
    ];
    let fast = [
        "--model.model_config={type: GPT2Config, vocab_size: 300, hidden_size: 36, num_layers: 1, num_heads: 3, \
         seq_length: 16, hidden_act: fast_gelu}",
    ];
    let latent = [
        "--model.model_config={type: DeepseekV2Config, vocab_size: 300, hidden_size: 36, num_layers: 1, num_heads: 3, \
         seq_length: 16, q_lora_rank: 12, kv_lora_rank: 8, qk_nope_head_dim: 8, qk_rope_head_dim: 4, v_head_dim: 12}",
    ];
    let centred = [
        "--model.model_config.layernorm_zero_centered_gamma=True",
        "--model.model_config.norm_placement=both",
    ];
    let after = [
        "--model.model_config.norm_placement=after",
        "--model.model_config.qk_norm_kind=all_heads",
        "--model.model_config.residual_multiplier=0.5",
    ];
    let watched = [
        "--monitor_config={monitor_on: True, local_norm_format: log, optimizer_state_format: log, weight_state_format: log, \
         max_attention_logit_format: log}",
    ];
    let capped = [
        "--model.model_config.attn_logit_softcapping=50.0",
        "--model.model_config.final_logit_softcapping=30.0",
        "--model.model_config.sliding_window=5",
    ];
    let linear = [
        "--model.model_config.attention_output_gate=True",
        "--model.model_config.num_layers=2",
        "--model.model_config.layer_types=[linear_attention, full_attention]",
        "--model.model_config.linear_num_value_heads=4",
        "--model.model_config.linear_num_key_heads=2",
        "--model.model_config.linear_key_head_dim=8",
        "--model.model_config.linear_value_head_dim=12",
    ];
    let lfm2 = [
        "--model.model_config.type=Lfm2Config",
        "--model.model_config.num_layers=2",
        "--model.model_config.layer_types=[conv, full_attention]",
    ];
    let scaling = ["--runner_wrapper={scale_sense: {type: AdaptiveLossScaleUpdateCell}, local_norm: True}"];
    let wide =
        ["--model.model_config.head_dim=64", "--batch_size=32", "--model.model_config.hidden_size=512"];
    let halves =
        ["float16", "bfloat16"].map(|element| format!("--model.model_config.compute_dtype={element}"));
    let half_models = [&[][..], &plain, &centred, &after, &linear, &gpt2, &latent, &dropping];
    let optimizers: Vec<String> =
        OptimizerType::sections().map(|section| format!("--optimizer={{{section}}}")).collect();
    capabilities
        .iter()
        .flat_map(|&capabilities| {
            let models = [
                &[][..],
                &plain,
                &tied,
                &centred,
                &after,
                &linear,
                &lfm2,
                &gpt2,
                &exact,
                &fast,
                &latent,
                &dropping,
                &wide,
                &capped,
                &scaling,
                &watched,
            ];
            let models = models.into_iter().flat_map(move |o| everything(o, capabilities));
            let mut in_half = Vec::new();
            for (half, model) in halves.iter().flat_map(|half| half_models.map(|model| (half, model))) {
                in_half.extend(everything(&[model, &[half]].concat(), capabilities));
            }
            let rounding = [watched[0], halves[1].as_str(), "--optimizer.stochastic_rounding=True"];
            let rounded = optimizers
                .iter()
                .flat_map(move |o| everything(&[&[o.as_str()], &rounding[..]].concat(), capabilities));
            let optimizers = optimizers.iter().flat_map(move |o| everything(&[o], capabilities));
            models
                .chain(in_half)
                .chain(optimizers)
                .chain(rounded)
                .chain(packed_documents(capabilities))
                .chain(backward_in_parts(capabilities))
                .chain(other_scores(capabilities))
                .chain(unit_rows(capabilities))
                .chain(magnitudes(capabilities))
                .chain(grouped_products(capabilities))
                .chain(products_of_few_rows(capabilities))
                .chain(other_layer_norms(capabilities))
                .chain(products_through_gelu(capabilities))
                .chain(products_through_swiglu(capabilities))
                .chain(scaled_launches(capabilities))
                .chain(quantised_products(capabilities))
                .chain(of_several_ranks(capabilities))
                .chain(permutations(capabilities))
                .chain(routers(capabilities))
                .chain(convolutions(capabilities))
                .chain(preferences(capabilities))
                .chain(heads_in_halves(capabilities))
                .chain(head_layer_norms(capabilities))
                .chain(learned_activations(capabilities))
                .chain(delta_rules(capabilities))
        })
        .flat_map(|dispatch| {
            conversions(dispatch.kernel.clone()).map(move |kernel| Dispatch { kernel, ..dispatch.clone() })
        })
        .collect()
}

/// With `GRISTMILL_LONG` each variant, else those with two conditions together, an element or a value of a constant
/// that no other variant of their entry point had.
#[test]
fn every_variant_composes_and_is_written() {
    let mut variants = variants();
    if std::env::var_os("GRISTMILL_LONG").is_none() {
        let mut known = HashSet::new();
        variants.retain(|dispatch| brings_something(&dispatch.kernel, &mut known));
    }
    println!("{} variants", variants.len());
    let of_gpus: HashSet<Kernel> = portable_variants().into_iter().collect();
    let indexed = writers::Indexed::default();
    let check = |dispatch: &Dispatch| check(dispatch, of_gpus.contains(&dispatch.kernel).then_some(&indexed));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    // In turns: those of GPUs come last, and take longer.
    let of_thread = |first| variants.iter().skip(first).step_by(threads).for_each(check);
    std::thread::scope(|scope| (0..threads).for_each(|first| drop(scope.spawn(move || of_thread(first)))));
    indexed.are_all();
}

/// Whether `kernel` has something that none had of which `known` has heard, by file and entry point.
fn brings_something(kernel: &Kernel, known: &mut HashSet<(&'static str, &'static str, String)>) -> bool {
    let element = Condition::from(kernel.element);
    let conditions: Vec<_> = kernel.conditions().filter(|condition| *condition != element).collect();
    let pairs =
        conditions.iter().flat_map(|one| conditions.iter().map(move |other| format!("{one:?} {other:?}")));
    let constants = kernel.constants().iter().map(|constant| format!("{constant:?}"));
    let parts = std::iter::once(format!("{element:?}")).chain(pairs).chain(constants);
    parts.filter(|part| known.insert((kernel.file, kernel.entry, part.clone()))).count() > 0
}

fn check(dispatch: &Dispatch, of_gpus: Option<&writers::Indexed>) {
    let composed = compose(&dispatch.kernel).unwrap_or_else(|e| panic!("{e}"));
    check_bindings_and_params(dispatch, &composed);
    uniformity::check(&dispatch.kernel, &composed);
    finite::check(&dispatch.kernel, &composed);
    writers::check(&dispatch.kernel, composed, of_gpus);
}

fn check_bindings_and_params(dispatch: &Dispatch, composed: &Composed) {
    dispatch.check_names(&composed.variables).unwrap_or_else(|e| panic!("{e}"));
    for variable in composed.variables.iter().filter(|variable| variable.access != Access::Uniform) {
        let Binding { element, .. } = dispatch.binding_of(variable).unwrap_or_else(|e| panic!("{e}"));
        let holds = elements(&composed.module, variable);
        let (kernel, name) = (&dispatch.kernel, &variable.name);
        assert!(holds.contains(element), "{kernel}: `{name}` holds {holds:?}, not {element:?}");
    }
    let params = composed.module.global_variables.iter().find(|(_, g)| g.space == AddressSpace::Uniform);
    let (_, params) = params.unwrap_or_else(|| panic!("{} has no params", dispatch.kernel));
    let (fields, bytes) = struct_fields(&composed.module, params.ty);
    assert_eq!(fields, named(dispatch.fields), "{}: fields of the params struct", dispatch.kernel);
    assert_eq!(bytes as usize, dispatch.params.len(), "{}: size of the params struct", dispatch.kernel);
}

/// The storage types that a tensor bound to `variable` may have.
fn elements(module: &Module, variable: &Variable) -> &'static [Element] {
    let TypeInner::Array { base, .. } = module.types[module.global_variables[variable.handle].ty].inner
    else {
        return &[U32]; // a state struct
    };
    let base = &module.types[base];
    let pair_of = |scalar| TypeInner::Vector { size: VectorSize::Bi, scalar };
    match &base.inner {
        packed if *packed == pair_of(naga::Scalar::U32) => &[Element::F16, Element::Bf16],
        TypeInner::Scalar(naga::Scalar::U64) => &[Element::F16, Element::Bf16],
        wide if *wide == pair_of(naga::Scalar::U64) => &[F32],
        TypeInner::Vector { scalar, .. } if *scalar == naga::Scalar::F16 => &[Element::F16],
        TypeInner::Scalar(naga::Scalar::U32) => &[U32, Element::Nf4, Element::Int8],
        TypeInner::Atomic(naga::Scalar::U32) | TypeInner::Vector { scalar: naga::Scalar::U32, .. } => &[U32],
        TypeInner::Scalar(naga::Scalar::F32) | TypeInner::Vector { scalar: naga::Scalar::F32, .. } => &[F32],
        other => panic!("no tensor is bound as an array of {other:?}"),
    }
}

/// A field as (name, byte offset, type).
type Described = (String, usize, Scalar);

fn named(fields: &[Field]) -> Vec<Described> {
    fields.iter().map(|field| (field.name.to_string(), field.offset, field.scalar)).collect()
}

/// The fields of a struct in a shader, and its size in bytes.
fn struct_fields(module: &Module, ty: Handle<Type>) -> (Vec<Described>, u32) {
    let TypeInner::Struct { members, span } = &module.types[ty].inner else {
        panic!("a struct was expected, not {:?}", module.types[ty]);
    };
    let field = |member: &StructMember| {
        let scalar = match module.types[member.ty].inner {
            TypeInner::Scalar(naga::Scalar::U32) => Scalar::U32,
            TypeInner::Scalar(naga::Scalar::I32) => Scalar::I32,
            TypeInner::Scalar(naga::Scalar::F32) => Scalar::F32,
            ref other => panic!("a field of a shared struct is one 32-bit scalar, not {other:?}"),
        };
        (member.name.clone().unwrap_or_default(), member.offset as usize, scalar)
    };
    (members.iter().map(field).collect(), *span)
}

/// Compares a state struct with the one of its name in the shader of `kernel`.
fn assert_is_shared<S: State>(kernel: &Kernel) {
    let module = compose(kernel).unwrap_or_else(|e| panic!("{e}")).module;
    let is_it = |ty: &Type| ty.name.as_ref().is_some_and(|name| name.ends_with(S::NAME));
    let (ty, _) = module.types.iter().find(|(_, ty)| is_it(ty)).expect("the shader declares the struct");
    assert_eq!(struct_fields(&module, ty), (named(S::FIELDS), 4 * S::WORDS), "{}", S::NAME);
}

#[test]
fn state_structs_are_those_of_rust() {
    let finish_step =
        Kernel::new("grad_norm", "finish_step", F32).constant("LANES", 64).constant("BLOCK", 256);
    assert_is_shared::<StepState>(&finish_step);
    assert_is_shared::<LossState>(&finish_step);
    let loss_scale = Kernel::new("loss_scale", "loss_scale", F32).constant("LANES", 1);
    assert_is_shared::<StepState>(&loss_scale);
    assert_is_shared::<LossScaleState>(&loss_scale);
    assert_is_shared::<DropoutState>(&Kernel::new("dropout", "count_micro_step", F32).constant("LANES", 1));
}

/// Two tensors of one type cannot change places unnoticed, because bindings have names.
#[test]
fn wrong_names_of_bindings_are_errors() {
    let mut rec = Recorder::new("names", Capabilities::software());
    let [x, y] = [0; 2].map(|_| rec.tensor("x", 4, 8, F32));
    add(&mut rec, x, y, 1.0, false);
    let Recording { dispatches, .. } = rec.finish();
    let variables = compose(&dispatches[0].kernel).unwrap_or_else(|e| panic!("{e}")).variables;
    let mut dispatch = dispatches[0].clone();
    dispatch.bindings.reverse();
    let [_, x, y] = [0, 1, 2].map(|index| &variables[index]);
    assert_eq!(dispatch.binding_of(x).expect("x"), &dispatches[0].bindings[0], "whatever the order is");
    assert_eq!(dispatch.binding_of(y).expect("y"), &dispatches[0].bindings[1]);
    dispatch.bindings[0].variable = "z";
    let unknown = dispatch.check_names(&variables).expect_err("z is no variable").to_string();
    assert!(unknown.ends_with("binds `z`, but its tensors are x, y"), "{unknown}");
    let missing = dispatch.binding_of(y).expect_err("y is missing").to_string();
    assert!(missing.ends_with("nothing is bound to `y`"), "{missing}");
}

#[test]
fn unknown_conditions_and_missing_entry_points_are_errors() {
    let kernel = Kernel::new("rms_norm", "layer_norm", Element::F32);
    let kernel = kernel.constant("LANES", 64).constant("ROWS", 64);
    let error = compose(&kernel).err().expect("no such entry point").to_string();
    assert!(error.contains("rms_norm:layer_norm f32"), "{error}");
}

/// The embedded list equals the folder, and every file starts with a header comment.
#[test]
fn every_shader_file_is_embedded_and_has_a_header() {
    let mut files = BTreeSet::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("shaders");
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the folder of shaders") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(inside) = path.strip_prefix(&root) {
                let parts: Vec<_> =
                    inside.with_extension("").iter().map(|p| p.to_string_lossy().into_owned()).collect();
                files.insert(parts.join("/"));
            }
        }
    }
    let embedded: BTreeSet<String> = Sources::default().iter().map(|(path, _)| path).collect();
    assert_eq!(files, embedded);
    for (path, source) in Sources::default().iter() {
        assert!(source.starts_with("// "), "shaders/{path}.wgsl starts without a header");
        // DX12 does not provide it in indirect launches.
        assert!(!source.contains("num_workgroups"), "shaders/{path}.wgsl reads the size of its grid");
    }
}
