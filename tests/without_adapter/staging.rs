//! How the products of the portable tier use memory. The index functions are the shader's own, evaluated for every
//! invocation; what a GPU makes of the addresses is a model: lines of 128 bytes, and 32 banks of workgroup memory of 4
//! bytes each.

use gristmill::element::Element::{self, Bf16, F32};
use gristmill::kernels::{Capabilities, compose};
use gristmill::ops::matmul::{Layout, Problem, plan};
use naga::{BinaryOperator, Expression, Function, Handle, Literal, MathFunction, Module, Statement};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Invocations of a workgroup.
const LANES: u32 = 256;
/// Invocations whose loads and stores are one instruction.
const WAVE: usize = 32;
/// Groups of 4 elements from one row of an operand to the next: whole lines, as rows of most models are.
const STRIDE: u32 = 1040;

#[test]
fn every_invocation_stages_as_much_as_any_other_and_each_slot_is_written_once() {
    for product in products() {
        for operand in product.operands() {
            let slots: BTreeSet<u32> = operand.numbers().map(|e| operand.slot(e)).collect();
            assert_eq!(operand.loads * LANES, operand.slots, "{operand:?}");
            assert_eq!(slots, (0..operand.slots).collect(), "{operand:?}");
        }
    }
}

#[test]
fn a_load_touches_few_lines() {
    for product in products() {
        for operand in product.operands() {
            let allowed = if operand.is_along_k { 16 } else { 4 };
            for numbers in waves(operand.numbers()) {
                let lines: BTreeSet<u32> =
                    numbers.iter().map(|&e| operand.group(e, 0) * operand.bytes / 128).collect();
                assert!(lines.len() <= allowed, "{operand:?}: {} lines", lines.len());
            }
        }
    }
}

#[test]
fn reads_of_workgroup_memory_meet_in_no_bank_and_stores_at_most_twice() {
    for product in products() {
        for operand in product.operands() {
            let allowed = if operand.is_along_k { 2 } else { 1 };
            for numbers in waves(operand.numbers()) {
                let slots: Vec<u32> = numbers.iter().map(|&e| operand.slot(e)).collect();
                let most = most_in_a_bank(&slots, operand.bytes);
                assert!(most <= allowed, "stores of {operand:?}: {most} in a bank");
            }
            for lanes in waves(0..LANES) {
                let slots: Vec<u32> = lanes.iter().map(|&lane| operand.own_slot(lane)).collect();
                assert_eq!(most_in_a_bank(&slots, operand.bytes), 1, "reads of {operand:?}");
            }
        }
    }
}

/// A tile that is mostly past the edges: k too.
#[test]
fn no_load_leaves_its_operand() {
    for product in products() {
        for operand in product.operands() {
            let operand = Operand { sizes: [5, 6, 7], ..operand };
            let (rows, columns) = match (operand.name, operand.is_along_k) {
                (_, false) => (7, operand.outer()),
                _ => (operand.outer(), 7),
            };
            for (e, k) in operand.numbers().flat_map(|e| [(e, 0), (e, 16)]) {
                let group = operand.group(e, k);
                assert!(group / STRIDE < rows, "{operand:?} loads row {}", group / STRIDE);
                assert!(4 * (group % STRIDE) < columns, "{operand:?} loads column {}", 4 * (group % STRIDE));
            }
        }
    }
}

/// Lanes are served by as many at a time as fill the banks once; lanes that read one address share the access. Returns
/// the largest number of accesses to one bank.
fn most_in_a_bank(slots: &[u32], bytes: u32) -> usize {
    let at_a_time = slots.chunks(128 / bytes as usize);
    let most = at_a_time.map(|slots| {
        let distinct: BTreeSet<u32> = slots.iter().copied().collect();
        let mut banks = BTreeMap::<u32, usize>::new();
        for word in distinct.into_iter().flat_map(|slot| slot * bytes / 4..(slot + 1) * bytes / 4) {
            *banks.entry(word % 32).or_default() += 1;
        }
        banks.into_values().max().unwrap_or(0)
    });
    most.max().unwrap_or(0)
}

fn waves(numbers: impl Iterator<Item = u32>) -> Vec<Vec<u32>> {
    numbers.collect::<Vec<_>>().chunks(WAVE).map(<[u32]>::to_vec).collect()
}

/// The kernel of every tile and layout, in 32 and in 16 bits.
fn products() -> Vec<Product> {
    let tiles = [[2, 2], [1, 2], [2, 1], [1, 1]];
    let all = tiles.into_iter().flat_map(|tile| [F32, Bf16].map(|element| (tile, element)));
    let layouts = [Layout::Nt, Layout::Nn, Layout::Tn];
    all.flat_map(|(tile, element)| layouts.map(|layout| Product::new(tile, layout, element))).collect()
}

struct Product {
    module: Module,
    layout: Layout,
    element: Element,
    constants: HashMap<&'static str, u32>,
}

impl Product {
    fn new([rows4, columns4]: [u32; 2], layout: Layout, element: Element) -> Self {
        let side = |width4| if width4 == 1 { 64 } else { 32768 };
        let problem = Problem { layout, m: side(rows4), n: side(columns4), k: 64 };
        let kernel = plan(problem, element, Capabilities::portable()).kernel;
        let constants: HashMap<_, _> = kernel.constants().iter().copied().collect();
        assert_eq!([constants["TM4"], constants["TN4"]], [rows4, columns4], "{kernel} has another tile");
        let module = compose(&kernel).unwrap_or_else(|e| panic!("{e}")).module;
        Self { module, layout, element, constants }
    }

    fn operands(&self) -> [Operand<'_>; 2] {
        let bytes = if self.element == F32 { 16 } else { 8 };
        [("a", "TM4", self.layout != Layout::Tn), ("b", "TN4", self.layout == Layout::Nt)].map(
            |(name, width4, is_along_k)| {
                let slots = self.constants["DEPTH"] * 16 * self.constants[width4];
                let loads = slots / LANES;
                Operand { module: &self.module, name, bytes, is_along_k, slots, loads, sizes: [8192; 3] }
            },
        )
    }
}

/// One operand of a product of `sizes` m, n, k.
#[derive(Clone, Copy)]
struct Operand<'a> {
    module: &'a Module,
    name: &'static str,
    /// Bytes of a group of 4.
    bytes: u32,
    /// Whether its rows lie along k.
    is_along_k: bool,
    /// Slots of a slice.
    slots: u32,
    /// Groups of a slice that each invocation loads.
    loads: u32,
    sizes: [u32; 3],
}

impl Operand<'_> {
    /// The numbers of the groups of a slice: those of the first load of each invocation, then of the next.
    fn numbers(&self) -> impl Iterator<Item = u32> + use<> {
        0..self.loads * LANES
    }

    /// Its rows or columns that are not k.
    fn outer(&self) -> u32 {
        self.sizes[usize::from(self.name == "b")]
    }

    fn slot(&self, e: u32) -> u32 {
        self.call("slot_of", vec![Value::Number(e)])
    }

    fn own_slot(&self, lane: u32) -> u32 {
        self.call("own_slot_of", vec![Value::Number(lane), Value::Number(0)])
    }

    /// Where group `e` of the slice from step `k` on is, in the first tile.
    fn group(&self, e: u32, k: u32) -> u32 {
        let [m, _, length] = self.sizes;
        let product = [m, length, 0, 0, 0].map(Value::Number).to_vec();
        self.call(
            "group_of",
            vec![Value::Struct(product), Value::Number(0), Value::Number(e), Value::Number(k)],
        )
    }

    fn call(&self, name: &str, arguments: Vec<Value>) -> u32 {
        let name = format!("{name}_{}", self.name);
        let is_it = |function: &Function| function.name.as_ref() == Some(&name);
        let function = self.module.functions.iter().find(|(_, function)| is_it(function));
        let (function, _) = function.unwrap_or_else(|| panic!("the shader has no function {name}"));
        let params = self.params();
        Call { module: self.module, params: &params, function, arguments }.result().number()
    }

    fn params(&self) -> Value {
        let [m, n, k] = self.sizes;
        let values =
            HashMap::from([("m", m), ("n", n), ("k", k), ("a_stride", STRIDE), ("b_stride", STRIDE)]);
        let is_params = |ty: &&naga::Type| ty.name.as_ref().is_some_and(|name| name.ends_with("Params"));
        let params = self.module.types.iter().map(|(_, ty)| ty).find(is_params).expect("a params struct");
        let naga::TypeInner::Struct { members, .. } = &params.inner else { panic!("{params:?}") };
        let value = |member: &naga::StructMember| {
            let name = member.name.as_deref().unwrap_or_default();
            Value::Number(values.get(name).copied().unwrap_or(0))
        };
        Value::Struct(members.iter().map(value).collect())
    }
}

impl std::fmt::Debug for Operand<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rows = if self.is_along_k { "along" } else { "across" };
        let Self { name, bytes, slots, .. } = self;
        write!(f, "{name}, rows {rows} k, {bytes} bytes a group, {slots} slots a slice")
    }
}

#[derive(Clone, Debug)]
enum Value {
    Number(u32),
    Truth(bool),
    Struct(Vec<Value>),
}

impl Value {
    fn number(&self) -> u32 {
        let Self::Number(number) = self else { panic!("{self:?} is no number") };
        *number
    }
}

/// A call of a function without control flow.
struct Call<'a> {
    module: &'a Module,
    params: &'a Value,
    function: Handle<Function>,
    arguments: Vec<Value>,
}

impl Call<'_> {
    fn result(&self) -> Value {
        let function = &self.module.functions[self.function];
        let mut results = HashMap::new();
        for statement in &function.body {
            match statement {
                Statement::Emit(_) => {}
                Statement::Call { function: callee, arguments, result: Some(result) } => {
                    let arguments =
                        arguments.iter().map(|&argument| self.value(argument, &results)).collect();
                    let call = Call { function: *callee, arguments, ..*self };
                    results.insert(*result, call.result());
                }
                Statement::Return { value: Some(value) } => return self.value(*value, &results),
                other => panic!("an index function has no {other:?}"),
            }
        }
        panic!("{:?} returns nothing", function.name);
    }

    fn value(&self, handle: Handle<Expression>, results: &HashMap<Handle<Expression>, Value>) -> Value {
        let of = |handle| self.value(handle, results);
        match &self.module.functions[self.function].expressions[handle] {
            Expression::Literal(literal) => number(literal),
            Expression::Constant(constant) => {
                let init = self.module.constants[*constant].init;
                let Expression::Literal(literal) = &self.module.global_expressions[init] else {
                    panic!("a constant of an index function is a number");
                };
                number(literal)
            }
            Expression::FunctionArgument(index) => self.arguments[*index as usize].clone(),
            Expression::CallResult(_) => results[&handle].clone(),
            Expression::GlobalVariable(_) => self.params.clone(),
            Expression::Load { pointer } => of(*pointer),
            Expression::AccessIndex { base, index } => match of(*base) {
                Value::Struct(members) => members[*index as usize].clone(),
                other => panic!("{other:?} has no members"),
            },
            Expression::Select { condition, accept, reject } => match of(*condition) {
                Value::Truth(true) => of(*accept),
                _ => of(*reject),
            },
            Expression::Math { fun: MathFunction::Min, arg, arg1: Some(other), .. } => {
                Value::Number(of(*arg).number().min(of(*other).number()))
            }
            Expression::Binary { op, left, right } => binary(*op, of(*left).number(), of(*right).number()),
            other => panic!("an index function has no {other:?}"),
        }
    }
}

fn number(literal: &Literal) -> Value {
    let Literal::U32(number) = literal else { panic!("{literal:?} in an index function") };
    Value::Number(*number)
}

fn binary(op: BinaryOperator, left: u32, right: u32) -> Value {
    match op {
        BinaryOperator::Add => Value::Number(left + right),
        BinaryOperator::Subtract => Value::Number(left - right),
        BinaryOperator::Multiply => Value::Number(left * right),
        BinaryOperator::Divide => Value::Number(left / right),
        BinaryOperator::Modulo => Value::Number(left % right),
        BinaryOperator::Less => Value::Truth(left < right),
        other => panic!("an index function has no {other:?}"),
    }
}
