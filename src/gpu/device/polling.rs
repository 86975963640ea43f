//! One wait for the device: until it is done, has failed, or is assumed to hang.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

/// Why a wait ended before the device was done.
#[derive(Debug, PartialEq)]
pub(super) enum End {
    TimedOut,
    Failed(String),
}

impl End {
    /// The error line; `ops` are the first and last op that the device was executing.
    pub fn line(&self, ops: &str, timeout: Duration) -> String {
        match self {
            Self::TimedOut => format!(
                "the device did not finish {ops} within {} s, and is taken to hang; if it is only slow, raise \
                 context.hang_timeout",
                timeout.as_secs_f64()
            ),
            Self::Failed(why) => format!("the device did not finish {ops}: {why}"),
        }
    }
}

/// Polls the device. wgpu panics if the device is lost during a poll; that becomes an error for the waiting futures.
pub(super) fn poll(device: &wgpu::Device, kind: wgpu::PollType) -> std::result::Result<(), End> {
    caught(|| match device.poll(kind) {
        Ok(_) => Ok(()),
        Err(wgpu::PollError::Timeout) => Err(End::TimedOut),
        Err(error) => Err(End::Failed(error.to_string())),
    })
}

fn caught(poll: impl FnOnce() -> std::result::Result<(), End>) -> std::result::Result<(), End> {
    // Unwind safe: only wgpu holds state across the panic, and the device is not used after it.
    std::panic::catch_unwind(AssertUnwindSafe(poll)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied());
        Err(End::Failed(text.unwrap_or("the device is lost").to_string()))
    })
}

#[cfg(test)]
mod tests {
    use super::{End, caught};
    use std::time::Duration;

    #[test]
    fn a_panic_of_the_device_is_an_error() {
        assert_eq!(caught(|| Ok(())), Ok(()));
        assert_eq!(caught(|| panic!("device {}", "lost")), Err(End::Failed("device lost".to_string())));
        assert_eq!(caught(|| panic!("lost")), Err(End::Failed("lost".to_string())));
    }

    #[test]
    fn a_hang_says_how_long_was_waited_and_what_to_raise() {
        assert_eq!(
            End::TimedOut.line("micro_step/embedding .. update/adamw", Duration::from_secs(90)),
            "the device did not finish micro_step/embedding .. update/adamw within 90 s, and is taken to hang; if it is only \
             slow, raise context.hang_timeout"
        );
    }
}
