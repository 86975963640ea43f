//! Compares the kernels by matrices that recordings have with those of the portable tier, before a run relies on them:
//! a driver's compiler may be right about the samples that opening an adapter tests, and wrong about another variant.
//!
//! The conditions and constants of a kernel tell which op records it, of which tensors. A trial records that op on
//! small ones, of sizes for which its plan chooses this very kernel, once for matrices and once for the portable tier.
//! A tenth of the rows of the left factor are zeros, subnormal halves, or a thousand times as large as the others; what
//! is not finite is left to the kernels' tests.

use super::super::gpu::Gpu;
use super::super::job::Job;
use super::super::prepare::Guard;
use crate::element::Element::{self, F32};
use crate::error::{Error, Result};
use crate::kernels::{Capabilities, Condition, Kernel, Tier, Units};
use crate::ops::attention::{
    Attention, AttentionTensors, DocumentBounds, Sinks, attention, attention_backward,
};
use crate::ops::dropout::{Dropout, DropoutState};
use crate::ops::gelu::Gelu;
use crate::ops::grouped_matmul::{grouped_matmul, grouped_matmul_backward, grouped_matmul_backward_weight};
use crate::ops::heads::HeadLayout;
use crate::ops::matmul::{Activated, Epilogue, Layout, matmul};
use crate::ops::swiglu::{Gate, gate_up_cols};
use crate::ops::work_list::WorkList;
use crate::random::Philox;
use crate::record::{Recording, Tensor};
use std::time::Instant;

/// Shares of a GPU's units, most first: the fewer there are, the larger are the tiles and the fewer the parts.
const UNITS: [u32; 5] = [Units::ASSUMED.count, 16, 4, 2, 1];

/// Rows and columns of a result, and the length of its sums: past the edges of tiles of both sizes; few results of long
/// sums, which are split; so many rows for each of three experts that their tiles are high.
const SIZES: [[u32; 3]; 6] =
    [[70, 148, 292], [200, 300, 72], [68, 64, 4096], [132, 260, 2048], [1540, 60, 72], [1540, 260, 72]];

/// Of the numbers in tensors.
const SEED: u64 = 0x6d61_7472_6978;

/// The allowed difference, as a share of the values and of the root of the mean square of their row. In 16 bits both
/// kernels round a few times, and sums that lack a term differ by more. In f32 a few values differ by 2^-11 where low
/// terms are lost, and by 2^-15 where 4,096 products are added 16 at a time and cut off.
fn allowed(element: Element) -> f64 {
    if element == F32 { 1.0 / 4096.0 } else { 1.0 / 32.0 }
}

impl Gpu {
    /// Compares each kernel by matrices of `recordings` with the portable ones.
    ///
    /// # Errors
    /// The first kernel whose results differ; a device failure.
    pub(crate) async fn compare_matrices(&self, recordings: &[&Recording]) -> Result<()> {
        if self.capabilities().tier != Tier::Matrix {
            return Ok(());
        }
        let (begin, mut kernels) = (Instant::now(), recorded(recordings));
        let count = kernels.len();
        while let Some(kernel) = kernels.pop() {
            let Some(trial) = Trial::of(&kernel, self.capabilities()) else {
                tracing::warn!("{kernel} is not compared with the portable kernels: no small op records it");
                continue;
            };
            if let Some(difference) = trial.first_difference(self).await? {
                return Err(Error::Device(format!(
                    "{}: its matrices compute {kernel} wrong: {difference}; --tier portable computes without them",
                    self.report().name
                )));
            }
            let records = trial.kernels(self.capabilities());
            kernels.retain(|kernel| !records.contains(kernel));
        }
        tracing::debug!("compared {count} kernels by matrices in {:.1} s", begin.elapsed().as_secs_f64());
        Ok(())
    }
}

/// The kernels by matrices of `recordings` that no trial records.
pub fn without_trial(recordings: &[&Recording], capabilities: Capabilities) -> Vec<Kernel> {
    let has_none = |kernel: &Kernel| Trial::of(kernel, capabilities).is_none();
    recorded(recordings).into_iter().filter(has_none).collect()
}

/// The kernels by matrices that `recordings` have, each once.
fn recorded(recordings: &[&Recording]) -> Vec<Kernel> {
    let mut kernels: Vec<Kernel> = Vec::new();
    for dispatch in recordings.iter().flat_map(|recording| &recording.dispatches) {
        if dispatch.kernel.is_by_matrices() && !kernels.contains(&dispatch.kernel) {
            kernels.push(dispatch.kernel.clone());
        }
    }
    kernels
}

/// An op on small tensors.
#[derive(Clone, Debug)]
struct Trial {
    /// The kernel whose conditions the op has.
    kernel: Kernel,
    /// The units for which the op is planned.
    units: u32,
    sizes: [u32; 3],
    /// Whether tensors have contents. To see which kernels it records, a trial needs none.
    is_filled: bool,
}

impl Trial {
    /// The trial that records `kernel`.
    fn of(kernel: &Kernel, capabilities: Capabilities) -> Option<Self> {
        let trial = |units, sizes| Self { kernel: kernel.clone(), units, sizes, is_filled: false };
        let mut trials = UNITS.iter().flat_map(|units| SIZES.map(|sizes| trial(*units, sizes)));
        let found = trials.find(|trial| trial.kernels(capabilities).contains(kernel));
        found.map(|trial| Self { is_filled: true, ..trial })
    }

    /// The kernels by matrices that the trial records.
    fn kernels(&self, capabilities: Capabilities) -> Vec<Kernel> {
        recorded(&[&Self { is_filled: false, ..self.clone() }.record(capabilities).0.rec.finish()])
    }

    /// The first value that both tiers compute otherwise.
    async fn first_difference(&self, gpu: &Gpu) -> Result<Option<String>> {
        let mut values = Vec::new();
        for tier in [Tier::Matrix, Tier::Portable] {
            let (job, results) = self.record(gpu.capabilities().with_tier(tier));
            let job = gpu.prepare_job(job, Guard::Off).await?;
            job.replay().await?;
            let mut of_tier = Vec::new();
            for result in &results {
                of_tier.push((result.cols, job.values(result).await?));
            }
            values.push(of_tier);
        }
        let mut pairs = values[0].iter().zip(&values[1]);
        let allowed = allowed(self.kernel.element);
        Ok(pairs.find_map(|((columns, got), (_, want))| difference(*columns as usize, got, want, allowed)))
    }

    /// The job, and the tensors that hold its results.
    fn record(&self, capabilities: Capabilities) -> (Job, Vec<Tensor>) {
        let units = Units { count: self.units, ..capabilities.units };
        let mut job = Job::new("trial", capabilities.with_units(units));
        let results = match self.kernel.file {
            "matmul/matrix" if self.has(Condition::Grouped) => self.record_grouped(&mut job),
            "matmul/matrix" => self.record_product(&mut job),
            _ => self.record_attention(&mut job),
        };
        (job, results)
    }

    fn has(&self, condition: Condition) -> bool {
        self.kernel.conditions().any(|one| one == condition)
    }

    fn constant(&self, name: &str) -> u32 {
        let found = self.kernel.constants().iter().find(|(constant, _)| *constant == name);
        found.map_or(0, |(_, value)| *value)
    }

    fn layout(&self) -> Layout {
        match (self.has(Condition::ATransposed), self.has(Condition::BTransposed)) {
            (true, _) => Layout::Tn,
            (_, true) => Layout::Nt,
            _ => Layout::Nn,
        }
    }

    /// Columns of silu(gate) · up: whole groups of 4, since weights between those of gate and up would have to be
    /// zeros.
    fn gated_columns(&self) -> u32 {
        self.sizes[1] / 8 * 4
    }

    /// The elements of the right factor.
    fn weights(&self) -> Element {
        match () {
            _ if self.has(Condition::Nf4) => Element::Nf4,
            _ if self.has(Condition::Int8) => Element::Int8,
            _ => self.kernel.element,
        }
    }

    /// The elements of the result.
    fn results(&self) -> Element {
        if self.has(Condition::Gradient) { F32 } else { self.kernel.element }
    }

    /// A tensor of numbers from -1 to 1.
    fn uniform(&self, job: &mut Job, rows: u32, cols: u32, element: Element) -> Tensor {
        self.numbers(job, rows, cols, element, |_| 1.0)
    }

    /// The same with other rows among them.
    fn uneven(&self, job: &mut Job, rows: u32, cols: u32, element: Element) -> Tensor {
        self.numbers(job, rows, cols, element, |row| match row % 30 {
            7 => 0.0,
            17 => 500.0 * f32::from(half::f16::MIN_POSITIVE_SUBNORMAL),
            27 => 1000.0,
            _ => 1.0,
        })
    }

    fn numbers(
        &self,
        job: &mut Job,
        rows: u32,
        cols: u32,
        element: Element,
        largest: impl Fn(u64) -> f32,
    ) -> Tensor {
        if !self.is_filled {
            return job.tensor(rows, cols, element);
        }
        let philox = Philox::new(SEED, job.contents().len() as u64);
        let of = |i: u64| (2.0 * philox.uniform(i) - 1.0) as f32 * largest(i / u64::from(cols));
        let values: Vec<f32> = (0..u64::from(rows * cols)).map(of).collect();
        job.input_of(&values, rows, cols, element)
    }

    fn record_product(&self, job: &mut Job) -> Vec<Tensor> {
        let ([m, n, k], layout, element) = (self.sizes, self.layout(), self.kernel.element);
        let n = if self.has(Condition::Swiglu) { gate_up_cols(self.gated_columns()) } else { n };
        let [a_rows, a_cols] = if layout == Layout::Tn { [k, m] } else { [m, k] };
        let [b_rows, b_cols] = if layout == Layout::Nt { [n, k] } else { [k, n] };
        let a = self.uneven(job, a_rows, a_cols, element);
        let b = self.uniform(job, b_rows, b_cols, self.weights());
        let columns = if self.has(Condition::SwigluSlopes) { gate_up_cols(n) } else { n };
        let y = match self.has(Condition::Accumulate) {
            true => self.uniform(job, m, columns, self.results()),
            false => job.tensor(m, columns, self.results()),
        };
        let (epilogue, mut results) = self.epilogue(job, 1, y);
        matmul(&mut job.rec, layout, a, b, y, epilogue);
        results.push(y);
        results
    }

    /// Three experts, one of them without rows.
    fn record_grouped(&self, job: &mut Job) -> Vec<Tensor> {
        const EXPERTS: u32 = 3;
        let ([rows, n, k], element) = (self.sizes, self.kernel.element);
        let offsets = job.integers(&[0, rows / 3, rows / 3, rows]);
        let work = WorkList::new(&mut job.rec, offsets, rows);
        let x = self.uneven(job, rows, k, element);
        if self.layout() == Layout::Tn {
            let dy = self.uniform(job, rows, n, element);
            let stack = self.uniform(job, EXPERTS * n, k, F32);
            grouped_matmul_backward_weight(&mut job.rec, dy, x, &work, &[stack]);
            return vec![stack];
        }
        let y = job.tensor(rows, n, element);
        let (epilogue, mut results) = self.epilogue(job, EXPERTS, y);
        if self.layout() == Layout::Nt {
            let stack = self.uniform(job, EXPERTS * n, k, self.weights());
            grouped_matmul(&mut job.rec, x, &[stack], &work, y, epilogue);
        } else {
            let stack = self.uniform(job, EXPERTS * k, n, self.weights());
            grouped_matmul_backward(&mut job.rec, x, &[stack], &work, y, epilogue);
        }
        results.push(y);
        results
    }

    /// The epilogue of a product with the result `y`, and what it writes beside that.
    fn epilogue(&self, job: &mut Job, experts: u32, y: Tensor) -> (Epilogue, Vec<Tensor>) {
        let element = self.kernel.element;
        let gelu = match () {
            _ if self.has(Condition::Exact) => Gelu::Exact,
            _ if self.has(Condition::Fast) => Gelu::Fast,
            _ if self.has(Condition::Squared) => Gelu::ReluSquared,
            _ if self.has(Condition::Relu) => Gelu::Relu,
            _ => Gelu::Tanh,
        };
        let gate = match () {
            _ if self.has(Condition::GeluGate) => Gate::Gelu(gelu),
            _ if self.has(Condition::ClampedGate) => Gate::Clamped,
            _ => Gate::Silu,
        };
        let mut written = Vec::new();
        let activated = if self.has(Condition::Gelu) {
            let value = job.tensor(y.rows, y.cols, element);
            written.push(value);
            Some(Activated::Gelu(gelu, value))
        } else if self.has(Condition::GeluSlope) {
            Some(Activated::Slope(gelu, self.uniform(job, y.rows, y.cols, element)))
        } else if self.has(Condition::Swiglu) {
            let value = job.tensor(y.rows, self.gated_columns(), element);
            written.push(value);
            Some(Activated::Swiglu(gate, value))
        } else if self.has(Condition::SwigluSlopes) {
            Some(Activated::SwigluSlopes(gate, self.uniform(job, y.rows, y.cols, element)))
        } else {
            None
        };
        let epilogue = Epilogue {
            factor: self.has(Condition::Scaled).then_some(0.75),
            bias: self.has(Condition::Bias).then(|| self.uniform(job, experts, y.cols, element)),
            residual: self.has(Condition::Residual).then(|| self.uniform(job, y.rows, y.cols, element)),
            accumulate: self.has(Condition::Accumulate),
            activated,
        };
        (epilogue, written)
    }

    /// Forward and backward. Two heads share their keys.
    fn record_attention(&self, job: &mut Job) -> Vec<Tensor> {
        let element = self.kernel.element;
        let [head_dim, value_dim] = ["D4", "V4"].map(|name| 4 * self.constant(name));
        let tokens = self.sizes[0];
        let layout = HeadLayout { heads: 2, kv_heads: 1, head_dim, value_dim };
        let has_documents = self.has(Condition::Segmented);
        let is_causal = [Condition::Causal, Condition::Windowed, Condition::Segmented, Condition::Alibi];
        let state = self.has(Condition::Dropout).then(|| job.state(DropoutState { step: 3, micro_step: 1 }));
        let dropout = state.map(|state| Dropout { probability: 0.25, seed: 7, site: 5, state, part: None });
        let shape = Attention {
            layout,
            tokens,
            is_causal: is_causal.into_iter().any(|condition| self.has(condition)),
            scale: 1.0 / (head_dim as f32).sqrt(),
            soft_cap: self.has(Condition::Capped).then_some(1.0),
            window: self.has(Condition::Windowed).then_some(tokens / 2),
            has_alibi: self.has(Condition::Alibi),
            head_range: None,
            dropout,
        };
        let first = tokens / 3; // of the second document
        let bounds = has_documents.then(|| {
            let is_first = |token: u32| token < first;
            let starts: Vec<u32> = (0..tokens).map(|token| if is_first(token) { 0 } else { first }).collect();
            let ends: Vec<u32> =
                (0..tokens).map(|token| if is_first(token) { first } else { tokens }).collect();
            DocumentBounds { starts: job.integers(&starts), ends: job.integers(&ends) }
        });
        let logits = self.has(Condition::Logits).then(|| job.tensor(tokens, layout.heads, F32));
        let tensors = AttentionTensors {
            qkv: self.uniform(job, tokens, layout.cols(), element),
            out: job.tensor(tokens, layout.out_cols(), element),
            lse: job.tensor(tokens, layout.heads, F32),
            documents: bounds,
            logits,
            sinks: self
                .has(Condition::Sinks)
                .then(|| Sinks { logits: self.uniform(job, 1, layout.heads, element), gradient: None }),
        };
        let dout = self.uniform(job, tokens, layout.out_cols(), element);
        let dqkv = job.tensor(tokens, layout.cols(), element);
        attention(&mut job.rec, &tensors, &shape);
        attention_backward(&mut job.rec, &tensors, dout, dqkv, &shape);
        [Some(tensors.out), Some(tensors.lse), logits, Some(dqkv)].into_iter().flatten().collect()
    }
}

/// The first value of `got` that differs from `want` by more than is `allowed`, in rows of `columns`.
fn difference(columns: usize, got: &[f32], want: &[f32], allowed: f64) -> Option<String> {
    let mut rows = got.chunks(columns).zip(want.chunks(columns)).enumerate();
    rows.find_map(|(row, (got, want))| {
        let squares: f64 = want.iter().map(|value| f64::from(*value).powi(2)).sum();
        let size = (squares / columns as f64).sqrt();
        let differs = |(_, (got, want)): &(usize, (&f32, &f32))| {
            let [got, want] = [f64::from(**got), f64::from(**want)];
            let allowed = allowed * (want.abs() + size) + f64::from(half::f16::MIN_POSITIVE);
            (got - want).abs() > allowed || got.is_nan() != want.is_nan()
        };
        let (column, (got, want)) = got.iter().zip(want).enumerate().find(differs)?;
        Some(format!("row {row}, column {column} of {columns} is {got} instead of {want}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::Element::{Bf16, F16};
    use crate::kernels::Matrices;

    /// Sixteen bits round otherwise in the last place; a sum that lacks terms, or a value in another place, is found.
    #[test]
    fn a_difference_is_found_and_rounding_is_none() {
        let want: Vec<f32> = (0..400).map(|i| ((i * 37) % 101) as f32 - 50.0).collect();
        let rounded: Vec<f32> = want.iter().map(|value| value * (1.0 + 1.0 / 256.0)).collect();
        let difference =
            |columns, got: &[f32], want: &[f32]| super::difference(columns, got, want, allowed(Bf16));
        assert_eq!(difference(40, &rounded, &want), None);
        assert!(super::difference(40, &rounded, &want, allowed(F32)).is_some());
        for (at, wrong) in [(0, f32::NAN), (123, 0.0), (399, f32::INFINITY), (250, -want[250])] {
            let mut got = want.clone();
            got[at] = wrong;
            let line =
                difference(40, &got, &want).unwrap_or_else(|| panic!("{wrong} instead of {}", want[at]));
            let place =
                format!("row {}, column {} of 40 is {wrong} instead of {}", at / 40, at % 40, want[at]);
            assert_eq!(line, place);
        }
        // Zeros are exact.
        assert!(difference(2, &[0.0, 1e-3], &[0.0, 0.0]).is_some());
    }

    /// What a trial of a kernel records is that kernel, whatever the matrices of the adapter.
    #[test]
    fn trials_record_the_kernels_that_they_are_for() {
        for (side, subgroup) in [(8, 32), (16, 32), (16, 64)] {
            let matrices = Matrices { side, subgroup };
            let capabilities = Capabilities::matrix().with_matrices(matrices).with_split_f32(true);
            for element in [F16, Bf16, F32] {
                let kernel = Kernel::new("matmul/matrix", "matmul", element);
                for condition in [Condition::ATransposed, Condition::BTransposed, Condition::Grouped] {
                    let like = Trial {
                        kernel: kernel.clone().condition(condition, true),
                        units: 4,
                        sizes: SIZES[0],
                        is_filled: false,
                    };
                    let recorded = like.kernels(capabilities);
                    assert!(!recorded.is_empty(), "{}", like.kernel);
                    for kernel in recorded {
                        let trial =
                            Trial::of(&kernel, capabilities).unwrap_or_else(|| panic!("none of {kernel}"));
                        assert!(trial.kernels(capabilities).contains(&kernel), "{kernel}");
                    }
                }
            }
        }
    }
}
