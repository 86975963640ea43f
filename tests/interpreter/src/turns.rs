//! Counts the turns of an invocation's loops. Numbers that are loaded from tensors are as [`Fill`] says, floats are
//! unknown. Where an unknown value decides, both branches run, and neither leaves a loop.

use naga::{
    AddressSpace, BinaryOperator, Binding, Block, BuiltIn, Expression, Function, Handle, Literal,
    LocalVariable, MathFunction, Module, Statement, SwitchValue,
};
use std::collections::HashMap;
use std::rc::Rc;

/// The turns of all loops of the first invocation of the first workgroup. `params` are the bytes of the params struct.
///
/// # Panics
/// If the module has no such entry point, or something that is not known here.
pub fn turns(module: &Module, entry: &str, params: &[u8], fill: Fill) -> u64 {
    Interpreter { module, params, fill, turns: 0 }.run(entry)
}

/// The numbers in tensors.
#[derive(Clone, Copy)]
pub enum Fill {
    All(u32),
    AllButFirst(u32),
}

/// A value as far as it is known; a number stands for a bool, and for a vector or struct of equal numbers, too.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Unknown,
    Number(u32),
    Many(Rc<[Value]>),
    /// A pointer: the first index after the variable, where it is known, and how many indices there are.
    Param(Option<u32>),
    Tensor(Option<u32>),
    Local(Handle<LocalVariable>, Vec<Option<u32>>),
}

impl Value {
    fn many(values: impl IntoIterator<Item = Self>) -> Self {
        Self::Many(values.into_iter().collect())
    }

    fn number(&self) -> Option<u32> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }

    fn component(&self, index: Option<u32>) -> Self {
        match (self, index) {
            (Self::Number(_), _) => self.clone(),
            (Self::Many(values), Some(index)) => values.get(index as usize).cloned().unwrap_or(Self::Unknown),
            _ => Self::Unknown,
        }
    }

    /// `of` for numbers, component by component.
    fn with(&self, other: &Self, of: &impl Fn(u32, u32) -> Option<u32>) -> Self {
        match (self, other) {
            (Self::Number(a), Self::Number(b)) => of(*a, *b).map_or(Self::Unknown, Self::Number),
            (Self::Many(values), _) => {
                Self::many((0..values.len()).map(|i| values[i].with(&other.component(Some(i as u32)), of)))
            }
            (_, Self::Many(values)) => {
                Self::many((0..values.len()).map(|i| self.component(Some(i as u32)).with(&values[i], of)))
            }
            _ => Self::Unknown,
        }
    }
}

/// How a block ends.
#[derive(PartialEq)]
enum End {
    Next,
    Break,
    Continue,
    Return(Value),
}

/// A running invocation, the first of its workgroup.
struct Interpreter<'m> {
    module: &'m Module,
    params: &'m [u8],
    fill: Fill,
    turns: u64,
}

/// A call of a function.
struct Frame<'m> {
    function: &'m Function,
    arguments: Vec<Value>,
    values: Vec<Option<Value>>,
    locals: HashMap<Handle<LocalVariable>, Value>,
}

impl<'m> Interpreter<'m> {
    fn run(mut self, entry: &str) -> u64 {
        let entry = self.module.entry_points.iter().find(|of| of.name == entry).expect("the entry point");
        let argument = |binding: Option<&Binding>| match binding {
            Some(Binding::BuiltIn(BuiltIn::WorkGroupId)) => Value::many([0; 3].map(Value::Number)),
            _ => Value::Number(0),
        };
        let arguments = entry.function.arguments.iter().map(|of| argument(of.binding.as_ref())).collect();
        self.call(&entry.function, arguments);
        self.turns
    }

    fn call(&mut self, function: &'m Function, arguments: Vec<Value>) -> Value {
        let values = vec![None; function.expressions.len()];
        let mut frame = Frame { function, arguments, values, locals: HashMap::new() };
        for (handle, local) in function.local_variables.iter() {
            let init = local.init.map_or(Value::Number(0), |init| self.value(&mut frame, init));
            frame.locals.insert(handle, init);
        }
        match self.block(&mut frame, &function.body) {
            End::Return(value) => value,
            _ => Value::Unknown,
        }
    }

    fn block(&mut self, frame: &mut Frame<'m>, block: &'m Block) -> End {
        for statement in block.iter() {
            let end = self.statement(frame, statement);
            if end != End::Next {
                return end;
            }
        }
        End::Next
    }

    fn statement(&mut self, frame: &mut Frame<'m>, statement: &'m Statement) -> End {
        match statement {
            Statement::Emit(range) => {
                range.clone().for_each(|handle| frame.values[handle.index()] = None);
                // What is not loaded follows from what is, and is computed where a value is asked for.
                let is_load = |handle: &Handle<Expression>| {
                    matches!(frame.function.expressions[*handle], Expression::Load { .. })
                };
                for handle in range.clone().filter(is_load).collect::<Vec<_>>() {
                    self.value(frame, handle);
                }
            }
            Statement::Block(block) => return self.block(frame, block),
            Statement::If { condition, accept, reject } => match self.value(frame, *condition).number() {
                Some(0) => return self.block(frame, reject),
                Some(_) => return self.block(frame, accept),
                None => [accept, reject].into_iter().for_each(|block| {
                    self.block(frame, block);
                }),
            },
            Statement::Switch { selector, cases } => {
                let selected = self.value(frame, *selector).number();
                let is_it = |value: &SwitchValue| match *value {
                    SwitchValue::U32(number) => Some(number) == selected,
                    SwitchValue::I32(number) => Some(number as u32) == selected,
                    SwitchValue::Default => true,
                };
                let found = cases.iter().find(|case| is_it(&case.value)).expect("a default");
                let end = self.block(frame, &found.body);
                return if end == End::Break { End::Next } else { end };
            }
            Statement::Loop { body, continuing, break_if } => {
                let before = self.turns;
                loop {
                    self.turns += 1;
                    assert!(self.turns - before < 1 << 26, "a loop does not end");
                    match self.block(frame, body) {
                        End::Break => return End::Next,
                        end @ End::Return(_) => return end,
                        End::Next | End::Continue => {}
                    }
                    self.block(frame, continuing);
                    let leaves = break_if.and_then(|condition| self.value(frame, condition).number());
                    if leaves.is_some_and(|leaves| leaves != 0) {
                        return End::Next;
                    }
                }
            }
            Statement::Break => return End::Break,
            Statement::Continue => return End::Continue,
            Statement::Return { value } => {
                return End::Return(value.map_or(Value::Unknown, |value| self.value(frame, value)));
            }
            Statement::Store { pointer, value } => {
                if let Value::Local(local, path) = self.value(frame, *pointer) {
                    let is_whole = path.is_empty();
                    let value = if is_whole { self.value(frame, *value) } else { Value::Unknown };
                    frame.locals.insert(local, value);
                }
            }
            Statement::Call { function, arguments, result } => {
                let arguments = arguments.iter().map(|argument| self.value(frame, *argument)).collect();
                let value = self.call(&self.module.functions[*function], arguments);
                if let Some(result) = result {
                    frame.values[result.index()] = Some(value);
                }
            }
            Statement::SubgroupGather { argument, result, .. }
            | Statement::SubgroupCollectiveOperation { argument, result, .. } => {
                let value = self.value(frame, *argument);
                frame.values[result.index()] = Some(value);
            }
            Statement::Atomic { .. } | Statement::ControlBarrier(_) | Statement::MemoryBarrier(_) => {}
            other => panic!("the interpreter does not know {other:?}"),
        }
        End::Next
    }

    fn value(&mut self, frame: &mut Frame<'m>, handle: Handle<Expression>) -> Value {
        if let Some(value) = &frame.values[handle.index()] {
            return value.clone();
        }
        let value = self.computed(frame, &frame.function.expressions[handle]);
        frame.values[handle.index()] = Some(value.clone());
        value
    }

    fn computed(&mut self, frame: &mut Frame<'m>, expression: &'m Expression) -> Value {
        match expression {
            Expression::Constant(constant) => self.constant(self.module.constants[*constant].init),
            Expression::FunctionArgument(index) => frame.arguments[*index as usize].clone(),
            Expression::GlobalVariable(variable) => match self.module.global_variables[*variable].space {
                AddressSpace::Uniform => Value::Param(None),
                _ => Value::Tensor(None),
            },
            Expression::LocalVariable(local) => Value::Local(*local, Vec::new()),
            Expression::Compose { components, .. } => {
                Value::many(components.iter().map(|component| self.value(frame, *component)))
            }
            Expression::Access { base, index } => {
                let (base, index) = (self.value(frame, *base), self.value(frame, *index).number());
                accessed(base, index)
            }
            Expression::AccessIndex { base, index } => accessed(self.value(frame, *base), Some(*index)),
            Expression::Splat { value, .. } => self.value(frame, *value),
            Expression::Swizzle { vector, pattern, size } => {
                let vector = self.value(frame, *vector);
                let chosen = pattern[..*size as usize].iter();
                Value::many(chosen.map(|component| vector.component(Some(*component as u32))))
            }
            Expression::Load { pointer } => match self.value(frame, *pointer) {
                Value::Param(Some(member)) => {
                    let bytes = self.params.get(4 * member as usize..).and_then(|rest| rest.first_chunk());
                    bytes.map_or(Value::Unknown, |bytes| Value::Number(u32::from_le_bytes(*bytes)))
                }
                Value::Tensor(index) => match self.fill {
                    Fill::All(number) => Value::Number(number),
                    Fill::AllButFirst(number) => Value::Number(if index == Some(0) { 0 } else { number }),
                },
                Value::Local(local, path) => {
                    path.iter().fold(frame.locals[&local].clone(), |value, index| value.component(*index))
                }
                _ => Value::Unknown,
            },
            Expression::Binary { op, left, right } => {
                let (left, right) = (self.value(frame, *left), self.value(frame, *right));
                left.with(&right, &|a, b| binary(*op, a, b))
            }
            Expression::Select { condition, accept, reject } => {
                let [condition, accept, reject] =
                    [condition, accept, reject].map(|part| self.value(frame, *part));
                match condition {
                    Value::Number(0) => reject,
                    Value::Number(_) => accept,
                    _ if accept == reject => accept,
                    _ => Value::Unknown,
                }
            }
            Expression::Math { fun, arg, arg1, arg2, .. } => {
                let first = self.value(frame, *arg);
                let mut other = |arg: &Option<Handle<Expression>>| {
                    arg.map_or(Value::Unknown, |arg| self.value(frame, arg))
                };
                match fun {
                    MathFunction::Min => first.with(&other(arg1), &|a, b| Some(a.min(b))),
                    MathFunction::Max => first.with(&other(arg1), &|a, b| Some(a.max(b))),
                    MathFunction::Clamp => {
                        let least = first.with(&other(arg1), &|a, b| Some(a.max(b)));
                        least.with(&other(arg2), &|a, b| Some(a.min(b)))
                    }
                    _ => Value::Unknown,
                }
            }
            Expression::Unary { op: naga::UnaryOperator::LogicalNot, expr } => {
                self.value(frame, *expr).with(&Value::Number(0), &|a, _| Some(u32::from(a == 0)))
            }
            Expression::As { expr, .. } => self.value(frame, *expr),
            other => literal(other),
        }
    }

    fn constant(&self, handle: Handle<Expression>) -> Value {
        match &self.module.global_expressions[handle] {
            Expression::Constant(constant) => self.constant(self.module.constants[*constant].init),
            Expression::Compose { components, .. } => {
                Value::many(components.iter().map(|component| self.constant(*component)))
            }
            Expression::Splat { value, .. } => self.constant(*value),
            other => literal(other),
        }
    }
}

fn literal(expression: &Expression) -> Value {
    match *expression {
        Expression::Literal(Literal::U32(number)) => Value::Number(number),
        Expression::Literal(Literal::I32(number)) => Value::Number(number as u32),
        Expression::Literal(Literal::Bool(is_true)) => Value::Number(is_true.into()),
        Expression::ZeroValue(_) => Value::Number(0),
        _ => Value::Unknown,
    }
}

/// The component of a value, or the pointer to it.
fn accessed(base: Value, index: Option<u32>) -> Value {
    match base {
        Value::Param(None) => Value::Param(index),
        Value::Tensor(None) => Value::Tensor(index),
        Value::Param(_) | Value::Tensor(_) => base,
        Value::Local(local, mut path) => {
            path.push(index);
            Value::Local(local, path)
        }
        value => value.component(index),
    }
}

fn binary(op: BinaryOperator, a: u32, b: u32) -> Option<u32> {
    Some(match op {
        BinaryOperator::Add => a.wrapping_add(b),
        BinaryOperator::Subtract => a.wrapping_sub(b),
        BinaryOperator::Multiply => a.wrapping_mul(b),
        BinaryOperator::Divide => a.checked_div(b)?,
        BinaryOperator::Modulo => a.checked_rem(b)?,
        BinaryOperator::Equal => (a == b).into(),
        BinaryOperator::NotEqual => (a != b).into(),
        BinaryOperator::Less => (a < b).into(),
        BinaryOperator::LessEqual => (a <= b).into(),
        BinaryOperator::Greater => (a > b).into(),
        BinaryOperator::GreaterEqual => (a >= b).into(),
        BinaryOperator::And | BinaryOperator::LogicalAnd => a & b,
        BinaryOperator::InclusiveOr | BinaryOperator::LogicalOr => a | b,
        BinaryOperator::ExclusiveOr => a ^ b,
        BinaryOperator::ShiftLeft => a.checked_shl(b)?,
        BinaryOperator::ShiftRight => a.checked_shr(b)?,
    })
}
