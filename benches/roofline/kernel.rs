//! What a kernel takes of a GPU: of its shader, and of the loop that the compilers of GPUs made of it.

use gristmill::kernels::{Access, Composed, Kernel, Workgroup, compose};
use gristmill::record::Dispatch;
use naga::AddressSpace;

/// A composed kernel.
pub struct Shader {
    /// What a workgroup takes of a compute unit.
    pub workgroup: Workgroup,
    /// What a multiply-add costs in the loop that does most of them.
    pub inner: Loop,
    composed: Composed,
}

/// The instructions and the bytes of workgroup memory that a lane takes for a multiply-add.
#[derive(Clone, Copy)]
pub struct Loop {
    pub instructions: f64,
    pub shared_bytes: f64,
}

/// Registers beside those of variables: addresses, counters, operands. The products take 96 and 48 on RDNA 3 and Ampere, as this
/// says; attention takes 64 to 108.
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
        let registers = (words + OTHER_REGISTERS).next_multiple_of(8).clamp(24, 256) as u32;
        let workgroup = Workgroup {
            lanes: entry.workgroup_size.iter().product(),
            registers,
            bytes: globals(AddressSpace::WorkGroup) as u32,
        };
        Self { workgroup, inner: Loop::of(kernel), composed }
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
    /// Counted in the assembly that Mesa 26's compiler makes for RDNA 3 of the f32 kernels, over all of a loop along k or over
    /// tiles of keys. 16-bit kernels are taken to be like them.
    fn of(kernel: &Kernel) -> Self {
        let is = |name, value| kernel.constants().contains(&(name, value));
        let (instructions, shared_bytes) = match (kernel.file, kernel.entry) {
            ("matmul/portable", _) if is("TM4", 2) => (1.62, 1.25),
            ("matmul/portable", _) => (2.08, 2.5),
            (_, "attention") => (2.08, 2.93),
            (_, "attention_backward_q") => (1.98, 2.85),
            (_, "attention_backward_kv") => (2.0, 2.69),
            _ => (2.0, 2.0),
        };
        Self { instructions, shared_bytes }
    }
}
