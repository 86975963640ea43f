//! Where a run applies dropout, and that it repeats.

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

/// Runs with the same seed are bit-equal, and each of the three probabilities changes the loss.
#[test]
fn training_repeats_and_differs_from_training_without() {
    let losses = |setup: &Setup| -> Vec<u32> {
        setup.train(4).states.iter().map(|state| state.loss.to_bits()).collect()
    };
    let dropping = losses(&Setup::new("dropping", DROPPING));
    assert_eq!(dropping, losses(&Setup::new("dropping", DROPPING)));
    for share in DROPPING.split(", ") {
        let one = losses(&Setup::new("one", share));
        assert_ne!(one[0], dropping[0], "{share} alone gives the loss of all three");
        assert_ne!(one[0], losses(&Setup::new("none", ""))[0], "{share} does not change the loss");
    }
}
