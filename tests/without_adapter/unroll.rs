//! Loops are unrolled where their passes are known and index an array of the invocation, and nowhere else; what they
//! compute stays the same, which `tests/kernels` shows by running every kernel both ways.

use crate::statements::statements;
use gristmill::kernels::unroll;
use naga::valid::{Capabilities, ValidationFlags, Validator};
use naga::{Block, EntryPoint, Expression, Function, Module, Statement};

/// The module of a WGSL text, unrolled and valid.
fn unrolled(wgsl: &str) -> Module {
    let mut module =
        naga::front::wgsl::parse_str(wgsl).unwrap_or_else(|e| panic!("{}", e.emit_to_string(wgsl)));
    unroll(&mut module);
    let validated = Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&module);
    validated.unwrap_or_else(|e| panic!("{e:?}"));
    module
}

/// How many statements of `block` `is_meant` is true of, those in blocks within it included.
fn count(block: &Block, is_meant: impl Fn(&Statement) -> bool) -> usize {
    statements(block).into_iter().filter(|(statement, _)| is_meant(statement)).count()
}

fn loops(entry: &EntryPoint) -> usize {
    count(&entry.function.body, |statement| matches!(statement, Statement::Loop { .. }))
}

/// Stores to an element of a local array that is named by a constant.
fn stores(function: &Function) -> usize {
    count(&function.body, |statement| {
        let Statement::Store { pointer, .. } = statement else { return false };
        let Expression::AccessIndex { base, .. } = function.expressions[*pointer] else { return false };
        matches!(function.expressions[base], Expression::LocalVariable(_))
    })
}

#[test]
fn each_pass_names_its_element() {
    let module = unrolled(include_str!("unroll/unrolled.wgsl"));
    for entry in &module.entry_points {
        let passes = entry.name.rsplit('_').next().and_then(|passes| passes.parse().ok());
        assert_eq!((loops(entry), Some(stores(&entry.function))), (0, passes), "{}", entry.name);
    }
}

#[test]
fn other_loops_stay() {
    let module = unrolled(include_str!("unroll/kept.wgsl"));
    for entry in &module.entry_points {
        assert_eq!(loops(entry), 1, "{}", entry.name);
    }
}
