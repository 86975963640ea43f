//! Opens the device of a run: the one that its configuration asks for, with the tests that precede storing f16.

use crate::device::{Gpu, GpuOptions};
use crate::error::{Error, Result};
use crate::settings::{Context, RunPlan};
use std::time::Duration;

/// Opens the device that `plan` asks for, on the rank `local_rank` of this machine.
pub(super) async fn open_device(plan: &RunPlan, local_rank: usize) -> Result<Gpu> {
    open_device_with(&device_options(plan, local_rank), plan).await
}

/// The options with which a run of `plan` opens its device, on the rank `local_rank` of this machine.
pub fn device_options(plan: &RunPlan, local_rank: usize) -> GpuOptions {
    let Context { device_name, device_id, tier, hang_timeout, validation, robust_buffers, .. } =
        plan.settings.context.clone();
    GpuOptions {
        device_name,
        device_id,
        local_rank,
        tier,
        hang_timeout: Some(Duration::from_secs(hang_timeout)),
        validation,
        unchecked_buffers: !robust_buffers,
        ..GpuOptions::default()
    }
}

/// Opens a device for the types that `plan` stores. For 16 bits, and for f32 that is split, it tries matrices; for f16
/// it also tries the adapter's conversions unless the plan says otherwise, and tests how f16 is widened.
///
/// # Errors
/// As [`Gpu::request`].
pub async fn open_device_with(options: &GpuOptions, plan: &RunPlan) -> Result<Gpu> {
    let options = GpuOptions {
        tries_matrices: plan.tries_matrices(),
        splits_f32: plan.splits_f32(),
        ..options.clone()
    };
    let mut gpu = Gpu::request(&options).await?;
    if plan.tries_native_f16() {
        gpu.try_native_f16().await;
    }
    if plan.stores_f16() {
        gpu.check_widening().await;
    }
    Ok(gpu)
}

/// Fails if `plan` names another tier than that of the open device.
pub(super) fn check_tier(plan: &RunPlan, gpu: &Gpu) -> Result<()> {
    let (named, has) = (plan.settings.context.tier, gpu.capabilities().tier);
    match named.filter(|named| *named != has) {
        None => Ok(()),
        Some(named) => Err(Error::NoAdapter(format!(
            "{} was opened for tier {}, but `context.tier` is {}; leave it out",
            gpu.report().name,
            has.name(),
            named.name()
        ))),
    }
}
