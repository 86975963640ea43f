//! Stable ranks and eigenvalues, from what power iteration leaves.

use super::Matrices;
use crate::ops::squares::SquareSum;
use crate::report::metrics::MonitorValue;
use crate::settings::MoeShowMode;

/// The numbers of `watched`, whose matrices have these `eigenvalues` and `sums` of squares.
pub(super) fn stable_ranks(
    watched: &[Matrices],
    mode: MoeShowMode,
    eigenvalues: &[f32],
    sums: &[SquareSum],
) -> Vec<MonitorValue> {
    let of_matrix = |(eigenvalue, sum): (&f32, &SquareSum)| {
        let eigenvalue = f64::from(*eigenvalue);
        (sum.norm().powi(2) / eigenvalue, eigenvalue)
    };
    let all: Vec<(f64, f64)> = eigenvalues.iter().zip(sums).map(of_matrix).collect();
    let mut first = 0;
    let mut values = Vec::new();
    for matrices in watched {
        let own = &all[first..first + matrices.count as usize];
        first += own.len();
        let (ranks, eigenvalues): (Vec<f64>, Vec<f64>) = own.iter().copied().unzip();
        values.extend(matrices.values("weight_stable_rank", mode, &ranks));
        values.extend(matrices.values("weight_eigenvalue", mode, &eigenvalues));
    }
    values
}

impl Matrices {
    fn values(&self, tag: &str, mode: MoeShowMode, numbers: &[f64]) -> Vec<MonitorValue> {
        let tag = format!("{tag}/{}", self.path);
        if !self.is_stack {
            return numbers.iter().map(|number| MonitorValue::one(tag.as_str(), *number)).collect();
        }
        let mut values = Vec::new();
        if mode.shows_each() {
            let of_expert = |(expert, number): (usize, &f64)| {
                MonitorValue::one(format!("{tag}/expert_{expert}"), *number)
            };
            values.extend(numbers.iter().enumerate().map(of_expert));
        }
        if mode.shows_statistics() {
            let largest = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let smallest = numbers.iter().copied().fold(f64::INFINITY, f64::min);
            let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
            let statistics = [("max", largest), ("min", smallest), ("mean", mean)];
            let named =
                statistics.map(|(name, number)| MonitorValue::one(format!("{tag}/expert_{name}"), number));
            values.extend(named);
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_have_a_number_each_or_statistics() {
        let matrix =
            |path: &str, count| Matrices { path: path.into(), parameter: 0, count, is_stack: count > 1 };
        let watched = [matrix("wo", 1), matrix("experts", 2)];
        let (eigenvalues, sums) =
            ([4.0, 1.0, 2.0], [8.0, 3.0, 4.0].map(|sum| SquareSum([0.0, sum, 0.0, 0.0])));
        let tags = |mode| {
            let values = stable_ranks(&watched, mode, &eigenvalues, &sums);
            let ranks = values.into_iter().filter(|value| value.tag.starts_with("weight_stable_rank/"));
            ranks.map(|value| value.tag["weight_stable_rank/".len()..].to_string()).collect::<Vec<_>>()
        };
        let statistics = ["experts/expert_max", "experts/expert_min", "experts/expert_mean"];
        let each = ["experts/expert_0", "experts/expert_1"];
        assert_eq!(tags(MoeShowMode::Full), [&["wo"][..], &each].concat());
        assert_eq!(tags(MoeShowMode::Statistics), [&["wo"][..], &statistics].concat());
        assert_eq!(tags(MoeShowMode::All), [&["wo"][..], &each, &statistics].concat());
        let values = stable_ranks(&watched, MoeShowMode::Statistics, &eigenvalues, &sums);
        assert_eq!(values[0], MonitorValue::one("weight_stable_rank/wo", 2.0));
        assert_eq!(values[1], MonitorValue::one("weight_eigenvalue/wo", 4.0));
        assert_eq!(values[4], MonitorValue::one("weight_stable_rank/experts/expert_mean", 2.5));
    }
}
