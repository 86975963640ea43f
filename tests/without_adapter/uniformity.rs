//! WGSL's uniformity analysis, which browsers apply and naga does not: all invocations of a workgroup reach a barrier
//! together, and a compiler can see it.
//!
//! The rules are those of the WGSL specification (section "Uniformity"), with one simplification that can only refuse
//! more: a variable counts as non-uniform everywhere if any value stored to it is.

use gristmill::kernels::{Composed, Kernel};
use naga::{
    AddressSpace, Binding, Block, BuiltIn, Expression, Function, Handle, Module, Span, Statement,
    StorageAccess,
};
use std::collections::{BTreeSet, HashMap};
use std::ops::{BitOr, BitOrAssign};

/// Panics unless every barrier of a variant is in uniform control flow.
pub fn check(kernel: &Kernel, composed: &Composed) {
    let faults = faults_of(&composed.module, &composed.wgsl);
    assert!(faults.is_empty(), "{kernel}: {}", faults.into_iter().collect::<Vec<_>>().join("; "));
}

#[test]
fn the_analysis_refuses_what_browsers_refuse() {
    let faults = |wgsl: &str| faults_of(&naga::front::wgsl::parse_str(wgsl).expect("WGSL"), wgsl);
    for (wgsl, barrier) in [
        (include_str!("uniformity/lane_in_a_struct.wgsl"), "workgroupBarrier"),
        (include_str!("uniformity/private_variable.wgsl"), "workgroupBarrier"),
        (include_str!("uniformity/barrier_of_a_callee.wgsl"), "values[lane] = share"),
        (include_str!("uniformity/return_in_a_loop.wgsl"), "workgroupBarrier"),
    ] {
        let line = wgsl.lines().position(|line| line.contains(barrier)).expect("a barrier") + 1;
        assert_eq!(faults(wgsl), BTreeSet::from([format!("non-uniform at line {line}")]), "{wgsl}");
    }
    assert_eq!(faults(include_str!("uniformity/accepted.wgsl")), BTreeSet::new());
}

/// The barriers of a module, and the calls that lead to one, that not all invocations may reach together.
fn faults_of(module: &Module, source: &str) -> BTreeSet<String> {
    let mut summaries = HashMap::new();
    let mut faults = BTreeSet::new();
    for (handle, function) in module.functions.iter() {
        let arguments = (0..function.arguments.len()).map(Taint::argument).collect();
        let mut walk = Walk::new(module, function, arguments, &summaries, source);
        walk.run(Taint::CALLER);
        faults.append(&mut walk.faults);
        let summary = walk.summary;
        summaries.insert(handle, summary);
    }
    for entry in &module.entry_points {
        let arguments = entry.function.arguments.iter().map(|a| builtin(a.binding.as_ref())).collect();
        let mut walk = Walk::new(module, &entry.function, arguments, &summaries, source);
        walk.run(Taint::NONE);
        faults.append(&mut walk.faults);
    }
    faults
}

fn builtin(binding: Option<&Binding>) -> Taint {
    match binding {
        Some(Binding::BuiltIn(BuiltIn::WorkGroupId | BuiltIn::NumWorkGroups)) => Taint::NONE,
        _ => Taint::LANE,
    }
}

/// What a value or control flow depends on: bit i stands for argument i of the function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Taint(u64);

impl Taint {
    const NONE: Self = Self(0);
    /// The invocation: non-uniform.
    const LANE: Self = Self(1 << 63);
    /// Control flow where the function is called.
    const CALLER: Self = Self(1 << 62);

    fn argument(index: usize) -> Self {
        assert!(index < 62, "a function has more arguments than this analysis can track");
        Self(1 << index)
    }

    fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The same of a callee, where it is called with `arguments` in control flow `flow`.
    fn at_call(self, arguments: &[Self], flow: Self) -> Self {
        let mut taint = Self(self.0 & Self::LANE.0);
        if self.has(Self::CALLER) {
            taint |= flow;
        }
        let used = arguments.iter().enumerate().filter(|(index, _)| self.has(Self::argument(*index)));
        used.for_each(|(_, argument)| taint |= *argument);
        taint
    }
}

impl BitOr for Taint {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Taint {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// What the callers of a function need to know.
#[derive(Clone, Copy, Default, PartialEq)]
struct Summary {
    /// Control flow at its barriers; [`Taint::NONE`] if it has none.
    barriers: Taint,
    result: Taint,
}

/// How control leaves a block other than at its end.
#[derive(Clone, Copy, Default)]
struct Exits {
    breaks: bool,
    continues: bool,
    returns: bool,
}

impl Exits {
    fn add(&mut self, other: Self) {
        self.breaks |= other.breaks;
        self.continues |= other.continues;
        self.returns |= other.returns;
    }

    fn any(self) -> bool {
        self.breaks || self.continues || self.returns
    }
}

/// The analysis of one function.
struct Walk<'m> {
    module: &'m Module,
    function: &'m Function,
    arguments: Vec<Taint>,
    summaries: &'m HashMap<Handle<Function>, Summary>,
    source: &'m str,
    /// Of each expression; of a pointer: of what it points to.
    values: Vec<Taint>,
    /// Of each local variable.
    variables: Vec<Taint>,
    /// Of expressions that a statement computes.
    computed: HashMap<Handle<Expression>, Taint>,
    summary: Summary,
    faults: BTreeSet<String>,
}

impl<'m> Walk<'m> {
    fn new(
        module: &'m Module,
        function: &'m Function,
        arguments: Vec<Taint>,
        summaries: &'m HashMap<Handle<Function>, Summary>,
        source: &'m str,
    ) -> Self {
        Self {
            module,
            function,
            arguments,
            summaries,
            source,
            values: vec![Taint::NONE; function.expressions.len()],
            variables: vec![Taint::NONE; function.local_variables.len()],
            computed: HashMap::new(),
            summary: Summary::default(),
            faults: BTreeSet::new(),
        }
    }

    /// Walks the body until nothing changes: loops carry values from one iteration to the next.
    fn run(&mut self, flow: Taint) {
        let function = self.function;
        loop {
            let before = (self.values.clone(), self.variables.clone(), self.computed.clone(), self.summary);
            for (handle, expression) in function.expressions.iter() {
                self.values[handle.index()] = self.value(handle, expression);
            }
            self.block(&function.body, flow);
            if before == (self.values.clone(), self.variables.clone(), self.computed.clone(), self.summary) {
                return;
            }
        }
    }

    fn of(&self, handle: Handle<Expression>) -> Taint {
        self.values[handle.index()]
    }

    fn all(&self, handles: impl IntoIterator<Item = Handle<Expression>>) -> Taint {
        handles.into_iter().fold(Taint::NONE, |taint, handle| taint | self.of(handle))
    }

    fn value(&self, handle: Handle<Expression>, expression: &Expression) -> Taint {
        match expression {
            Expression::Literal(_)
            | Expression::Constant(_)
            | Expression::ZeroValue(_)
            | Expression::ArrayLength(_) => Taint::NONE,
            Expression::FunctionArgument(index) => self.arguments[*index as usize],
            Expression::LocalVariable(variable) => self.variables[variable.index()],
            Expression::GlobalVariable(variable) => match self.module.global_variables[*variable].space {
                AddressSpace::Uniform => Taint::NONE,
                AddressSpace::Storage { access } if !access.contains(StorageAccess::STORE) => Taint::NONE,
                _ => Taint::LANE,
            },
            Expression::Compose { components, .. } => self.all(components.iter().copied()),
            Expression::Access { base, index } => self.all([*base, *index]),
            Expression::AccessIndex { base: value, .. }
            | Expression::Splat { value, .. }
            | Expression::Swizzle { vector: value, .. }
            | Expression::Load { pointer: value }
            | Expression::Unary { expr: value, .. }
            | Expression::Relational { argument: value, .. }
            | Expression::As { expr: value, .. } => self.of(*value),
            Expression::Binary { left, right, .. } => self.all([*left, *right]),
            Expression::Select { condition, accept, reject } => self.all([*condition, *accept, *reject]),
            Expression::Math { arg, arg1, arg2, arg3, .. } => {
                self.all([Some(*arg), *arg1, *arg2, *arg3].into_iter().flatten())
            }
            Expression::CallResult(_) | Expression::WorkGroupUniformLoadResult { .. } => {
                self.computed.get(&handle).copied().unwrap_or_default()
            }
            _ => Taint::LANE,
        }
    }

    /// Analyses a block that is entered in control flow `flow`. Returns the control flow at its end, and how else it is
    /// left.
    fn block(&mut self, block: &Block, mut flow: Taint) -> (Taint, Exits) {
        let mut exits = Exits::default();
        for (statement, span) in block.span_iter() {
            let (end, left) = self.statement(statement, *span, flow);
            flow = end;
            exits.add(left);
        }
        (flow, exits)
    }

    fn statement(&mut self, statement: &Statement, span: Span, flow: Taint) -> (Taint, Exits) {
        let mut exits = Exits::default();
        match statement {
            Statement::Block(block) => return self.block(block, flow),
            Statement::If { condition, accept, reject } => {
                return self.branches(&[accept, reject], flow, self.of(*condition));
            }
            Statement::Switch { selector, cases } => {
                let blocks: Vec<&Block> = cases.iter().map(|case| &case.body).collect();
                let (end, left) = self.branches(&blocks, flow, self.of(*selector));
                return (end, Exits { breaks: false, ..left });
            }
            Statement::Loop { body, continuing, break_if } => {
                return self.repeated(body, continuing, *break_if, flow);
            }
            Statement::Break => exits.breaks = true,
            Statement::Continue => exits.continues = true,
            Statement::Return { value } => {
                exits.returns = true;
                self.summary.result |= flow | self.all(*value);
            }
            Statement::ControlBarrier(_) => self.barrier(flow, span),
            Statement::CooperativeStore { .. } => self.barrier(flow, span), // all invocations of a subgroup take part
            Statement::WorkGroupUniformLoad { pointer, result } => {
                self.barrier(flow | self.indices(*pointer), span);
                self.computed.insert(*result, Taint::NONE);
            }
            Statement::Store { pointer, value } => {
                let stored = flow | self.indices(*pointer) | self.of(*value);
                self.taint_variable(*pointer, stored);
            }
            Statement::Call { function, arguments, result } => {
                let summary = self.summaries[function];
                let taints: Vec<Taint> = arguments.iter().map(|argument| self.of(*argument)).collect();
                if summary.barriers != Taint::NONE {
                    self.barrier(summary.barriers.at_call(&taints, flow), span);
                }
                if let Some(result) = result {
                    self.computed.insert(*result, summary.result.at_call(&taints, flow));
                }
                // The callee may store anything through a pointer.
                arguments.iter().for_each(|argument| self.taint_variable(*argument, Taint::LANE));
            }
            Statement::Emit(_) | Statement::MemoryBarrier(_) | Statement::Atomic { .. } => {}
            Statement::SubgroupBallot { .. }
            | Statement::SubgroupGather { .. }
            | Statement::SubgroupCollectiveOperation { .. } => {} // their results are non-uniform
            other => panic!("the analysis does not know {other:?}"),
        }
        (flow, exits)
    }

    /// Alternatives, of which `condition` selects one. Control flow joins again after them if none is left otherwise.
    fn branches(&mut self, blocks: &[&Block], flow: Taint, condition: Taint) -> (Taint, Exits) {
        let (mut end, mut exits) = (flow, Exits::default());
        for block in blocks {
            let (flow, left) = self.block(block, flow | condition);
            end |= flow;
            exits.add(left);
        }
        (if exits.any() { end } else { flow }, exits)
    }

    fn repeated(
        &mut self,
        body: &Block,
        continuing: &Block,
        break_if: Option<Handle<Expression>>,
        flow: Taint,
    ) -> (Taint, Exits) {
        let mut inner = flow;
        loop {
            let (end, left) = self.block(body, inner);
            let (end, _) = self.block(continuing, end);
            let next = inner | end | self.all(break_if);
            if next == inner {
                let end = if left.returns { inner } else { flow };
                return (end, Exits { returns: left.returns, ..Exits::default() });
            }
            inner = next;
        }
    }

    fn barrier(&mut self, flow: Taint, span: Span) {
        self.summary.barriers |= flow | Taint::CALLER;
        if flow.has(Taint::LANE) {
            self.faults.insert(format!("non-uniform at line {}", span.location(self.source).line_number));
        }
    }

    /// The indices that lead to what `pointer` points to.
    fn indices(&self, pointer: Handle<Expression>) -> Taint {
        match self.function.expressions[pointer] {
            Expression::Access { base, index } => self.indices(base) | self.of(index),
            Expression::AccessIndex { base, .. } => self.indices(base),
            _ => Taint::NONE,
        }
    }

    /// Adds `taint` to the local variable that `pointer` leads to, if it does.
    fn taint_variable(&mut self, pointer: Handle<Expression>, taint: Taint) {
        match self.function.expressions[pointer] {
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => {
                self.taint_variable(base, taint);
            }
            Expression::LocalVariable(variable) => self.variables[variable.index()] |= taint,
            _ => {}
        }
    }
}
