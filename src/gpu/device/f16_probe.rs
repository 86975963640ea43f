//! Tests the adapter's own conversion from f32 to f16. No API says how it rounds, so before a run that stores f16 uses
//! it, it is compared with rounding to nearest even, overflow, infinities and NaN included.
//!
//! `Capabilities::native_f16` is set only if all results agree. The recorder then selects the condition `native_f16`,
//! so ops need not know of it. Bytes are the same either way and arithmetic stays f32; converting an element takes one
//! instruction instead of some 15.

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

/// How kernels convert f32 to f16.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NativeF16 {
    /// The adapter's own instruction.
    Used,
    /// Integer arithmetic in the kernels: the device has no `shader-f16`.
    Absent,
    /// Integer arithmetic, because the adapter's instruction failed: the first wrong conversion, or why the test could
    /// not run.
    Refused(String),
}

impl std::fmt::Display for NativeF16 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Used => f.write_str("converted by the adapter"),
            Self::Absent => f.write_str("packed by the kernels, as the device has no shader-f16"),
            Self::Refused(why) => {
                write!(f, "packed by the kernels, as the adapter's conversion cannot be used: {why}")
            }
        }
    }
}

impl Gpu {
    /// Lets kernels that store f16 use the adapter's own conversion, if the device has the feature `SHADER_F16` and a
    /// test finds that it rounds as our integer arithmetic does. Results have the same bits either way, except for the
    /// payload of a NaN. Takes one small dispatch. Until this is called, and if anything in it fails, kernels convert
    /// by integer arithmetic.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> gristmill::error::Result<()> {
    /// # pollster::block_on(async {
    /// use gristmill::device::{Gpu, GpuOptions};
    ///
    /// let mut gpu = Gpu::request(&GpuOptions::default()).await?;
    /// println!("f16 is {}", gpu.try_native_f16().await);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub async fn try_native_f16(&mut self) -> NativeF16 {
        let outcome = match self.device.features().contains(wgpu::Features::SHADER_F16) {
            false => NativeF16::Absent,
            true => match first_wrong_conversion(self).await {
                Ok(None) => NativeF16::Used,
                Ok(Some(wrong)) => NativeF16::Refused(wrong),
                Err(error) => {
                    self.fault.forget();
                    NativeF16::Refused(format!("the test of it failed: {error}"))
                }
            },
        };
        if let NativeF16::Refused(_) = outcome {
            tracing::warn!("{}: f16 is {outcome}", self.report().name);
        }
        self.capabilities.native_f16 = outcome == NativeF16::Used;
        outcome
    }
}

/// Describes the first conversion that the adapter gets wrong; `None` if all are right.
///
/// # Errors
/// A shader that the device refuses, or a device failure.
async fn first_wrong_conversion(gpu: &Gpu) -> Result<Option<String>> {
    let values = values();
    let mut job = Job::new("f16", gpu.capabilities().with_native_f16(true));
    let wide = job.input(&values, 1, values.len() as u32);
    let narrowed = job.tensor(1, wide.cols, F16);
    let count4 = wide.stride4();
    let kernel = Kernel::new("cast", "narrow", F16).constant("LANES", LANES);
    let bindings = [wide.bind("wide", F32), narrowed.bind("narrowed", F16)];
    job.rec.dispatch(kernel, &bindings, &Params { count4 }, fold_grid(count4.div_ceil(LANES).into()));
    let probe = gpu.prepare_job(job, Guard::Off).await?;
    probe.replay().await?;
    Ok(first_difference(&values, &probe.values(&narrowed).await?))
}

/// Each way in which f32 lies between two neighbouring halves: on the lower one, below, on and above the tie. The
/// halves are a sample of even and odd ones of every exponent, and those at the ends of the subnormal and the normal
/// range.
fn values() -> Vec<f32> {
    let sample = (0..=LARGEST).step_by(13).chain([1, 2, 0x3fe, 0x3ff, 0x400, LARGEST - 1, LARGEST]);
    let around = |bits: u16| {
        let low = f16::from_bits(bits).to_f32();
        let high = if bits == LARGEST { 65536.0 } else { f16::from_bits(bits + 1).to_f32() };
        let tie = (low + high) / 2.0;
        [low, tie.next_down(), tie, tie.next_up()]
    };
    let positive = sample.flat_map(around).chain([f32::MAX, f32::INFINITY]);
    positive.flat_map(|value| [value, -value]).chain([f32::NAN; 2]).collect()
}

/// The first of `values` that was converted to something other than the nearest half, ties to even.
fn first_difference(values: &[f32], got: &[f32]) -> Option<String> {
    let is_same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    let expected: Vec<f32> = values.iter().map(|&value| f16::from_f32(value).to_f32()).collect();
    let at = (0..values.len()).find(|&i| !is_same(expected[i], got[i]))?;
    Some(format!("{:e} becomes {:e} instead of {:e}", values[at], got[at], expected[at]))
}

/// The bits of the largest finite half, 65504.
const LARGEST: u16 = 0x7bff;

/// Invocations of a workgroup.
const LANES: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// The first value that an adapter gets wrong if it converts by `convert`.
    fn found(convert: impl Fn(f32) -> f32) -> Option<String> {
        let values = values();
        first_difference(&values, &values.iter().map(|&value| convert(value)).collect::<Vec<_>>())
    }

    fn nearest(value: f32) -> f32 {
        f16::from_f32(value).to_f32()
    }

    /// The halves below and above `value` in magnitude.
    fn neighbours(value: f32) -> [f32; 2] {
        let near = f16::from_f32(value.abs());
        let low = if near.to_f32() > value.abs() { f16::from_bits(near.to_bits() - 1) } else { near };
        [low, f16::from_bits(low.to_bits() + 1)].map(|half| half.to_f32().copysign(value))
    }

    #[test]
    fn nearest_even_passes() {
        assert_eq!(found(nearest), None);
    }

    #[test]
    fn what_drivers_may_do_instead_is_found() {
        let is_exact = |value: f32| nearest(value) == value || value.is_nan();
        let toward_zero = |value: f32| if is_exact(value) { value } else { neighbours(value)[0] };
        let is_tie = |value: f32| {
            let [low, high] = neighbours(value);
            !is_exact(value) && value.is_finite() && value - low == high - value
        };
        let ties_away = |value: f32| if is_tie(value) { neighbours(value)[1] } else { nearest(value) };
        let ties_to_zero = |value: f32| if is_tie(value) { neighbours(value)[0] } else { nearest(value) };
        let saturated = |value: f32| nearest(value).clamp(-65504.0, 65504.0);
        let flushed = |value: f32| if value.abs() < 6.1e-5 { 0.0 * value } else { nearest(value) };
        let without_nan = |value: f32| if value.is_nan() { 0.0 } else { nearest(value) };
        let unsigned_zero = |value: f32| nearest(value) + 0.0;
        assert!(found(toward_zero).is_some());
        assert!(found(ties_away).is_some());
        assert!(found(ties_to_zero).is_some());
        assert!(found(saturated).is_some_and(|what| what.ends_with("instead of inf")));
        assert!(found(flushed).is_some());
        assert!(found(without_nan).is_some_and(|what| what == "NaN becomes 0e0 instead of NaN"));
        assert!(found(unsigned_zero).is_some_and(|what| what == "-0e0 becomes 0e0 instead of -0e0"));
    }
}
