//! A curve with a limited number of points, however long the run: neighbours share a bin, which keeps their mean and
//! extremes.

/// A curve. A bin covers a power of two of consecutive points; once there are too many bins, neighbours merge.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Series {
    capacity: usize,
    points_per_bin: u64,
    bins: Vec<Bin>,
}

/// Consecutive points of a curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bin {
    /// The step of the first point.
    pub from: u64,
    /// The step of the last point.
    pub to: u64,
    points: u64,
    finite: u64,
    sum: f64,
    min: f32,
    max: f32,
}

impl Series {
    /// A curve without points, which never has more than `capacity` bins.
    pub fn new(capacity: usize) -> Self {
        assert!(capacity >= 2, "two bins must be able to merge");
        Self { capacity, points_per_bin: 1, bins: Vec::new() }
    }

    /// Appends a point; a value that is not finite is a gap. Returns whether bins have merged.
    pub fn push(&mut self, step: u64, value: f32) -> bool {
        if let Some(last) = self.bins.last_mut().filter(|bin| bin.points < self.points_per_bin) {
            last.absorb(&Bin::of(step, value));
            return false;
        }
        let is_full = self.bins.len() >= self.capacity;
        if is_full {
            self.halve();
            if let Some(last) = self.bins.last_mut().filter(|bin| bin.points < self.points_per_bin) {
                last.absorb(&Bin::of(step, value));
                return true;
            }
        }
        self.bins.push(Bin::of(step, value));
        is_full
    }

    /// Removes the points from `step` on, which a resumed run repeats; a bin that also has earlier points stays.
    pub fn rewind(&mut self, step: u64) {
        self.bins.truncate(self.bins.partition_point(|bin| bin.from < step));
        if let Some(last) = self.bins.last_mut() {
            last.to = last.to.min(step.saturating_sub(1));
        }
    }

    /// Lowers the number of bins to `capacity`. Returns whether bins have merged.
    pub fn limit(&mut self, capacity: usize) -> bool {
        self.capacity = self.capacity.min(capacity.max(2));
        let is_over = self.bins.len() > self.capacity;
        while self.bins.len() > self.capacity {
            self.halve();
        }
        is_over
    }

    /// The most points of a bin.
    pub fn points_per_bin(&self) -> u64 {
        self.points_per_bin
    }

    /// The bins with a point after `step`, in order.
    pub fn after(&self, step: Option<u64>) -> &[Bin] {
        let first = step.map_or(0, |step| self.bins.partition_point(|bin| bin.to <= step));
        &self.bins[first..]
    }

    /// The sum of all finite values.
    pub fn sum(&self) -> f64 {
        self.bins.iter().map(|bin| bin.sum).sum()
    }

    fn halve(&mut self) {
        self.points_per_bin *= 2;
        let merge = |pair: &[Bin]| {
            let mut bin = pair[0];
            pair[1..].iter().for_each(|other| bin.absorb(other));
            bin
        };
        self.bins = self.bins.chunks(2).map(merge).collect();
    }
}

impl Bin {
    fn of(step: u64, value: f32) -> Self {
        let gap = Self { from: step, to: step, points: 1, finite: 0, sum: 0.0, min: f32::NAN, max: f32::NAN };
        match value.is_finite() {
            true => Self { finite: 1, sum: value.into(), min: value, max: value, ..gap },
            false => gap,
        }
    }

    /// Takes in the points of a later bin.
    fn absorb(&mut self, later: &Self) {
        self.to = later.to;
        self.points += later.points;
        self.finite += later.finite;
        self.sum += later.sum;
        self.min = self.min.min(later.min); // of a number and NaN, the number
        self.max = self.max.max(later.max);
    }

    /// The mean of the finite values; `None` if there are none.
    pub fn mean(&self) -> Option<f32> {
        (self.finite > 0).then(|| (self.sum / self.finite as f64) as f32)
    }

    /// The least finite value.
    pub fn min(&self) -> Option<f32> {
        (self.finite > 0).then_some(self.min)
    }

    /// The greatest finite value.
    pub fn max(&self) -> Option<f32> {
        (self.finite > 0).then_some(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(capacity: usize, values: impl IntoIterator<Item = f32>) -> Series {
        let mut series = Series::new(capacity);
        for (index, value) in values.into_iter().enumerate() {
            series.push(index as u64 + 1, value);
        }
        series
    }

    #[test]
    fn few_points_are_kept_as_they_are() {
        let series = filled(8, [3.0, f32::NAN, 1.0]);
        let means: Vec<Option<f32>> = series.after(None).iter().map(Bin::mean).collect();
        assert_eq!(means, [Some(3.0), None, Some(1.0)], "a gap is no zero");
        assert_eq!((series.points_per_bin(), series.sum()), (1, 4.0));
    }

    #[test]
    fn a_spike_among_a_million_points_survives() {
        let series = filled(2000, (1..=1_000_000).map(|step| if step == 777_777 { 1e6 } else { 1.0 }));
        let bins = series.after(None);
        assert!(bins.len() <= 2000 && bins.len() > 900, "{} bins", bins.len());
        let highest = bins.iter().filter_map(|bin| bin.max()).fold(0.0, f32::max);
        assert_eq!(highest, 1e6);
        let spike = bins.iter().find(|bin| bin.max() == Some(1e6)).unwrap();
        assert!((spike.from..=spike.to).contains(&777_777));
        assert_eq!(spike.min(), Some(1.0));
        // Without a hole or an overlap.
        assert!(bins.windows(2).all(|pair| pair[1].from == pair[0].to + 1));
        assert_eq!((bins[0].from, bins[bins.len() - 1].to), (1, 1_000_000));
        assert_eq!(series.sum(), 999_999.0 + 1e6);
    }

    #[test]
    fn bins_have_the_mean_of_their_finite_values() {
        let series = filled(2, [1.0, f32::INFINITY, 3.0, 7.0, f32::NAN]);
        assert_eq!(series.points_per_bin(), 4);
        let bins = series.after(None);
        assert_eq!((bins[0].mean(), bins[0].min(), bins[0].max()), (Some(11.0 / 3.0), Some(1.0), Some(7.0)));
        assert_eq!((bins[1].mean(), bins[1].min(), bins[1].max()), (None, None, None));
    }

    #[test]
    fn what_is_new_follows_a_step() {
        let series = filled(4, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]); // (1 2) (3 4) (5 6)
        let from = |after| series.after(Some(after)).iter().map(|bin| bin.from).collect::<Vec<_>>();
        assert_eq!((from(0), from(3), from(4), from(6)), (vec![1, 3, 5], vec![3, 5], vec![5], vec![]));
    }

    #[test]
    fn a_resumed_run_takes_the_place_of_the_steps_that_it_repeats() {
        let mut series = filled(8, [1.0, 2.0, 3.0, 4.0]);
        series.rewind(3);
        series.rewind(3);
        series.push(3, 30.0);
        let means: Vec<Option<f32>> = series.after(None).iter().map(Bin::mean).collect();
        assert_eq!(means, [Some(1.0), Some(2.0), Some(30.0)]);
    }

    #[test]
    fn a_lower_limit_merges() {
        let mut series = filled(64, (0..50).map(|value| value as f32));
        assert!(series.limit(16) && !series.limit(16));
        assert_eq!((series.after(None).len(), series.points_per_bin()), (13, 4));
        assert_eq!((series.after(None)[12].min(), series.after(None)[12].max()), (Some(48.0), Some(49.0)));
    }
}
