//! Records kernels on inputs drawn from a seed, and runs them on one tier.

use crate::device::{Gpu, Guard, Job};
use crate::element::Element::U32;
use crate::error::Result;
use crate::kernels::{Tier, Units};
use crate::random::Philox;
use crate::record::Tensor;

/// Tensors, the kernels recorded on them, and the results to check. All tiers get the same inputs.
pub struct Harness<'gpu> {
    gpu: &'gpu Gpu,
    /// The tensors and the kernels.
    pub job: Job,
    random: Philox,
    /// Number of random values drawn.
    drawn: u64,
    /// Label and tensor of a result, and its expected values if they are known.
    results: Vec<(&'static str, Tensor, Option<Vec<f64>>)>,
}

/// A result of one tier.
pub struct Computed {
    /// Label of the result: the kernel, and for gradients which one it is.
    pub kernel: &'static str,
    /// The values that the tier computed.
    pub values: Vec<f64>,
    /// The expected values, if they are known.
    pub known: Option<Vec<f64>>,
}

/// Products are divided for a GPU of one unit, so that small products have the tiles of large ones.
pub const UNITS: Units = Units { count: 1, ..Units::ASSUMED };

impl<'gpu> Harness<'gpu> {
    /// A harness without tensors or kernels.
    pub fn new(gpu: &'gpu Gpu, tier: Tier) -> Self {
        let job = Job::new("self-test", gpu.capabilities().with_tier(tier).with_units(UNITS));
        Self { gpu, job, random: Philox::new(1, 1), drawn: 0, results: Vec::new() }
    }

    /// A tensor of random values in [-1, 1).
    pub fn input(&mut self, rows: u32, cols: u32) -> Tensor {
        let values: Vec<f32> = self.draw(rows, cols).map(|unit| (2.0 * unit - 1.0) as f32).collect();
        self.job.input(&values, rows, cols)
    }

    /// A tensor of random whole numbers from -9 to 9, and these numbers. Sums of a few thousand of their products are
    /// exact in f32.
    pub fn whole(&mut self, rows: u32, cols: u32) -> (Tensor, Vec<i32>) {
        let values: Vec<i32> = self.draw(rows, cols).map(|unit| (19.0 * unit) as i32 - 9).collect();
        let floats: Vec<f32> = values.iter().map(|value| *value as f32).collect();
        (self.job.input(&floats, rows, cols), values)
    }

    /// Random numbers in [0, 1) for a tensor.
    fn draw(&mut self, rows: u32, cols: u32) -> impl Iterator<Item = f64> + use<> {
        let (first, random) = (self.drawn, self.random);
        self.drawn += u64::from(rows) * u64::from(cols);
        (first..self.drawn).map(move |counter| random.uniform(counter))
    }

    /// A tensor of zeros, for results.
    pub fn output(&mut self, rows: u32, cols: u32) -> Tensor {
        self.job.output(rows, cols)
    }

    /// Adds `tensor` as a result called `kernel`, in which the tiers must agree.
    pub fn compare(&mut self, kernel: &'static str, tensor: Tensor) {
        self.results.push((kernel, tensor, None));
    }

    /// Adds `tensor` as a result called `kernel`, which must hold the values `known`.
    pub fn expect<V: Into<f64>>(&mut self, kernel: &'static str, tensor: Tensor, known: Vec<V>) {
        self.results.push((kernel, tensor, Some(known.into_iter().map(V::into).collect())));
    }

    /// Runs the kernels and reads the results.
    ///
    /// # Errors
    /// The device fails.
    pub async fn run(self) -> Result<Vec<Computed>> {
        let prepared = self.gpu.prepare_job(self.job, Guard::Off).await?;
        prepared.replay().await?;
        let mut computed = Vec::new();
        for (kernel, tensor, known) in self.results {
            let values = match tensor.element {
                U32 => prepared.words(&tensor).await?.into_iter().map(f64::from).collect(),
                _ => prepared.values(&tensor).await?.into_iter().map(f64::from).collect(),
            };
            computed.push(Computed { kernel, values, known });
        }
        Ok(computed)
    }
}
