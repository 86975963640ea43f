//! The data of a run, in the form that the page's script reads.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde::Serialize;

use super::curves::{Family, Member};
use super::history::History;
use super::run_files::{Known, RunFiles};
use super::series::Bin;
use super::settings_table::SettingsTable;
use super::state::State;
use super::tail::Gaps;
use crate::store::checkpoint_folder::Best;

/// The data of a run: all of it, or only what is new.
#[derive(Debug, Serialize)]
pub(super) struct RunData<'a> {
    name: String,
    folder: String,
    state: State,
    generation: u64,
    /// The curves only have points after this step; without it they have all points.
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<u64>,
    step: Option<u64>,
    updates: Option<u64>,
    is_cut: bool,
    /// The unreadable parts of each file of lines.
    gaps: [Gaps; 2],
    /// The step of the newest checkpoint.
    checkpoint: Option<u64>,
    /// The best checkpoint, if the run keeps it.
    best: Option<Best>,
    /// Total time of the steps.
    seconds: Option<f64>,
    /// The least value of each loss, and its step.
    least: BTreeMap<&'a str, (f32, u64)>,
    /// Lists of the first steps of bins; curves share them.
    axes: Vec<Vec<u64>>,
    curves: Vec<Curve<'a>>,
    marks: Vec<Mark<'a>>,
    history: &'a History,
    #[serde(skip_serializing_if = "Option::is_none")]
    settings: Option<&'a SettingsTable>,
}

/// A curve.
#[derive(Debug, Serialize)]
struct Curve<'a> {
    key: &'a str,
    name: &'a str,
    /// Index of the curve's list in `axes`.
    axis: usize,
    /// Points of a full bin.
    points: u64,
    /// The last step.
    to: u64,
    mean: Vec<Option<f32>>,
    /// Only if bins have several points.
    #[serde(skip_serializing_if = "Option::is_none")]
    min: Option<Vec<Option<f32>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max: Option<Vec<Option<f32>>>,
}

/// The steps at which a flag was set.
#[derive(Debug, Serialize)]
struct Mark<'a> {
    key: &'a str,
    count: u64,
    steps: &'a [u64],
}

impl<'a> RunData<'a> {
    /// The data of `files`; the curves only have what follows `known`.
    pub fn new(files: &'a RunFiles, state: State, gaps: [Gaps; 2], known: Option<Known>) -> Self {
        let curves = &files.curves;
        let after = known.map(|known| known.step);
        let mut axes = Axes::default();
        let members =
            curves.families.iter().flat_map(|family| family.members.iter().map(move |one| (family, one)));
        let written =
            members.filter_map(|(family, member)| curve(family, member, after, &mut axes)).collect();
        let single = |key| curves.family(key).and_then(|family: &Family| family.members.first());
        let least = |key: &'static str| Some((key, single(key)?.least?));
        Self {
            name: name(files.folder()),
            folder: files.folder().display().to_string(),
            state,
            generation: files.generation(),
            after,
            step: curves.step,
            updates: curves.updates,
            is_cut: curves.is_cut,
            gaps,
            checkpoint: files.newest_checkpoint(),
            best: files.best(),
            seconds: single("step_ms").map(|member| member.series.sum() / 1e3),
            least: ["loss", "eval_loss"].into_iter().filter_map(least).collect(),
            axes: axes.list,
            curves: written,
            marks: curves
                .marks
                .iter()
                .map(|(key, marks)| Mark { key, count: marks.count, steps: &marks.steps })
                .collect(),
            history: &files.history,
            settings: known.is_none().then_some(&files.settings),
        }
    }
}

/// The first steps of curves' bins, each list once.
#[derive(Default)]
struct Axes {
    list: Vec<Vec<u64>>,
    known: HashMap<Vec<u64>, usize>,
}

impl Axes {
    fn index(&mut self, steps: Vec<u64>) -> usize {
        *self.known.entry(steps).or_insert_with_key(|steps| {
            self.list.push(steps.clone());
            self.list.len() - 1
        })
    }
}

/// The bins of a curve after a step; `None` if there is nothing new.
fn curve<'a>(
    family: &'a Family,
    member: &'a Member,
    after: Option<u64>,
    axes: &mut Axes,
) -> Option<Curve<'a>> {
    let bins = member.series.after(after);
    let points = member.series.points_per_bin();
    let each = |extreme: fn(&Bin) -> Option<f32>| (points > 1).then(|| bins.iter().map(extreme).collect());
    Some(Curve {
        key: &family.key,
        name: &member.name,
        axis: axes.index(bins.iter().map(|bin| bin.from).collect()),
        points,
        to: bins.last()?.to,
        mean: bins
            .iter()
            .map(|bin| bin.mean().map(|mean| if points > 1 { rounded(mean) } else { mean }))
            .collect(),
        min: each(Bin::min),
        max: each(Bin::max),
    })
}

/// A mean with six digits: more digits would only make the page longer.
fn rounded(mean: f32) -> f32 {
    format!("{mean:.5e}").parse().unwrap_or(mean)
}

/// The name of a run, which is that of its folder.
fn name(folder: &Path) -> String {
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    // `.` has a name only once it is resolved.
    name(folder)
        .or_else(|| name(&folder.canonicalize().ok()?))
        .unwrap_or_else(|| folder.display().to_string())
}
