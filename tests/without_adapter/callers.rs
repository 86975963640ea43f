//! A mistake in a program's own shapes is a panic that names the program's line, and what was expected there.

use gristmill::data::{BatchSpec, Batches, SampleCollector};
use gristmill::device::Job;
use gristmill::element::Element::{F32, U32};
use gristmill::kernels::Capabilities;
use gristmill::ops::matmul::{Epilogue, Layout, matmul};
use gristmill::record::{Recorder, Tensor};
use gristmill::settings::RunConfig;
use gristmill::tape::{CrossEntropy, HeadForm, Parameter, Tape};
use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

thread_local! {
    static PANICKED_AT: RefCell<Option<(String, u32)>> = const { RefCell::new(None) };
}

/// Runs `mistake`, which must panic at a line of this file, and returns what it says.
fn said(name: &str, mistake: impl FnOnce()) -> String {
    let panicked = panic::catch_unwind(AssertUnwindSafe(mistake)).expect_err(name);
    let (file, line) = PANICKED_AT.take().expect("the hook");
    let text = panicked.downcast_ref::<String>().cloned();
    let text = text.unwrap_or_else(|| panicked.downcast_ref::<&str>().map_or("", |text| text).to_string());
    assert!(file.ends_with("callers.rs"), "{name} names {file}:{line}: {text}");
    text
}

fn tensor(rec: &mut Recorder, rows: u32, cols: u32) -> Tensor {
    rec.tensor("tensor", rows, cols, F32)
}

fn parameter(rec: &mut Recorder, weight: [u32; 2], gradient: [u32; 2]) -> Parameter {
    let [weight, gradient] = [weight, gradient].map(|[rows, cols]| vec![tensor(rec, rows, cols)]);
    Parameter { weight, gradient: Some(gradient) }
}

#[test]
fn panics_of_shape_name_the_caller() {
    // The first file that is read installs a hook, too: not between the two lines below.
    let _ = RunConfig::parse("seed: 1", Path::new("a.yaml"), &[]);
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let at = info.location().map(|at| (at.file().to_string(), at.line()));
        PANICKED_AT.with(|place| *place.borrow_mut() = at);
        before(info);
    }));
    let rec = || Recorder::new("mistakes", Capabilities::software());
    let text = said("an input of other values", || {
        Job::new("job", Capabilities::software()).input(&[1.0; 3], 1, 4);
    });
    assert!(text.contains("takes 4 values, not 3"), "{text}");
    let text = said("a product of other widths", || {
        let mut rec = rec();
        let [x, w, y] = [(2, 4), (3, 8), (2, 3)].map(|(rows, cols)| tensor(&mut rec, rows, cols));
        matmul(&mut rec, Layout::Nt, x, w, y, Epilogue::default());
    });
    assert!(!text.is_empty());
    let wrong = "a gradient has the shape of its weight";
    let text = said("a weight's gradient, when the op is recorded", || {
        let mut rec = rec();
        let (x, w) = (tensor(&mut rec, 2, 4), parameter(&mut rec, [3, 4], [4, 3]));
        let mut tape = Tape::new(&mut rec);
        let x = tape.leaf(x, true);
        tape.linear(x, &w, None, None);
    });
    assert!(text.contains(&format!("{wrong}: (rows, columns) [(4, 3)] for [(3, 4)]")), "{text}");
    let text = said("a bias's gradient beside a weight that trains", || {
        let mut rec = rec();
        let (x, w) = (tensor(&mut rec, 2, 4), parameter(&mut rec, [3, 4], [3, 4]));
        let bias = parameter(&mut rec, [1, 3], [3, 1]);
        let mut tape = Tape::new(&mut rec);
        let x = tape.leaf(x, true);
        tape.linear(x, &w, Some(&bias), None);
    });
    assert!(text.contains(wrong), "{text}");
    let text = said("a head's gradient", || {
        let mut rec = rec();
        let (h, head) = (tensor(&mut rec, 2, 4), parameter(&mut rec, [8, 4], [8, 8]));
        let [targets, step, loss] = [2, 12, 5].map(|cols| rec.tensor("state", 1, cols, U32));
        let loss = CrossEntropy::new(targets, step, loss);
        let mut tape = Tape::new(&mut rec);
        let h = tape.leaf(h, true);
        tape.linear_cross_entropy(h, &head, &loss, HeadForm::default());
    });
    assert!(text.contains(wrong), "{text}");
    let text = said("a gradient of another shape, given in the backward of an op of one's own", || {
        let mut rec = rec();
        let [x, y, dx, dy] =
            [(2, 4), (2, 8), (2, 8), (2, 8)].map(|(rows, cols)| tensor(&mut rec, rows, cols));
        let mut tape = Tape::new(&mut rec);
        let x = tape.leaf(x, true);
        let y = tape.result(y, &[x], false, move |tape, _| tape.give(x, dx));
        tape.give(y, dy);
        tape.backward();
    });
    assert!(text.contains("a gradient of 2 x 8 was given to a value of 2 x 4"), "{text}");
    let text = said("labels of another number", || SampleCollector::default().push(&[1, 2], &[2]));
    assert!(text.contains("every token must have a target"), "{text}");
    let text = said("a batch of no rows", || {
        let mut samples = SampleCollector::default();
        samples.push(&[1], &[2]);
        let spec = BatchSpec {
            seq_length: 4,
            batch_size: 0,
            micro_batches: 1,
            vocab_size: 8,
            ignore_id: 7,
            sorts_positions: false,
            ahead: 0,
            rank: 0,
            world: 1,
        };
        let _ = Batches::of_sources(vec![samples.finish().into()], spec, None, None);
    });
    assert!(text.contains("no size of a batch may be 0"), "{text}");
}
