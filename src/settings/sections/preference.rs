//! `preference`: learning from pairs of answers, of which one is preferred.

use super::model::Pet;
use crate::settings::engine::*;

rows! {
    /// `preference`: learning from pairs of answers to the same prompt, of which one is preferred. Records have
    /// `chosen` and `rejected`, and a `prompt` unless both begin alike; each is a text or a list of messages, as in
    /// TRL, and the loader is `SFTDataLoader`. The loss of a step is the mean over its pairs (over micro-batches of
    /// equal weight, or over all pairs with `calculate_per_token_loss`). Log-probabilities are sums over the tokens
    /// of an answer that are learned.
    pub struct Preference in "preference" {
        /// The loss of a pair. `dpo`: direct preference optimisation (Rafailov et al., 2023). `ipo`: identity
        /// preference optimisation (Azar et al., 2023), whose log-ratios are divided by the number of tokens, as in
        /// TRL. `orpo`: odds ratio preference optimisation (Hong et al., 2024), the mean loss of the chosen answer's
        /// tokens and `beta` times that of the odds ratio. `simpo`: simple preference optimisation (Meng et al.,
        /// 2024), of log-probabilities per token. The first two compare with a reference.
        kind "type": PreferenceType = Numbers.required().read_by(|reader, key| reader.kind(key, Self::ID)),
        /// Factor of log-probabilities, which are then rewards; of `ipo` the regularisation, and of `orpo` the factor
        /// of the odds ratio's loss.
        beta: f64 = Numbers.default(0.1).default_of("simpo", 2.0).within(ABOVE_ZERO).example("0.3"),
        /// Share of pairs that are assumed to be the wrong way round.
        label_smoothing: Option<f64> = Numbers.optional().within(BELOW_HALF).of("dpo simpo").filled("`0.0`")
            .example("0.1"),
        /// Margin between both rewards that is aimed at.
        gamma: Option<f64> = Numbers.optional().within(FROM_ZERO).of("simpo").filled("`1.0`").example("0.5"),
        /// What the model is compared with. `adapters_off`: the model without its adapters, by one forward pass more
        /// in each step; the default with adapters, but to be written with those of `adapter_path`. `precompute`: the
        /// model before its first step, whose log-probabilities are computed once and kept in the run folder; the
        /// default otherwise.
        reference: Option<ReferenceType> = Numbers.optional().of("dpo ipo").filled("`adapters_off` or `precompute`")
            .example("precompute"),
    }
}

const BELOW_HALF: Range =
    Range::new("a number from 0 to below 0.5", |share| (0.0..0.5).contains(&share), 0.5);

words! {
    /// `type` of a preference.
    pub enum PreferenceType {
        /// Direct preference optimisation.
        #[default]
        Dpo = "dpo",
        /// Identity preference optimisation.
        Ipo = "ipo",
        /// Odds ratio preference optimisation.
        Orpo = "orpo",
        /// Simple preference optimisation.
        SimPo = "simpo",
    }
}

words! {
    /// `reference` of a preference.
    pub enum ReferenceType {
        /// The model without its adapters.
        #[default]
        AdaptersOff = "adapters_off",
        /// The model before its first step.
        Precompute = "precompute",
    }
}

pub(crate) const PATH: &str = "preference";

/// Reads the section, if there is one, of a run that trains these adapters.
pub(crate) fn read(source: &Source, pet: Option<&Pet>) -> Option<Preference> {
    source.node(PATH)?;
    let reader = Reader::open(source, PATH, &[Preference::ID]);
    let kind: PreferenceType = match reader.has("type") {
        true => reader.kind("type", Preference::ID)?,
        false => {
            Preference::read(&reader); // which says that it is missing
            return None;
        }
    };
    let reader = reader.of_type(kind.word());
    reader.foreign::<Preference>().for_each(|(key, types)| reader.refuse(key, &types));
    let mut preference = Preference::read(&reader);
    if matches!(kind, PreferenceType::Dpo | PreferenceType::SimPo) {
        preference.label_smoothing.get_or_insert(0.0);
    }
    if kind == PreferenceType::SimPo {
        preference.gamma.get_or_insert(1.0);
    }
    if preference.has_reference() {
        // Without adapters, what is left must not change.
        let can_leave_off =
            pet.is_some_and(|pet| pet.freeze_exclude.is_empty() && pet.modules_to_save.is_empty());
        if pet.is_some_and(|pet| pet.adapter().is_some()) && !reader.has("reference") {
            let message = "adapters of `adapter_path` are no new ones: write `preference.reference: precompute`, to \
                           compare with them, or `adapters_off`, with the model below";
            reader.fault("type", message);
        }
        let default = if can_leave_off { ReferenceType::AdaptersOff } else { ReferenceType::Precompute };
        let asked = preference.reference.get_or_insert(default);
        if *asked == ReferenceType::AdaptersOff && !can_leave_off {
            let message = "needs adapters, and no other parameter that trains; write `precompute`";
            reader.fault("reference", message);
        }
    }
    Some(preference)
}

impl Preference {
    /// Whether the loss compares with the log-probabilities under a reference.
    pub fn has_reference(&self) -> bool {
        matches!(self.kind, PreferenceType::Dpo | PreferenceType::Ipo)
    }

    /// Whether the log-probabilities of the reference are computed before the first step.
    pub fn precomputes(&self) -> bool {
        self.reference == Some(ReferenceType::Precompute)
    }
}
