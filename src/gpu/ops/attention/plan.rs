//! Which variant of the attention kernels computes a pass, and its grid.

use super::Attention;
use crate::element::Element;
use crate::kernels::{Capabilities, Condition, Kernel, Tier};
use crate::ops::heads::HeadLayout;
use crate::ops::per_item;

/// A pass of attention.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    Forward,
    BackwardQ,
    BackwardKv,
}

/// The kernel of a pass, and its grid.
pub(super) struct Plan {
    pub kernel: Kernel,
    /// Workgroups along the tokens of one sequence.
    pub blocks: u32,
}

/// Which kernel computes `pass` of an attention, of packed documents if it `is_packed`.
pub(super) fn plan(
    pass: Pass,
    shape: &Attention,
    is_packed: bool,
    element: Element,
    capabilities: Capabilities,
) -> Plan {
    let (kernel, block) = match capabilities.tier {
        Tier::Software => software(pass, shape.layout, element, capabilities),
        Tier::Portable => portable(pass, shape, is_packed, element),
    };
    let kernel = kernel
        .condition(Condition::Alibi, shape.has_alibi)
        .condition(Condition::Causal, shape.is_causal)
        .condition(Condition::Windowed, shape.window.is_some())
        .condition(Condition::Segmented, is_packed)
        .condition(Condition::Dropout, shape.dropout.is_some())
        .constant("D4", shape.layout.head_dim / 4)
        .constant("V4", shape.layout.value_dim / 4);
    Plan { kernel, blocks: shape.tokens.div_ceil(block) }
}

/// The kernel in which an invocation owns whole rows, and the rows of a workgroup.
fn software(pass: Pass, layout: HeadLayout, element: Element, capabilities: Capabilities) -> (Kernel, u32) {
    let (file, entry, step) = match pass {
        Pass::Forward => ("attention/software/forward", "attention", "KEYS"),
        Pass::BackwardQ => ("attention/software/backward_q", "attention_backward_q", "KEYS"),
        Pass::BackwardKv => ("attention/software/backward_kv", "attention_backward_kv", "QUERIES"),
    };
    // More rows reuse each loaded key more often, but compile longer. One key at a time compiles fastest and runs as fast
    // as two. A tile holds one key per lane.
    let rows = if layout.head_dim + layout.value_dim <= 128 { 2 } else { 1 };
    let lanes = capabilities.software_workgroup();
    let kernel = Kernel::new(file, entry, element)
        .condition(Condition::Shuffled, capabilities.lanes > 1)
        .constant("LANES", lanes)
        .constant("ROWS", rows)
        .constant("TILE", lanes)
        .constant(step, 1);
    (kernel, rows * lanes)
}

/// The kernel in which a workgroup shares the rows of a block, and how many they are.
fn portable(pass: Pass, shape: &Attention, is_packed: bool, element: Element) -> (Kernel, u32) {
    let (file, entry) = match pass {
        Pass::Forward => ("attention/portable/forward", "attention"),
        Pass::BackwardQ => ("attention/portable/backward_q", "attention_backward_q"),
        Pass::BackwardKv => ("attention/portable/backward_kv", "attention_backward_kv"),
    };
    let Tile { width, groups, share, chunk } = tile(pass, shape, is_packed);
    let kernel = Kernel::new(file, entry, element)
        .constant("WIDTH", width)
        .constant("GROUPS", groups)
        .constant("SHARE", share)
        .constant("CHUNK", chunk);
    (kernel, 4 * groups)
}

/// The constants of `shaders/attention/portable/tiles.wgsl`.
struct Tile {
    width: u32,
    groups: u32,
    share: u32,
    chunk: u32,
}

/// The largest tile with which AMD's, NVIDIA's and Intel's compilers keep everything in registers, see benches/LOG.md. Wider groups
/// leave an invocation fewer columns of the sums.
fn tile(pass: Pass, shape: &Attention, is_packed: bool) -> Tile {
    let HeadLayout { head_dim, value_dim, .. } = shape.layout;
    let has_masks = is_packed || shape.window.is_some() || shape.has_alibi || shape.dropout.is_some();
    let (width, groups, share) = match pass {
        Pass::Forward => match value_dim {
            ..=32 => (8, 16, 4),
            33..=64 => (8, 16, if has_masks { 4 } else { 8 }),
            65..=128 => (16, 8, if has_masks { 4 } else { 8 }),
            _ => (32, 8, 4),
        },
        Pass::BackwardQ => match head_dim {
            ..=64 => (8, 16, 4),
            65..=128 => (16, 8, 4),
            _ => (32, 8, 2),
        },
        Pass::BackwardKv => match head_dim.max(value_dim) {
            ..=32 => (8, 16, 4),
            33..=64 => (16, 8, 4),
            65..=128 if !has_masks => (16, 16, 2),
            _ if head_dim.div_ceil(128) + value_dim.div_ceil(128) <= 3 => (32, 8, 2),
            _ => (64, 4, 2),
        },
    };
    // Rows of 16 owned and 128 walked ones leave room for the scores that wait if chunks are short.
    Tile { width, groups, share, chunk: if groups == 4 { 2 } else { 4 } }
}

/// Workgroups that fill a large GPU: an RX 7900 XTX has 96 compute units with workgroup memory for 4 each, an H100 132 with
/// registers for 3.
const ENOUGH_WORKGROUPS: u32 = 384;

/// More parts take more memory than the time that they save is worth.
const MOST_PARTS: u32 = 8;

/// How many parts of the gradient of the queries one pass over the keys makes in an attention over `batch` sequences; `None` where two
/// passes are better: few workgroups, heads so wide that registers do not suffice, or too much memory.
pub(super) fn parts(
    shape: &Attention,
    is_packed: bool,
    batch: u32,
    capabilities: Capabilities,
) -> Option<u32> {
    let HeadLayout { heads, kv_heads, head_dim, value_dim } = shape.layout;
    let blocks = shape.tokens.div_ceil(4 * tile(Pass::BackwardKv, shape, is_packed).groups);
    let parts = ENOUGH_WORKGROUPS.div_ceil(kv_heads.saturating_mul(batch));
    let elements = [parts, batch, shape.tokens, heads, head_dim].into_iter().map(u64::from).product();
    let is_better = capabilities.tier == Tier::Portable
        && head_dim.max(value_dim) <= 64
        && parts <= blocks.min(MOST_PARTS)
        && Element::F32.bytes_of(elements) <= capabilities.limits.binding_bytes;
    is_better.then_some(parts)
}

/// The kernel that adds the parts of the gradient of `rows` queries, and its grid.
pub(super) fn sum_queries(
    shape: &Attention,
    is_packed: bool,
    element: Element,
    rows: u32,
) -> (Kernel, [u32; 3]) {
    let d4 = shape.layout.head_dim / 4;
    let items = u64::from(rows) * u64::from(shape.layout.heads * d4);
    let (kernel, grid) = per_item("attention/portable/sum_queries", "attention_sum_queries", element, items);
    let kernel = kernel
        .condition(Condition::Causal, shape.is_causal)
        .condition(Condition::Windowed, shape.window.is_some())
        .condition(Condition::Segmented, is_packed)
        .constant("BLOCK", 4 * tile(Pass::BackwardKv, shape, is_packed).groups)
        .constant("D4", d4);
    (kernel, grid)
}
