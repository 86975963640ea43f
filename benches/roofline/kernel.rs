//! What a kernel takes of a GPU: of its shader, and of the loop that the compilers of GPUs made of it.

use gristmill::kernels::{Access, Composed, Condition, Kernel, Workgroup, compose};
use gristmill::record::Dispatch;
use naga::AddressSpace;

/// A composed kernel.
pub struct Shader {
    /// What a workgroup takes of a compute unit.
    pub workgroup: Workgroup,
    /// What its loop takes.
    pub inner: Loop,
    composed: Composed,
}

/// What a lane takes in the loop that does most of the multiply-adds.
#[derive(Clone, Copy)]
pub struct Loop {
    /// Instructions for a multiply-add.
    pub instructions: f64,
    /// Bytes of workgroup memory for a multiply-add.
    pub shared_bytes: f64,
    /// Registers; `None` where they are estimated.
    registers: Option<u32>,
}

/// Registers beside those of variables, where no compiler's are known: addresses, counters, operands.
const OTHER_REGISTERS: u64 = 16;

impl Shader {
    pub fn new(kernel: &Kernel) -> Self {
        let composed = compose(kernel).unwrap_or_else(|e| panic!("{e}"));
        let module = &composed.module;
        let mut layouter = naga::proc::Layouter::default();
        layouter.update(module.to_ctx()).expect("the layout of a valid module");
        let size = |ty| u64::from(layouter[ty].size);
        let globals = |space| {
            let of_space = module.global_variables.iter().filter(move |(_, global)| global.space == space);
            of_space.map(|(_, global)| size(global.ty)).sum::<u64>()
        };
        let entry =
            module.entry_points.iter().find(|entry| entry.name == kernel.entry).expect("its entry point");
        let functions = module.functions.iter().map(|(_, function)| function).chain([&entry.function]);
        let locals = |function: &naga::Function| {
            function.local_variables.iter().map(|(_, local)| size(local.ty)).sum()
        };
        // Of functions that call each other the largest counts.
        let words = (globals(AddressSpace::Private) + functions.map(locals).max().unwrap_or(0)) / 4;
        let estimate = (words + OTHER_REGISTERS).next_multiple_of(8).clamp(24, 256) as u32;
        let inner = Loop::of(kernel);
        let workgroup = Workgroup {
            lanes: entry.workgroup_size.iter().product(),
            registers: inner.registers.unwrap_or(estimate),
            bytes: globals(AddressSpace::WorkGroup) as u32,
        };
        Self { workgroup, inner, composed }
    }

    /// Bytes that a launch reads and writes, each element once: a tensor that is read and written counts twice.
    pub fn bytes(&self, launch: &Dispatch) -> u64 {
        let of = |name: &str| {
            launch.bindings.iter().find(|binding| binding.variable == name).map(|binding| binding.bytes)
        };
        let bytes = self.composed.variables.iter().map(|variable| {
            let passes = u64::from(variable.is_read) + u64::from(variable.access == Access::ReadWrite);
            let bound = of(&variable.name).unwrap_or(0);
            // Of the embedding's table a launch touches the rows of its tokens.
            let rows =
                ["table", "dtable"].contains(&variable.name.as_str()).then(|| of("y").or(of("dy"))).flatten();
            passes * bound.min(rows.unwrap_or(u64::MAX))
        });
        bytes.sum()
    }
}

impl Loop {
    /// Counted in the assembly that Mesa 26's compiler makes for RDNA 3 of the f32 kernels, over all of a loop along k or over tiles of
    /// keys; registers are the most of RDNA 3 and Ampere. 16-bit kernels, and attention over two passes, are taken to be like them.
    fn of(kernel: &Kernel) -> Self {
        let constant = |name| {
            let found = kernel.constants().iter().find(|(known, _)| *known == name);
            found.map_or(0, |(_, value)| *value)
        };
        let is_gradient = kernel.conditions().any(|condition| condition == Condition::ATransposed);
        let of_layout = |gradient, other| Some(if is_gradient { gradient } else { other });
        let (instructions, shared_bytes, registers) = match (kernel.entry, constant("TM4"), constant("TN4")) {
            ("matmul", 2, 2) => (1.22, 1.06, of_layout(96, 120)),
            ("matmul", 1, 2) => (1.33, 1.59, of_layout(64, 96)),
            ("matmul", 2, 1) => (1.39, 1.59, of_layout(64, 96)),
            ("matmul", 1, 1) => (1.55, 2.13, of_layout(48, 60)),
            ("attention", ..) => (1.52, 1.66, Some(120)),
            ("attention_backward_q", ..) => (1.6, 2.1, Some(132)),
            ("attention_backward_kv", ..) => (1.54, 2.19, Some(132)),
            _ => (2.0, 2.0, None),
        };
        Self { instructions, shared_bytes, registers }
    }
}
