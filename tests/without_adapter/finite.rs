//! Whether a value is finite is tested on words as they were loaded, before any arithmetic (`shaders/lib/bits.wgsl`
//! says why): a compiler may assume that arithmetic yields neither NaN nor infinity, and folds a test of its result.
//!
//! A test is a comparison of a float's bits without the sign, or with a constant whose exponent is all ones; and that
//! of a float with itself, which is folded in any case. Comparisons with bits of finite numbers, with the sign bit
//! alone and among keys with the order of floats are none. A variable counts as computed, since what it holds may come
//! from several places.

use crate::statements::statements;
use gristmill::kernels::{Composed, Kernel};
use naga::valid::{Capabilities, FunctionInfo, ModuleInfo, ValidationFlags, Validator};
use naga::{
    AddressSpace, BinaryOperator, Expression, Function, Handle, Literal, Module, RelationalFunction,
    ScalarKind, Span, Statement, TypeInner,
};
use std::collections::{BTreeSet, HashMap};

/// Panics if a variant tests what it has computed.
pub fn check(kernel: &Kernel, composed: &Composed) {
    let faults = faults_of(&composed.module, &composed.info, &composed.wgsl);
    assert!(faults.is_empty(), "{kernel}: {}", faults.into_iter().collect::<Vec<_>>().join("; "));
}

#[test]
fn tests_of_results_are_found() {
    let faults = |wgsl: &str| {
        let module = naga::front::wgsl::parse_str(wgsl).expect("WGSL");
        let info = Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&module);
        faults_of(&module, &info.expect("a valid module"), wgsl)
    };
    for (wgsl, line) in [
        // What grad_norm did once: LLVM 22 folds it to `false` where products are fast (a loaded value survives).
        (include_str!("finite/product.wgsl"), "bits(g * unscale)"),
        (include_str!("finite/magnitude.wgsl"), "> 0x7f800000u"),
        (include_str!("finite/variable.wgsl"), "is_finite(value)"),
        (include_str!("finite/result_of_a_call.wgsl"), "is_beyond(word_of("),
        (include_str!("finite/shifted.wgsl"), "== 0xffu"),
        (include_str!("finite/itself.wgsl"), "g != g"),
    ] {
        let number = wgsl.lines().position(|text| text.contains(line)).expect("a test") + 1;
        assert_eq!(
            faults(wgsl),
            BTreeSet::from([format!("line {number} tests what was computed")]),
            "{wgsl}"
        );
    }
    assert_eq!(faults(include_str!("finite/accepted.wgsl")), BTreeSet::new());
}

/// The lines of a module that test what was computed.
fn faults_of(module: &Module, info: &ModuleInfo, source: &str) -> BTreeSet<String> {
    let mut summaries = HashMap::new();
    let mut faults = BTreeSet::new();
    for (handle, function) in module.functions.iter() {
        let walk = Walk::run(module, function, &info[handle], &summaries, source, Origins::argument);
        faults.extend(walk.faults);
        summaries.insert(handle, walk.summary);
    }
    for (index, entry) in module.entry_points.iter().enumerate() {
        let types = info.get_entry_point(index);
        let walk = Walk::run(module, &entry.function, types, &summaries, source, |_| Origins::LOADED);
        faults.extend(walk.faults);
    }
    faults
}

/// Where the bits of a value come from: bit i stands for argument i of the function.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Origins(u64);

impl Origins {
    /// From constants and memory alone.
    const LOADED: Self = Self(0);
    /// From arithmetic on floats.
    const COMPUTED: Self = Self(1 << 63);

    fn argument(index: usize) -> Self {
        Self(1 << index)
    }

    fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The same of a callee that is called with `arguments`.
    fn at_call(self, arguments: &[Self]) -> Self {
        let own = Self(self.0 & Self::COMPUTED.0);
        let used = arguments.iter().enumerate().filter(|(index, _)| self.0 & (1 << index) != 0);
        used.fold(own, |origins, (_, argument)| origins.and(*argument))
    }
}

/// What the callers of a function need to know.
#[derive(Clone, Copy, Default, PartialEq)]
struct Summary {
    result: Origins,
    /// The arguments that it tests.
    tested: Origins,
}

/// The analysis of one function.
struct Walk<'m> {
    module: &'m Module,
    function: &'m Function,
    types: &'m FunctionInfo,
    summaries: &'m HashMap<Handle<Function>, Summary>,
    source: &'m str,
    /// Of each expression that is no pointer.
    values: Vec<Origins>,
    /// Of what is stored to each local variable.
    variables: Vec<Origins>,
    /// Of expressions that a statement computes.
    results: HashMap<Handle<Expression>, Origins>,
    summary: Summary,
    faults: BTreeSet<String>,
}

impl<'m> Walk<'m> {
    /// Walks the body until nothing changes: variables carry values from one iteration of a loop to the next.
    fn run(
        module: &'m Module,
        function: &'m Function,
        types: &'m FunctionInfo,
        summaries: &'m HashMap<Handle<Function>, Summary>,
        source: &'m str,
        argument: impl Fn(usize) -> Origins,
    ) -> Self {
        let mut walk = Self {
            module,
            function,
            types,
            summaries,
            source,
            values: vec![Origins::LOADED; function.expressions.len()],
            variables: vec![Origins::LOADED; function.local_variables.len()],
            results: HashMap::new(),
            summary: Summary::default(),
            faults: BTreeSet::new(),
        };
        for (handle, variable) in function.local_variables.iter() {
            walk.variables[handle.index()] = variable.init.map_or(Origins::LOADED, |init| walk.of(init));
        }
        loop {
            let before = walk.state();
            for (handle, expression) in function.expressions.iter() {
                walk.values[handle.index()] = walk.value(handle, expression, &argument);
                walk.comparison(handle, expression);
            }
            walk.walk();
            if before == walk.state() {
                return walk;
            }
        }
    }

    fn state(&self) -> (Vec<Origins>, Vec<Origins>, HashMap<Handle<Expression>, Origins>, Summary) {
        (self.values.clone(), self.variables.clone(), self.results.clone(), self.summary)
    }

    fn of(&self, handle: Handle<Expression>) -> Origins {
        self.values[handle.index()]
    }

    fn all(&self, handles: &[Handle<Expression>]) -> Origins {
        handles.iter().fold(Origins::LOADED, |origins, handle| origins.and(self.of(*handle)))
    }

    fn kind(&self, handle: Handle<Expression>) -> Option<ScalarKind> {
        self.types[handle].ty.inner_with(&self.module.types).scalar_kind()
    }

    fn value(
        &self,
        handle: Handle<Expression>,
        expression: &Expression,
        argument: &impl Fn(usize) -> Origins,
    ) -> Origins {
        let bits = match *expression {
            Expression::FunctionArgument(index) => return argument(index as usize),
            Expression::Load { pointer } => return self.loaded(pointer),
            Expression::Access { base: value, .. }
            | Expression::AccessIndex { base: value, .. }
            | Expression::Splat { value, .. }
            | Expression::Swizzle { vector: value, .. }
            | Expression::As { expr: value, convert: None, .. } => return self.of(value),
            Expression::Compose { ref components, .. } => return self.all(components),
            Expression::Literal(_) | Expression::Constant(_) | Expression::ZeroValue(_) => {
                return Origins::LOADED;
            }
            Expression::Binary { left, right, .. } => self.all(&[left, right]),
            Expression::Unary { expr, .. } => self.of(expr),
            Expression::Select { accept, reject, .. } => self.all(&[accept, reject]),
            Expression::Math { arg, arg1, arg2, arg3, .. } => {
                [Some(arg), arg1, arg2, arg3].into_iter().flatten().fold(Origins::LOADED, |origins, each| {
                    let is_float = self.kind(each) == Some(ScalarKind::Float);
                    origins.and(if is_float { Origins::COMPUTED } else { self.of(each) })
                })
            }
            _ => self.results.get(&handle).copied().unwrap_or_default(),
        };
        match self.kind(handle) {
            Some(ScalarKind::Float) => Origins::COMPUTED,
            Some(ScalarKind::Bool) => Origins::LOADED,
            _ => bits,
        }
    }

    /// Of what is read through a pointer.
    fn loaded(&self, pointer: Handle<Expression>) -> Origins {
        let stored = match self.function.expressions[self.root(pointer)] {
            Expression::GlobalVariable(variable) => match self.module.global_variables[variable].space {
                AddressSpace::Private => Origins::COMPUTED,
                _ => return Origins::LOADED,
            },
            Expression::LocalVariable(variable) => self.variables[variable.index()],
            _ => Origins::COMPUTED, // of an argument that is a pointer
        };
        match self.types[pointer].ty.inner_with(&self.module.types).pointer_base_type() {
            Some(base) if base.inner_with(&self.module.types).scalar_kind() != Some(ScalarKind::Float) => {
                stored
            }
            _ => Origins::COMPUTED,
        }
    }

    /// The variable or argument that a pointer leads to.
    fn root(&self, pointer: Handle<Expression>) -> Handle<Expression> {
        match self.function.expressions[pointer] {
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => self.root(base),
            _ => pointer,
        }
    }

    /// Records what an expression tests, if it does.
    fn comparison(&mut self, handle: Handle<Expression>, expression: &Expression) {
        let span = self.function.expressions.get_span(handle);
        match *expression {
            Expression::Binary { op, left, right } if is_comparison(op) => match self.kind(left) {
                Some(ScalarKind::Float) if left == right => self.test(Origins::COMPUTED, span),
                Some(ScalarKind::Uint | ScalarKind::Sint) => {
                    for (bits, other) in [(left, right), (right, left)] {
                        if self.is_test(bits, other) {
                            self.test(self.of(bits), span);
                        }
                    }
                }
                _ => {}
            },
            Expression::Relational { fun: RelationalFunction::IsNan | RelationalFunction::IsInf, .. } => {
                self.test(Origins::COMPUTED, span);
            }
            _ => {}
        }
    }

    /// Whether comparing `bits` with `other` may tell if a float is finite.
    fn is_test(&self, bits: Handle<Expression>, other: Handle<Expression>) -> bool {
        const SIGN: u32 = 0x8000_0000;
        const EXPONENT: u32 = 0x7f80_0000;
        let (is_shifted, has_no_sign) = self.form(bits);
        match self.constant(other) {
            _ if is_shifted => true,
            Some(bound) => bound != SIGN && bound & !SIGN >= EXPONENT - 1,
            None => has_no_sign,
        }
    }

    /// Whether bits were shifted right, and whether they are without the sign.
    fn form(&self, bits: Handle<Expression>) -> (bool, bool) {
        match self.function.expressions[bits] {
            Expression::Access { base: value, .. }
            | Expression::AccessIndex { base: value, .. }
            | Expression::Splat { value, .. }
            | Expression::Swizzle { vector: value, .. } => self.form(value),
            Expression::Binary { op: BinaryOperator::ShiftRight, .. } => (true, false),
            Expression::Binary { op: BinaryOperator::And, left, right } => {
                let mask = self.constant(left).or_else(|| self.constant(right)).unwrap_or(0);
                let (left, right) = (self.form(left), self.form(right));
                (left.0 || right.0, mask & 0xff80_0000 == 0x7f80_0000)
            }
            _ => (false, false),
        }
    }

    /// The constant that an integer, or each component of a vector, is.
    fn constant(&self, handle: Handle<Expression>) -> Option<u32> {
        match self.function.expressions[handle] {
            Expression::Literal(Literal::U32(value)) => Some(value),
            Expression::Literal(Literal::I32(value)) => Some(value as u32),
            Expression::Splat { value, .. } => self.constant(value),
            Expression::Compose { ref components, .. } => {
                let first = self.constant(*components.first()?)?;
                components.iter().all(|each| self.constant(*each) == Some(first)).then_some(first)
            }
            Expression::Constant(constant) => {
                match self.module.global_expressions[self.module.constants[constant].init] {
                    Expression::Literal(Literal::U32(value)) => Some(value),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn test(&mut self, tested: Origins, at: Span) {
        self.summary.tested = self.summary.tested.and(Origins(tested.0 & !Origins::COMPUTED.0));
        if tested.0 & Origins::COMPUTED.0 != 0 {
            let line = at.location(self.source).line_number;
            self.faults.insert(format!("line {line} tests what was computed"));
        }
    }

    fn walk(&mut self) {
        for (statement, span) in statements(&self.function.body) {
            match statement {
                Statement::Return { value: Some(value) } => {
                    self.summary.result = self.summary.result.and(self.of(*value));
                }
                Statement::Store { pointer, value } => self.store(*pointer, self.of(*value)),
                Statement::SubgroupGather { argument, result, .. }
                | Statement::SubgroupCollectiveOperation { argument, result, .. } => {
                    self.results.insert(*result, self.of(*argument));
                }
                Statement::Call { function, arguments, result } => {
                    let summary = self.summaries[function];
                    let of_arguments: Vec<Origins> = arguments.iter().map(|each| self.of(*each)).collect();
                    self.test(summary.tested.at_call(&of_arguments), span);
                    if let Some(result) = result {
                        self.results.insert(*result, summary.result.at_call(&of_arguments));
                    }
                    // The callee may store anything through a pointer.
                    arguments.iter().for_each(|argument| {
                        let is_pointer = matches!(
                            self.types[*argument].ty.inner_with(&self.module.types),
                            TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. }
                        );
                        if is_pointer {
                            self.store(*argument, Origins::COMPUTED);
                        }
                    });
                }
                _ => {}
            }
        }
    }

    fn store(&mut self, pointer: Handle<Expression>, stored: Origins) {
        if let Expression::LocalVariable(variable) = self.function.expressions[self.root(pointer)] {
            let of_variable = &mut self.variables[variable.index()];
            *of_variable = of_variable.and(stored);
        }
    }
}

fn is_comparison(op: BinaryOperator) -> bool {
    use BinaryOperator::{Equal, Greater, GreaterEqual, Less, LessEqual, NotEqual};
    matches!(op, Equal | NotEqual | Less | LessEqual | Greater | GreaterEqual)
}
