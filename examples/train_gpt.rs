//! Trains a GPT as configured by a YAML file, on any Vulkan, Metal or DX12 adapter.
//!
//! `cargo run --release --example train_gpt -- configs/tiny.yaml [--section.key=value ...]`

use std::process::ExitCode;

fn main() -> ExitCode {
    gristmill::cli::train_gpt()
}
