//! The sections about data.

use super::{BASE, assert_reads_back, resolve};
use gristmill::settings::Megatron;

/// Data sets with every loader and every key about documents.
const DATASETS: [&str; 11] = [
    "{data_loader: {type: TextDataLoader, documents: blank_line, dataset_dir: a, eod_byte: 3}, eod_reset: True}",
    "{data_loader: {type: TextDataLoader, data_path: [0.75, a, 2, 'b/*.txt'], max_bytes: 99}, tokenizer: t.json}",
    "{data_loader: {type: JsonlDataLoader, text_key: body, dataset_files: a}, seed: 4, eod_mask_loss: True, \
     tokenizer: {tokenizer_file: t.json, eos_token: </s>}}",
    "{data_loader: {type: TokenDataLoader, data_path: [1, a, 3, b], dtype: uint32}, eod_token_id: 7, \
     reset_position_ids: True, eval_fraction: 0.25}",
    "{data_loader: {type: CargoRegistryDataLoader, max_bytes: 500, shuffle: False}, tokenizer: t.json}",
    "{data_loader: {type: BlendedMegatronDatasetDataLoader, datasets_type: GPTDataset, sizes: [1000, 7, 0], config: \
     {seed: 1234, split: '1, 1, 2', seq_length: 32, eod_mask_loss: False, reset_position_ids: True, \
     create_attention_mask: True, reset_attention_mask: False, create_compressed_eod_mask: True, eod_pad_length: 128, \
     eod: 1, pad: 0, data_path: ['0.3', /path/a, '0.7', /path/b]}}}",
    "{data_loader: {type: ADGenDataLoader, dataset_dir: a.json, phase: train, version: 2, origin_columns: [q, a]}, \
     max_source_length: 64, max_target_length: 127, ignore_pad_token_for_loss: True}",
    "{data_loader: {type: CommonDataLoader, path: json, split: train, data_files: {train: [a.json, b.json]}, packing: truncate, \
     handler: [{type: take, n: 20}, {type: rename_column, original_column_name: a, new_column_name: b}, \
     {type: AlpacaInstructDataHandler, seq_length: 32, padding: False, tokenizer: {trust_remote_code: True}}]}, tokenizer: t.json}",
    "{data_loader: {type: CommonDataLoader, path: json, split: test, data_files: {train: a.json, test: b.json}}}",
    "{data_loader: {type: SFTDataLoader, dataset_dir: a.jsonl, dataset_name: multi-round-chat, chat_template: c.jinja, \
     map_function_kwargs: {data_field: talk, from_keyword: who, value_keyword: text, user_role_name: a, assistant_role_name: b}}}",
    "{data_loader: {type: ToolAlpacaDataLoader, dataset_dir: a.jsonl, shuffle: True}, max_seq_length: 2048, tokenizer: t.json}",
];

#[test]
fn every_data_set_reads_back_as_itself() {
    for dataset in DATASETS {
        assert_reads_back(&resolve(BASE, &[&format!("--train_dataset={dataset}")]).unwrap().0);
    }
}

#[test]
fn keys_of_handlers_that_are_not_read_are_noticed() {
    let of = |handler: &str| {
        let loader = format!(
            "--train_dataset.data_loader={{type: HFDataLoader, path: ./a, handler: [{{{handler}}}]}}"
        );
        let notices = resolve(BASE, &[&loader]).unwrap().1;
        notices.into_iter().filter(|notice| notice.contains("handler")).collect::<Vec<_>>()
    };
    let unread = "rows are filled to seq_length, and what fills them is neither attended to nor learned";
    let line = |key: &str, kind: &str| {
        format!("train_dataset.data_loader.handler: `{key}` of `{kind}` is not read; {unread}")
    };
    assert_eq!(
        of(
            "type: PackingHandler, seq_length: 32, pack_strategy: pack, pad_token_id: 3, ignore_token_id: -100"
        ),
        [line("pad_token_id", "PackingHandler"), line("ignore_token_id", "PackingHandler")]
    );
    assert_eq!(
        of("type: AlpacaInstructDataHandler, padding: False, is_dynamic: True"),
        [line("padding", "AlpacaInstructDataHandler"), line("is_dynamic", "AlpacaInstructDataHandler")]
    );
    assert_eq!(of("type: PackingHandler, pad_token_id: None"), [""; 0]);
}

#[test]
fn a_megatron_section_of_the_original() {
    let (plan, notices) = resolve(BASE, &[&format!("--train_dataset={}", DATASETS[5])]).unwrap();
    let data = &plan.settings.train_dataset;
    let Megatron { data_path, split, .. } = data.megatron.as_ref().unwrap();
    assert_eq!(
        (&data_path.paths, &data_path.weights),
        (&vec!["/path/a".into(), "/path/b".into()], &vec![0.3, 0.7])
    );
    assert_eq!((split.0, data.keys.seed), ([0.25, 0.25, 0.5], Some(1234)));
    assert_eq!(data.loader.sizes[..2], [1000, 7]);
    let rules = data.rules();
    assert_eq!((rules.eod, rules.pad, rules.masks_eod_loss), (Some(1), Some(0), false));
    assert!(rules.resets_positions && rules.isolates_documents && plan.isolates_documents());
    assert!(data.keeps_evaluation(), "the second share is for evaluation");
    assert!(notices.iter().all(|notice| !notice.contains("eod_mask_loss")), "{notices:?}");
    // -1 says that there is no such token, and MindFormers' model section may hold the id.
    let plan = resolve(
        BASE,
        &[
            "--train_dataset={data_loader: {type: BlendedMegatronDatasetDataLoader, config: {eod: -1, pad: -1, data_path: [1, a]}}}",
            "--model.model_config.eod_token_id=6",
        ],
    );
    let rules = plan.unwrap().0.settings.train_dataset.rules();
    assert_eq!((rules.eod, rules.pad), (Some(6), None));
}
