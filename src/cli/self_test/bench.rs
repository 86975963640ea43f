//! What the self-test works with: tensors, and what must be in them.

use super::Outcome;
use crate::device::{Gpu, Guard, Reader};
use crate::element::Element::F32;
use crate::error::Result;
use crate::kernels::Tier;
use crate::random::Philox;
use crate::record::{BufferId, Persistents, Recorder, Tensor};

/// Tensors, what they hold, and the kernels that use them.
pub struct Bench<'gpu> {
    gpu: &'gpu Gpu,
    persistents: Persistents,
    contents: Vec<(Tensor, Vec<f32>)>,
    random: Philox,
    drawn: u64,
    /// Where the kernels are recorded.
    pub rec: Recorder,
    wanted: Vec<(&'static str, Tensor, Vec<f64>)>,
}

impl<'gpu> Bench<'gpu> {
    /// With nothing on it yet.
    pub fn new(gpu: &'gpu Gpu, tier: Tier) -> Self {
        Self {
            gpu,
            persistents: Persistents::new(),
            contents: Vec::new(),
            random: Philox::new(1, 1),
            drawn: 0,
            rec: Recorder::new("self-test", gpu.capabilities().with_tier(tier)),
            wanted: Vec::new(),
        }
    }

    /// Values between -1 and 1.
    pub fn input(&mut self, rows: u32, cols: u32) -> (Tensor, Vec<f64>) {
        let first = self.drawn;
        self.drawn += rows as u64 * cols as u64;
        let values: Vec<f32> =
            (first..self.drawn).map(|i| (2.0 * self.random.uniform(i) - 1.0) as f32).collect();
        let wide = values.iter().copied().map(f64::from).collect();
        (self.holding(rows, cols, values), wide)
    }

    /// A tensor that holds `values`.
    pub fn holding(&mut self, rows: u32, cols: u32, values: Vec<f32>) -> Tensor {
        let tensor = self.output(rows, cols);
        self.contents.push((tensor, values));
        tensor
    }

    /// A tensor of zeros.
    pub fn output(&mut self, rows: u32, cols: u32) -> Tensor {
        self.persistents.tensor("self-test", rows, cols, F32)
    }

    /// States what `tensor` must hold in the end, as the result of `kernel`.
    pub fn expect(&mut self, kernel: &'static str, tensor: Tensor, want: Vec<f64>) {
        self.wanted.push((kernel, tensor, want));
    }

    /// Runs all that was recorded.
    ///
    /// # Errors
    /// A device that fails.
    pub async fn run(self) -> Result<Vec<Outcome>> {
        let Self { gpu, persistents, contents, rec, wanted, .. } = self;
        let buffers = gpu.make_persistent(&persistents).await?;
        for (tensor, values) in contents {
            let BufferId::Persistent(id) = tensor.buffer else { continue };
            let mut bytes = Vec::new();
            values.chunks(tensor.cols as usize).for_each(|row| F32.encode_row(row, &mut bytes));
            gpu.write(&buffers, id, 0, &bytes);
        }
        let prepared = gpu.prepare(&[&rec.finish()], &buffers, Guard::Off).await?;
        let mut encoder = gpu.encoder();
        encoder.replay(&prepared.programs[0]).await?;
        encoder.submit().await?;
        let reader = Reader::new(gpu, 1 << 20);
        let mut outcomes = Vec::new();
        for (kernel, tensor, want) in wanted {
            let padded = F32.decode(&reader.tensor(gpu, &buffers, &prepared, 0, &tensor).await?);
            let rows = padded.chunks(tensor.stride as usize);
            let got: Vec<f32> = rows.flat_map(|row| row[..tensor.cols as usize].to_vec()).collect();
            outcomes.push(Outcome { kernel, error: relative_error(&got, &want) });
        }
        Ok(outcomes)
    }
}

/// The largest difference over the root mean square; infinite where a number is none.
fn relative_error(got: &[f32], want: &[f64]) -> f64 {
    let rms = (want.iter().map(|w| w * w).sum::<f64>() / want.len() as f64).sqrt();
    let differences = got.iter().zip(want).map(|(g, w)| (*g as f64 - w).abs());
    differences.map(|d| if d.is_nan() { f64::INFINITY } else { d / rms }).fold(0.0, f64::max)
}
