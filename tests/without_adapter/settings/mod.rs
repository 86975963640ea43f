//! The configuration as its users meet it: whole files in, a plan or one line out. What holds of every row is tested in
//! `src/settings/tests.rs`.

mod datasets;
mod dialect;
mod families;
mod faults;
mod features;
mod groups;
mod malformed;
mod mixture;
mod mixture_errors;
mod model;
mod monitors;
mod optimizer;
mod outlines;
mod overrides;
mod ranks;
mod recompute;
mod reference;
mod rope_scaling;
mod schedule;
mod stages;
mod switches;
mod types;
mod whole_files;
mod wrapper;

use gristmill::error::Result;
use gristmill::settings::{Override, RunConfig, RunPlan};
use std::path::Path;

/// A small configuration. The tests number its lines, so new keys go to the end.
const BASE: &str = include_str!("base.yaml");

/// The plan and the notices of a file with `arguments` from the command line.
fn resolve(text: &str, arguments: &[&str]) -> Result<(RunPlan, Vec<String>)> {
    let overrides = Override::parse_all(arguments.to_vec())?;
    let config = RunConfig::parse(text, Path::new("x.yaml"), &overrides)?;
    Ok((config.plan, config.notices))
}

#[track_caller]
fn plan(text: &str) -> RunPlan {
    resolve(text, &[]).unwrap_or_else(|error| panic!("{error}")).0
}

/// What is answered to a wrong file.
fn message(text: &str, arguments: &[&str]) -> String {
    resolve(text, arguments).map_or_else(|error| error.to_string(), |_| "accepted".to_string())
}

/// The plan, written out and read again, is the same, and nothing in it needs a notice.
#[track_caller]
fn assert_reads_back(plan: &RunPlan) {
    let text = plan.to_yaml();
    let (again, notices) = resolve(&text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(*plan, again, "{text}");
    assert_eq!(notices, [""; 0], "{text}");
}

/// Checks a table of cases: after `-` a line of a file, after `+` the lines written instead of it, after `=` the
/// answer. Cases that replace the same line give it once; tables whose cases only add keys have no `-`.
#[track_caller]
fn assert_answers(table: &str, answer: impl Fn(&str, &str) -> String) {
    let (mut replaced, mut written, mut wrong) = ("", Vec::new(), Vec::new());
    for line in table.lines().filter(|line| !line.is_empty()) {
        match line.split_at(1) {
            ("-", text) => replaced = text,
            ("+", text) => written.push(text),
            ("=", expected) => {
                let (expected, keys) = (expected.trim_start(), written.join("\n"));
                let found = answer(replaced, &keys);
                if found != expected {
                    wrong.push(format!("{keys}\n  expected {expected}\n  found    {found}"));
                }
                written.clear();
            }
            _ => panic!("a line of a table starts with -, + or =: {line}"),
        }
    }
    assert!(written.is_empty(), "no answer to {written:?}");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// `text` with `written` instead of its line `replaced`.
#[track_caller]
fn replace(text: &str, replaced: &str, written: &str) -> String {
    assert_eq!(text.matches(replaced).count(), 1, "{replaced} must be in the file once");
    text.replace(replaced, written)
}
