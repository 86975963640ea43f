//! The page as a document: style, script and data in one file.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use serde::Serialize;

use super::curves::MOST_BINS;
use super::run_data::RunData;
use super::run_files::{Known, RunFiles};

const HTML: &str = include_str!("web/page.html");
const STYLE: &str = include_str!("web/page.css");

/// The script, in the order of its parts.
const SCRIPT: [&str; 10] = [
    include_str!("web/format.js"),
    include_str!("web/data.js"),
    include_str!("web/scale.js"),
    include_str!("web/chart.js"),
    include_str!("web/lines.js"),
    include_str!("web/heat.js"),
    include_str!("web/charts.js"),
    include_str!("web/facts.js"),
    include_str!("web/settings.js"),
    include_str!("web/page.js"),
];

/// How often the page of a running run asks for new data.
pub const POLL: Duration = Duration::from_secs(2);

/// The data that the script reads.
#[derive(Serialize)]
struct Data<'a> {
    /// The version of this program.
    version: &'static str,
    /// Seconds since 1970.
    written: u64,
    most_bins: usize,
    /// Only if the page is served while the run continues.
    #[serde(skip_serializing_if = "Option::is_none")]
    poll_ms: Option<u64>,
    runs: Vec<RunData<'a>>,
}

/// The page of `runs`; the others are compared with the first one. `are_running` says whether they are running; without
/// it their locks decide.
pub fn page(runs: &[RunFiles], are_running: Option<bool>) -> String {
    document(&data(runs.iter().map(|run| run.data(None, are_running)), None))
}

/// The page of a run, which asks for more data at `/data` until the run has ended.
pub fn live_page(run: &RunFiles, is_running: bool) -> String {
    document(&data([run.data(None, Some(is_running))], Some(POLL)))
}

/// The data that follows what a page of [`live_page`] knows, as JSON; all data if the known part has changed.
pub fn live_data(run: &RunFiles, known: Option<Known>, is_running: bool) -> String {
    json(&data([run.data(known, Some(is_running))], Some(POLL)))
}

fn data<'a>(runs: impl IntoIterator<Item = RunData<'a>>, poll: Option<Duration>) -> Data<'a> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Data {
        version: env!("CARGO_PKG_VERSION"),
        written: now.map_or(0, |since| since.as_secs()),
        most_bins: MOST_BINS,
        poll_ms: poll.map(|poll| poll.as_millis() as u64),
        runs: runs.into_iter().collect(),
    }
}

fn json(data: &Data<'_>) -> String {
    // Cannot fail: keys are strings, and numbers that are not finite were left out.
    serde_json::to_string(data).unwrap_or_default()
}

/// Fills the placeholders of `page.html`. Every `<` of the data is escaped, so that no text of a run can end its
/// element.
fn document(data: &Data<'_>) -> String {
    let nonce = nonce();
    let script = format!("(() => {{\n\"use strict\";\n{}}})();\n", SCRIPT.join("\n"));
    let connects = if data.poll_ms.is_some() { "'self'" } else { "'none'" };
    let json = json(data).replace('<', "\\u003c");
    let mut page = String::with_capacity(HTML.len() + STYLE.len() + script.len() + json.len());
    let mut rest = HTML;
    while let Some((before, (name, after))) =
        rest.split_once("{{").and_then(|(before, rest)| Some((before, rest.split_once("}}")?)))
    {
        page += before;
        page += match name {
            "nonce" => &nonce,
            "connects" => connects,
            "style" => STYLE,
            "script" => &script,
            "data" => &json,
            _ => unreachable!("a place of page.html that nothing fills"),
        };
        rest = after;
    }
    page + rest
}

/// A number that nobody can guess; without it the page's policy runs no script.
fn nonce() -> String {
    let number = || RandomState::new().build_hasher().finish(); // keys from the system's random numbers
    format!("{:016x}{:016x}", number(), number())
}
