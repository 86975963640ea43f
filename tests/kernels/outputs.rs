//! What `Gpu::run` and a prepared job read back: floats of every storage type and integers, each as what they are.

use gristmill::device::{Gpu, GpuOptions, Guard, Job, Words};
use gristmill::element::Element::{Bf16, F32, U32};
use gristmill::error::Result;
use gristmill::ops::cast::cast;
use gristmill::ops::step_state::StepState;
use gristmill::ops::work_list::WorkList;
use pollster::block_on;

/// Halfway between two numbers of bf16, of which 1 is even.
const HALFWAY: f32 = 1.0 + 1.0 / 256.0;

fn gpu() -> Gpu {
    block_on(Gpu::request(&GpuOptions::default())).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn integers_and_floats_come_back_together() {
    let (words, [[x], [rounded]]) = block_on(gpu().run(|job| {
        let offsets = job.integers(&[0, 3, 5]);
        WorkList::new(&mut job.rec, offsets, 5);
        let x = job.input(&[1.0, -2.5, HALFWAY], 1, 3);
        let y = job.tensor(1, 3, Bf16);
        cast(&mut job.rec, x, y);
        (Words(offsets), [[x], [y]])
    }))
    .unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(words, [0, 3, 5]);
    assert_eq!((x, rounded), (vec![1.0, -2.5, HALFWAY], vec![1.0, -2.5, 1.0]));
}

#[test]
fn what_a_tensor_does_not_hold_is_one_line() {
    let gpu = gpu();
    let as_floats = block_on(gpu.run(|job| job.integers(&[1, 2]))).expect_err("integers").to_string();
    assert_eq!(
        as_floats,
        "a tensor of 1 x 2 holds u32 words, which are not floats: read them with `Words` or `PreparedJob::words`"
    );
    let as_words = block_on(gpu.run(|job| Words(job.input(&[1.0], 1, 1)))).expect_err("floats").to_string();
    assert!(as_words.starts_with("a tensor of 1 x 1 holds f32 values, not u32 words: "), "{as_words}");

    let mut job = Job::new("outputs", gpu.capabilities());
    let (floats, integers) = (job.tensor(2, 3, F32), job.tensor(2, 3, U32));
    let prepared = block_on(gpu.prepare_job(job, Guard::Off)).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(block_on(prepared.words(&integers)).expect("integers"), [0; 6]);
    assert_eq!(block_on(prepared.values(&floats)).expect("floats"), [0.0; 6]);
    assert!(block_on(prepared.values(&integers)).is_err() && block_on(prepared.words(&floats)).is_err());
}

/// What is written between replays is what the next one reads, padding included; each fault is one line.
#[test]
fn a_prepared_job_takes_other_values() {
    let gpu = gpu();
    let mut job = Job::new("written", gpu.capabilities());
    let (x, y) = (job.tensor(2, 3, Bf16), job.output(2, 3));
    let (ids, state) = (job.integers(&[7; 5]), job.state(StepState { step: 1, ..StepState::default() }));
    let transient = job.rec.tensor("of the recorder", 2, 3, F32);
    cast(&mut job.rec, x, y);
    let prepared = block_on(gpu.prepare_job(job, Guard::Off)).unwrap_or_else(|e| panic!("{e}"));
    for values in [[1.0, -2.0, 3.0, 4.0, 5.0, HALFWAY], [0.0; 6]] {
        prepared.write(&x, &values).expect("six floats");
        block_on(prepared.replay()).expect("a replay");
        let want = values.map(|value| if value == HALFWAY { 1.0 } else { value });
        assert_eq!(block_on(prepared.values(&y)).expect("floats"), want);
    }
    prepared.write_words(&ids, &[1, 2, 3, 4, 5]).expect("five words");
    assert_eq!(block_on(prepared.words(&ids)).expect("words"), [1, 2, 3, 4, 5]);
    assert_eq!(block_on(prepared.state::<StepState>(&state)).expect("a state").step, 1);
    let other = StepState { loss: 2.5, ..StepState::default() };
    prepared.write_state(&state, &other).expect("a state");
    assert_eq!(block_on(prepared.state::<StepState>(&state)).expect("a state"), other);

    let refused = |fault: Result<()>, line: &str| {
        let fault = fault.expect_err(line).to_string();
        assert!(fault.contains(line) && !fault.contains('\n'), "{fault}");
    };
    refused(prepared.write(&x, &[1.0; 5]), "a tensor of 2 x 3 takes 6 values, not 5");
    refused(prepared.write(&ids, &[1.0; 5]), "write them with `write_words`");
    refused(prepared.write_words(&x, &[1; 6]), "write them with `write`");
    refused(prepared.write(&transient, &[1.0; 6]), "make it an input or output of the job");
    refused(prepared.write_state(&ids, &other), "holds u32 values, and not a StepState of 12 words");
}
