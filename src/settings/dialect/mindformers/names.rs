//! Names of one key: those of MindFormers' older files, of Megatron and of Hugging Face. `names.tsv` lists them.

use super::lines;
use crate::settings::engine::{Named, Names, Source, join, words};
use std::sync::LazyLock;

/// Every key that has several names.
pub(crate) static NAMES: LazyLock<Names> = LazyLock::new(|| {
    let named = |[sections, key, names]: [&'static str; 3]| Named { sections, key, names };
    Names(lines(include_str!("names.tsv")).map(named).collect())
});

/// Writes each key under the name that is read. A key that is given under two names is a fault.
pub(super) fn unify(source: &mut Source) {
    let mut sections: Vec<&str> = NAMES.0.iter().flat_map(|named| words(named.sections)).collect();
    sections.push(""); // the top level
    sections.sort_unstable();
    sections.dedup();
    for section in sections {
        drop_twins(source, section);
        for name in names_in(source, section) {
            source.document.rename(section, &name, NAMES.key(section, &name));
        }
    }
}

/// If a key was written under several of its names, keeps the first.
fn drop_twins(source: &mut Source, section: &str) {
    let names = names_in(source, section);
    for (index, name) in names.iter().enumerate() {
        let key = NAMES.key(section, name);
        if let Some(twin) = names[..index].iter().find(|other| NAMES.key(section, other) == key) {
            let (path, message) = (
                join(section, name),
                format!("another name of `{twin}`, which is given too; keep one of them"),
            );
            source.fault_of(&join(section, key), &path, message);
            source.document.take(&path);
        }
    }
}

fn names_in(source: &Source, section: &str) -> Vec<String> {
    source.entries(section).iter().map(|(name, _)| name.clone()).collect()
}
