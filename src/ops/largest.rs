//! The largest magnitude of a tensor of bf16 or f32, from which products by matrices take the power of two that brings
//! its values into the range of f16 (`shaders/lib/half_scale.wgsl`).

use crate::element::Element;
use crate::kernels::{Condition, Kernel};
use crate::record::{Recorder, Tensor};

crate::params! {
    struct Params {
        rows: u32,
        cols4: u32,
        offset: u32,
        stride: u32,
        experts: u32,
    }
}

/// Parts of a tensor, each of which a workgroup reads: enough for two on most units. The readers read all of them,
/// which are 1 KiB.
pub(super) const PARTS: u32 = 256;

/// Invocations of a workgroup.
const LANES: u32 = 256;

/// Loads of an invocation that are under way at once: with 256 workgroups 2 MiB, more than memory delivers before the
/// first arrives.
const EACH: u32 = 4;

/// The largest magnitude of each of `PARTS` parts of `x`, bf16 or f32: (1, PARTS), u32, the upper halves of the bits
/// of f32. `offsets` (1, E + 1) are the rows of experts, if only these hold anything.
///
/// A tensor is measured once for all products that read it, until something else uses it. Measuring all operands,
/// weights and outputs of norms too, costs a pass over each (benches/LOG.md), and leaves nothing to prove about their
/// values, to keep from step to step, or to save.
#[track_caller]
pub fn largest(rec: &mut Recorder, x: Tensor, offsets: Option<Tensor>) -> Tensor {
    let (rows, cols4) = match x.stride4() == x.cols.div_ceil(4) && offsets.is_none() {
        true => (1, x.rows * x.stride4()),
        false => (x.rows, x.cols.div_ceil(4)),
    };
    let experts = offsets.map_or(0, |offsets| offsets.cols - 1);
    let params = Params { rows, cols4, offset: x.offset4(), stride: x.stride4(), experts };
    let kernel = Kernel::new("largest", "largest_of_parts", x.element)
        .condition(Condition::SharedTile, true)
        .condition(Condition::Grouped, offsets.is_some())
        .constant("EACH", EACH)
        .constant("LANES", LANES)
        .constant("PARTS", PARTS);
    let of_experts = offsets.map(|offsets| offsets.bind("offsets", Element::U32));
    let inputs: Vec<_> =
        [Some(x.bind_with_offset("x", x.element)), of_experts].into_iter().flatten().collect();
    rec.measure(kernel, &inputs, &params, PARTS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::Element::{Bf16, F32};
    use crate::kernels::Capabilities;
    use crate::ops::matmul::{Epilogue, Layout, matmul};
    use crate::ops::zero::zero;
    use crate::ranks::Group;
    use crate::record::{Collective, Span};

    /// The measurements of a recording.
    fn count(rec: Recorder) -> usize {
        rec.finish().dispatches.iter().filter(|dispatch| dispatch.kernel.file == "largest").count()
    }

    fn tensors(rec: &mut Recorder) -> [Tensor; 4] {
        let [x, w] = [(70, 64), (32, 64)].map(|(rows, cols)| rec.tensor("factor", rows, cols, Bf16));
        [x, w, rec.tensor("y", 70, 32, Bf16), rec.tensor("dw", 32, 64, F32)]
    }

    #[test]
    fn products_share_what_was_measured() {
        let mut rec = Recorder::new("test", Capabilities::matrix());
        let [x, w, y, dw] = tensors(&mut rec);
        matmul(&mut rec, Layout::Nt, x, w, y, Epilogue::default());
        let dx = rec.tensor("dx", 70, 64, Bf16);
        matmul(&mut rec, Layout::Nn, y, w, dx, Epilogue::default());
        matmul(&mut rec, Layout::Tn, y, x, dw, Epilogue::default());
        assert_eq!(count(rec), 3, "x, w and y");
    }

    #[test]
    fn what_may_have_changed_is_measured_again() {
        let group = Group::all(2);
        for change in 0..4 {
            let mut rec = Recorder::new("test", Capabilities::matrix());
            let [x, w, y, _] = tensors(&mut rec);
            matmul(&mut rec, Layout::Nt, x, w, y, Epilogue::default());
            match change {
                0 => zero(&mut rec, x.rows(69, 1)),
                1 => rec.exchange("x", Collective::sum_into(vec![Span::of(&y)], vec![Span::of(&x)]), &group),
                2 => zero(&mut rec, y),
                _ => {}
            }
            let view = if change == 3 { x.rows(0, 69) } else { x };
            matmul(&mut rec, Layout::Nt, view, w, y.rows(0, view.rows), Epilogue::default());
            assert_eq!(count(rec), if change == 2 { 2 } else { 3 }, "{change}");
        }
    }

    #[test]
    fn other_tiers_measure_nothing() {
        for capabilities in [Capabilities::software(), Capabilities::portable()] {
            let mut rec = Recorder::new("test", capabilities);
            let [x, w, y, _] = tensors(&mut rec);
            matmul(&mut rec, Layout::Nt, x, w, y, Epilogue::default());
            assert_eq!(count(rec), 0);
        }
    }
}
