//! Finds the cooperative matrices of an adapter for [`Tier::Matrix`], and tests the tier's products before anything
//! relies on them.
//!
//! Drivers are young here, and another project saw wrong sums on one generation of NVIDIA's GPUs. So the test
//! multiplies matrices of whole numbers, whose results are exact in any order: each layout, in f16 and in bf16, in
//! tiles of both sizes that reach past the edges, with sums over many slices. It also computes attention whose weights
//! are halves, forward and backward. An adapter that gets one number wrong computes on [`Tier::Portable`]. What a run
//! records is compared with the portable kernels besides (`recorded.rs`).

mod attention;
pub(super) mod recorded;

use super::adapter::AdapterReport;
use super::gpu::Gpu;
use super::job::Job;
use super::prepare::Guard;
use crate::element::Element::{self, Bf16, F16, F32};
use crate::error::Result;
use crate::kernels::{Capabilities, MATRIX_STORAGE_BUFFERS, Matrices, Units};
use crate::ops::matmul::{Epilogue, Layout, matmul};
use crate::record::Tensor;

/// The features that a device needs for matrices.
pub(super) const FEATURES: wgpu::Features = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX
    .union(wgpu::Features::SHADER_F16)
    .union(wgpu::Features::SUBGROUP);

/// Workgroup memory of the tier's kernels, in bytes.
const WORKGROUP_BYTES: u32 = 32 << 10;

/// The matrices with which `adapter` can run the tier, or why it cannot run it.
pub(super) fn usable(
    adapter: &wgpu::Adapter,
    report: &AdapterReport,
) -> std::result::Result<Matrices, String> {
    let side = report.matrix_side().ok_or_else(|| format!("it has {}", report.matrix_shapes()))?;
    if !adapter.features().contains(FEATURES) {
        return Err(format!("it lacks {:?}", FEATURES - adapter.features()));
    }
    let buffers = adapter.limits().max_storage_buffers_per_shader_stage;
    if buffers < MATRIX_STORAGE_BUFFERS {
        return Err(format!(
            "it binds {buffers} storage buffers, and the kernels need {MATRIX_STORAGE_BUFFERS}"
        ));
    }
    let bytes = adapter.limits().max_compute_workgroup_storage_size;
    if bytes < WORKGROUP_BYTES {
        return Err(format!(
            "it has {bytes} bytes of workgroup memory, and the kernels need {WORKGROUP_BYTES}"
        ));
    }
    // AMD's drivers choose between subgroups of 32 and 64, and take the larger unless told otherwise.
    Ok(Matrices { side, subgroup: adapter.get_info().subgroup_max_size.clamp(4, 64) })
}

/// The first number that a device gets wrong, or why it computes none; `None` if it passes.
pub(super) async fn first_fault(gpu: &Gpu, matrices: Matrices) -> Option<String> {
    match first_wrong_number(gpu, gpu.capabilities().with_matrices(matrices)).await {
        Ok(wrong) => wrong,
        Err(error) => {
            gpu.fault.forget();
            Some(format!("the test of them failed: {error}"))
        }
    }
}

async fn first_wrong_number(gpu: &Gpu, capabilities: Capabilities) -> Result<Option<String>> {
    match first_wrong_product(gpu, capabilities).await? {
        Some(wrong) => Ok(Some(wrong)),
        None => attention::first_wrong_number(gpu, capabilities).await,
    }
}

async fn first_wrong_product(gpu: &Gpu, capabilities: Capabilities) -> Result<Option<String>> {
    let layouts = [Layout::Nt, Layout::Nn, Layout::Tn];
    for (layout, element) in layouts.into_iter().flat_map(|layout| [(layout, F16), (layout, Bf16)]) {
        // For one unit the tiles are largest.
        for (units, sizes) in [(Units::ASSUMED.count, [70, 150, 293]), (1, [200, 300, 70])] {
            let units = Units { count: units, ..capabilities.units };
            let (job, y) = product(layout, element, sizes, capabilities.with_units(units));
            let job = gpu.prepare_job(job, Guard::Off).await?;
            job.replay().await?;
            let got = job.values(&y).await?;
            if let Some(wrong) = first_difference(layout, element, sizes, &got) {
                return Ok(Some(wrong));
            }
        }
    }
    Ok(None)
}

/// A job that multiplies whole numbers, and the result's tensor, whose elements hold them exactly.
fn product(
    layout: Layout,
    element: Element,
    [m, n, k]: [u32; 3],
    capabilities: Capabilities,
) -> (Job, Tensor) {
    let mut job = Job::new("matrices", capabilities);
    let mut factor = |rows: u32, cols: u32, is_transposed: bool, number: fn(u32, u32) -> i32| {
        let at = |i: u32| (i / cols, i % cols);
        let values = (0..rows * cols).map(at).map(|(row, col)| match is_transposed {
            true => number(col, row) as f32,
            false => number(row, col) as f32,
        });
        job.input_of(&values.collect::<Vec<_>>(), rows, cols, element)
    };
    let a = if layout == Layout::Tn { factor(k, m, true, of_a) } else { factor(m, k, false, of_a) };
    let b = if layout == Layout::Nt { factor(n, k, true, of_b) } else { factor(k, n, false, of_b) };
    let y = job.tensor(m, n, if layout == Layout::Tn || element == Bf16 { F32 } else { F16 });
    matmul(&mut job.rec, layout, a, b, y, Epilogue::default());
    (job, y)
}

/// Element of the left factor (M, K): a whole number from -2 to 2. Sums of a few hundred products are exact in f16,
/// too.
fn of_a(row: u32, step: u32) -> i32 {
    ((7 * row + 3 * step + row * step) % 5) as i32 - 2
}

/// Element of the right factor (K, N).
fn of_b(step: u32, column: u32) -> i32 {
    ((2 * step + 5 * column + step * column) % 5) as i32 - 2
}

fn first_difference(layout: Layout, element: Element, [_, n, k]: [u32; 3], got: &[f32]) -> Option<String> {
    let wrong = |(i, &got): (usize, &f32)| {
        let (row, column) = (i as u32 / n, i as u32 % n);
        let exact: i32 = (0..k).map(|step| of_a(row, step) * of_b(step, column)).sum();
        (got != exact as f32).then(|| {
            format!(
                "in a product {layout:?} of {k} steps in {} row {row}, column {column} is {got} instead of {exact}",
                element.name()
            )
        })
    };
    got.iter().enumerate().find_map(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_number_is_found() {
        let sizes = [70, 150, 293];
        let exact =
            |i: u32| (0..293).map(|step| of_a(i / 150, step) * of_b(step, i % 150)).sum::<i32>() as f32;
        let mut values: Vec<f32> = (0..70 * 150).map(exact).collect();
        assert!(values.iter().all(|value| value.abs() <= 2048.0), "exact in f16");
        assert!(values.iter().filter(|value| **value != 0.0).count() > values.len() / 2);
        assert_eq!(first_difference(Layout::Nt, F16, sizes, &values), None);
        for wrong in [f32::NAN, values[10_499] + 1.0] {
            values[10_499] = wrong;
            let line = first_difference(Layout::Nt, F16, sizes, &values).expect("the last number is wrong");
            assert!(line.starts_with("in a product Nt of 293 steps in f16 row 69, column 149 is "), "{line}");
        }
    }
}
