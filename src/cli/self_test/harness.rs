//! Records kernels on random inputs, runs them, and compares the results with expected values.

use super::Outcome;
use crate::device::{Gpu, Guard, Reader};
use crate::element::Element::{F32, U32};
use crate::error::Result;
use crate::kernels::Tier;
use crate::random::Philox;
use crate::record::{BufferId, Persistents, Recorder, State, Tensor};

/// Tensors, the kernels recorded on them, and the results they must have.
pub struct Harness<'gpu> {
    gpu: &'gpu Gpu,
    persistents: Persistents,
    /// Initial values of the inputs.
    contents: Vec<(Tensor, Vec<u8>)>,
    random: Philox,
    /// Number of random values drawn.
    drawn: u64,
    /// The recording of the kernels.
    pub rec: Recorder,
    /// Label of a result, where it is, and its expected values.
    expected: Vec<(&'static str, Tensor, Vec<f64>)>,
}

impl<'gpu> Harness<'gpu> {
    /// A harness without tensors or kernels.
    pub fn new(gpu: &'gpu Gpu, tier: Tier) -> Self {
        Self {
            gpu,
            persistents: Persistents::new(),
            contents: Vec::new(),
            random: Philox::new(1, 1),
            drawn: 0,
            rec: Recorder::new("self-test", gpu.capabilities().with_tier(tier)),
            expected: Vec::new(),
        }
    }

    /// A tensor of random values in [-1, 1), and these values.
    pub fn input(&mut self, rows: u32, cols: u32) -> (Tensor, Vec<f64>) {
        let first = self.drawn;
        self.drawn += rows as u64 * cols as u64;
        let values: Vec<f32> =
            (first..self.drawn).map(|i| (2.0 * self.random.uniform(i) - 1.0) as f32).collect();
        let wide = values.iter().copied().map(f64::from).collect();
        let mut bytes = Vec::new();
        values.chunks(cols as usize).for_each(|row| F32.encode_row(row, &mut bytes));
        let tensor = self.output(rows, cols);
        self.contents.push((tensor, bytes));
        (tensor, wide)
    }

    /// A row of integers.
    pub fn integers(&mut self, values: &[u32]) -> Tensor {
        let tensor = self.persistents.tensor("self-test", 1, values.len() as u32, U32);
        self.contents.push((tensor, bytemuck::cast_slice(values).to_vec()));
        tensor
    }

    /// A state struct.
    pub fn state<S: State>(&mut self, state: S) -> Tensor {
        let tensor = S::tensor(&mut self.persistents, "self-test");
        self.contents.push((tensor, bytemuck::bytes_of(&state).to_vec()));
        tensor
    }

    /// A tensor of zeros, for results.
    pub fn output(&mut self, rows: u32, cols: u32) -> Tensor {
        self.persistents.tensor("self-test", rows, cols, F32)
    }

    /// Expects `tensor` to hold the values `want` after the run; `kernel` is the label in the outcome.
    pub fn expect(&mut self, kernel: &'static str, tensor: Tensor, want: Vec<f64>) {
        self.expected.push((kernel, tensor, want));
    }

    /// Runs the recording and compares the results.
    ///
    /// # Errors
    /// If the device fails.
    pub async fn run(self) -> Result<Vec<Outcome>> {
        let Self { gpu, persistents, contents, rec, expected, .. } = self;
        let buffers = gpu.make_persistent(&persistents).await?;
        for (tensor, bytes) in contents {
            let BufferId::Persistent(id) = tensor.buffer else { continue };
            gpu.write(&buffers, id, 0, &bytes);
        }
        let prepared = gpu.prepare(&[&rec.finish()], &buffers, Guard::Off).await?;
        let mut encoder = gpu.encoder();
        encoder.replay(&prepared.programs[0]).await?;
        encoder.submit().await?;
        let reader = Reader::new(gpu, 1 << 20);
        let mut outcomes = Vec::new();
        for (kernel, tensor, want) in expected {
            let padded = F32.decode(&reader.tensor(gpu, &buffers, &prepared, 0, &tensor).await?);
            let rows = padded.chunks(tensor.stride as usize);
            let got: Vec<f32> = rows.flat_map(|row| row[..tensor.cols as usize].to_vec()).collect();
            outcomes.push(Outcome { kernel, error: relative_error(&got, &want) });
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
