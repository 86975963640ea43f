//! Expressions, for all lanes at once.

use crate::arithmetic;
use crate::control::Mask;
use crate::machine::{Code, Frame, Machine, Value, site};
use naga::{BinaryOperator, Expression, Handle, MathFunction, RelationalFunction, Scalar, TypeInner};
use std::mem::take;

impl<'m> Machine<'m> {
    /// Evaluates an expression for all lanes; only those of `mask` access memory.
    pub fn evaluate(&mut self, code: Code<'m>, frame: &mut Frame, handle: Handle<Expression>, mask: Mask) {
        let lanes = self.lanes;
        let mut cells = take(&mut frame.values[handle.index()].cells);
        cells.clear();
        let out = &mut cells;
        let value = |handle: Handle<Expression>| &frame.values[handle.index()];
        let of = |handle: Handle<Expression>| frame.values[handle.index()].cells.as_slice();
        let site = site(code.function.expressions.get_span(handle));
        let mut memory = 0;
        match &code.function.expressions[handle] {
            Expression::Compose { components, .. } => components.iter().for_each(|c| out.extend(of(*c))),
            Expression::Splat { size, value } => (0..*size as usize).for_each(|_| out.extend(of(*value))),
            Expression::Swizzle { size, vector, pattern } => {
                let taken = &pattern[..*size as usize];
                taken.iter().for_each(|i| out.extend(&of(*vector)[*i as usize * lanes..][..lanes]));
            }
            Expression::Access { base, index } => {
                let inner = self.inner(code, *base);
                let (size, count) = self.elements(inner);
                let is_pointer = inner.pointer_space().is_some();
                memory = value(*base).memory;
                let (bases, indices) = (of(*base), of(*index));
                let count =
                    count.unwrap_or_else(|| (self.memories[memory].cells.len() - bases[0] as usize) / size);
                if let Some(lane) = mask.lanes().find(|&lane| indices[lane] >= count as u64) {
                    let index = indices[lane];
                    self.fault(format!("index {index} of {count} elements in `{}`", self.line(site)));
                }
                let inside = |lane: usize| indices[lane].min(count as u64 - 1) as usize * size;
                if is_pointer {
                    out.extend((0..lanes).map(|lane| bases[lane] + inside(lane) as u64));
                } else {
                    for i in 0..size {
                        out.extend((0..lanes).map(|lane| bases[(inside(lane) + i) * lanes + lane]));
                    }
                }
            }
            Expression::AccessIndex { base, index } => {
                let inner = self.inner(code, *base);
                let start = self.place(inner, *index as usize);
                memory = value(*base).memory;
                if inner.pointer_space().is_some() {
                    out.extend(of(*base).iter().map(|at| at + start as u64));
                } else {
                    out.extend(&of(*base)[start * lanes..][..self.size(code, handle) * lanes]);
                }
            }
            Expression::Load { pointer } => {
                let (size, is_atomic) = self.loaded(code, *pointer);
                self.load(value(*pointer), size, is_atomic, site, mask, out);
            }
            Expression::Unary { op, expr } => {
                arithmetic::unary(*op, self.scalar(code, *expr), of(*expr), out)
            }
            Expression::Binary { op, left, right } => {
                let is_product = [left, right]
                    .iter()
                    .any(|side| matches!(self.inner(code, **side), TypeInner::Matrix { .. }));
                assert!(!is_product, "the interpreter does not know products of matrices");
                arithmetic::binary(*op, self.scalar(code, *left), of(*left), of(*right), out);
            }
            Expression::Select { condition, accept, reject } => {
                arithmetic::select(of(*condition), of(*accept), of(*reject), out);
            }
            Expression::Relational { fun, argument } => {
                let op = match fun {
                    RelationalFunction::All => BinaryOperator::And,
                    RelationalFunction::Any => BinaryOperator::InclusiveOr,
                    other => panic!("the interpreter does not know {other:?}"),
                };
                out.extend(&of(*argument)[..lanes]);
                for part in of(*argument)[lanes..].chunks(lanes) {
                    let before = take(out);
                    arithmetic::binary(op, Scalar::BOOL, &before, part, out);
                }
            }
            Expression::Math { fun: MathFunction::Transpose, arg, .. } => {
                let TypeInner::Matrix { columns, rows, .. } = self.inner(code, *arg) else {
                    panic!("no matrix")
                };
                let (columns, rows) = (*columns as usize, *rows as usize);
                let places = (0..rows).flat_map(|row| (0..columns).map(move |column| column * rows + row));
                places.for_each(|at| out.extend(&of(*arg)[at * lanes..][..lanes]));
            }
            Expression::Math { fun, arg, arg1, arg2, .. } => {
                let arguments: Vec<&[u64]> =
                    [Some(*arg), *arg1, *arg2].into_iter().flatten().map(of).collect();
                arithmetic::math(*fun, self.scalar(code, *arg), lanes, &arguments, out);
            }
            Expression::As { expr, kind, convert } => {
                let from = self.scalar(code, *expr);
                match convert {
                    Some(width) => {
                        arithmetic::convert(from, Scalar { kind: *kind, width: *width }, of(*expr), out)
                    }
                    None => {
                        assert!(from.width == 4, "the interpreter does not know the bits of {from:?}");
                        out.extend(of(*expr));
                    }
                }
            }
            Expression::CooperativeLoad { columns, rows, data, .. } => {
                let place = self.place_of(code, frame, [*rows as usize, *columns as usize], data);
                *out = self.load_matrix(&place, site, mask);
            }
            Expression::CooperativeMultiplyAdd { a, b, c } => {
                let shape = |handle| match self.inner(code, handle) {
                    TypeInner::CooperativeMatrix { columns, rows, .. } => [*rows as usize, *columns as usize],
                    other => panic!("{other:?} is no matrix"),
                };
                *out = self.multiply_add([of(*a), of(*b), of(*c)], [shape(*a), shape(*b)]);
            }
            other => panic!("the interpreter does not know {other:?}"),
        }
        frame.values[handle.index()] = Value { cells, memory };
    }
}
