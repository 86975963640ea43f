//! The state of a workgroup, its expressions and its accesses to memory.

use crate::control::{MOST_LANES, Mask};
use crate::launch::{Launch, Report};
use crate::memory::{Kind, Memory, Sharing};
use naga::proc::TypeResolution;
use naga::valid::FunctionInfo;
use naga::{
    AddressSpace, Arena, ArraySize, Binding, BuiltIn, Expression, Function, GlobalVariable, Handle, Literal,
    Scalar, Span, TypeInner,
};
use std::collections::HashSet;

/// Scalar after scalar, each with those of all lanes. A pointer has one, which of a memory's scalars it points to.
#[derive(Clone, Default)]
pub struct Value {
    pub cells: Vec<u64>,
    /// Of a pointer: its memory.
    pub memory: usize,
}

/// A function and what naga knows of it.
#[derive(Clone, Copy)]
pub struct Code<'m> {
    pub function: &'m Function,
    pub info: &'m FunctionInfo,
}

/// What a function computes. WGSL has no recursion, so each function needs one.
#[derive(Default)]
pub struct Frame {
    pub values: Vec<Value>,
    pub result: Value,
    /// The memories of its variables.
    pub variables: Vec<usize>,
    is_ready: bool,
}

/// A launch being executed, one workgroup after the other.
pub struct Machine<'m> {
    pub launch: &'m Launch<'m>,
    pub lanes: usize,
    pub memories: Vec<Memory>,
    pub report: Report,
    /// Of the functions, and the entry point's last.
    pub frames: Vec<Frame>,
    /// The memory of each global variable; `usize::MAX` if nothing is bound to it.
    globals: Vec<usize>,
    /// Scalars of each type.
    sizes: Vec<usize>,
    pub workgroup: u32,
    /// Barriers passed so far for workgroup memory and for storage.
    pub epochs: [u32; 2],
    /// What has been reported.
    pub known: HashSet<(usize, Kind, u32, Kind, u32)>,
}

impl<'m> Machine<'m> {
    /// For buffers in `memories`, which `bound` are bound to.
    pub fn new(
        launch: &'m Launch<'m>,
        memories: Vec<Memory>,
        bound: &[(Handle<GlobalVariable>, usize)],
    ) -> Self {
        let module = launch.module;
        let entry =
            module.entry_points.iter().find(|entry| entry.name == launch.entry).expect("the entry point");
        let lanes = entry.workgroup_size.iter().product::<u32>() as usize;
        assert!(lanes <= MOST_LANES, "the interpreter has no workgroups of {lanes}");
        let mut machine = Self {
            launch,
            lanes,
            memories,
            report: Report::default(),
            frames: (0..=module.functions.len()).map(|_| Frame::default()).collect(),
            globals: vec![usize::MAX; module.global_variables.len()],
            sizes: Vec::new(),
            workgroup: 0,
            epochs: [1; 2],
            known: HashSet::new(),
        };
        for (_, ty) in module.types.iter() {
            let size = machine.size_of(&ty.inner);
            machine.sizes.push(size);
        }
        bound.iter().for_each(|(variable, memory)| machine.globals[variable.index()] = *memory);
        for (handle, variable) in module.global_variables.iter() {
            let (copies, sharing) = match variable.space {
                AddressSpace::WorkGroup => (1, Sharing::Workgroup),
                AddressSpace::Private => (machine.lanes, Sharing::Invocation),
                _ => continue,
            };
            assert!(variable.init.is_none(), "the interpreter does not initialise global variables");
            machine.globals[handle.index()] = machine.memories.len();
            let cells = vec![0; machine.sizes[variable.ty.index()] * copies];
            machine.memories.push(Memory::new(variable.name.clone().unwrap_or_default(), cells, sharing));
        }
        machine
    }

    /// Runs all workgroups.
    pub fn run(&mut self) {
        let module = self.launch.module;
        let index = module.entry_points.iter().position(|entry| entry.name == self.launch.entry);
        let index = index.expect("the entry point");
        let entry = &module.entry_points[index];
        let code = Code { function: &entry.function, info: self.launch.info.get_entry_point(index) };
        let [x, y, z] = self.launch.grid;
        for workgroup in 0..x * y * z {
            self.workgroup = workgroup;
            self.epochs = [1; 2];
            let of_workgroup =
                |memory: &&mut Memory| matches!(memory.sharing, Sharing::Workgroup | Sharing::Invocation);
            self.memories.iter_mut().filter(of_workgroup).for_each(Memory::clear);
            let id = [workgroup % x, workgroup / x % y, workgroup / (x * y)];
            let arguments = entry.function.arguments.iter().map(|argument| {
                let Some(Binding::BuiltIn(builtin)) = argument.binding else {
                    panic!("the interpreter does not know the argument {argument:?}")
                };
                Value { cells: self.builtin(builtin, id, entry.workgroup_size), memory: 0 }
            });
            let arguments = arguments.collect();
            self.call(code, module.functions.len(), arguments, Mask::first(self.lanes));
        }
    }

    fn builtin(&self, builtin: BuiltIn, workgroup: [u32; 3], size: [u32; 3]) -> Vec<u64> {
        let subgroup = self.launch.subgroup;
        let place = |lane: usize| {
            let lane = lane as u32;
            [lane % size[0], lane / size[0] % size[1], lane / (size[0] * size[1])]
        };
        let of = |f: &dyn Fn(usize) -> u32| (0..self.lanes).map(|lane| u64::from(f(lane))).collect();
        let three = |f: &dyn Fn(usize, usize) -> u32| {
            (0..3).flat_map(|axis| (0..self.lanes).map(move |lane| u64::from(f(lane, axis)))).collect()
        };
        match builtin {
            BuiltIn::WorkGroupId => three(&|_, axis| workgroup[axis]),
            BuiltIn::NumWorkGroups => three(&|_, axis| self.launch.grid[axis]),
            BuiltIn::LocalInvocationId => three(&|lane, axis| place(lane)[axis]),
            BuiltIn::GlobalInvocationId => {
                three(&|lane, axis| workgroup[axis] * size[axis] + place(lane)[axis])
            }
            BuiltIn::LocalInvocationIndex => of(&|lane| lane as u32),
            BuiltIn::NumSubgroups => of(&|_| self.lanes.div_ceil(subgroup) as u32),
            BuiltIn::SubgroupId => of(&|lane| (lane / subgroup) as u32),
            BuiltIn::SubgroupSize => of(&|_| subgroup as u32),
            BuiltIn::SubgroupInvocationId => of(&|lane| (lane % subgroup) as u32),
            other => panic!("the interpreter does not know {other:?}"),
        }
    }

    /// Makes the constants and variables of a function, once.
    pub fn prepare(&mut self, code: Code<'m>, frame: &mut Frame) {
        if std::mem::replace(&mut frame.is_ready, true) {
            return;
        }
        for (_, variable) in code.function.local_variables.iter() {
            frame.variables.push(self.memories.len());
            let cells = vec![0; self.sizes[variable.ty.index()] * self.lanes];
            let name = variable.name.clone().unwrap_or_default();
            self.memories.push(Memory::new(name, cells, Sharing::Invocation));
        }
        frame.values = vec![Value::default(); code.function.expressions.len()];
        for (handle, expression) in code.function.expressions.iter() {
            let memory = match expression {
                Expression::LocalVariable(variable) => frame.variables[variable.index()],
                Expression::GlobalVariable(variable) => self.globals[variable.index()],
                Expression::Literal(_) | Expression::Constant(_) | Expression::ZeroValue(_) => 0,
                _ => continue,
            };
            let cells = match expression {
                Expression::LocalVariable(_) | Expression::GlobalVariable(_) => vec![0; self.lanes],
                _ => self.repeated(&self.constant(&code.function.expressions, handle)),
            };
            frame.values[handle.index()] = Value { cells, memory };
        }
    }

    /// The same scalars for all lanes.
    pub fn repeated(&self, scalars: &[u64]) -> Vec<u64> {
        scalars.iter().flat_map(|scalar| std::iter::repeat_n(*scalar, self.lanes)).collect()
    }

    /// The scalars of a constant expression.
    pub fn constant(&self, expressions: &Arena<Expression>, handle: Handle<Expression>) -> Vec<u64> {
        let module = self.launch.module;
        match &expressions[handle] {
            Expression::Literal(literal) => vec![match *literal {
                Literal::F32(value) => u64::from(value.to_bits()),
                Literal::F16(value) => u64::from(value.to_f32().to_bits()),
                Literal::U32(value) => u64::from(value),
                Literal::I32(value) => u64::from(value as u32),
                Literal::U64(value) => value,
                Literal::Bool(value) => u64::from(value),
                other => panic!("the interpreter does not know {other:?}"),
            }],
            Expression::Constant(constant) => {
                self.constant(&module.global_expressions, module.constants[*constant].init)
            }
            Expression::ZeroValue(ty) => vec![0; self.sizes[ty.index()]],
            Expression::Compose { components, .. } => {
                components.iter().flat_map(|component| self.constant(expressions, *component)).collect()
            }
            Expression::Splat { size, value } => self.constant(expressions, *value).repeat(*size as usize),
            other => panic!("the interpreter does not know the constant {other:?}"),
        }
    }

    /// Scalars of a type, for one lane.
    pub fn size_of(&self, inner: &TypeInner) -> usize {
        match inner {
            TypeInner::Vector { size, .. } => *size as usize,
            TypeInner::Matrix { columns, rows, .. } => *columns as usize * *rows as usize,
            TypeInner::Array { base, size: ArraySize::Constant(count), .. } => {
                self.sizes[base.index()] * count.get() as usize
            }
            TypeInner::Struct { members, .. } => {
                // Of a buffer whose end is an array without a size only the size of what comes before is asked for.
                members.iter().map(|member| self.sizes[member.ty.index()]).sum()
            }
            TypeInner::CooperativeMatrix { columns, rows, .. } => {
                (*columns as usize * *rows as usize).div_ceil(self.launch.subgroup)
            }
            TypeInner::Array { .. } => 0,
            _ => 1,
        }
    }

    pub fn inner(&self, code: Code<'m>, handle: Handle<Expression>) -> &'m TypeInner {
        code.info[handle].ty.inner_with(&self.launch.module.types)
    }

    pub fn size(&self, code: Code<'m>, handle: Handle<Expression>) -> usize {
        match &code.info[handle].ty {
            TypeResolution::Handle(ty) => self.sizes[ty.index()],
            TypeResolution::Value(inner) => self.size_of(inner),
        }
    }

    pub fn scalar(&self, code: Code<'m>, handle: Handle<Expression>) -> Scalar {
        self.inner(code, handle).scalar().expect("an operand of scalars")
    }

    /// What a pointer points to.
    pub fn pointee(&self, inner: &'m TypeInner) -> &'m TypeInner {
        match inner {
            TypeInner::Pointer { base, .. } => &self.launch.module.types[*base].inner,
            other => other,
        }
    }

    /// Scalars that a load of a pointer yields, and whether it is atomic.
    pub fn loaded(&self, code: Code<'m>, pointer: Handle<Expression>) -> (usize, bool) {
        match self.inner(code, pointer) {
            TypeInner::Pointer { base, .. } => {
                let is_atomic = matches!(self.launch.module.types[*base].inner, TypeInner::Atomic(_));
                (self.sizes[base.index()], is_atomic)
            }
            TypeInner::ValuePointer { size, .. } => (size.map_or(1, |size| size as usize), false),
            other => panic!("{other:?} is no pointer"),
        }
    }

    /// Scalars of an element, and how many elements there are; `None` if the type does not say.
    pub fn elements(&self, inner: &'m TypeInner) -> (usize, Option<usize>) {
        match self.pointee(inner) {
            TypeInner::Array { base, size, .. } => {
                let count = match size {
                    ArraySize::Constant(count) => Some(count.get() as usize),
                    _ => None,
                };
                (self.sizes[base.index()], count)
            }
            TypeInner::Vector { size, .. } | TypeInner::ValuePointer { size: Some(size), .. } => {
                (1, Some(*size as usize))
            }
            TypeInner::Matrix { columns, rows, .. } => (*rows as usize, Some(*columns as usize)),
            other => panic!("the interpreter cannot index {other:?}"),
        }
    }

    /// Scalars before element or member `index`.
    pub fn place(&self, inner: &'m TypeInner, index: usize) -> usize {
        match self.pointee(inner) {
            TypeInner::Struct { members, .. } => {
                members[..index].iter().map(|member| self.sizes[member.ty.index()]).sum()
            }
            _ => self.elements(inner).0 * index,
        }
    }
}

/// Where something is in the source.
pub fn site(span: Span) -> u32 {
    span.to_range().map_or(0, |range| range.start as u32)
}
