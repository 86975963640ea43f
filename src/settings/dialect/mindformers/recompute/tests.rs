//! The arithmetic of stages and counts, by examples whose results MindFormers' own code gave.

use super::patterns::Selection;
use super::{Amount, COMMUNICATION, Chosen, SELECTED, choose, remove_excluded};
use crate::model::stages::{Chunks, Stages};
use crate::settings::dialect::mindformers::NAMES;
use crate::settings::engine::{Document, Node, Setting};
use crate::settings::sections::parallel::{Offset, distribute};
use crate::settings::sections::{dataset, run};
use std::path::Path;

/// The value of a line of YAML.
fn node(yaml: &str) -> Node {
    let text = format!("value: {yaml}");
    let bases = Some(run::BASES);
    let document = Document::parse(&text, Path::new("x.yaml"), &[], &NAMES, bases, dataset::drop_replaced);
    document.expect("a document").get("value").cloned().expect("a value")
}

/// Stages of `layers` layers under `offset`, with `stages` stages and `interleaves` interleaves.
fn stages(layers: usize, offset: &str, stages: usize, interleaves: usize) -> Stages {
    let offset = Offset::from_node(&node(offset));
    distribute(layers, stages, interleaves, offset.as_ref()).expect("stages")
}

/// Counts by chunk, and the numbers of the layers.
fn counted(stages: &Stages, amount: &str) -> (Chunks, Vec<usize>) {
    let counts = Amount::read(&node(amount)).expect("an amount").distribute(stages).expect("counts");
    let layers = stages.first(&counts);
    (counts, layers)
}

/// The patterns that `select_recompute` chooses.
fn chosen(stages: &Stages, selection: &str, defaults: &[&str]) -> Vec<Chosen> {
    choose(&Selection::read(&node(selection)).expect("a selection"), defaults, stages).expect("counts")
}

/// The patterns that `select_recompute` chooses as text, each with its counts by chunk.
fn selected(stages: &Stages, selection: &str, defaults: &[&str]) -> Vec<(String, Chunks)> {
    let chosen = chosen(stages, selection, defaults).into_iter();
    chosen.map(|one| (one.pattern.text, one.chunks)).collect()
}

/// The layers of the pattern in `selection`, but for those that are recomputed as a whole (`full`).
fn acting(stages: &Stages, selection: &str, full: &[usize]) -> Vec<usize> {
    let of_pattern = chosen(stages, selection, &[]).into_iter().flat_map(|one| one.layers);
    of_pattern.filter(|layer| !full.contains(layer)).collect()
}

fn numbers(ranges: &[std::ops::Range<usize>]) -> Vec<usize> {
    ranges.iter().cloned().flatten().collect()
}

const SEED: &str = "[[0, 1, 1, 1, 1], [1, 1, 1, 1, 0]]";

#[test]
fn an_interleaved_pipeline_of_48_layers() {
    let stages = stages(48, SEED, 5, 2);
    assert_eq!(*stages.layers(), [[4, 5, 5, 5, 5], [5, 5, 5, 5, 4]]);
    assert_eq!(stages.accumulated(), [[4, 9, 14, 19, 24], [29, 34, 39, 44, 48]]);
    let (counts, full) = counted(&stages, "[[2, 1, 0, 0, 0], [1, 0, 0, 0, 0]]");
    assert_eq!(counts, [[2, 1, 0, 0, 0], [1, 0, 0, 0, 0]]);
    assert_eq!(full, [0, 1, 4, 24]);

    // A layer that is recomputed as a whole is not selected from.
    let (counts, layers) = counted(&stages, "[[1, 0, 0, 0, 0], [2, 1, 0, 0, 0]]");
    assert_eq!((counts.len(), layers), (2, vec![0, 24, 25, 29]));
    let matmul = r"{'feed_forward\.w1\.matmul': [[1, 0, 0, 0, 0], [2, 1, 0, 0, 0]]}";
    assert_eq!(acting(&stages, matmul, &full), [25, 29]);
    let (counts, layers) = counted(&stages, "[2, 1, 0, 0, 0]");
    assert_eq!(counts, [[1, 1, 0, 0, 0], [1, 0, 0, 0, 0]]);
    assert_eq!(layers, [0, 4, 24]);
    assert_eq!(acting(&stages, r"{'feed_forward\.w3\.matmul': [2, 1, 0, 0, 0]}", &full), [0; 0]);

    let all = vec![vec![4, 5, 5, 5, 5], vec![5, 5, 5, 5, 4]];
    let of_every_layer = |patterns: &[&str]| -> Vec<(String, Chunks)> {
        patterns.iter().map(|pattern| (pattern.to_string(), all.clone())).collect()
    };
    assert_eq!(selected(&stages, "True", &SELECTED), of_every_layer(&SELECTED));
    let strings = selected(&stages, r"['.*\.norm', '.*\.w_qkv\.reshape']", &COMMUNICATION);
    assert_eq!(strings, of_every_layer(&[r".*\.norm", r".*\.w_qkv\.reshape"]));
}

/// DeepSeek-V3 with one block of multi-token prediction.
#[test]
fn sixteen_stages_of_62_layers() {
    let offset = format!("[{}-1]", "1, ".repeat(15));
    let stages = stages(62, &offset, 16, 1);
    let mut of_stages = vec![4; 15];
    of_stages.push(2);
    assert_eq!(*stages.layers(), [of_stages]);
    let counts = format!("[3, {}3, 2, 0]", "4, ".repeat(12));
    let (_, layers) = counted(&stages, &counts);
    let wanted: Vec<usize> = (0..58).filter(|layer| ![3, 55].contains(layer)).collect();
    assert_eq!(layers, wanted);
}

#[test]
fn one_stage_of_four_layers() {
    let stages = stages(4, "0", 1, 1);
    for (amount, count) in [("True", 4), ("[2]", 2), ("[9]", 4), ("[True]", 4), ("[]", 0), ("False", 0)] {
        let (counts, layers) = counted(&stages, amount);
        assert_eq!((counts, layers), (vec![vec![count]], (0..count).collect()), "{amount}");
    }
}

#[test]
fn several_stages() {
    type Case<'a> = (usize, &'a str, usize, usize, &'a str, Vec<Vec<usize>>, Vec<usize>);
    let cases: [Case<'_>; 7] = [
        (8, "0", 2, 1, "[True, 1]", vec![vec![4, 1]], vec![0, 1, 2, 3, 4]),
        (8, "0", 2, 1, "[3]", vec![vec![3, 0]], vec![0, 1, 2]),
        (8, "0", 2, 2, "[3, 1]", vec![vec![2, 1], vec![1, 0]], vec![0, 1, 2, 4]),
        (10, "[[1, 0], [0, 1]]", 2, 2, "[5, 1]", vec![vec![3, 1], vec![2, 0]], vec![0, 1, 2, 3, 5, 6]),
        (8, "0", 2, 2, "[[5, 1], [0, True]]", vec![vec![2, 1], vec![0, 2]], vec![0, 1, 2, 6, 7]),
        (8, "0", 2, 2, "[True, [1, 0]]", vec![vec![2, 2], vec![1, 0]], vec![0, 1, 2, 3, 4]),
        (
            28,
            "[-1, 0, 2, -1]",
            4,
            1,
            "[6, 3, 2, 3]",
            vec![vec![6, 3, 2, 3]],
            numbers(&[0..9, 13..15, 22..25]),
        ),
    ];
    for (layers, offset, count, interleaves, amount, want, want_layers) in cases {
        let stages = stages(layers, offset, count, interleaves);
        assert_eq!(counted(&stages, amount), (want, want_layers), "{layers} layers, {offset}, {amount}");
    }
    assert_eq!(*stages(8, "0", 2, 2).layers(), [[2, 2], [2, 2]]);
    assert_eq!(*stages(10, "[[1, 0], [0, 1]]", 2, 2).layers(), [[3, 2], [2, 3]]);
    assert_eq!(*stages(28, "[-1, 0, 2, -1]", 4, 1).layers(), [[6, 7, 9, 6]]);
}

#[test]
fn default_operators_of_80_layers() {
    let stages = stages(80, "0", 8, 1);
    let selected = selected(&stages, "[10, 8, 6, 4, 2, 0, 0, 0]", &SELECTED);
    assert_eq!(selected.iter().map(|(pattern, _)| pattern.as_str()).collect::<Vec<_>>(), SELECTED);
    for (_, counts) in &selected {
        assert_eq!(stages.first(counts), numbers(&[0..18, 20..26, 30..34, 40..42]));
    }
}

/// Includes a negative count, on which MindFormers runs forever, and text, which it takes for something else.
#[test]
fn what_is_no_amount() {
    let cases = [
        ("2", "`2`"),
        ("[1.5]", "`1.5` in the list"),
        ("[2.0]", "`2.0` in the list"),
        ("[1, [1, 0]]", "`1` beside a list in the same list"),
        ("[3, -1]", "the negative number `-1`"),
        ("[[3, -1]]", "the negative number `-1`"),
        ("['a']", "`a` in the list"),
        ("{a: 1}", "a section"),
    ];
    for (yaml, found) in cases {
        assert_eq!(Amount::read(&node(yaml)), Err(found.to_string()), "{yaml}");
    }
    let selections = [
        ("['a', 1]", "patterns beside other values in one list"),
        ("{a: -1}", "`-1` for `a`"),
        ("{a: [-1]}", "the negative number `-1` for `a`"),
    ];
    for (yaml, found) in selections {
        assert_eq!(Selection::read(&node(yaml)), Err(found.to_string()), "{yaml}");
    }
    let unreadable = Selection::read(&node("['feed_forward\\.(']")).expect_err("no pattern");
    assert!(
        unreadable.starts_with("a pattern that cannot be read: `(` is no regular expression"),
        "{unreadable}"
    );
}

#[test]
fn counts_that_do_not_fit_the_stages() {
    let stages = stages(8, "0", 2, 2);
    let error =
        |amount: &str| Amount::read(&node(amount)).expect("an amount").distribute(&stages).unwrap_err();
    assert_eq!(
        error("[1, 1, 1]"),
        "has 3 entries, but parallel_config.pipeline_stage is 2; write at most 2 entries, or `pipeline_stage: 3`"
    );
    assert_eq!(
        error("[[1, 1, 1], [1]]"),
        "has 3 entries, but parallel_config.pipeline_stage is 2; write at most 2 entries, or `pipeline_stage: 3`"
    );
    assert_eq!(
        error("[[1, 1]]"),
        "has 1 lists, but there are 2 interleaves (pp_interleave_num); write one for each"
    );
}

#[test]
fn offsets_that_do_not_fit_the_layers() {
    let error = |layers, offset: &str, count, interleaves| {
        let offset = Offset::from_node(&node(offset));
        distribute(layers, count, interleaves, offset.as_ref()).expect_err("does not fit")
    };
    let sum = "10 layers over 4 stages x 1 interleaves leave 2: the offsets [[1, 0, 0, 0]] add up to 1; write some that add up to 2";
    assert_eq!(error(10, "[1, 0, 0, 0]", 4, 1), sum);
    assert!(error(10, "[1, 1]", 4, 1).ends_with("for 4 stages x 1 interleaves"));
    assert!(error(8, "[[0, 0]]", 2, 2).ends_with("for 2 stages x 2 interleaves"));
    assert!(error(8, "[-3, 3, 0, 0]", 4, 1).starts_with("leaves a stage fewer than 0 layers"));
    assert_eq!(
        error(3, "0", 4, 1),
        "3 layers are too few for 4 stages x 1 interleaves; write fewer of these"
    );
    assert!(error(3, "0", usize::MAX, 2).starts_with("3 layers are too few"));
    // The same offset in every interleave counts once for each: MindFormers adds it up once and loses layers.
    assert!(error(10, "[1, 1]", 2, 2).contains(" leave 2: the offsets [[1, 1], [1, 1]] add up to 4;"));
}

#[test]
fn exclusions_remove_what_they_match() {
    let stages = stages(4, "0", 2, 1);
    let left = |selection: &str, exclusion: &str| {
        let mut left = chosen(&stages, selection, &SELECTED);
        let removed = remove_excluded(&mut left, &chosen(&stages, exclusion, &[]));
        (left.into_iter().map(|one| one.pattern.text).collect::<Vec<_>>(), removed)
    };
    let (mul, silu) = (r"feed_forward\.mul", r"feed_forward\.w1\.activation\.silu");
    assert_eq!(left("True", &format!("{{'{mul}': True}}")), (vec![silu.to_string()], vec![mul.to_string()]));
    assert_eq!(left("True", r"['.*\.mul']").1, [mul], "the exclusion's pattern matches the selected");
    assert_eq!(left(r"['.*\.mul']", &format!("['{mul}']")).1, [r".*\.mul"], "and the other way round");
    assert_eq!(left("True", "True").1, [""; 0], "exclusions have no default operators");
    assert_eq!(left("True", &format!("{{'{mul}': False}}")).1, [""; 0], "no layer is excluded");
    // An operator inside a module that is selected is no contradiction.
    let (left, removed) = left(r"{'feed_forward\.w1': True}", &format!("{{'{silu}': [1]}}"));
    assert_eq!((left, removed), (vec![r"feed_forward\.w1".to_string()], Vec::new()));
    assert_eq!(acting(&stages, &format!("{{'{silu}': [1]}}"), &[]), [0]);
}
