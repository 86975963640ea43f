//! The keys of data sets of text: contradictions between them, and how they split text into documents.

use crate::place::{MILL, Place};
use gristmill::data::Batch;

#[test]
fn keys_that_contradict_each_other_are_refused() {
    let place = Place::new();
    let (path, _) = place.tokenizer();
    let of_path = format!("  tokenizer: {}", path.display());
    let text = format!("type: TextDataLoader, dataset_files: {MILL}");
    for (loader, others, expected) in [
        (
            format!("{text}, eod_byte: 0"),
            of_path.as_str(),
            "train_dataset.data_loader.eod_byte: bytes are no tokens beside a `tokenizer`",
        ),
        (
            format!("{text}, data_path: [1, a]"),
            "",
            "data_path: stands beside `dataset_dir` or `dataset_files`; keep one of them",
        ),
        (
            "type: TextDataLoader, data_path: [1, a, 2]".into(),
            "",
            "expected weights and paths by turns, found 3 items",
        ),
        (
            "type: TextDataLoader, data_path: [0, a, 2, b]".into(),
            "",
            "expected a weight above 0 before `a`, found `0`",
        ),
        (
            "type: TextDataLoader, data_path: [a, 1, b, 2]".into(),
            "",
            "expected a weight above 0 before `1`, found `a`",
        ),
        (
            "type: TextDataLoader, data_path: [.inf, a, 2, b]".into(),
            "",
            "expected a weight above 0 before `a`, found `inf`",
        ),
        (
            format!("{text}, documents: page"),
            "",
            "documents: expected file, line or blank_line, found `page`",
        ),
        (text.clone(), "  tokenizer: { vocab_file: x.model }", "`tokenizer_file` is missing"),
        (text.clone(), "  tokenizer: { type: GPT2Tokenizer }", "`tokenizer_file` is missing"),
        (text.clone(), "  tokenizer: ''", "train_dataset.tokenizer: is empty"),
        (text.clone(), "  eod_token_id: 99999999999", "expected a token id, found `99999999999`"),
        ("type: BlendedMegatronDatasetDataLoader".into(), "", "needs `config.data_path`"),
        (
            "type: BlendedMegatronDatasetDataLoader, config: { data_path: x, split: '0, 1' }".into(),
            "",
            "split: expected the shares",
        ),
        (
            "type: BlendedMegatronDatasetDataLoader, config: { data_path: x, seq_length: 9 }".into(),
            "",
            "9 differs from model.model_config.seq_length 8",
        ),
        (
            "type: BlendedMegatronDatasetDataLoader, datasets_type: MockGPT, config: { data_path: x }".into(),
            "",
            "datasets_type: not built yet",
        ),
        (
            "type: BlendedMegatronDatasetDataLoader, config: { data_path: x }".into(),
            "  eval_fraction: 0.1",
            "is `data_loader.config.split` for this loader",
        ),
        (
            "type: BlendedMegatronDatasetDataLoader, config: { data_path: no/such }".into(),
            "",
            "no/such.idx: no such file",
        ),
    ] {
        let error = place.load(&loader, others).map(|data| data.summary).expect_err(&loader);
        assert!(error.contains(expected) && !error.contains('\n'), "{loader} {others}:\n{error}");
    }
}

#[test]
fn the_ends_of_documents_reach_the_batches() {
    let place = Place::new();
    let lines = place.write("lines.txt", "abc\ndefgh\nij\n".repeat(20));
    let loader =
        format!("type: TextDataLoader, documents: line, shuffle: False, dataset_files: {}", lines.display());
    let batch = |others: &str| -> Batch {
        place.load(&loader, others).unwrap_or_else(|e| panic!("{e}")).train.batch(0).expect("a batch")
    };
    let plain = batch("");
    assert_eq!(plain.tokens[..8], *b"abc\0defg".map(u32::from).as_slice());
    assert_eq!((plain.positions[4], plain.starts[4], plain.ends[4]), (4, 0, 8));
    let reset = batch("  eod_reset: True");
    assert_eq!(reset.positions, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 0, 1, 2, 0, 1, 2]);
    assert_eq!(reset.starts, [0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 2, 2, 2, 5, 5, 5]);
    assert_eq!(reset.ends, [4, 4, 4, 4, 8, 8, 8, 8, 2, 2, 5, 5, 5, 8, 8, 8]);
    assert_eq!((&reset.tokens, &reset.targets), (&plain.tokens, &plain.targets));
    let masked = batch("  eod_mask_loss: True");
    assert_eq!((masked.targets[3], masked.targets[2], masked.positions[4]), (u32::MAX, 0, 4));
    // Any other token can end documents too.
    let other = batch(&format!("  eod_token_id: {}\n  reset_position_ids: True", b'd'));
    assert_eq!(other.positions[..8], [0, 1, 2, 3, 4, 0, 1, 2]);
    let tokens =
        format!("type: TokenDataLoader, dataset_files: {}", place.write("x.bin", [0; 400]).display());
    let error = place.load(&tokens, "  eod_mask_loss: True").expect_err("no token that ends a document");
    assert!(error.contains("write `eod_token_id` under train_dataset"), "{error}");
}
