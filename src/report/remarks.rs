//! Log lines about a step that a configuration asks for, after those of its loss.

use super::instrument::{Instrument, StepReport};
use super::loss_monitor::{local_norm_lines, skip_line};
use crate::error::Result;

/// The norm of each parameter's gradients, and whether a step was skipped for its norm, each where it was measured.
#[derive(Clone, Debug, Default)]
pub struct Remarks {
    /// Path and number of elements of each parameter.
    pub parameters: Vec<(String, usize)>,
    /// Steps with this gradient norm or more are skipped, if there is such a bound.
    pub spike_norm: Option<f64>,
}

impl Instrument for Remarks {
    fn step(&mut self, StepReport { metrics, .. }: &StepReport<'_>) -> Result<()> {
        if let Some(norms) = &metrics.local_norm {
            tracing::info!("{}", local_norm_lines(&self.parameters, norms));
        }
        if let (Some(bound), Some(is_skip)) = (self.spike_norm, metrics.is_skip) {
            tracing::info!("{}", skip_line(metrics.global_step, bound, is_skip));
        }
        Ok(())
    }
}
