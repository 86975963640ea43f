//! One dispatch: what goes in, and what comes out.

use crate::machine::Machine;
use crate::memory::{self, Memory, Sharing, layout};
use naga::valid::ModuleInfo;
use naga::{
    AddressSpace, Arena, Block, Expression, Function, GlobalVariable, Handle, Module, Statement,
    StorageAccess,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A dispatch of an entry point.
pub struct Launch<'a> {
    pub module: &'a Module,
    /// naga's analysis of the module.
    pub info: &'a ModuleInfo,
    /// The text of the module, which faults quote.
    pub source: &'a str,
    pub entry: &'a str,
    /// Workgroups along x, y and z.
    pub grid: [u32; 3],
    /// Invocations of a subgroup.
    pub subgroup: usize,
    pub bindings: &'a [Bound],
}

/// What a variable is bound to. Variables of a range that one of them writes share its scalars, and race on them.
#[derive(Clone, Debug)]
pub struct Bound {
    pub variable: Handle<GlobalVariable>,
    /// Index of the buffer.
    pub buffer: usize,
    /// The bytes of the buffer.
    pub range: Range<usize>,
}

/// What a dispatch did.
#[derive(Debug, Default)]
pub struct Report {
    /// What is wrong with it, each a line.
    pub faults: BTreeSet<String>,
    /// The barriers that it passed, by where they are in the text.
    pub barriers: BTreeSet<u32>,
    /// How often invocations accessed scalars that they share.
    pub accesses: u64,
}

impl Launch<'_> {
    /// Executes the dispatch on `buffers`.
    ///
    /// # Panics
    /// On what the interpreter does not know, and on a loop without an end.
    pub fn run(&self, buffers: &mut [Vec<u8>]) -> Report {
        let mut bound: Vec<(&Bound, usize)> = Vec::new();
        let mut memories: Vec<Memory> = Vec::new();
        for each in self.bindings {
            let known = bound.iter().find(|(other, memory)| {
                let is_same = (other.buffer, other.range.start) == (each.buffer, each.range.start);
                is_same && memories[*memory].sharing == Sharing::Grid
            });
            let memory = known.map(|(_, memory)| *memory).unwrap_or_else(|| {
                memories.push(self.memory_of(each, buffers));
                memories.len() - 1
            });
            bound.push((each, memory));
        }
        let of_globals: Vec<_> = bound.iter().map(|(each, memory)| (each.variable, *memory)).collect();
        let mut machine = Machine::new(self, memories, &of_globals);
        machine.run();
        for (each, memory) in bound {
            let memory = &machine.memories[memory];
            if memory.sharing == Sharing::Grid {
                let bytes = &mut buffers[each.buffer][each.range.clone()];
                let scalars =
                    layout(self.module, self.module.global_variables[each.variable].ty, bytes.len() as u32);
                for ((at, scalar), cell) in scalars.iter().zip(&memory.cells) {
                    memory::write(*scalar, *cell, &mut bytes[*at as usize..]);
                }
            }
        }
        machine.report
    }

    fn memory_of(&self, bound: &Bound, buffers: &[Vec<u8>]) -> Memory {
        let variable = |bound: &Bound| &self.module.global_variables[bound.variable];
        let is_written = |other: &Bound| {
            let AddressSpace::Storage { access } = variable(other).space else { return false };
            let is_same = (other.buffer, other.range.start) == (bound.buffer, bound.range.start);
            is_same && access.contains(StorageAccess::STORE)
        };
        let sharing = if self.bindings.iter().any(is_written) { Sharing::Grid } else { Sharing::ReadOnly };
        let bytes = &buffers[bound.buffer][bound.range.clone()];
        let scalars = layout(self.module, variable(bound).ty, bytes.len() as u32);
        let cells = scalars.iter().map(|(at, scalar)| memory::read(*scalar, &bytes[*at as usize..]));
        Memory::new(variable(bound).name.clone().unwrap_or_default(), cells.collect(), sharing)
    }
}

/// The barriers of a module, by where they are in its text: their function, and their number in it. A uniform load is a
/// barrier on both sides.
pub fn barriers(module: &Module) -> BTreeMap<u32, (String, usize)> {
    let mut module = module.clone();
    let mut found: BTreeMap<u32, (String, usize)> = BTreeMap::new();
    each_barrier(&mut module, &mut |function, _, _, site| {
        let number = found.values().filter(|(other, _)| other == function).count();
        found.insert(site, (function.to_string(), number));
    });
    found
}

/// The module without the barrier at `site`, which of a uniform load leaves a load.
pub fn without_barrier(module: &Module, site: u32) -> Module {
    let mut module = module.clone();
    each_barrier(&mut module, &mut |_, expressions, statement, at| {
        if at != site {
            return;
        }
        *statement = match *statement {
            Statement::WorkGroupUniformLoad { pointer, result } => {
                expressions[result] = Expression::Load { pointer };
                Statement::Emit(naga::Range::new_from_bounds(result, result))
            }
            _ => Statement::Block(Block::new()),
        };
    });
    module
}

/// Acts on a barrier with the name and the expressions of its function, and its place in the text.
type Act<'a> = &'a mut dyn FnMut(&str, &mut Arena<Expression>, &mut Statement, u32);

fn each_barrier(module: &mut Module, act: Act<'_>) {
    let functions = module.functions.iter_mut().map(|(_, function)| function);
    let entries = module.entry_points.iter_mut().map(|entry| {
        entry.function.name = Some(entry.name.clone());
        &mut entry.function
    });
    for Function { name, body, expressions, .. } in functions.chain(entries) {
        let name = name.clone().unwrap_or_default();
        barriers_of(body, &mut |statement, site| act(&name, expressions, statement, site));
    }
}

fn barriers_of(block: &mut Block, act: &mut dyn FnMut(&mut Statement, u32)) {
    for (statement, span) in block.span_iter_mut() {
        match statement {
            Statement::ControlBarrier(_) | Statement::WorkGroupUniformLoad { .. } => {
                let site = span.and_then(|span| span.to_range()).map_or(0, |range| range.start as u32);
                act(statement, site);
            }
            Statement::Block(inner) => barriers_of(inner, act),
            Statement::If { accept, reject, .. } => {
                [accept, reject].into_iter().for_each(|b| barriers_of(b, act))
            }
            Statement::Switch { cases, .. } => {
                cases.iter_mut().for_each(|case| barriers_of(&mut case.body, act))
            }
            Statement::Loop { body, continuing, .. } => {
                [body, continuing].into_iter().for_each(|b| barriers_of(b, act));
            }
            _ => {}
        }
    }
}
