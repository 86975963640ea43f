//! How many workgroups a GPU runs at once.

use super::published_gpus::PublishedGpu;
use std::collections::BTreeMap;

/// The capacity of a compute unit: a streaming multiprocessor of NVIDIA, a compute unit of AMD, an Xe core of Intel, a
/// core of Apple.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Unit {
    /// Invocations.
    pub lanes: u32,
    /// Registers of 32 bits, for all invocations together.
    pub registers: u32,
    /// Bytes of workgroup memory.
    pub workgroup_bytes: u32,
}

/// The compute units of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Units {
    /// Number of units.
    pub count: u32,
    /// The capacity of each unit.
    pub each: Unit,
}

/// The resources of a unit that a workgroup takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workgroup {
    /// Invocations.
    pub lanes: u32,
    /// Registers per invocation.
    pub registers: u32,
    /// Bytes of workgroup memory.
    pub bytes: u32,
}

impl Units {
    /// The units of a GPU that is not in the table, and where no adapter is opened: between the 20 to 40 of small cards
    /// and the 96 to 170 of the largest. If this is too many, products are split into more parts than they need; if too
    /// few, a part of the GPU idles.
    pub const ASSUMED: Self =
        Self { count: 64, each: Unit { lanes: 1024, registers: 65536, workgroup_bytes: 64 << 10 } };

    /// The units of the GPU that a driver calls `adapter`.
    pub fn of(adapter: &str) -> Self {
        PublishedGpu::named(adapter).map_or(Self::ASSUMED, |gpu| gpu.units)
    }

    /// Number of workgroups that run at once.
    pub fn slots(self, workgroup: Workgroup) -> u64 {
        u64::from(self.count) * u64::from(self.each.resident(workgroup))
    }

    /// The time that the fullest unit takes for its part of `count` workgroups, in workgroups computed at the unit's
    /// full rate. It runs as many at once as it holds; in the last round there are fewer, and too few lanes do not keep
    /// it busy.
    pub fn rounds(self, workgroup: Workgroup, count: u64) -> u64 {
        let of_fullest = count.div_ceil(self.count.into());
        let last = of_fullest % u64::from(self.each.resident(workgroup));
        of_fullest - last + if last > 0 { last.max(self.each.busy(workgroup).into()) } else { 0 }
    }

    /// Share of the units' time in which `count` workgroups keep them busy, from 0 to 1.
    pub fn share(self, workgroup: Workgroup, count: u64) -> f64 {
        count as f64 / (u64::from(self.count) * self.rounds(workgroup, count)) as f64
    }

    /// As [`share`](Self::share), for workgroups of unequal work that are started longest first. Their work falls from
    /// `blocks` to 1, with equally many workgroups of each length, as in causal attention. There are as many places as
    /// keep all units busy, and each workgroup starts at the place that becomes free first.
    pub fn share_of_falling(self, workgroup: Workgroup, count: u64, blocks: u64) -> f64 {
        let places = u64::from(self.count) * u64::from(self.each.busy(workgroup));
        let mut free = BTreeMap::from([(0, places)]); // how many places become free at each time
        for work in (1..=blocks).rev() {
            let mut waiting = count / blocks;
            while waiting > 0 {
                let (time, there) = free.pop_first().expect("a unit has places");
                let started = waiting.min(there);
                waiting -= started;
                *free.entry(time + work).or_default() += started;
                if there > started {
                    free.insert(time, there - started);
                }
            }
        }
        let end = free.last_key_value().map_or(0, |(time, _)| *time);
        (count * (blocks + 1)) as f64 / (2 * places * end.max(1)) as f64
    }
}

/// Lanes that keep a unit busy, as far as registers and workgroup memory allow. By llvm-mca's model of RDNA 3, a wave
/// of a product waits 1.3 times as long as it issues instructions, and four waves on each of a unit's schedulers hide
/// that.
const BUSY_LANES: u32 = 512;

impl Unit {
    /// Workgroups that a unit holds: at least one, since otherwise no device could run them.
    pub fn resident(self, Workgroup { lanes, registers, bytes }: Workgroup) -> u32 {
        let by_registers = self.registers / (lanes * registers).max(1);
        let by_memory = self.workgroup_bytes / bytes.max(1);
        (self.lanes / lanes).min(by_registers).min(by_memory).max(1)
    }

    /// Workgroups that keep a unit as busy as it can be.
    fn busy(self, workgroup: Workgroup) -> u32 {
        BUSY_LANES.div_ceil(workgroup.lanes).min(self.resident(workgroup))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_scarce_decides() {
        let resident =
            |lanes, registers, bytes| Units::ASSUMED.each.resident(Workgroup { lanes, registers, bytes });
        assert_eq!(resident(256, 16, 1024), 4, "lanes");
        assert_eq!(resident(256, 128, 8192), 2, "registers");
        assert_eq!(resident(64, 32, 16384), 4, "memory");
        assert_eq!(resident(64, 32, 0), 16);
        assert_eq!(resident(256, 255, 65537), 1, "it runs all the same");
    }

    #[test]
    fn the_fullest_unit_decides() {
        let units = Units { count: 10, ..Units::ASSUMED };
        let large = Workgroup { lanes: 256, registers: 96, bytes: 8192 }; // two in a unit
        let small = Workgroup { lanes: 256, registers: 48, bytes: 8192 }; // four
        let rounds = |workgroup, count| units.rounds(workgroup, count);
        assert_eq!(units.slots(large), 20);
        for (count, of_large, of_small) in
            [(1, 2, 2), (10, 2, 2), (11, 2, 2), (20, 2, 2), (21, 4, 3), (40, 4, 4), (41, 6, 6), (61, 8, 7)]
        {
            assert_eq!((rounds(large, count), rounds(small, count)), (of_large, of_small), "{count}");
        }
        assert_eq!(units.share(large, 15), 0.75);
        // A unit that holds one workgroup is as busy as it can be.
        assert_eq!(rounds(Workgroup { lanes: 256, registers: 255, bytes: 0 }, 11), 2);
        assert_eq!(rounds(Workgroup { lanes: 64, registers: 32, bytes: 0 }, 1), 8, "64 lanes of 512");
    }

    /// Workgroups of 16 lengths, 48 of each, on units that are busy with four or with two of them.
    #[test]
    fn the_longest_workgroup_decides_where_there_are_few() {
        let share = |count, lanes| {
            let workgroup = Workgroup { lanes, registers: 120, bytes: 16 << 10 };
            Units { count, ..Units::ASSUMED }.share_of_falling(workgroup, 768, 16)
        };
        // The longest takes 16 · 4 of its share of a unit, where all units together have 768 · 8.5 / 132 to do.
        for (count, lanes, known) in [(132, 128, 0.773), (128, 128, 0.797), (96, 128, 1.0), (132, 256, 0.916)]
        {
            let found = share(count, lanes);
            assert!((found - known).abs() < 0.001, "{count} units, {lanes} lanes: {found}");
        }
        assert_eq!(share(1000, 256), 768.0 * 8.5 / (2000.0 * 16.0), "places are left over");
    }

    #[test]
    fn a_gpu_is_known_by_its_name() {
        let count = |adapter| Units::of(adapter).count;
        assert_eq!(count("AMD Radeon RX 7900 XTX (RADV NAVI31)"), 96);
        assert_eq!(count("NVIDIA H100 80GB HBM3"), 132);
        assert_eq!(count("llvmpipe (LLVM 15.0.6, 256 bits)"), Units::ASSUMED.count);
    }
}
