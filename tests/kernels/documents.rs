//! A model gives packed documents the hidden states and parameter gradients that it gives each of them alone, with and
//! without a sliding window.

use crate::lab::{Case, check_tier, order_by_id};
use crate::packed::document_bounds;
use gristmill::element::Element::F32;
use gristmill::kernels::Tier;
use gristmill::model::config::{LayerConfig, ModelConfig, Sizes};
use gristmill::model::parameters::Gpt;
use gristmill::model::{BatchTensors, ForwardContext, Mode, ModelBuffers};
use gristmill::ops::add::add;
use gristmill::ops::attention::DocumentBounds;
use gristmill::record::Tensor;
use gristmill::tape::{Parameter, Tape};
use std::cell::RefCell;
use std::rc::Rc;

/// Longer and shorter than the kernels' tiles, and a single token.
const DOCUMENTS: [u32; 4] = [10, 1, 37, 16];
const TOKENS: u32 = 64;

/// Difference allowed between packed and separate documents, relative to a value plus its tensor's root mean square.
const ALLOWED: f64 = 1e-5;

fn config(seq_length: u32, sliding_window: Option<usize>) -> ModelConfig {
    let llama = ModelConfig::llama(Sizes {
        vocab_size: 29,
        hidden_size: 24,
        num_layers: 2,
        num_heads: 4,
        intermediate_size: 20,
        seq_length: seq_length as usize,
    });
    let layer = LayerConfig {
        num_kv_heads: 2,
        head_dim: 12,
        rotary_dim: 8,
        rope_theta: 100.0,
        sliding_window,
        ..llama.layer
    };
    ModelConfig { layer, tie_word_embeddings: true, qk_norm: true, init_std: 0.3, ..llama }
}

/// A model whose parameters have these values and gradients of zero, and the gradients by path.
fn parameters(case: &mut Case, values: &[Vec<f64>]) -> (Gpt<Parameter>, Vec<(String, Tensor)>) {
    let (mut values, mut gradients) = (values.iter(), Vec::new());
    let gpt = Gpt::declare(&config(TOKENS, None), &mut |spec| {
        let (rows, cols) = (spec.rows as u32, spec.cols as u32);
        let weight = case.input_of(values.next().expect("values of every parameter"), rows, cols, F32);
        let gradient = case.input_of(&vec![0.0; spec.count()], rows, cols, F32);
        gradients.push((spec.path, gradient.tensor));
        Parameter { weight: vec![weight.tensor], gradient: Some(vec![gradient.tensor]) }
    });
    (gpt, gradients)
}

/// Records one sequence, forward, and backward from `dy`; returns the hidden states.
fn run(
    case: &mut Case,
    gpt: &Gpt<Parameter>,
    config: &ModelConfig,
    ids: &[u32],
    documents: &[u32],
    dy: &[f64],
) -> Tensor {
    let buffers = case.persistent(
        |persistents| ModelBuffers::new(config, ids.len() as u32, persistents),
        |buffers| buffers.rotary_tables(config).remove(0),
    );
    let positions: Vec<u32> = documents.iter().flat_map(|length| 0..*length).collect();
    let [tokens, positions, order] = [ids, &positions, &order_by_id(ids)].map(|ids| case.integers(ids));
    let [starts, ends] = document_bounds(documents).map(|bounds| case.integers(&bounds));
    let bounds = DocumentBounds { starts, ends };
    let batch = BatchTensors {
        tokens,
        targets: tokens,
        positions,
        order,
        position_order: None,
        ahead: None,
        documents: (documents.len() > 1).then_some(bounds),
    };
    let dy = case.input_of(dy, ids.len() as u32, config.hidden_size as u32, F32).tensor;
    // The pool reuses its memory within a recording, so the states are copied to an output of their own.
    let states = case.output(ids.len() as u32, config.hidden_size as u32, F32);
    let mut tape = Tape::new(&mut case.rec);
    let h = gpt.hidden(
        &mut tape,
        &ForwardContext {
            config,
            buffers,
            batch,
            expert_ranks: None,
            matrix_ranks: None,
            mode: Mode::Evaluation,
        },
    );
    add(tape.rec, h.tensor, states, 1.0, false);
    tape.give(h, dy);
    tape.backward();
    states
}

#[test]
fn packed_documents_are_separate_ones() {
    // llvmpipe takes half a minute to compile both on both.
    for (tier, window) in [(Tier::Software, None), (Tier::Portable, Some(5))] {
        let name = format!("packed documents, window {window:?}");
        check_tier(&name, tier, &|case| packed_and_separate(case, window));
    }
}

fn packed_and_separate(case: &mut Case, window: Option<usize>) {
    let packed_config = config(TOKENS, window);
    let width = packed_config.hidden_size;
    let specs = Gpt::describe(&packed_config);
    let values: Vec<Vec<f64>> =
        specs.iter().map(|spec| (0..spec.count()).map(|_| 0.3 * case.normal()).collect()).collect();
    let ids = case.ids_below(TOKENS as usize, 29);
    let dy: Vec<f64> = (0..TOKENS as usize * width).map(|_| case.normal()).collect();

    let (packed, packed_gradients) = parameters(case, &values);
    let whole = run(case, &packed, &packed_config, &ids, &DOCUMENTS, &dy);
    let (separate, separate_gradients) = parameters(case, &values);
    let mut first = 0;
    let parts: Vec<Tensor> = DOCUMENTS
        .iter()
        .map(|&length| {
            let (from, to) = (first, first + length as usize);
            first = to;
            let config = config(length, window);
            run(case, &separate, &config, &ids[from..to], &[length], &dy[from * width..to * width])
        })
        .collect();

    expect_same(case, "hidden states", &[whole], &parts);
    for ((path, packed), (_, separate)) in packed_gradients.iter().zip(&separate_gradients) {
        expect_same(case, path, &[*packed], &[*separate]);
    }
}

/// Expects the rows of `got` and of `want`, one tensor after the other, to hold the same numbers.
fn expect_same(case: &mut Case, label: &str, got: &[Tensor], want: &[Tensor]) {
    let read: Rc<RefCell<Vec<f32>>> = Rc::default();
    for tensor in got {
        let read = read.clone();
        case.expect_words(label, *tensor, move |words| {
            read.borrow_mut().extend(words.iter().map(|word| f32::from_bits(*word)));
        });
    }
    for (i, tensor) in want.iter().enumerate() {
        let (read, label, is_last) = (read.clone(), label.to_string(), i + 1 == want.len());
        case.expect_words(&label.clone(), *tensor, move |words| {
            let want: Vec<f64> = words.iter().map(|word| f64::from(f32::from_bits(*word))).collect();
            let got: Vec<f32> = read.borrow_mut().drain(..want.len()).collect();
            let rms = (want.iter().map(|w| w * w).sum::<f64>() / want.len() as f64).sqrt();
            assert!(rms > 0.0, "{label}: nothing to compare");
            let error = |(g, w): (&f32, &f64)| (f64::from(*g) - w).abs() / (w.abs() + rms);
            let worst = got.iter().zip(&want).map(error).fold(0.0, f64::max);
            println!("{label}: {:.1} % of the allowed difference", 100.0 * worst / ALLOWED);
            assert!(worst <= ALLOWED, "{label} {i}: packed and separate documents differ by {worst:.1e}");
            assert!(!is_last || read.borrow().is_empty(), "{label}: rows are left over");
        });
    }
}
