//! A kernel of one's own: the file `own_kernel.wgsl` enters recordings and the tape, and its gradient is compared with
//! finite differences. `cargo run --release --example own_kernel`

use gristmill::prelude::*;
use gristmill::random::Philox;

const ROWS: u32 = 5;
const COLS: u32 = 7;
const LANES: u32 = 64;

gristmill::params! {
    struct Params {
        rows: u32,
        cols: u32,
        stride4: u32,
    }
}

fn main() -> gristmill::error::Result<()> {
    pollster::block_on(async {
        let sources = Sources::default().with("mine/softplus", include_str!("own_kernel.wgsl"))?;
        let gpu = Gpu::request(&GpuOptions { sources, ..GpuOptions::default() }).await?;
        let random = Philox::new(1, 0);
        let x: Vec<f32> = (0..ROWS * COLS).map(|i| 2.0 * random.normal(i.into()) as f32).collect();
        let dy: Vec<f32> = (0..ROWS * COLS).map(|i| random.normal(1000 + u64::from(i)) as f32).collect();

        let dx = gpu.run(|job| gradient(job, &x, &dy)).await?;

        // The op works element by element, so two runs give the differences of all elements.
        const STEP: f32 = 1e-2;
        let [above, below] = [STEP, -STEP].map(|step| x.iter().map(|x| x + step).collect::<Vec<f32>>());
        let [above, below] = gpu.run(|job| [forward(job, &above), forward(job, &below)]).await?;
        let differences = above.iter().zip(&below).map(|(above, below)| (above - below) / (2.0 * STEP));
        let errors = dx.iter().zip(differences.zip(&dy)).map(|(dx, (slope, dy))| (dx - slope * dy).abs());
        let worst = errors.fold(0.0, f32::max);
        println!("softplus: the gradient is within {worst:.1e} of finite differences");
        assert!(worst < 1e-3, "the backward is not that of the forward");
        Ok(())
    })
}

/// y = ln(1 + e^x) on the tape.
fn softplus(tape: &mut Tape<'_, '_>, x: Var) -> Var {
    let Tensor { rows, cols, element, .. } = x.tensor;
    let y = tape.rec.tensor("y", rows, cols, element);
    dispatch(tape.rec, "softplus", &[("x", x.tensor), ("y", y)]);
    let saved = tape.save(x);
    tape.result(y, &[x], false, move |tape, dy| {
        let dx = tape.rec.tensor("gradient", rows, cols, element);
        let x_tensor = tape.saved(saved);
        dispatch(tape.rec, "softplus_backward", &[("x", x_tensor), ("dy", dy), ("dx", dx)]);
        tape.give(x, dx);
    })
}

/// Records an entry point of the file on `tensors` of one shape, each with the name of its variable in the file.
fn dispatch(rec: &mut Recorder, entry: &'static str, tensors: &[(&'static str, Tensor)]) {
    let (_, first) = tensors[0];
    let Tensor { rows, cols, element, .. } = first;
    let params = Params { rows, cols, stride4: first.stride4() };
    let kernel = Kernel::new("mine/softplus", entry, element).constant("LANES", LANES);
    let bindings: Vec<_> = tensors.iter().map(|(variable, tensor)| tensor.bind(variable, element)).collect();
    rec.dispatch(kernel, &bindings, &params, fold_grid(u64::from((rows * params.stride4).div_ceil(LANES))));
}

fn forward(job: &mut Job, x: &[f32]) -> Tensor {
    let x = job.input(x, ROWS, COLS);
    let mut tape = Tape::forward_only(&mut job.rec);
    let x = tape.leaf(x, false);
    softplus(&mut tape, x).tensor
}

/// The gradient of Σ dy · softplus(x).
fn gradient(job: &mut Job, x: &[f32], dy: &[f32]) -> Tensor {
    let (x, dy) = (job.input(x, ROWS, COLS), job.input(dy, ROWS, COLS));
    let mut tape = Tape::new(&mut job.rec);
    let x = tape.leaf(x, true);
    let y = softplus(&mut tape, x);
    tape.give(y, dy);
    tape.backward();
    tape.gradient(x).expect("x needs a gradient")
}
