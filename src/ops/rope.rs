//! Rotary position embedding (Su et al., "RoFormer", 2021) of the queries and keys in packed rows.

use super::heads::HeadLayout;
use super::rope_scaling::{QueryScaling, RopeScaling};
use crate::element::{Element, stride_of};
use crate::kernels::{Condition, Kernel, Tier};
use crate::record::{Recorder, Tensor, fold_grid};

/// Pairing and frequencies of a rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Leading elements of a head that are rotated: even, at most head_dim.
    pub rotary_dim: u32,
    /// Base of the frequencies: pair i rotates by theta^(-2i / rotary_dim) radians per position.
    pub theta: f64,
    /// True: pairs (2i, 2i+1), as in GPT-J. False: pairs (i, i + rotary_dim / 2), as in GPT-NeoX and Llama.
    pub is_interleaved: bool,
}

crate::params! {
    struct Params {
        tokens: u32,
        items: u32,
        chunks: u32,
        head_stride: u32,
        pairs: u32,
        qkv_offset: u32,
        qkv_stride: u32,
        positions_offset: u32,
        table_offset: u32,
        table_stride: u32,
        table_rows: u32,
        query_items: u32,
        query_angles: u32,
        direction: f32,
    }
}

/// The contents of the tensor `cos_sin` (`positions`, rotary_dim), padding included: row p holds cos φ, sin φ of every
/// pair in turn, φ = p · theta^(-2i / rotary_dim) unless `scaling` has other frequencies. The magnitude of `scaling`
/// multiplies q and k and, in the backward, which uses the same table, their gradients. Computed in f64: in f32 the
/// angles of late positions are off by degrees.
///
/// If `queries` grow, the row has a second half, which is theirs: it is multiplied by their factor, and the first half
/// is that of the keys.
pub fn cos_sin_table(
    positions: u32,
    rope: &Rope,
    scaling: &RopeScaling,
    queries: Option<&QueryScaling>,
) -> Vec<f32> {
    let stride = stride_of(rope.table_cols(queries)) as usize;
    let mut table = vec![0.0; positions as usize * stride];
    let (frequencies, magnitude) = (scaling.frequencies(rope), scaling.magnitude());
    for (position, row) in table.chunks_exact_mut(stride.max(1)).enumerate() {
        let factors = [1.0].into_iter().chain(queries.map(|queries| queries.factor(position)));
        for (half, factor) in row.chunks_exact_mut(rope.rotary_dim as usize).zip(factors) {
            for (pair, frequency) in half.chunks_exact_mut(2).zip(&frequencies) {
                let (sin, cos) = (position as f64 * frequency).sin_cos();
                let radius = magnitude * factor;
                (pair[0], pair[1]) = ((radius * cos) as f32, (radius * sin) as f32);
            }
        }
    }
    table
}

/// Rotates every query and key of `qkv` (N, layout.cols()), or queries alone, in place by its token's position;
/// `positions` (1, N) u32 index the rows of `cos_sin` (see [`cos_sin_table`]). Values are not touched.
#[track_caller]
pub fn rope(
    rec: &mut Recorder,
    qkv: Tensor,
    positions: Tensor,
    layout: HeadLayout,
    rope: &Rope,
    cos_sin: Tensor,
) {
    rotate(rec, qkv, positions, layout, rope, cos_sin, 1.0);
}

/// The gradient of [`rope`], in place on `dqkv`: the inverse rotation, times the table's magnitude.
#[track_caller]
pub fn rope_backward(
    rec: &mut Recorder,
    dqkv: Tensor,
    positions: Tensor,
    layout: HeadLayout,
    rope: &Rope,
    cos_sin: Tensor,
) {
    rotate(rec, dqkv, positions, layout, rope, cos_sin, -1.0);
}

#[track_caller]
fn rotate(
    rec: &mut Recorder,
    qkv: Tensor,
    positions: Tensor,
    layout: HeadLayout,
    rope: &Rope,
    cos_sin: Tensor,
    direction: f32,
) {
    layout.assert_widths();
    let Rope { rotary_dim, .. } = *rope;
    rope.assert_fits(&layout, cos_sin);
    assert!(qkv.cols == layout.cols(), "qkv has {} columns, but its heads take {}", qkv.cols, layout.cols());
    assert!(positions.cols == qkv.rows, "{} positions for {} tokens", positions.cols, qkv.rows);
    let heads = layout.heads + layout.kv_heads;
    let Plan { kernel, items, units, chunks } = plan(heads, rope, qkv.element, rec.capabilities().tier);
    let params = Params {
        tokens: qkv.rows,
        items,
        chunks,
        head_stride: layout.head_dim / 4,
        pairs: rotary_dim / 2,
        qkv_offset: qkv.offset4(),
        qkv_stride: qkv.stride4(),
        positions_offset: 4 * positions.offset4(),
        table_offset: cos_sin.offset4(),
        table_stride: cos_sin.stride4(),
        table_rows: cos_sin.rows,
        query_items: layout.heads * units,
        query_angles: rope.query_angles(cos_sin),
        direction,
    };
    let bindings = [
        qkv.bind_with_offset("qkv", qkv.element),
        positions.bind_with_offset("positions", Element::U32),
        cos_sin.bind_with_offset("table", Element::F32),
    ];
    rec.dispatch(kernel, &bindings, &params, fold_grid(qkv.rows as u64 * chunks as u64));
}

impl Rope {
    /// Whether pairs do not lie in whole groups of 4 elements.
    pub(super) fn straddles(&self) -> bool {
        !self.is_interleaved && !self.rotary_dim.is_multiple_of(8)
    }

    /// Columns of the table of angles.
    pub fn table_cols(&self, queries: Option<&QueryScaling>) -> u32 {
        if queries.is_some() { 2 * self.rotary_dim } else { self.rotary_dim }
    }

    /// Groups of 4 from the angles of keys to those of queries in a row of `cos_sin`.
    pub(super) fn query_angles(&self, cos_sin: Tensor) -> u32 {
        if cos_sin.cols > self.rotary_dim { self.rotary_dim / 4 } else { 0 }
    }

    /// Checks that heads of `layout` can be rotated by the table `cos_sin`. Queries that grow rotate as a whole.
    #[track_caller]
    pub(super) fn assert_fits(&self, layout: &HeadLayout, cos_sin: Tensor) {
        let (rotary_dim, head_dim) = (self.rotary_dim, layout.head_dim);
        let fits = rotary_dim.is_multiple_of(2) && (2..=head_dim).contains(&rotary_dim);
        assert!(fits, "rotary_dim must be even and from 2 to head_dim {head_dim}, not {rotary_dim}");
        let has_queries = cos_sin.cols == 2 * rotary_dim && rotary_dim == head_dim;
        assert!(
            cos_sin.cols == rotary_dim || has_queries,
            "cos_sin must have {rotary_dim} columns, or twice as many for whole heads, not {}",
            cos_sin.cols
        );
    }
}

struct Plan {
    kernel: Kernel,
    /// Invocations for each token.
    items: u32,
    /// Invocations for each head.
    units: u32,
    /// Workgroups for each token.
    chunks: u32,
}

fn plan(heads: u32, rope: &Rope, element: Element, tier: Tier) -> Plan {
    // An invocation owns a group of 4 elements and the group of their partners; if partners straddle groups, a whole
    // head.
    let straddles = rope.straddles();
    let units = match (rope.is_interleaved, straddles) {
        (true, _) => rope.rotary_dim.div_ceil(4),
        (false, false) => rope.rotary_dim / 8,
        (false, true) => 1,
    };
    let widest = match tier {
        Tier::Software => 64,
        Tier::Portable | Tier::Matrix => 256,
    };
    let items = heads * units;
    let lanes = items.next_power_of_two().clamp(8, widest);
    let kernel = Kernel::new("rope", "rope", element)
        .condition(Condition::Interleaved, rope.is_interleaved)
        .condition(Condition::Straddling, straddles)
        .constant("LANES", lanes)
        .constant("UNITS", units);
    Plan { kernel, items, units, chunks: items.div_ceil(lanes) }
}
