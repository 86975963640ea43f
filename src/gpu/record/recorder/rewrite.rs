//! Changes to recorded dispatches, before a recording is finished.

use super::Recorder;
use crate::record::recording::Dispatch;
use crate::record::span::Span;
use crate::record::tensor::BufferId;

impl Recorder {
    /// Number of dispatches so far.
    pub fn dispatch_count(&self) -> usize {
        self.dispatches.len()
    }

    /// The first dispatch, from number `from` on, that uses a byte of `span`.
    pub fn first_use(&self, span: Span, from: usize) -> Option<usize> {
        let uses = |dispatch: &Dispatch| dispatch.spans().any(|other| other.overlaps(&span));
        self.dispatches[from..].iter().position(uses).map(|count| from + count)
    }

    /// Makes the dispatches from number `from` on use `new` in place of the buffer `old`.
    pub fn substitute(&mut self, old: BufferId, new: BufferId, from: usize) {
        let bindings = self.dispatches[from..].iter_mut().flat_map(|dispatch| &mut dispatch.bindings);
        bindings.filter(|binding| binding.buffer == old).for_each(|binding| binding.buffer = new);
    }

    /// Records `body` directly before the first dispatch that uses `span`; nothing if none does.
    pub fn before_first_use(&mut self, span: Span, body: impl FnOnce(&mut Self)) {
        let Some(first) = self.first_use(span, 0) else { return };
        let end = self.dispatches.len();
        body(self);
        let added = self.dispatches.len() - end;
        self.dispatches[first..].rotate_right(added);
        let later = self.exchanges.iter_mut().filter(|exchange| exchange.at > first);
        later.for_each(|exchange| exchange.at += added);
        self.cut.iter_mut().filter(|cut| **cut > first).for_each(|cut| *cut += added);
    }
}
