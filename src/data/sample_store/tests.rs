//! Stores in memory and in files give back what was written.

use super::writer::Written;
use super::*;
use crate::data::batch::NO_LABEL;
use crate::data::files;
use crate::data::sample_formats::Formed;
use crate::data::stream::{Chunk, TokenStream};
use crate::durable::PathOrigin;
use std::collections::BTreeSet;

fn formed() -> Vec<Formed> {
    let notes = |text: &str| BTreeSet::from([text.to_string()]);
    vec![
        Formed { tokens: vec![7, 8, 9], targets: vec![NO_LABEL, 9, NO_LABEL], ..Formed::default() },
        Formed { tokens: vec![], targets: vec![], notes: notes("`x` is not read"), ..Formed::default() },
        // Labels that were shifted already refer to one token more.
        Formed { tokens: vec![1, 2], targets: vec![2, MOST_TOKENS - 1], is_cut: true, ..Formed::default() },
        Formed {
            tokens: vec![5],
            targets: vec![NO_LABEL],
            beside: notes("`y` is not read"),
            ..Formed::default()
        },
    ]
}

fn in_memory() -> SampleStore {
    let mut writer = StoreWriter::in_memory();
    formed().into_iter().for_each(|sample| writer.push(sample).unwrap());
    let Written::Memory(store) = writer.finish().unwrap() else { panic!("in memory") };
    store
}

/// The bytes of the file that holds the same samples.
fn in_file(folder: &std::path::Path) -> Vec<u8> {
    let path = folder.join("store");
    let mut writer = StoreWriter::in_file(PathOrigin("a test").begin(&path).unwrap()).unwrap();
    formed().into_iter().for_each(|sample| writer.push(sample).unwrap());
    let Written::File(file) = writer.finish().unwrap() else { panic!("in a file") };
    file.finish().unwrap();
    std::fs::read(path).unwrap()
}

fn opened(folder: &std::path::Path, bytes: &[u8]) -> Option<SampleStore> {
    let path = folder.join("opened");
    std::fs::write(&path, bytes).unwrap();
    SampleStore::open(files::map(&path).unwrap())
}

fn check(store: SampleStore) {
    let samples: Vec<Stored> = store.samples().collect();
    assert_eq!(samples.iter().map(|sample| sample.tokens).collect::<Vec<_>>(), [3, 0, 2, 1]);
    assert_eq!(samples.iter().map(|sample| sample.is_cut).collect::<Vec<_>>(), [false, false, true, false]);
    let predicted = |tokens| samples.iter().map(|sample| store.predicted(sample, tokens)).collect::<Vec<_>>();
    assert_eq!((predicted(9), predicted(1)), (vec![1, 0, 2, 0], vec![0, 0, 1, 0]));
    assert_eq!(store.notes.said.lines(), ["`x` is not read (1 record)"]);
    assert_eq!(store.notes.beside.lines(), ["`y` is not read (1 record)"]);
    let store = Arc::new(store);
    let all = |places: &[(u64, u64)]| {
        let mut runs = Runs::default();
        places.iter().for_each(|(start, length)| runs.push(*start, *length));
        StoredTokens::of(store.clone(), runs).map(|tokens| {
            let mut stream = TokenStream::default();
            stream.push(Chunk::Stored(tokens));
            let mut ids = vec![0; stream.len() as usize];
            stream.read(0..stream.len(), &mut ids);
            // Any part of the tokens reads the same.
            for start in 0..ids.len() {
                for end in start..ids.len() {
                    let mut part = vec![0; end - start];
                    stream.read(start as u64..end as u64, &mut part);
                    assert_eq!(part, ids[start..end]);
                }
            }
            ids
        })
    };
    let whole: Vec<(u64, u64)> = samples.iter().map(|sample| (sample.start, sample.tokens as u64)).collect();
    let last = MOST_TOKENS - 1;
    assert_eq!(all(&whole), [vec![7, 8, 9, 1, 2, 5], vec![NO_LABEL, 9, NO_LABEL, 2, last, NO_LABEL]]);
    // Runs that are cut, and in another order.
    assert_eq!(
        all(&[(samples[3].start, 1), (samples[0].start, 2)]),
        [vec![5, 7, 8], vec![NO_LABEL, NO_LABEL, 9]]
    );
}

#[test]
fn memory_and_files_give_back_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    check(in_memory());
    check(opened(folder.path(), &in_file(folder.path())).expect("a store"));
}

#[test]
fn a_damaged_or_foreign_file_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = in_file(folder.path());
    for at in 0..48 {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x81;
        assert!(opened(folder.path(), &damaged).is_none(), "byte {at} of the header");
    }
    for at in HEADER_BYTES..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert!(opened(folder.path(), &damaged).is_none(), "byte {at}");
        assert!(opened(folder.path(), &bytes[..at]).is_none(), "cut at {at}");
    }
    assert!(opened(folder.path(), &[]).is_none());
    assert!(opened(folder.path(), &[&bytes[..], &[0]].concat()).is_none());
}

#[test]
fn runs_that_go_last_keep_their_order() {
    let all: Vec<(u64, u64)> = (0..9).map(|number| (10 * number, number % 4)).collect();
    for last in [&[][..], &[0], &[8], &[1, 2, 7], &[0, 1, 2, 3, 4, 5, 6, 7, 8]] {
        let mut runs = Runs::default();
        all.iter().for_each(|(start, length)| runs.push(*start, *length));
        let stayed = runs.move_last(|number| last.contains(&number));
        let (gone, stay): (Vec<_>, Vec<_>) =
            all.iter().copied().partition(|(start, _)| last.contains(&(start / 10)));
        assert_eq!(stayed, stay.len());
        let now: Vec<(u64, u64)> = (0..runs.len()).map(|number| runs.at(number)).collect();
        assert_eq!(now, [stay, gone].concat());
    }
}
