//! Do the kernels compute on this adapter what they should? A few of each kind against the f64 references.
//!
//! The tests of the repository ask much more of them. This is for adapters that those have never seen.

use crate::device::{Gpu, Guard, Reader};
use crate::element::Element::F32;
use crate::error::Result;
use crate::kernels::Tier;
use crate::ops::attention::{Attention, attention};
use crate::ops::heads::HeadLayout;
use crate::ops::matmul::{Epilogue, Layout, matmul};
use crate::ops::{rms_norm, swiglu};
use crate::random::Philox;
use crate::record::{BufferId, Persistents, Recorder, Tensor};
use crate::reference;

/// How far a kernel is from its reference: the largest difference, relative to the result's root mean square.
pub struct Outcome {
    /// Which kernel.
    pub kernel: &'static str,
    /// Its error.
    pub error: f64,
}

/// Sums of a few hundred f32 products lose this much at most; a wrong kernel is wrong by far more.
pub const ALLOWED: f64 = 1e-4;

/// Tokens and width: odd, and more than one tile of each.
const N: u32 = 130;
const D: u32 = 200;
const LAYOUT: HeadLayout = HeadLayout { heads: 4, kv_heads: 2, head_dim: 32, value_dim: 32 };

/// Runs the kernels of `tier` on `gpu`.
///
/// # Errors
/// A device that fails.
pub async fn self_test(gpu: &Gpu, tier: Tier) -> Result<Vec<Outcome>> {
    let mut bench = Bench::new(gpu, tier);
    let (x, w) = (bench.input(N, D), bench.input(D, D));
    let [nt, nn, tn] = [(N, D), (N, D), (D, D)].map(|(rows, cols)| bench.output(rows, cols));
    matmul(&mut bench.rec, Layout::Nt, x.0, w.0, nt, Epilogue::default());
    matmul(&mut bench.rec, Layout::Nn, x.0, w.0, nn, Epilogue::default());
    matmul(&mut bench.rec, Layout::Tn, x.0, x.0, tn, Epilogue::default());
    let (gain, normed, rstd) = (bench.input(1, D), bench.output(N, D), bench.output(1, N));
    rms_norm::rms_norm(&mut bench.rec, x.0, gain.0, normed, rstd, 1e-5);
    let gated = bench.output(N, D / 2);
    swiglu::swiglu(&mut bench.rec, x.0, gated);
    let (qkv, attended, lse) =
        (bench.input(N, LAYOUT.cols()), bench.output(N, LAYOUT.out_cols()), bench.output(N, LAYOUT.heads));
    let shape =
        Attention { layout: LAYOUT, tokens: N, is_causal: true, scale: 0.2, window: None, dropout: None };
    attention(&mut bench.rec, qkv.0, attended, lse, None, &shape);

    let (n, d) = (N as usize, D as usize);
    let columns = |(tensor, values): &(Tensor, Vec<f64>), first: u32, count: u32| -> Vec<f64> {
        let rows = values.chunks(tensor.cols as usize);
        rows.flat_map(|row| row[first as usize..(first + count) as usize].to_vec()).collect()
    };
    let part = |first, count| columns(&qkv, first, count);
    let sizes = reference::attention::Attention {
        tokens: n,
        heads: 4,
        kv_heads: 2,
        head_dim: 32,
        value_dim: 32,
        causal: true,
        window: None,
        starts: None,
        factors: None,
        scale: 0.2f32 as f64,
    };
    let (q, k, v) = (
        part(0, LAYOUT.q_cols()),
        part(LAYOUT.k_start(), LAYOUT.k_cols()),
        part(LAYOUT.v_start(), LAYOUT.v_cols()),
    );
    let (attention_wanted, _) = reference::attention::attention(&q, &k, &v, &sizes);
    let wanted = [
        ("matmul x Wᵀ", nt, reference::matmul::matmul_nt(&x.1, &w.1, n, d, d)),
        ("matmul dy W", nn, reference::matmul::matmul_nn(&x.1, &w.1, n, d, d)),
        ("matmul dyᵀ x", tn, reference::matmul::matmul_tn(&x.1, &x.1, d, d, n)),
        ("rms_norm", normed, reference::rms_norm::rms_norm(&x.1, &gain.1, d, 1e-5)),
        ("swiglu", gated, reference::swiglu::swiglu(&columns(&x, 0, D / 2), &columns(&x, D / 2, D / 2))),
        ("attention", attended, attention_wanted),
    ];
    bench.run(wanted).await
}

/// Tensors, what they hold, and the kernels that use them.
struct Bench<'gpu> {
    gpu: &'gpu Gpu,
    persistents: Persistents,
    contents: Vec<(Tensor, Vec<f32>)>,
    random: Philox,
    drawn: u64,
    rec: Recorder,
}

impl<'gpu> Bench<'gpu> {
    fn new(gpu: &'gpu Gpu, tier: Tier) -> Self {
        Self {
            gpu,
            persistents: Persistents::new(),
            contents: Vec::new(),
            random: Philox::new(1, 1),
            drawn: 0,
            rec: Recorder::new("self-test", gpu.capabilities().with_tier(tier)),
        }
    }

    /// Values between -1 and 1.
    fn input(&mut self, rows: u32, cols: u32) -> (Tensor, Vec<f64>) {
        let tensor = self.output(rows, cols);
        let first = self.drawn;
        self.drawn += rows as u64 * cols as u64;
        let values: Vec<f32> =
            (first..self.drawn).map(|i| (2.0 * self.random.uniform(i) - 1.0) as f32).collect();
        self.contents.push((tensor, values.clone()));
        (tensor, values.into_iter().map(f64::from).collect())
    }

    fn output(&mut self, rows: u32, cols: u32) -> Tensor {
        self.persistents.tensor("self-test", rows, cols, F32)
    }

    async fn run<const K: usize>(
        self,
        wanted: [(&'static str, Tensor, Vec<f64>); K],
    ) -> Result<Vec<Outcome>> {
        let Self { gpu, persistents, contents, rec, .. } = self;
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
