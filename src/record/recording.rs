//! A finished recording: plain data.

use super::tensor::{BINDING_ALIGNMENT, BufferId, TransientId};
use crate::kernels::Kernel;

/// A range of a buffer, bound to a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The buffer.
    pub buffer: BufferId,
    /// Its first byte, a multiple of 256.
    pub offset: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// Where the device reads a launch's grid when it runs it: three `u32`, workgroups along x, y and z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridArguments {
    /// The buffer; the launch binds it nowhere else, since WebGPU tracks usage by whole buffers.
    pub buffer: BufferId,
    /// The first byte, a multiple of 4.
    pub offset: u64,
}

/// One kernel launch.
#[derive(Clone, Debug)]
pub struct Dispatch {
    /// Which op asked for it: `layers.3.feed_forward.w2`.
    pub path: String,
    /// What runs.
    pub kernel: Kernel,
    /// Tensors by binding index; the params struct is binding 0 and not among them.
    pub bindings: Vec<(u32, Binding)>,
    /// The bytes of the params struct.
    pub params: Vec<u8>,
    /// The struct's fields: name and byte offset.
    pub fields: &'static [(&'static str, usize)],
    /// Workgroups along x, y, z; the most there can be, where the device reads how many there are.
    pub grid: [u32; 3],
    /// Where the device reads how many workgroups there are, if the host does not know.
    pub arguments: Option<GridArguments>,
}

impl Dispatch {
    /// Bytes that the params struct takes in the buffer that holds all of a recording's: uniform bindings start at
    /// multiples of 256 bytes.
    pub fn params_slot(&self) -> u64 {
        (self.params.len() as u64).next_multiple_of(BINDING_ALIGNMENT)
    }
}

/// A buffer that lives inside the recording only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transient {
    /// Who made it, for memory reports.
    pub label: String,
    /// Its size.
    pub bytes: u64,
    /// Index of the first dispatch that uses it.
    pub first: usize,
    /// Index of the last one; `usize::MAX` if it must survive the recording.
    pub last: usize,
}

/// Dispatches in order, and the buffers they share.
#[derive(Clone, Debug)]
pub struct Recording {
    /// `micro_step`, `update`, `eval`.
    pub name: &'static str,
    /// What runs, in order.
    pub dispatches: Vec<Dispatch>,
    /// Buffers by [`TransientId`].
    pub transients: Vec<Transient>,
}

impl Recording {
    /// The transient buffer of that id.
    pub fn transient(&self, id: TransientId) -> &Transient {
        &self.transients[id.0 as usize]
    }

    /// A text that changes whenever the recording does: one line a dispatch. Golden files hold it.
    pub fn listing(&self) -> String {
        let bound = |d: &Dispatch| if d.arguments.is_some() { "at most " } else { "" };
        let line = |d: &Dispatch| format!("{}: {} {}{:?}\n", d.path, d.kernel, bound(d), d.grid);
        self.dispatches.iter().map(line).collect()
    }
}
