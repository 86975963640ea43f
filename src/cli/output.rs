//! Standard output. It is not an error if its reader has closed it (`| head`).

use std::io::Write;
use std::ops::ControlFlow;

/// Writes `text` and flushes it; breaks if standard output is closed.
pub fn print(text: &str) -> ControlFlow<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    }
}

/// `println!` that ignores a closed output, for commands that are nearly done.
macro_rules! say {
    ($($text:tt)*) => {{
        let _ = $crate::cli::output::print(&format!("{}\n", format_args!($($text)*)));
    }};
}
pub(super) use say;
