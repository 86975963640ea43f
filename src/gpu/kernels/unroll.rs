//! Unrolls loops whose counter indexes an array of the invocation, for compilers that may leave them rolled.
//!
//! For Metal and DX12 naga writes every loop as `while (true)` with a `break` and a flag for the first pass. A compiler
//! that cannot tell how often such a loop runs does not unroll it, and an array that the loop indexes, such as the sums
//! of a matrix product, goes to memory. Vulkan's compilers unroll the loops that naga gives them, so modules for Vulkan
//! stay as they are.
//!
//! A loop is unrolled if the values of its counter follow from constants, from first to last, and if the counter
//! indexes an array or a vector that only this invocation sees. The counter becomes a constant in each copy, and
//! expressions that follow from it are evaluated here, so that the text names each element. The loop's computations and
//! their order stay the same.

use naga::{
    AddressSpace, Arena, BinaryOperator, Block, Constant, Expression, Function, Handle, Literal,
    LocalVariable, MathFunction, Module, Range, Span, Statement,
};
use std::collections::HashMap;

/// Most passes of a loop that is unrolled; registers hold no longer arrays.
const MOST_PASSES: usize = 64;

/// Unrolls the loops of all functions of `module`. It must be validated, and stays valid.
pub fn unroll(module: &mut Module) {
    let Module { constants, global_expressions, global_variables, functions, entry_points, .. } = module;
    let globals = Globals { constants, expressions: global_expressions, variables: global_variables };
    let entries = entry_points.iter_mut().map(|entry| &mut entry.function);
    for function in functions.iter_mut().map(|(_, function)| function).chain(entries) {
        let mut body = std::mem::take(&mut function.body);
        let mut unrolling = Unrolling { globals: &globals, function, stores: HashMap::new() };
        unrolling.count_stores(&body);
        unrolling.block(&mut body);
        function.body = body;
    }
}

/// The items outside of a function that its expressions may refer to.
struct Globals<'m> {
    constants: &'m Arena<Constant>,
    expressions: &'m Arena<Expression>,
    variables: &'m Arena<naga::GlobalVariable>,
}

/// A variable, and its value in one pass of a loop.
#[derive(Clone, Copy)]
struct Counter {
    variable: Handle<LocalVariable>,
    value: Literal,
}

/// The function whose loops are unrolled, without its body.
struct Unrolling<'m> {
    globals: &'m Globals<'m>,
    function: &'m mut Function,
    /// How many statements of the function change a variable; its initial value does not count.
    stores: HashMap<Handle<LocalVariable>, usize>,
}

impl Unrolling<'_> {
    fn count_stores(&mut self, block: &Block) {
        for statement in block.iter() {
            let pointers = match statement {
                Statement::Store { pointer, .. } => std::slice::from_ref(pointer),
                Statement::Call { arguments, .. } => arguments,
                _ => &[],
            };
            for variable in pointers.iter().filter_map(|pointer| self.variable(*pointer)).collect::<Vec<_>>()
            {
                *self.stores.entry(variable).or_default() += 1;
            }
            match statement {
                Statement::Block(inner) => self.count_stores(inner),
                Statement::If { accept: one, reject: other, .. }
                | Statement::Loop { body: one, continuing: other, .. } => {
                    self.count_stores(one);
                    self.count_stores(other);
                }
                Statement::Switch { cases, .. } => {
                    cases.iter().for_each(|case| self.count_stores(&case.body))
                }
                _ => {}
            }
        }
    }

    /// Unrolls the loops in `block`, inner ones first.
    fn block(&mut self, block: &mut Block) {
        let mut done = Block::with_capacity(block.len());
        for (mut statement, span) in std::mem::take(block).span_into_iter() {
            nested(&mut statement).into_iter().for_each(|inner| self.block(inner));
            match self.passes(&done, &statement) {
                Some(passes) => self.copies(&statement, &passes, &mut done),
                None => done.push(statement, span),
            }
        }
        *block = done;
    }

    /// The counter in each pass of `statement`, and after the last one; `None` if it is not a loop to unroll. `before`
    /// are the statements before it.
    fn passes(&self, before: &Block, statement: &Statement) -> Option<Vec<Counter>> {
        let (body, continuing) = counted(statement)?;
        let (condition, inner) = (body.condition, body.inner);
        let Some(Statement::Store { pointer, value: next }) = continuing.last() else { return None };
        let variable = self.variable(*pointer)?;
        let is_copied = self.is_copied(inner, variable, true) && self.is_indexed(inner, variable);
        if !is_copied {
            return None;
        }
        let mut passes = vec![Counter { variable, value: self.first(before, variable)? }];
        loop {
            let counter = *passes.last()?;
            match self.evaluate(condition, counter)? {
                Literal::Bool(true) if passes.len() <= MOST_PASSES => {}
                // A loop without a pass keeps its statements: each result expression has to belong to a statement.
                Literal::Bool(false) => return (passes.len() > 1).then_some(passes),
                _ => return None,
            }
            passes.push(Counter { value: self.evaluate(*next, counter)?, ..counter });
        }
    }

    /// The value of `variable` after the statements `before`. For a loop inside another one, naga stores the first
    /// value right before the loop; elsewhere it initialises the variable, and only the loop's step changes it.
    fn first(&self, before: &Block, variable: Handle<LocalVariable>) -> Option<Literal> {
        match before.last() {
            Some(Statement::Store { pointer, value }) if self.variable(*pointer) == Some(variable) => {
                self.evaluate(*value, None)
            }
            _ if self.stores.get(&variable) == Some(&1) => {
                self.evaluate(self.function.local_variables[variable].init?, None)
            }
            _ => None,
        }
    }

    /// Whether `block` can be copied with `variable` as a constant: no statement in it changes the variable, and none
    /// leaves or continues the loop whose body it is (`is_body`).
    fn is_copied(&self, block: &Block, variable: Handle<LocalVariable>, is_body: bool) -> bool {
        block.iter().all(|statement| match statement {
            Statement::Break | Statement::Continue => !is_body,
            Statement::Store { pointer, .. } => self.variable(*pointer) != Some(variable),
            Statement::Call { arguments, .. } => {
                arguments.iter().all(|argument| self.variable(*argument) != Some(variable))
            }
            Statement::Emit(range) => range.clone().all(|each| is_followed(&self.function.expressions[each])),
            Statement::Loop { body, continuing, .. } => {
                [body, continuing].into_iter().all(|inner| self.is_copied(inner, variable, false))
            }
            Statement::Block(inner) => self.is_copied(inner, variable, is_body),
            Statement::If { accept, reject, .. } => {
                [accept, reject].into_iter().all(|inner| self.is_copied(inner, variable, is_body))
            }
            Statement::Return { .. } | Statement::ControlBarrier(_) | Statement::MemoryBarrier(_) => true,
            Statement::SubgroupGather { .. } | Statement::SubgroupCollectiveOperation { .. } => true,
            _ => false,
        })
    }

    /// Whether `variable` indexes, in `block`, a value or array that only this invocation sees.
    fn is_indexed(&self, block: &Block, variable: Handle<LocalVariable>) -> bool {
        let indexes = |each: Handle<Expression>| match self.function.expressions[each] {
            Expression::Access { base, index } => self.is_private(base) && self.depends(index, variable),
            _ => false,
        };
        block.iter().any(|statement| match statement {
            Statement::Emit(range) => range.clone().any(indexes),
            Statement::Block(inner) => self.is_indexed(inner, variable),
            Statement::If { accept: one, reject: other, .. }
            | Statement::Loop { body: one, continuing: other, .. } => {
                self.is_indexed(one, variable) || self.is_indexed(other, variable)
            }
            _ => false,
        })
    }

    /// Whether the value or pointer `base` belongs to this invocation alone.
    fn is_private(&self, base: Handle<Expression>) -> bool {
        match self.function.expressions[base] {
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => self.is_private(base),
            Expression::GlobalVariable(global) => {
                self.globals.variables[global].space == AddressSpace::Private
            }
            // A value, or a pointer to a caller's variable: in WGSL, pointers to shared memory cannot be arguments.
            _ => true,
        }
    }

    /// Whether `expression` is computed from `variable`.
    fn depends(&self, expression: Handle<Expression>, variable: Handle<LocalVariable>) -> bool {
        match self.function.expressions[expression] {
            Expression::Load { pointer } => self.variable(pointer) == Some(variable),
            ref other => {
                let mut other = other.clone();
                let mut depends = false;
                operands(&mut other, |operand| depends |= self.depends(*operand, variable));
                depends
            }
        }
    }

    fn variable(&self, pointer: Handle<Expression>) -> Option<Handle<LocalVariable>> {
        match self.function.expressions[pointer] {
            Expression::LocalVariable(variable) => Some(variable),
            _ => None,
        }
    }

    /// The value of `expression`, if it follows from constants and the counter.
    fn evaluate(
        &self,
        expression: Handle<Expression>,
        counter: impl Into<Option<Counter>>,
    ) -> Option<Literal> {
        let counter = counter.into();
        match self.function.expressions[expression] {
            Expression::Load { pointer } => counter
                .filter(|counter| self.variable(pointer) == Some(counter.variable))
                .map(|counter| counter.value),
            ref other => value_of(other, self.globals, |operand| self.evaluate(operand, counter)),
        }
    }

    /// Adds a copy of the loop's body for each of `passes` except the last, which holds the counter after the loop.
    fn copies(&mut self, statement: &Statement, passes: &[Counter], to: &mut Block) {
        let Some((body, continuing)) = counted(statement) else { return };
        let Some((after, passes)) = passes.split_last() else { return };
        for (pass, counter) in passes.iter().enumerate() {
            let mut copy = Copy { of: self, counter: *counter, is_first: pass == 0, made: HashMap::new() };
            let inner = copy.block(body.inner);
            to.push(Statement::Block(inner), Span::UNDEFINED);
        }
        if let Some(Statement::Store { pointer, .. }) = continuing.last() {
            let value = self.add(Expression::Literal(after.value));
            to.push(Statement::Store { pointer: *pointer, value }, Span::UNDEFINED);
        }
    }

    fn add(&mut self, expression: Expression) -> Handle<Expression> {
        self.function.expressions.append(expression, Span::UNDEFINED)
    }
}

/// The body of a `for` loop.
struct Body<'b> {
    condition: Handle<Expression>,
    inner: &'b Block,
}

/// The parts of the statement that naga makes of a `for` loop: a body that leaves at once unless the condition holds,
/// and the step.
fn counted(statement: &Statement) -> Option<(Body<'_>, &Block)> {
    let Statement::Loop { body, continuing, break_if: None } = statement else { return None };
    let [computed @ .., Statement::If { condition, accept, reject }, Statement::Block(inner)] = &body[..]
    else {
        return None;
    };
    let leaves = accept.is_empty() && matches!(reject[..], [Statement::Break]);
    let [stepping @ .., Statement::Store { .. }] = &continuing[..] else { return None };
    let is_plain = [computed, stepping].concat().iter().all(|each| matches!(each, Statement::Emit(_)));
    (leaves && is_plain).then_some((Body { condition: *condition, inner }, continuing))
}

/// The blocks within a statement.
fn nested(statement: &mut Statement) -> Vec<&mut Block> {
    match statement {
        Statement::Block(inner) => vec![inner],
        Statement::If { accept, reject, .. } => vec![accept, reject],
        Statement::Loop { body, continuing, .. } => vec![body, continuing],
        Statement::Switch { cases, .. } => cases.iter_mut().map(|case| &mut case.body).collect(),
        _ => Vec::new(),
    }
}

/// One copy of a loop's body.
struct Copy<'u, 'm> {
    of: &'u mut Unrolling<'m>,
    counter: Counter,
    /// Whether the copy takes the place of the loop's own body.
    is_first: bool,
    /// The copy of each expression.
    made: HashMap<Handle<Expression>, Handle<Expression>>,
}

impl Copy<'_, '_> {
    fn block(&mut self, block: &Block) -> Block {
        let mut copy = Block::with_capacity(block.len());
        for (statement, span) in block.span_iter() {
            match statement {
                Statement::Emit(range) => self.emit(range.clone(), &mut copy),
                other => {
                    let other = self.statement(other.clone());
                    copy.push(other, *span);
                }
            }
        }
        copy
    }

    /// Copies the expressions of `range`. Expressions that are now constant are not emitted.
    fn emit(&mut self, range: Range<Expression>, to: &mut Block) {
        let mut first = None;
        let mut last = None;
        for old in range {
            let new = self.expression(old);
            self.made.insert(old, new);
            if !matches!(self.of.function.expressions[new], Expression::Literal(_)) {
                first = first.or(Some(new));
                last = Some(new);
                continue;
            }
            if let (Some(first), Some(last)) = (first.take(), last) {
                to.push(Statement::Emit(Range::new_from_bounds(first, last)), Span::UNDEFINED);
            }
        }
        if let (Some(first), Some(last)) = (first, last) {
            to.push(Statement::Emit(Range::new_from_bounds(first, last)), Span::UNDEFINED);
        }
    }

    fn expression(&mut self, old: Handle<Expression>) -> Handle<Expression> {
        let mut new = self.of.function.expressions[old].clone();
        operands(&mut new, |operand| *operand = self.copy_of(*operand));
        let value = match new {
            Expression::Load { pointer } if self.of.variable(pointer) == Some(self.counter.variable) => {
                Some(self.counter.value)
            }
            ref other => value_of(other, self.of.globals, |operand| self.of.evaluate(operand, None)),
        };
        if let Some(value) = value {
            return self.of.add(Expression::Literal(value));
        }
        if let Expression::Access { base, index } = new
            && let Some(index) = self.of.evaluate(index, None).and_then(whole)
        {
            new = Expression::AccessIndex { base, index };
        }
        self.of.add(new)
    }

    /// The copy of `old`, or `old` if it was computed before the loop.
    fn copy_of(&self, old: Handle<Expression>) -> Handle<Expression> {
        self.made.get(&old).copied().unwrap_or(old)
    }

    /// The expression for the result of a statement. Each result expression of a function has to belong to a statement,
    /// so the first copy keeps the expressions of the loop.
    fn result(&mut self, old: Handle<Expression>) -> Handle<Expression> {
        if self.is_first {
            return old;
        }
        let new = self.of.add(self.of.function.expressions[old].clone());
        self.made.insert(old, new);
        new
    }

    fn statement(&mut self, statement: Statement) -> Statement {
        match statement {
            Statement::Block(inner) => Statement::Block(self.block(&inner)),
            Statement::If { condition, accept, reject } => Statement::If {
                condition: self.copy_of(condition),
                accept: self.block(&accept),
                reject: self.block(&reject),
            },
            Statement::Loop { body, continuing, break_if } => {
                let (body, continuing) = (self.block(&body), self.block(&continuing));
                Statement::Loop {
                    body,
                    continuing,
                    break_if: break_if.map(|condition| self.copy_of(condition)),
                }
            }
            Statement::Return { value } => {
                Statement::Return { value: value.map(|value| self.copy_of(value)) }
            }
            Statement::Store { pointer, value } => {
                Statement::Store { pointer: self.copy_of(pointer), value: self.copy_of(value) }
            }
            Statement::Call { function, arguments, result } => Statement::Call {
                function,
                arguments: arguments.into_iter().map(|argument| self.copy_of(argument)).collect(),
                result: result.map(|result| self.result(result)),
            },
            Statement::SubgroupGather { mut mode, argument, result } => {
                use naga::GatherMode as G;
                match &mut mode {
                    G::Broadcast(lane) | G::Shuffle(lane) | G::QuadBroadcast(lane) => {
                        *lane = self.copy_of(*lane)
                    }
                    G::ShuffleDown(by) | G::ShuffleUp(by) | G::ShuffleXor(by) => *by = self.copy_of(*by),
                    G::BroadcastFirst | G::QuadSwap(_) => {}
                }
                Statement::SubgroupGather {
                    mode,
                    argument: self.copy_of(argument),
                    result: self.result(result),
                }
            }
            Statement::SubgroupCollectiveOperation { op, collective_op, argument, result } => {
                let (argument, result) = (self.copy_of(argument), self.result(result));
                Statement::SubgroupCollectiveOperation { op, collective_op, argument, result }
            }
            // These have no operands; `is_copied` accepts no others.
            other => other,
        }
    }
}

/// Whether [`operands`] knows all operands of an expression.
fn is_followed(expression: &Expression) -> bool {
    use Expression as E;
    matches!(
        expression,
        E::Literal(_)
            | E::Constant(_)
            | E::ZeroValue(_)
            | E::FunctionArgument(_)
            | E::GlobalVariable(_)
            | E::LocalVariable(_)
            | E::CallResult(_)
            | E::SubgroupOperationResult { .. }
            | E::Compose { .. }
            | E::Access { .. }
            | E::AccessIndex { .. }
            | E::Splat { .. }
            | E::Swizzle { .. }
            | E::Load { .. }
            | E::Unary { .. }
            | E::Binary { .. }
            | E::Select { .. }
            | E::Relational { .. }
            | E::Math { .. }
            | E::As { .. }
            | E::ArrayLength(_)
    )
}

/// Calls `change` with each operand of an expression.
fn operands(expression: &mut Expression, mut change: impl FnMut(&mut Handle<Expression>)) {
    match expression {
        Expression::Compose { components, .. } => components.iter_mut().for_each(change),
        Expression::Access { base, index } => [base, index].into_iter().for_each(change),
        Expression::AccessIndex { base: operand, .. }
        | Expression::Splat { value: operand, .. }
        | Expression::Swizzle { vector: operand, .. }
        | Expression::Load { pointer: operand }
        | Expression::Unary { expr: operand, .. }
        | Expression::Relational { argument: operand, .. }
        | Expression::As { expr: operand, .. }
        | Expression::ArrayLength(operand) => change(operand),
        Expression::Binary { left, right, .. } => [left, right].into_iter().for_each(change),
        Expression::Select { condition, accept, reject } => {
            [condition, accept, reject].into_iter().for_each(change)
        }
        Expression::Math { arg, arg1, arg2, arg3, .. } => {
            [Some(arg), arg1.as_mut(), arg2.as_mut(), arg3.as_mut()].into_iter().flatten().for_each(change);
        }
        _ => {}
    }
}

/// The value of an expression of whole numbers and truth values, if `of` knows the values of its operands.
fn value_of(
    expression: &Expression,
    globals: &Globals<'_>,
    of: impl Fn(Handle<Expression>) -> Option<Literal>,
) -> Option<Literal> {
    match *expression {
        Expression::Literal(literal @ (Literal::U32(_) | Literal::I32(_) | Literal::Bool(_))) => {
            Some(literal)
        }
        Expression::Constant(constant) => match globals.expressions[globals.constants[constant].init] {
            Expression::Literal(literal @ (Literal::U32(_) | Literal::I32(_) | Literal::Bool(_))) => {
                Some(literal)
            }
            _ => None,
        },
        Expression::Binary { op, left, right } => binary(op, of(left)?, of(right)?),
        Expression::Select { condition, accept, reject } => match of(condition)? {
            Literal::Bool(true) => of(accept),
            Literal::Bool(false) => of(reject),
            _ => None,
        },
        Expression::Math { fun, arg, arg1: Some(arg1), arg2: None, arg3: None } => {
            let (Literal::U32(a), Literal::U32(b)) = (of(arg)?, of(arg1)?) else { return None };
            match fun {
                MathFunction::Min => Some(Literal::U32(a.min(b))),
                MathFunction::Max => Some(Literal::U32(a.max(b))),
                _ => None,
            }
        }
        _ => None,
    }
}

fn binary(op: BinaryOperator, left: Literal, right: Literal) -> Option<Literal> {
    use BinaryOperator as B;
    let (a, b) = match (left, right) {
        (Literal::U32(a), Literal::U32(b)) => (a, b),
        (Literal::Bool(a), Literal::Bool(b)) => {
            return match op {
                B::LogicalAnd => Some(Literal::Bool(a && b)),
                B::LogicalOr => Some(Literal::Bool(a || b)),
                _ => None,
            };
        }
        _ => return None,
    };
    let compared = match op {
        B::Less => a < b,
        B::LessEqual => a <= b,
        B::Greater => a > b,
        B::GreaterEqual => a >= b,
        B::Equal => a == b,
        B::NotEqual => a != b,
        _ => {
            let number = match op {
                B::Add => a.wrapping_add(b),
                B::Subtract => a.wrapping_sub(b),
                B::Multiply => a.wrapping_mul(b),
                B::Divide => a.checked_div(b)?,
                B::Modulo => a.checked_rem(b)?,
                B::ShiftLeft => a.checked_shl(b)?,
                B::ShiftRight => a.checked_shr(b)?,
                B::And => a & b,
                B::InclusiveOr => a | b,
                B::ExclusiveOr => a ^ b,
                _ => return None,
            };
            return Some(Literal::U32(number));
        }
    };
    Some(Literal::Bool(compared))
}

/// The literal as an index.
fn whole(literal: Literal) -> Option<u32> {
    match literal {
        Literal::U32(value) => Some(value),
        Literal::I32(value) => u32::try_from(value).ok(),
        _ => None,
    }
}
