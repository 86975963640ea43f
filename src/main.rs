//! The command `gristmill`: train, plan, doctor, dump-wgsl.

use std::process::ExitCode;

fn main() -> ExitCode {
    gristmill::cli::gristmill()
}
