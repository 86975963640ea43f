//! The resources that a kernel takes of a GPU: by its shader, and by the compiled code of its main loop.

use crate::element::Element;
use crate::kernels::{Access, Composed, Condition, Kernel, Workgroup, compose};
use crate::ops::attention::LoopCost;
use crate::record::Dispatch;
use naga::{AddressSpace, Statement};

/// A composed kernel.
pub struct Shader {
    /// The resources of a compute unit that a workgroup takes.
    pub workgroup: Workgroup,
    /// The costs of its main loop.
    pub inner: Loop,
    /// Barriers in its text.
    written_barriers: u32,
    composed: Composed,
}

/// The costs per lane of the loop that does most of the multiply-adds.
#[derive(Clone, Copy)]
pub struct Loop {
    /// Instructions per multiply-add.
    pub instructions: f64,
    /// Bytes of workgroup memory per multiply-add.
    pub shared_bytes: f64,
    /// Multiply-adds of matrices for each, in addition to these instructions: three of f32 in two terms, 0 without
    /// matrices.
    pub by_matrices: u32,
    /// Barriers per 1,024 multiply-adds.
    barriers: f64,
    /// Registers; `None` if the loop's compiled code has not been inspected and all of these are estimates.
    registers: Option<u32>,
}

/// Registers in addition to those of variables, if the compiler's number is not known: addresses, counters, operands.
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
        let functions = || module.functions.iter().map(|(_, function)| function).chain([&entry.function]);
        let locals = |function: &naga::Function| {
            function.local_variables.iter().map(|(_, local)| size(local.ty)).sum()
        };
        // Of functions that call each other only the largest counts.
        let words = (globals(AddressSpace::Private) + functions().map(locals).max().unwrap_or(0)) / 4;
        let estimate = (words + OTHER_REGISTERS).next_multiple_of(8).clamp(24, 256) as u32;
        let inner = Loop::of(kernel);
        let workgroup = Workgroup {
            lanes: entry.workgroup_size.iter().product(),
            registers: inner.registers.unwrap_or(estimate),
            bytes: globals(AddressSpace::WorkGroup) as u32,
        };
        let written_barriers = functions().map(|function| barriers_in(&function.body)).sum();
        Self { workgroup, inner, written_barriers, composed }
    }

    /// Bytes of workgroup memory that the loops of a launch of `flops` operations read; `None` if they have not been
    /// counted.
    pub fn shared_bytes(&self, flops: f64) -> Option<f64> {
        match (self.workgroup.bytes, self.inner.registers) {
            (0, _) => Some(0.0),
            (_, Some(_)) => Some(flops / 2.0 * self.inner.shared_bytes),
            (_, None) => None,
        }
    }

    /// Barriers that a workgroup of a launch of `flops` operations waits at; those in the text if they have not been
    /// counted.
    pub fn barriers(&self, flops: f64, workgroups: u64) -> f64 {
        let lanes = (workgroups * u64::from(self.workgroup.lanes)).max(1) as f64;
        match self.inner.registers {
            Some(_) => flops / 2.0 / lanes / 1024.0 * self.inner.barriers,
            None => self.written_barriers.into(),
        }
    }

    /// Bytes that a launch reads and writes, each element once: a tensor that is read and written counts twice.
    pub fn bytes(&self, launch: &Dispatch) -> u64 {
        let bound_to = |name: &str| launch.bindings.iter().find(|binding| binding.variable == name);
        let of = |name: &str| bound_to(name).map(|binding| binding.bytes);
        let bytes = self.composed.variables.iter().map(|variable| {
            if let Some(bytes) = bound_to(&variable.name).and_then(|binding| binding.touched) {
                return bytes;
            }
            let passes = u64::from(variable.is_read) + u64::from(variable.access == Access::ReadWrite);
            let bound = of(&variable.name).unwrap_or(0);
            // A launch touches only the rows of its tokens in the embedding's table.
            let rows =
                ["table", "dtable"].contains(&variable.name.as_str()).then(|| of("y").or(of("dy"))).flatten();
            passes * bound.min(rows.unwrap_or(u64::MAX))
        });
        bytes.sum()
    }
}

impl Loop {
    /// Counted in the code that Mesa 26's compiler generates for RDNA 3 from the f32 kernels, over a whole loop along k
    /// or over tiles of keys (for attention by [`LoopCost`]); registers are the larger number of RDNA 3 and Ampere.
    /// 16-bit kernels are assumed to be like them. For matrices all other instructions are counted: the largest tiles'
    /// 0.20 lie between the 0.11 of RDNA 3 and the 0.29 of NVK on Ampere, of which half are copies; f32 in two terms
    /// takes 0.33 and 0.93.
    fn of(kernel: &Kernel) -> Self {
        let is_by_matrices = kernel.is_by_matrices();
        if let Some(LoopCost { instructions, shared_bytes, barriers, registers }) = LoopCost::of(kernel) {
            let by_matrices = is_by_matrices.into();
            return Self { instructions, shared_bytes, by_matrices, barriers, registers: Some(registers) };
        }
        let constant = |name| {
            let found = kernel.constants().iter().find(|(known, _)| *known == name);
            found.map_or(0, |(_, value)| *value)
        };
        let is_gradient = kernel.conditions().any(|condition| condition == Condition::ATransposed);
        let of_layout = |gradient, other| Some(if is_gradient { gradient } else { other });
        let is_split = is_by_matrices && kernel.element == Element::F32;
        let (instructions, shared_bytes, barriers, registers) =
            match (kernel.entry, constant("TM4"), constant("TN4")) {
                ("matmul", ..) if is_split => (0.63, 0.51, 2.0, Some(216)),
                ("matmul", 2, 2) if is_by_matrices => (0.20, 0.44, 2.0, Some(168)),
                ("matmul", 1, 1) if is_by_matrices => (0.38, 0.50, 2.0, Some(200)),
                ("matmul", ..) if is_by_matrices => (0.26, 0.46, 2.0, Some(168)),
                ("matmul", 2, 2) => (1.22, 1.06, 2.0, of_layout(96, 120)),
                ("matmul", 1, 2) => (1.33, 1.59, 4.0, of_layout(64, 96)),
                ("matmul", 2, 1) => (1.39, 1.59, 4.0, of_layout(64, 96)),
                ("matmul", 1, 1) => (1.55, 2.13, 4.0, of_layout(48, 60)),
                _ => (2.0, 2.0, 0.0, None),
            };
        // An invocation widens 16 quantised weights, in about 92 instructions, for 1024 · TM4 multiply-adds by
        // matrices, and those in NF4 with 64 bytes of levels.
        let has = |weights| is_by_matrices && kernel.conditions().any(|condition| condition == weights);
        let for_weights = |each: f64| each / (1024.0 * f64::from(constant("TM4")));
        let is_nf4 = has(Condition::Nf4);
        let instructions =
            instructions + if is_nf4 || has(Condition::Int8) { for_weights(92.0) } else { 0.0 };
        let shared_bytes = shared_bytes + if is_nf4 { for_weights(64.0) } else { 0.0 };
        let by_matrices = if is_split { 3 } else { is_by_matrices.into() };
        Self { instructions, shared_bytes, by_matrices, barriers, registers }
    }
}

/// Barriers in the text of a block.
fn barriers_in(block: &naga::Block) -> u32 {
    let of = |statement: &Statement| match statement {
        Statement::ControlBarrier(_) | Statement::WorkGroupUniformLoad { .. } => 1,
        Statement::Block(block) => barriers_in(block),
        Statement::If { accept, reject, .. } => barriers_in(accept) + barriers_in(reject),
        Statement::Switch { cases, .. } => cases.iter().map(|case| barriers_in(&case.body)).sum(),
        Statement::Loop { body, continuing, .. } => barriers_in(body) + barriers_in(continuing),
        _ => 0,
    };
    block.iter().map(of).sum()
}
