//! Products whose sums are split ("split K"): few tiles with long sums would leave most of a GPU idle.

use super::{Epilogue, Params, Plan};
use crate::element::Element;
use crate::kernels::Condition;
use crate::ops::per_item;
use crate::record::{Recorder, Tensor};

/// Fewer workgroups leave compute units of a large GPU idle.
const FEW_WORKGROUPS: u64 = 64;

/// Workgroups that split sums amount to: an H100 has 132 compute units, an RX 7900 XTX 96.
const ENOUGH_WORKGROUPS: u64 = 128;

/// Shortest part: writing and adding its result then costs little beside the 2 · 512 operations on each element.
const SHORTEST: u64 = 512;

/// Parts are a multiple of every tile's step along k, and start at whole groups of 4.
const STEP: u64 = 16;

/// Length of the parts of sums over `k`, in a product that has `workgroups` of them; `k` if they are not split.
pub(super) fn length(k: u32, workgroups: u64) -> u32 {
    if workgroups >= FEW_WORKGROUPS {
        return k;
    }
    let parts = ENOUGH_WORKGROUPS.div_ceil(workgroups).min(u64::from(k) / SHORTEST).max(1);
    let length = u64::from(k).div_ceil(parts).next_multiple_of(STEP);
    k.min(u32::try_from(length).unwrap_or(u32::MAX))
}

/// Records a product in parts, and their sum with the epilogue. `params` are those of the whole product.
pub(super) fn in_parts(
    rec: &mut Recorder,
    plan: Plan,
    [a, b, y]: [Tensor; 3],
    epilogue: &Epilogue,
    params: Params,
) {
    let parts = rec.tensor("parts", plan.grid[2] * params.m, params.n, Element::F32);
    let kernel = plan.kernel.condition(Condition::Split, true);
    let mut bindings = vec![a.bind_with_offset("a", a.element), b.bind_with_offset("b", b.element)];
    let kernel = Epilogue::default().apply(kernel, a.element, parts, &mut bindings);
    let of_parts = Params { y_offset: 0, y_stride: parts.stride4(), ..params };
    rec.dispatch(kernel, &bindings, &of_parts, plan.grid);

    let items = u64::from(params.m) * u64::from(params.n.div_ceil(4));
    let (kernel, grid) = per_item("matmul/sum_parts", "sum_parts", a.element, items);
    let mut bindings = vec![parts.bind("parts", Element::F32)];
    let kernel = epilogue.apply(kernel, a.element, y, &mut bindings);
    rec.dispatch(kernel, &bindings, &Params { a_offset: 0, a_stride: parts.stride4(), ..params }, grid);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_tiles_with_long_sums_are_split() {
        assert_eq!(length(50257, 64), 50257, "enough tiles");
        assert_eq!(length(1023, 4), 1023, "short sums");
        assert_eq!(length(1024, 4), 512);
        assert_eq!(length(50257, 24), 8384, "six parts");
        assert_eq!(length(4096, 1), 512);
        assert_eq!(length(4097, 1), 528, "a multiple of 16");
        assert_eq!(length(1, 1), 1);
    }
}
