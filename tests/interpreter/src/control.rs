//! Statements: which lanes go where.

use crate::arithmetic;
use crate::machine::{Code, Frame, Machine, Value, site};
use crate::memory::Kind;
use naga::{
    AtomicFunction, Barrier, BinaryOperator, Block, Expression, GatherMode, Handle, MathFunction, Scalar,
    Span, Statement, SwitchValue, TypeInner,
};
use std::mem::take;
use std::ops::BitOrAssign;

/// The largest workgroup.
pub const MOST_LANES: usize = 256;

/// The lanes that take part, a bit each.
#[derive(Clone, Copy, Default, PartialEq)]
pub struct Mask([u64; MOST_LANES / 64]);

impl Mask {
    /// The first `count` lanes.
    pub fn first(count: usize) -> Self {
        (0..count).fold(Self::default(), Self::with)
    }

    fn with(mut self, lane: usize) -> Self {
        self.0[lane / 64] |= 1 << (lane % 64);
        self
    }

    pub fn has(self, lane: usize) -> bool {
        lane < MOST_LANES && self.0[lane / 64] >> (lane % 64) & 1 != 0
    }

    fn any(self) -> bool {
        self != Self::default()
    }

    /// The lanes, in order.
    pub fn lanes(self) -> impl Iterator<Item = usize> {
        self.0.into_iter().enumerate().flat_map(|(word, mut bits)| {
            std::iter::from_fn(move || {
                let lane = bits.trailing_zeros() as usize;
                bits &= bits.wrapping_sub(1);
                (lane < 64).then_some(64 * word + lane)
            })
        })
    }

    /// The lanes of these that a condition holds for.
    fn holding(self, condition: impl Fn(usize) -> bool) -> Self {
        self.lanes().filter(|&lane| condition(lane)).fold(Self::default(), Self::with)
    }
}

impl BitOrAssign for Mask {
    fn bitor_assign(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word |= other);
    }
}

/// Iterations of a loop after which it counts as endless.
const ENDLESS: usize = 10_000_000;

/// The lanes that left a block other than at its end.
#[derive(Default)]
struct Left {
    broken: Mask,
    continued: Mask,
}

impl<'m> Machine<'m> {
    /// Calls function `index`. Returns its result.
    pub fn call(&mut self, code: Code<'m>, index: usize, arguments: Vec<Value>, mask: Mask) -> Value {
        let mut frame = take(&mut self.frames[index]);
        self.prepare(code, &mut frame);
        for (handle, expression) in code.function.expressions.iter() {
            if let Expression::FunctionArgument(argument) = expression {
                frame.values[handle.index()] = arguments[*argument as usize].clone();
            }
        }
        for ((_, variable), memory) in code.function.local_variables.iter().zip(&frame.variables) {
            match variable.init {
                Some(init) => {
                    let scalars = self.constant(&code.function.expressions, init);
                    self.memories[*memory].cells = self.repeated(&scalars);
                }
                None => self.memories[*memory].cells.fill(0),
            }
        }
        frame.result = Value::default();
        let mut left = Left::default();
        self.block(code, &mut frame, &code.function.body, mask, &mut left);
        let result = take(&mut frame.result);
        self.frames[index] = frame;
        result
    }

    /// Executes a block for the lanes of `mask`. Returns those that reach its end.
    fn block(
        &mut self,
        code: Code<'m>,
        frame: &mut Frame,
        block: &'m Block,
        mut mask: Mask,
        left: &mut Left,
    ) -> Mask {
        for (statement, span) in block.span_iter() {
            if !mask.any() {
                break;
            }
            mask = self.statement(code, frame, statement, *span, mask, left);
        }
        mask
    }

    fn statement(
        &mut self,
        code: Code<'m>,
        frame: &mut Frame,
        statement: &'m Statement,
        span: Span,
        mask: Mask,
        left: &mut Left,
    ) -> Mask {
        let none = Mask::default();
        match statement {
            Statement::Emit(range) => {
                range.clone().for_each(|handle| self.evaluate(code, frame, handle, mask));
                mask
            }
            Statement::Block(block) => self.block(code, frame, block, mask, left),
            Statement::If { condition, accept, reject } => {
                let condition = &frame.values[condition.index()].cells;
                let accepted = mask.holding(|lane| condition[lane] != 0);
                let rejected = mask.holding(|lane| condition[lane] == 0);
                let mut end = self.block(code, frame, accept, accepted, left);
                end |= self.block(code, frame, reject, rejected, left);
                end
            }
            Statement::Switch { selector, cases } => {
                let selected = frame.values[selector.index()].cells.clone();
                let value = |value| match value {
                    SwitchValue::I32(value) => Some(u64::from(value as u32)),
                    SwitchValue::U32(value) => Some(u64::from(value)),
                    SwitchValue::Default => None,
                };
                let named: Vec<u64> = cases.iter().filter_map(|case| value(case.value)).collect();
                let mut inner = Left::default();
                let (mut end, mut falling) = (none, none);
                for case in cases {
                    let mut entering = mask.holding(|lane| match value(case.value) {
                        Some(value) => selected[lane] == value,
                        None => !named.contains(&selected[lane]),
                    });
                    entering |= falling;
                    falling = self.block(code, frame, &case.body, entering, &mut inner);
                    if !case.fall_through {
                        end |= falling;
                        falling = none;
                    }
                }
                end |= inner.broken;
                left.continued |= inner.continued;
                end
            }
            Statement::Loop { body, continuing, break_if } => {
                let mut active = mask;
                let mut end = none;
                for iteration in 0.. {
                    assert!(iteration < ENDLESS, "an endless loop at `{}`", self.line(site(span)));
                    if !active.any() {
                        break;
                    }
                    let mut inner = Left::default();
                    let mut next = self.block(code, frame, body, active, &mut inner);
                    next |= inner.continued;
                    end |= inner.broken;
                    active = self.block(code, frame, continuing, next, &mut inner);
                    if let Some(condition) = break_if {
                        let condition = &frame.values[condition.index()].cells;
                        end |= active.holding(|lane| condition[lane] != 0);
                        active = active.holding(|lane| condition[lane] == 0);
                    }
                }
                end
            }
            Statement::Break => {
                left.broken |= mask;
                none
            }
            Statement::Continue => {
                left.continued |= mask;
                none
            }
            Statement::Return { value } => {
                if let Some(value) = value {
                    let value = &frame.values[value.index()];
                    if frame.result.cells.is_empty() {
                        frame.result = value.clone();
                    }
                    let lanes = self.lanes;
                    for (to, from) in frame.result.cells.chunks_mut(lanes).zip(value.cells.chunks(lanes)) {
                        mask.lanes().for_each(|lane| to[lane] = from[lane]);
                    }
                }
                none
            }
            Statement::ControlBarrier(barrier) => {
                self.barrier(*barrier, span, mask);
                mask
            }
            Statement::MemoryBarrier(_) => mask,
            Statement::WorkGroupUniformLoad { pointer, result } => {
                self.barrier(Barrier::WORK_GROUP, span, mask);
                let cells = self.load_from(code, frame, *pointer, site(span), mask);
                self.barrier(Barrier::WORK_GROUP, span, mask);
                frame.values[result.index()] = Value { cells, memory: 0 };
                mask
            }
            Statement::Store { pointer, value } => {
                let is_atomic = self.is_atomic(code, *pointer);
                let (pointer, value) = (&frame.values[pointer.index()], &frame.values[value.index()]);
                self.store(pointer, &value.cells, is_atomic, site(span), mask);
                mask
            }
            Statement::Atomic { pointer, fun, value, result } => {
                let before = self.atomic(code, frame, (*pointer, fun, *value), site(span), mask);
                if let Some(result) = result {
                    frame.values[result.index()] = Value { cells: before, memory: 0 };
                }
                mask
            }
            Statement::Call { function, arguments, result } => {
                let arguments =
                    arguments.iter().map(|argument| frame.values[argument.index()].clone()).collect();
                let callee = Code {
                    function: &self.launch.module.functions[*function],
                    info: &self.launch.info[*function],
                };
                let value = self.call(callee, function.index(), arguments, mask);
                if let Some(result) = result {
                    frame.values[result.index()] = value;
                }
                mask
            }
            Statement::SubgroupGather { mode, argument, result } => {
                let cells = self.gather(frame, *mode, *argument, site(span), mask);
                frame.values[result.index()] = Value { cells, memory: 0 };
                mask
            }
            Statement::CooperativeStore { target, data } => {
                let TypeInner::CooperativeMatrix { columns, rows, .. } = self.inner(code, *target) else {
                    panic!("no matrix is stored")
                };
                let place = self.place_of(code, frame, [*rows as usize, *columns as usize], data);
                self.store_matrix(&frame.values[target.index()].cells, &place, site(span), mask);
                mask
            }
            other => panic!("the interpreter does not know {other:?}"),
        }
    }

    fn barrier(&mut self, barrier: Barrier, span: Span, mask: Mask) {
        self.report.barriers.insert(site(span));
        if mask != Mask::first(self.lanes) {
            self.fault(format!("not all invocations reach `{}`", self.line(site(span))));
        }
        let orders = [Barrier::WORK_GROUP, Barrier::STORAGE].map(|memory| barrier.contains(memory));
        self.epochs.iter_mut().zip(orders).for_each(|(epoch, is_ordered)| *epoch += u32::from(is_ordered));
    }

    /// Returns what was there before.
    fn atomic(
        &mut self,
        code: Code<'m>,
        frame: &Frame,
        (pointer, fun, value): (Handle<Expression>, &AtomicFunction, Handle<Expression>),
        site: u32,
        mask: Mask,
    ) -> Vec<u64> {
        let TypeInner::Pointer { base, .. } = self.inner(code, pointer) else { panic!("no pointer") };
        let (TypeInner::Atomic(scalar) | TypeInner::Scalar(scalar)) = self.launch.module.types[*base].inner
        else {
            panic!("no atomic")
        };
        let (pointer, values) = (&frame.values[pointer.index()], &frame.values[value.index()].cells);
        let mut before = vec![0; self.lanes];
        for lane in mask.lanes() {
            let cell = pointer.cells[lane] as usize;
            self.note(pointer.memory, cell, Kind::Atomic, lane, site);
            let there = &mut self.memories[pointer.memory].cells[cell];
            before[lane] = *there;
            *there = combined(fun, scalar, *there, values[lane]);
        }
        before
    }

    /// What lanes hand each other within a subgroup.
    fn gather(
        &mut self,
        frame: &Frame,
        mode: GatherMode,
        argument: Handle<Expression>,
        site: u32,
        mask: Mask,
    ) -> Vec<u64> {
        let (lanes, subgroup) = (self.lanes, self.launch.subgroup);
        let (index, by): (_, fn(usize, usize) -> usize) = match mode {
            GatherMode::Shuffle(index) | GatherMode::Broadcast(index) => (index, |_, index| index),
            GatherMode::ShuffleXor(index) => (index, |lane, index| lane ^ index),
            other => panic!("the interpreter does not know {other:?}"),
        };
        let index = &frame.values[index.index()].cells;
        let from =
            |lane: usize| lane / subgroup * subgroup + by(lane % subgroup, index[lane] as usize) % subgroup;
        if mask.lanes().any(|lane| !mask.has(from(lane))) {
            self.fault(format!("`{}` asks an invocation that does not take part", self.line(site)));
        }
        if lanes == subgroup {
            self.epochs.iter_mut().for_each(|epoch| *epoch += 1);
        }
        let values = frame.values[argument.index()].cells.chunks(lanes);
        values
            .flat_map(|scalar| (0..lanes).map(|lane| scalar.get(from(lane)).copied().unwrap_or(0)))
            .collect()
    }
}

/// What an atomic operation leaves.
fn combined(fun: &AtomicFunction, scalar: Scalar, there: u64, value: u64) -> u64 {
    let mut out = Vec::new();
    let mut by = |op| arithmetic::binary(op, scalar, &[there], &[value], &mut out);
    match fun {
        AtomicFunction::Add => by(BinaryOperator::Add),
        AtomicFunction::Subtract => by(BinaryOperator::Subtract),
        AtomicFunction::And => by(BinaryOperator::And),
        AtomicFunction::ExclusiveOr => by(BinaryOperator::ExclusiveOr),
        AtomicFunction::InclusiveOr => by(BinaryOperator::InclusiveOr),
        AtomicFunction::Min => {
            arithmetic::math(MathFunction::Min, scalar, 1, &[&[there], &[value]], &mut out)
        }
        AtomicFunction::Max => {
            arithmetic::math(MathFunction::Max, scalar, 1, &[&[there], &[value]], &mut out)
        }
        AtomicFunction::Exchange { compare: None } => out.push(value),
        other @ AtomicFunction::Exchange { .. } => panic!("the interpreter does not know {other:?}"),
    }
    out[0]
}
