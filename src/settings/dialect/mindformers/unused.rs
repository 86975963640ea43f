//! Keys of MindFormers' files that are known and not used: without meaning here, computed differently, or not built;
//! and types of sections that are not built. `unused.tsv` lists them.

use super::lines;
use crate::settings::engine::*;

/// The policy of lines that are about a section.
const SECTION: &str = "section";
/// The policy of lines that have types of a section.
const PLANNED: &str = "planned";

const KEYS: &str = include_str!("unused.tsv");

/// The unused keys of the table `id`.
pub(super) fn keys_of(id: TableId) -> impl Iterator<Item = UnusedKeys> {
    let is_of_keys = |policy: &str| ![SECTION, PLANNED].contains(&policy);
    let own = all().filter(move |(table, [policy, ..])| *table == id && is_of_keys(policy));
    own.map(|(_, line)| parse(line))
}

/// The types of sections of the table `id` that are known and not built, between spaces.
pub(super) fn planned_of(id: TableId) -> &'static str {
    let mut planned = all().filter(|(table, [policy, ..])| *table == id && *policy == PLANNED);
    planned.next().map_or("", |(_, [_, types, _])| types)
}

/// Every line of the list: the table of its section, and the other columns.
fn all() -> impl Iterator<Item = (TableId, [&'static str; 3])> {
    lines(KEYS).map(|[section, policy, keys, sentence]| {
        let table = match section.split_once(' ') {
            Some((section, word)) => TableId::of(section).of_type(word),
            None => TableId::of(section),
        };
        (table, [policy, keys, sentence])
    })
}

/// The keys of a line.
fn parse(line: [&'static str; 3]) -> UnusedKeys {
    let [policy, keys, sentence] = line;
    let (policy, passes) = policy.split_once(" unless ").unwrap_or((policy, ""));
    let (handling, kind) = policy.split_once(' ').unwrap_or((policy, ""));
    let passes = match passes {
        "" => AllowedValues::Never,
        "off" => AllowedValues::Off,
        "off or 1" => AllowedValues::UpToOne,
        "on" => AllowedValues::On,
        words => AllowedValues::Words(words),
    };
    let handling = match handling {
        "ignored" => Handling::Ignored,
        "differs" => Handling::Differs(passes),
        "refused" => Handling::Refused(passes),
        _ => panic!("unused.tsv: no policy `{handling}`: {line:?}"),
    };
    let kind = match kind {
        "" => None,
        "switch" => Some(ValueKind::Switch),
        "number" => Some(ValueKind::Number),
        "text" => Some(ValueKind::Text),
        _ => panic!("unused.tsv: no kind `{kind}`: {line:?}"),
    };
    UnusedKeys { keys, handling, kind, sentence }
}

/// The sections of MindFormers in which no key is used.
pub(crate) fn tables() -> impl Iterator<Item = (TableId, Table)> {
    let unused = all().filter(|(_, [policy, ..])| *policy == SECTION);
    unused.map(|(id, [_, keys, about])| (id, Table::unused(about, [sections(keys)])))
}

/// Checks the sections that nothing else opens.
pub(super) fn check(source: &Source) {
    for section in ["monitor_config.stable_rank_config", "trainer", "swap_config"] {
        Reader::open(source, section, &[TableId::of(section)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::dialect::tables;

    #[test]
    fn every_line_is_of_a_table() {
        for (id, line) in all() {
            assert!(tables().iter().any(|(known, _)| *known == id), "{id}: {line:?}");
        }
    }
}
