//! The time of a replay with exchanges, by the device's clock and the link's, launch by launch.

use super::step_time::{Machine, StepTime};
use super::traffic::TrafficKind;
use crate::record::{Collective, Exchange, Recording, Room, Started, UnderWay, stops};

/// The end of an exchange.
struct Timed {
    end: f64,
    kind: TrafficKind,
}

/// The time of a replay of `recording` by `rank`, launch by launch as the device does it; `seconds` are the times of
/// the launches, empty if they count for nothing. An exchange starts when the launches before it have ended, waits for
/// earlier exchanges, since a rank makes one at a time, and delays the first launch that needs its result. With
/// `is_last` it is the replay for the last micro-batch, which has additional exchanges.
pub(super) fn replay(
    recording: &Recording,
    seconds: &[f64],
    rank: usize,
    is_last: bool,
    machine: &Machine,
) -> StepTime {
    let mut time = StepTime::default();
    let mut clock = Clock { device: 0.0, link: 0.0, under_way: UnderWay::new() };
    let among = |exchange: &&Exchange| is_last || !exchange.once_per_step;
    let of_exchanges = recording.exchanges.iter().filter(among).map(|one| (one.at, one.needed));
    let last = recording.dispatches.len();
    let mut exchanges = recording.exchanges.iter().enumerate().filter(|(_, one)| among(one)).peekable();
    let mut start = 0;
    for stop in stops(of_exchanges.chain([(last, last)])) {
        let launches: f64 = seconds.get(start..stop).map_or(0.0, |launches| launches.iter().sum());
        (time.compute, clock.device) = (time.compute + launches, clock.device + launches);
        start = stop;
        while let Some((index, exchange)) = exchanges.next_if(|(_, exchange)| exchange.at == stop) {
            let before = clock.under_way.before(exchange.after);
            clock.end_first(before, &mut time);
            time.exchanging += clock.start(index, exchange, rank, machine);
        }
        let due = clock.under_way.due(stop);
        clock.end_first(due, &mut time);
    }
    time
}

/// The times at which the device and the link become free.
struct Clock {
    device: f64,
    link: f64,
    under_way: UnderWay<Timed>,
}

impl Clock {
    /// Starts an exchange; returns its seconds.
    fn start(&mut self, index: usize, exchange: &Exchange, rank: usize, machine: &Machine) -> f64 {
        let (bytes, rounds) = exchange.group.place(rank).map_or((0, 0), |place| exchange.sent_by(place));
        let Room { down, mut up, .. } = exchange.room();
        if let Collective::Rows { rows, moved, to_experts, .. } = &exchange.collective {
            // rows that arrive, which are fewer than there is room for
            up = if *to_experts { rows.bytes } else { moved.bytes };
        }
        let exchanged = machine.exchange_seconds(bytes, rounds, exchange.group.size() as u64 - 1);
        let [down, up] = [down, up].map(|bytes| bytes as f64 / machine.staging_bytes);
        self.link = self.link.max(self.device + down) + exchanged;
        let (needed, kind) = (exchange.needed, TrafficKind::of(exchange));
        self.under_way.start(Started { index, needed, what: Timed { end: self.link + up, kind } });
        down + exchanged + up
    }

    /// Ends the oldest `count` exchanges that are under way, and adds the waiting for them to `time`.
    fn end_first(&mut self, count: usize, time: &mut StepTime) {
        for Started { what: Timed { end, kind }, .. } in self.under_way.end(count) {
            let wait = end - self.device;
            if wait > 0.0 {
                time.add_wait(kind, wait);
                self.device = end;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::Element;
    use crate::kernels::Kernel;
    use crate::ranks::Group;
    use crate::record::{BufferId, Dispatch, PersistentId, Span};

    /// One byte per second; nothing else takes time.
    const MACHINE: Machine = Machine { flops: 1.0, link_bytes: 1.0, staging_bytes: 1e30, latency: 0.0 };

    /// Four launches of a second each, with exchanges of (place, place where the result is needed, bytes).
    fn replayed(exchanges: &[(usize, usize, u64)]) -> StepTime {
        let kernel = Kernel::new("add", "add", Element::F32);
        let launch = Dispatch {
            path: String::new(),
            kernel,
            bindings: Vec::new(),
            params: Vec::new(),
            fields: &[],
            grid: [1; 3],
            arguments: None,
        };
        let exchange = |&(at, needed, bytes): &(usize, usize, u64)| {
            let span = |bytes| Span {
                buffer: BufferId::Persistent(PersistentId(0)),
                offset: 0,
                bytes,
                element: Element::F32,
            };
            let parts = vec![0..bytes, bytes..2 * bytes];
            let collective = Collective::AllGather { own: span(bytes), whole: span(2 * bytes), parts };
            let (path, group) = ("weights.0".to_string(), Group::all(2));
            Exchange { path, collective, group, once_per_step: false, at, needed, after: None }
        };
        let recording = Recording {
            name: "micro_step",
            dispatches: vec![launch; 4],
            exchanges: exchanges.iter().map(exchange).collect(),
            transients: Vec::new(),
            cut: None,
        };
        replay(&recording, &[1.0; 4], 0, true, &MACHINE)
    }

    #[test]
    fn exchanges_hide_behind_the_launches_before_their_results_are_needed() {
        let waits = |exchanges: &[(usize, usize, u64)]| {
            let time = replayed(exchanges);
            assert_eq!(time.compute, 4.0);
            time.waiting()
        };
        assert_eq!(waits(&[(1, 3, 2)]), 0.0, "two launches for two bytes");
        assert_eq!(waits(&[(1, 3, 3)]), 1.0);
        assert_eq!(waits(&[(4, 4, 3)]), 3.0, "at the end nothing follows");
        assert_eq!(waits(&[(1, 4, 2), (1, 4, 2)]), 1.0, "one follows the other");
        assert_eq!(waits(&[(0, 4, 1); 5]), 1.0, "the fifth waits until one of four has ended");
    }
}
