//! Attention, forward and backward, against the f64 reference.

mod matrix;
mod parts;
mod saved;

use self::saved::{FromSaved, from_saved};
use crate::draws::DropoutWords;
use crate::lab::{Bits, Case, Input, allowed, check, check_tier, check_units, takes_all};
use crate::packed::{document_bounds, split_qkv};
use ::reference::attention as reference;
use ::reference::largest_scores::largest_scores;
use gristmill::element::Element::{self, Bf16, F16, F32};
use gristmill::kernels::{Capabilities, Tier, Units};
use gristmill::ops::attention::{
    Attention, AttentionTensors, DocumentBounds, Sinks, attention, attention_backward,
};
use gristmill::ops::dropout::{Dropout, DropoutState};
use gristmill::ops::heads::HeadLayout;
use gristmill::record::{Dispatch, Recorder, Tensor};

const BASE: Row = Row {
    batch: 2,
    tokens: 33,
    heads: (2, 2),
    dims: (32, 32),
    causal: true,
    window: None,
    documents: &[],
    soft_cap: None,
    alibi: false,
    sinks: false,
    dropout: 0.0,
    element: F32,
    powers: (0, 0),
};

/// Covers each head size, sequence length, grouping of heads and storage type, but not each combination. Large sizes
/// are combined with small ones, because a software driver takes seconds to compile the largest kernels.
const ROWS: [Row; 31] = [
    BASE,
    Row { batch: 3, tokens: 1, dims: (4, 4), ..BASE },
    Row { tokens: 5, heads: (3, 1), dims: (12, 4), causal: false, ..BASE },
    Row { tokens: 31, heads: (5, 1), dims: (36, 4), ..BASE },
    Row { batch: 1, tokens: 130, heads: (4, 2), dims: (12, 12), element: Bf16, ..BASE },
    Row { batch: 1, tokens: 130, heads: (6, 2), dims: (4, 12), causal: false, element: Bf16, ..BASE },
    Row { tokens: 64, heads: (4, 4), dims: (4, 12), element: F16, ..BASE },
    Row { batch: 1, tokens: 65, heads: (4, 2), dims: (64, 4), ..BASE },
    Row { batch: 1, tokens: 31, heads: (2, 1), dims: (128, 4), causal: false, element: Bf16, ..BASE },
    Row { batch: 1, tokens: 33, heads: (1, 1), dims: (256, 4), ..BASE },
    Row { batch: 1, tokens: 31, heads: (1, 1), dims: (4, 64), element: Bf16, ..BASE },
    // Blocks, tiles and loop steps are powers of 2; these windows and documents are not.
    Row { tokens: 130, heads: (2, 1), dims: (8, 12), window: Some(7), ..BASE },
    // After another one with a window: llvmpipe takes most of a minute to compile this backward pass of the software tier.
    Row { batch: 1, tokens: 33, heads: (2, 1), dims: (512, 4), window: Some(20), ..BASE },
    Row { batch: 1, tokens: 257, heads: (1, 1), dims: (32, 8), window: Some(100), element: F16, ..BASE },
    Row { tokens: 130, heads: (2, 1), dims: (12, 8), documents: &[1, 40, 3, 86], ..BASE },
    Row {
        tokens: 65,
        heads: (4, 2),
        dims: (4, 8),
        window: Some(5),
        documents: &[31, 1, 33],
        element: Bf16,
        ..BASE
    },
    Row { tokens: 5, heads: (1, 1), dims: (4, 4), window: Some(1), ..BASE },
    Row { tokens: 130, heads: (4, 2), dims: (8, 12), dropout: 0.25, ..BASE },
    Row { tokens: 35, heads: (2, 1), dims: (12, 4), causal: false, dropout: 0.5, element: F16, ..BASE },
    Row { tokens: 130, heads: (2, 1), dims: (4, 8), window: Some(50), dropout: 0.1, element: Bf16, ..BASE },
    EVERYTHING,
    // Head counts that are powers of 2 and others, whose slopes follow another rule.
    Row { tokens: 131, heads: (6, 2), dims: (8, 12), alibi: true, ..BASE },
    Row { batch: 1, tokens: 257, heads: (1, 1), dims: (12, 8), alibi: true, element: F16, ..BASE },
    Row { tokens: 67, heads: (8, 8), dims: (4, 4), window: Some(40), alibi: true, element: Bf16, ..BASE },
    Row { tokens: 130, heads: (3, 1), dims: (12, 8), documents: &[1, 40, 3, 86], alibi: true, ..BASE },
    Row { heads: (12, 4), alibi: true, ..EVERYTHING },
    // Caps below, at and above most scores.
    Row { tokens: 130, heads: (4, 2), dims: (12, 20), soft_cap: Some(0.5), ..BASE },
    Row {
        tokens: 35,
        heads: (2, 1),
        dims: (36, 4),
        causal: false,
        soft_cap: Some(1.5),
        element: F16,
        ..BASE
    },
    Row { batch: 1, tokens: 257, heads: (1, 1), dims: (4, 12), soft_cap: Some(50.0), element: Bf16, ..BASE },
    Row { soft_cap: Some(1.5), ..EVERYTHING },
    Row { heads: (12, 4), soft_cap: Some(1.0), alibi: true, ..EVERYTHING },
];

/// Sinks of heads that fill groups of 4 and do not, with each mask.
const WITH_SINKS: [Row; 3] = [
    Row {
        batch: 1,
        tokens: 35,
        heads: (6, 2),
        dims: (36, 4),
        causal: false,
        sinks: true,
        element: F16,
        ..BASE
    },
    Row { tokens: 67, heads: (5, 1), dims: (4, 12), window: Some(7), sinks: true, element: Bf16, ..BASE },
    Row { sinks: true, ..EVERYTHING },
];

/// Values of another size than keys, a window, packed documents and dropout.
const EVERYTHING: Row = Row {
    tokens: 130,
    heads: (4, 2),
    dims: (12, 20),
    window: Some(30),
    documents: &[1, 40, 3, 86],
    dropout: 0.2,
    ..BASE
};

/// The step and micro-batch from which [`Row::dropout`] draws.
const STEP: u32 = 3;
const MICRO_STEP: u32 = 1;

#[derive(Clone, Copy)]
struct Row {
    batch: u32,
    tokens: u32,
    /// Query heads, key and value heads.
    heads: (u32, u32),
    /// Elements of a query or key, elements of a value.
    dims: (u32, u32),
    causal: bool,
    window: Option<u32>,
    soft_cap: Option<f32>,
    alibi: bool,
    /// Whether heads have sinks.
    sinks: bool,
    /// Lengths of the documents in a sequence; empty if the sequence is one document.
    documents: &'static [u32],
    /// Share of the weights that are dropped.
    dropout: f32,
    element: Element,
    /// Powers of two that multiply qkv and dout; scores stay as they are.
    powers: (i32, i32),
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            batch,
            tokens,
            heads,
            dims,
            causal,
            window,
            alibi,
            documents,
            dropout,
            element,
            powers,
            ..
        } = self;
        let mask = if *causal { "causal" } else { "full" };
        write!(f, "{batch}x{tokens} heads {heads:?} of {dims:?} {mask} {element:?}")?;
        window.iter().try_for_each(|window| write!(f, " window {window}"))?;
        self.soft_cap.iter().try_for_each(|cap| write!(f, " capped at {cap}"))?;
        if *alibi {
            write!(f, " alibi")?;
        }
        if self.sinks {
            write!(f, " sinks")?;
        }
        if *dropout > 0.0 {
            write!(f, " dropout {dropout}")?;
        }
        if *powers != (0, 0) {
            write!(f, " times 2^{powers:?}")?;
        }
        if documents.is_empty() { Ok(()) } else { write!(f, " documents {documents:?}") }
    }
}

impl Row {
    fn shape(&self) -> Attention {
        Attention {
            layout: HeadLayout {
                heads: self.heads.0,
                kv_heads: self.heads.1,
                head_dim: self.dims.0,
                value_dim: self.dims.1,
            },
            tokens: self.tokens,
            is_causal: self.causal,
            scale: 2f32.powi(-2 * self.powers.0) / (self.dims.0 as f32).sqrt(),
            soft_cap: self.soft_cap,
            window: self.window,
            has_alibi: self.alibi,
            head_range: None,
            dropout: None,
        }
    }

    /// The sinks of the heads, below, among and above the scores: as they are stored, and their tensor.
    fn sinks(&self, case: &mut Case) -> Option<Input> {
        let of_heads: Vec<f64> = (0..self.heads.0).map(|head| f64::from(head % 4) * 1.5 - 2.0).collect();
        self.sinks.then(|| case.input_of(&of_heads, 1, self.heads.0, self.element))
    }

    fn reference<'a>(
        &self,
        starts: &'a [usize],
        factors: &'a [f64],
        sinks: Option<&'a Input>,
    ) -> reference::Attention<'a> {
        reference::Attention {
            tokens: self.tokens as usize,
            heads: self.heads.0 as usize,
            kv_heads: self.heads.1 as usize,
            head_dim: self.dims.0 as usize,
            value_dim: self.dims.1 as usize,
            causal: self.causal,
            scale: f64::from(self.shape().scale),
            soft_cap: self.soft_cap.map(f64::from),
            window: self.window.map(|window| window as usize),
            starts: (!self.documents.is_empty()).then_some(starts),
            factors: (!factors.is_empty()).then_some(factors),
            alibi: self.alibi,
            sinks: sinks.map(|sinks| &sinks.values[..]),
        }
    }

    /// The document bounds of all sequences.
    fn bounds(&self) -> [Vec<u32>; 2] {
        let length: u32 = self.documents.iter().sum();
        assert!(self.documents.is_empty() || length == self.tokens, "documents must fill a sequence");
        document_bounds(self.documents).map(|bounds| bounds.repeat(self.batch as usize))
    }

    fn dropout(&self, case: &mut Case) -> Option<Dropout> {
        let state = case.state(DropoutState { step: STEP, micro_step: MICRO_STEP });
        (self.dropout > 0.0).then_some(Dropout {
            probability: self.dropout,
            seed: 5 << 40 | 77,
            site: 9,
            state,
            part: None,
        })
    }

    /// The factor of each weight under dropout, from the host's copy of the generator.
    fn factors(&self, dropout: Option<Dropout>) -> Vec<f64> {
        let Some(dropout) = dropout else { return Vec::new() };
        let Dropout { seed, site, .. } = dropout;
        let words = DropoutWords { seed, site, step: STEP, micro_step: MICRO_STEP };
        let mut factors = Vec::new();
        for vector in 0..self.batch * self.tokens * self.heads.0 {
            for key in 0..self.tokens {
                let word = words.at(vector, key / 4)[(key % 4) as usize];
                let is_kept = word >= dropout.threshold();
                factors.push(if is_kept { 1.0 / (1.0 - f64::from(self.dropout)) } else { 0.0 });
            }
        }
        factors
    }

    fn starts(&self) -> Vec<usize> {
        self.bounds()[0].iter().map(|start| *start as usize).collect()
    }

    fn document_bounds(&self, case: &mut Case) -> Option<DocumentBounds> {
        let [starts, ends] = self.bounds();
        (!self.documents.is_empty())
            .then(|| DocumentBounds { starts: case.integers(&starts), ends: case.integers(&ends) })
    }

    /// What the error of each result of `want` is relative to: its own size and the root mean square of all, as ever,
    /// and what rounding the weights of `terms` adds where matrices multiply them, in shares of what is allowed.
    fn sizes(&self, case: &Case, want: &[f64], terms: &Terms) -> Vec<f64> {
        let rms = (want.iter().map(|x| x * x).sum::<f64>() / want.len() as f64).sqrt();
        let capabilities = case.rec.capabilities();
        let is_by_matrices = self.files(capabilities).iter().any(|file| file.contains("matrix"));
        let rounding = is_by_matrices.then(|| matrix::rounding(capabilities, self.walked()));
        let of_weights =
            |size| rounding.as_ref().map_or(0.0, |of| of.of(size, terms.largest) / self.allowed());
        want.iter().zip(&terms.sizes).map(|(x, size)| x.abs() + rms + of_weights(*size)).collect()
    }

    /// The error allowed to results of the elements' type.
    fn allowed(&self) -> f64 {
        allowed(self.element, self.terms()) + 2.0 * self.of_cap()
    }

    /// The error of a score that a soft cap adds, which is below 2^-21 of the cap: of tanh 2.8e-7
    /// (shaders/lib/soft_cap.wgsl), of its division 1.5e-7 (2.5 units in the last place, as WGSL permits), and of two
    /// products. A weight has it as a relative error, and of two weights whose errors differ a mean of values has both.
    fn of_cap(&self) -> f64 {
        self.soft_cap.map_or(0.0, |cap| f64::from(cap) * 2f64.powi(-21))
    }

    /// The files of the kernels of both passes.
    fn files(&self, capabilities: Capabilities) -> Vec<&'static str> {
        self.recorded(capabilities).iter().map(|of| of.kernel.file).collect()
    }

    /// What both passes dispatch.
    fn recorded(&self, capabilities: Capabilities) -> Vec<Dispatch> {
        let mut rec = Recorder::new("case", capabilities);
        let (n, shape) = (self.batch * self.tokens, self.shape());
        let [qkv, dqkv] = [(); 2].map(|()| rec.tensor("qkv", n, shape.layout.cols(), self.element));
        let [out, dout] = [(); 2].map(|()| rec.tensor("out", n, shape.layout.out_cols(), self.element));
        let lse = rec.tensor("lse", n, self.heads.0, F32);
        let tensors = AttentionTensors::new(qkv, out, lse);
        attention(&mut rec, &tensors, &shape);
        attention_backward(&mut rec, &tensors, dout, dqkv, &shape);
        rec.finish().dispatches
    }

    /// The longest chain of sums behind a result: a score, then the sum over the walked rows.
    fn terms(&self) -> u32 {
        self.dims.0 + self.dims.1 + self.walked()
    }

    /// The most rows that a sum is over: keys, or queries of all heads of a group.
    fn walked(&self) -> u32 {
        self.tokens * self.heads.0 / self.heads.1
    }
}

#[test]
pub fn attention_is_the_weighted_mean_of_the_values() {
    for row in &ROWS {
        check(&format!("attention {row}"), |case| forward(case, row, 1.0));
    }
}

/// Queries, keys and values as wide as any, which llvmpipe takes a minute to compile for the software tier.
#[test]
#[ignore = "long; `attention_is_the_weighted_mean_of_the_values` has keys as wide, `attention_at_the_sizes_of_a_gpu` both"]
fn attention_of_the_widest_heads() {
    let row = Row { batch: 1, tokens: 33, heads: (2, 1), dims: (512, 512), window: Some(20), ..BASE };
    check(&format!("attention {row}"), |case| forward(case, &row, 1.0));
}

#[test]
pub fn attention_with_sinks() {
    for row in &WITH_SINKS {
        check(&format!("attention {row}"), |case| forward(case, row, 1.0));
        check(&format!("attention_backward {row}"), |case| backward(case, row));
    }
}

/// One head of keys under as many heads of queries as StarCoder has: all queries of all heads see the first keys.
#[test]
#[ignore = "long; `attention_backward_is_the_gradient` has groups of fewer"]
fn attention_backward_of_many_heads_to_one() {
    let row = Row { batch: 1, tokens: 1300, heads: (48, 1), dims: (4, 4), ..BASE };
    check_tier(&format!("attention_backward {row}"), Tier::Software, &|case| backward(case, &row));
}

/// Sequences so long that the software tier takes four keys at once, or queries, within a window that is shorter.
#[test]
fn attention_over_long_sequences() {
    let row = Row { batch: 1, tokens: 50_000, heads: (2, 1), dims: (4, 4), window: Some(37), ..BASE };
    check_tier(&format!("attention {row}"), Tier::Software, &|case| forward(case, &row, 1.0));
    check_tier(&format!("attention_backward {row}"), Tier::Software, &|case| backward(case, &row));
}

/// The head sizes of most models, and a sequence of many blocks and tiles, with the kernels that a GPU runs alone:
/// those of the software tier take llvmpipe several times as long to compile. The passes take turns, but for
/// [`takes_all`].
#[test]
pub fn attention_at_the_sizes_of_a_gpu() {
    let rows = [
        Row { batch: 1, tokens: 70, heads: (2, 1), dims: (64, 64), ..BASE },
        Row { batch: 1, tokens: 35, heads: (1, 1), dims: (128, 128), ..BASE },
        Row {
            batch: 1,
            tokens: 70,
            heads: (1, 1),
            dims: (128, 128),
            window: Some(40),
            dropout: 0.25,
            ..BASE
        },
        Row { batch: 1, tokens: 70, heads: (1, 1), dims: (128, 128), alibi: true, ..BASE },
        // DeepSeek's latent attention.
        Row { batch: 1, tokens: 70, heads: (1, 1), dims: (192, 128), ..BASE },
        Row {
            batch: 1,
            tokens: 70,
            heads: (1, 1),
            dims: (192, 128),
            window: Some(40),
            documents: &[31, 39],
            dropout: 0.25,
            ..BASE
        },
        // One token less than a block, as many, one more; tiles of 64 and 128, whole and in part, of which the last has
        // one step.
        Row { batch: 1, tokens: 63, heads: (1, 1), dims: (40, 48), element: F16, ..BASE },
        Row { batch: 1, tokens: 64, heads: (1, 1), dims: (64, 64), causal: false, ..BASE },
        Row { batch: 2, tokens: 65, heads: (1, 1), dims: (64, 64), element: Bf16, ..BASE },
        Row { batch: 1, tokens: 97, heads: (3, 1), dims: (64, 64), dropout: 0.25, ..BASE },
        Row { batch: 1, tokens: 161, heads: (1, 1), dims: (96, 80), causal: false, ..BASE },
        Row { batch: 1, tokens: 257, heads: (2, 1), dims: (16, 128), ..BASE },
        // The widest heads, whose groups are the widest.
        Row { batch: 1, tokens: 129, heads: (1, 1), dims: (256, 256), ..BASE },
        Row { tokens: 70, heads: (2, 1), dims: (160, 164), causal: false, element: Bf16, ..BASE },
        Row { dims: (256, 256), alibi: true, batch: 1, ..EVERYTHING },
        Row { batch: 1, tokens: 2000, heads: (1, 1), dims: (4, 4), ..BASE },
        Row { batch: 1, tokens: 2000, heads: (2, 1), dims: (4, 4), alibi: true, ..BASE },
        Row { batch: 1, tokens: 70, heads: (1, 1), dims: (128, 128), soft_cap: Some(1.5), ..BASE },
        Row { batch: 1, dims: (64, 64), soft_cap: Some(1.5), ..EVERYTHING },
        Row { batch: 1, dims: (256, 256), soft_cap: Some(1.5), ..EVERYTHING },
        Row { batch: 1, tokens: 70, heads: (2, 1), dims: (256, 256), soft_cap: Some(1.5), ..BASE },
        Row { batch: 1, dims: (512, 512), ..EVERYTHING },
        Row { batch: 1, tokens: 70, heads: (2, 1), dims: (512, 512), ..BASE },
        Row { batch: 1, tokens: 129, heads: (2, 1), dims: (64, 64), window: Some(40), sinks: true, ..BASE },
    ];
    for (i, row) in rows.iter().enumerate() {
        if i % 2 == 0 || takes_all() {
            check_tier(&format!("attention {row}"), Tier::Portable, &|case| forward(case, row, 1.0));
        }
        if i % 2 == 1 || takes_all() {
            check_tier(&format!("attention_backward {row}"), Tier::Portable, &|case| backward(case, row));
        }
    }
}

/// Blocks of 64 queries in groups of 8 lanes, where there is work for a whole GPU, and of 16, where there is not or
/// masks need the registers, whose neighbours draw for each other; tiles of 128 keys in one to four steps, and of 64 in
/// one or two.
#[test]
fn attention_forward_in_narrow_and_wide_groups() {
    for (units, width, row) in [
        (1, 8, Row { batch: 1, tokens: 129, heads: (6, 2), dims: (64, 64), ..BASE }),
        (1, 8, Row { tokens: 200, heads: (4, 4), dims: (40, 48), causal: false, element: Bf16, ..BASE }),
        (64, 16, Row { batch: 1, tokens: 257, heads: (3, 1), dims: (64, 64), ..BASE }),
        (64, 16, Row { tokens: 161, heads: (2, 1), dims: (40, 60), causal: false, element: F16, ..BASE }),
        (1, 16, Row { tokens: 200, heads: (2, 1), dims: (64, 64), window: Some(70), ..BASE }),
        (1, 16, Row { tokens: 225, heads: (3, 3), dims: (36, 64), alibi: true, element: F16, ..BASE }),
        (1, 16, Row { tokens: 225, heads: (3, 3), dims: (36, 64), dropout: 0.25, ..BASE }),
        (1, 16, Row { dims: (64, 36), alibi: true, element: Bf16, ..EVERYTHING }),
        (
            1,
            16,
            Row { tokens: 161, heads: (2, 1), dims: (68, 128), window: Some(100), dropout: 0.25, ..BASE },
        ),
    ] {
        let (n, shape) = (row.batch * row.tokens, row.shape());
        let units_of = Units { count: units, ..Units::ASSUMED };
        let mut rec = Recorder::new("case", Capabilities::portable().with_units(units_of));
        let qkv = rec.tensor("qkv", n, shape.layout.cols(), F32);
        let out = rec.tensor("out", n, shape.layout.out_cols(), F32);
        let lse = rec.tensor("lse", n, row.heads.0, F32);
        attention(&mut rec, &AttentionTensors::new(qkv, out, lse), &shape);
        let kernel = rec.finish().dispatches.remove(0).kernel;
        let is_whole = row.documents.is_empty() && row.dropout == 0.0; // recorded with all its masks
        assert!(!is_whole || kernel.constants().contains(&("WIDTH", width)), "{row}: {kernel}");
        check_units(&format!("attention {row} in groups of {width}"), units, &|case| {
            forward(case, &row, 1.0)
        });
    }
}

#[test]
pub fn attention_with_large_scores_does_not_overflow() {
    // Scores of several hundred, so all weights except one are zero.
    for element in [F32, F16] {
        let row = Row { element, ..BASE };
        check(&format!("attention of large scores {element:?}"), |case| forward(case, &row, 10.0));
    }
}

fn forward(case: &mut Case, row: &Row, size: f64) {
    let n = row.batch * row.tokens;
    let qkv = input(case, n, &row.shape().layout, size * 2f64.powi(row.powers.0), row.element);
    let [q, k, v] = split_qkv(&qkv.1, &row.shape().layout);
    let out = case.output(n, row.shape().layout.out_cols(), row.element);
    let lse = case.output(n, row.heads.0, F32);
    let (bounds, dropout) = (row.document_bounds(case), row.dropout(case));
    let factors = case.once(|| row.factors(dropout));
    let logits = case.output(n, row.heads.0, F32);
    let shape = Attention { dropout, ..row.shape() };
    let sinks = row.sinks(case);
    let sinks_of = sinks.as_ref().map(|sinks| Sinks { logits: sinks.tensor, gradient: None });
    attention(
        &mut case.rec,
        &AttentionTensors {
            documents: bounds,
            logits: Some(logits),
            sinks: sinks_of,
            ..AttentionTensors::new(qkv.0, out, lse)
        },
        &shape,
    );
    let starts = row.starts();
    let wanted = case.once(|| {
        let reference = row.reference(&starts, &factors, sinks.as_ref());
        let absolute: Vec<f64> = v.iter().map(|v| v.abs()).collect();
        let (sizes, _) = reference::attention(&q, &k, &absolute, &reference);
        (reference::attention(&q, &k, &v, &reference), largest_scores(&q, &k, &reference), sizes)
    });
    let ((want_out, want_lse), want_logits, sizes) = (*wanted).clone();
    // Both variants of the kernel; that without logits is the one of most runs.
    let (plain, plain_lse) =
        (case.output(n, row.shape().layout.out_cols(), row.element), case.output(n, row.heads.0, F32));
    attention(
        &mut case.rec,
        &AttentionTensors {
            documents: bounds,
            sinks: sinks_of,
            ..AttentionTensors::new(qkv.0, plain, plain_lse)
        },
        &shape,
    );
    let terms = Terms { sizes, largest: largest(&v) / (1.0 - f64::from(row.dropout)) };
    let sizes = row.sizes(case, &want_out, &terms);
    let (columns, allowed_out) = (0..row.shape().layout.out_cols(), (size * size) * row.allowed());
    case.expect_terms("plain out", plain, columns.clone(), want_out.clone(), allowed_out, sizes.clone());
    let of_scores = allowed(F32, row.terms()) + row.of_cap();
    case.expect("plain lse", plain_lse, want_lse.clone(), of_scores);
    case.expect("logits", logits, want_logits, of_scores);
    // A score of size s has an absolute error of some f32 roundings of s; so has its weight, relative to its size.
    case.expect_terms("out", out, columns, want_out, allowed_out, sizes);
    case.expect("lse", lse, want_lse, of_scores);
}

#[test]
#[should_panic(expected = "a window and document bounds need causal attention")]
fn a_window_of_full_attention_is_refused() {
    let mut rec = Recorder::new("case", Capabilities::software());
    let shape = Attention { window: Some(4), is_causal: false, ..BASE.shape() };
    let qkv = rec.tensor("qkv", 33, shape.layout.cols(), F32);
    let out = rec.tensor("out", 33, shape.layout.out_cols(), F32);
    let lse = rec.tensor("lse", 33, 2, F32);
    attention(&mut rec, &AttentionTensors::new(qkv, out, lse), &shape);
}

#[test]
#[should_panic(expected = "ALiBi needs causal attention")]
fn alibi_of_full_attention_is_refused() {
    let mut rec = Recorder::new("case", Capabilities::software());
    let shape = Attention { has_alibi: true, is_causal: false, ..BASE.shape() };
    let qkv = rec.tensor("qkv", 33, shape.layout.cols(), F32);
    let out = rec.tensor("out", 33, shape.layout.out_cols(), F32);
    let lse = rec.tensor("lse", 33, 2, F32);
    attention(&mut rec, &AttentionTensors::new(qkv, out, lse), &shape);
}

/// Windows and segments compile to other variants of the kernels. A window as long as the sequence or longer, and a
/// single document per sequence, must give the results of plain causal attention.
#[test]
#[ignore = "long; windows and segments are compared with the reference"]
fn a_window_of_everything_changes_no_bit() {
    let row = Row { tokens: 130, heads: (2, 1), dims: (12, 8), ..BASE };
    check("attention window of everything", |case| {
        let (n, layout) = (row.batch * row.tokens, row.shape().layout);
        let qkv = input(case, n, &layout, 1.0, F32).0;
        let dout = case.input(n, layout.out_cols(), F32).tensor;
        let bits = Bits::of_different_kernels();
        let whole = Row { documents: &[130], ..row };
        for (row, window) in
            [(row, None), (row, Some(130)), (row, Some(u32::MAX)), (whole, None), (whole, Some(131))]
        {
            let (out, lse) = (case.output(n, layout.out_cols(), F32), case.output(n, layout.heads, F32));
            let dqkv = case.output(n, layout.cols(), F32);
            let (segments, shape) = (row.document_bounds(case), Attention { window, ..row.shape() });
            attention(
                &mut case.rec,
                &AttentionTensors { documents: segments, ..AttentionTensors::new(qkv, out, lse) },
                &shape,
            );
            attention_backward(
                &mut case.rec,
                &AttentionTensors { documents: segments, ..AttentionTensors::new(qkv, out, lse) },
                dout,
                dqkv,
                &shape,
            );
            for (name, tensor) in [("out", out), ("lse", lse), ("dqkv", dqkv)] {
                bits.expect(case, name, tensor);
            }
        }
    });
}

#[test]
pub fn attention_backward_is_the_gradient() {
    for row in &ROWS {
        check(&format!("attention_backward {row}"), |case| backward(case, row));
    }
}

fn backward(case: &mut Case, row: &Row) {
    backward_within(case, row, Within::Rms);
}

/// What the error of a gradient is relative to.
#[derive(Clone, Copy, PartialEq)]
enum Within {
    /// Its size and the root mean square of all.
    Rms,
    /// The absolute values of all terms that it is the sum of.
    Terms,
}

fn backward_within(case: &mut Case, row: &Row, within: Within) {
    let (n, layout) = (row.batch * row.tokens, row.shape().layout);
    let qkv = input(case, n, &layout, 2f64.powi(row.powers.0), row.element);
    let [q, k, v] = split_qkv(&qkv.1, &layout);
    let (starts, bounds) = (row.starts(), row.document_bounds(case));
    let dropout = row.dropout(case);
    let factors = case.once(|| row.factors(dropout));
    let sinks = row.sinks(case);
    let saved =
        case.once(|| reference::attention(&q, &k, &v, &row.reference(&starts, &factors, sinks.as_ref())));
    let (out, lse) = (&saved.0, &saved.1);
    let out = case.input_of(out, n, layout.out_cols(), row.element);
    let lse = case.input_of(lse, n, layout.heads, F32);
    let of_dout: Vec<f64> =
        (0..n * layout.out_cols()).map(|_| 2f64.powi(row.powers.1) * case.normal()).collect();
    let dout = case.input_of(&of_dout, n, layout.out_cols(), row.element);
    let dqkv = case.output(n, layout.cols(), row.element);
    // The gradient of the sinks is added to what is there.
    let before = row.sinks.then(|| case.input(1, layout.heads, F32));
    let gradient = before.as_ref().map(|before| before.tensor);
    let sinks_of = sinks.as_ref().map(|sinks| Sinks { logits: sinks.tensor, gradient });
    let (rec, shape) = (&mut case.rec, Attention { dropout, ..row.shape() });
    attention_backward(
        rec,
        &AttentionTensors {
            documents: bounds,
            sinks: sinks_of,
            ..AttentionTensors::new(qkv.0, out.tensor, lse.tensor)
        },
        dout.tensor,
        dqkv,
        &shape,
    );
    let from_saved = case.once(|| {
        let saved = from_saved(
            [&q, &k, &v],
            [&out.values, &lse.values],
            &dout.values,
            (row, &factors, sinks.as_ref()),
        );
        if row.element == F32 {
            // The saved values are nearly exact, so the gradient must be the reference's own.
            let (dq, dk, dv) = reference::attention_backward(
                &q,
                &k,
                &v,
                &dout.values,
                &row.reference(&starts, &factors, sinks.as_ref()),
            );
            for (ours, theirs) in saved.gradients.iter().zip([dq, dk, dv]) {
                let worst = ours.iter().zip(&theirs).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
                assert!(worst < 1e-5, "the gradient from saved values is {worst} away from the gradient");
            }
        }
        saved
    });
    let FromSaved { gradients: [dq, dk, dv], weighted, terms } = (*from_saved).clone();
    // Each relative to its own size, because the three can differ by orders of magnitude.
    let starts = [0, layout.k_start(), layout.v_start(), layout.cols()];
    let gradients = [("dq", dq), ("dk", dk), ("dv", dv)].into_iter().zip(weighted.into_iter().zip(terms));
    for (i, ((label, want), (weighted, terms))) in gradients.enumerate() {
        let columns = starts[i]..starts[i + 1];
        let sizes = match within {
            Within::Rms => row.sizes(case, &want, &weighted),
            Within::Terms => terms,
        };
        case.expect_terms(label, dqkv, columns, want, row.allowed(), sizes);
    }
    let Some((sinks, before)) = sinks.zip(before) else { return };
    let want = case.once(|| {
        let of_saved = |head: usize| {
            let rows = (0..n as usize).map(|row| row * layout.heads as usize + head);
            let term = |at: usize| {
                let of_head = at * row.dims.1 as usize..(at + 1) * row.dims.1 as usize;
                let products = out.values[of_head.clone()].iter().zip(&dout.values[of_head]);
                let products = products.map(|(out, dout)| out * dout);
                let (delta, size) =
                    products.fold((0.0, 0.0), |(sum, size), x: f64| (sum + x, size + x.abs()));
                let [sink, lse] = [sinks.values[head], lse.values[at]];
                let share = (sink - lse).exp();
                // An error of the exponent, which is as large as its terms, is a relative error of the share.
                (share * delta, share * size * (1.0 + sink.abs() + lse.abs()))
            };
            let (sum, size) = rows.map(term).fold((0.0, 0.0), |of, term| (of.0 + term.0, of.1 + term.1));
            (before.values[head] - sum, before.values[head].abs() + size)
        };
        let (want, sizes): (Vec<f64>, Vec<f64>) = (0..layout.heads as usize).map(of_saved).unzip();
        if row.element == F32 {
            let documents = row.starts();
            let shape = row.reference(&documents, &factors, Some(&sinks));
            let exact = reference::sinks_backward(&q, &k, &v, &dout.values, &shape);
            for (head, exact) in exact.iter().enumerate() {
                let apart = (before.values[head] + exact - want[head]).abs();
                assert!(apart < 1e-5 * sizes[head], "the gradient of sink {head} is {apart} off");
            }
        }
        (want, sizes)
    });
    let (want, sizes) = (*want).clone();
    // A sum over all rows, each a product of as many terms as a value has elements.
    let allowed = allowed(F32, row.dims.1 + n);
    case.expect_terms("dsinks", before.tensor, 0..layout.heads, want, allowed, sizes);
}

/// The terms w x that a result is the sum of, once the weights w are known.
#[derive(Clone)]
struct Terms {
    /// For each element the sum of their absolute values.
    sizes: Vec<f64>,
    /// The absolute value of the largest x, with whatever multiplies the sum.
    largest: f64,
}

fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |largest, value| value.abs().max(largest))
}

/// Random rows scaled by `size`.
fn input(case: &mut Case, rows: u32, layout: &HeadLayout, size: f64, element: Element) -> (Tensor, Vec<f64>) {
    let cols = layout.cols();
    let values: Vec<f64> = (0..rows * cols).map(|_| size * case.normal()).collect();
    let input = case.input_of(&values, rows, cols, element);
    (input.tensor, input.values)
}
