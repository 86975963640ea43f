//! The `callbacks` list.

use super::document::Document;
use super::instruments::{self, ExpertCallbacks};
use super::known_keys;
use super::node::Node;
use super::section::{Notes, Section};
use super::training::unknown;
use crate::error::Result;

/// What the callbacks ask for.
#[derive(Clone, Debug, PartialEq)]
pub struct CallbacksSection {
    /// A log line every so many steps.
    pub log_every: u64,
    /// When checkpoints are written, if at all.
    pub checkpoint: Option<CheckpointConfig>,
    /// Those about experts.
    pub experts: ExpertCallbacks,
}

/// `CheckpointMonitor`.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointConfig {
    /// A checkpoint every so many steps.
    pub every_steps: u64,
    /// How many are kept.
    pub keep_max: usize,
    /// The name that the original gives the files; kept for their users, our folders are named by step.
    pub prefix: String,
}

const LOSS: [&str; 2] = ["MFLossMonitor", "LossMonitor"];
/// The misspelling is half of all files.
const CHECKPOINT: [&str; 2] = ["CheckpointMonitor", "CheckpointMointor"];
/// Uploads to a cloud that is not ours.
const IGNORED: [&str; 1] = ["ObsMonitor"];
const PLANNED: [&str; 7] = [
    "TrainingStateMonitor",
    "MaxLogitsMonitor",
    "EvalCallBack",
    "ProfileMonitor",
    "TrainCallBack",
    "TrainFaultTolerance",
    "StressDetectCallBack",
];

pub(super) fn read(document: &Document, notes: &mut Notes) -> Result<CallbacksSection> {
    let mut callbacks =
        CallbacksSection { log_every: 1, checkpoint: None, experts: ExpertCallbacks::default() };
    // The original reads both names.
    let list = if document.get("callback").is_some() { "callback" } else { "callbacks" };
    let items = match document.get(list) {
        Some(Node::List(items)) => items.as_slice(),
        Some(node) if !node.is_none() => {
            return Err(document.error(list, format!("expected a list of callbacks, found {node}")));
        }
        _ => &[],
    };
    let mut seen: Vec<&str> = Vec::new();
    for index in 0..items.len() {
        let path = format!("{list}.{index}");
        let kind_path = format!("{path}.type");
        let Some(kind) = document.word(&kind_path) else {
            return Err(
                document.error(&path, "`type` is missing; write `type: MFLossMonitor` or another callback")
            );
        };
        let group = if LOSS.contains(&kind) {
            callbacks.log_every = read_loss_monitor(document, &path, notes)?;
            LOSS[0]
        } else if CHECKPOINT.contains(&kind) {
            callbacks.checkpoint = Some(read_checkpoint_monitor(document, &path, notes)?);
            CHECKPOINT[0]
        } else if let Some(known) = instruments::KINDS.into_iter().find(|known| *known == kind) {
            callbacks.experts.read(document, &path, known, notes)?;
            known
        } else if IGNORED.contains(&kind) {
            notes.ignore(list, kind);
            continue;
        } else if PLANNED.contains(&kind) {
            return Err(
                document.error(&kind_path, format!("`{kind}` is not built yet; remove this callback"))
            );
        } else {
            let known =
                [LOSS[0], CHECKPOINT[0]].into_iter().chain(instruments::KINDS).chain(IGNORED).chain(PLANNED);
            return Err(document.error(&kind_path, unknown(kind, known)));
        };
        // The original keeps the last one without a word.
        if seen.contains(&group) {
            return Err(document.error(&kind_path, format!("a second {group}; keep one of them")));
        }
        seen.push(group);
    }
    Ok(callbacks)
}

fn read_loss_monitor(document: &Document, path: &str, notes: &mut Notes) -> Result<u64> {
    let section = Section::open(document, path, &known_keys::LOSS_MONITOR, notes)?;
    section.positive("per_print_times", 1)
}

fn read_checkpoint_monitor(document: &Document, path: &str, notes: &mut Notes) -> Result<CheckpointConfig> {
    let section = Section::open(document, path, &known_keys::CHECKPOINT_MONITOR, notes)?;
    Ok(CheckpointConfig {
        every_steps: section.positive("save_checkpoint_steps", 1)?,
        keep_max: usize::try_from(section.positive("keep_checkpoint_max", 5)?).unwrap_or(usize::MAX),
        prefix: section.or("prefix", "CKP".to_string())?,
    })
}
