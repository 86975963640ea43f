//! `optimizer`: the rule by which gradients become updates.

use crate::element::Element;
use crate::model::parameters::UpdateRule;
use crate::settings::engine::*;

rows! {
    /// `optimizer`: the rule by which gradients become updates. Weight decay is decoupled in every type but `SGD` and
    /// `Momentum`.
    pub struct Optimizer in "optimizer" {
        /// The update rule. `FusedAdamW` and `FusedAdamWeightDecay` compute the same as `AdamW`, and MindSpore's
        /// `Momentum` the same as `SGD` without `dampening`.
        kind "type": OptimizerType = Numbers.optional().read_by(|reader, key| reader.kind(key, Self::ID))
            .example("Muon"),
        /// Weight decay of matrices per unit of learning rate (Loshchilov and Hutter, "Decoupled weight decay
        /// regularization", 2019: p ← p (1 - lr wd) - lr update); biases and vectors are exempt.
        weight_decay: f64 = Numbers.default(0.0).default_of("Muon", 0.1).within(FROM_ZERO).example("0.05"),
        /// Whether weights that layers read in bfloat16 are stored only in bfloat16, without a float32 master copy. The
        /// update then rounds them stochastically, since rounding to nearest would lose small updates. Needs
        /// `compute_dtype: bfloat16`. Moments, routers and gates stay float32.
        stochastic_rounding: bool = Numbers.default(false),
    }
    by
    /// The numbers of the rule.
    rule: Rule
}

rows! {
    /// The rules, each with its numbers.
    pub enum Rule {
        /// AdamW and its variants ([`OptimizerType`]).
        AdamW = ADAM => {
            /// Decay of the first and the second moment per step.
            betas: [f64; 2] = Numbers.default([0.9, 0.999]).read_by(pair).example("[0.9, 0.95]"),
            /// Added to the square root of the second moment.
            eps: f64 = Numbers.default(1e-8).default_of("FusedAdamWeightDecay FP32StateAdamWeightDecay", 1e-6)
                .within(ABOVE_ZERO)
                .example("1e-7"),
        }
        /// Orthogonalised momentum for the matrices of the layers; AdamW for tables and vectors.
        Muon = "Muon" => {
            /// Decay of the momentum per step.
            momentum: f64 = Numbers.default(0.95).within(UNIT_BELOW_ONE).example("0.9"),
            /// Whether the update looks one step ahead (Nesterov).
            nesterov: bool = Numbers.default(true),
            /// Newton-Schulz iterations, 1 to 20.
            ns_steps: u64 = Numbers.default(5).within(NS_STEPS),
            /// Root mean square of an update at learning rate 1, so that the learning rates and weight decays of AdamW
            /// suit it.
            matched_adamw_rms: f64 = Numbers.default(0.2).within(ABOVE_ZERO),
            /// `betas` of the parameters that Muon leaves to AdamW.
            adamw_betas: [f64; 2] = Numbers.default([0.95; 2]).read_by(pair).example("[0.8, 0.9]"),
            /// `eps` of the parameters that Muon leaves to AdamW.
            adamw_eps: f64 = Numbers.default(1e-8).within(ABOVE_ZERO),
        }
        /// Gradient descent with momentum, as in PyTorch and MindSpore: g' = g + wd p, m ← momentum m + (1 -
        /// dampening) g', p ← p - lr m.
        Sgd = "SGD Momentum" => {
            /// Decay of the momentum per step. Must be written for `Momentum`.
            momentum: f64 = Numbers.default(0.0).within(UNIT_BELOW_ONE).example("0.9"),
            /// Whether the update looks one step ahead (Nesterov): g' + momentum m instead of m.
            nesterov: bool = Numbers.default(false).example("True\nmomentum: 0.9"),
            /// A gradient is added to the momentum with the factor 1 - `dampening`; the first gradient with the factor
            /// 1.
            dampening: f64 = Numbers.default(0.0).within(SHARE_BELOW_ONE).of("SGD").example("0.1"),
        }
    }
}

const NS_STEPS: Range =
    Range::new("a whole number from 1 to 20", |steps| (1.0..=20.0).contains(&steps), 21.0);

/// The types with the keys of Adam.
pub(crate) const ADAM: &str = "AdamW FusedAdamWeightDecay FP32StateAdamWeightDecay AdamWeightDecayX";

words! {
    /// `type`. Types differ in the rule or in the default of `eps`. m and v are the moments; a hat marks those that are
    /// corrected for their start at 0: m̂ = m / (1 - β1ᵗ), v̂ = v / (1 - β2ᵗ).
    pub enum OptimizerType {
        /// m̂ / (√v̂ + eps).
        #[default]
        AdamW = "AdamW" "adamw" "FusedAdamW",
        /// AdamW with eps 1e-6.
        FusedAdamWeightDecay = "FusedAdamWeightDecay",
        /// AdamW without that correction: m / (√v + eps).
        Fp32StateAdamWeightDecay = "FP32StateAdamWeightDecay",
        /// m̂ / ((√v + eps) / √(1 - β2ᵗ)): eps is added before the correction.
        AdamWeightDecayX = "AdamWeightDecayX",
        /// Orthogonalised momentum.
        Muon = "Muon",
        /// Gradient descent with momentum and coupled weight decay.
        Sgd = "SGD",
        /// SGD without dampening, under MindSpore's name.
        Momentum = "Momentum",
    }
}

impl OptimizerType {
    /// A section for each type, with only the keys that must be written: `type: Momentum, momentum: 0.9`.
    pub fn sections() -> impl Iterator<Item = String> {
        let needs = |word| if word == Self::Momentum.word() { ", momentum: 0.9" } else { "" };
        Self::firsts().map(move |word| format!("type: {word}{}", needs(word)))
    }
}

impl Optimizer {
    /// How the matrices of the layers are updated; all other parameters are updated elementwise.
    pub(crate) fn matrix_rule(&self) -> UpdateRule {
        match self.rule {
            Rule::Muon { .. } => UpdateRule::Matrix,
            Rule::AdamW { .. } | Rule::Sgd { .. } => UpdateRule::Elementwise,
        }
    }

    /// How many moments, in f32, each parameter under `rule` has.
    pub fn moments(&self, rule: UpdateRule) -> usize {
        match (&self.rule, rule) {
            (Rule::AdamW { .. }, _) | (Rule::Muon { .. }, UpdateRule::Elementwise) => 2,
            (Rule::Muon { .. }, UpdateRule::Matrix) | (Rule::Sgd { .. }, _) => 1,
        }
    }

    /// The storage type of a parameter's weights: those that the optimizer updates, or frozen ones. Layers read the
    /// parameter as `compute`.
    pub fn stored(&self, is_frozen: bool, compute: Element) -> Element {
        if is_frozen || self.stochastic_rounding { compute } else { Element::F32 }
    }

    /// β1 and β2 of moments that are corrected for their start at 0, if there are such.
    pub fn corrected_betas(&self) -> Option<[f64; 2]> {
        match self.rule {
            Rule::AdamW { betas, .. } | Rule::Muon { adamw_betas: betas, .. } => {
                (self.kind != OptimizerType::Fp32StateAdamWeightDecay).then_some(betas)
            }
            Rule::Sgd { .. } => None,
        }
    }
}

/// Reads the section, with the defaults of its type.
pub(crate) fn read(source: &Source) -> Optimizer {
    let reader = Reader::open(source, "optimizer", &[Optimizer::ID]);
    let kind = match reader.node("type") {
        None => OptimizerType::default(),
        Some(_) => match reader.kind("type", Optimizer::ID) {
            Some(kind) => kind,
            None => return Optimizer::default(),
        },
    };
    let reader = reader.of_type(kind.word());
    for (key, types) in reader.foreign::<Optimizer>() {
        match key {
            "betas" | "eps" if kind == OptimizerType::Muon => {
                reader.fault(key, format!("Muon has no such key; write `adamw_{key}`"));
            }
            _ => reader.refuse(key, &types),
        }
    }
    let mut optimizer = Optimizer::read(&reader);
    if kind == OptimizerType::Momentum {
        reader.missing("momentum", UNIT_BELOW_ONE.words);
    }
    if let Rule::Sgd { momentum, nesterov, dampening } = &mut optimizer.rule {
        let fits = kind == OptimizerType::Momentum || (*momentum > 0.0 && *dampening == 0.0);
        let message = "needs a `momentum` above 0, and no `dampening`";
        reader.require(&["nesterov", "momentum", "dampening"], fits || !*nesterov, message);
        // Without momentum there is no step to look ahead by.
        *nesterov &= *momentum > 0.0;
    }
    // With its numbers written out, such a type is the same rule under another name.
    optimizer.kind = match kind {
        OptimizerType::FusedAdamWeightDecay => OptimizerType::AdamW,
        OptimizerType::Momentum => OptimizerType::Sgd,
        kind => kind,
    };
    optimizer
}

/// Two numbers in (0, 1).
fn pair(reader: &Reader<'_>, key: &'static str) -> Option<[f64; 2]> {
    let betas: Vec<f64> = reader.convert(key, reader.node(key)?)?;
    let pair = betas[..]
        .try_into()
        .ok()
        .filter(|pair: &[f64; 2]| pair.iter().all(|beta| (UNIT_OPEN.accepts)(*beta)));
    if pair.is_none() {
        reader.fault(key, format!("expected two numbers in (0, 1), found {betas:?}"));
    }
    pair
}
