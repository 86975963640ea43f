//! `optimizer`: the rule by which gradients become updates.

use crate::settings::engine::*;

rows! {
    /// `optimizer`: the rule by which gradients become updates. Weight decay is decoupled in every type.
    pub struct Optimizer {
        /// The rule. `FusedAdamW` and `FusedAdamWeightDecay` compute what `AdamW` does.
        kind "type": OptimizerType = Numbers.optional().read_by(|reader, key| reader.kind(key, &PLANNED)),
        /// Decay of the first and the second moment per step.
        betas: Vec<f64> = Numbers.optional().read_by(pair).of(ADAM).example("[0.9, 0.95]"),
        /// Decay of the first moment, where `betas` is absent: 0.9.
        beta1: Option<f64> = Numbers.optional().within(UNIT_OPEN).of(ADAM).example("0.8"),
        /// Decay of the second moment, where `betas` is absent: 0.999.
        beta2: Option<f64> = Numbers.optional().within(UNIT_OPEN).of(ADAM).example("0.98"),
        /// Added to the root of the second moment; 1e-8 unless written, 1e-6 for `FusedAdamWeightDecay` and
        /// `FP32StateAdamWeightDecay`.
        eps: Option<f64> = Numbers.optional().within(ABOVE_ZERO).of(ADAM).example("1e-7"),
        /// Decay of matrices per unit of learning rate; 0 unless written, 0.1 for `Muon`.
        weight_decay: Option<f64> = Numbers.optional().within(FROM_ZERO).example("0.05"),
        /// Learning rate, where the schedule names none.
        learning_rate: Option<f64> = Numbers.optional().within(ABOVE_ZERO).example("0.001"),
        /// Decay of the momentum per step.
        momentum: Option<f64> = Numbers.optional().within(UNIT_BELOW_ONE).of("Muon").example("0.9"),
        /// Whether the update looks one step ahead (Nesterov).
        nesterov: Option<bool> = Numbers.optional().of("Muon").example("False"),
        /// Newton-Schulz iterations, 1 to 20.
        ns_steps: Option<u64> = Numbers.optional().within(NS_STEPS).of("Muon").example("4"),
        /// Root mean square of an update at learning rate 1, so that AdamW's rates and decays suit.
        matched_adamw_rms: Option<f64> = Numbers.optional().within(ABOVE_ZERO).of("Muon").example("0.3"),
        /// `betas` of the parameters that Muon leaves to AdamW.
        adamw_betas: Vec<f64> = Numbers.optional().read_by(pair).of("Muon").example("[0.8, 0.9]"),
        /// `eps` of the parameters that Muon leaves to AdamW.
        adamw_eps: Option<f64> = Numbers.optional().within(ABOVE_ZERO).of("Muon").example("1e-7"),
    }
    others [
        refused("qk_clip_threshold", Passes::Off, "remove it"),
        refused("swap offload amsgrad maximize", Passes::Off, "write `False`"),
    ]
}

const NS_STEPS: Range = Range {
    words: "a whole number from 1 to 20",
    accepts: |steps| (1.0..=20.0).contains(&steps),
    outside: 21.0,
};

/// The types but Muon.
const ADAM: &str = "AdamW FusedAdamWeightDecay FP32StateAdamWeightDecay AdamWeightDecayX";

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
    }
}

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

/// The optimizer and its numbers. Weight decay is decoupled in every kind (Loshchilov and Hutter, "Decoupled weight decay
/// regularization", 2019): p ← p (1 - lr wd) - lr update.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerConfig {
    /// How the update follows from gradient and moments.
    pub kind: OptimizerKind,
    /// Decay of the first moment, in (0, 1). Muon: of the parameters that AdamW updates, as the next two.
    pub beta1: f64,
    /// Decay of the second moment, in (0, 1).
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decay of weights per unit of learning rate; biases and vectors are exempt.
    pub weight_decay: f64,
}

/// The optimizers, under the names of the original. m and v are the moments, in f32; a hat marks those corrected for their
/// start at 0: m̂ = m / (1 - β1ᵗ), v̂ = v / (1 - β2ᵗ).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptimizerKind {
    /// m̂ / (√v̂ + eps).
    AdamW,
    /// m / (√v + eps): without bias correction.
    Fp32StateAdamWeightDecay,
    /// m̂ / ((√v + eps) / √(1 - β2ᵗ)): eps is added before the correction.
    AdamWeightDecayX,
    /// Orthogonalised momentum for the matrices of the layers; AdamW for tables and vectors.
    Muon(MuonConfig),
}

/// What only Muon has.
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
}

impl Default for MuonConfig {
    /// The original's defaults.
    fn default() -> Self {
        Self { momentum: 0.95, nesterov: true, ns_steps: 5, matched_adamw_rms: 0.2 }
    }
}

impl Default for OptimizerConfig {
    /// The original's defaults.
    fn default() -> Self {
        Self { kind: OptimizerKind::AdamW, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 }
    }
}

impl OptimizerKind {
    /// Whether moments are corrected for their start at 0.
    pub fn corrects_bias(self) -> bool {
        self != Self::Fp32StateAdamWeightDecay
    }
}

/// Reads the section and fills in the defaults of its type.
pub(crate) fn read(source: &Source<'_>) -> Optimizer {
    let table = Optimizer::table();
    let reader = Reader::open(source, "optimizer", &[&table]);
    let kind = match reader.node("type") {
        None => OptimizerType::default(),
        Some(_) => match reader.kind("type", &PLANNED) {
            Some(kind) => kind,
            None => return Optimizer::default(),
        },
    };
    let reader = reader.of_type(kind.word());
    let mut optimizer = Optimizer::read(&reader);
    for row in reader.foreign(&table) {
        let twin = format!("adamw_{}", row.key.replace("beta1", "betas").replace("beta2", "betas"));
        let remedy = match table.row(&twin) {
            Some(twin) => format!("Muon has no such key; write `{}`", twin.key),
            None => format!("belongs to `type: {}`; remove it", row.types[0]),
        };
        reader.fault(row.key, remedy);
    }
    let both = reader.has("betas") && (reader.has("beta1") || reader.has("beta2"));
    if both {
        reader.fault("betas", "given beside `beta1` or `beta2`; keep one form");
    }
    optimizer.fill();
    optimizer
}

impl Optimizer {
    /// Fills in what the type leaves open.
    fn fill(&mut self) {
        let default = OptimizerConfig::default();
        if self.kind == OptimizerType::Muon {
            let muon = MuonConfig::default();
            self.momentum.get_or_insert(muon.momentum);
            self.nesterov.get_or_insert(muon.nesterov);
            self.ns_steps.get_or_insert(muon.ns_steps.into());
            self.matched_adamw_rms.get_or_insert(muon.matched_adamw_rms);
            self.adamw_eps.get_or_insert(1e-8);
            self.weight_decay.get_or_insert(0.1);
            if self.adamw_betas.is_empty() {
                self.adamw_betas = vec![0.95, 0.95];
            }
            return;
        }
        if self.betas.is_empty() {
            self.betas = vec![self.beta1.unwrap_or(default.beta1), self.beta2.unwrap_or(default.beta2)];
        }
        (self.beta1, self.beta2) = (None, None);
        let has_large_eps = [OptimizerType::Fp32StateAdamWeightDecay, OptimizerType::FusedAdamWeightDecay]
            .contains(&self.kind);
        self.eps.get_or_insert(if has_large_eps { 1e-6 } else { default.eps });
        self.weight_decay.get_or_insert(default.weight_decay);
        // With its eps written out it is the same rule under another name.
        if self.kind == OptimizerType::FusedAdamWeightDecay {
            self.kind = OptimizerType::AdamW;
        }
    }

    /// The optimizer as the trainer needs it, of a section that was filled.
    pub(crate) fn config(&self) -> OptimizerConfig {
        let default = OptimizerConfig::default();
        let muon = MuonConfig::default();
        let kind = match self.kind {
            OptimizerType::AdamW | OptimizerType::FusedAdamWeightDecay => OptimizerKind::AdamW,
            OptimizerType::Fp32StateAdamWeightDecay => OptimizerKind::Fp32StateAdamWeightDecay,
            OptimizerType::AdamWeightDecayX => OptimizerKind::AdamWeightDecayX,
            OptimizerType::Muon => OptimizerKind::Muon(MuonConfig {
                momentum: self.momentum.unwrap_or(muon.momentum),
                nesterov: self.nesterov.unwrap_or(muon.nesterov),
                ns_steps: self.ns_steps.map_or(muon.ns_steps, |steps| steps as u32),
                matched_adamw_rms: self.matched_adamw_rms.unwrap_or(muon.matched_adamw_rms),
            }),
        };
        let betas = if self.betas.is_empty() { &self.adamw_betas } else { &self.betas };
        let &[beta1, beta2] = betas.as_slice() else { return default };
        let eps = self.eps.or(self.adamw_eps).unwrap_or(default.eps);
        OptimizerConfig { kind, beta1, beta2, eps, weight_decay: self.weight_decay.unwrap_or(0.0) }
    }
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
