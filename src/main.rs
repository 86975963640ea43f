//! The binary `gristmill`; [`gristmill::cli`] has its commands.

use std::process::ExitCode;

fn main() -> ExitCode {
    gristmill::cli::gristmill()
}
