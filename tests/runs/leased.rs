//! Open devices that tests use one after the other, with the kernels that each has compiled: a driver spends more time
//! on these than a small run computes.

use gristmill::device::{Gpu, GpuOptions};
use gristmill::settings::RunPlan;
use gristmill::train::{device_options, open_device_with};
use pollster::block_on;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Devices that nobody uses and how they were opened, the last used last.
static IDLE: Mutex<VecDeque<(String, Gpu)>> = Mutex::new(VecDeque::new());

/// How many are kept, enough for two tests of 8 ranks. On llvmpipe a device with its kernels takes about 100 MiB.
const MOST_IDLE: usize = 16;

/// A device that nobody else uses meanwhile.
pub struct Leased {
    opened_with: String,
    gpu: Option<Gpu>,
}

impl Leased {
    /// A device opened with `options`.
    pub fn of(options: &GpuOptions) -> Self {
        Self::with(format!("{options:?}"), || block_on(Gpu::request(options)))
    }

    /// A device opened with `options` for what `plan` stores.
    pub fn for_plan(options: &GpuOptions, plan: &RunPlan) -> Self {
        let stored = (plan.model.compute, plan.tries_native_f16(), plan.splits_f32());
        Self::with(format!("{options:?} {stored:?}"), || block_on(open_device_with(options, plan)))
    }

    /// A device for a whole run of `plan`, on a rank of this machine.
    pub fn of_run(plan: &RunPlan, local_rank: usize) -> Self {
        Self::for_plan(&device_options(plan, local_rank), plan)
    }

    fn with(opened_with: String, open: impl FnOnce() -> gristmill::error::Result<Gpu>) -> Self {
        let known = {
            let mut idle = idle();
            let place = idle.iter().rposition(|(of, _)| *of == opened_with);
            place.and_then(|place| idle.remove(place)).map(|(_, gpu)| gpu)
        };
        let gpu = known.unwrap_or_else(|| open().unwrap_or_else(|e| panic!("{e}")));
        Self { opened_with, gpu: Some(gpu) }
    }
}

impl Deref for Leased {
    type Target = Gpu;

    fn deref(&self) -> &Gpu {
        self.gpu.as_ref().expect("a device until it is dropped")
    }
}

impl DerefMut for Leased {
    fn deref_mut(&mut self) -> &mut Gpu {
        self.gpu.as_mut().expect("a device until it is dropped")
    }
}

impl Drop for Leased {
    /// Keeps the device for the next test, unless this one failed or broke it.
    fn drop(&mut self) {
        let Some(gpu) = self.gpu.take().filter(|gpu| !std::thread::panicking() && gpu.check().is_ok()) else {
            return;
        };
        let mut idle = idle();
        idle.push_back((std::mem::take(&mut self.opened_with), gpu));
        let surplus = if idle.len() > MOST_IDLE { idle.pop_front() } else { None };
        drop(idle); // before the device, which takes a while
        drop(surplus);
    }
}

fn idle() -> MutexGuard<'static, VecDeque<(String, Gpu)>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}
