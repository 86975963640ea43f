//! Who converts between f32 and f16: the adapter, where it has the feature and passes the test, else the kernels. That
//! both give the same results is tested wherever a kernel stores f16 (`lab`).

use gristmill::device::{Gpu, GpuOptions, NativeF16, Widening};
use gristmill::element::Element::{Bf16, F16, F32};
use gristmill::kernels::{Capabilities, Condition, Kernel};
use gristmill::ops::cast::cast;
use gristmill::ops::zero::zero;
use gristmill::record::Recorder;
use gristmill::wgpu::{self, Features};
use pollster::block_on;

/// Packed halves are correct too, so no other test would notice that the adapter's conversions are not used.
#[test]
fn llvmpipe_converts_by_itself() {
    let mut gpu = block_on(Gpu::request(&GpuOptions::default())).unwrap_or_else(|e| panic!("{e}"));
    assert!(!gpu.capabilities().native_f16, "before the test");
    let outcome = block_on(gpu.try_native_f16());
    let name = &gpu.report().name;
    println!("{name}: f16 is {outcome}");
    assert!(!name.contains("llvmpipe") || outcome == NativeF16::Used, "{name}: {outcome}");
    assert_eq!(gpu.capabilities().native_f16, outcome == NativeF16::Used);
}

/// An application's device has the features that the application asked for.
#[test]
fn a_device_without_the_feature_packs() {
    let instance = wgpu::Instance::default();
    let adapter =
        block_on(instance.request_adapter(&wgpu::RequestAdapterOptions::default())).expect("an adapter");
    for required_features in [Features::empty(), adapter.features() & Features::SHADER_F16] {
        let descriptor = wgpu::DeviceDescriptor { required_features, ..wgpu::DeviceDescriptor::default() };
        let (device, queue) = block_on(adapter.request_device(&descriptor)).expect("a device");
        let mut gpu =
            Gpu::from_device(&device, &queue, &GpuOptions::default()).unwrap_or_else(|e| panic!("{e}"));
        let outcome = block_on(gpu.try_native_f16());
        assert_eq!(outcome == NativeF16::Absent, required_features.is_empty(), "{outcome}");
        assert_eq!(gpu.capabilities().native_f16, outcome == NativeF16::Used);
        assert!(!outcome.to_string().contains('\n'), "{outcome}");
    }
}

/// The choice is made where kernels are recorded, for those that store f16 alone.
#[test]
fn recordings_follow_the_capabilities() {
    let is_native = |kernel: &Kernel| kernel.conditions().any(|condition| condition == Condition::NativeF16);
    for (native, element) in [(true, F16), (false, F16), (true, Bf16)] {
        let mut rec = Recorder::new("cast", Capabilities::portable().with_native_f16(native));
        let (wide, narrow) = (rec.tensor("x", 1, 8, F32), rec.tensor("y", 1, 8, element));
        cast(&mut rec, wide, narrow);
        let [dispatch] = &rec.finish().dispatches[..] else { panic!("one dispatch") };
        assert_eq!(is_native(&dispatch.kernel), native && element == F16, "{}", dispatch.kernel);
    }
}

/// All halves, by the code that kernels use: the adapter's own instruction with and without `shader-f16`, and integers.
#[test]
fn every_half_is_widened_exactly() {
    let mut gpu = block_on(Gpu::request(&GpuOptions::default())).unwrap_or_else(|e| panic!("{e}"));
    for _ in ["packed", "native"] {
        let widening = block_on(gpu.check_widening());
        println!("{}, {}: f16 is {widening}", gpu.report().name, gpu.capabilities());
        assert_eq!(gpu.capabilities().widens_in_integers, widening != Widening::Native);
        assert!(!gpu.report().name.contains("llvmpipe") || widening == Widening::Native, "{widening}");
        block_on(gpu.try_native_f16());
    }
    gpu.widen_in_integers();
    assert_eq!(block_on(gpu.check_widening()), Widening::Native, "in integers");
}

/// A run on an adapter that widens wrongly records other kernels, for f16 alone.
#[test]
fn kernels_widen_in_integers_where_they_must() {
    let is_in_integers =
        |kernel: &Kernel| kernel.conditions().any(|condition| condition == Condition::IntegerWidening);
    for (integers, element) in [(true, F16), (false, F16), (true, Bf16), (true, F32)] {
        let mut rec = Recorder::new("zero", Capabilities::portable().with_integer_widening(integers));
        let tensor = rec.tensor("x", 1, 8, element);
        zero(&mut rec, tensor);
        let [dispatch] = &rec.finish().dispatches[..] else { panic!("one dispatch") };
        assert_eq!(is_in_integers(&dispatch.kernel), integers && element == F16, "{}", dispatch.kernel);
    }
}
