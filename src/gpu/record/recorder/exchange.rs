//! Recording exchange points.

use super::Recorder;
use crate::ranks::Group;
use crate::record::exchange::{Collective, Exchange};
use crate::record::span::Span;

impl Recorder {
    /// Appends an exchange that every micro-batch makes. Records nothing if the group has one rank.
    pub fn exchange(&mut self, label: &str, collective: Collective, group: &Group) {
        self.add_exchange(label, collective, group, self.dispatches.len(), false);
    }

    /// Adds an exchange that every micro-batch makes, directly after the last dispatch that uses its sources, so that
    /// dispatches recorded since then run meanwhile. Its results are new tensors, or the sources.
    pub fn exchange_early(&mut self, label: &str, collective: Collective, group: &Group) {
        let at = self.after_last_use(&collective, group);
        self.add_exchange(label, collective, group, at, false);
    }

    /// Adds an exchange that every micro-batch makes, before the dispatch number `at`.
    pub fn exchange_at(&mut self, label: &str, collective: Collective, group: &Group, at: usize) {
        self.add_exchange(label, collective, group, at, false);
    }

    /// Adds an exchange that only the last micro-batch of a step makes, directly after the last dispatch so far that
    /// uses its sources. It comes after a [cut](Self::cut), since other micro-batches may add to the sources until the
    /// second half. Records nothing if the group has one rank.
    pub fn exchange_once_complete(&mut self, label: &str, collective: Collective, group: &Group) {
        let at = self.after_last_use(&collective, group).max(self.cut.unwrap_or(0));
        self.add_exchange(label, collective, group, at, true);
    }

    /// The exchanges ordered by place, with the dispatches and exchanges that they wait for.
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

    /// The place after all uses of the sources of `collective` so far. It is not searched for if the group has one
    /// rank: the search takes long for a model of many buckets.
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
