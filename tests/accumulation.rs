//! One step is the same step however it is cut: into micro-batches, or its tensors into segments.

mod runs;

use gristmill::train::Trainer;
use gristmill::train::state::StepState;
use runs::{Setup, Weights, relative_distance, tensors};

/// Gradients, loss and weights must agree this closely: only the order of sums differs.
const ALLOWED: f64 = 1e-5;

/// What one step does.
struct Step {
    gradients: Weights,
    before: Weights,
    after: Weights,
    state: StepState,
}

/// The first step of a run. Without warm-up, whose first step has the learning rate 0 and leaves the weights alone.
fn first_step(setup: &Setup) -> Step {
    let (plan, data, length) = setup.data();
    let gpu = setup.gpu();
    let mut trainer =
        pollster::block_on(Trainer::new(&gpu, &plan, &length)).unwrap_or_else(|e| panic!("{e}"));
    let before = tensors(&trainer, |arenas| &arenas.weights);
    pollster::block_on(trainer.micro_steps(&data.train, 0)).expect("gradients");
    let gradients = tensors(&trainer, |arenas| &arenas.gradients);
    pollster::block_on(trainer.step(1, &data.train, 0)).expect("a step");
    pollster::block_on(trainer.wait()).expect("the device");
    let states = trainer.finished_steps().expect("states");
    let after = tensors(&trainer, |arenas| &arenas.weights);
    Step { gradients, before, after, state: states[0].state }
}

fn close(what: &str, error: f64) {
    println!("{what}: off by {:.1} % of what is allowed", 100.0 * error / ALLOWED);
    assert!(error <= ALLOWED, "{what} differ by {error:.2e}, allowed are {ALLOWED:.0e}");
}

fn same_gradients(name: &str, one: &Step, other: &Step) {
    let loss = |step: &Step| step.state.loss as f64;
    close(&format!("{name}, losses"), (loss(one) - loss(other)).abs() / loss(other));
    close(&format!("{name}, gradient arenas"), relative_distance(&one.gradients, &other.gradients));
}

fn same_weights(name: &str, one: &Step, other: &Step) {
    let moved = relative_distance(&one.after, &one.before);
    assert!(
        moved > 100.0 * ALLOWED,
        "{name}: the step moved the weights by {moved:.2e}, too little to compare"
    );
    close(&format!("{name}, weights after the step"), relative_distance(&one.after, &other.after));
}

/// `Batches` deals a step the same windows whether they come in one micro-batch or in four; its own tests prove that
/// (`accumulation_and_ranks_split_the_same_step`), so shuffling may stay on.
#[test]
fn four_micro_batches_of_two_are_one_batch_of_eight() {
    let shapes = [
        ("llama", ""),
        ("qwen", "n_kv_heads: 2, qkv_has_bias: True, use_qk_norm: True, tie_word_embeddings: True"),
    ];
    for (name, model) in shapes {
        let setup = |batch: &str, accumulation: &str| {
            let accumulation = format!("--gradient_accumulation_steps={accumulation}");
            Setup::new(name, model).with(&[
                &format!("--batch_size={batch}"),
                &accumulation,
                "--lr_schedule.warmup_steps=0",
            ])
        };
        let (micro, whole) = (first_step(&setup("2", "4")), first_step(&setup("8", "1")));
        same_gradients(name, &micro, &whole);
        same_weights(name, &micro, &whole);
    }
}

/// Tokens of a vocabulary of 8192, the small ones more often, as a file of 16-bit ids.
fn token_file(folder: &std::path::Path) -> String {
    let mut state = 1u64;
    let mut token = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let uniform = (state >> 33) as f64 / (1u64 << 31) as f64;
        (8192.0 * uniform * uniform) as u16
    };
    let bytes: Vec<u8> = (0..4096).flat_map(|_| token().to_le_bytes()).collect();
    let path = folder.join("tokens.bin");
    std::fs::write(&path, bytes).expect("a token file");
    path.display().to_string()
}

/// (8192, 64) is 2 MiB: under a limit of 1 MiB, embedding, head and arenas lie in several buffers, and the logits come
/// in smaller chunks. The losses after each update tell whether the weights agree. Weights one by one do not: AdamW's
/// first update is the gradient's sign, and of 600,000 gradients, sums of 8192 products in another order, one or two
/// are smaller than their rounding error.
#[test]
fn a_binding_limit_of_one_mebibyte_changes_no_number() {
    let folder = tempfile::tempdir().expect("a folder");
    let loader = format!(
        "--train_dataset.data_loader={{type: TokenDataLoader, dataset_files: '{}'}}",
        token_file(folder.path())
    );
    for tied in ["False", "True"] {
        let tied_key = format!("--model.model_config.tie_word_embeddings={tied}");
        let setup = |limit| {
            let mut setup = Setup::new("segments", "").with(&[
                "--model.model_config.vocab_size=8192",
                "--model.model_config.hidden_size=64",
                "--lr_schedule.warmup_steps=0",
                &tied_key,
                &loader,
            ]);
            setup.gpu_options.binding_bytes = limit;
            setup
        };
        let (whole, split) = (setup(None), setup(Some(1 << 20)));
        let name = format!("1 MiB, tied {tied}");
        same_gradients(&name, &first_step(&split), &first_step(&whole));
        let steps = 5;
        let (whole, split) = (whole.train(steps), split.train(steps));
        for (step, (a, b)) in split.states.iter().zip(&whole.states).enumerate() {
            close(&format!("{name}, losses of step {}", step + 1), ((a.loss - b.loss) / b.loss).abs() as f64);
        }
    }
}
