//! Which variant of the attention kernels computes a pass, and its grid.

use super::Attention;
use crate::element::Element;
use crate::kernels::{Capabilities, Condition, Kernel, Tier, Units, Workgroup};
use crate::ops::heads::HeadLayout;
use crate::ops::per_item;

/// A pass of attention.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    Forward,
    BackwardQ,
    BackwardKv,
}

/// The kernel of a pass, and what its workgroups are.
pub(super) struct Plan {
    pub kernel: Kernel,
    /// Workgroups along the tokens of one sequence.
    pub blocks: u32,
    tier: Tier,
}

impl Plan {
    /// The grid of so many `heads` and sequences. On GPUs blocks are its last dimension, so that the longest blocks of all heads start
    /// first: under a causal mask, where the last of 16 blocks is 16 times as much work as the first, an RX 7900 XTX would otherwise be
    /// used to 0.61. Software adapters give each core a contiguous run of workgroups.
    pub fn grid(&self, heads: u32, batch: u32) -> [u32; 3] {
        match self.tier {
            Tier::Software => [self.blocks, heads, batch],
            Tier::Portable | Tier::Matrix => [heads, batch, self.blocks],
        }
    }
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
        Tier::Portable | Tier::Matrix => portable(pass, shape, is_packed, element),
    };
    let kernel = kernel
        .condition(Condition::Alibi, shape.has_alibi)
        .condition(Condition::Causal, shape.is_causal)
        .condition(Condition::Windowed, shape.window.is_some())
        .condition(Condition::Segmented, is_packed)
        .condition(Condition::Dropout, shape.dropout.is_some())
        .constant("D4", shape.layout.head_dim / 4)
        .constant("V4", shape.layout.value_dim / 4);
    Plan { kernel, blocks: shape.tokens.div_ceil(block), tier: capabilities.tier }
}

/// The kernel in which an invocation owns whole rows, and the rows of a workgroup.
fn software(pass: Pass, layout: HeadLayout, element: Element, capabilities: Capabilities) -> (Kernel, u32) {
    let (file, entry) = match pass {
        Pass::Forward => ("attention/software/forward", "attention"),
        Pass::BackwardQ => ("attention/software/backward_q", "attention_backward_q"),
        Pass::BackwardKv => ("attention/software/backward_kv", "attention_backward_kv"),
    };
    // More rows reuse each loaded key more often, but compile longer.
    let rows = if layout.head_dim + layout.value_dim <= 128 { 2 } else { 1 };
    let lanes = capabilities.software_workgroup;
    // One key at a time compiles fastest and runs as fast as two; a tile holds one key per lane. Shuffles within 16 lanes need constants
    // (`shaders/attention/software/spread.wgsl`).
    let (tile, step) = if capabilities.lanes == 16 { (4, 4) } else { (lanes, 1) };
    let kernel = Kernel::new(file, entry, element)
        .condition(Condition::Shuffled, capabilities.lanes > 1)
        .constant("LANES", lanes)
        .constant("ROWS", rows)
        .constant("TILE", tile)
        .constant("STEP", step);
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

/// More parts take more memory than the time that they save is worth.
const MOST_PARTS: u32 = 8;

/// The share that more parts, or parts at all, must save: less is beyond what is known of a GPU here.
const WORTH: f64 = 0.03;

/// Multiply-adds that all lanes do while a byte goes to or comes from memory, by published figures.
const OF_A_BYTE: f64 = 7.0;

/// Multiply-adds that all lanes of a unit do while a launch takes its 5 us.
const OF_A_LAUNCH: f64 = 650e3;

/// How many parts of the gradient of the queries one pass over the keys makes in an attention over `batch` sequences: the fewest that
/// take nearly the least time on these units. `None` where two passes take no longer: with few heads and sequences or many units, or
/// where heads are so wide that registers do not suffice, or where parts take too much memory.
pub(super) fn parts(
    shape: &Attention,
    is_packed: bool,
    batch: u32,
    capabilities: Capabilities,
) -> Option<u32> {
    let HeadLayout { heads, head_dim, value_dim, .. } = shape.layout;
    if capabilities.tier == Tier::Software || head_dim.max(value_dim) > 64 {
        return None;
    }
    let blocks = shape.tokens.div_ceil(4 * tile(Pass::BackwardKv, shape, is_packed).groups);
    let fits = |parts: &u32| {
        let elements = [*parts, batch, shape.tokens, heads, head_dim].into_iter().map(u64::from).product();
        Element::F32.bytes_of(elements) <= capabilities.limits.binding_bytes
    };
    let work = Work { shape, is_packed, batch, units: capabilities.units };
    let mut possible = (1..=MOST_PARTS.min(blocks)).filter(fits);
    let least = possible.clone().map(|parts| work.in_parts(parts)).fold(f64::INFINITY, f64::min);
    let fewest = possible.find(|parts| work.in_parts(*parts) * (1.0 - WORTH) <= least);
    fewest.filter(|_| least <= work.in_two() * (1.0 - WORTH))
}

/// Where a backward pass runs, and on what.
struct Work<'a> {
    shape: &'a Attention,
    is_packed: bool,
    batch: u32,
    units: Units,
}

impl Work<'_> {
    /// The time of one pass over the keys that leaves so many parts, of adding these and of two more launches, where that of a product
    /// of every query with every key is 1 if it keeps all units busy.
    fn in_parts(&self, parts: u32) -> f64 {
        let workgroups = self.groups(self.shape.layout.kv_heads) * u64::from(parts);
        let share = self.units.share(workgroup(Pass::BackwardKv, self.shape, self.is_packed), workgroups);
        let adding = 4.0 * f64::from(parts) * OF_A_BYTE / self.seen();
        5.0 / share + adding + 3.0 * self.launch()
    }

    /// That of a pass over the queries and one over the keys.
    fn in_two(&self) -> f64 {
        let HeadLayout { heads, kv_heads, .. } = self.shape.layout;
        3.0 / self.share(Pass::BackwardQ, heads)
            + 4.0 / self.share(Pass::BackwardKv, kv_heads)
            + 2.0 * self.launch()
    }

    /// Share of the units' time that a pass has a use for whose workgroups have a block of one of `heads` each.
    fn share(&self, pass: Pass, heads: u32) -> f64 {
        let Self { shape, is_packed, units, .. } = *self;
        let blocks = u64::from(shape.tokens.div_ceil(4 * tile(pass, shape, is_packed).groups));
        let (count, workgroup) = (self.groups(heads) * blocks, workgroup(pass, shape, is_packed));
        let is_windowed = shape.window.is_some_and(|window| window < shape.tokens);
        match shape.is_causal && !is_windowed {
            true => units.share_of_falling(workgroup, count, blocks),
            false => units.share(workgroup, count),
        }
    }

    /// Heads of all sequences.
    fn groups(&self, heads: u32) -> u64 {
        u64::from(heads) * u64::from(self.batch)
    }

    /// Keys that a query sees on average.
    fn seen(&self) -> f64 {
        let all = f64::from(self.shape.tokens) / if self.shape.is_causal { 2.0 } else { 1.0 };
        self.shape.window.map_or(all, |window| all.min(window.into()))
    }

    /// The time of a launch.
    fn launch(&self) -> f64 {
        let HeadLayout { heads, head_dim, .. } = self.shape.layout;
        let queries = self.groups(heads) as f64 * f64::from(self.shape.tokens);
        OF_A_LAUNCH * f64::from(self.units.count) / (queries * self.seen() * f64::from(head_dim))
    }
}

/// What a workgroup of a backward pass takes of a unit: registers as the compilers for RDNA 3 and Ampere need at most.
fn workgroup(pass: Pass, shape: &Attention, is_packed: bool) -> Workgroup {
    let Tile { width, groups, .. } = tile(pass, shape, is_packed);
    let registers = if pass == Pass::BackwardKv { 132 } else { 96 };
    Workgroup { lanes: width * groups, registers, bytes: 16 << 10 }
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
