//! The ranks over which a run is spread: the degrees of the file, checked against the ranks that were started.

use super::rows::Parallel;
use super::{PATH, ParallelMode, Parallelism, Started};
use crate::ranks::{MAX_RANKS, RankLayout};
use crate::settings::engine::*;
use crate::settings::sections::moe::{self, Moe};
use crate::settings::sections::run::Run;

/// The layout of a run that asks for `asked`; `None` after a fault. If no ranks were `started`, the layout is the one
/// that the file asks for.
pub(super) fn layout(
    source: &Source,
    run: &Run,
    asked: &Parallelism,
    started: Option<Started>,
) -> Option<RankLayout> {
    let Started { rank, size, is_planned } = started.unwrap_or(Started::ALONE);
    let alone = |path: &str, remedy: &str| alone(source, path, size, remedy, is_planned);
    let degrees = &asked.degrees;
    if run.as_single {
        note_ones(source, degrees);
        return alone("as_single", "`as_single` does the work of all on one; remove it");
    }
    let uses_parallel = run.use_parallel == Some(true);
    match asked.context.parallel_mode {
        ParallelMode::SemiAuto | ParallelMode::Auto if uses_parallel => spread(source, degrees, started),
        ParallelMode::Data if uses_parallel => {
            note_data_mode(source, degrees, size);
            Some(RankLayout { rank, data: size, ..RankLayout::one() })
        }
        _ if uses_parallel => {
            note_ones(source, degrees);
            let remedy =
                "this mode is for one; write `parallel_mode: 1` and the degrees of `parallel_config`";
            alone("parallel.parallel_mode", remedy)
        }
        _ => {
            note_ones(source, degrees);
            let data = format!("`parallel_config: {{data_parallel: {size}}}`");
            let remedy = format!("the file is for one; write `use_parallel: True` and {data}, for example");
            alone("use_parallel", &remedy)
        }
    }
}

/// Checks that the experts of `moe` can be spread as `layout` says. A model without experts is spread as if its
/// `expert_parallel` were 1.
pub(super) fn fit_experts(layout: &mut RankLayout, moe: Option<&Moe>, source: &Source) {
    let (expert, key) = (layout.expert, format!("{PATH}.expert_parallel"));
    if expert == 1 || !source.is_sound(moe::PATH) {
        return;
    }
    let Some(moe) = moe else {
        layout.expert = 1;
        source.note(format!("{key}: no effect, as the model has no experts"));
        return;
    };
    let experts = moe.expert_num;
    if !experts.is_multiple_of(expert) {
        let remedy = "write an `expert_parallel` that divides their number";
        source.fault(&key, format!("{expert} ranks cannot share {experts} experts evenly; {remedy}"));
    }
    if moe.enable_cold_hot_expert && moe.hot_expert_num == Some(experts) {
        let message = format!(
            "all {experts} experts are hot, so each of {expert} ranks would have a copy of all of them; lower \
             `hot_expert_num`, or write `expert_parallel: 1`"
        );
        source.fault(&key, message);
    }
}

/// The path to blame for the product of `factors`: the path of the largest factor that a flag sets, or otherwise the
/// section, or `use_parallel` if there is no section.
pub(in crate::settings) fn culprit(source: &Source, factors: &[(impl AsRef<str>, u64)]) -> String {
    let set =
        factors.iter().filter(|(path, factor)| *factor > 1 && source.document.is_overridden(path.as_ref()));
    let of_section = if source.node(PATH).is_some() { PATH } else { "use_parallel" };
    set.max_by_key(|(_, factor)| *factor).map_or(of_section, |(path, _)| path.as_ref()).to_string()
}

/// The layout of one rank. If several ranks were started or are planned for, that is a fault of `path`; its message has
/// the `reason` and the remedy.
fn alone(source: &Source, path: &str, size: usize, reason: &str, is_planned: bool) -> Option<RankLayout> {
    if size > 1 {
        let (happened, other) =
            if is_planned { ("are planned for", "plan for") } else { ("were started", "start") };
        source.fault(path, format!("{size} ranks {happened}, and {reason}, or {other} one"));
        return None;
    }
    Some(RankLayout::one())
}

/// The layout of `degrees`, in a run to which they apply.
fn spread(source: &Source, degrees: &Parallel, started: Option<Started>) -> Option<RankLayout> {
    let keys = ["data_parallel", "model_parallel", "pipeline_stage", "context_parallel", "expert_parallel"];
    if !keys.iter().all(|key| source.is_sound(&format!("{PATH}.{key}"))) {
        return None;
    }
    if degrees.context_parallel > 1 {
        let found = format!("`{}` is not built: a sequence stays on one rank", degrees.context_parallel);
        let remedy =
            "write `context_parallel: 1`, and `recompute_config.recompute: True` where memory is short";
        source.fault(&format!("{PATH}.context_parallel"), format!("{found}; {remedy}"));
        return None;
    }
    let ranks = degrees.ranks();
    if ranks > MAX_RANKS {
        source.fault(
            &degrees.culprit(source),
            format!("asks for {ranks} ranks, of which {MAX_RANKS} are the most; lower the degrees"),
        );
        return None;
    }
    check_number(source, degrees, started)?;
    let Parallel { data_parallel: data, expert_parallel: expert, model_parallel: model, .. } = *degrees;
    if !data.is_multiple_of(expert) {
        let original = if model > 1 { " (MindFormers: times model_parallel)" } else { "" };
        let message = format!(
            "{expert} does not divide data_parallel {data}{original}; write an `expert_parallel` that does"
        );
        source.fault(&format!("{PATH}.expert_parallel"), message);
        return None;
    }
    // All degrees are at most `MAX_RANKS`, since their product is, and `expert` divides one of them.
    let [data, expert, model, pipeline] =
        [data, expert, model, degrees.pipeline_stage].map(|degree| degree as usize);
    Some(RankLayout {
        rank: started.map_or(0, |one| one.rank),
        data,
        expert,
        model,
        shares_tokens: degrees.use_seq_parallel && model > 1,
        shares_vocabulary: !degrees.vocab_emb_dp && model > 1,
        pipeline,
    })
}

/// Reports that another number of ranks was started than `degrees` ask for.
fn check_number(source: &Source, degrees: &Parallel, started: Option<Started>) -> Option<()> {
    let (ranks, Some(Started { size, is_planned, .. })) = (degrees.ranks(), started) else { return Some(()) };
    if ranks == size as u64 {
        return Some(());
    }
    if is_planned {
        let asked = degrees.above_one().join(", ");
        let message = format!(
            "asks for {ranks} ranks ({asked}), and {size} are planned for; write degrees whose product is {size}, \
             or leave out data_parallel where the others divide that"
        );
        source.fault(&degrees.culprit(source), message);
        return None;
    }
    let were_started = if size == 1 { "1 was started".to_string() } else { format!("{size} were started") };
    let message = if ranks == 1 {
        format!(
            "asks for 1 rank, and {were_started}; write `data_parallel: {size}`, for example, or start one"
        )
    } else {
        let start = format!("start {ranks} (`mpirun -n {ranks} gristmill train ...` or `--ranks {ranks}`)");
        let others = "change the degrees, or start one with `--as-single`, which does the work of all";
        let asked: Vec<String> =
            degrees.factors().into_iter().filter(|(_, degree)| *degree > 1).map(shown).collect();
        let asked = asked.join(", ");
        format!("asks for {ranks} ranks ({asked}), and {were_started}; {start}, {others}")
    };
    source.fault(&degrees.culprit(source), message);
    None
}

/// Says which degrees are taken as 1 on one rank.
fn note_ones(source: &Source, degrees: &Parallel) {
    let asked = degrees.above_one();
    if !asked.is_empty() {
        let asked = asked.join(", ");
        source.note(format!("parallel_config asks for {asked}; this run is one rank and takes 1"));
    }
}

/// Notes the differences from MindFormers in the data-parallel mode.
fn note_data_mode(source: &Source, degrees: &Parallel, size: usize) {
    if size == 1 {
        return note_ones(source, degrees);
    }
    let asked = degrees.above_one();
    if !asked.is_empty() && asked != [format!("data_parallel {size}")] {
        let asked = asked.join(", ");
        source.note(format!(
            "parallel_config asks for {asked}; in this parallel_mode the {size} ranks share the batch alone"
        ));
    }
}

fn shown((key, degree): (&str, u64)) -> String {
    format!("{key} {degree}")
}

impl Parallel {
    /// Makes `data_parallel` so large that the degrees fill `size` ranks, if the other degrees divide `size`.
    pub(super) fn fill(&mut self, size: usize) {
        let others = Self { data_parallel: 1, ..self.clone() }.ranks();
        if (size as u64).is_multiple_of(others) {
            self.data_parallel = size as u64 / others;
        }
    }

    /// The path to blame for the product of the degrees: see [`culprit`].
    fn culprit(&self, source: &Source) -> String {
        culprit(source, &self.factors().map(|(key, degree)| (format!("{PATH}.{key}"), degree)))
    }

    /// The number of ranks that the degrees ask for. Experts are spread over the ranks of the other degrees.
    fn ranks(&self) -> u64 {
        self.factors().into_iter().fold(1, |ranks, (_, degree)| ranks.saturating_mul(degree))
    }

    fn factors(&self) -> [(&'static str, u64); 4] {
        [
            ("data_parallel", self.data_parallel),
            ("model_parallel", self.model_parallel),
            ("pipeline_stage", self.pipeline_stage),
            ("context_parallel", self.context_parallel),
        ]
    }

    /// The degrees above 1, as "data_parallel 8".
    fn above_one(&self) -> Vec<String> {
        let degrees = self.entries().into_iter().filter(|entry| entry.key != "micro_batch_num");
        let above_one = degrees.filter_map(|Entry { key, written, .. }| match written {
            Some(Node::Int(degree)) if degree != 1 => {
                u64::try_from(degree).ok().map(|degree| shown((key, degree)))
            }
            _ => None,
        });
        above_one.collect()
    }
}
