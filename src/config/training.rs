//! The sections that say how to step: `runner_config`, `runner_wrapper`; and types that several sections name.

use super::document::Document;
use super::known_keys;
use super::node::Node;
use super::section::{Notes, Section, closest};
use crate::error::Result;

/// `runner_config` as written.
#[derive(Clone, Debug, PartialEq)]
pub struct RunnerSection {
    /// How often the data is gone through.
    pub epochs: u64,
    /// Windows in a micro-batch.
    pub batch_size: usize,
    /// Micro-batches in a step.
    pub gradient_accumulation_steps: usize,
    /// The run ends after this step; 0 for no limit.
    pub stop_step: u64,
}

/// `runner_wrapper` as written.
#[derive(Clone, Debug, PartialEq)]
pub struct WrapperSection {
    /// Gradients are scaled down to this norm, if at all.
    pub clip: Option<f64>,
    /// The loss is multiplied by this before the backward pass.
    pub loss_scale: f64,
}

pub(super) fn read_runner(document: &Document, notes: &mut Notes) -> Result<RunnerSection> {
    let section = Section::open(document, "runner_config", &known_keys::RUNNER, notes)?;
    Ok(RunnerSection {
        epochs: section.or("epochs", 1)?,
        batch_size: section.or("batch_size", 1)?,
        gradient_accumulation_steps: read_accumulation(&section)?,
        stop_step: section.or("stop_step", 0)?,
    })
}

/// With the messages of the original.
fn read_accumulation(section: &Section) -> Result<usize> {
    let key = "gradient_accumulation_steps";
    let message = match section.node(key) {
        None => return Ok(1),
        Some(Node::Int(steps)) if *steps >= 1 => return section.require(key),
        Some(Node::Int(steps)) => {
            format!("gradient_accumulation should be greater or equal than 1, but got {steps}")
        }
        Some(node) => format!("gradient_accumulation should be integer but got {node}"),
    };
    Err(section.error(key, message))
}

pub(super) fn read_wrapper(document: &Document, notes: &mut Notes) -> Result<WrapperSection> {
    let section = Section::open(document, "runner_wrapper", &known_keys::WRAPPER, notes)?;
    if section.is_empty() {
        notes.add("runner_wrapper is absent: gradients are clipped at norm 1.0, as in the original");
        return Ok(WrapperSection { clip: Some(1.0), loss_scale: 1.0 });
    }
    let kind: Option<String> = section.get("type")?;
    if let Some(kind) = kind.filter(|kind| kind != "MFTrainOneStepCell") {
        let message = format!("`{kind}` is not built yet; write `type: MFTrainOneStepCell`");
        return Err(section.error("type", message));
    }
    let max_norm = section.number("max_grad_norm", 1.0, "a number above 0", |norm| norm > 0.0)?;
    let clips = section.or("use_clip_grad", false)?;
    let loss_scale = read_loss_scale(document, &section, notes)?;
    Ok(WrapperSection { clip: clips.then_some(max_norm), loss_scale })
}

/// `scale_sense` is a number or a section with a type.
fn read_loss_scale(document: &Document, wrapper: &Section, notes: &mut Notes) -> Result<f64> {
    let positive = |scale: f64| scale > 0.0;
    let Some(Node::Map(_)) = wrapper.node("scale_sense") else {
        return wrapper.number("scale_sense", 1.0, "a number above 0 or a section with a type", positive);
    };
    let path = wrapper.path("scale_sense");
    const BUILT: &str = "FixedLossScaleUpdateCell";
    const PLANNED: [&str; 2] = ["DynamicLossScaleUpdateCell", "AdaptiveLossScaleUpdateCell"];
    let kind_path = format!("{path}.type");
    let remedy = "write `scale_sense: 1.0`; f32 needs no scaling";
    match document.word(&kind_path) {
        Some(BUILT) => {}
        Some(kind) if PLANNED.contains(&kind) => {
            return Err(document.error(&kind_path, format!("`{kind}` is not built yet; {remedy}")));
        }
        Some(kind) => {
            return Err(document.error(&kind_path, unknown(kind, [BUILT].into_iter().chain(PLANNED))));
        }
        None => return Err(document.error(&path, format!("`type` is missing; {remedy}"))),
    }
    let section = Section::open(document, &path, &known_keys::LOSS_SCALE, notes)?;
    section.number("loss_scale_value", 1.0, "a number above 0", positive)
}

/// Refuses a type that is not built, telling what is planned from what is misspelt.
pub(super) fn check_kind(document: &Document, path: &str, built: &[&str], planned: &[&str]) -> Result<()> {
    match document.word(path) {
        Some(kind) if planned.contains(&kind) => {
            Err(document.error(path, format!("`{kind}` is not built yet; write `type: {}`", built[0])))
        }
        Some(kind) if !built.contains(&kind) => {
            Err(document.error(path, unknown(kind, built.iter().chain(planned).copied())))
        }
        _ => Ok(()),
    }
}

/// The message for a type that nobody knows.
pub(super) fn unknown<'a>(kind: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    match closest(kind, known.clone()) {
        Some(name) => format!("unknown type `{kind}`; did you mean `{name}`?"),
        None => {
            let known: Vec<_> = known.collect();
            format!("unknown type `{kind}`; known are {}", known.join(", "))
        }
    }
}
