//! `optimizer`: the rule by which gradients become updates.

use crate::element::Element;
use crate::model::parameters::UpdateRule;
use crate::settings::engine::*;

rows! {
    /// `optimizer`: the rule by which gradients become updates. Weight decay is decoupled in every type but `SGD` and `Momentum`.
    pub struct Optimizer in "optimizer" {
        /// The rule. `FusedAdamW` and `FusedAdamWeightDecay` compute what `AdamW` does, and `Momentum`, which is MindSpore's, what
        /// `SGD` does without `dampening`.
        kind "type": OptimizerType = Numbers.optional().read_by(|reader, key| reader.kind(key, PLANNED))
            .example("Muon"),
        /// Decay of the first and the second moment per step.
        betas: Vec<f64> = Numbers.optional().filled("`[0.9, 0.999]`").read_by(pair).of(ADAM).example("[0.9, 0.95]"),
        /// Added to the root of the second moment.
        eps: Option<f64> = Numbers.optional()
            .filled("`1e-8`, of `FusedAdamWeightDecay` and `FP32StateAdamWeightDecay` `1e-6`").within(ABOVE_ZERO).of(ADAM).example("1e-7"),
        /// Decay of matrices per unit of learning rate.
        weight_decay: Option<f64> = Numbers.optional().filled("`0`, of `Muon` `0.1`").within(FROM_ZERO).example("0.05"),
        /// Whether weights that layers read in bfloat16 are stored in bfloat16 alone, without a float32 master copy; the
        /// update rounds them stochastically, since rounding to nearest would lose small updates. Needs `compute_dtype:
        /// bfloat16`. Moments, routers and gates stay float32.
        stochastic_rounding: bool = Numbers.default(false),
        /// Decay of the momentum per step. `Momentum` needs it.
        momentum: Option<f64> = Numbers.optional().filled("`0.95` of `Muon`, `0` of `SGD`").within(UNIT_BELOW_ONE).of(MOMENTUM).example("0.9"),
        /// Whether the update looks one step ahead (Nesterov).
        nesterov: Option<bool> = Numbers.optional().filled("`True` of `Muon`, `False` of others").of(MOMENTUM).example("False"),
        /// How much less than 1 a gradient adds to the momentum; the first one adds 1.
        dampening: Option<f64> = Numbers.optional().filled("`0`").within(SHARE_BELOW_ONE).of("SGD").example("0.1"),
        /// Newton-Schulz iterations, 1 to 20.
        ns_steps: Option<u64> = Numbers.optional().filled("`5`").within(NS_STEPS).of("Muon").example("4"),
        /// Root mean square of an update at learning rate 1, so that AdamW's rates and decays suit.
        matched_adamw_rms: Option<f64> = Numbers.optional().filled("`0.2`").within(ABOVE_ZERO).of("Muon").example("0.3"),
        /// `betas` of the parameters that Muon leaves to AdamW.
        adamw_betas: Vec<f64> = Numbers.optional().filled("`[0.95, 0.95]`").read_by(pair).of("Muon").example("[0.8, 0.9]"),
        /// `eps` of the parameters that Muon leaves to AdamW.
        adamw_eps: Option<f64> = Numbers.optional().filled("`1e-8`").within(ABOVE_ZERO).of("Muon").example("1e-7"),
    }
}

const NS_STEPS: Range =
    Range::new("a whole number from 1 to 20", |steps| (1.0..=20.0).contains(&steps), 21.0);

/// The types with the keys of Adam.
pub(crate) const ADAM: &str = "AdamW FusedAdamWeightDecay FP32StateAdamWeightDecay AdamWeightDecayX";

/// The types with a momentum.
const MOMENTUM: &str = "Muon SGD Momentum";

words! {
    /// `type`, by what is computed and by the default of `eps`.
    pub enum OptimizerType {
        /// m̂ / (√v̂ + eps).
        #[default]
        AdamW = "AdamW" "adamw" "FusedAdamW",
        /// The same, with eps 1e-6.
        FusedAdamWeightDecay = "FusedAdamWeightDecay",
        /// Without correction of the moments.
        Fp32StateAdamWeightDecay = "FP32StateAdamWeightDecay",
        /// eps before the correction.
        AdamWeightDecayX = "AdamWeightDecayX",
        /// Orthogonalised momentum.
        Muon = "Muon",
        /// Gradient descent with momentum and coupled weight decay.
        Sgd = "SGD",
        /// The same without dampening, in MindSpore's words.
        Momentum = "Momentum",
    }
}

impl OptimizerType {
    /// A section for each type, with no more than must be written: `type: Momentum, momentum: 0.9`.
    pub fn sections() -> impl Iterator<Item = String> {
        let needs = |word| if word == Self::Momentum.word() { ", momentum: 0.9" } else { "" };
        Self::firsts().map(move |word| format!("type: {word}{}", needs(word)))
    }
}

/// Optimizers of MindFormers that are not built.
const PLANNED: &str = "PmaAdamW FusedPmaAdamW FusedCastAdamWeightDecay Lamb CAME Adafactor Adam Adagrad";

/// The optimizer and its numbers. Weight decay is decoupled in every kind but SGD (Loshchilov and Hutter, "Decoupled weight
/// decay regularization", 2019): p ← p (1 - lr wd) - lr update.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerConfig {
    /// How the update follows from gradient and moments.
    pub kind: OptimizerKind,
    /// Decay of weights per unit of learning rate; biases and vectors are exempt.
    pub weight_decay: f64,
    /// Whether weights are stored as layers read them and rounded stochastically, instead of in f32 with copies.
    pub stochastic_rounding: bool,
}

/// The optimizers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptimizerKind {
    /// AdamW and its variants.
    AdamW(AdamWConfig),
    /// Orthogonalised momentum for the matrices of the layers; AdamW for tables and vectors.
    Muon(MuonConfig),
    /// Gradient descent with momentum.
    Sgd(SgdConfig),
}

/// What AdamW and its variants have. The moments are in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWConfig {
    /// Decay of the first moment, in (0, 1).
    pub beta1: f64,
    /// Decay of the second moment, in (0, 1).
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// How the moments are corrected for their start at 0.
    pub correction: Correction,
}

/// The variants of AdamW. m and v are the moments; a hat marks the corrected ones: m̂ = m / (1 - β1ᵗ), v̂ = v / (1 - β2ᵗ).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Correction {
    /// m̂ / (√v̂ + eps).
    Published,
    /// `FP32StateAdamWeightDecay`, m / (√v + eps).
    Absent,
    /// `AdamWeightDecayX`, m̂ / ((√v + eps) / √(1 - β2ᵗ)): eps is added before the correction.
    WithEps,
}

/// What Muon has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MuonConfig {
    /// Decay of the momentum per step, in [0, 1).
    pub momentum: f64,
    /// Whether the update looks one step ahead.
    pub nesterov: bool,
    /// Newton-Schulz iterations.
    pub ns_steps: u32,
    /// Root mean square of an update at learning rate 1.
    pub matched_adamw_rms: f64,
    /// AdamW, for all parameters but the matrices of the layers.
    pub adamw: AdamWConfig,
}

/// What SGD has, as in PyTorch and MindSpore, and MindSpore's Momentum: g' = g + wd p, m ← momentum m + (1 - dampening) g', p ← p - lr m.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdConfig {
    /// Decay of the momentum per step, in [0, 1).
    pub momentum: f64,
    /// How much less than 1 a gradient adds to the momentum, in [0, 1); the first one adds 1.
    pub dampening: f64,
    /// Whether the update looks one step ahead: g' + momentum m instead of m.
    pub nesterov: bool,
}

impl OptimizerConfig {
    /// How the matrices of the layers are updated; all other parameters are updated elementwise.
    pub(crate) fn matrix_rule(&self) -> UpdateRule {
        match self.kind {
            OptimizerKind::Muon(_) => UpdateRule::Matrix,
            OptimizerKind::AdamW(_) | OptimizerKind::Sgd(_) => UpdateRule::Elementwise,
        }
    }

    /// How many moments each parameter under `rule` has.
    pub fn moments(&self, rule: UpdateRule) -> usize {
        match (self.kind, rule) {
            (OptimizerKind::AdamW(_), _) | (OptimizerKind::Muon(_), UpdateRule::Elementwise) => 2,
            (OptimizerKind::Muon(_), UpdateRule::Matrix) | (OptimizerKind::Sgd(_), _) => 1,
        }
    }

    /// The storage type of the weights that it updates, or of frozen ones, of a parameter that layers read as `compute`.
    pub fn stored(&self, is_frozen: bool, compute: Element) -> Element {
        if is_frozen || self.stochastic_rounding { compute } else { Element::F32 }
    }

    /// β1 and β2 of moments that are corrected for their start at 0, if there are such.
    pub fn corrected_betas(&self) -> Option<[f64; 2]> {
        let adamw = match self.kind {
            OptimizerKind::AdamW(adamw) | OptimizerKind::Muon(MuonConfig { adamw, .. }) => adamw,
            OptimizerKind::Sgd(_) => return None,
        };
        (adamw.correction != Correction::Absent).then_some([adamw.beta1, adamw.beta2])
    }
}

/// Reads the section and fills in the defaults of its type.
pub(crate) fn read(source: &Source) -> Optimizer {
    let reader = Reader::open(source, "optimizer", &[Optimizer::ID]);
    let kind = match reader.node("type") {
        None => OptimizerType::default(),
        Some(_) => match reader.kind("type", PLANNED) {
            Some(kind) => kind,
            None => return Optimizer::default(),
        },
    };
    let reader = reader.of_type(kind.word());
    let mut optimizer = Optimizer::read(&reader);
    for row in reader.foreign::<Optimizer>() {
        match row.key {
            key @ ("betas" | "eps") if kind == OptimizerType::Muon => {
                reader.fault(key, format!("Muon has no such key; write `adamw_{key}`"));
            }
            key => reader.refuse(key, &row.types),
        }
    }
    match kind {
        OptimizerType::Momentum => reader.missing("momentum", UNIT_BELOW_ONE.words),
        OptimizerType::Sgd => {
            let has_momentum = optimizer.momentum.is_some_and(|momentum| momentum > 0.0);
            let fits = has_momentum && optimizer.dampening.unwrap_or(0.0) == 0.0;
            let message = "needs a `momentum` above 0, and no `dampening`";
            let keys = ["nesterov", "momentum", "dampening"];
            reader.require(&keys, fits || optimizer.nesterov != Some(true), message);
        }
        _ => {}
    }
    optimizer.fill();
    optimizer
}

impl Optimizer {
    /// The optimizer as the trainer needs it, with the defaults of its type.
    pub(crate) fn config(&self) -> OptimizerConfig {
        let adamw_eps = self.adamw_eps.unwrap_or(1e-8);
        let kind = match self.kind {
            OptimizerType::Muon => OptimizerKind::Muon(MuonConfig {
                momentum: self.momentum.unwrap_or(0.95),
                nesterov: self.nesterov.unwrap_or(true),
                ns_steps: self.ns_steps.map_or(5, |steps| steps as u32),
                matched_adamw_rms: self.matched_adamw_rms.unwrap_or(0.2),
                adamw: adamw(&self.adamw_betas, [0.95; 2], adamw_eps, Correction::Published),
            }),
            // Without a momentum there is nothing ahead.
            OptimizerType::Sgd | OptimizerType::Momentum => OptimizerKind::Sgd(SgdConfig {
                momentum: self.momentum.unwrap_or(0.0),
                dampening: self.dampening.unwrap_or(0.0),
                nesterov: self.nesterov == Some(true) && self.momentum != Some(0.0),
            }),
            adam => {
                let (eps, correction) = match adam {
                    OptimizerType::FusedAdamWeightDecay => (1e-6, Correction::Published),
                    OptimizerType::Fp32StateAdamWeightDecay => (1e-6, Correction::Absent),
                    OptimizerType::AdamWeightDecayX => (1e-8, Correction::WithEps),
                    _ => (1e-8, Correction::Published),
                };
                OptimizerKind::AdamW(adamw(&self.betas, [0.9, 0.999], self.eps.unwrap_or(eps), correction))
            }
        };
        let default_decay = if self.kind == OptimizerType::Muon { 0.1 } else { 0.0 };
        let weight_decay = self.weight_decay.unwrap_or(default_decay);
        OptimizerConfig { kind, weight_decay, stochastic_rounding: self.stochastic_rounding }
    }

    /// Writes out what the type leaves open.
    fn fill(&mut self) {
        let config = self.config();
        self.weight_decay = Some(config.weight_decay);
        match config.kind {
            OptimizerKind::AdamW(adamw) => {
                self.betas = vec![adamw.beta1, adamw.beta2];
                self.eps = Some(adamw.eps);
                // With its eps written out it is the same rule under another name.
                if self.kind == OptimizerType::FusedAdamWeightDecay {
                    self.kind = OptimizerType::AdamW;
                }
            }
            OptimizerKind::Muon(muon) => {
                self.momentum = Some(muon.momentum);
                self.nesterov = Some(muon.nesterov);
                self.ns_steps = Some(muon.ns_steps.into());
                self.matched_adamw_rms = Some(muon.matched_adamw_rms);
                self.adamw_betas = vec![muon.adamw.beta1, muon.adamw.beta2];
                self.adamw_eps = Some(muon.adamw.eps);
            }
            OptimizerKind::Sgd(sgd) => {
                // With its numbers written out it is the same rule under another name.
                self.kind = OptimizerType::Sgd;
                self.momentum = Some(sgd.momentum);
                self.dampening = Some(sgd.dampening);
                self.nesterov = Some(sgd.nesterov);
            }
        }
    }
}

/// AdamW's numbers, with `betas` where `written` holds none.
fn adamw(written: &[f64], betas: [f64; 2], eps: f64, correction: Correction) -> AdamWConfig {
    let [beta1, beta2] = written.try_into().unwrap_or(betas);
    AdamWConfig { beta1, beta2, eps, correction }
}

/// Two numbers in (0, 1).
fn pair(reader: &Reader<'_>, key: &'static str) -> Option<Vec<f64>> {
    let betas: Vec<f64> = reader.convert(key, reader.node(key)?)?;
    if betas.len() == 2 && betas.iter().all(|beta| (UNIT_OPEN.accepts)(*beta)) {
        return Some(betas);
    }
    reader.fault(key, format!("expected two numbers in (0, 1), found {betas:?}"));
    None
}
