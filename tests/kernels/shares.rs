//! What a rank computes that shares matrices, tokens and the vocabulary with others: rows and columns of a mask, some
//! of the heads, some rows of the embedding, against the reference of the whole.

use crate::draws::DropoutWords;
use crate::lab::{Case, allowed, check, order_by_id, sum};
use crate::packed::{columns, pack_qkv, split_qkv};
use ::reference::{attention as whole, embedding as table};
use gristmill::element::Element::{self, Bf16, F16, F32};
use gristmill::ops::attention::{Attention, AttentionTensors, HeadRange, attention, attention_backward};
use gristmill::ops::dropout::{Dropout, DropoutState, MaskPart, dropout};
use gristmill::ops::embedding::{embedding_of_rows, embedding_of_rows_backward};
use gristmill::ops::heads::HeadLayout;
use std::ops::Range;

const ELEMENTS: [Element; 3] = [F32, F16, Bf16];

const SEED: u64 = 11 << 40 | 3;
const SITE: u32 = 6;
const STEP: u32 = 5;
const MICRO_STEP: u32 = 2;
const WORDS: DropoutWords = DropoutWords { seed: SEED, site: SITE, step: STEP, micro_step: MICRO_STEP };

fn place(case: &mut Case, probability: f32, part: Option<MaskPart>) -> Dropout {
    let state = case.state(DropoutState { step: STEP, micro_step: MICRO_STEP });
    Dropout { probability, seed: SEED, site: SITE, state, part }
}

/// The factor of what word number `lane` of `words` decides on.
fn factor(dropout: &Dropout, words: [u32; 4], lane: u32) -> f64 {
    let is_kept = words[lane as usize] >= dropout.threshold();
    if is_kept { 1.0 / (1.0 - f64::from(dropout.probability)) } else { 0.0 }
}

/// Rows as sequence parallelism divides them, and columns.
#[test]
fn part_of_a_mask() {
    for ((rows, cols, of_rows, of_cols), element) in
        [(67, 36, 5..40, 0..36), (33, 31, 32..33, 0..31), (12, 52, 0..12, 16..33), (9, 40, 4..9, 8..20)]
            .into_iter()
            .flat_map(|shape| ELEMENTS.map(|element| (shape.clone(), element)))
    {
        let name =
            format!("dropout of rows {of_rows:?} and columns {of_cols:?} of {rows}x{cols} {element:?}");
        check(&name, |case| {
            let part = MaskPart { first_row: of_rows.start, first_col: of_cols.start, cols };
            let place = place(case, 0.3, Some(part));
            let [own_rows, own_cols] = [&of_rows, &of_cols].map(|range| range.end - range.start);
            let x = case.input(own_rows, own_cols, element);
            let y = case.output(own_rows, own_cols, element);
            dropout(&mut case.rec, x.tensor, None, y, false, &place);
            let groups = u32::div_ceil(cols, 4);
            let mask = of_rows.clone().flat_map(|row| of_cols.clone().map(move |col| (row, col)));
            let factors = mask.map(|(row, col)| factor(&place, WORDS.at(row * groups + col / 4, 0), col % 4));
            let want = factors.zip(&x.values).map(|(factor, x)| factor * x).collect();
            case.expect("y", y, want, allowed(element, 1));
        });
    }
}

/// Six heads in three groups, of which a rank has one or two: each head has the slope of ALiBi and the mask of its own
/// number. That the gradient follows what is stored in 16 bits is tested in attention.rs.
#[test]
fn range_of_heads() {
    for groups in [0..1, 1..3, 2..3] {
        check(&format!("attention of groups {groups:?} of 3"), |case| heads(case, groups.clone()));
    }
}

fn heads(case: &mut Case, groups: Range<u32>) {
    const EACH: u32 = 2;
    let (tokens, of) = (37, HeadLayout { heads: 6, kv_heads: 3, head_dim: 12, value_dim: 8 });
    let count = groups.end - groups.start;
    let own = HeadLayout { heads: EACH * count, kv_heads: count, ..of };
    let heads = EACH * groups.start..EACH * groups.end;
    let dropout = place(case, 0.25, None);
    let shape = Attention {
        layout: own,
        tokens,
        is_causal: true,
        scale: 0.25,
        soft_cap: None,
        window: None,
        has_alibi: true,
        head_range: Some(HeadRange { first: heads.start, of: of.heads }),
        dropout: Some(dropout),
    };
    let range = |heads: &Range<u32>, width: u32| (heads.start * width) as usize..(heads.end * width) as usize;
    let share = |[q, k, v]: &[Vec<f64>; 3]| {
        [
            columns(q, of.q_cols(), range(&heads, of.head_dim)),
            columns(k, of.k_cols(), range(&groups, of.head_dim)),
            columns(v, of.v_cols(), range(&groups, of.value_dim)),
        ]
    };
    let whole_qkv = case.input(tokens, of.cols(), F32).values;
    let [q, k, v] = split_qkv(&whole_qkv, &of);
    let own_qkv = pack_qkv(&share(&[q.clone(), k.clone(), v.clone()]), &own);
    let qkv = case.input_of(&own_qkv, tokens, own.cols(), F32).tensor;
    let whole_dout = case.input(tokens, of.out_cols(), F32).values;
    let out_range = range(&heads, of.value_dim);
    let own_dout = columns(&whole_dout, of.out_cols(), out_range.clone());
    let dout = case.input_of(&own_dout, tokens, own.out_cols(), F32).tensor;

    let vectors = (0..tokens * of.heads).flat_map(|vector| (0..tokens).map(move |key| (vector, key)));
    let factors: Vec<f64> =
        vectors.map(|(vector, key)| factor(&dropout, WORDS.at(vector, key / 4), key % 4)).collect();
    let reference = whole::Attention {
        tokens: tokens as usize,
        heads: of.heads as usize,
        kv_heads: of.kv_heads as usize,
        head_dim: of.head_dim as usize,
        value_dim: of.value_dim as usize,
        causal: true,
        scale: 0.25,
        soft_cap: None,
        window: None,
        starts: None,
        factors: Some(&factors),
        alibi: true,
        sinks: None,
    };
    let (want, want_lse) = whole::attention(&q, &k, &v, &reference);
    let (dq, dk, dv) = whole::attention_backward(&q, &k, &v, &whole_dout, &reference);

    let (out, lse) = (case.output(tokens, own.out_cols(), F32), case.output(tokens, own.heads, F32));
    let dqkv = case.output(tokens, own.cols(), F32);
    let tensors = AttentionTensors::new(qkv, out, lse);
    attention(&mut case.rec, &tensors, &shape);
    attention_backward(&mut case.rec, &tensors, dout, dqkv, &shape);
    let terms = of.head_dim + of.value_dim + EACH * tokens;
    case.expect("out", out, columns(&want, of.out_cols(), out_range), allowed(F32, terms));
    case.expect("lse", lse, columns(&want_lse, of.heads, range(&heads, 1)), allowed(F32, terms));
    let starts = [0, own.k_start(), own.v_start(), own.cols()];
    for (part, want) in share(&[dq, dk, dv]).into_iter().enumerate() {
        let columns = starts[part]..starts[part + 1];
        case.expect_columns(&format!("dqkv {part}"), dqkv, columns, want, 4.0 * allowed(F32, terms));
    }
}

/// Ids of other ranks are rows of zeros, and rows of other ranks have no gradient here. In two parts, as large tables
/// are.
#[test]
fn rows_of_an_embedding() {
    for ((first, rows), element) in
        [(0, 20), (13, 14), (26, 14)].into_iter().flat_map(|share| ELEMENTS.map(|element| (share, element)))
    {
        check(&format!("embedding of rows {first} to {} of 40 {element:?}", first + rows), |case| {
            let (tokens, vocab, cols) = (65u32, 40u32, 31u32);
            // Halves are exact.
            let factor = (first == 13).then_some(0.5f32);
            let times =
                |x: Vec<f64>| x.iter().map(|x| f64::from(factor.unwrap_or(1.0)) * x).collect::<Vec<_>>();
            let ids = case.ids_below(tokens as usize, vocab);
            let (ids_tensor, order) = (case.integers(&ids), case.integers(&order_by_id(&ids)));
            let here = (first * cols) as usize..((first + rows) * cols) as usize;
            let mut values = vec![0.0; (vocab * cols) as usize];
            let parts = [rows / 2, rows - rows / 2].map(|rows| case.input(rows, cols, element));
            values[here.clone()].copy_from_slice(&parts.each_ref().map(|part| part.values.clone()).concat());
            let before = [rows / 2, rows - rows / 2].map(|rows| case.input(rows, cols, F32));
            let (y, dy) = (case.output(tokens, cols, element), case.input(tokens, cols, element));
            let of_parts = parts.each_ref().map(|part| part.tensor);
            embedding_of_rows(&mut case.rec, ids_tensor, &of_parts, first, factor, y);
            let gradients = before.each_ref().map(|part| part.tensor);
            embedding_of_rows_backward(
                &mut case.rec,
                ids_tensor,
                order,
                dy.tensor,
                &gradients,
                first,
                factor,
            );
            case.expect("y", y, times(table::embedding(&values, &ids, cols as usize)), 0.0);
            let want = times(table::embedding_backward(&dy.values, &ids, vocab as usize, cols as usize));
            let mut rest = &want[here];
            for part in &before {
                let (mine, others) = rest.split_at(part.values.len());
                rest = others;
                case.expect("dtable", part.tensor, sum(&part.values, mine), allowed(F32, tokens));
            }
        });
    }
}
