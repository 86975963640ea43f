//! Which variant of the attention kernels computes a pass, and its grid.

use super::Attention;
use crate::element::Element;
use crate::kernels::{Capabilities, Condition, Kernel, Tier};
use crate::ops::heads::HeadLayout;

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
    let has_masks = is_packed || shape.window.is_some() || shape.has_alibi || shape.dropout.is_some();
    let HeadLayout { head_dim, value_dim, .. } = shape.layout;
    // The largest tiles with which AMD's, NVIDIA's and Intel's compilers keep everything in registers, see benches/LOG.md.
    // Wider groups hold fewer columns of the sums in an invocation.
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
    let kernel = Kernel::new(file, entry, element)
        .constant("WIDTH", width)
        .constant("GROUPS", groups)
        .constant("SHARE", share);
    (kernel, 4 * groups)
}
