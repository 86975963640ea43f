//! Recording dispatches again, on other buffers.

use super::Recorder;
use crate::record::recording::{Binding, Dispatch, GridArguments};
use crate::record::tensor::{BufferId, TransientId};
use std::collections::HashMap;
use std::ops::Range;

impl Recorder {
    /// Number of dispatches so far.
    pub fn dispatch_count(&self) -> usize {
        self.dispatches.len()
    }

    /// Number of transient buffers so far; ids count up.
    pub fn transient_count(&self) -> u32 {
        self.labels.len() as u32
    }

    /// The buffers that the dispatches of `range` use, some of them several times.
    pub fn buffers_of(&self, range: Range<usize>) -> Vec<BufferId> {
        self.dispatches[range].iter().flat_map(Dispatch::buffers).collect()
    }

    /// A new transient buffer with the size and the label of `buffer`, another one. Its contents are undefined until a
    /// dispatch writes it.
    ///
    /// # Panics
    /// If `buffer` outlives the recording.
    #[track_caller]
    pub fn another(&mut self, buffer: BufferId) -> BufferId {
        let BufferId::Transient(id) = buffer else {
            panic!("a buffer that outlives the recording has one copy")
        };
        self.labels.push(self.labels[id.0 as usize].clone());
        BufferId::Transient(TransientId(self.labels.len() as u32 - 1))
    }

    /// Appends the dispatches of `range` again, under their paths followed by `suffix`, with the values of `substitutes` in
    /// place of the buffers that are its keys.
    pub fn repeat(&mut self, range: Range<usize>, suffix: &str, substitutes: &HashMap<BufferId, BufferId>) {
        let buffer = |old: BufferId| substitutes.get(&old).copied().unwrap_or(old);
        for index in range {
            let mut dispatch = self.dispatches[index].clone();
            let dot = if dispatch.path.is_empty() { "" } else { "." };
            dispatch.path = format!("{}{dot}{suffix}", dispatch.path);
            for Binding { buffer: old, .. } in &mut dispatch.bindings {
                *old = buffer(*old);
            }
            if let Some(GridArguments { buffer: old, .. }) = &mut dispatch.arguments {
                *old = buffer(*old);
            }
            self.dispatches.push(dispatch);
        }
    }
}
