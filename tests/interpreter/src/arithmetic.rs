//! Operators and built-in functions on the scalars of all invocations. A scalar is 64 bits: booleans are 0 or 1, floats
//! the bits of an f32, and integers of 32 bits have zeros above.
//!
//! Operands are whole values, scalar after scalar, each with those of all invocations; a shorter operand is repeated.
//! Results go to the empty `out`, whose allocation is used again.

use naga::{BinaryOperator as B, MathFunction as M, Scalar, ScalarKind, UnaryOperator as U};

/// One operand, value by value.
fn each(out: &mut Vec<u64>, a: &[u64], f: impl Fn(u64) -> u64) {
    out.extend(a.iter().map(|a| f(*a)));
}

fn pairs(out: &mut Vec<u64>, a: &[u64], b: &[u64], f: impl Fn(u64, u64) -> u64) {
    if a.len() == b.len() {
        return out.extend(a.iter().zip(b).map(|(a, b)| f(*a, *b)));
    }
    let both = a.iter().cycle().zip(b.iter().cycle());
    out.extend(both.take(a.len().max(b.len())).map(|(a, b)| f(*a, *b)));
}

fn triples(out: &mut Vec<u64>, a: &[u64], b: &[u64], c: &[u64], f: impl Fn(u64, u64, u64) -> u64) {
    let (b, c) = (b.iter().cycle(), c.iter().cycle());
    out.extend(a.iter().zip(b).zip(c).map(|((a, b), c)| f(*a, *b, *c)));
}

fn float(cell: u64) -> f32 {
    f32::from_bits(cell as u32)
}

/// The cell of a float, rounded to the type's width.
fn of_float(scalar: Scalar) -> impl Fn(f32) -> u64 {
    let is_half = scalar.width == 2;
    assert!(scalar.width <= 4, "the interpreter does not compute in f64");
    move |value| u64::from((if is_half { half::f16::from_f32(value).to_f32() } else { value }).to_bits())
}

/// The cell of an integer, wrapped to the type's width.
fn wrapped(scalar: Scalar, value: u64) -> u64 {
    if scalar.width == 8 { value } else { value & 0xffff_ffff }
}

fn signed(scalar: Scalar, cell: u64) -> i64 {
    if scalar.width == 8 { cell as i64 } else { i64::from(cell as u32 as i32) }
}

pub fn unary(op: U, scalar: Scalar, a: &[u64], out: &mut Vec<u64>) {
    match (op, scalar.kind) {
        (U::Negate, ScalarKind::Float) => each(out, a, |a| a ^ 0x8000_0000),
        (U::Negate, _) => each(out, a, |a| wrapped(scalar, a.wrapping_neg())),
        (U::LogicalNot, _) => each(out, a, |a| a ^ 1),
        (U::BitwiseNot, _) => each(out, a, |a| wrapped(scalar, !a)),
    }
}

/// `a op b`; `scalar` is the type of `a`.
pub fn binary(op: B, scalar: Scalar, a: &[u64], b: &[u64], out: &mut Vec<u64>) {
    match scalar.kind {
        ScalarKind::Float => float_binary(op, scalar, a, b, out),
        ScalarKind::Sint => match op {
            B::Divide => pairs(out, a, b, |a, b| {
                let (a, b) = (signed(scalar, a), signed(scalar, b));
                wrapped(scalar, if b == 0 { a } else { a.wrapping_div(b) } as u64)
            }),
            B::Modulo => pairs(out, a, b, |a, b| {
                let (a, b) = (signed(scalar, a), signed(scalar, b));
                wrapped(scalar, if b == 0 { 0 } else { a.wrapping_rem(b) } as u64)
            }),
            B::ShiftRight => pairs(out, a, b, |a, b| wrapped(scalar, (signed(scalar, a) >> (b & 31)) as u64)),
            B::Less => pairs(out, a, b, |a, b| u64::from(signed(scalar, a) < signed(scalar, b))),
            B::LessEqual => pairs(out, a, b, |a, b| u64::from(signed(scalar, a) <= signed(scalar, b))),
            B::Greater => pairs(out, a, b, |a, b| u64::from(signed(scalar, a) > signed(scalar, b))),
            B::GreaterEqual => pairs(out, a, b, |a, b| u64::from(signed(scalar, a) >= signed(scalar, b))),
            _ => word_binary(op, scalar, a, b, out),
        },
        _ => word_binary(op, scalar, a, b, out),
    }
}

fn float_binary(op: B, scalar: Scalar, a: &[u64], b: &[u64], out: &mut Vec<u64>) {
    let cell = of_float(scalar);
    match op {
        B::Add => pairs(out, a, b, |a, b| cell(float(a) + float(b))),
        B::Subtract => pairs(out, a, b, |a, b| cell(float(a) - float(b))),
        B::Multiply => pairs(out, a, b, |a, b| cell(float(a) * float(b))),
        B::Divide => pairs(out, a, b, |a, b| cell(float(a) / float(b))),
        B::Modulo => pairs(out, a, b, |a, b| cell(float(a) % float(b))),
        B::Equal => pairs(out, a, b, |a, b| u64::from(float(a) == float(b))),
        B::NotEqual => pairs(out, a, b, |a, b| u64::from(float(a) != float(b))),
        B::Less => pairs(out, a, b, |a, b| u64::from(float(a) < float(b))),
        B::LessEqual => pairs(out, a, b, |a, b| u64::from(float(a) <= float(b))),
        B::Greater => pairs(out, a, b, |a, b| u64::from(float(a) > float(b))),
        B::GreaterEqual => pairs(out, a, b, |a, b| u64::from(float(a) >= float(b))),
        _ => panic!("the interpreter does not know {op:?} of floats"),
    }
}

/// Of booleans and unsigned integers, and whatever does not depend on the sign.
fn word_binary(op: B, scalar: Scalar, a: &[u64], b: &[u64], out: &mut Vec<u64>) {
    let bits = u64::from(scalar.width) * 8 - 1;
    match op {
        B::Add => pairs(out, a, b, |a, b| wrapped(scalar, a.wrapping_add(b))),
        B::Subtract => pairs(out, a, b, |a, b| wrapped(scalar, a.wrapping_sub(b))),
        B::Multiply => pairs(out, a, b, |a, b| wrapped(scalar, a.wrapping_mul(b))),
        B::Divide => pairs(out, a, b, |a, b| a.checked_div(b).unwrap_or(a)),
        B::Modulo => pairs(out, a, b, |a, b| a.checked_rem(b).unwrap_or(0)),
        B::Equal => pairs(out, a, b, |a, b| u64::from(a == b)),
        B::NotEqual => pairs(out, a, b, |a, b| u64::from(a != b)),
        B::Less => pairs(out, a, b, |a, b| u64::from(a < b)),
        B::LessEqual => pairs(out, a, b, |a, b| u64::from(a <= b)),
        B::Greater => pairs(out, a, b, |a, b| u64::from(a > b)),
        B::GreaterEqual => pairs(out, a, b, |a, b| u64::from(a >= b)),
        B::And | B::LogicalAnd => pairs(out, a, b, |a, b| a & b),
        B::InclusiveOr | B::LogicalOr => pairs(out, a, b, |a, b| a | b),
        B::ExclusiveOr => pairs(out, a, b, |a, b| a ^ b),
        B::ShiftLeft => pairs(out, a, b, |a, b| wrapped(scalar, a << (b & bits))),
        B::ShiftRight => pairs(out, a, b, |a, b| a >> (b & bits)),
    }
}

pub fn select(condition: &[u64], accept: &[u64], reject: &[u64], out: &mut Vec<u64>) {
    triples(
        out,
        accept,
        reject,
        condition,
        |accept, reject, condition| {
            if condition != 0 { accept } else { reject }
        },
    )
}

/// A conversion by value.
pub fn convert(from: Scalar, to: Scalar, a: &[u64], out: &mut Vec<u64>) {
    use ScalarKind::{Bool, Float, Sint, Uint};
    match (from.kind, to.kind) {
        (Float, Float) => {
            let cell = of_float(to);
            each(out, a, |a| cell(float(a)))
        }
        (Float, Uint) if to.width == 4 => each(out, a, |a| u64::from(float(a) as u32)),
        (Float, Sint) if to.width == 4 => each(out, a, |a| u64::from(float(a) as i32 as u32)),
        (Float, Bool) => each(out, a, |a| u64::from(float(a) != 0.0)),
        (Uint | Bool, Float) => {
            let cell = of_float(to);
            each(out, a, |a| cell(a as f32))
        }
        (Sint, Float) => {
            let cell = of_float(to);
            each(out, a, |a| cell(signed(from, a) as f32))
        }
        (Uint | Sint, Bool) => each(out, a, |a| u64::from(a != 0)),
        (Bool, Bool) => out.extend(a),
        (Sint, Uint | Sint) => each(out, a, |a| wrapped(to, signed(from, a) as u64)),
        (Uint | Bool, Uint | Sint) => each(out, a, |a| wrapped(to, a)),
        _ => panic!("the interpreter does not convert {from:?} to {to:?}"),
    }
}

/// A built-in function of values of type `scalar`, of `lanes` invocations.
pub fn math(fun: M, scalar: Scalar, lanes: usize, arguments: &[&[u64]], out: &mut Vec<u64>) {
    let a = arguments[0];
    match (fun, scalar.kind) {
        (M::Dot, _) => {
            binary(B::Multiply, scalar, a, arguments[1], out);
            for first in (lanes..a.len()).step_by(lanes) {
                let mut sum = Vec::new();
                binary(B::Add, scalar, &out[..lanes], &out[first..][..lanes], &mut sum);
                out[..lanes].copy_from_slice(&sum);
            }
            out.truncate(lanes);
        }
        (M::Unpack2x16float, _) => {
            let half = |bits: u64| u64::from(half::f16::from_bits(bits as u16).to_f32().to_bits());
            each(out, a, |a| half(a & 0xffff));
            each(out, a, |a| half(a >> 16));
        }
        (M::Pack2x16float, _) => {
            let bits = |cell: u64| u64::from(half::f16::from_f32(float(cell)).to_bits());
            pairs(out, &a[..lanes], &a[lanes..], |low, high| bits(low) | bits(high) << 16)
        }
        (_, ScalarKind::Float) => float_math(fun, scalar, arguments, out),
        (M::Min, ScalarKind::Uint) => pairs(out, a, arguments[1], u64::min),
        (M::Max, ScalarKind::Uint) => pairs(out, a, arguments[1], u64::max),
        (M::Clamp, ScalarKind::Uint) => {
            triples(out, a, arguments[1], arguments[2], |a, low, high| a.max(low).min(high))
        }
        (M::Clamp, ScalarKind::Sint) => triples(out, a, arguments[1], arguments[2], |a, low, high| {
            let [a, low, high] = [a, low, high].map(|cell| signed(scalar, cell));
            wrapped(scalar, a.max(low).min(high) as u64)
        }),
        (M::Abs, ScalarKind::Uint) => out.extend(a),
        (M::CountOneBits, _) => each(out, a, |a| u64::from(a.count_ones())),
        (M::FirstLeadingBit, ScalarKind::Uint) => {
            each(out, a, |a| a.checked_ilog2().map_or(0xffff_ffff, u64::from))
        }
        _ => panic!("the interpreter does not know {fun:?} of {scalar:?}"),
    }
}

fn float_math(fun: M, scalar: Scalar, arguments: &[&[u64]], out: &mut Vec<u64>) {
    let cell = of_float(scalar);
    let a = arguments[0];
    let mut of = |f: fn(f32) -> f32| each(out, a, |a| cell(f(float(a))));
    match fun {
        M::Abs => of(f32::abs),
        M::Floor => of(f32::floor),
        M::Ceil => of(f32::ceil),
        M::Round => of(f32::round_ties_even),
        M::Trunc => of(f32::trunc),
        M::Exp => of(f32::exp),
        M::Exp2 => of(f32::exp2),
        M::Log => of(f32::ln),
        M::Log2 => of(f32::log2),
        M::Sqrt => of(f32::sqrt),
        M::InverseSqrt => of(|a| 1.0 / a.sqrt()),
        M::Tanh => of(f32::tanh),
        M::Saturate => of(|a| a.clamp(0.0, 1.0)),
        M::Min => pairs(out, a, arguments[1], |a, b| cell(float(a).min(float(b)))),
        M::Max => pairs(out, a, arguments[1], |a, b| cell(float(a).max(float(b)))),
        M::Pow => pairs(out, a, arguments[1], |a, b| cell(float(a).powf(float(b)))),
        M::Clamp => triples(out, a, arguments[1], arguments[2], |a, low, high| {
            cell(float(a).max(float(low)).min(float(high)))
        }),
        // As on software adapters: not fused.
        M::Fma => triples(out, a, arguments[1], arguments[2], |a, b, c| {
            cell(float(cell(float(a) * float(b))) + float(c))
        }),
        M::Mix => triples(out, a, arguments[1], arguments[2], |a, b, share| {
            cell(float(a) * (1.0 - float(share)) + float(b) * float(share))
        }),
        _ => panic!("the interpreter does not know {fun:?} of floats"),
    }
}
