//! `callbacks`: what is logged, saved and shown while a run goes on.

mod checkpoint;
mod course;
mod experts;

pub use checkpoint::CheckpointMonitor;
pub use course::{EvalCallback, TrainCallback};
pub(crate) use experts::{COLLECT_FREQ, Claim, claims};
pub use experts::{ColdHotMonitor, DropRateCallback, SummaryMonitor, TopkBiasCallback};

use super::moe::Moe;
use crate::settings::engine::*;

rows! {
    /// `MFLossMonitor`: MindFormers' two lines of a step, with loss, learning rate and speed. `log.txt` has them in any case; a console
    /// that is no terminal has them where a file names this callback, and shorter lines otherwise. A terminal has a bar.
    pub struct LossMonitor {
        /// Steps between these lines.
        per_print_times: u64 = Host.default(1).within(COUNT),
    }
    others [sections("type"), ignored("keep_default_action", "about MindFormers' callback")]
}

/// What the callbacks ask for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Callbacks {
    /// When MindFormers' lines are logged, where the configuration names them.
    pub loss: Option<LossMonitor>,
    /// When checkpoints are written, if at all.
    pub checkpoint: Option<CheckpointMonitor>,
    /// When the model is evaluated, and the path of the callback.
    pub(crate) eval: Option<(String, EvalCallback)>,
    /// Where training stops.
    pub(crate) train: Option<TrainCallback>,
    /// Whether each layer's drop rate is logged, and what the callback says of the model.
    pub drop_rate: Option<DropRateCallback>,
    /// What it says of the model.
    pub topk_bias: Option<TopkBiasCallback>,
    /// Hot experts are chosen anew after this step.
    pub cold_hot: Option<ColdHotMonitor>,
    /// Where and when token distributions are written.
    pub summary: Option<SummaryMonitor>,
    /// Paths of the callbacks that say something of the model, for messages.
    pub(crate) claimants: Vec<(String, Vec<Claim>)>,
}

const LIST: &str = "callbacks";
const LOSS: &str = "MFLossMonitor";
const CHECKPOINT: &str = "CheckpointMonitor";
const EVAL: &str = "EvalCallBack";
const TRAIN: &str = "TrainCallBack";
const DROP_RATE: &str = "MoEDropRateCallback";
const TOPK_BIAS: &str = "TopkBiasBalanceCallback";
const COLD_HOT: &str = "ColdHotExpertMonitor";
const SUMMARY: &str = "SummaryMonitor";

/// Every name of the callbacks that are read. The misspelling is that of half of all files.
const READ: [(&str, &str); 10] = [
    (LOSS, LOSS),
    ("LossMonitor", LOSS),
    (CHECKPOINT, CHECKPOINT),
    ("CheckpointMointor", CHECKPOINT),
    (EVAL, EVAL),
    (TRAIN, TRAIN),
    (DROP_RATE, DROP_RATE),
    (TOPK_BIAS, TOPK_BIAS),
    (COLD_HOT, COLD_HOT),
    (SUMMARY, SUMMARY),
];
/// Uploads to a cloud that is not ours.
const IGNORED: [&str; 1] = ["ObsMonitor"];
const PLANNED: &str =
    "TrainingStateMonitor MaxLogitsMonitor ProfileMonitor TrainFaultTolerance StressDetectCallBack";

/// The table of each callback.
pub(crate) fn tables() -> Vec<(&'static str, Table)> {
    vec![
        ("callbacks.MFLossMonitor", LossMonitor::table()),
        ("callbacks.CheckpointMonitor", CheckpointMonitor::table()),
        ("callbacks.EvalCallBack", EvalCallback::table()),
        ("callbacks.TrainCallBack", TrainCallback::table()),
        ("callbacks.MoEDropRateCallback", DropRateCallback::table()),
        ("callbacks.TopkBiasBalanceCallback", TopkBiasCallback::table()),
        ("callbacks.ColdHotExpertMonitor", ColdHotMonitor::table()),
        ("callbacks.SummaryMonitor", SummaryMonitor::table()),
        ("callbacks.SummaryMonitor.export_options", experts::export_table()),
    ]
}

/// Reads the list.
pub(crate) fn read(source: &Source) -> Callbacks {
    let mut callbacks = Callbacks::default();
    let count = match source.node(LIST) {
        Some(Node::List(items)) => items.len(),
        Some(node) => {
            source.fault(LIST, format!("expected a list of callbacks, found {node}"));
            0
        }
        None => 0,
    };
    let mut seen: Vec<&str> = Vec::new();
    for index in 0..count {
        let path = format!("{LIST}.{index}");
        let Some(kind) = kind_at(source, &path) else { continue };
        // MindFormers keeps the last one without a word.
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
            EVAL => self.eval = Some((path.to_string(), Section::read_at(source, path))),
            TRAIN => self.train = Some(Section::read_at(source, path)),
            DROP_RATE => {
                let callback = DropRateCallback::read_at(source, path);
                self.claimants.push((path.to_string(), claims(&callback)));
                self.drop_rate = Some(callback);
            }
            TOPK_BIAS => {
                let callback = TopkBiasCallback::read_at(source, path);
                self.claimants.push((path.to_string(), claims(&callback)));
                self.topk_bias = Some(callback);
            }
            COLD_HOT => self.cold_hot = Some(Section::read_at(source, path)),
            _ => {
                let options = format!("{path}.export_options");
                Reader::open(source, &options, &[&experts::export_table()]);
                self.summary = Some(Section::read_at(source, path));
            }
        }
    }

    /// The step after which hot experts are chosen anew, that of a checkpoint unless a monitor says another.
    pub(crate) fn hot_step(&self) -> Option<u64> {
        let own =
            self.cold_hot.as_ref().and_then(|monitor| u64::try_from(monitor.save_checkpoint_steps).ok());
        let checkpoint = self.checkpoint.as_ref().map(|checkpoint| checkpoint.save_checkpoint_steps);
        own.filter(|step| *step > 0).or(checkpoint.filter(|step| *step > 0))
    }

    /// Its sections, to be written as items of a list. What the callbacks repeat of the model is left out.
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

    /// Says which callbacks have nothing to do.
    pub(crate) fn note_idle(&self, source: &Source, moe: Option<&Moe>) {
        let saves = moe.is_some_and(|moe| moe.save_token_distribution);
        if saves && self.summary.is_none() {
            source.note(format!(
                "moe_config.save_token_distribution: written every {COLLECT_FREQ} steps into the run's folder; a {SUMMARY} \
                 says where and when"
            ));
        }
        let note = |callback: &str, text: &str| source.note(format!("callbacks: {callback} {text}"));
        if self.summary.is_some() && !saves {
            note(SUMMARY, "writes what `moe_config.save_token_distribution` asks for: nothing");
        }
        if self.cold_hot.is_some() && moe.is_none_or(|moe| !moe.enable_cold_hot_expert) {
            note(COLD_HOT, "has nothing to do without `moe_config.enable_cold_hot_expert`");
        }
        if self.drop_rate.is_some() && moe.is_some_and(|moe| moe.use_gmm) {
            note(DROP_RATE, "shows rates of 0, as no token is dropped");
        }
        if self.drop_rate.is_some() && moe.is_none() {
            note(DROP_RATE, "has nothing to say of a model without experts");
        }
    }
}

/// The callback at `path`, by the name we use; nothing where it is ignored or at fault.
fn kind_at(source: &Source, path: &str) -> Option<&'static str> {
    let kind_path = format!("{path}.type");
    let Some(kind) = source.word(&kind_path) else {
        source.fault(path, "`type` is missing; write `type: MFLossMonitor` or another callback");
        return None;
    };
    let found = READ.iter().find(|(name, _)| *name == kind).map(|(_, kind)| *kind);
    if found.is_some() {
        return found;
    }
    if IGNORED.contains(&kind) {
        source.ignore_word(LIST, kind);
    } else if words(PLANNED).any(|planned| planned == kind) {
        source.fault(&kind_path, format!("`{kind}` is not built yet; remove this callback"));
    } else {
        let known = READ.iter().map(|(_, kind)| *kind).chain(IGNORED).chain(words(PLANNED));
        source.fault(&kind_path, unknown_type(kind, known));
    }
    None
}

#[cfg(test)]
mod tests;
