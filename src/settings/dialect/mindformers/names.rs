//! Names of one key: those of MindFormers' older files, of Megatron and of Hugging Face. `names.tsv` lists them.

use super::lines;
use crate::settings::engine::{Named, Names, Source, join};
use std::sync::LazyLock;

/// Every key that has several names.
pub(crate) static NAMES: LazyLock<Names> = LazyLock::new(|| {
    let named = |[sections, key, names]: [&'static str; 3]| Named { sections, key, names };
    Names::new(lines(include_str!("names.tsv")).map(named))
});

/// Writes each key under the name that is read. A key that is given under two names is a fault.
pub(super) fn unify(source: &mut Source) {
    let top_level = "";
    for section in std::iter::once(top_level).chain(NAMES.sections()) {
        drop_twins(source, section);
        for name in names_in(source, section) {
            source.document.rename(section, &name, NAMES.key(section, &name));
        }
    }
}

/// If a key was written under several of its names, keeps the first.
fn drop_twins(source: &mut Source, section: &str) {
    let names = names_in(source, section);
    let keys: Vec<&str> = names.iter().map(|name| NAMES.key(section, name)).collect();
    for (index, (name, key)) in names.iter().zip(&keys).enumerate() {
        if let Some(twin) = keys[..index].iter().position(|other| other == key) {
            let twin = &names[twin];
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
