//! What runs in the backward pass, and in which order; the numbers are checked in `tests/tape.rs`.

use super::Tape;
use crate::element::Element::F32;
use crate::kernels::Capabilities;
use crate::record::Recorder;
use std::cell::{Cell, RefCell};

/// Records one op between two closures, and returns the paths of what the backward pass ran.
fn backward(is_training: bool, has_gradient: bool) -> Vec<String> {
    let ran = RefCell::new(Vec::new());
    {
        let note = |tape: &mut Tape<'_, '_>| ran.borrow_mut().push(tape.rec.path());
        let mut rec = Recorder::new("tape", Capabilities::software());
        let [x, y, dy] = ["x", "y", "dy"].map(|label| rec.tensor(label, 1, 4, F32));
        let mut tape = if is_training { Tape::new(&mut rec) } else { Tape::forward_only(&mut rec) };
        let x = tape.leaf(x, true);
        tape.scope("before", |tape| tape.always(note));
        let y = tape.scope("op", |tape| tape.result(y, &[x], false, move |tape, _| note(tape)));
        tape.scope("after", |tape| tape.always(note));
        if has_gradient {
            tape.give(y, dy);
        }
        tape.backward();
    }
    ran.into_inner()
}

#[test]
fn always_runs_without_a_gradient() {
    assert_eq!(backward(true, true), ["after.backward", "op.backward", "before.backward"]);
    assert_eq!(backward(true, false), ["after.backward", "before.backward"]);
    assert!(backward(false, true).is_empty());
}

/// A block that gives no parameter and no input a gradient is not run again; any other is, once.
#[test]
fn only_a_block_that_needs_gradients_is_recomputed() {
    for (needs_gradient, trains, times) in [(false, false, 1), (false, true, 2), (true, false, 2)] {
        let runs = Cell::new(0);
        let mut rec = Recorder::new("tape", Capabilities::software());
        let [x, y, dy] = ["x", "y", "dy"].map(|label| rec.tensor(label, 1, 4, F32));
        let mut tape = Tape::new(&mut rec);
        let x = tape.leaf(x, needs_gradient);
        let y = tape.checkpoint(x, |tape, x| {
            runs.set(runs.get() + 1);
            tape.result(y, &[x], trains, |_, _| {})
        });
        tape.give(y, dy);
        tape.backward();
        drop(tape);
        assert_eq!(runs.get(), times, "input needs a gradient: {needs_gradient}, parameters train: {trains}");
    }
}
