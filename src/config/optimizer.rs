//! The section `optimizer`.

use super::document::Document;
use super::known_keys;
use super::node::Node;
use super::section::{Notes, Section};
use super::training::check_kind;
use crate::error::Result;
use crate::train::optimizer::{MuonConfig, OptimizerConfig, OptimizerKind};

/// The types, what each computes, and the `eps` it has in the original where none is given.
const KINDS: [(&str, OptimizerKind, f64); 7] = [
    ("AdamW", OptimizerKind::AdamW, 1e-8),
    ("adamw", OptimizerKind::AdamW, 1e-8),
    ("FusedAdamW", OptimizerKind::AdamW, 1e-8),
    ("FusedAdamWeightDecay", OptimizerKind::AdamW, 1e-6),
    ("FP32StateAdamWeightDecay", OptimizerKind::Fp32StateAdamWeightDecay, 1e-6),
    ("AdamWeightDecayX", OptimizerKind::AdamWeightDecayX, 1e-8),
    (MUON, OptimizerKind::AdamW, 1e-8), // its own numbers are read apart
];

const MUON: &str = "Muon";

/// Keys of Muon alone, and those that it has under other names.
const OF_MUON: [&str; 6] =
    ["momentum", "nesterov", "ns_steps", "matched_adamw_rms", "adamw_betas", "adamw_eps"];
const OF_ADAM: [(&str, &str); 4] =
    [("betas", "adamw_betas"), ("beta1", "adamw_betas"), ("beta2", "adamw_betas"), ("eps", "adamw_eps")];

/// Optimizers of the original that are not built.
const PLANNED: [&str; 10] = [
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
    let rate: Option<f64> = section.get("learning_rate")?;
    if rate.is_some_and(|rate| rate <= 0.0) {
        return Err(section.error("learning_rate", "expected a number above 0"));
    }
    let given = |key: &&str| section.node(key).is_some();
    if name == MUON {
        if let Some((key, other)) = OF_ADAM.into_iter().find(|(key, _)| given(key)) {
            return Err(section.error(key, format!("Muon has no such key; write `{other}`")));
        }
        return Ok((read_muon(&section)?, rate));
    }
    if let Some(key) = OF_MUON.into_iter().find(given) {
        return Err(section.error(key, format!("belongs to `type: {MUON}`; remove it")));
    }
    let default = OptimizerConfig::default();
    let [beta1, beta2] = read_betas(&section, [default.beta1, default.beta2])?;
    let eps = section.number("eps", default_eps, "a number above 0", |eps| eps > 0.0)?;
    let weight_decay = read_decay(&section, default.weight_decay)?;
    Ok((OptimizerConfig { kind, beta1, beta2, eps, weight_decay }, rate))
}

fn read_muon(section: &Section) -> Result<OptimizerConfig> {
    let default = MuonConfig::default();
    let ns_steps = section.positive("ns_steps", default.ns_steps.into())?;
    let muon = MuonConfig {
        momentum: section.number("momentum", default.momentum, "a number in [0, 1)", |momentum| {
            (0.0..1.0).contains(&momentum)
        })?,
        nesterov: section.or("nesterov", default.nesterov)?,
        ns_steps: u32::try_from(ns_steps).ok().filter(|steps| *steps <= MOST_STEPS).ok_or_else(|| {
            section.error("ns_steps", format!("expected 1 to {MOST_STEPS}, found `{ns_steps}`"))
        })?,
        matched_adamw_rms: section.number(
            "matched_adamw_rms",
            default.matched_adamw_rms,
            "a number above 0",
            |rms| rms > 0.0,
        )?,
    };
    let betas = section.get::<Vec<f64>>("adamw_betas")?;
    let [beta1, beta2] = betas.map_or(Ok([0.95, 0.95]), |betas| pair(section, "adamw_betas", &betas))?;
    let eps = section.number("adamw_eps", 1e-8, "a number above 0", |eps| eps > 0.0)?;
    let weight_decay = read_decay(section, 0.1)?;
    Ok(OptimizerConfig { kind: OptimizerKind::Muon(muon), beta1, beta2, eps, weight_decay })
}

/// Five do; a recording should not grow without bound.
const MOST_STEPS: u32 = 20;

fn read_decay(section: &Section, default: f64) -> Result<f64> {
    section.number("weight_decay", default, "a number from 0", |decay| decay >= 0.0)
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
    pair(section, "betas", &betas)
}

/// Two numbers in (0, 1).
fn pair(section: &Section, key: &str, betas: &[f64]) -> Result<[f64; 2]> {
    let fraction = |beta: f64| beta > 0.0 && beta < 1.0;
    match betas[..] {
        [first, second] if fraction(first) && fraction(second) => Ok([first, second]),
        _ => Err(section.error(key, format!("expected two numbers in (0, 1), found {betas:?}"))),
    }
}

/// The section that reads back as `optimizer`.
pub(super) fn to_node(optimizer: &OptimizerConfig) -> Node {
    let OptimizerConfig { kind, beta1, beta2, eps, weight_decay } = *optimizer;
    let betas = Node::List(vec![beta1.into(), beta2.into()]);
    let mut entries: Vec<(&str, Node)> = vec![("type", kind.name().into())];
    if let OptimizerKind::Muon(muon) = kind {
        entries.extend([
            ("momentum", muon.momentum.into()),
            ("nesterov", muon.nesterov.into()),
            ("ns_steps", u64::from(muon.ns_steps).into()),
            ("matched_adamw_rms", muon.matched_adamw_rms.into()),
            ("adamw_betas", betas),
            ("adamw_eps", eps.into()),
        ]);
    } else {
        entries.extend([("betas", betas), ("eps", eps.into())]);
    }
    entries.push(("weight_decay", weight_decay.into()));
    Node::Map(entries.into_iter().map(|(key, node)| (key.to_string(), node)).collect())
}
