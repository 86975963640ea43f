//! A run on MindRecord files.
//!
//! It is bit for bit the run on their text.

use crate::runs::Setup;

/// The rows are windows of a text: a run on them has the losses of a run on the text, bit for bit.
#[test]
fn a_run_on_rows_is_the_run_on_their_text() {
    let model = "--model.model_config.seq_length=16";
    let text = "--train_dataset.data_loader={type: TextDataLoader, dataset_files: tests/data/mill.txt, max_bytes: 210}";
    let rows = "--train_dataset.data_loader={type: MindDataset, dataset_dir: tests/data/mindrecord/shards.mindrecord0}";
    let losses = |name, loader| {
        let trained = Setup::new(name, "")
            .with(&[model, loader, "--train_dataset.data_loader.shuffle=False"])
            .train(10);
        trained.states.iter().map(|state| (state.loss, state.grad_norm)).collect::<Vec<_>>()
    };
    let found = losses("mindrecord", rows);
    assert_eq!(found, losses("text", text));
    println!("{found:?}");
}
