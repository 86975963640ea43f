//! The changes of an adaptive loss scale in the log: a line when its window or one of its counters changes.

use super::instrument::{Instrument, StepReport};
use super::metrics::StepMetrics;
use crate::error::Result;

/// A line when the window of a loss scale, its increases or its decreases change.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScaleChanges {
    last: Option<[u32; 3]>,
}

impl Instrument for ScaleChanges {
    fn step(&mut self, StepReport { metrics, .. }: &StepReport<'_>) -> Result<()> {
        if let Some(line) = self.line(metrics) {
            tracing::info!("{line}");
        }
        Ok(())
    }
}

impl ScaleChanges {
    /// The line of a step, if something has changed, or if it is the first step: that line also has the list of
    /// windows.
    fn line(&mut self, metrics: &StepMetrics) -> Option<String> {
        let StepMetrics { step, loss_scale_window, loss_scale_increases, loss_scale_decreases, .. } = metrics;
        let (window, increases, decreases) =
            ((*loss_scale_window)?, (*loss_scale_increases)?, (*loss_scale_decreases)?);
        let now = [window, increases, decreases];
        if self.last.replace(now) == Some(now) {
            return None;
        }
        let list = metrics.loss_scale_windows.as_ref().map_or(String::new(), |windows| {
            let windows: Vec<String> = windows.iter().map(u32::to_string).collect();
            format!(" of {}", windows.join(" "))
        });
        Some(format!(
            "step {step}: loss scale window {window}{list}, increases {increases}, decreases {decreases}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_a_line_and_the_first_one_has_the_list() {
        let mut changes = ScaleChanges::default();
        let mut line = |step, [window, increases, decreases]: [u32; 3], windows: Option<Vec<u32>>| {
            changes.line(&StepMetrics {
                step,
                loss_scale_window: Some(window),
                loss_scale_increases: Some(increases),
                loss_scale_decreases: Some(decreases),
                loss_scale_windows: windows,
                ..StepMetrics::default()
            })
        };
        let first = "step 1: loss scale window 20 of 20 30 50, increases 0, decreases 0";
        assert_eq!(line(1, [20, 0, 0], Some(vec![20, 30, 50])).as_deref(), Some(first));
        assert_eq!(line(2, [20, 0, 0], None), None);
        let grown = "step 20: loss scale window 20, increases 1, decreases 0";
        assert_eq!(line(20, [20, 1, 0], None).as_deref(), Some(grown));
        assert!(line(60, [30, 0, 0], None).is_some() && line(61, [30, 0, 1], None).is_some());
        assert_eq!(ScaleChanges::default().line(&StepMetrics::default()), None, "no scale with a list");
    }
}
