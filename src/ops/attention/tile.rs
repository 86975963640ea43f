//! The passes of attention, and the tiles of their portable kernels.

use crate::kernels::Kernel;
use crate::ops::heads::HeadLayout;

/// A pass of attention.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    Forward,
    BackwardQ,
    BackwardKv,
}

/// Masks in addition to the causal one, by the registers that they take.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Masks {
    None,
    /// A window or ALiBi, which depend only on distances.
    Calculated,
    /// Documents or dropout.
    Loaded,
}

/// The constants of `shaders/attention/portable/tiles.wgsl`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tile {
    pub width: u32,
    pub groups: u32,
    pub share: u32,
    pub chunk: u32,
}

/// Vectors of weights, and of rows for the sums, in workgroup memory.
pub(super) const VECTORS: u32 = 512;

impl Tile {
    /// The largest tile for which AMD's, NVIDIA's and Intel's compilers keep everything in registers, see
    /// benches/LOG.md. Wider groups leave an invocation fewer columns of the sums.
    pub fn of(pass: Pass, layout: HeadLayout, masks: Masks) -> Self {
        let HeadLayout { head_dim, value_dim, .. } = layout;
        let has_masks = masks != Masks::None;
        let (width, groups, share) = match pass {
            Pass::Forward => match value_dim {
                ..=32 => (8, 16, 4),
                33..=64 if has_masks => (16, 16, 8),
                33..=64 => (8, 16, 8),
                65..=128 if has_masks => (16, 16, 4),
                65..=128 => (16, 8, 8),
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
                65..=128 => (32, 8, 4),
                _ if head_dim.div_ceil(128) + value_dim.div_ceil(128) <= 3 => (32, 8, 2),
                _ => (64, 4, 4),
            },
        };
        let chunk = match pass {
            // Fewer barriers: 16 KiB hold 128 rows of a chunk this long.
            Pass::Forward if (groups, share) == (16, 4) => 8,
            // Shorter chunks, with more barriers: rows would need more than 16 KiB, or dp has to wait in that memory.
            _ if groups == 4 => 2,
            Pass::BackwardKv if (width, share) == (32, 4) && masks == Masks::Loaded => 2,
            _ => 4,
        };
        Self { width, groups, share, chunk }
    }

    /// `kernel` with the tile's constants.
    pub fn set(self, kernel: Kernel) -> Kernel {
        kernel
            .constant("WIDTH", self.width)
            .constant("GROUPS", self.groups)
            .constant("SHARE", self.share)
            .constant("CHUNK", self.chunk)
    }

    /// Rows that a workgroup owns.
    pub fn rows(self) -> u32 {
        4 * self.groups
    }

    pub fn lanes(self) -> u32 {
        self.width * self.groups
    }

    /// Rows that a workgroup walks at once.
    pub fn walked(self) -> u32 {
        self.width * self.share
    }

    /// Walked rows of an invocation whose weights are in workgroup memory at the same time.
    pub fn part(self) -> u32 {
        self.share.min(VECTORS / self.lanes())
    }
}
