//! Turns of loops: no invocation of a kernel takes more than the driver of its tier allows
//! ([`Capabilities::most_turns`]), at the largest vocabularies, contexts, widths and numbers of experts and parameters
//! that a run may have. A driver ends longer loops without an error. With `GRISTMILL_LONG` whole models are recorded too,
//! and attention, decoding, draws and norms for adapters with other lanes; that takes a minute more.
//!
//! Kernels are interpreted as recorded, with the params of their dispatches. Numbers that they load from tensors are
//! taken to be all zero, all as large as the number of tokens, and zero in the first element only; floats are unknown.
//! Where an unknown value decides, both branches run, and neither leaves a loop.

use crate::configuration::plan;
use gristmill::element::Element::{F32, U32};
use gristmill::kernels::{Capabilities, Limits, compose, unroll};
use gristmill::ops::attention::{Attention, AttentionTensors, attention, attention_backward};
use gristmill::ops::decode::{Decode, DecodeTensors, decode};
use gristmill::ops::draw::{DRAWS, DrawTensors, SamplingState, draw};
use gristmill::ops::grad_norm::{StepRules, StepTensors, grad_norm};
use gristmill::ops::heads::HeadLayout;
use gristmill::ops::step_state::{LossState, StepState};
use gristmill::record::{Dispatch, Recorder, State};
use gristmill::train::recordings::Recordings;
use naga::{
    AddressSpace, BinaryOperator, Binding, Block, BuiltIn, Expression, Function, Handle, Literal,
    LocalVariable, MathFunction, Module, Statement, SwitchValue,
};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// Tokens of the longest micro-batch of the software tier, which the trainer checks.
const TOKENS: u32 = 52_412;

#[test]
fn no_loop_takes_more_turns_than_its_driver_allows() {
    // With room for the widest matrices of layers; a head of so many tokens is in parts.
    let limits = Limits { binding_bytes: 2 << 30, buffer_bytes: 2 << 30 };
    let software = Capabilities { limits, ..Capabilities::software() };
    let others = [
        software.with_lanes(4),
        software.with_lanes(16),
        Capabilities { gathers: true, ..software },
        Capabilities { lanes: 1, ..software },
    ];
    let is_long = std::env::var_os("GRISTMILL_LONG").is_some();
    let adapters = std::iter::once(software).chain(others.into_iter().filter(|_| is_long));
    let mut checked = HashSet::new();
    for capabilities in adapters {
        let most = capabilities.most_turns();
        let mut dispatches = of_heads(capabilities);
        if is_long && capabilities == software {
            dispatches.extend(of_models(capabilities));
        }
        dispatches.extend(of_many_parameters(capabilities));
        for dispatch in dispatches {
            if checked.insert((dispatch.kernel.clone(), dispatch.params.clone())) {
                let (turns, kernel) = (turns_of(&dispatch), &dispatch.kernel);
                assert!(turns <= most, "{kernel} {}: {turns} turns, at most {most}", dispatch.path);
            }
        }
    }
    println!("{} dispatches", checked.len());
}

/// A loop of loops, each with a last turn that leaves it, and one that a driver unrolls.
#[test]
fn turns_are_counted_over_all_loops() {
    let wgsl = "
        struct Params { rows: u32, cols: u32 }
        @group(0) @binding(0) var<uniform> params: Params;
        @group(0) @binding(1) var<storage, read_write> y: array<f32>;
        @compute @workgroup_size(1)
        fn main(@builtin(local_invocation_index) lane: u32) {
            var sums: array<f32, 4>;
            for (var row = lane; row < params.rows; row++) {
                for (var i = 0u; i < 4u; i++) { sums[i] += y[row + i]; }
                for (var column = 0u; column < params.cols; column += 2u) {
                    if (y[column] > 1.0) { break; }
                    sums[0] += y[column];
                }
            }
            y[0] = sums[0] + sums[3];
        }";
    let mut module = naga::front::wgsl::parse_str(wgsl).expect("WGSL");
    unroll(&mut module);
    let params: Vec<u8> = [7u32, 9].iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(Interpreter::new(&module, &params, Fill::All(0)).run("main", [0; 3]), 7 + 1 + 7 * (5 + 1));
}

/// What runs of large models dispatch, each kernel once for the same params: one with a vocabulary and layers as large
/// as any, one with a context and micro-batch as long as any, and one of as many experts.
fn of_models(capabilities: Capabilities) -> Vec<Dispatch> {
    let of = |model: &str, rest: &str| {
        let yaml = format!(
            "model: {{ model_config: {{ {model}, num_layers: 1, head_dim: 8 }} }}\n\
             train_dataset: {{ data_loader: {{ type: CargoRegistryDataLoader }} }}\n\
             lr_schedule: {{ learning_rate: 1.0e-3 }}\n{rest}\n"
        );
        let plan = plan(&yaml, &[]).unwrap_or_else(|e| panic!("{e}"));
        let recordings = Recordings::new(&plan, capabilities, 10).unwrap_or_else(|e| panic!("{e}"));
        let mut seen = HashSet::new();
        let dispatches = recordings.all().into_iter().flat_map(|recording| recording.dispatches.clone());
        dispatches.filter(|of| seen.insert((of.kernel.clone(), of.params.clone()))).collect::<Vec<_>>()
    };
    let wide = "vocab_size: 262144, hidden_size: 8192, intermediate_size: 28672, num_heads: 8, n_kv_heads: 2, seq_length: 32";
    let long = format!(
        "vocab_size: 300, hidden_size: 32, intermediate_size: 64, num_heads: 8, n_kv_heads: 1, seq_length: {TOKENS}"
    );
    let experts = "moe_config: { expert_num: 512, num_experts_chosen: 8, use_gmm: True }";
    [
        of(wide, "optimizer: { type: Muon }\nsample: { prompt: a, tokens: 1 }"),
        of(&long, "sample: { prompt: a, tokens: 1 }"),
        of(&long, experts),
    ]
    .concat()
}

/// Attention of 48 heads over one, and of 7 over long sequences; decoding with a cache, and draws.
fn of_heads(capabilities: Capabilities) -> Vec<Dispatch> {
    let mut rec = Recorder::new("heads", capabilities);
    for (heads, tokens, is_causal) in
        [(48, 8192, true), (7, 37_440, false), (7, 43_000, false), (7, TOKENS, false)]
    {
        let layout = HeadLayout { heads, kv_heads: 1, head_dim: 4, value_dim: 4 };
        let shape = Attention {
            layout,
            tokens,
            is_causal,
            scale: 1.0,
            window: None,
            has_alibi: false,
            head_range: None,
            dropout: None,
        };
        let mut tensor = |cols| rec.tensor("x", tokens, cols, F32);
        let [qkv, dqkv] = [layout.cols(); 2].map(&mut tensor);
        let [out, dout] = [layout.out_cols(); 2].map(&mut tensor);
        let lse = tensor(heads);
        let tensors = AttentionTensors::new(qkv, out, lse);
        attention(&mut rec, &tensors, &shape);
        attention_backward(&mut rec, &tensors, dout, dqkv, &shape);
    }
    for (head_dim, tokens) in [(128, 4096), (128, TOKENS), (64, 131_072), (4, 131_072)] {
        let layout = HeadLayout { heads: 1, kv_heads: 1, head_dim, value_dim: head_dim };
        let shape = Decode { layout, tokens, scale: 1.0, window: None, has_alibi: false };
        let [qkv, out] = [layout.cols(), layout.out_cols()].map(|cols| rec.tensor("x", 1, cols, F32));
        let cache = rec.tensor("cache", tokens, shape.cache_cols(), F32);
        let positions = rec.tensor("positions", 1, 1, U32);
        decode(&mut rec, &DecodeTensors { qkv, positions, cache, rope: None, out }, &shape);
    }
    for vocab in [6_000, 50_257, 151_936, 262_144] {
        let mut words = |cols| rec.tensor("words", 1, cols, U32);
        let tensors = DrawTensors {
            sequences: words(4),
            seen: words(DrawTensors::seen_words(vocab)),
            token: words(1),
            position: words(1),
            drawn: words(DRAWS),
            sampling: words(SamplingState::WORDS),
            logits: rec.tensor("logits", 1, vocab, F32),
        };
        draw(&mut rec, &tensors);
    }
    rec.finish().dispatches
}

/// The norm of the gradients of 4 and of 70 billion parameters: the first and the last dispatch.
fn of_many_parameters(capabilities: Capabilities) -> Vec<Dispatch> {
    let of = |billions: u32| {
        let mut rec = Recorder::new("many parameters", capabilities);
        let gradients: Vec<_> =
            (0..32 * billions).map(|_| rec.tensor("gradients", 1, 1 << 25, F32)).collect();
        let [state, loss] =
            [StepState::WORDS, LossState::WORDS].map(|cols| rec.tensor("state", 1, cols, U32));
        let schedule = rec.tensor("schedule", 10, 4, F32);
        let rules = StepRules { max_norm: Some(1.0), ..StepRules::default() };
        grad_norm(&mut rec, &gradients, &StepTensors { state, loss, schedule }, &rules);
        let mut dispatches = rec.finish().dispatches;
        [dispatches.remove(0), dispatches.pop().expect("a last one")]
    };
    [of(4), of(70)].concat()
}

/// The most turns of an invocation of the first workgroup: under a causal mask it has the longest walk.
fn turns_of(dispatch: &Dispatch) -> u64 {
    let mut module = compose(&dispatch.kernel).unwrap_or_else(|e| panic!("{e}")).module;
    unroll(&mut module);
    let reads_numbers = dispatch.bindings.iter().any(|binding| binding.element == U32);
    let fills = [Fill::All(0), Fill::All(TOKENS), Fill::AllButFirst(TOKENS)];
    let fills = if reads_numbers { &fills[..] } else { &fills[..1] };
    let turns =
        |fill: &Fill| Interpreter::new(&module, &dispatch.params, *fill).run(dispatch.kernel.entry, [0; 3]);
    fills.iter().map(turns).max().unwrap_or(0)
}

/// The numbers in tensors.
#[derive(Clone, Copy)]
enum Fill {
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
    fn new(module: &'m Module, params: &'m [u8], fill: Fill) -> Self {
        Self { module, params, fill, turns: 0 }
    }

    /// The turns of all loops of entry point `entry`.
    fn run(mut self, entry: &str, workgroup: [u32; 3]) -> u64 {
        let entry = self.module.entry_points.iter().find(|of| of.name == entry).expect("the entry point");
        let argument = |binding: Option<&Binding>| match binding {
            Some(Binding::BuiltIn(BuiltIn::WorkGroupId)) => Value::many(workgroup.map(Value::Number)),
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
