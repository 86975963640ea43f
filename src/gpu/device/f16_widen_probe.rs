//! Tests how the adapter widens f16 to f32. Widening is exact in every format, but some APIs let an adapter flush
//! subnormal halves, below 6.1e-5, to zero, and gradients have such values. For an adapter that does so, kernels widen
//! in integers.
//!
//! All 65,536 halves are widened and compared. A single wrong one sets `Capabilities::widens_in_integers`, and the
//! recorder selects the condition `integer_widening`. A run tests this, and the conversion in `f16_probe.rs`, if it
//! stores f16.

use super::gpu::Gpu;
use super::job::Job;
use super::prepare::Guard;
use crate::element::Element::{F16, F32};
use crate::error::Result;
use crate::kernels::Kernel;
use crate::record::fold_grid;
use half::f16;

crate::params! {
    struct Params {
        count4: u32,
    }
}

/// How kernels widen f16.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Widening {
    /// By the adapter's own instruction, which is exact.
    Native,
    /// In integers: the first half that the instruction widens wrongly, or why the test could not run.
    Integers(String),
}

impl Widening {
    /// The verdict on `widened`, the values of all 65,536 halves in the order of their bits.
    pub fn of(widened: &[f32]) -> Self {
        let is_same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        let halves = (0..=u16::MAX).map(|bits| (bits, f16::from_bits(bits).to_f32()));
        let mut wrong = halves.zip(widened).filter(|((_, exact), got)| !is_same(*exact, **got));
        match wrong.next() {
            None => Self::Native,
            Some(((bits, exact), got)) => {
                let others = match wrong.count() {
                    0 => String::new(),
                    count => format!(", and {count} others are wrong too"),
                };
                Self::Integers(format!("the half 0x{bits:04x}, {exact:e}, becomes {got:e}{others}"))
            }
        }
    }
}

impl std::fmt::Display for Widening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Native => f.write_str("widened by the adapter"),
            Self::Integers(why) => write!(f, "widened in integers: {why}"),
        }
    }
}

impl Gpu {
    /// Tests how the code of the kernels widens all halves, and makes kernels widen in integers from now on if one is
    /// wrong. For runs that store f16, after [`try_native_f16`](Self::try_native_f16). Takes one small dispatch.
    pub async fn check_widening(&mut self) -> Widening {
        let outcome = match widened(self).await {
            Ok(widened) => Widening::of(&widened),
            Err(error) => {
                self.fault.forget();
                Widening::Integers(format!("the test of the adapter failed: {error}"))
            }
        };
        if let Widening::Integers(_) = outcome {
            tracing::warn!("{}: f16 is {outcome}", self.report().name);
            self.widen_in_integers();
        }
        outcome
    }

    /// Makes kernels that are recorded from now on widen f16 in integers. The bits are those of an adapter that widens
    /// exactly; an element takes some ten instructions more.
    pub fn widen_in_integers(&mut self) {
        self.capabilities.widens_in_integers = true;
    }
}

/// The widened values of all halves, in the order of their bits.
async fn widened(gpu: &Gpu) -> Result<Vec<f32>> {
    let mut job = Job::new("widening", gpu.capabilities());
    let halves = job.tensor(1, 1 << 16, F16);
    job.fill(halves, (0..=u16::MAX).flat_map(u16::to_le_bytes).collect());
    let wide = job.output(1, 1 << 16);
    let (lanes, count4) = (64, wide.stride4());
    let kernel = Kernel::new("cast", "widen", F16).constant("LANES", lanes);
    let bindings = [halves.bind("packed", F16), wide.bind("widened", F32)];
    job.rec.dispatch(kernel, &bindings, &Params { count4 }, fold_grid(count4.div_ceil(lanes).into()));
    let probe = gpu.prepare_job(job, Guard::Off).await?;
    probe.replay().await?;
    probe.values(&wide).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict on an adapter that widens by `widen`.
    fn found(widen: impl Fn(f16) -> f32) -> Widening {
        Widening::of(&(0..=u16::MAX).map(|bits| widen(f16::from_bits(bits))).collect::<Vec<_>>())
    }

    #[test]
    fn an_exact_adapter_is_used() {
        assert_eq!(found(f16::to_f32), Widening::Native);
        let other_nan = |half: f16| if half.is_nan() { f32::NAN } else { half.to_f32() };
        assert_eq!(found(other_nan), Widening::Native, "a NaN has any bits");
    }

    #[test]
    fn what_adapters_may_do_instead_is_found() {
        let line = |widening: Widening| widening.to_string();
        let flushed = |half: f16| {
            let wide = half.to_f32();
            if wide.abs() < 6.1035e-5 { 0.0f32.copysign(wide) } else { wide }
        };
        let lines =
            "widened in integers: the half 0x0001, 5.9604645e-8, becomes 0e0, and 2045 others are wrong too";
        assert_eq!(line(found(flushed)), lines);
        let unsigned = |half: f16| half.to_f32() + 0.0;
        assert_eq!(line(found(unsigned)), "widened in integers: the half 0x8000, -0e0, becomes 0e0");
        let finite = |half: f16| if half.is_nan() { 98304.0 } else { half.to_f32() };
        assert!(line(found(finite)).contains("0x7c01, NaN, becomes 9.8304e4"), "{}", found(finite));
        let saturated = |half: f16| half.to_f32().clamp(-65504.0, 65504.0);
        assert!(line(found(saturated)).contains("0x7c00, inf, becomes 6.5504e4"), "{}", found(saturated));
    }
}
