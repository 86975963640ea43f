//! Where a run applies dropout; `resume.rs` has that it repeats.

use crate::runs::Setup;
use gristmill::kernels::Capabilities;
use gristmill::record::Recording;
use gristmill::train::recordings::Recordings;

const DROPPING: &str = "attention_dropout: 0.1, hidden_dropout: 0.2, emb_dropout_prob: 0.1";

/// Only the training micro-step draws masks, and only where a probability is above 0.
#[test]
fn evaluation_and_generation_drop_nothing() {
    let drops = |setup: &Setup| -> Vec<usize> {
        let recordings = Recordings::new(&setup.plan(), Capabilities::software(), 10).expect("recordings");
        let draws = |name: &str| name.starts_with("dropout:") || name.contains("+dropout");
        let count = |recording: &Recording| {
            recording.dispatches.iter().filter(|dispatch| draws(&dispatch.kernel.to_string())).count()
        };
        recordings.all().into_iter().map(count).collect()
    };
    let sample = ["--sample.prompt=a", "--sample.tokens=1"];
    assert_eq!(drops(&Setup::new("still", "").with(&sample)), [0; 6]);
    // The counter; the embedding forward and backward; in each of 2 layers 3 attention kernels and 2 pairs of dropout
    // kernels.
    assert_eq!(drops(&Setup::new("dropping", DROPPING).with(&sample)), [1 + 2 + 2 * (3 + 4), 0, 0, 0, 0, 0]);
    let zero = "attention_dropout: 0.0, hidden_dropout: 0, emb_dropout_prob: 0.0";
    assert_eq!(drops(&Setup::new("zero", zero).with(&sample)), [0; 6]);
}

/// Each of the three probabilities changes the loss.
#[test]
fn training_differs_from_training_without() {
    let loss = |keys: &str| Setup::new("dropping", keys).train(1).states[0].loss;
    let (dropping, none) = (loss(DROPPING), loss(""));
    for share in DROPPING.split(", ") {
        let one = loss(share);
        assert_ne!(one, dropping, "{share} alone gives the loss of all three");
        assert_ne!(one, none, "{share} does not change the loss");
    }
}
