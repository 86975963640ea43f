//! The schedule on the device: learning rates and bias corrections by step.

use crate::element::stride_of;
use crate::ops::grad_norm::rate_column;

/// The rows of [`StepTensors::schedule`], computed in f64. `rates` gives each parameter group's learning rate by step;
/// without `betas` the moments are not corrected for starting at 0.
///
/// [`StepTensors::schedule`]: crate::ops::grad_norm::StepTensors::schedule
pub(crate) fn schedule_table(steps: u64, rates: &[&dyn Fn(u64) -> f64], betas: Option<[f64; 2]>) -> Vec<f32> {
    let stride = stride_of(schedule_columns(rates.len())) as usize;
    let mut table = vec![0.0; steps.max(1) as usize * stride];
    for (step, row) in (0..).zip(table.chunks_exact_mut(stride)) {
        let correction = |beta: f64| 1.0 / -f64::exp_m1((step + 1) as f64 * beta.ln());
        let corrections = betas.map_or([1.0; 2], |betas| betas.map(correction));
        row[1..3].copy_from_slice(&corrections.map(|correction| correction as f32));
        for (group, lr_at) in rates.iter().enumerate() {
            row[rate_column(group) as usize] = lr_at(step) as f32;
        }
    }
    table
}

/// Columns of a schedule for `groups` parameter groups.
pub(crate) const fn schedule_columns(groups: usize) -> u32 {
    2 + groups as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_hold_rates_and_the_corrections_of_the_paper() {
        let rates: [&dyn Fn(u64) -> f64; 3] = [&|step| step as f64, &|_| 7.0, &|step| 8.0 + step as f64];
        let table = schedule_table(3, &rates, Some([0.9, 0.95]));
        assert_eq!(table.len(), 3 * 8, "5 columns take 8");
        for (i, row) in table.chunks(8).enumerate() {
            let t = i as i32 + 1;
            let corrections = [0.9f64, 0.95].map(|beta| 1.0 / (1.0 - beta.powi(t)));
            let want = [i as f64, corrections[0], corrections[1], 7.0, 8.0 + i as f64, 0.0, 0.0, 0.0];
            assert!(
                row.iter().zip(want).all(|(&got, want)| (got as f64 - want).abs() <= 1e-6 * want),
                "{row:?}"
            );
        }
        let uncorrected = schedule_table(2, &[&|_| 0.5], None);
        assert_eq!(uncorrected, [0.5, 1.0, 1.0, 0.0, 0.5, 1.0, 1.0, 0.0]);
    }
}
