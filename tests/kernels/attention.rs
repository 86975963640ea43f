//! Attention, forward and backward, against the f64 reference.

use crate::draws::DropoutWords;
use crate::lab::{Bits, Case, allowed, check, check_matrices, check_tier, check_units};
use crate::packed::{document_bounds, split_qkv};
use ::reference::attention as reference;
use ::reference::largest_scores::largest_scores;
use gristmill::element::Element::{self, Bf16, F16, F32};
use gristmill::kernels::{Capabilities, Condition, Matrices, Tier, Units};
use gristmill::ops::attention::{Attention, AttentionTensors, DocumentBounds, attention, attention_backward};
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
    alibi: false,
    dropout: 0.0,
    element: F32,
};

/// Covers each head size, sequence length, grouping of heads and storage type, but not each combination. Large sizes are
/// combined with small ones, because a software driver takes seconds to compile the largest kernels.
const ROWS: [Row; 25] = [
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
    alibi: bool,
    /// Lengths of the documents in a sequence; empty if the sequence is one document.
    documents: &'static [u32],
    /// Share of the weights that are dropped.
    dropout: f32,
    element: Element,
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { batch, tokens, heads, dims, causal, window, alibi, documents, dropout, element } = self;
        let mask = if *causal { "causal" } else { "full" };
        write!(f, "{batch}x{tokens} heads {heads:?} of {dims:?} {mask} {element:?}")?;
        window.iter().try_for_each(|window| write!(f, " window {window}"))?;
        if *alibi {
            write!(f, " alibi")?;
        }
        if *dropout > 0.0 {
            write!(f, " dropout {dropout}")?;
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
            scale: 1.0 / (self.dims.0 as f32).sqrt(),
            window: self.window,
            has_alibi: self.alibi,
            head_range: None,
            dropout: None,
        }
    }

    fn reference<'a>(&self, starts: &'a [usize], factors: &'a [f64]) -> reference::Attention<'a> {
        reference::Attention {
            tokens: self.tokens as usize,
            heads: self.heads.0 as usize,
            kv_heads: self.heads.1 as usize,
            head_dim: self.dims.0 as usize,
            value_dim: self.dims.1 as usize,
            causal: self.causal,
            scale: f64::from(self.shape().scale),
            window: self.window.map(|window| window as usize),
            starts: (!self.documents.is_empty()).then_some(starts),
            factors: (!factors.is_empty()).then_some(factors),
            alibi: self.alibi,
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

    /// What the error of each result of `want` is relative to, beside `weighted`, the sum of the absolute values of its terms: its own size
    /// and the root mean square of all, as ever. Matrices multiply weights of f16. Rounded toward zero, which an adapter may do, each is off
    /// by 2^-10 of itself at most, and so is its term.
    fn sizes(&self, case: &Case, want: &[f64], weighted: &[f64]) -> Vec<f64> {
        let rms = (want.iter().map(|x| x * x).sum::<f64>() / want.len() as f64).sqrt();
        let is_by_matrices = self.files(case.rec.capabilities()).iter().any(|file| file.contains("matrix"));
        let of_weights = if is_by_matrices { 2f64.powi(-10) / self.allowed() } else { 0.0 };
        want.iter().zip(weighted).map(|(x, terms)| x.abs() + rms + of_weights * terms).collect()
    }

    /// The error allowed to results of the elements' type.
    fn allowed(&self) -> f64 {
        allowed(self.element, self.terms())
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

    /// The longest chain of sums behind a result: a score, then the sum over the keys (or queries of the group).
    fn terms(&self) -> u32 {
        self.dims.0 + self.dims.1 + self.tokens * self.heads.0 / self.heads.1
    }
}

#[test]
fn attention_is_the_weighted_mean_of_the_values() {
    for row in &ROWS {
        check(&format!("attention {row}"), |case| forward(case, row, 1.0));
    }
}

/// The head sizes of most models, and a sequence of many blocks and tiles, with the kernels that a GPU runs alone: those of the
/// software tier take llvmpipe several times as long to compile.
#[test]
fn attention_at_the_sizes_of_a_gpu() {
    for row in [
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
        // One token less than a block, as many, one more; tiles of 64 and 128, whole and in part, of which the last has one step.
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
    ] {
        check_tier(&format!("attention {row}"), Tier::Portable, &|case| forward(case, &row, 1.0));
        check_tier(&format!("attention_backward {row}"), Tier::Portable, &|case| backward(case, &row));
    }
}

/// Blocks of 64 queries in groups of 8 lanes, where there is work for a whole GPU, and of 16, where there is not or masks need the
/// registers; tiles of 128 keys in one to four steps.
#[test]
fn attention_forward_in_narrow_and_wide_groups() {
    for (units, width, row) in [
        (1, 8, Row { batch: 1, tokens: 129, heads: (6, 2), dims: (64, 64), ..BASE }),
        (1, 8, Row { tokens: 200, heads: (4, 4), dims: (40, 48), causal: false, element: Bf16, ..BASE }),
        (64, 16, Row { batch: 1, tokens: 257, heads: (3, 1), dims: (64, 64), ..BASE }),
        (64, 16, Row { tokens: 161, heads: (2, 1), dims: (40, 60), causal: false, element: F16, ..BASE }),
        (1, 16, Row { tokens: 200, heads: (2, 1), dims: (64, 64), window: Some(70), ..BASE }),
        (1, 16, Row { tokens: 225, heads: (3, 3), dims: (36, 64), alibi: true, element: F16, ..BASE }),
        (1, 16, Row { dims: (64, 36), dropout: 0.0, alibi: true, element: Bf16, ..EVERYTHING }),
    ] {
        let (n, shape) = (row.batch * row.tokens, row.shape());
        let units_of = Units { count: units, ..Units::ASSUMED };
        let mut rec = Recorder::new("case", Capabilities::portable().with_units(units_of));
        let qkv = rec.tensor("qkv", n, shape.layout.cols(), F32);
        let out = rec.tensor("out", n, shape.layout.out_cols(), F32);
        let lse = rec.tensor("lse", n, row.heads.0, F32);
        attention(&mut rec, &AttentionTensors::new(qkv, out, lse), &shape);
        let kernel = rec.finish().dispatches.remove(0).kernel;
        let is_masked_by_documents = !row.documents.is_empty();
        assert!(is_masked_by_documents || kernel.constants().contains(&("WIDTH", width)), "{row}: {kernel}");
        check_units(&format!("attention {row} in groups of {width}"), units, &|case| {
            forward(case, &row, 1.0)
        });
    }
}

/// Heads up to 4 matrices of 8 x 8 wide, whole and in part; blocks and tiles that end within a matrix, with one, and after many; each
/// mask and all of them; heads that share keys.
const BY_MATRICES: [Row; 16] = [
    Row { element: F16, ..BASE },
    Row { batch: 3, tokens: 1, dims: (4, 4), element: F16, ..BASE },
    Row { tokens: 5, heads: (3, 1), dims: (12, 4), causal: false, element: F16, ..BASE },
    Row { tokens: 31, heads: (5, 1), dims: (20, 32), element: F16, ..BASE },
    Row { batch: 1, tokens: 64, heads: (4, 4), dims: (8, 16), element: F16, ..BASE },
    Row { batch: 1, tokens: 65, heads: (1, 1), dims: (32, 12), causal: false, element: F16, ..BASE },
    Row { batch: 1, tokens: 257, heads: (2, 1), dims: (24, 24), element: F16, ..BASE },
    Row { tokens: 130, heads: (2, 1), dims: (8, 12), window: Some(7), element: F16, ..BASE },
    Row { batch: 1, tokens: 257, heads: (1, 1), dims: (32, 8), window: Some(100), element: F16, ..BASE },
    Row { tokens: 130, heads: (2, 1), dims: (12, 8), documents: &[1, 40, 3, 86], element: F16, ..BASE },
    Row { tokens: 130, heads: (4, 2), dims: (8, 12), dropout: 0.25, element: F16, ..BASE },
    Row { tokens: 35, heads: (2, 1), dims: (12, 4), causal: false, dropout: 0.5, element: F16, ..BASE },
    Row { tokens: 131, heads: (6, 2), dims: (8, 12), alibi: true, element: F16, ..BASE },
    Row { element: F16, ..EVERYTHING },
    Row { heads: (12, 4), dims: (32, 32), alibi: true, element: F16, ..EVERYTHING },
    Row { batch: 1, tokens: 1000, heads: (1, 1), dims: (16, 16), element: F16, ..BASE },
];

/// Each row with the subgroups of llvmpipe or of most GPUs, and one with smaller and larger ones than there are. Turns of strips are what only
/// a driver with larger subgroups than a kernel is written for takes: llvmpipe's 8 lanes make as many subgroups as there are strips.
#[test]
fn attention_by_matrices() {
    let others = [4, 16, 32].map(|subgroup| (&BY_MATRICES[3], subgroup));
    for (row, subgroup) in BY_MATRICES.iter().map(|row| (row, 8)).chain(others) {
        let name = format!("attention {row} by matrices in subgroups of {subgroup}");
        check_matrices(
            &name,
            64,
            &|side| if side == 8 { subgroup } else { (4 * subgroup).min(64) },
            &|case| {
                let files = row.files(case.rec.capabilities());
                let of = |pass| format!("attention/matrix/{pass}");
                assert_eq!(files, ["forward", "backward_q", "backward_kv"].map(of));
                forward(case, row, 1.0);
                backward(case, row);
            },
        );
    }
}

/// Wider heads have a kernel for the forward pass alone, or none, and elements other than f16 have none.
#[test]
fn attention_is_by_matrices_where_they_fit() {
    let passes = |dims, element, side| {
        let row = Row { dims, element, ..BASE };
        let files = row.files(Capabilities::matrix().with_matrices(Matrices { side, subgroup: 32 }));
        files.into_iter().filter(|file| file.starts_with("attention/matrix")).count()
    };
    for (side, dims, count) in [
        (16, (64, 64), 3),
        (16, (4, 64), 3),
        (16, (68, 64), 1),
        (16, (64, 128), 1),
        (16, (128, 128), 1),
        (16, (132, 4), 0),
        (16, (192, 128), 0),
        (8, (32, 32), 3),
        (8, (32, 36), 1),
        (8, (64, 64), 1),
        (8, (64, 68), 0),
    ] {
        assert_eq!(passes(dims, F16, side), count, "{dims:?} by matrices of {side}");
        assert_eq!([F32, Bf16].map(|element| passes(dims, element, side)), [0, 0]);
    }
}

/// Scores that rise along the keys: each tile exceeds the reference of those before it, and sums are multiplied again and again.
#[test]
fn attention_by_matrices_with_rising_scores() {
    for dims in [(16, 16), (16, 32), (32, 64)] {
        let row = Row { batch: 1, tokens: 200, heads: (1, 1), dims, element: F16, ..BASE };
        check_matrices(&format!("attention {row} of rising scores"), 64, &|side| 4 * side, &|case| {
            let (layout, n) = (row.shape().layout, row.tokens);
            let cols = layout.cols() as usize;
            let mut values: Vec<f64> = (0..n as usize * cols).map(|_| case.normal()).collect();
            for (token, values) in values.chunks_mut(cols).enumerate() {
                values[0] = 4.0;
                values[layout.k_start() as usize] =
                    40.0 * (token as f64 / 200.0) * f64::from(row.dims.0).sqrt();
            }
            let qkv = case.input_of(&values, n, layout.cols(), F16);
            let [q, k, v] = split_qkv(&qkv.values, &layout);
            let (out, lse) = (case.output(n, layout.out_cols(), F16), case.output(n, 1, F32));
            attention(&mut case.rec, &AttentionTensors::new(qkv.tensor, out, lse), &row.shape());
            let (want, want_lse) = reference::attention(&q, &k, &v, &row.reference(&[], &[]));
            let absolute: Vec<f64> = v.iter().map(|v| v.abs()).collect();
            let (weighted, _) = reference::attention(&q, &k, &absolute, &row.reference(&[], &[]));
            let sizes = row.sizes(case, &want, &weighted);
            case.expect_terms("out", out, 0..layout.out_cols(), want, row.allowed(), sizes);
            case.expect("lse", lse, want_lse, allowed(F32, row.terms()));
        });
    }
}

/// One sequence with many heads.
const ONE: Row = Row { batch: 1, heads: (12, 12), ..BASE };

/// Units of a GPU, and in how many parts one backward pass leaves dq there: as few as keep all units busy, and no more than there are
/// blocks of keys, which are 64 at head sizes up to 32 and else 32.
const IN_PARTS: [(u32, u32, Row); 12] = [
    (12, 3, Row { tokens: 130, ..ONE }),
    (12, 3, Row { tokens: 129, heads: (24, 12), dims: (16, 4), causal: false, ..ONE }),
    (32, 3, Row { tokens: 131, heads: (24, 12), dims: (16, 8), alibi: true, element: Bf16, ..ONE }),
    // Fewer parts than blocks, which take turns; 8 parts of 9 blocks, of which the last holds one key; one part.
    (12, 3, Row { tokens: 200, heads: (6, 6), dims: (16, 12), dropout: 0.25, ..BASE }),
    (32, 8, Row { tokens: 257, dims: (36, 4), element: F16, ..ONE }),
    (32, 8, Row { tokens: 255, dims: (64, 64), element: Bf16, ..ONE }),
    (4, 1, Row { tokens: 255, dims: (64, 64), element: Bf16, ..ONE }),
    // Queries that see keys of some parts only.
    (12, 3, Row { tokens: 257, dims: (64, 12), window: Some(40), element: Bf16, ..ONE }),
    (12, 3, Row { tokens: 257, heads: (6, 6), dims: (16, 36), window: Some(100), element: F16, ..BASE }),
    (24, 3, Row { tokens: 130, heads: (12, 12), dims: (40, 8), documents: &[1, 40, 3, 86], ..BASE }),
    (4, 1, Row { batch: 4, heads: (24, 12), element: F16, ..EVERYTHING }),
    (32, 2, Row { batch: 4, heads: (24, 12), dims: (36, 40), alibi: true, element: Bf16, ..EVERYTHING }),
];

/// Two passes over as many numbers in f32 are further from the reference than `allowed` expects of the worst: a query that sees one key
/// has no gradient, and what is left is rounding. So rows of long sums are stored in 16 bits, and the next test has them in f32.
#[test]
fn attention_backward_with_parts_of_the_queries_is_the_gradient() {
    for (units, parts, row) in IN_PARTS {
        assert_eq!(parts_of(&row, units), Some(parts), "{row} on {units} units");
        check_units(&format!("attention_backward {row} in {parts} parts"), units, &|case| {
            backward(case, &row)
        });
    }
    let gpt = Row { batch: 4, tokens: 1024, heads: (12, 12), dims: (64, 64), ..BASE };
    for (units, parts) in [(8, Some(1)), (32, Some(2)), (64, Some(4)), (128, Some(8))] {
        assert_eq!(parts_of(&gpt, units), parts, "{units} units");
    }
    for (why, row) in [
        ("wide heads", Row { dims: (64, 68), ..gpt }),
        ("a window so short that parts are more than what it sees", Row { window: Some(7), ..gpt }),
        ("less work than launches", Row { batch: 12, tokens: 64, heads: (4, 4), dims: (32, 32), ..gpt }),
        ("1.5 GiB", Row { tokens: 1 << 16, dims: (16, 16), ..gpt }),
    ] {
        assert_eq!(parts_of(&row, 128), None, "{why}");
    }
    assert_eq!(parts_of(&Row { tokens: 1 << 15, dims: (16, 16), ..gpt }, 128), Some(8), "768 MiB");
}

/// The rows in 16 bits once more, within the bound of an analysis of rounding errors: each element relative to the sum of the
/// absolute values behind it.
#[test]
fn attention_backward_with_parts_is_as_exact_as_its_terms() {
    for (units, parts, row) in IN_PARTS.into_iter().filter(|(_, _, row)| row.element != F32) {
        let row = Row { element: F32, ..row };
        check_units(&format!("attention_backward {row} in {parts} parts by its terms"), units, &|case| {
            backward_within(case, &row, Within::Terms);
        });
    }
}

/// Units of a GPU, and in how many parts the backward pass leaves dq there, and the gradients of keys and values, whose heads are few.
const KEYS_IN_PARTS: [(u32, Option<u32>, u32, Row); 9] = [
    (64, None, 4, Row { tokens: 257, heads: (4, 1), dims: (128, 68), ..ONE }),
    (64, None, 6, Row { tokens: 257, heads: (6, 1), dims: (36, 72), causal: false, element: Bf16, ..ONE }),
    (64, None, 3, Row { tokens: 257, heads: (6, 2), dims: (160, 4), element: F16, ..ONE }),
    (16, None, 3, Row { tokens: 257, heads: (6, 1), dims: (68, 4), window: Some(200), ..ONE }),
    (64, None, 12, Row { heads: (24, 2), window: Some(120), ..EVERYTHING }),
    (12, Some(3), 6, Row { tokens: 257, heads: (12, 2), dims: (16, 12), ..ONE }),
    (12, Some(3), 6, Row { tokens: 257, heads: (12, 2), dims: (36, 4), alibi: true, element: F16, ..ONE }),
    (32, Some(8), 4, Row { tokens: 513, heads: (12, 3), dims: (64, 12), element: Bf16, ..ONE }),
    (12, Some(3), 3, Row { heads: (24, 2), dims: (36, 12), window: Some(120), ..EVERYTHING }),
];

#[test]
fn attention_backward_with_parts_of_the_keys_is_the_gradient() {
    for (units, parts, key_parts, row) in KEYS_IN_PARTS {
        assert_eq!(
            (parts_of(&row, units), key_parts_of(&row, units)),
            (parts, key_parts),
            "{row} on {units} units"
        );
        check_units(&format!("attention_backward {row} in {key_parts} parts of keys"), units, &|case| {
            backward(case, &row)
        });
    }
    // Four heads of keys under 32 of queries, one sequence; a small Mixtral; and enough heads and sequences without parts.
    let llama = Row { tokens: 2048, heads: (32, 4), dims: (64, 64), ..ONE };
    let mixtral = Row { batch: 4, tokens: 1024, heads: (12, 4), dims: (64, 64), ..BASE };
    let wide = Row { batch: 4, tokens: 2048, heads: (32, 8), dims: (128, 128), ..BASE };
    for (row, units, parts) in [
        (llama, 96, (Some(8), 8)),
        (llama, 132, (None, 8)),
        (mixtral, 96, (Some(6), 3)),
        (mixtral, 132, (Some(8), 3)),
        (wide, 132, (None, 1)),
    ] {
        assert_eq!((parts_of(&row, units), key_parts_of(&row, units)), parts, "{row} on {units} units");
    }
}

/// In how many parts the backward pass of `row` leaves the gradients of keys and values.
fn key_parts_of(row: &Row, units: u32) -> u32 {
    let dispatches = backward_on(row, units);
    let of_keys = dispatches.iter().find(|of| of.kernel.entry == "attention_backward_kv");
    of_keys.expect("there is one").grid[0] / row.heads.1
}

/// In how many parts the backward pass of `row` leaves dq, on a GPU of so many units with the limits that most have.
fn parts_of(row: &Row, units: u32) -> Option<u32> {
    let dispatches = backward_on(row, units);
    let split = dispatches.iter().find(|of| of.kernel.conditions().any(|c| c == Condition::Split));
    split.filter(|of| of.kernel.entry == "attention_backward_kv").map(|of| of.grid[2])
}

fn backward_on(row: &Row, units: u32) -> Vec<Dispatch> {
    let units = Units { count: units, ..Units::ASSUMED };
    Row { element: F32, ..*row }.recorded(Capabilities::portable().with_units(units))
}

#[test]
fn attention_with_large_scores_does_not_overflow() {
    // Scores of several hundred, so all weights except one are zero.
    check("attention of large scores", |case| forward(case, &BASE, 10.0));
}

fn forward(case: &mut Case, row: &Row, size: f64) {
    let n = row.batch * row.tokens;
    let qkv = input(case, n, &row.shape().layout, size, row.element);
    let [q, k, v] = split_qkv(&qkv.1, &row.shape().layout);
    let out = case.output(n, row.shape().layout.out_cols(), row.element);
    let lse = case.output(n, row.heads.0, F32);
    let (bounds, dropout) = (row.document_bounds(case), row.dropout(case));
    let factors = row.factors(dropout);
    let logits = case.output(n, row.heads.0, F32);
    let shape = Attention { dropout, ..row.shape() };
    attention(
        &mut case.rec,
        &AttentionTensors {
            documents: bounds,
            logits: Some(logits),
            ..AttentionTensors::new(qkv.0, out, lse)
        },
        &shape,
    );
    let starts = row.starts();
    let (want_out, want_lse) = reference::attention(&q, &k, &v, &row.reference(&starts, &factors));
    let want_logits = largest_scores(&q, &k, &row.reference(&starts, &factors));
    // Both variants of the kernel; that without logits is the one of most runs.
    let (plain, plain_lse) =
        (case.output(n, row.shape().layout.out_cols(), row.element), case.output(n, row.heads.0, F32));
    attention(
        &mut case.rec,
        &AttentionTensors { documents: bounds, ..AttentionTensors::new(qkv.0, plain, plain_lse) },
        &shape,
    );
    let absolute: Vec<f64> = v.iter().map(|v| v.abs()).collect();
    let (weighted, _) = reference::attention(&q, &k, &absolute, &row.reference(&starts, &factors));
    let sizes = row.sizes(case, &want_out, &weighted);
    let (columns, allowed_out) = (0..row.shape().layout.out_cols(), (size * size) * row.allowed());
    case.expect_terms("plain out", plain, columns.clone(), want_out.clone(), allowed_out, sizes.clone());
    case.expect("plain lse", plain_lse, want_lse.clone(), allowed(F32, row.terms()));
    case.expect("logits", logits, want_logits, allowed(F32, row.terms()));
    // A score of size s has an absolute error of some f32 roundings of s; so has its weight, relative to its size.
    case.expect_terms("out", out, columns, want_out, allowed_out, sizes);
    case.expect("lse", lse, want_lse, allowed(F32, row.terms()));
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

/// Windows and segments compile to other variants of the kernels. A window as long as the sequence or longer, and a single
/// document per sequence, must give the results of plain causal attention.
#[test]
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
fn attention_backward_is_the_gradient() {
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
    let qkv = input(case, n, &layout, 1.0, row.element);
    let [q, k, v] = split_qkv(&qkv.1, &layout);
    let (starts, bounds) = (row.starts(), row.document_bounds(case));
    let dropout = row.dropout(case);
    let factors = row.factors(dropout);
    let (out, lse) = reference::attention(&q, &k, &v, &row.reference(&starts, &factors));
    let out = case.input_of(&out, n, layout.out_cols(), row.element);
    let lse = case.input_of(&lse, n, layout.heads, F32);
    let dout = case.input(n, layout.out_cols(), row.element);
    let dqkv = case.output(n, layout.cols(), row.element);
    let (rec, shape) = (&mut case.rec, Attention { dropout, ..row.shape() });
    attention_backward(
        rec,
        &AttentionTensors { documents: bounds, ..AttentionTensors::new(qkv.0, out.tensor, lse.tensor) },
        dout.tensor,
        dqkv,
        &shape,
    );
    let saved = from_saved([&q, &k, &v], &out.values, &dout.values, &lse.values, (row, &factors));
    let [dq, dk, dv] = saved.gradients;
    if row.element == F32 {
        // The saved values are nearly exact, so the gradient must be the reference's own.
        let (a, b, c) =
            reference::attention_backward(&q, &k, &v, &dout.values, &row.reference(&starts, &factors));
        for (ours, theirs) in [(&dq, a), (&dk, b), (&dv, c)] {
            let worst = ours.iter().zip(&theirs).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
            assert!(worst < 1e-5, "the gradient from saved values is {worst} away from the gradient");
        }
    }
    // Each relative to its own size, because the three can differ by orders of magnitude.
    let starts = [0, layout.k_start(), layout.v_start(), layout.cols()];
    let gradients =
        [("dq", dq), ("dk", dk), ("dv", dv)].into_iter().zip(saved.weighted.into_iter().zip(saved.terms));
    for (i, ((label, want), (weighted, terms))) in gradients.enumerate() {
        let columns = starts[i]..starts[i + 1];
        let sizes = match within {
            Within::Rms => row.sizes(case, &want, &weighted),
            Within::Terms => terms,
        };
        case.expect_terms(label, dqkv, columns, want, row.allowed(), sizes);
    }
}

/// dq, dk and dv, and for each element the sum of the absolute values of what is added up for it, once the weights are known, and of all
/// terms behind it.
struct FromSaved {
    gradients: [Vec<f64>; 3],
    weighted: [Vec<f64>; 3],
    terms: [Vec<f64>; 3],
}

/// The gradient as the kernel computes it: weights from the saved log-sum-exp, delta from the saved, rounded output. An error in a score
/// is as large as the score's own terms allow, and is a relative error of its weight.
fn from_saved(
    [q, k, v]: [&[f64]; 3],
    out: &[f64],
    dout: &[f64],
    lse: &[f64],
    (row, factors): (&Row, &[f64]),
) -> FromSaved {
    let reference::Attention {
        tokens,
        heads,
        kv_heads,
        head_dim,
        value_dim,
        causal,
        scale,
        window,
        alibi,
        ..
    } = row.reference(&[], &[]);
    let starts = row.starts();
    let [[mut dq, mut dk, mut dv], mut weighted, [mut of_dq, mut of_dk, mut of_dv]] =
        [(); 3].map(|()| [q, k, v].map(|x| vec![0.0; x.len()]));
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let sizes = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a * b).abs()).sum::<f64>();
    let add = |y: &mut [f64], a: f64, x: &[f64]| y.iter_mut().zip(x).for_each(|(y, x)| *y += a * x);
    let add_sizes =
        |y: &mut [f64], a: f64, x: &[f64]| y.iter_mut().zip(x).for_each(|(y, x)| *y += (a * x).abs());
    for i in 0..lse.len() / heads {
        for head in 0..heads {
            let query = (i * heads + head) * head_dim..(i * heads + head + 1) * head_dim;
            let output = (i * heads + head) * value_dim..(i * heads + head + 1) * value_dim;
            let delta = dot(&out[output.clone()], &dout[output.clone()]);
            let of_delta = sizes(&out[output.clone()], &dout[output.clone()]);
            let start = i - i % tokens;
            let document = start + starts.get(i).copied().unwrap_or(0);
            let first = window.map_or(document, |window| document.max((i + 1).saturating_sub(window)));
            let slope = if alibi { reference::alibi_slope(head, heads) } else { 0.0 };
            for j in first..if causal { i + 1 } else { start + tokens } {
                let kv = j * kv_heads + head / (heads / kv_heads);
                let key = kv * head_dim..(kv + 1) * head_dim;
                let value = kv * value_dim..(kv + 1) * value_dim;
                let score = scale * dot(&q[query.clone()], &k[key.clone()]) - slope * (i as f64 - j as f64);
                let p = (score - lse[i * heads + head]).exp();
                let m = factors.get((i * heads + head) * tokens + j % tokens).copied().unwrap_or(1.0);
                let ds = p * (m * dot(&dout[output.clone()], &v[value.clone()]) - delta);
                let of_score =
                    scale * sizes(&q[query.clone()], &k[key.clone()]) + slope * (i as f64 - j as f64);
                let of_p = p * (1.0 + of_score + lse[i * heads + head].abs());
                let of_ds = of_p * (m * sizes(&dout[output.clone()], &v[value.clone()]) + of_delta);
                add_sizes(&mut of_dq[query.clone()], scale * of_ds, &k[key.clone()]);
                add_sizes(&mut of_dk[key.clone()], scale * of_ds, &q[query.clone()]);
                add_sizes(&mut of_dv[value.clone()], of_p * m, &dout[output.clone()]);
                add_sizes(&mut weighted[0][query.clone()], scale * ds, &k[key.clone()]);
                add_sizes(&mut weighted[1][key.clone()], scale * ds, &q[query.clone()]);
                add_sizes(&mut weighted[2][value.clone()], p * m, &dout[output.clone()]);
                add(&mut dq[query.clone()], scale * ds, &k[key.clone()]);
                add(&mut dk[key], scale * ds, &q[query.clone()]);
                add(&mut dv[value], p * m, &dout[output.clone()]);
            }
        }
    }
    FromSaved { gradients: [dq, dk, dv], weighted, terms: [of_dq, of_dk, of_dv] }
}

/// Random rows scaled by `size`.
fn input(case: &mut Case, rows: u32, layout: &HeadLayout, size: f64, element: Element) -> (Tensor, Vec<f64>) {
    let cols = layout.cols();
    let values: Vec<f64> = (0..rows * cols).map(|_| size * case.normal()).collect();
    let input = case.input_of(&values, rows, cols, element);
    (input.tensor, input.values)
}
