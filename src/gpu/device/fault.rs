//! Errors that the device reports in callbacks, kept until `Gpu::check` asks for them.

use crate::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

/// Advice on an out-of-memory error that does not depend on what the buffers are for.
pub(super) const SMALLER: &str = "make the batch or the model smaller";

/// The first error that the device has reported.
#[derive(Clone, Default)]
pub(super) struct Fault(Arc<Mutex<Option<Error>>>);

impl Fault {
    pub fn get(&self) -> Option<Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Forgets an error that has been handled. The next use of a lost device reports another one.
    pub fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Keeps the first error, which usually causes the others.
    pub fn keep(&self, error: Error) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}

/// `what` as one line, with single spaces.
pub(super) fn one_line(what: &str) -> String {
    what.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Stores errors that arrive in callbacks; `Gpu::check` reports them.
pub(super) fn remember_faults(device: &wgpu::Device, fault: &Fault) {
    let slot = fault.clone();
    device.on_uncaptured_error(Arc::new(move |error| slot.keep(reported("device error", &error))));
    let slot = fault.clone();
    device.set_device_lost_callback(move |reason, what| {
        if reason != wgpu::DeviceLostReason::Destroyed {
            slot.keep(reported("device lost", &what));
        }
    });
}

/// The error that a callback has reported. For a lost device, wgpu gives the cause only as text.
fn reported(kind: &str, cause: &dyn std::fmt::Display) -> Error {
    let what = one_line(&format!("{kind}: {cause}"));
    match what.to_lowercase().contains("out of memory") {
        true => Error::OutOfMemory { what, remedy: SMALLER.to_string() },
        false => Error::Device(what),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// wgpu's texts for running out of memory, with and without loss of the device.
    #[test]
    fn out_of_memory_is_told_from_other_failures() {
        let source: Box<dyn std::error::Error + Send + Sync> = "in a\nsubmission".into();
        let error = reported("device error", &wgpu::Error::OutOfMemory { source });
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error:?}");
        assert_eq!(error.to_string().lines().count(), 1);
        let lost = |cause: &str| reported("device lost", &cause);
        let line = "out of memory device lost: Out of memory; make the batch or the model smaller";
        assert_eq!(lost("Out of memory").to_string(), line);
        assert!(matches!(lost("Device is lost"), Error::Device(_)));
    }
}
