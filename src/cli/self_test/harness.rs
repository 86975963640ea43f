//! Records kernels on random inputs, runs them, and compares the results with expected values.

use super::Outcome;
use crate::device::{Gpu, Guard, Job};
use crate::error::Result;
use crate::kernels::Tier;
use crate::random::Philox;
use crate::record::Tensor;

/// Tensors, the kernels recorded on them, and the results they must have.
pub struct Harness<'gpu> {
    gpu: &'gpu Gpu,
    /// The tensors and the kernels.
    pub job: Job,
    random: Philox,
    /// Number of random values drawn.
    drawn: u64,
    /// Label of a result, where it is, and its expected values.
    expected: Vec<(&'static str, Tensor, Vec<f64>)>,
}

impl<'gpu> Harness<'gpu> {
    /// A harness without tensors or kernels.
    pub fn new(gpu: &'gpu Gpu, tier: Tier) -> Self {
        let job = Job::new("self-test", gpu.capabilities().with_tier(tier));
        Self { gpu, job, random: Philox::new(1, 1), drawn: 0, expected: Vec::new() }
    }

    /// A tensor of random values in [-1, 1), and these values.
    pub fn input(&mut self, rows: u32, cols: u32) -> (Tensor, Vec<f64>) {
        let first = self.drawn;
        self.drawn += rows as u64 * cols as u64;
        let values: Vec<f32> =
            (first..self.drawn).map(|i| (2.0 * self.random.uniform(i) - 1.0) as f32).collect();
        let wide = values.iter().copied().map(f64::from).collect();
        (self.job.input(&values, rows, cols), wide)
    }

    /// A tensor of zeros, for results.
    pub fn output(&mut self, rows: u32, cols: u32) -> Tensor {
        self.job.output(rows, cols)
    }

    /// Expects `tensor` to hold the values `want` after the run; `kernel` is the label in the outcome.
    pub fn expect(&mut self, kernel: &'static str, tensor: Tensor, want: Vec<f64>) {
        self.expected.push((kernel, tensor, want));
    }

    /// Runs the kernels and compares the results.
    ///
    /// # Errors
    /// If the device fails.
    pub async fn run(self) -> Result<Vec<Outcome>> {
        let Self { gpu, job, expected, .. } = self;
        let prepared = gpu.prepare_job(job, Guard::Off).await?;
        prepared.replay().await?;
        let mut outcomes = Vec::new();
        for (kernel, tensor, want) in expected {
            let error = relative_error(&prepared.values(&tensor).await?, &want);
            outcomes.push(Outcome { kernel, error });
        }
        Ok(outcomes)
    }
}

/// The largest absolute difference over the root mean square of `want`; infinite if a value is NaN.
fn relative_error(got: &[f32], want: &[f64]) -> f64 {
    let rms = (want.iter().map(|w| w * w).sum::<f64>() / want.len() as f64).sqrt();
    let differences = got.iter().zip(want).map(|(g, w)| (*g as f64 - w).abs());
    differences.map(|d| if d.is_nan() { f64::INFINITY } else { d / rms }).fold(0.0, f64::max)
}
