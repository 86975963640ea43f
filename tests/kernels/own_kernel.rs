//! A user's own shader file: it runs, and what does not fit the recording is one line.

use gristmill::device::{Gpu, GpuOptions, Job};
use gristmill::element::Element::{self, F32};
use gristmill::kernels::{Kernel, Sources};
use gristmill::record::Tensor;
use pollster::block_on;

const FILE: &str = include_str!("../../examples/own_kernel.wgsl");

gristmill::params! {
    struct Params {
        rows: u32,
        cols: u32,
        stride4: u32,
    }
}

gristmill::params! {
    struct Renamed {
        rows: u32,
        columns: u32,
        stride4: u32,
    }
}

gristmill::params! {
    struct Retyped {
        rows: u32,
        cols: f32,
        stride4: u32,
    }
}

gristmill::params! {
    struct Longer {
        rows: u32,
        cols: u32,
        stride4: u32,
        factor: f32,
    }
}

fn gpu() -> Gpu {
    let sources = Sources::default().with("mine/softplus", FILE).unwrap_or_else(|e| panic!("{e}"));
    let options = GpuOptions { sources, ..GpuOptions::default() };
    block_on(Gpu::request(&options)).unwrap_or_else(|e| panic!("{e}"))
}

fn kernel(entry: &'static str, element: Element, lanes: u32) -> Kernel {
    Kernel::new("mine/softplus", entry, element).constant("LANES", lanes)
}

const X: [f32; 7] = [-90.0, -2.0, -0.5, 0.0, 0.5, 2.0, 90.0];

fn params(x: Tensor) -> Params {
    Params { rows: x.rows, cols: x.cols, stride4: x.stride4() }
}

/// Every storage type, through `lib::element` of ours. Allowed: half an ulp of the storage, and 2e-6 for what WGSL
/// allows exp and log.
#[test]
fn a_file_of_a_user_runs() {
    let gpu = gpu();
    for (element, allowed) in [(F32, 2e-6), (Element::F16, 1e-3), (Element::Bf16, 8e-3)] {
        let y = block_on(gpu.run(|job| {
            let (x, y) = (job.input_of(&X, 1, 7, element), job.tensor(1, 7, element));
            let bindings = [x.bind("x", element), y.bind("y", element)];
            job.rec.dispatch(kernel("softplus", element, 64), &bindings, &params(x), [1, 1, 1]);
            y
        }));
        let y = y.unwrap_or_else(|e| panic!("{e}"));
        for (x, y) in X.iter().zip(&y) {
            let want = f64::from(*x).exp().ln_1p().min(90.0);
            let error = (f64::from(*y) - want).abs();
            assert!(error <= allowed * (1.0 + want), "{element:?}: softplus({x}) is {y}, not {want}");
        }
    }
}

/// What a dispatch that does not fit the file is answered with; the device works afterwards.
#[test]
fn a_recording_that_does_not_fit_the_file_is_one_line() {
    let gpu = gpu();
    let answer = |record: &dyn Fn(&mut Job, Tensor, Tensor)| {
        let done = block_on(gpu.run(|job| {
            let (x, y) = (job.input(&X, 1, 7), job.output(1, 7));
            record(job, x, y);
            y
        }));
        let error = done.expect_err("it does not fit").to_string();
        assert_eq!(error.lines().count(), 1, "{error}");
        error
    };
    let softplus = || kernel("softplus", F32, 64);
    let one = [1, 1, 1];

    let missing = answer(&|job, x, _| job.rec.dispatch(softplus(), &[x.bind("x", F32)], &params(x), one));
    assert!(missing.ends_with("(mine/softplus:softplus f32 LANES=64): nothing is bound to `y`"), "{missing}");
    let unused = answer(&|job, x, y| {
        let bindings = [x.bind("x", F32), y.bind("y", F32), y.bind("dx", F32)];
        job.rec.dispatch(softplus(), &bindings, &params(x), one);
    });
    assert!(unused.ends_with("binds `dx`, but its tensors are x, y"), "{unused}");
    let both = |x: Tensor, y: Tensor| [x.bind("x", F32), y.bind("y", F32)];
    let renamed = answer(&|job, x, y| {
        let params = Renamed { rows: 1, columns: 7, stride4: 2 };
        job.rec.dispatch(softplus(), &both(x, y), &params, one);
    });
    assert!(
        renamed.contains("field 1 of its params is `cols: u32` at byte 4 in the shader and `columns: u32`"),
        "{renamed}"
    );
    let retyped = answer(&|job, x, y| {
        let params = Retyped { rows: 1, cols: 7.0, stride4: 2 };
        job.rec.dispatch(softplus(), &both(x, y), &params, one);
    });
    assert!(
        retyped.ends_with("is `cols: u32` at byte 4 in the shader and `cols: f32` at byte 4 in Rust"),
        "{retyped}"
    );
    let longer = answer(&|job, x, y| {
        let params = Longer { rows: 1, cols: 7, stride4: 2, factor: 1.0 };
        job.rec.dispatch(softplus(), &both(x, y), &params, one);
    });
    assert!(
        longer.contains("field 3 of its params is missing in the shader and `factor: f32` at byte 12"),
        "{longer}"
    );
    let too_wide = answer(&|job, x, y| {
        job.rec.dispatch(kernel("softplus", F32, 1 << 13), &both(x, y), &params(x), one);
    });
    assert!(too_wide.contains("refuses the shader mine/softplus:softplus f32 LANES=8192"), "{too_wide}");
    assert!(gpu.check().is_ok(), "the device works afterwards");
}

/// Its bounds checks are those of the driver where there are some, so a device without them does not run it.
#[test]
fn a_device_without_checks_of_buffers_refuses_it() {
    let sources = Sources::default().with("mine/softplus", FILE).unwrap_or_else(|e| panic!("{e}"));
    let added = GpuOptions { sources, unchecked_buffers: true, ..GpuOptions::default() };
    let checked = GpuOptions { checked_shaders: true, unchecked_buffers: true, ..GpuOptions::default() };
    for options in [added, checked] {
        let error = block_on(Gpu::request(&options)).err().expect("a refusal").to_string();
        assert!(error.ends_with("leave out GpuOptions::unchecked_buffers"), "{error}");
    }
}
