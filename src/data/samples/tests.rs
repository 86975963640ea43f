//! Samples as rows.

use super::*;
use crate::data::sample_collector::SampleCollector;
use crate::data::stream::Chunk;

const NO: u32 = NO_LABEL;

fn row(samples: &Samples, sample: u64, len: usize) -> (Vec<u32>, Vec<u32>) {
    let (mut tokens, mut targets) = (vec![99; len], vec![99; len]);
    samples.read(sample, &mut tokens, &mut targets);
    (tokens, targets)
}

fn documents(samples: &Samples, sample: u64, len: usize) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    samples.for_each_document(sample, len, |range| found.push(range));
    found
}

fn stream(ids: &[u32]) -> TokenStream {
    let mut stream = TokenStream::default();
    stream.push(Chunk::Ids(ids.to_vec()));
    stream
}

#[test]
fn samples_are_padded_or_cut() {
    let mut collector = SampleCollector::default();
    collector.push(&[1, 2, 3], &[NO, 3, 4]);
    collector.push(&[5, 6, 7, 8], &[NO, 7, 8, 9]);
    let samples = collector.finish();
    assert_eq!(samples.len(), 2);
    assert_eq!(row(&samples, 0, 5), (vec![1, 2, 3, 0, 0], vec![NO, 3, 4, NO, NO]));
    assert_eq!(row(&samples, 1, 5), (vec![5, 6, 7, 8, 0], vec![NO, 7, 8, 9, NO]));
    assert_eq!(row(&samples, 1, 2), (vec![5, 6], vec![NO, 7]));
    assert_eq!(documents(&samples, 0, 5), [0..3, 3..5]);
    assert_eq!(documents(&samples, 1, 4), [0..4; 1]);
}

#[test]
fn an_empty_sample_is_padding() {
    let labels = stream(&[NO, 2, 3, NO, NO, 6]);
    let samples = Samples::new(stream(&[1, 2, 3, 4, 5, 6]), labels, vec![3, 3, 6]);
    assert_eq!(row(&samples, 1, 2), (vec![0, 0], vec![NO, NO]));
    assert_eq!(row(&samples, 2, 4), (vec![4, 5, 6, 0], vec![NO, NO, 6, NO]));
}

#[test]
fn packed_documents_are_told_apart() {
    let mut collector = SampleCollector::default();
    collector.push_document(&[1, 2], &[2, NO]);
    collector.push_document(&[3, 4, 5], &[4, 5, NO]);
    collector.end_sample();
    collector.push(&[6], &[7]);
    let samples = collector.finish();
    assert_eq!((samples.len(), samples.tokens_of(1..2)), (2, 5..6));
    assert_eq!(row(&samples, 0, 6).0, [1, 2, 3, 4, 5, 0]);
    assert_eq!(documents(&samples, 0, 6), [0..2, 2..5, 5..6]);
    assert_eq!(documents(&samples, 0, 4), [0..2, 2..4], "what was cut is gone");
    assert_eq!(documents(&samples, 1, 2), [0..1, 1..2]);
}

#[test]
fn what_no_vocabulary_has_is_named() {
    assert!(check_row(0, &[1, 8], &[8, NO], 9, None).is_ok());
    assert!(check_row(0, &[1, 11], &[11, NO], 9, Some(11)).is_ok());
    let error =
        |tokens: &[u32], targets: &[u32]| check_row(4, tokens, targets, 9, None).unwrap_err().to_string();
    assert!(error(&[1, 8], &[9, NO]).starts_with("label 9 of sample 5 of the data is outside vocab_size 9"));
    assert!(error(&[NO, 8], &[1, 1]).starts_with("sample 5 of the data has a value that is not a token id"));
}

proptest::proptest! {
    /// A row is the sample's tokens and targets, then padding, and its documents cover it without a gap.
    #[test]
    fn every_row_is_a_sample(
        lengths in proptest::collection::vec(proptest::collection::vec(1usize..6, 1..4), 1..6),
        seq_length in 1usize..12,
    ) {
        let mut collector = SampleCollector::default();
        let mut next = 0u32;
        let mut expected: Vec<Vec<u32>> = Vec::new();
        for documents in &lengths {
            let first = next;
            for length in documents {
                let tokens: Vec<u32> = (next..next + *length as u32).collect();
                let targets: Vec<u32> = tokens.iter().map(|token| token + 1).collect();
                collector.push_document(&tokens, &targets);
                next += *length as u32;
            }
            collector.end_sample();
            expected.push((first..next).collect());
        }
        let samples = collector.finish();
        proptest::prop_assert_eq!(samples.len(), lengths.len() as u64);
        for (sample, mut tokens) in expected.into_iter().enumerate() {
            let mut targets: Vec<u32> = tokens.iter().map(|token| token + 1).collect();
            tokens.resize(seq_length, 0);
            targets.resize(seq_length, NO);
            proptest::prop_assert_eq!(row(&samples, sample as u64, seq_length), (tokens, targets));
            let mut end = 0;
            samples.for_each_document(sample as u64, seq_length, |range| {
                assert_eq!(range.start, end);
                end = range.end;
            });
            proptest::prop_assert_eq!(end, seq_length);
        }
    }
}
