//! The gated delta rule against the f64 reference, which is the recurrence token by token.

use crate::lab::{Case, allowed, check, takes_all};
use ::reference::gated_delta_rule as reference;
use gristmill::element::Element::{self, Bf16, F16, F32};
use gristmill::kernels::Capabilities;
use gristmill::ops::attention::DocumentBounds;
use gristmill::ops::gated_delta_rule::{
    CHUNK, DeltaInputs, GatedDeltaRule, gate_cols, gated_delta_rule, gated_delta_rule_backward,
    gated_delta_rule_step,
};
use gristmill::record::Recorder;

#[derive(Clone, Copy)]
struct Shape {
    sequences: u32,
    tokens: u32,
    heads: u32,
    key_heads: u32,
    key_dim: u32,
    value_dim: u32,
    /// The first token of each document of a sequence.
    documents: Option<&'static [u32]>,
    /// The logarithm of the decay, from a random number and the token.
    log_decay: fn(f64, u32) -> f64,
    /// The strength of the write, likewise.
    beta: fn(f64, u32) -> f64,
    /// The largest binding, if sequences are to be computed in segments, or heads in parts.
    binding_bytes: Option<u64>,
}

fn usual(x: f64, _: u32) -> f64 {
    -0.3 * x * x
}

fn sigmoid(x: f64, _: u32) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

const PLAIN: Shape = Shape {
    sequences: 2,
    tokens: 7,
    heads: 4,
    key_heads: 2,
    key_dim: 8,
    value_dim: 12,
    documents: None,
    log_decay: usual,
    beta: sigmoid,
    binding_bytes: None,
};

const SHAPES: [Shape; 9] = [
    Shape { sequences: 1, tokens: 67, heads: 2, key_heads: 1, documents: Some(&[0, 1, 65]), ..PLAIN },
    PLAIN,
    // Chunks, some of which start a document or are cut by several, and blocks of columns of keys and of values.
    Shape {
        sequences: 1,
        tokens: 133,
        heads: 3,
        key_heads: 3,
        key_dim: 20,
        value_dim: 8,
        documents: Some(&[0, 1, 64, 66, 130]),
        ..PLAIN
    },
    Shape { sequences: 1, tokens: 70, heads: 2, key_heads: 1, key_dim: 68, value_dim: 72, ..PLAIN },
    // Nothing decays, and what a key holds is replaced.
    Shape { tokens: 66, log_decay: |_, _| 0.0, beta: |_, _| 1.0, ..PLAIN },
    // Almost everything is forgotten, at once or after some tokens, and some tokens write nothing.
    Shape { tokens: 65, log_decay: |_, _| -20.0, ..PLAIN },
    Shape {
        tokens: 129,
        sequences: 1,
        log_decay: |x, token| if token % 5 == 1 { -20.0 } else { usual(x, token) },
        beta: |_, token| f64::from(token % 3 % 2),
        ..PLAIN
    },
    Shape { tokens: 65, binding_bytes: Some(384 << 10), ..PLAIN },
    // Three segments of four chunks and one of two tokens, or four parts of the heads. A document starts with the second.
    Shape {
        sequences: 1,
        tokens: 770,
        key_heads: 4,
        documents: Some(&[0, 200, 256, 700]),
        binding_bytes: Some(700 << 10),
        ..PLAIN
    },
];

/// The tensors of a case, and the same for the reference.
struct Made {
    shape: GatedDeltaRule,
    inputs: DeltaInputs,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    log_decay: Vec<f64>,
    beta: Vec<f64>,
    starts: Option<Vec<usize>>,
}

impl Shape {
    fn make(&self, case: &mut Case, element: Element) -> Made {
        let Shape { sequences, tokens, heads, key_heads, key_dim, value_dim, .. } = *self;
        let rows = sequences * tokens;
        let unit = |case: &mut Case| -> Vec<f64> {
            let values: Vec<f64> = (0..key_dim).map(|_| case.normal()).collect();
            let length = values.iter().map(|value| value * value).sum::<f64>().sqrt();
            values.into_iter().map(|value| value / length).collect()
        };
        let columns = 2 * key_heads * key_dim;
        let qk: Vec<f64> = (0..rows * 2 * key_heads).flat_map(|_| unit(case)).collect();
        let qk = case.input_of(&qk, rows, columns, element);
        let wide = case.input(rows, heads * value_dim + 8, element);
        let half = gate_cols(heads) / 2;
        let gate = |case: &mut Case, i: u32| {
            let (token, column) = (i / (2 * half) % tokens, i % (2 * half));
            let of = if column < half { self.log_decay } else { self.beta };
            if column % half < heads { of(case.normal(), token) } else { 0.0 }
        };
        let gates: Vec<f64> = (0..rows * 2 * half).map(|i| gate(case, i)).collect();
        let gates = case.input_of(&gates, rows, 2 * half, F32);
        let [log_decay, beta] = [0, half].map(|first| part(&gates.values, 2 * half, first, heads));
        let starts = self.documents.map(|first| {
            let start = |t: u32| first.iter().copied().filter(|first| *first <= t).max().expect("a document");
            (0..rows).map(|row| start(row % tokens)).collect::<Vec<u32>>()
        });
        let documents = starts.as_ref().map(|starts| {
            let starts = case.integers(starts);
            DocumentBounds { starts, ends: starts }
        });
        let inputs =
            DeltaInputs { qk: qk.tensor, v: wide.tensor.columns(4, heads * value_dim), gates: gates.tensor };
        let scale = 1.0 / f64::from(key_dim).sqrt();
        let shape =
            GatedDeltaRule { tokens, heads, key_heads, key_dim, value_dim, scale: scale as f32, documents };
        Made {
            shape,
            inputs,
            q: part(&qk.values, columns, 0, columns / 2),
            k: part(&qk.values, columns, columns / 2, columns / 2),
            v: part(&wide.values, heads * value_dim + 8, 4, heads * value_dim),
            log_decay,
            beta,
            starts: starts.map(|starts| starts.into_iter().map(|start| start as usize).collect()),
        }
    }

    /// Bound of the error of a result that follows from `sums` sums of products, one after the other, without the
    /// rounding of storage. Writes contract: they replace what is there, so errors of states do not grow. Exponents are
    /// differences of sums of log decays over a chunk: one as large as `largest` adds its own rounding, twice.
    fn error(&self, sums: f64, largest: f64) -> f64 {
        let terms = self.key_dim + self.value_dim + 2 * CHUNK;
        sums * allowed(F32, terms) + 4.0 * 2f64.powi(-24) * largest
    }

    /// The largest sum of log decays of a chunk.
    fn largest_sum(&self, log_decay: &[f64]) -> f64 {
        let heads = self.heads as usize;
        let chunk = |chunk: &[f64]| -> f64 {
            let sum = |head: usize| -chunk.iter().skip(head).step_by(heads).sum::<f64>();
            (0..heads).map(sum).fold(0.0, f64::max)
        };
        let sequence =
            |sequence: &[f64]| sequence.chunks(CHUNK as usize * heads).map(chunk).fold(0.0, f64::max);
        log_decay.chunks(self.tokens as usize * heads).map(sequence).fold(0.0, f64::max)
    }
}

/// `count` columns from `first` on, of rows of `cols`.
fn part(values: &[f64], cols: u32, first: u32, count: u32) -> Vec<f64> {
    let [cols, first, count] = [cols, first, count].map(|count| count as usize);
    values.chunks(cols).flat_map(|row| row[first..first + count].to_vec()).collect()
}

impl Made {
    fn reference(&self) -> (reference::GatedDeltaRule<'_>, reference::Inputs<'_>) {
        let shape = reference::GatedDeltaRule {
            tokens: self.shape.tokens as usize,
            heads: self.shape.heads as usize,
            key_heads: self.shape.key_heads as usize,
            key_dim: self.shape.key_dim as usize,
            value_dim: self.shape.value_dim as usize,
            scale: self.shape.scale.into(),
            starts: self.starts.as_deref(),
        };
        let Self { q, k, v, log_decay, beta, .. } = self;
        (shape, reference::Inputs { q, k, v, log_decay, beta })
    }

    /// For each token and head, the sum over the later tokens of its chunk of |q|·|dq| + |k|·|dk|: the sizes of what is
    /// added up, and cancels, in the gradient of the log decay. Each value head counts for itself.
    fn sizes_of_decay(&self, dout: &[f64]) -> Vec<f64> {
        let (shape, inputs) = self.reference();
        let spread = |keys: &[f64]| -> Vec<f64> {
            let heads = keys.chunks(shape.key_dim);
            heads.flat_map(|head| head.repeat(shape.heads / shape.key_heads)).collect()
        };
        let [q, k] = [spread(inputs.q), spread(inputs.k)];
        let alone = reference::GatedDeltaRule { key_heads: shape.heads, ..shape };
        let inputs = reference::Inputs { q: &q, k: &k, ..inputs };
        let gradients = reference::gated_delta_rule_backward(&inputs, dout, &alone);
        let length = |head: &[f64]| head.iter().map(|value| value * value).sum::<f64>().sqrt();
        let lengths = |values: &[f64]| values.chunks(shape.key_dim).map(length).collect::<Vec<_>>();
        let [q, k, dq, dk] = [&q, &k, &gradients.q, &gradients.k].map(|values| lengths(values));
        let mut sizes: Vec<f64> = (0..q.len()).map(|i| q[i] * dq[i] + k[i] * dk[i]).collect();
        for row in (0..sizes.len() / shape.heads).rev() {
            let token = row % shape.tokens;
            if token + 1 < shape.tokens && (token + 1) % CHUNK as usize != 0 {
                for head in 0..shape.heads {
                    sizes[row * shape.heads + head] += sizes[(row + 1) * shape.heads + head];
                }
            }
        }
        sizes
    }
}

fn check_shape(case: &mut Case, shape: &Shape, element: Element) {
    if let Some(bytes) = shape.binding_bytes {
        case.rec = Recorder::new("case", case.rec.capabilities().with_binding_bytes(bytes));
    }
    let made = shape.make(case, element);
    let Shape { heads, key_heads, key_dim, value_dim, .. } = *shape;
    let rows = shape.sequences * shape.tokens;
    let (values, keys) = (heads * value_dim, key_heads * key_dim);
    let out = case.output(rows, values, element);
    gated_delta_rule(&mut case.rec, &made.inputs, out, None, &made.shape);

    let dout = case.input(rows, values, element);
    let [dqk, dv] = [2 * keys, values].map(|cols| case.output(rows, cols, element));
    let dgates = case.output(rows, gate_cols(heads), F32);
    let gradients = DeltaInputs { qk: dqk, v: dv, gates: dgates };
    gated_delta_rule_backward(&mut case.rec, &made.inputs, dout.tensor, &gradients, &made.shape);

    let largest = shape.largest_sum(&made.log_decay);
    let want = case.once(|| {
        let (reference, inputs) = made.reference();
        let gradients = reference::gated_delta_rule_backward(&inputs, &dout.values, &reference);
        (reference::gated_delta_rule(&inputs, &reference), gradients, made.sizes_of_decay(&dout.values))
    });
    let (want_out, want, sizes) = (want.0.clone(), want.1.clone(), want.2.clone());
    // States, what is missing, what is written, the output: four sums. Backward as many again, and two more.
    let stored = allowed(element, 1) - allowed(F32, 1);
    case.expect("out", out, want_out, stored + shape.error(4.0, largest));
    let of_gradient = shape.error(10.0, largest);
    case.expect_columns("dq", dqk, 0..keys, want.q, stored + of_gradient);
    case.expect_columns("dk", dqk, keys..2 * keys, want.k, stored + of_gradient);
    case.expect("dv", dv, want.v, stored + of_gradient);
    let half = gate_cols(heads) / 2;
    case.expect_terms("dlog_decay", dgates, 0..heads, want.log_decay, of_gradient, sizes);
    case.expect_columns("dbeta", dgates, half..half + heads, want.beta, of_gradient);
}

#[test]
pub fn gated_delta_rule_and_its_backward() {
    let run = |number: usize, element: Element| {
        let shape = &SHAPES[number];
        let Shape { sequences, tokens, heads, key_dim, value_dim, .. } = shape;
        let name = format!(
            "gated_delta_rule {number}: {sequences}x{tokens}, {heads} of {key_dim}x{value_dim}, {element:?}"
        );
        check(&name, |case| check_shape(case, shape, element));
    };
    for number in 0..SHAPES.len() {
        run(number, [F32, Bf16][number % 2]);
        // They compile for long; decoding has halves in the forward pass.
        if takes_all() {
            run(number, [Bf16, F32][number % 2]);
            run(number, F16);
        }
    }
}

/// Of long sequences each launch has all heads, so that a pass takes twice as long for twice as many tokens.
#[test]
fn long_sequences_are_divided_into_segments() {
    let grids = |tokens: u32, entry: &str| {
        let mut rec = Recorder::new("case", Capabilities::portable());
        let shape = GatedDeltaRule {
            tokens,
            heads: 32,
            key_heads: 16,
            key_dim: 128,
            value_dim: 128,
            scale: 1.0,
            documents: None,
        };
        let mut tensor = |cols, element| rec.tensor("x", tokens, cols, element);
        let [qk, dqk, v, dv, out] = [4096; 5].map(|cols| tensor(cols, Bf16));
        let [gates, dgates] = [gate_cols(32); 2].map(|cols| tensor(cols, F32));
        let (inputs, gradients) =
            (DeltaInputs { qk, v, gates }, DeltaInputs { qk: dqk, v: dv, gates: dgates });
        gated_delta_rule(&mut rec, &inputs, out, None, &shape);
        gated_delta_rule_backward(&mut rec, &inputs, out, &gradients, &shape);
        let dispatches = rec.finish().dispatches.into_iter();
        let of_entry = dispatches.filter(|dispatch| dispatch.kernel.entry == entry);
        of_entry.map(|dispatch| dispatch.grid).collect::<Vec<_>>()
    };
    for (tokens, forward, backward) in [(2048, 1, 1), (4096, 2, 2), (8192, 3, 4)] {
        for (entry, segments) in [("gated_delta_rule_outputs", forward), ("gated_delta_rule_pairs", backward)]
        {
            let found = grids(tokens, entry);
            assert_eq!(found.len(), segments, "{tokens} tokens, {entry}");
            assert!(found.iter().all(|grid| grid[0] == 32), "{found:?}");
            assert_eq!(found.iter().map(|grid| grid[1]).sum::<u32>(), tokens / CHUNK);
        }
        // The backward pass computes the states of all segments but the last twice.
        assert_eq!(grids(tokens, "gated_delta_rule_states"), vec![[32, 1, 8]; forward + 2 * backward - 1]);
    }
}

/// A prompt leaves its state, and further tokens one by one continue as if they had been part of it.
#[test]
pub fn decoding_continues_a_prompt() {
    for (shape, element) in [
        // A prompt of three segments.
        (Shape { sequences: 1, tokens: 770, key_heads: 4, binding_bytes: Some(700 << 10), ..PLAIN }, F32),
        (Shape { tokens: 3, ..PLAIN }, F32),
        (Shape { tokens: 69, heads: 2, value_dim: 20, ..PLAIN }, F16),
        (Shape { tokens: 67, heads: 3, key_heads: 1, sequences: 1, ..PLAIN }, Bf16),
    ] {
        let name = format!("decoding after {} tokens, {element:?}", shape.tokens);
        check(&name, |case| check_decoding(case, &shape, element));
    }
}

fn check_decoding(case: &mut Case, shape: &Shape, element: Element) {
    let Shape { sequences, tokens, heads, value_dim, .. } = *shape;
    if let Some(bytes) = shape.binding_bytes {
        case.rec = Recorder::new("case", case.rec.capabilities().with_binding_bytes(bytes));
    }
    let all = Shape { sequences: 1, ..*shape };
    let (prompt, last) = (tokens - 2, tokens - 1);
    for _ in 0..sequences {
        let made = all.make(case, element);
        let inputs = |first: u32, count: u32| {
            let rows = |tensor: gristmill::record::Tensor| tensor.rows(first, count);
            let DeltaInputs { qk, v, gates } = made.inputs;
            DeltaInputs { qk: rows(qk), v: rows(v), gates: rows(gates) }
        };
        let [out, one, two] = [prompt, 1, 1].map(|rows| case.output(rows, heads * value_dim, element));
        let state = case.output(heads * shape.key_dim, value_dim, F32);
        let of_prompt = GatedDeltaRule { tokens: prompt, ..made.shape };
        gated_delta_rule(&mut case.rec, &inputs(0, prompt), out, Some(state), &of_prompt);
        gated_delta_rule_step(&mut case.rec, &inputs(prompt, 1), state, one, &made.shape);
        gated_delta_rule_step(&mut case.rec, &inputs(last, 1), state, two, &made.shape);
        let want = case.once(|| {
            let (reference, inputs) = made.reference();
            reference::gated_delta_rule(&inputs, &reference)
        });
        let error =
            allowed(element, 1) - allowed(F32, 1) + shape.error(4.0, shape.largest_sum(&made.log_decay));
        let cols = (heads * value_dim) as usize;
        let rows = |first: u32, count: u32| want[first as usize * cols..][..count as usize * cols].to_vec();
        case.expect("the prompt", out, rows(0, prompt), error);
        case.expect("the next token", one, rows(prompt, 1), error);
        case.expect("the token after it", two, rows(last, 1), error);
    }
}
