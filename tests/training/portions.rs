//! Initial weights reach the device in portions, so that no copy of all of them waits on the host.

use crate::runs::{Setup, new_trainer};

#[test]
fn initial_weights_are_submitted_in_portions() {
    // Embedding and head take 18 MiB each.
    let setup =
        Setup::new("portions", "").with(&["--model.model_config.vocab_size=150000", "--batch_size=1"]);
    let (plan, _, length) = setup.data();
    let gpu = setup.gpu();
    let before = gpu.submissions();
    let trainer = new_trainer(&gpu, &plan, &length);
    let portions = gpu.submissions() - before;
    println!("{portions} submissions of {} MiB", trainer.persistent_bytes() >> 20);
    assert!(portions >= 2, "36 MiB of weights went to the device in {portions} submissions");
}
