//! Keys of MindFormers' files that are known and not used: without meaning here, computed differently, or not built. `unused.tsv`
//! lists them.

use super::classes::OUTSIDE;
use crate::settings::engine::*;

const STABLE_RANK: TableId = TableId::of("monitor_config.stable_rank_config");

const KEYS: &str = include_str!("unused.tsv");

/// Those of the table `id`.
pub(super) fn keys_of(id: TableId) -> impl Iterator<Item = Other> {
    let lines = KEYS.lines().filter(|line| !line.starts_with('#')).map(parse);
    lines.filter(move |(table, _)| *table == id).map(|(_, other)| other)
}

/// The table and the keys of a line.
fn parse(line: &'static str) -> (TableId, Other) {
    let fields: Vec<&str> = line.split('\t').collect();
    let &[section, policy, keys, sentence] = fields.as_slice() else {
        panic!("unused.tsv: no four columns: {line}")
    };
    let table = match section.split_once(' ') {
        Some((section, word)) => TableId::of(section).of_type(word),
        None => TableId::of(section),
    };
    let (policy, passes) = policy.split_once(" unless ").unwrap_or((policy, ""));
    let (fate, kind) = policy.split_once(' ').unwrap_or((policy, ""));
    let passes = match passes {
        "" => Passes::Never,
        "off" => Passes::Off,
        "off or 1" => Passes::UpToOne,
        "on" => Passes::On,
        words => Passes::Words(words),
    };
    let fate = match fate {
        "ignored" => Fate::Ignored,
        "differs" => Fate::Differs(passes),
        "refused" => Fate::Refused(passes),
        _ => panic!("unused.tsv: no policy `{fate}`: {line}"),
    };
    let kind = match kind {
        "" => None,
        "switch" => Some(IdleKind::Switch),
        "number" => Some(IdleKind::Number),
        "text" => Some(IdleKind::Text),
        _ => panic!("unused.tsv: no kind `{kind}`: {line}"),
    };
    (table, Other { keys, fate, kind, sentence })
}

/// Sections of MindFormers none of whose keys is used.
pub(crate) fn tables() -> [(TableId, Table); 6] {
    let task = "`train_dataset_task` and `eval_dataset_task`: MindFormers' class around a data set, `dataset_config`. Its `type` must \
                be one of `CausalLanguageModelDataset`, `KeyWordGenDataset`, `MultiTurnDataset` and `SFTDataset` for the data to be \
                read.";
    [
        (STABLE_RANK, Table::unused("`monitor_config.stable_rank_config`: stable ranks of weights.", [])),
        (TableId::of("model.arch"), Table::unused(&about_classes(), [sections("type")])),
        (TableId::of("train_dataset_task"), Table::unused(task, [sections("dataset_config type")])),
        (
            TableId::of("callbacks.SummaryMonitor.export_options"),
            Table::unused("`export_options` of a `SummaryMonitor`.", []),
        ),
        (
            TableId::of("trainer"),
            Table::unused("`trainer`: which of MindFormers' trainers to use; there is one.", []),
        ),
        (
            TableId::of("swap_config"),
            Table::unused("`swap_config`: activations kept in the host's memory.", []),
        ),
    ]
}

/// Checks the sections that nothing else opens.
pub(super) fn check(source: &Source) {
    for id in [STABLE_RANK, TableId::of("trainer"), TableId::of("swap_config")] {
        Reader::open(source, id.section, &[id]);
    }
}

/// The class of a model, and the classes that stay out.
fn about_classes() -> String {
    let outside = OUTSIDE.iter().map(|(classes, why)| {
        let classes: Vec<&str> = words(classes).collect();
        format!(" `{}`: {why}.", classes.join("`, `"))
    });
    let about =
        "`model.arch`: the class of the model, which goes with `model_config.type`. Some classes stay out.";
    about.to_string() + &outside.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tables;

    #[test]
    fn every_line_is_of_a_table() {
        for (id, other) in KEYS.lines().filter(|line| !line.starts_with('#')).map(parse) {
            assert!(tables::tables().iter().any(|(known, _)| *known == id), "{id}: {}", other.keys);
        }
    }
}
