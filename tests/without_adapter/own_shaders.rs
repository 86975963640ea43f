//! Shader files of a user that do not compile: one line that names the kernel and the place.

use gristmill::element::Element::F32;
use gristmill::kernels::{Kernel, Sources};

/// The answer to composing the entry point `main` of a file.
#[track_caller]
fn fault(text: &'static str, entry: &'static str) -> String {
    let sources = Sources::default().with("mine/file", text).unwrap_or_else(|e| panic!("{e}"));
    let kernel = Kernel::new("mine/file", entry, F32).constant("LANES", 64);
    let error = sources.compose(&kernel).err().expect("the file is wrong").to_string();
    assert!(error.starts_with(&format!("shader mine/file:{entry} f32 LANES=64 does not ")), "{error}");
    assert!(error.lines().count() == 1 && !error.contains('\x1b'), "{error}");
    error
}

#[test]
fn a_file_that_does_not_compile_is_one_line() {
    for (text, place) in [
        (include_str!("own_shaders/not_wgsl.wgsl"), "fn main( {"),
        (include_str!("own_shaders/unknown_name.wgsl"), "y[0] = unknown;"),
        (include_str!("own_shaders/wrong_type.wgsl"), "y[0] = 1u;"),
        (include_str!("own_shaders/unknown_import.wgsl"), "nothing"),
        (include_str!("own_shaders/unknown_condition.wgsl"), "polished"),
    ] {
        let error = fault(text, "main");
        println!("{error}");
        assert!(error.contains(place), "{place} is not named: {error}");
    }
}

#[test]
fn a_missing_file_or_entry_point_is_one_line() {
    let valid = include_str!("../../examples/own_kernel.wgsl");
    assert!(fault(valid, "softmax").ends_with("does not compile: there is no entry point softmax"));
    let error =
        Sources::default().compose(&Kernel::new("mine/file", "main", F32)).err().expect("no such file");
    let error = error.to_string();
    assert!(error.contains("mine/file:main") && error.lines().count() == 1, "{error}");
}
