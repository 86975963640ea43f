//! The adapter, what its driver makes of the main kernels, and the tests of all kernels.

use super::Context;
use crate::compiled::Driver;
use crate::main_kernels::main_kernels;
use gristmill::device::{Gpu, GpuOptions, list_adapters};
use gristmill::kernels::Tier;
use gristmill::perf::peak::CostOfChecks;
use gristmill::wgpu;
use std::process::Command;

pub fn adapter(context: &Context) {
    let gpu = &context.gpu;
    for adapter in pollster::block_on(list_adapters()) {
        let mark = if &adapter == gpu.report() { "  <- this one" } else { "" };
        println!("{adapter}{mark}");
    }
    println!("{}, limits {:?}", gpu.capabilities(), gpu.capabilities().limits);
    println!("f16: {}", context.f16);
    match &context.published {
        Some(gpu) => println!("published: {gpu:?}"),
        None => println!("not among the published GPUs: units are assumed, and there is no model"),
    }
    let instance = wgpu::Instance::default();
    for adapter in pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all())) {
        if adapter.get_info().name != gpu.report().name {
            continue;
        }
        let limits = adapter.limits();
        println!(
            "{:?}: {} KiB of workgroup memory, {} invocations in a workgroup, subgroups of {} to {}",
            adapter.get_info().backend,
            limits.max_compute_workgroup_storage_size >> 10,
            limits.max_compute_invocations_per_workgroup,
            adapter.get_info().subgroup_min_size,
            adapter.get_info().subgroup_max_size,
        );
        println!("features {:?}", adapter.features());
        let shapes = adapter.cooperative_matrix_properties();
        println!("matrix shapes: {}", if shapes.is_empty() { "none" } else { "" });
        for shape in shapes {
            let wgpu::CooperativeMatrixProperties { m_size, n_size, k_size, ab_type, cr_type, .. } = shape;
            println!("    {m_size} x {n_size} x {k_size}, {ab_type:?} to {cr_type:?}");
        }
    }
}

pub fn compiler(context: &Context) {
    let Some(driver) = Driver::named(&context.gpu.report().name) else {
        println!("its driver does not say what it makes of a kernel (VK_KHR_pipeline_executable_properties)");
        return;
    };
    println!("{}", driver.driver());
    let kernels = main_kernels();
    for (name, kernel) in &kernels[..if context.is_small { 1 } else { kernels.len() }] {
        let words = driver.statistics(kernel).into_iter().map(|(name, value)| format!("{name} {value}"));
        println!("{name}: {}", words.collect::<Vec<_>>().join(", "));
    }
}

pub fn checks(context: &Context) {
    let device_name = Some(context.gpu.report().name.clone());
    match context
        .wait(pollster::block_on(CostOfChecks::measure(&GpuOptions { device_name, ..GpuOptions::default() })))
    {
        Some(cost) => println!("{cost}"),
        None => println!("only Vulkan drivers make them"),
    }
}

/// The tests of all kernels against their f64 reference in f32, f16 and bf16: `test-kernels` beside this program, or by
/// cargo.
pub fn tests(context: &Context) {
    if context.is_small {
        println!("left out of a small run");
        return;
    }
    let beside = std::env::current_exe().ok().map(|program| program.with_file_name("test-kernels"));
    let mut command = match beside.filter(|file| file.exists()) {
        Some(program) => Command::new(program),
        None => {
            let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            cargo.args(["test", "--release", "--test", "kernels"]);
            cargo
        }
    };
    match command.status() {
        Ok(status) => assert!(status.success(), "tests of kernels fail"),
        Err(error) => {
            println!("left out: there is neither cargo nor test-kernels beside this program ({error})")
        }
    }
}

/// Whether products by cooperative matrices pass the test that a device is opened with. A second device, since drivers
/// may compile all kernels otherwise with them.
pub fn matrices(context: &Context) {
    let device_name = Some(context.gpu.report().name.clone());
    let options = GpuOptions { device_name, tier: Some(Tier::Matrix), ..GpuOptions::default() };
    match pollster::block_on(Gpu::request(&options)) {
        Ok(gpu) => println!("products by matrices are exact: {}", gpu.capabilities()),
        Err(error) => println!("{error}"),
    }
}
