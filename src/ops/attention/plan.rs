//! Chooses the variant of the attention kernels that computes a pass, and its grid.

use super::cost::LoopCost;
use super::tile::{Masks, Pass, Tile};
use super::{Attention, matrix};
use crate::element::Element;
use crate::kernels::{Capabilities, Condition, Kernel, Tier, Units, Workgroup};
use crate::ops::heads::HeadLayout;
use crate::ops::per_item;

/// The kernel of a pass, and the grid of its workgroups.
pub(super) struct Plan {
    pub kernel: Kernel,
    /// Workgroups along the tokens of one sequence.
    pub blocks: u32,
    tier: Tier,
}

impl Plan {
    /// The grid for `heads` heads and `batch` sequences. On GPUs blocks are its last dimension, so that the longest
    /// blocks of all heads start first: under a causal mask the last of 16 blocks is 16 times as much work as the
    /// first, and without this order only 0.61 of an RX 7900 XTX would be used. Software adapters give each core a
    /// contiguous run of workgroups.
    pub fn grid(&self, heads: u32, batch: u32) -> [u32; 3] {
        match self.tier {
            Tier::Software => [self.blocks, heads, batch],
            Tier::Portable | Tier::Matrix => [heads, batch, self.blocks],
        }
    }
}

/// The kernel for `pass` of an attention over `batch` sequences, which hold packed documents if `is_packed`.
pub(super) fn plan(
    pass: Pass,
    shape: &Attention,
    is_packed: bool,
    batch: u32,
    element: Element,
    capabilities: Capabilities,
) -> Plan {
    let (kernel, block) = match capabilities.tier {
        Tier::Software => software(pass, shape, element, capabilities),
        Tier::Portable | Tier::Matrix => {
            let work = Work { shape, is_packed, batch, element, capabilities };
            matrix::kernel(pass, shape, element, capabilities).unwrap_or_else(|| {
                let tile = work.tile(pass);
                (portable(pass, tile, element), tile.rows())
            })
        }
    };
    let kernel = sized(kernel, shape.layout)
        .condition(Condition::Alibi, shape.has_alibi)
        .condition(Condition::Capped, shape.soft_cap.is_some())
        .condition(Condition::Causal, shape.is_causal)
        .condition(Condition::Windowed, shape.window.is_some())
        .condition(Condition::Segmented, is_packed)
        .condition(Condition::Dropout, shape.dropout.is_some());
    Plan { kernel, blocks: shape.tokens.div_ceil(block), tier: capabilities.tier }
}

/// The kernel in which an invocation owns whole rows, and the rows of a workgroup.
fn software(pass: Pass, shape: &Attention, element: Element, capabilities: Capabilities) -> (Kernel, u32) {
    let (file, entry) = match pass {
        Pass::Forward => ("attention/software/forward", "attention"),
        Pass::BackwardQ => ("attention/software/backward_q", "attention_backward_q"),
        Pass::BackwardKv => ("attention/software/backward_kv", "attention_backward_kv"),
    };
    // More rows reuse each loaded key more often, but compile longer.
    let rows = if shape.layout.head_dim + shape.layout.value_dim <= 128 { 2 } else { 1 };
    let lanes = capabilities.software_workgroup;
    let Walk { tile, step } = Walk::of(shape, capabilities);
    let kernel = Kernel::new(file, entry, element)
        .condition(Condition::Shuffled, capabilities.lanes > 1)
        .constant("LANES", lanes)
        .constant("ROWS", rows)
        .constant("TILE", tile)
        .constant("STEP", step);
    (kernel, rows * lanes)
}

/// How a kernel of the software tier walks the keys, or the queries, of a sequence.
struct Walk {
    /// Rows that the lanes load together.
    tile: u32,
    /// Rows whose scores are computed at once.
    step: u32,
}

impl Walk {
    /// One row at a time compiles fastest and runs as fast as two; a tile holds one row per lane. Shuffles within 16
    /// lanes need constants (`shaders/attention/software/spread.wgsl`), and long sequences fewer turns.
    fn of(shape: &Attention, capabilities: Capabilities) -> Self {
        let lanes = capabilities.software_workgroup;
        let one = Self { tile: lanes, step: 1 };
        match capabilities.lanes {
            16 => Self { tile: 4, step: 4 },
            _ if one.turns(shape) <= capabilities.most_turns() => one,
            _ => Self { step: 4, ..one },
        }
    }

    /// Turns of the loops of the forward pass over one sequence: over tiles, over groups of 4 rows, whose dropout is
    /// drawn at once, and over steps. To leave an inner loop takes a turn too.
    fn turns(&self, shape: &Attention) -> u64 {
        let [tiles, groups, steps] =
            [self.tile, 4, self.step].map(|rows| u64::from(shape.tokens.div_ceil(rows)));
        2 * tiles + 2 * groups + steps + 1
    }

    /// Turns of the loops over the queries of a head in the gradients of keys and values: over tiles and over steps.
    fn turns_of_head(&self, shape: &Attention) -> u64 {
        let [tiles, steps] = [self.tile, self.step].map(|rows| u64::from(shape.tokens.div_ceil(rows)));
        2 * tiles + steps + 2
    }
}

/// The kernel in which a workgroup shares the rows of a block.
fn portable(pass: Pass, tile: Tile, element: Element) -> Kernel {
    let (file, entry) = match pass {
        Pass::Forward => ("attention/portable/forward", "attention"),
        Pass::BackwardQ => ("attention/portable/backward_q", "attention_backward_q"),
        Pass::BackwardKv => ("attention/portable/backward_kv", "attention_backward_kv"),
    };
    tile.set(Kernel::new(file, entry, element)).condition(Condition::Gradient, pass != Pass::Forward)
}

/// The tile of a portable kernel, unless there is a choice.
fn usual_tile(pass: Pass, shape: &Attention, is_packed: bool) -> Tile {
    let masks = match (is_packed || shape.dropout.is_some(), shape.window.is_some() || shape.has_alibi) {
        (true, _) => Masks::Loaded,
        (false, true) => Masks::Calculated,
        (false, false) => Masks::None,
    };
    Tile::of(pass, shape.layout, masks)
}

/// `kernel` with the constants for the sizes of heads.
fn sized(kernel: Kernel, layout: HeadLayout) -> Kernel {
    kernel.constant("D4", layout.head_dim / 4).constant("V4", layout.value_dim / 4)
}

/// Most parts: more would take more memory than the saved time is worth.
const MOST_PARTS: u32 = 8;

/// The share of the time that more parts, or parts at all, must save: smaller savings are beyond the accuracy of this
/// model of a GPU.
const WORTH: f64 = 0.03;

/// How the backward pass of an attention is divided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Division {
    /// The number of parts in which a single pass over the keys leaves the gradient of the queries; `None`: a second
    /// pass, over the queries, computes that gradient.
    pub parts: Option<u32>,
    /// Query heads over which a workgroup sums the gradients of its keys: all heads of a group, or some of them, which
    /// leaves the gradients in parts.
    pub share: u32,
}

impl Division {
    /// Whether the gradients of keys and values are left in parts.
    pub fn leaves_keys(self, shape: &Attention) -> bool {
        self.share < shape.layout.group()
    }
}

/// Multiply-adds that all lanes do in the time of one byte to or from memory, by published figures.
const OF_A_BYTE: f64 = 7.0;

/// Multiply-adds that all lanes of a unit do in the 5 us that a launch takes.
const OF_A_LAUNCH: f64 = 650e3;

/// How many times as fast passes are by matrices, from the instructions of both; see benches/LOG.md.
const BY_MATRICES: f64 = 4.5;

/// Chooses how the backward pass of an attention over `batch` sequences is divided: of the ways that take nearly the
/// least time on these units, the one that takes the least memory. With many heads and sequences one pass over the keys
/// takes less time than two passes, unless heads are so wide that registers do not suffice, or matrices compute it. The
/// software tier takes two passes, and as many heads at once as its loops have turns for.
pub(super) fn divide(
    shape: &Attention,
    is_packed: bool,
    batch: u32,
    element: Element,
    capabilities: Capabilities,
) -> Division {
    let HeadLayout { head_dim, value_dim, .. } = shape.layout;
    let group = shape.layout.group();
    let mut shares = (1..=group).rev().filter(|share| group.is_multiple_of(*share));
    if capabilities.tier == Tier::Software {
        let most = capabilities.most_turns() / Walk::of(shape, capabilities).turns_of_head(shape);
        return Division { parts: None, share: shares.find(|share| u64::from(*share) <= most).unwrap_or(1) };
    }
    let work = Work { shape, is_packed, batch, element, capabilities };
    let blocks = shape.tokens.div_ceil(usual_tile(Pass::BackwardKv, shape, is_packed).rows());
    let most = if work.is_by_matrices() || head_dim.max(value_dim) > 64 { 0 } else { MOST_PARTS.min(blocks) };
    let mut ways: Vec<Division> = shares
        .flat_map(|share| {
            let parts = std::iter::once(None).chain((1..=most).map(Some));
            parts.map(move |parts| Division { parts, share })
        })
        .filter(|way| work.bytes(*way).into_iter().all(|bytes| bytes <= capabilities.limits.binding_bytes))
        .collect();
    ways.sort_by_key(|way| work.bytes(*way).into_iter().sum::<u64>());
    let times: Vec<f64> = ways.iter().map(|way| work.time(*way)).collect();
    let least = times.iter().copied().fold(f64::INFINITY, f64::min);
    let found = ways.into_iter().zip(times).find(|(_, time)| time * (1.0 - WORTH) <= least);
    found.expect("two passes without parts take no memory").0
}

/// An attention and the device that computes it, to estimate the times of its passes.
struct Work<'a> {
    shape: &'a Attention,
    is_packed: bool,
    batch: u32,
    element: Element,
    capabilities: Capabilities,
}

impl Work<'_> {
    fn units(&self) -> Units {
        self.capabilities.units
    }

    /// Whether matrices compute the backward passes.
    fn is_by_matrices(&self) -> bool {
        matrix::workgroup(Pass::BackwardKv, self.shape, self.element, self.capabilities).is_some()
    }

    /// A time in multiply-adds of the portable kernels, relative to the passes: it weighs more if matrices compute
    /// these.
    fn against_passes(&self, multiply_adds: f64) -> f64 {
        if self.is_by_matrices() { BY_MATRICES * multiply_adds } else { multiply_adds }
    }

    /// Bytes of the parts of the queries' gradient, and of the parts of the gradients of keys and values.
    fn bytes(&self, way: Division) -> [u64; 2] {
        let HeadLayout { heads, head_dim, value_dim, .. } = self.shape.layout;
        let rows = u64::from(self.batch) * u64::from(self.shape.tokens);
        let of =
            |heads: u32, columns: u32| Element::F32.bytes_of(rows * u64::from(heads) * u64::from(columns));
        let of_queries = u64::from(way.parts.unwrap_or(0)) * of(heads, head_dim);
        let of_keys =
            if way.leaves_keys(self.shape) { of(heads / way.share, head_dim + value_dim) } else { 0 };
        [of_queries, of_keys]
    }

    /// The estimated time of all launches, in units of the time that a product of every query with every key takes when
    /// all units are busy.
    fn time(&self, way: Division) -> f64 {
        let HeadLayout { heads, head_dim, value_dim, .. } = self.shape.layout;
        let heads_of_keys = heads / way.share;
        let (passes, launches) = match way.parts {
            Some(parts) => {
                let workgroups = self.groups(heads_of_keys) * u64::from(parts);
                let (_, workgroup) = self.workgroup(Pass::BackwardKv);
                let adding = 4.0 * f64::from(parts) * self.byte();
                (5.0 / self.units().share(workgroup, workgroups) + adding, 3.0)
            }
            None => {
                let of_keys = 4.0 / self.share(Pass::BackwardKv, heads_of_keys);
                (3.0 / self.share(Pass::BackwardQ, heads) + of_keys, 2.0)
            }
        };
        if !way.leaves_keys(self.shape) {
            return passes + launches * self.launch();
        }
        // Parts of keys and values are written and read.
        let columns = f64::from(head_dim + value_dim) / f64::from(head_dim * way.share);
        passes + 8.0 * columns * self.byte() + (launches + 1.0) * self.launch()
    }

    /// The tile of a pass. Where few workgroups fill a GPU and the longest one determines the time, twice as many lanes
    /// for each block of queries take less time, although they read more workgroup memory.
    fn tile(&self, pass: Pass) -> Tile {
        let usual = usual_tile(pass, self.shape, self.is_packed);
        let wide = Tile { width: 16, ..usual };
        let has_choice = pass == Pass::Forward && (usual.width, usual.groups, usual.share) == (8, 16, 8);
        let time = |tile| {
            let share = self.share_of(self.portable_workgroup(pass, tile), self.shape.layout.heads);
            self.cost(pass, tile).shared_bytes / share
        };
        let is_faster = || time(wide) <= time(usual) * (1.0 - WORTH);
        if has_choice && is_faster() { wide } else { usual }
    }

    /// Share of the units' time in which a pass keeps them busy, if each workgroup computes a block of one of `heads`
    /// heads.
    fn share(&self, pass: Pass, heads: u32) -> f64 {
        self.share_of(self.workgroup(pass), heads)
    }

    /// The rows that a workgroup of a pass owns, and the resources that it takes of a unit.
    fn workgroup(&self, pass: Pass) -> (u32, Workgroup) {
        matrix::workgroup(pass, self.shape, self.element, self.capabilities)
            .unwrap_or_else(|| self.portable_workgroup(pass, usual_tile(pass, self.shape, self.is_packed)))
    }

    /// As `workgroup`, for a tile of the portable kernel.
    fn portable_workgroup(&self, pass: Pass, tile: Tile) -> (u32, Workgroup) {
        let registers = self.cost(pass, tile).registers;
        (tile.rows(), Workgroup { lanes: tile.lanes(), registers, bytes: 16 << 10 })
    }

    fn cost(&self, pass: Pass, tile: Tile) -> LoopCost {
        let kernel = sized(portable(pass, tile, self.element), self.shape.layout);
        LoopCost::of(&kernel).expect("a kernel of attention for GPUs")
    }

    /// As `share`, for a `workgroup` that owns `rows` rows.
    fn share_of(&self, (rows, workgroup): (u32, Workgroup), heads: u32) -> f64 {
        let (shape, units) = (self.shape, self.units());
        let blocks = u64::from(shape.tokens.div_ceil(rows));
        let count = self.groups(heads) * blocks;
        let is_windowed = shape.window.is_some_and(|window| window < shape.tokens);
        match shape.is_causal && !is_windowed {
            true => units.share_of_falling(workgroup, count, blocks),
            false => units.share(workgroup, count),
        }
    }

    /// `heads` times the number of sequences.
    fn groups(&self, heads: u32) -> u64 {
        u64::from(heads) * u64::from(self.batch)
    }

    /// Keys that a query sees on average.
    fn seen(&self) -> f64 {
        let all = f64::from(self.shape.tokens) / if self.shape.is_causal { 2.0 } else { 1.0 };
        self.shape.window.map_or(all, |window| all.min(window.into()))
    }

    /// The time to move one byte for each column of each query.
    fn byte(&self) -> f64 {
        self.against_passes(OF_A_BYTE) / self.seen()
    }

    /// The time of a launch.
    fn launch(&self) -> f64 {
        let HeadLayout { heads, head_dim, .. } = self.shape.layout;
        let queries = self.groups(heads) as f64 * f64::from(self.shape.tokens);
        let all = self.against_passes(OF_A_LAUNCH) * f64::from(self.units().count);
        all / (queries * self.seen() * f64::from(head_dim))
    }
}

/// The kernel that adds up the parts of the gradient of `rows` queries, and its grid.
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
        .constant("BLOCK", usual_tile(Pass::BackwardKv, shape, is_packed).rows())
        .constant("D4", d4);
    (kernel, grid)
}

/// The kernel that adds up the parts of the gradients of keys and values of `rows` tokens, and its grid.
pub(super) fn sum_keys(layout: HeadLayout, element: Element, rows: u32) -> (Kernel, [u32; 3]) {
    let items = u64::from(rows) * u64::from((layout.k_cols() + layout.v_cols()) / 4);
    let (kernel, grid) = per_item("attention/portable/sum_keys", "attention_sum_keys", element, items);
    (kernel.constant("D4", layout.head_dim / 4).constant("V4", layout.value_dim / 4), grid)
}
