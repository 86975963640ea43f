//! The kernels that large models use: tiles of 128 x 128 on a GPU, and the head sizes 64 and 128.

use super::attentions;
use super::harness::Harness;
use super::products::{grouped, products};
use crate::ops::heads::HeadLayout;

/// Sizes of a product (m, n) over k for which a GPU of one unit uses tiles of 128 x 128.
const PRODUCT: [u32; 3] = [200, 3970, 40];

/// Rows of each expert, and a matrix (out, cols). From 512 rows per expert on, a GPU uses large tiles.
const MANY_ROWS: (&[u32], [u32; 2]) = (&[700, 340], [72, 200]);
/// Rows of each expert and a matrix, for gradients of weights.
const MANY_EXPERTS: (&[u32], [u32; 2]) = (&[10; 16], [200, 200]);

pub(super) fn tiles(harness: &mut Harness<'_>) {
    products(harness, PRODUCT, ["large matmul x Wᵀ", "large matmul dy W", "large matmul dyᵀ x"]);
    let heads = |dim| HeadLayout { heads: 2, kv_heads: 1, head_dim: dim, value_dim: dim };
    attentions(harness, heads(64), ["attention of 64", "attention of 64 dqkv"]);
    attentions(harness, heads(128), ["attention of 128", "attention of 128 dqkv"]);
    let of_rows = ["large grouped_matmul", "large grouped_matmul dx", "grouped_matmul dw of many rows"];
    experts(harness, MANY_ROWS, of_rows);
    let of_experts =
        ["grouped_matmul of many experts", "grouped_matmul dx of many experts", "large grouped_matmul dw"];
    experts(harness, MANY_EXPERTS, of_experts);
}

/// The products of experts with these numbers of rows, each with a matrix of this size.
fn experts(harness: &mut Harness<'_>, (sizes, [out, cols]): (&[u32], [u32; 2]), labels: [&'static str; 3]) {
    let mut offsets = vec![0];
    sizes.iter().for_each(|size| offsets.push(offsets[offsets.len() - 1] + size));
    let (x, values) = harness.whole(offsets[sizes.len()], cols);
    let starts = harness.job.integers(&offsets);
    grouped(harness, (x, &values), (starts, &offsets), out, labels);
}

#[cfg(test)]
mod tests {
    use super::super::harness::UNITS;
    use super::*;
    use crate::element::Element::{F32, U32};
    use crate::kernels::{Capabilities, Kernel};
    use crate::ops::grouped_matmul::{grouped_matmul, grouped_matmul_backward_weight};
    use crate::ops::matmul::{Epilogue, Layout, Problem, plan};
    use crate::ops::work_list::WorkList;
    use crate::record::Recorder;

    fn assert_large(kernel: &Kernel) {
        assert!(kernel.constants().contains(&("TM4", 2)), "{kernel} has another tile");
    }

    /// Whichever rule chooses the tile, a GPU uses the large one for each of these products.
    #[test]
    fn the_sizes_have_large_tiles() {
        let capabilities = Capabilities::portable().with_units(UNITS);
        let [m, n, k] = PRODUCT;
        for layout in [Layout::Nt, Layout::Nn, Layout::Tn] {
            assert_large(&plan(Problem { layout, m, n, k }, F32, capabilities).kernel);
        }
        let mut rec = Recorder::new("tiles", capabilities);
        let mut record = |(sizes, [out, cols]): (&[u32], [u32; 2]), is_gradient: bool| {
            let (experts, rows) = (sizes.len() as u32, sizes.iter().sum());
            let offsets = rec.tensor("offsets", 1, experts + 1, U32);
            let work = WorkList::new(&mut rec, offsets, rows);
            let [x, dy, stack] = [(rows, cols), (rows, out), (experts * out, cols)]
                .map(|(rows, cols)| rec.tensor("x", rows, cols, F32));
            match is_gradient {
                true => grouped_matmul_backward_weight(&mut rec, dy, x, &work, &[stack]),
                false => grouped_matmul(&mut rec, x, &[stack], &work, dy, Epilogue::default()),
            }
        };
        record(MANY_ROWS, false);
        record(MANY_EXPERTS, true);
        let dispatches = rec.finish().dispatches;
        let products: Vec<_> = dispatches.iter().filter(|d| d.kernel.entry == "matmul").collect();
        assert_eq!(products.len(), 2);
        products.iter().for_each(|product| assert_large(&product.kernel));
    }
}
