//! Products of whole numbers: of matrices, and of each expert's rows with its matrix.

use super::harness::Harness;
use crate::ops::grouped_matmul::{grouped_matmul, grouped_matmul_backward, grouped_matmul_backward_weight};
use crate::ops::matmul::{Epilogue, Layout, matmul};
use crate::ops::work_list::WorkList;
use crate::record::Tensor;

/// A product (m, n) over k in each layout: the forward pass of a linear layer, and the gradients of its input and of
/// its weight.
pub(super) fn products(harness: &mut Harness<'_>, [m, n, k]: [u32; 3], labels: [&'static str; 3]) {
    for (layout, label) in [Layout::Nt, Layout::Nn, Layout::Tn].into_iter().zip(labels) {
        let a = if layout == Layout::Tn { harness.whole(k, m) } else { harness.whole(m, k) };
        let b = if layout == Layout::Nt { harness.whole(n, k) } else { harness.whole(k, n) };
        let y = harness.output(m, n);
        matmul(&mut harness.job.rec, layout, a.0, b.0, y, Epilogue::default());
        harness.expect(label, y, product(layout, [m, n, k], &a.1, &b.1));
    }
}

/// The product (m, n) over k of a and b, which are stored as `layout` says.
fn product(layout: Layout, sizes: [u32; 3], a: &[i32], b: &[i32]) -> Vec<i32> {
    let [m, n, k] = sizes.map(|size| size as usize);
    let a_at = |row, inner| a[if layout == Layout::Tn { inner * m + row } else { row * k + inner }];
    let b_at = |inner, col| b[if layout == Layout::Nt { col * k + inner } else { inner * n + col }];
    let element = |at: usize| (0..k).map(|inner| a_at(at / n, inner) * b_at(inner, at % n)).sum();
    (0..m * n).map(element).collect()
}

/// The products of experts: forward, and the gradients of the rows and of the matrices. Expert e has the rows
/// `offsets[e]..offsets[e + 1]` of x and a matrix (out, cols). `starts` are the offsets on the device.
pub(super) fn grouped(
    harness: &mut Harness<'_>,
    (x, x_values): (Tensor, &[i32]),
    (starts, offsets): (Tensor, &[u32]),
    out: u32,
    labels: [&'static str; 3],
) {
    let (rows, cols) = (x.rows, x.cols);
    let work = WorkList::new(&mut harness.job.rec, starts, rows);
    let (dy, dy_values) = harness.whole(rows, out);
    let (stack, matrices) = harness.whole((offsets.len() as u32 - 1) * out, cols);
    let results = [harness.output(rows, out), harness.output(rows, cols), harness.output(stack.rows, cols)];
    grouped_matmul(&mut harness.job.rec, x, &[stack], &work, results[0], Epilogue::default());
    grouped_matmul_backward(&mut harness.job.rec, dy, &[stack], &work, results[1], Epilogue::default());
    grouped_matmul_backward_weight(&mut harness.job.rec, dy, x, &work, &[results[2]]);

    let mut known = [const { Vec::new() }; 3];
    for (span, w) in offsets.windows(2).zip(matrices.chunks((out * cols) as usize)) {
        let of_expert = |width: u32| (span[0] * width) as usize..(span[1] * width) as usize;
        let (x, dy, rows) = (&x_values[of_expert(cols)], &dy_values[of_expert(out)], span[1] - span[0]);
        known[0].extend(product(Layout::Nt, [rows, out, cols], x, w));
        known[1].extend(product(Layout::Nn, [rows, cols, out], dy, w));
        known[2].extend(product(Layout::Tn, [out, cols, rows], dy, x));
    }
    for ((label, result), known) in labels.into_iter().zip(results).zip(known) {
        harness.expect(label, result, known);
    }
}
