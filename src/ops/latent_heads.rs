//! The heads of multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1): packed queries, keys and
//! values from their parts, with the rotation of the parts that encode positions.
//!
//! One kernel assembles the rows and rotates them at the same time. It reads and writes each element once, which is
//! little compared to the products. The alternatives without assembling cost more: products that write into the rows
//! would also compute the gaps for k_rope, a third of the keys at DeepSeek's sizes, and attention that reads keys from
//! two tensors would hold two pointers and two shapes in kernels that are at the limit of their registers. Nothing is
//! saved for the backward, since the angles suffice to undo a rotation.

use super::heads::HeadLayout;
use super::per_item;
use crate::element::Element;
use crate::kernels::{Condition, Kernel};
use crate::record::{Recorder, Tensor};

/// The sizes of the heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentHeads {
    /// Heads (H) of queries, keys and values.
    pub heads: u32,
    /// Elements of a query and of a key without a position (P); a multiple of 4.
    pub nope_dim: u32,
    /// Elements that rotate (R), a multiple of 4. All heads share the rotating elements of the key.
    pub rope_dim: u32,
    /// Whether they rotate in pairs (2i, 2i + 1) instead of halves, (i, i + R/2).
    pub is_interleaved: bool,
    /// Elements of a value (V); a multiple of 4.
    pub value_dim: u32,
}

crate::params! {
    struct Params {
        tokens: u32,
        q_offset: u32,
        q_stride: u32,
        kv_offset: u32,
        kv_stride: u32,
        rope_offset: u32,
        rope_stride: u32,
        qkv_offset: u32,
        qkv_stride: u32,
        positions_offset: u32,
        table_offset: u32,
        table_stride: u32,
        table_rows: u32,
    }
}

/// The parts of the heads, or their gradients; each may be a range of columns of a larger tensor.
#[derive(Clone, Copy, Debug)]
pub struct LatentParts<T = Tensor> {
    /// (N, H · (P + R)): for each head the part without a position, then the part that rotates.
    pub q: T,
    /// (N, H · (P + V)): for each head the key's part without a position, then the value.
    pub kv: T,
    /// (N, R): the part that rotates, the same for all keys.
    pub k_rope: T,
}

/// The angles of a rotation.
#[derive(Clone, Copy, Debug)]
pub struct Angles {
    /// (1, N) u32: rows of the table.
    pub positions: Tensor,
    /// (positions, R) f32, see [`rope::cos_sin_table`](super::rope::cos_sin_table).
    pub cos_sin: Tensor,
}

impl LatentHeads {
    /// The columns of the packed result.
    pub const fn layout(&self) -> HeadLayout {
        let Self { heads, nope_dim, rope_dim, value_dim, .. } = *self;
        HeadLayout { heads, kv_heads: heads, head_dim: nope_dim + rope_dim, value_dim }
    }

    /// Columns of [`LatentParts::kv`].
    pub const fn kv_cols(&self) -> u32 {
        self.heads * (self.nope_dim + self.value_dim)
    }

    /// Columns of each part.
    const fn part_cols(&self) -> LatentParts<u32> {
        LatentParts { q: self.layout().q_cols(), kv: self.kv_cols(), k_rope: self.rope_dim }
    }

    fn kernel(&self, entry: &'static str, element: Element, items: u64) -> (Kernel, [u32; 3]) {
        let (kernel, grid) = per_item("latent_heads", entry, element, items);
        let kernel = kernel
            .constant("HEADS", self.heads)
            .constant("NOPE4", self.nope_dim / 4)
            .constant("ROPE4", self.rope_dim / 4)
            .constant("VALUE4", self.value_dim / 4)
            .condition(Condition::Interleaved, self.is_interleaved);
        (kernel, grid)
    }

    #[track_caller]
    fn params(&self, qkv: Tensor, angles: &Angles) -> Params {
        let Self { nope_dim, rope_dim, .. } = *self;
        let Angles { positions, cos_sin } = *angles;
        let layout = self.layout();
        layout.assert_valid();
        for (name, dim) in [("nope_dim", nope_dim), ("rope_dim", rope_dim)] {
            assert!(dim > 0 && dim.is_multiple_of(4), "{name} must be a multiple of 4 from 4, not {dim}");
        }
        assert!(
            qkv.cols == layout.cols(),
            "qkv has {} columns, but its heads take {}",
            qkv.cols,
            layout.cols()
        );
        assert!(positions.cols == qkv.rows, "{} positions for {} tokens", positions.cols, qkv.rows);
        assert!(cos_sin.cols == rope_dim, "cos_sin must have {rope_dim} columns, not {}", cos_sin.cols);
        Params {
            tokens: qkv.rows,
            q_offset: 0,
            q_stride: 0,
            kv_offset: 0,
            kv_stride: 0,
            rope_offset: 0,
            rope_stride: 0,
            qkv_offset: qkv.offset4(),
            qkv_stride: qkv.stride4(),
            positions_offset: 4 * positions.offset4(),
            table_offset: cos_sin.offset4(),
            table_stride: cos_sin.stride4(),
            table_rows: cos_sin.rows,
        }
    }
}

/// qkv (N, layout().cols()) from its parts: queries and keys are [nope | rotated], and all keys rotate the same part.
#[track_caller]
pub fn latent_heads(
    rec: &mut Recorder,
    parts: &LatentParts,
    angles: &Angles,
    qkv: Tensor,
    sizes: &LatentHeads,
) {
    let LatentParts { q, kv, k_rope } = *parts;
    let cols = sizes.part_cols();
    for (name, part, cols) in [("q", q, cols.q), ("kv", kv, cols.kv), ("k_rope", k_rope, cols.k_rope)] {
        assert_part(name, part, qkv, cols);
    }
    let params = Params {
        q_offset: q.offset4(),
        q_stride: q.stride4(),
        kv_offset: kv.offset4(),
        kv_stride: kv.stride4(),
        rope_offset: k_rope.offset4(),
        rope_stride: k_rope.stride4(),
        ..sizes.params(qkv, angles)
    };
    let (kernel, grid) = sizes.kernel("latent_heads", qkv.element, groups(qkv.rows, qkv.cols));
    let bindings = [
        angles.positions.bind_with_offset("positions", Element::U32),
        angles.cos_sin.bind_with_offset("table", Element::F32),
        q.bind_with_offset("q", qkv.element),
        kv.bind_with_offset("kv", qkv.element),
        k_rope.bind_with_offset("k_rope", qkv.element),
        qkv.bind_with_offset("qkv", qkv.element),
    ];
    rec.dispatch(kernel, &bindings, &params, grid);
}

/// dq (N, H · (P + R)) of `dqkv`, written or, with `accumulate`, added to.
#[track_caller]
pub fn latent_heads_backward_q(
    rec: &mut Recorder,
    dqkv: Tensor,
    angles: &Angles,
    dq: Tensor,
    accumulate: bool,
    sizes: &LatentHeads,
) {
    assert_part("dq", dq, dqkv, sizes.part_cols().q);
    let params = Params { q_offset: dq.offset4(), q_stride: dq.stride4(), ..sizes.params(dqkv, angles) };
    backward(rec, "latent_heads_backward_q", dqkv, Some(angles), ("dq", dq, accumulate), params, sizes);
}

/// dkv (N, H · (P + V)) of `dqkv`, written or, with `accumulate`, added to.
#[track_caller]
pub fn latent_heads_backward_kv(
    rec: &mut Recorder,
    dqkv: Tensor,
    angles: &Angles,
    dkv: Tensor,
    accumulate: bool,
    sizes: &LatentHeads,
) {
    assert_part("dkv", dkv, dqkv, sizes.part_cols().kv);
    let params = Params { kv_offset: dkv.offset4(), kv_stride: dkv.stride4(), ..sizes.params(dqkv, angles) };
    backward(rec, "latent_heads_backward_kv", dqkv, None, ("dkv", dkv, accumulate), params, sizes);
}

/// dk_rope (N, R) of `dqkv`, summed over the heads in their order; written or, with `accumulate`, added to.
#[track_caller]
pub fn latent_heads_backward_rope(
    rec: &mut Recorder,
    dqkv: Tensor,
    angles: &Angles,
    dk_rope: Tensor,
    accumulate: bool,
    sizes: &LatentHeads,
) {
    assert_part("dk_rope", dk_rope, dqkv, sizes.rope_dim);
    let params = Params {
        rope_offset: dk_rope.offset4(),
        rope_stride: dk_rope.stride4(),
        ..sizes.params(dqkv, angles)
    };
    let into = ("dk_rope", dk_rope, accumulate);
    backward(rec, "latent_heads_backward_rope", dqkv, Some(angles), into, params, sizes);
}

#[track_caller]
fn backward(
    rec: &mut Recorder,
    entry: &'static str,
    dqkv: Tensor,
    angles: Option<&Angles>,
    (name, into, accumulate): (&'static str, Tensor, bool),
    params: Params,
    sizes: &LatentHeads,
) {
    let (kernel, grid) = sizes.kernel(entry, dqkv.element, groups(into.rows, into.cols));
    let mut bindings =
        vec![dqkv.bind_with_offset("dqkv", dqkv.element), into.bind_with_offset(name, dqkv.element)];
    if let Some(angles) = angles {
        bindings.push(angles.positions.bind_with_offset("positions", Element::U32));
        bindings.push(angles.cos_sin.bind_with_offset("table", Element::F32));
    }
    rec.dispatch(kernel.condition(Condition::Accumulate, accumulate), &bindings, &params, grid);
}

/// Groups of 4 elements.
fn groups(rows: u32, cols: u32) -> u64 {
    rows as u64 * cols as u64 / 4
}

#[track_caller]
fn assert_part(name: &str, part: Tensor, qkv: Tensor, cols: u32) {
    assert!(
        (part.rows, part.cols, part.element) == (qkv.rows, cols, qkv.element),
        "{name} must be {} x {cols} of the element type of qkv, not {} x {}",
        qkv.rows,
        part.rows,
        part.cols
    );
}
