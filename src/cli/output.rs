//! Standard output, which may have been closed: a reader that has seen enough (`| head`) is no error.

use std::io::Write;
use std::ops::ControlFlow;

/// Writes `text` at once, not when a line or a buffer is full; breaks where nobody reads any more.
pub fn print(text: &str) -> ControlFlow<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    }
}

/// `println!` that does not mind a closed output: what remains of the command is short.
macro_rules! say {
    ($($text:tt)*) => {{
        let _ = $crate::cli::output::print(&format!("{}\n", format_args!($($text)*)));
    }};
}
pub(super) use say;
