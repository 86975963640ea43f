//! Batches of one source and of several.

mod shared;

use super::*;
use crate::data::NO_LABEL;
use crate::data::sample_collector::SampleCollector;
use crate::data::samples::Samples;

fn spec(seq_length: usize, batch_size: usize) -> BatchSpec {
    BatchSpec {
        seq_length,
        batch_size,
        micro_batches: 1,
        vocab_size: 256,
        sorts_positions: false,
        ahead: 0,
        ignore_id: u32::MAX,
        rank: 0,
        world: 1,
    }
}

fn batches(tokens: u32, spec: BatchSpec, shuffle: Option<u64>) -> Result<Batches> {
    let stream = TokenStream::from_bytes((0..tokens).map(|token| token as u8).collect());
    let range = 0..stream.len();
    Batches::new(Arc::new(stream), range, spec, shuffle)
}

#[test]
fn windows_in_order() {
    let batches = batches(14, spec(4, 2), None).unwrap();
    assert_eq!((batches.rows_per_epoch(), batches.steps_per_epoch()), (3, 1));
    let batch = batches.batch(0).unwrap();
    assert_eq!(batch.tokens, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(batch.targets, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(batch.positions, [0, 1, 2, 3, 0, 1, 2, 3]);
    assert_eq!(batch.order, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(batch.position_order, [0; 0]);
    assert_eq!(batches.batch(1).unwrap(), batch);
}

#[test]
fn each_epoch_takes_every_window_once_in_a_new_order() {
    let batches = batches(201, spec(4, 5), Some(9)).unwrap();
    let firsts = |epoch: u64| -> Vec<u32> {
        let steps = epoch * 10..epoch * 10 + 10;
        steps
            .flat_map(|step| batches.batch(step).unwrap().tokens.into_iter().step_by(4).collect::<Vec<_>>())
            .collect()
    };
    let sorted = |mut values: Vec<u32>| {
        values.sort_unstable();
        values
    };
    assert_ne!(firsts(0), firsts(1));
    assert_eq!(sorted(firsts(0)), (0..200).step_by(4).collect::<Vec<_>>());
    assert_eq!(sorted(firsts(0)), sorted(firsts(1)));
}

#[test]
fn accumulation_splits_the_same_step() {
    let whole = batches(1000, spec(4, 8), Some(3)).unwrap();
    let rows = |batch: Batch| batch.tokens.chunks(4).map(<[u32]>::to_vec).collect::<Vec<_>>();
    let accumulated = BatchSpec { micro_batches: 4, ..spec(4, 2) };
    let accumulated = batches(1000, accumulated, Some(3)).unwrap();
    let parts: Vec<_> = (4..8).flat_map(|step| rows(accumulated.batch(step).unwrap())).collect();
    assert_eq!(parts, rows(whole.batch(1).unwrap()));
}

/// The loss must not depend on the number of rows in a micro-batch.
#[test]
fn an_evaluation_takes_every_row_once() {
    let targets = |batch_size| -> Vec<u32> {
        let stream = TokenStream::from_bytes((0..30).collect());
        let (range, content) = (0..stream.len(), SourceContent::Stream(Arc::new(stream)));
        let source = DataSource { content, range, weight: 1.0, name: String::new() };
        let batches = Batches::of_evaluation(vec![source], spec(4, batch_size), None).unwrap();
        assert_eq!(batches.micro_steps_per_epoch(), 7_u64.div_ceil(batch_size as u64));
        assert!((batches.unigram_entropy() - 28_f64.ln()).abs() < 1e-12, "every target occurs once");
        let all = (0..batches.micro_steps_per_epoch()).flat_map(|step| batches.batch(step).unwrap().targets);
        all.filter(|target| *target != u32::MAX).collect()
    };
    for batch_size in [1, 2, 3, 7, 16] {
        assert_eq!(targets(batch_size), (1..29).collect::<Vec<_>>(), "{batch_size} rows");
    }
}

#[test]
fn filling_again_allocates_nothing() {
    let batches = batches(500, spec(8, 4), Some(1)).unwrap();
    let mut batch = batches.batch(0).unwrap();
    let pointers = |batch: &Batch| {
        let Batch { tokens, targets, positions, starts, ends, order, position_order, .. } = batch;
        [tokens, targets, positions, starts, ends, order, position_order].map(|b| b.as_ptr())
    };
    let before = pointers(&batch);
    batches.fill(5, &mut batch).unwrap();
    assert_eq!(before, pointers(&batch));
    assert_eq!(batch, batches.batch(5).unwrap());
}

#[test]
fn positions_are_sorted_where_a_model_learns_them() {
    let batches = batches(14, BatchSpec { sorts_positions: true, ..spec(4, 2) }, None).unwrap();
    let batch = batches.batch(0).unwrap();
    assert_eq!(batch.position_order, [0, 4, 1, 5, 2, 6, 3, 7]);
}

#[test]
fn too_little_data_is_named() {
    let message = |result: Result<Batches>| result.unwrap_err().to_string();
    assert_eq!(
        message(batches(8, spec(8, 1), None)),
        "seq_length 8 is longer than the data: a window takes 9 tokens, 8 were found; lower model.model_config.seq_length or name more data"
    );
    assert!(batches(9, spec(8, 1), None).is_ok());
    let error = message(batches(30, spec(8, 4), None));
    assert!(
        error.starts_with("a step takes 4 windows of 8 tokens, the data has 3: lower batch_size"),
        "{error}"
    );
    let narrow = BatchSpec { vocab_size: 16, ..spec(4, 1) };
    let error = batches(18, narrow, None).unwrap().batch(3).unwrap_err().to_string();
    assert!(error.starts_with("token 16 at position 16 of the data is outside vocab_size 16"), "{error}");
}

/// Three sources of different lengths and weights; token / 64 is the number of the source.
fn three(shuffle: Option<u64>, samples: Option<u64>) -> Batches {
    let source = |name: &str, first: u8, tokens: usize, weight: f64| {
        let bytes: Vec<u8> = (0..tokens).map(|i| first + (i % 64) as u8).collect();
        let stream = TokenStream::from_bytes(bytes);
        DataSource { range: 0..stream.len(), content: stream.into(), weight, name: name.to_string() }
    };
    let sources = vec![source("a", 0, 41, 0.5), source("b", 64, 121, 0.3), source("c", 128, 401, 0.2)];
    Batches::of_sources(sources, spec(4, 3), shuffle, samples).unwrap()
}

/// The source and the first token of every row of the micro-batches `steps`.
fn rows(batches: &Batches, steps: std::ops::Range<u64>) -> Vec<(u32, u32)> {
    let firsts = |step| batches.batch(step).unwrap().tokens.into_iter().step_by(4).collect::<Vec<_>>();
    steps.flat_map(firsts).map(|token| (token / 64, token)).collect()
}

#[test]
fn sources_are_drawn_by_weight() {
    let batches = three(Some(3), None);
    assert_eq!((batches.rows_per_epoch(), batches.steps_per_epoch()), (10 + 30 + 100, 46));
    let rows = rows(&batches, 0..100);
    let counts = [0, 1, 2].map(|source| rows.iter().filter(|row| row.0 == source).count());
    assert_eq!(counts, [150, 90, 60]);
    // Every window of a source comes once before any window comes again, and the next epoch has another order.
    let of_a: Vec<u32> = rows.iter().filter(|row| row.0 == 0).map(|row| row.1).collect();
    let sorted = |part: &[u32]| {
        let mut part = part.to_vec();
        part.sort_unstable();
        part
    };
    for epoch in of_a.chunks(10) {
        assert_eq!(sorted(epoch), (0..40).step_by(4).collect::<Vec<_>>());
    }
    assert_ne!(of_a[..10], of_a[10..20]);
}

#[test]
fn a_run_resumed_within_a_blend_sees_the_next_samples() {
    // A resumed run builds its batches anew and asks for the next number, here in the middle of every source's epoch.
    let whole = rows(&three(Some(3), None), 0..60);
    assert_eq!(rows(&three(Some(3), None), 23..60), whole[23 * 3..]);
    assert_ne!(rows(&three(Some(3), None), 22..59), whole[23 * 3..]);
    assert_ne!(rows(&three(Some(4), None), 0..60), whole, "another seed is another order");
}

#[test]
fn sizes_decide_the_epoch_of_one_source_too() {
    assert_eq!((three(None, Some(31)).rows_per_epoch(), three(None, Some(31)).steps_per_epoch()), (31, 10));
    let stream = TokenStream::from_bytes((0..21).collect());
    let source = DataSource { range: 0..21, content: stream.into(), weight: 1.0, name: String::new() };
    let batches = Batches::of_sources(vec![source.clone()], spec(4, 2), None, Some(8)).unwrap();
    // Five windows, one epoch after the other.
    let firsts: Vec<u32> =
        (0..4).flat_map(|step| batches.batch(step).unwrap().tokens.into_iter().step_by(4)).collect();
    assert_eq!(firsts, [0, 4, 8, 12, 16, 0, 4, 8]);
    let error = Batches::of_sources(vec![source], spec(4, 2), None, Some(1)).unwrap_err().to_string();
    assert!(error.starts_with("a step takes 2 windows of 4 tokens, `sizes` asks for 1: "), "{error}");
}

#[test]
fn the_fingerprint_sees_what_changes_the_batches() {
    let plain = three(None, None).fingerprint();
    assert_eq!(plain, three(Some(9), None).fingerprint(), "the order has a seed of its own");
    assert_ne!(plain, three(None, Some(31)).fingerprint());
    let rules = DocumentRules { eod: Some(3), resets_positions: true, ..DocumentRules::default() };
    assert_ne!(plain, three(None, None).with_rules(rules).fingerprint());
    let heavier = |mut batches: Batches| {
        batches.sources[1].weight = 0.4;
        batches
    };
    assert_ne!(plain, heavier(three(None, None)).fingerprint());
}

/// The fingerprints that checkpoints of version 0.1 hold: if one of them changes, those runs no longer resume.
#[test]
fn fingerprints_are_frozen() {
    let none = DocumentRules::default();
    let reset = DocumentRules {
        eod: Some(0),
        resets_positions: true,
        isolates_documents: true,
        ..DocumentRules::default()
    };
    let masked = DocumentRules { eod: Some(50_256), masks_eod_loss: true, ..DocumentRules::default() };
    let padded = DocumentRules { pad: Some(u32::MAX - 1), ..DocumentRules::default() };
    for (rules, expected) in [
        (none, 0x0106_8800_5da8_e96c),
        (reset, 0xf406_f5cf_b758_71df),
        (masked, 0xa998_91bc_c274_1b98),
        (padded, 0xd072_e05e_496f_211b_u64),
    ] {
        let got = batches(201, spec(4, 5), Some(9)).unwrap().with_rules(rules.clone()).fingerprint();
        assert_eq!(got, expected, "{rules:?}: {got:#x}");
    }
}

#[test]
fn a_source_too_short_is_named() {
    let source = |name: &str, tokens: usize| {
        let stream = TokenStream::from_bytes(vec![0; tokens]);
        DataSource { range: 0..tokens as u64, content: stream.into(), weight: 1.0, name: name.to_string() }
    };
    let error = Batches::of_sources(vec![source("long", 99), source("short", 4)], spec(4, 1), None, None);
    let error = error.unwrap_err().to_string();
    assert!(
        error.starts_with("seq_length 4 is longer than short: a window takes 5 tokens, 4 were found"),
        "{error}"
    );
}

/// Samples of 1 to 5 tokens. Sample i has the tokens 10 i + 1 to 10 i + 1 + i mod 5, the first of which is a prompt;
/// the last sample is packed from two documents.
fn samples() -> Samples {
    let mut collector = SampleCollector::default();
    for sample in 0..9u32 {
        let tokens: Vec<u32> = (0..=sample % 5).map(|token| 10 * sample + 1 + token).collect();
        let targets: Vec<u32> =
            tokens.iter().map(|token| if token % 10 == 1 { NO_LABEL } else { token + 1 }).collect();
        collector.push(&tokens, &targets);
    }
    collector.push_document(&[101, 102], &[102, NO_LABEL]);
    collector.push_document(&[103], &[104]);
    collector.end_sample();
    collector.finish()
}

fn of_samples(spec: BatchSpec, shuffle: Option<u64>) -> Batches {
    let samples = samples();
    let source =
        DataSource { range: 0..samples.len(), content: samples.into(), weight: 1.0, name: String::new() };
    Batches::of_sources(vec![source], spec, shuffle, None).unwrap()
}

#[test]
fn samples_are_rows_with_padding_outside_the_loss() {
    let spec = BatchSpec { ignore_id: 77, ahead: 1, ..spec(4, 2) };
    let batches = of_samples(spec, None);
    assert_eq!((batches.rows_per_epoch(), batches.steps_per_epoch()), (10, 5));
    let batch = batches.batch(1).unwrap();
    assert_eq!(batch.tokens, [21, 22, 23, 0, 31, 32, 33, 34]);
    assert_eq!(batch.targets, [77, 23, 24, 77, 77, 33, 34, 35]);
    assert_eq!((&batch.starts[..4], &batch.ends[..4]), (&[0, 0, 0, 3][..], &[3, 3, 3, 4][..]));
    assert_eq!(batch.positions, [0, 1, 2, 0, 0, 1, 2, 3]);
    assert_eq!(batch.order, [3, 0, 1, 2, 4, 5, 6, 7]);
    assert_eq!(batch.ahead[0].tokens, [22, 23, 0, 0, 32, 33, 34, 0]);
    assert_eq!(batch.ahead[0].targets, [23, 24, 77, 77, 33, 34, 35, 77]);
    // The fifth sample has one token more than a row, and the last sample has two documents.
    let batch = batches.batch(4).unwrap();
    assert_eq!(batch.tokens, [81, 82, 83, 84, 101, 102, 103, 0]);
    assert_eq!(batch.targets, [77, 83, 84, 85, 102, 77, 104, 77]);
    assert_eq!((&batch.starts[4..], &batch.ends[4..]), (&[0, 0, 2, 3][..], &[2, 2, 3, 4][..]));
    assert_eq!(batch.positions[4..], [0, 1, 0, 0]);
    let targets = |step| batches.batch(step).unwrap().targets.into_iter().filter(|target| *target != 77);
    let counted = (0..5).flat_map(targets).count() as f64;
    assert!((batches.unigram_entropy() - counted.ln()).abs() < 1e-12, "every target occurs once");
}

#[test]
fn samples_are_dealt_once_an_epoch_and_resume_by_number() {
    let shuffled = of_samples(spec(5, 2), Some(5));
    let firsts = |steps: std::ops::Range<u64>| -> Vec<u32> {
        steps.flat_map(|step| shuffled.batch(step).unwrap().tokens.into_iter().step_by(5)).collect()
    };
    let (first, second) = (firsts(0..5), firsts(5..10));
    assert_ne!(first, second);
    let sorted = |mut rows: Vec<u32>| {
        rows.sort_unstable();
        rows
    };
    assert_eq!(sorted(first.clone()), [1, 11, 21, 31, 41, 51, 61, 71, 81, 101]);
    assert_eq!(sorted(first), sorted(second));
    assert_eq!(of_samples(spec(5, 2), Some(5)).batch(7).unwrap(), shuffled.batch(7).unwrap());
}

/// Frozen like the fingerprint of streams: if it changes, runs on samples no longer resume.
#[test]
fn the_fingerprint_of_samples_is_frozen_and_sees_labels() {
    let print = of_samples(spec(5, 2), None).fingerprint();
    assert_eq!(print, 0xebff_b59f_e8ce_f76c, "{print:#x}");
    let of = |targets: &[u32]| {
        let mut collector = SampleCollector::default();
        collector.push(&[1, 2, 3], targets);
        let samples = collector.finish();
        let source = DataSource { range: 0..1, content: samples.into(), weight: 1.0, name: String::new() };
        Batches::of_sources(vec![source], spec(4, 1), None, None).unwrap().fingerprint()
    };
    assert_ne!(of(&[NO_LABEL, 3, 4]), of(&[2, 3, 4]));
}

#[test]
fn samples_beside_windows_are_one_blend() {
    let stream: SourceContent = TokenStream::from_bytes((200..233).collect()).into();
    let samples = samples();
    let sources = vec![
        DataSource { range: 0..33, content: stream, weight: 1.0, name: "a".to_string() },
        DataSource { range: 0..samples.len(), content: samples.into(), weight: 1.0, name: "b".to_string() },
    ];
    let batches = Batches::of_sources(sources, spec(4, 2), None, None).unwrap();
    assert_eq!(batches.batch(1).unwrap().tokens, [204, 205, 206, 207, 11, 12, 0, 0]);
}
