//! What matrices are loaded from and stored to. Vulkan demands that each row starts at a multiple of 16 bytes
//! (VUID-RuntimeSpirv-OpCooperativeMatrixLoadKHR-08986), and leaves it to the driver where variables of a workgroup
//! are. A driver aligns them by their types, and SPIR-V has no vector of f16 with more than 8 bytes. If the size of
//! each variable is a multiple of 16 bytes besides, each starts at such a multiple when they lie one after the other,
//! in whatever order. That offsets and strides within them are multiples is found by the interpreter
//! (`tests/interpreter`).

use crate::statements::statements;
use gristmill::element::Element::F16;
use gristmill::kernels::{Capabilities, Kernel, compose};
use gristmill::ops::matmul::{Layout, Problem, plan};
use naga::proc::Layouter;
use naga::valid::ModuleInfo;
use naga::{AddressSpace, Expression, Function, Module, Statement, TypeInner};

/// Panics unless matrices are in vectors of 8 bytes or more, and sizes of variables are multiples of 16 bytes.
pub fn check(kernel: &Kernel, module: &Module, info: &ModuleInfo) {
    for element in elements(module, info) {
        let TypeInner::Vector { size, scalar } = element else {
            panic!("{kernel}: a matrix is loaded or stored by a pointer to {element:?}");
        };
        assert!(*size as u32 * u32::from(scalar.width) >= 8, "{kernel}: a matrix is in {element:?}");
    }
    let mut layouter = Layouter::default();
    layouter.update(module.to_ctx()).expect("the layout of a valid module");
    for (_, variable) in module.global_variables.iter().filter(|(_, v)| v.space == AddressSpace::WorkGroup) {
        let bytes = layouter[variable.ty].size;
        assert!(bytes.is_multiple_of(16), "{kernel}: {:?} has {bytes} bytes", variable.name);
    }
}

/// Panics unless matrices are behind pointers to scalars: `simdgroup_load` and `simdgroup_store` take `const T*` and
/// `T*`, with T the type of the matrix's elements (Metal Shading Language Specification, section 6.7.1).
pub fn check_on_metal(kernel: &Kernel, module: &Module, info: &ModuleInfo) {
    for element in elements(module, info) {
        assert!(matches!(element, TypeInner::Scalar(_)), "{kernel}: no pointer to {element:?} will do");
    }
}

/// The control.
#[test]
#[should_panic(expected = "by a pointer to Scalar")]
fn matrices_in_numbers_are_found() {
    let problem = Problem { layout: Layout::Nt, m: 64, n: 64, k: 64 };
    let kernel = plan(problem, F16, Capabilities::matrix()).kernel.on_metal();
    let composed = compose(&kernel).unwrap_or_else(|e| panic!("{e}"));
    check(&kernel, &composed.module, &composed.info);
}

/// What each pointer through which matrices are loaded or stored points to.
fn elements<'m>(module: &'m Module, info: &'m ModuleInfo) -> Vec<&'m TypeInner> {
    let functions = module.functions.iter().map(|(handle, function)| (function, &info[handle]));
    let entries = module.entry_points.iter().enumerate();
    let entries = entries.map(|(i, entry)| (&entry.function, info.get_entry_point(i)));
    let of_function = |(function, info): (&'m Function, &'m naga::valid::FunctionInfo)| {
        let loads = function.expressions.iter().filter_map(|(_, expression)| match expression {
            Expression::CooperativeLoad { data, .. } => Some(data.pointer),
            _ => None,
        });
        let stores = statements(&function.body).into_iter().filter_map(|(statement, _)| match statement {
            Statement::CooperativeStore { data, .. } => Some(data.pointer),
            _ => None,
        });
        loads.chain(stores).map(|pointer| match info[pointer].ty.inner_with(&module.types) {
            TypeInner::Pointer { base, .. } => &module.types[*base].inner,
            other => other,
        })
    };
    functions.chain(entries).flat_map(of_function).collect()
}
