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
        Tier::Portable => portable(pass, shape, element),
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

/// The kernel in which a workgroup shares 32 rows, and those rows.
fn portable(pass: Pass, shape: &Attention, element: Element) -> (Kernel, u32) {
    let (file, entry) = match pass {
        Pass::Forward => ("attention/portable/forward", "attention"),
        Pass::BackwardQ => ("attention/portable/backward_q", "attention_backward_q"),
        Pass::BackwardKv => ("attention/portable/backward_kv", "attention_backward_kv"),
    };
    // The largest tiles with which AMD's, NVIDIA's and Intel's compilers keep everything in registers, see
    // benches/LOG.md: a longer chunk is unrolled into more registers where few chunks make a head.
    let has_all_masks = shape.dropout.is_some() && shape.window.is_some();
    let (width, chunk) = match shape.layout.head_dim.max(shape.layout.value_dim) {
        ..=32 => (8, 2),
        33..=64 => (16, 4),
        65..=128 if pass == Pass::BackwardKv && has_all_masks => (16, 1),
        65..=128 => (16, 8),
        // Its sums of keys and of values are five chunks of columns at DeepSeek's sizes, and three of twice the width.
        _ if pass == Pass::BackwardKv => (32, 4),
        _ => (16, 4),
    };
    (Kernel::new(file, entry, element).constant("WIDTH", width).constant("CHUNK", chunk), 32)
}
