//! Registers and scratch memory of the main kernels of tier `portable` on AMD GPUs, as Mesa's compiler counts them; no
//! GPU is needed.
//!
//! `cargo bench --bench registers`; `HISTORY=1` appends to benches/history.csv, under the GPU's family as adapter.
//! Fewer VGPRs leave room for more waves, which hide latency; `tests/without_adapter/registers.rs` demands that nothing
//! spills. Each family is compiled for by a child process, which the loader's variables tell to open null hardware.

mod common;
#[path = "../tests/driver/mod.rs"]
mod driver;
mod main_kernels;

use common::Setting;
use driver::{DRIVER, Driver, FAMILIES, FAMILY, environment, is_installed};
use gristmill::kernels::Tier;
use main_kernels::main_kernels;
use std::process::Command;

/// What is printed, by the driver's names. The history has the first alone: the others are 0, or the test fails.
const STATISTICS: [&str; 3] = ["VGPRs", "Spilled VGPRs", "Scratch size"];

fn main() {
    match std::env::var(FAMILY) {
        Ok(family) => compile_for(&family),
        Err(_) if is_installed() => compile_for_all(),
        Err(_) => println!("registers: Mesa's driver for AMD is not installed ({DRIVER})"),
    }
}

/// Runs this program once for each family, in its environment.
fn compile_for_all() {
    let program = std::env::current_exe().expect("this program");
    let [registers, spilled, scratch] = STATISTICS;
    println!("{:8} {:38} {registers:>14} {spilled:>14} {scratch:>14}", "GPU", "kernel");
    for family in FAMILIES {
        let ended = Command::new(&program).envs(environment(family)).status().expect("a child");
        assert!(ended.success(), "compiling for {family} failed");
    }
}

fn compile_for(family: &str) {
    let compiler = Driver::open();
    let setting = Setting {
        adapter: family.to_string(),
        driver: compiler.driver(),
        backend: "Vulkan".to_string(),
        tier: Tier::Portable,
    };
    for (name, kernel) in main_kernels() {
        let statistics = compiler.statistics(&kernel);
        let [registers, spilled, scratch] = STATISTICS.map(|name| statistics[name]);
        println!("{family:8} {name:38} {registers:>14} {spilled:>14} {scratch:>14}");
        common::append_history(&setting, &format!("registers of {name}"), STATISTICS[0], registers as f64);
    }
}
