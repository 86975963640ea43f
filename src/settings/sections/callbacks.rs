//! `callbacks`: what is logged, saved and shown while a run goes on.

mod checkpoint;

pub use checkpoint::CheckpointMonitor;

use super::moe::Moe;
use crate::settings::engine::*;
use std::path::PathBuf;

rows! {
    /// `MFLossMonitor`: how often `log.txt` has MindFormers' two lines of a step, with loss, learning rate and speed.
    /// The lines are written without this callback, too. The console has a progress bar, or lines of its own.
    pub struct LossMonitor in "callbacks.MFLossMonitor" {
        /// Steps from one pair of lines to the next.
        per_print_times: u64 = Host.default(1).within(COUNT),
    }
    sections "type"
}

rows! {
    /// `ColdHotExpertMonitor`: a step after which hot experts are selected again, in addition to the steps of
    /// `moe_config.update_step`.
    pub struct ColdHotMonitor in "callbacks.ColdHotExpertMonitor" {
        /// Step after which hot experts are selected again; -1: the `save_checkpoint_steps` of the `CheckpointMonitor`.
        save_checkpoint_steps: i64 = Numbers.default(-1).example("7"),
    }
    sections "type"
}

rows! {
    /// `SummaryMonitor`: where and when `moe_config.save_token_distribution` writes its files.
    pub struct SummaryMonitor in "callbacks.SummaryMonitor" {
        /// Folder of the files; by default `summary` in the run's folder.
        summary_dir: PathBuf = Host.optional().example("./shown"),
        /// Steps between files if `collect_tensor_freq` is absent. If that makes more than 20 files, there are 20
        /// instead: evenly spread over the epochs of the run or, if they would be less than 2 steps apart, one after
        /// each of the first 20 steps.
        collect_freq: u64 = Host.default(COLLECT_FREQ).within(COUNT),
        /// Steps between files. The first step always has a file.
        collect_tensor_freq: Option<u64> = Host.optional().within(COUNT).example("5"),
    }
    sections "type export_options"
}

/// The default of `collect_freq`.
const COLLECT_FREQ: u64 = 10;

/// The callbacks of a run, each at most once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Callbacks {
    /// How often MindFormers' lines are logged, if the configuration says so.
    pub loss: Option<LossMonitor>,
    /// When checkpoints are written, if a monitor says so.
    pub checkpoint: Option<CheckpointMonitor>,
    /// A step after which hot experts are selected again.
    pub cold_hot: Option<ColdHotMonitor>,
    /// Where and when token distributions are written.
    pub summary: Option<SummaryMonitor>,
}

const LIST: &str = "callbacks";
const LOSS: &str = "MFLossMonitor";
const CHECKPOINT: &str = "CheckpointMonitor";
const COLD_HOT: &str = "ColdHotExpertMonitor";
const SUMMARY: &str = "SummaryMonitor";

/// The callbacks that are read here.
const READ: [&str; 4] = [LOSS, CHECKPOINT, COLD_HOT, SUMMARY];

/// The table of each callback.
pub(crate) fn tables() -> [(TableId, Table); 4] {
    [
        LossMonitor::documented(),
        CheckpointMonitor::documented(),
        ColdHotMonitor::documented(),
        SummaryMonitor::documented(),
    ]
}

/// Reads the list.
pub(crate) fn read(source: &Source) -> Callbacks {
    let mut callbacks = Callbacks::default();
    if let Some(node) = source.node(LIST).filter(|node| !matches!(node, Node::List(_))) {
        source.fault(LIST, format!("expected a list of callbacks, found {node}"));
    }
    let mut seen: Vec<&str> = Vec::new();
    for path in source.items(LIST) {
        // An item that was translated is empty.
        if source.node(&path).is_none() {
            continue;
        }
        let Some(kind) = kind_at(source, &path) else { continue };
        if seen.contains(&kind) {
            source.fault(&format!("{path}.type"), format!("a second {kind}; keep one of them"));
        }
        seen.push(kind);
        callbacks.read_one(source, &path, kind);
    }
    callbacks
}

impl Callbacks {
    fn read_one(&mut self, source: &Source, path: &str, kind: &str) {
        match kind {
            LOSS => self.loss = Some(Section::read_at(source, path)),
            CHECKPOINT => self.checkpoint = Some(CheckpointMonitor::read_checked(source, path)),
            COLD_HOT => self.cold_hot = Some(Section::read_at(source, path)),
            _ => {
                Reader::open(
                    source,
                    &join(path, "export_options"),
                    &[TableId::of("callbacks.SummaryMonitor.export_options")],
                );
                self.summary = Some(Section::read_at(source, path));
            }
        }
    }

    /// The step after which hot experts are selected again: the step of the `ColdHotExpertMonitor`, or else the
    /// `save_checkpoint_steps` of the `CheckpointMonitor`.
    pub(crate) fn hot_step(&self) -> Option<u64> {
        let own =
            self.cold_hot.as_ref().and_then(|monitor| u64::try_from(monitor.save_checkpoint_steps).ok());
        let checkpoint = self.checkpoint.as_ref().map(|checkpoint| checkpoint.save_checkpoint_steps);
        own.filter(|step| *step > 0).or(checkpoint.filter(|step| *step > 0))
    }

    /// The sections of the callbacks, to be written as items of a list. Keys that only repeat the model are left out.
    pub(crate) fn placed(&self) -> Vec<Placed> {
        let mut items: Vec<(&'static str, Vec<Entry>)> = Vec::new();
        items.extend(self.loss.as_ref().map(|section| (LOSS, section.entries())));
        items.extend(self.checkpoint.as_ref().map(|section| (CHECKPOINT, section.entries())));
        items.extend(self.cold_hot.as_ref().map(|section| (COLD_HOT, section.entries())));
        items.extend(self.summary.as_ref().map(|section| (SUMMARY, section.entries())));
        let place = |(number, (kind, mut entries)): (usize, (&'static str, Vec<Entry>))| {
            let node = Some(Node::from(kind));
            entries.insert(0, Entry { key: "type", decides: Host, written: node, decision: None });
            Placed { path: format!("callbacks.{number}"), decides: false, entries }
        };
        items.into_iter().enumerate().map(place).collect()
    }

    /// Notes which callbacks have nothing to do.
    pub(crate) fn note_idle(&self, source: &Source, moe: Option<&Moe>) {
        let saves = moe.is_some_and(|moe| moe.save_token_distribution);
        if saves && self.summary.is_none() {
            source.note(format!(
                "moe_config.save_token_distribution: written every {COLLECT_FREQ} steps, but 20 times at most, into \
                 the run's folder; a {SUMMARY} says where and when"
            ));
        }
        let note = |callback: &str, text: &str| source.note(format!("callbacks: {callback} {text}"));
        if self.summary.is_some() && !saves {
            note(SUMMARY, "writes what `moe_config.save_token_distribution` asks for: nothing");
        }
        if self.cold_hot.is_some() && moe.is_none_or(|moe| !moe.enable_cold_hot_expert) {
            note(COLD_HOT, "has nothing to do without `moe_config.enable_cold_hot_expert`");
        }
    }
}

/// The kind of the callback at `path`; nothing after a fault.
fn kind_at(source: &Source, path: &str) -> Option<&'static str> {
    let kind_path = format!("{path}.type");
    let Some(kind) = source.word(&kind_path) else {
        source.fault(path, "`type` is missing; write `type: MFLossMonitor` or another callback");
        return None;
    };
    let found = READ.into_iter().find(|name| *name == kind);
    if found.is_none() {
        let known = source.tables.iter().filter_map(|(id, _)| id.section.strip_prefix("callbacks."));
        source.fault(&kind_path, unknown_type(kind, known.filter(|name| !name.contains('.'))));
    }
    found
}

#[cfg(test)]
mod tests;
