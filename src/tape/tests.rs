//! Which closures run in the backward pass, and in which order; the numbers are checked in `tests/kernels/tape.rs`.

use super::{Parameter, Tape};
use crate::element::Element::{F32, U32};
use crate::kernels::Capabilities;
use crate::ops::gelu::Gelu;
use crate::ops::heads::HeadLayout;
use crate::ops::rms_norm::RmsNorm;
use crate::ops::rope::Rope;
use crate::record::{Recorder, Recording};
use std::sync::Mutex;

/// Records one op between two closures, and returns the paths of everything that the backward pass ran.
fn backward(is_training: bool, has_gradient: bool) -> Vec<String> {
    let ran = Mutex::new(Vec::new());
    {
        let note = |tape: &mut Tape<'_, '_>| ran.lock().expect("no panic").push(tape.rec.path());
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
    ran.into_inner().expect("no panic")
}

#[test]
fn always_runs_without_a_gradient() {
    assert_eq!(backward(true, true), ["after.backward", "op.backward", "before.backward"]);
    assert_eq!(backward(true, false), ["after.backward", "before.backward"]);
    assert!(backward(false, true).is_empty());
}

/// Records x -> gelu `a` -> rope in place `b` -> gelu `c` -> gelu `d`, with the results of `drops` dropped, and the
/// backward pass.
fn dropped(drops: &[&'static str]) -> Recording {
    let mut rec = Recorder::new("tape", Capabilities::software());
    let [x, dy] = ["x", "dy"].map(|label| rec.tensor(label, 3, LAYOUT.cols(), F32));
    let positions = rec.tensor("positions", 1, 3, U32);
    let cos_sin = rec.tensor("cos_sin", 8, 4, F32);
    let mut tape = Tape::new(&mut rec);
    let x = tape.leaf(x, true);
    let drops = drops.to_vec();
    let y = tape.recompute(
        move |path| drops.contains(&path),
        |tape| {
            let a = tape.scope("a", |tape| tape.gelu(x, Gelu::Tanh));
            let b = tape.scope("b", |tape| tape.rope(a, positions, cos_sin, LAYOUT, ROPE));
            let c = tape.scope("c", |tape| tape.gelu(b, Gelu::Tanh));
            tape.scope("d", |tape| tape.gelu(c, Gelu::Tanh))
        },
    );
    tape.give(y, dy);
    tape.backward();
    rec.finish()
}

const LAYOUT: HeadLayout = HeadLayout { heads: 1, kv_heads: 1, head_dim: 4, value_dim: 4 };
const ROPE: Rope = Rope { rotary_dim: 4, theta: 100.0, is_interleaved: false };

fn recomputed(recording: &Recording) -> Vec<&str> {
    let paths = recording.dispatches.iter().map(|dispatch| dispatch.path.as_str());
    paths.filter_map(|path| path.strip_suffix(".recomputed")).collect()
}

/// Every dropped result is recorded again once, after everything that it depends on; an in-place op together with the
/// op it writes to.
#[test]
fn a_dropped_result_is_recorded_again_once() {
    assert_eq!(recomputed(&dropped(&[])), [""; 0]);
    assert_eq!(recomputed(&dropped(&["c"])), ["c"]);
    assert_eq!(recomputed(&dropped(&["a"])), ["a", "b"]);
    assert_eq!(recomputed(&dropped(&["b"])), [""; 0], "a writes what b rotates, and is kept");
    assert_eq!(recomputed(&dropped(&["a", "b", "c"])), ["a", "b", "c"]);
    assert_eq!(recomputed(&dropped(&["d"])), [""; 0], "nothing reads the result of the block");
}

/// Ops that are recorded again read and write the new buffers, and so does every reader in the backward pass.
#[test]
fn a_dropped_result_ends_with_the_forward_pass() {
    let (kept, dropped) = (dropped(&[]), dropped(&["a", "c"]));
    let forward = kept.dispatches.iter().position(|dispatch| dispatch.path.ends_with("backward"));
    let ends = |recording: &Recording| -> Vec<(String, bool)> {
        let used = recording.transients.iter().filter(|transient| transient.first != usize::MAX);
        let made = used.filter(|transient| ["a.y", "c.y"].contains(&transient.label.as_str()));
        made.map(|made| (made.label.clone(), Some(made.last) >= forward)).collect()
    };
    let lasts = |pairs: &[(&str, bool)]| -> Vec<(String, bool)> {
        pairs.iter().map(|(label, lasts)| (label.to_string(), *lasts)).collect()
    };
    assert_eq!(ends(&kept), lasts(&[("a.y", true), ("c.y", true)]));
    // Recorded again in the order of demand: d's backward reads c, which reads a.
    assert_eq!(ends(&dropped), lasts(&[("a.y", false), ("c.y", false), ("c.y", true), ("a.y", true)]));
}

#[test]
fn what_is_kept_is_not_recorded_again() {
    let mut rec = Recorder::new("tape", Capabilities::software());
    let [x, dy] = ["x", "dy"].map(|label| rec.tensor(label, 3, 8, F32));
    let mut tape = Tape::new(&mut rec);
    let x = tape.leaf(x, true);
    let y = tape.recompute(
        |_| true,
        |tape| {
            let a = tape.scope("a", |tape| tape.keeping(|tape| tape.gelu(x, Gelu::Tanh)));
            let b = tape.scope("b", |tape| tape.gelu(a, Gelu::Tanh));
            tape.scope("c", |tape| tape.gelu(b, Gelu::Tanh))
        },
    );
    tape.give(y, dy);
    tape.backward();
    assert_eq!(recomputed(&rec.finish()), ["b"]);
}

/// A block that gives no parameter and no input a gradient is not run again; any other block is, once.
#[test]
fn only_a_block_that_needs_gradients_is_recomputed() {
    for (needs_gradient, trains, times) in [(false, false, 0), (false, true, 1), (true, false, 1)] {
        let mut rec = Recorder::new("tape", Capabilities::software());
        let [x, dy] = ["x", "dy"].map(|label| rec.tensor(label, 3, 8, F32));
        let [weight, gradient] = ["w", "dw"].map(|label| rec.tensor(label, 1, 8, F32));
        let parameter = Parameter { weight: vec![weight], gradient: trains.then(|| vec![gradient]) };
        let mut tape = Tape::new(&mut rec);
        let x = tape.leaf(x, needs_gradient);
        let y = tape.recompute(
            |_| true,
            |tape| {
                let h = tape.scope("h", |tape| tape.rms_norm(x, &parameter, RmsNorm::new(1e-5)));
                tape.gelu(h, Gelu::Tanh)
            },
        );
        tape.give(y, dy);
        tape.backward();
        let again = recomputed(&rec.finish()).len();
        assert_eq!(again, times, "input needs a gradient: {needs_gradient}, parameters train: {trains}");
    }
}
