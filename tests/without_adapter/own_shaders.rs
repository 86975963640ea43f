//! Shader files of a user that do not compile: one line that names the kernel and the place.

use gristmill::element::Element::F32;
use gristmill::kernels::{Condition, Kernel, Sources};

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
        (include_str!("own_shaders/unknown_item.wgsl"), "import package::lib::silu::swish;"),
        (include_str!("own_shaders/unknown_condition.wgsl"), "polished"),
        (include_str!("own_shaders/unclosed_condition.wgsl"), "@if((causal || f32) {"),
        (include_str!("own_shaders/bracket_too_many.wgsl"), "}}"),
        (include_str!("own_shaders/else_branch.wgsl"), "@else { y[0] = 2.0; }"),
        (include_str!("own_shaders/renamed_import.wgsl"), "silu as activation"),
        (include_str!("own_shaders/relative_import.wgsl"), "import super::silu::silu;"),
        (include_str!("own_shaders/path_in_expression.wgsl"), "package::lib::silu::silu(vec4<f32>(y[0])).x"),
        (include_str!("own_shaders/two_imports.wgsl"), "import package::lib::gelu::silu;"),
        (include_str!("own_shaders/declared_and_imported.wgsl"), "import package::lib::silu::silu;"),
        (include_str!("own_shaders/two_underscores.wgsl"), "`lib__y`"),
    ] {
        let error = fault(text, "main");
        println!("{error}");
        assert!(error.contains(place), "{place} is not named: {error}");
    }
}

#[test]
fn conditions_keep_and_drop_every_kind_of_construct() {
    let file = include_str!("own_shaders/every_condition.wgsl");
    let sources = Sources::default().with("mine/file", file).unwrap_or_else(|e| panic!("{e}"));
    let kernel = Kernel::new("mine/file", "main", F32).condition(Condition::Causal, true);
    let composed = sources.compose(&kernel).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(composed.wgsl, include_str!("own_shaders/every_condition_composed.wgsl"), "{}", composed.wgsl);
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
