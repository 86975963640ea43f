//! The order in which exchanges start and end. The device carries them out in this order, and a forecast times them in
//! it.

use std::collections::VecDeque;

/// Exchanges that have started and not ended, in the order in which they started. They also end in this order.
#[derive(Clone, Debug)]
pub struct UnderWay<T> {
    started: VecDeque<Started<T>>,
}

/// An exchange that has started.
#[derive(Clone, Debug)]
pub struct Started<T> {
    /// The exchange's index in the recording.
    pub index: usize,
    /// The result is needed before the dispatch with this index.
    pub needed: usize,
    /// Data of the owner about this exchange.
    pub what: T,
}

/// The places where a replay must stop for exchanges that start before the dispatch `at` and whose results the dispatch
/// `needed` needs: indices of dispatches, ascending.
pub fn stops(exchanges: impl Iterator<Item = (usize, usize)>) -> Vec<usize> {
    let mut stops: Vec<usize> = exchanges.flat_map(|(at, needed)| [at, needed]).collect();
    stops.sort_unstable();
    stops.dedup();
    stops
}

impl<T> UnderWay<T> {
    /// Most exchanges that are under way at a time; the next one waits for the oldest.
    pub const MOST: usize = 4;

    /// No exchange is under way.
    pub fn new() -> Self {
        Self { started: VecDeque::with_capacity(Self::MOST) }
    }

    /// How many of the oldest exchanges must end before another one starts; `after` is the exchange that it waits for.
    pub fn before(&self, after: Option<usize>) -> usize {
        let waits_for = |exchange: &Started<T>| Some(exchange.index) <= after;
        self.up_to(waits_for).max((self.started.len() + 1).saturating_sub(Self::MOST))
    }

    /// How many of the oldest exchanges must end before the dispatch `stop`.
    pub fn due(&self, stop: usize) -> usize {
        self.up_to(|exchange| exchange.needed <= stop)
    }

    /// Adds an exchange that starts.
    pub fn start(&mut self, exchange: Started<T>) {
        self.started.push_back(exchange);
    }

    /// Removes the oldest `count` exchanges, which have ended or are about to.
    pub fn end(&mut self, count: usize) -> impl Iterator<Item = Started<T>> + '_ {
        self.started.drain(..count)
    }

    /// All exchanges under way, oldest first.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Started<T>> {
        self.started.iter_mut()
    }

    /// The number of exchanges up to the last one for which `holds` is true.
    fn up_to(&self, holds: impl Fn(&Started<T>) -> bool) -> usize {
        self.started.iter().rposition(holds).map_or(0, |last| last + 1)
    }
}

impl<T> Default for UnderWay<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exchanges_end_in_order() {
        let mut under_way = UnderWay::new();
        for (index, needed) in [(3, 9), (4, 7), (5, 8)] {
            assert_eq!(under_way.before(None), 0);
            under_way.start(Started { index, needed, what: () });
        }
        assert_eq!(
            [6, 7, 8, 9].map(|stop| under_way.due(stop)),
            [0, 2, 3, 3],
            "the first ends with the second"
        );
        assert_eq!([Some(2), Some(3), Some(4)].map(|after| under_way.before(after)), [0, 1, 2]);
        under_way.start(Started { index: 6, needed: 9, what: () });
        assert_eq!((under_way.before(None), under_way.before(Some(4))), (1, 2), "four are under way");
        assert_eq!(under_way.end(2).map(|ended| ended.index).collect::<Vec<_>>(), [3, 4]);
        assert_eq!((under_way.before(Some(4)), under_way.due(8)), (0, 1));
    }

    #[test]
    fn a_replay_stops_where_exchanges_start_and_end() {
        assert_eq!(stops([(4, 9), (0, 4), (2, 9)].into_iter()), [0, 2, 4, 9]);
    }
}
