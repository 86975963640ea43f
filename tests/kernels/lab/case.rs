//! A case under construction.

use super::{GUARD, allowed, unpadded};
use ::reference::random::Random;
use ::reference::storage::narrowed;
use gristmill::device::Job;
use gristmill::element::Element;
use gristmill::kernels::{Capabilities, Tier};
use gristmill::record::{BufferId, PersistentId, Persistents, Recorder, State, Tensor};
use std::any::Any;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

/// An input with the same rounded values for the kernel and for the reference.
pub struct Input {
    pub tensor: Tensor,
    pub values: Vec<f64>,
}

pub(super) struct Expectation {
    pub label: String,
    pub tensor: Tensor,
    pub want: Want,
}

/// Panics if the words of a tensor are wrong.
type Look = Box<dyn Fn(&[u32])>;

pub(super) enum Want {
    /// Values within an error of `allowed`, relative to their `sizes`.
    Near {
        values: Vec<f64>,
        columns: Range<u32>,
        allowed: f64,
        sizes: Vec<f64>,
        has_pads: bool,
    },
    Words(Look),
}

/// What an error is relative to.
enum Relative {
    /// The size of the element plus this.
    ToRms(f64),
    /// A size for each element.
    ToEach(Vec<f64>),
}

/// What a case has computed [`once`](Case::once), in order. A case is built for each tier and each way to compile its
/// kernels, and a reference takes longer than they do.
#[derive(Clone, Default)]
pub(super) struct Computed(Rc<RefCell<Vec<Rc<dyn Any>>>>);

/// A case under construction: its tensors, its recording, and what must come out.
pub struct Case {
    /// The tensors; the kernels join them in the end.
    job: Job,
    pub rec: Recorder,
    expectations: Vec<Expectation>,
    random: Random,
    /// What earlier builds have computed, and how much of it this one has asked for.
    computed: Computed,
    asked: usize,
}

impl Case {
    pub(super) fn new(capabilities: Capabilities, computed: &Computed) -> Self {
        Self {
            job: Job::new("case", capabilities),
            rec: Recorder::new("case", capabilities),
            expectations: Vec::new(),
            random: Random::new(0x9e37_79b9_7f4a_7c15),
            computed: computed.clone(),
            asked: 0,
        }
    }

    /// What `compute` returns for the first build of this case. It must not depend on the capabilities.
    pub fn once<T: 'static>(&mut self, compute: impl FnOnce() -> T) -> Rc<T> {
        let known = self.computed.0.borrow().get(self.asked).cloned();
        let value = known.unwrap_or_else(|| {
            let value: Rc<dyn Any> = Rc::new(compute());
            self.computed.0.borrow_mut().push(value.clone());
            value
        });
        self.asked += 1;
        value.downcast().expect("every build computes the same things in the same order")
    }

    /// The kernels on their tensors, and what must come out.
    pub(super) fn finish(mut self) -> (Job, Vec<Expectation>) {
        self.job.rec = self.rec;
        (self.job, self.expectations)
    }

    /// The next value of a fixed random sequence, roughly normal.
    pub fn normal(&mut self) -> f64 {
        self.random.near_normal()
    }

    /// Random ids below `bound`.
    pub fn ids_below(&mut self, count: usize, bound: u32) -> Vec<u32> {
        (0..count).map(|_| ((self.normal().abs() * 1e6) as u64 % bound as u64) as u32).collect()
    }

    /// A tensor of random values, rounded to `element`.
    pub fn input(&mut self, rows: u32, cols: u32, element: Element) -> Input {
        let values = self.random.near_normals((rows * cols) as usize);
        self.input_of(&values, rows, cols, element)
    }

    /// A tensor of these values, rounded to `element`.
    pub fn input_of(&mut self, values: &[f64], rows: u32, cols: u32, element: Element) -> Input {
        let mut bytes = Vec::new();
        for row in values.chunks(cols as usize) {
            element.encode_row(&narrowed(row), &mut bytes);
        }
        let tensor = self.placed(rows, cols, element, &bytes);
        let values = unpadded(&element.decode(&bytes), &tensor);
        Input { tensor, values }
    }

    /// A row of integers.
    pub fn integers(&mut self, values: &[u32]) -> Tensor {
        self.words(values, Element::U32)
    }

    /// A row of f32 with these bits.
    pub fn bits(&mut self, values: &[u32]) -> Tensor {
        self.words(values, Element::F32)
    }

    /// A state struct on the device.
    pub fn state<S: State>(&mut self, state: S) -> Tensor {
        self.integers(bytemuck::cast_slice(&[state]))
    }

    /// Lets a model `add` its own tables to the persistent buffers; `fill` names one of them and gives its values.
    pub fn persistent<T>(
        &mut self,
        add: impl FnOnce(&mut Persistents) -> T,
        fill: impl Fn(&T) -> (Tensor, Vec<f32>),
    ) -> T {
        let added = add(self.job.persistents());
        let (table, values) = fill(&added);
        self.job.fill(table, values.iter().flat_map(|value| value.to_le_bytes()).collect());
        added
    }

    /// A tensor that is NaN at the start.
    pub fn output(&mut self, rows: u32, cols: u32, element: Element) -> Tensor {
        let bytes = Tensor::new(BufferId::Persistent(PersistentId(0)), 0, rows, cols, element).bytes();
        self.placed(rows, cols, element, &vec![0xff; bytes as usize])
    }

    fn words(&mut self, values: &[u32], element: Element) -> Tensor {
        let mut bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        bytes.resize(bytes.len().next_multiple_of(16), 0);
        self.placed(1, values.len() as u32, element, &bytes)
    }

    fn placed(&mut self, rows: u32, cols: u32, element: Element, bytes: &[u8]) -> Tensor {
        // Blocks of quantised weights are counted from the start of a buffer.
        let guard = if element.is_quantised() { element.bytes_of(7 * 64) } else { GUARD };
        let mut contents = vec![0xff; (guard + GUARD) as usize + bytes.len()];
        contents[guard as usize..guard as usize + bytes.len()].copy_from_slice(bytes);
        let id = self.job.buffer(contents);
        Tensor::new(BufferId::Persistent(id), guard, rows, cols, element)
    }

    /// The error [`allowed`] to a product of `terms` products of these factors. With activations of 16 bits, matrices
    /// take quantised weights rounded to f16, by up to 2^-11 of each: random errors that may add up to five standard
    /// deviations, 5 / √3 · 2^-11 of the results' root mean square.
    pub fn allowed(&self, [element, weights]: [Element; 2], terms: u32) -> f64 {
        let tier = self.rec.capabilities().for_factors([element, weights]).tier;
        let is_rounded = weights.is_quantised() && element != Element::F32 && tier == Tier::Matrix;
        allowed(element, terms) + if is_rounded { 5.0 / 3f64.sqrt() * 2f64.powi(-11) } else { 0.0 }
    }

    /// Expects every element within `allowed` of the reference, relative to its own size plus the tensor's root mean
    /// square.
    pub fn expect(&mut self, label: &str, tensor: Tensor, want: Vec<f64>, allowed: f64) {
        let rms = root_mean_square(&want);
        self.expect_near(label, tensor, 0..tensor.cols, want, allowed, (Relative::ToRms(rms), true));
    }

    /// The same for differences that may cancel almost completely: the error is relative to `terms`, the operands of
    /// the subtraction, because f32 arithmetic cannot do better.
    pub fn expect_difference(
        &mut self,
        label: &str,
        tensor: Tensor,
        want: Vec<f64>,
        allowed: f64,
        terms: &[f64],
    ) {
        let rms = root_mean_square(terms).max(root_mean_square(&want));
        self.expect_near(label, tensor, 0..tensor.cols, want, allowed, (Relative::ToRms(rms), true));
    }

    /// The same for a range of columns that is a result of its own: the error is relative to the range's root mean
    /// square, so that large neighbours in the row cannot hide it. Guard zones and pads are those of the whole tensor.
    pub fn expect_columns(
        &mut self,
        label: &str,
        tensor: Tensor,
        columns: Range<u32>,
        want: Vec<f64>,
        allowed: f64,
    ) {
        let rms = root_mean_square(&want);
        self.expect_near(label, tensor, columns, want, allowed, (Relative::ToRms(rms), true));
    }

    /// The same for sums that may cancel: the error of each element is relative to its `terms`, the sum of the absolute
    /// values of all that is added up for it, which is at least its own size. So is the bound of an analysis of
    /// rounding errors.
    pub fn expect_terms(
        &mut self,
        label: &str,
        tensor: Tensor,
        columns: Range<u32>,
        want: Vec<f64>,
        allowed: f64,
        terms: Vec<f64>,
    ) {
        self.expect_near(label, tensor, columns, want, allowed, (Relative::ToEach(terms), true));
    }

    /// The same for a vector of scalars, which has no pad.
    pub fn expect_vector(&mut self, label: &str, tensor: Tensor, want: Vec<f64>, allowed: f64) {
        let rms = root_mean_square(&want);
        self.expect_near(label, tensor, 0..tensor.cols, want, allowed, (Relative::ToRms(rms), false));
    }

    fn expect_near(
        &mut self,
        label: &str,
        tensor: Tensor,
        columns: Range<u32>,
        want: Vec<f64>,
        allowed: f64,
        (relative, has_pads): (Relative, bool),
    ) {
        assert!(columns.end <= tensor.cols, "{label}: the tensor has fewer columns");
        assert_eq!(
            want.len(),
            tensor.rows as usize * columns.len(),
            "{label}: the reference has the wrong size"
        );
        let sizes = match relative {
            Relative::ToRms(rms) => want.iter().map(|value| value.abs() + rms).collect(),
            Relative::ToEach(sizes) => sizes,
        };
        assert_eq!(want.len(), sizes.len(), "{label}: each element needs a size");
        self.rec.keep(tensor);
        let want = Want::Near { values: want, columns, allowed, sizes, has_pads };
        self.expectations.push(Expectation { label: label.to_string(), tensor, want });
    }

    /// Lets `look` check the raw words that come out.
    pub fn expect_words(&mut self, label: &str, tensor: Tensor, look: impl Fn(&[u32]) + 'static) {
        self.rec.keep(tensor);
        self.expectations.push(Expectation {
            label: label.to_string(),
            tensor,
            want: Want::Words(Box::new(look)),
        });
    }
}

fn root_mean_square(values: &[f64]) -> f64 {
    (values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64).sqrt()
}
