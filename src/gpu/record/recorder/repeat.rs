//! Recording dispatches and exchanges again, on other buffers.

use super::Recorder;
use super::measure::is_measurement;
use crate::record::exchange::Exchange;
use crate::record::recording::{Dispatch, GridArguments};
use crate::record::tensor::Binding;
use crate::record::tensor::{BufferId, TransientId};
use std::collections::HashMap;
use std::ops::Range;

/// A position in the dispatches and exchanges recorded so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    pub(super) dispatches: usize,
    exchanges: usize,
}

impl Recorder {
    /// The end of everything recorded so far.
    pub fn position(&self) -> Position {
        Position { dispatches: self.dispatches.len(), exchanges: self.exchanges.len() }
    }

    /// Number of transient buffers so far; ids count up.
    pub fn transient_count(&self) -> u32 {
        self.labels.len() as u32
    }

    /// The buffers that the dispatches and exchanges in `range` use, some of them several times.
    pub fn buffers_of(&self, range: Range<Position>) -> Vec<BufferId> {
        let Range { start, end } = range;
        let dispatches = self.dispatches[start.dispatches..end.dispatches].iter();
        let exchanges = self.exchanges[start.exchanges..end.exchanges].iter();
        dispatches.flat_map(Dispatch::buffers).chain(exchanges.flat_map(Exchange::buffers)).collect()
    }

    /// A new transient buffer with the size and the label of `buffer`, which is transient too. Its contents are
    /// undefined until a dispatch writes it.
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

    /// Appends the dispatches and exchanges of `range` again, under their paths followed by `suffix`, with each buffer
    /// that is a key of `substitutes` replaced by its value. Measurements still hold, and are not repeated.
    pub fn repeat(
        &mut self,
        range: Range<Position>,
        suffix: &str,
        substitutes: &HashMap<BufferId, BufferId>,
    ) {
        let buffer = |old: &mut BufferId| *old = substitutes.get(old).copied().unwrap_or(*old);
        let Range { start, end } = range;
        let mut exchanges = start.exchanges;
        for index in start.dispatches..=end.dispatches {
            while exchanges < end.exchanges && self.exchanges[exchanges].at <= index {
                let mut exchange = self.exchanges[exchanges].clone();
                exchange.path = repeated(&exchange.path, suffix);
                exchange.at = self.dispatches.len();
                exchange.collective.spans_mut().into_iter().for_each(|span| buffer(&mut span.buffer));
                self.exchanges.push(exchange);
                exchanges += 1;
            }
            if index == end.dispatches {
                break;
            }
            if is_measurement(&self.dispatches[index]) {
                continue;
            }
            let mut dispatch = self.dispatches[index].clone();
            dispatch.path = repeated(&dispatch.path, suffix);
            dispatch.bindings.iter_mut().for_each(|Binding { buffer: old, .. }| buffer(old));
            dispatch.arguments.iter_mut().for_each(|GridArguments { buffer: old, .. }| buffer(old));
            self.dispatches.push(dispatch);
        }
    }
}

fn repeated(path: &str, suffix: &str) -> String {
    let dot = if path.is_empty() { "" } else { "." };
    format!("{path}{dot}{suffix}")
}
