//! Recording exchange points.

use super::Recorder;
use crate::ranks::Group;
use crate::record::exchange::{Collective, Exchange};
use crate::record::span::Span;

impl Recorder {
    /// Appends an exchange in every micro-batch; nothing if the group has one rank.
    pub fn exchange(&mut self, label: &str, collective: Collective, group: &Group) {
        self.add_exchange(label, collective, group, self.dispatches.len(), false);
    }

    /// The same, directly after the last dispatch that uses its sources, so that what was recorded since runs meanwhile. Its
    /// results are new tensors, or the sources.
    pub fn exchange_early(&mut self, label: &str, collective: Collective, group: &Group) {
        let at = self.after_last_use(&collective, group);
        self.add_exchange(label, collective, group, at, false);
    }

    /// Adds an exchange in every micro-batch before the dispatch number `at`.
    pub fn exchange_at(&mut self, label: &str, collective: Collective, group: &Group, at: usize) {
        self.add_exchange(label, collective, group, at, false);
    }

    /// Adds an exchange of the last micro-batch of a step, directly after the last dispatch so far that uses its sources; after a
    /// [cut](Self::cut), since others may add to them until the second half. Nothing if the group has one rank.
    pub fn exchange_once_complete(&mut self, label: &str, collective: Collective, group: &Group) {
        let at = self.after_last_use(&collective, group).max(self.cut.unwrap_or(0));
        self.add_exchange(label, collective, group, at, true);
    }

    /// The exchanges in the order of their places, with the dispatches and exchanges that they wait for.
    pub(super) fn resolved_exchanges(&mut self) -> Vec<Exchange> {
        let mut exchanges = std::mem::take(&mut self.exchanges);
        exchanges.sort_by_key(|exchange| exchange.at);
        for index in 0..exchanges.len() {
            let (earlier, rest) = exchanges.split_at_mut(index);
            rest[0].resolve(&self.dispatches, earlier);
        }
        exchanges
    }

    fn add_exchange(
        &mut self,
        label: &str,
        collective: Collective,
        group: &Group,
        at: usize,
        once_per_step: bool,
    ) {
        if group.ranks.len() < 2 {
            return;
        }
        let path = self.path();
        let path = if path.is_empty() { label.to_string() } else { format!("{path}.{label}") };
        let group = group.clone();
        self.exchanges.push(Exchange { path, collective, group, once_per_step, at, needed: at, after: None });
    }

    /// The place after all that uses the sources of `collective` so far. Without others to exchange with it is not looked for, which
    /// takes long for a model of many buckets.
    fn after_last_use(&self, collective: &Collective, group: &Group) -> usize {
        if group.ranks.len() < 2 {
            return self.dispatches.len();
        }
        let spans = collective.sources();
        let uses = |span: Span| spans.iter().any(|own| own.overlaps(&span));
        let last = self.dispatches.iter().rposition(|dispatch| dispatch.spans().any(uses));
        let is_result = |exchange: &&Exchange| exchange.collective.results().into_iter().any(uses);
        let exchanged = self.exchanges.iter().filter(is_result).map(|exchange| exchange.at).max();
        last.map_or(0, |index| index + 1).max(exchanged.unwrap_or(0))
    }
}
