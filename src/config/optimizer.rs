//! The section `optimizer`.

use super::document::Document;
use super::known_keys;
use super::section::{Notes, Section};
use super::training::check_kind;
use crate::error::Result;
use crate::train::optimizer::{OptimizerConfig, OptimizerKind};

/// The types, what each computes, and the `eps` it has in the original where none is given.
const KINDS: [(&str, OptimizerKind, f64); 6] = [
    ("AdamW", OptimizerKind::AdamW, 1e-8),
    ("adamw", OptimizerKind::AdamW, 1e-8),
    ("FusedAdamW", OptimizerKind::AdamW, 1e-8),
    ("FusedAdamWeightDecay", OptimizerKind::AdamW, 1e-6),
    ("FP32StateAdamWeightDecay", OptimizerKind::Fp32StateAdamWeightDecay, 1e-6),
    ("AdamWeightDecayX", OptimizerKind::AdamWeightDecayX, 1e-8),
];

/// Optimizers of the original that are not built.
const PLANNED: [&str; 11] = [
    "Muon",
    "PmaAdamW",
    "FusedPmaAdamW",
    "FusedCastAdamWeightDecay",
    "Lamb",
    "CAME",
    "Adafactor",
    "SGD",
    "Adam",
    "Adagrad",
    "Momentum",
];

/// Reads the optimizer and the learning rate it names, which a schedule may override.
pub(super) fn read(document: &Document, notes: &mut Notes) -> Result<(OptimizerConfig, Option<f64>)> {
    let path = "optimizer.type";
    let names = KINDS.map(|(name, ..)| name);
    if let Some(kind) = document.word(path).filter(|kind| PLANNED.contains(kind)) {
        let message = format!("`{kind}` is not built; write one of {}", names.join(", "));
        return Err(document.error(path, message));
    }
    check_kind(document, path, &names, &[])?; // nobody is sent to what is not built
    let section = Section::open(document, "optimizer", &known_keys::OPTIMIZER, notes)?;
    let name = document.word(path).unwrap_or(names[0]);
    let (_, kind, default_eps) = KINDS.into_iter().find(|(known, ..)| *known == name).unwrap_or(KINDS[0]);
    let default = OptimizerConfig::default();
    let [beta1, beta2] = read_betas(&section, [default.beta1, default.beta2])?;
    let eps = section.number("eps", default_eps, "a number above 0", |eps| eps > 0.0)?;
    let weight_decay =
        section.number("weight_decay", default.weight_decay, "a number from 0", |wd| wd >= 0.0)?;
    let rate = section.get("learning_rate")?;
    if rate.is_some_and(|rate: f64| rate <= 0.0) {
        return Err(section.error("learning_rate", "expected a number above 0"));
    }
    Ok((OptimizerConfig { kind, beta1, beta2, eps, weight_decay }, rate))
}

/// `betas`, or `beta1` and `beta2`.
fn read_betas(section: &Section, [beta1, beta2]: [f64; 2]) -> Result<[f64; 2]> {
    let fraction = |beta: f64| beta > 0.0 && beta < 1.0;
    let single = [
        section.number("beta1", beta1, "a number in (0, 1)", fraction)?,
        section.number("beta2", beta2, "a number in (0, 1)", fraction)?,
    ];
    let Some(betas) = section.get::<Vec<f64>>("betas")? else { return Ok(single) };
    if section.node("beta1").or(section.node("beta2")).is_some() {
        return Err(section.error("betas", "given beside `beta1` or `beta2`; keep one form"));
    }
    match betas[..] {
        [first, second] if fraction(first) && fraction(second) => Ok([first, second]),
        _ => Err(section.error("betas", format!("expected two numbers in (0, 1), found {betas:?}"))),
    }
}
