//! Which instruments a run's model and configuration ask for.

use crate::model::config::{ModelConfig, TokenDispatch};
use crate::report::instruments::{ExpertInstruments, TokenDistribution};
use crate::settings::Instruments;

/// The instruments for the experts of `model`; `None` for a dense model.
pub(super) fn expert_instruments(
    model: &ModelConfig,
    shown: &Instruments,
    run_name: &str,
) -> Option<ExpertInstruments> {
    let mixture = model.mixture.as_ref()?;
    let distribution = shown.token_distribution.as_ref();
    Some(ExpertInstruments {
        capacity_factor: match mixture.dispatch {
            TokenDispatch::Capacity(capacity) => Some(capacity.factor),
            TokenDispatch::Dropless { .. } => None,
        },
        has_balance_loss: mixture.losses.expert > 0.0 || mixture.losses.sequence > 0.0,
        has_z_loss: mixture.losses.z > 0.0,
        logs_drop_rate: shown.logs_drop_rate,
        distribution: distribution
            .map(|summary| TokenDistribution::new(&summary.folder, run_name, summary.every_steps)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::{BalanceLosses, Capacity, DropOrder, MixtureConfig, Sizes};
    use crate::ops::route::{RouterConfig, Score};
    use crate::settings::SummaryConfig;
    use std::path::Path;

    fn model(dispatch: TokenDispatch, losses: BalanceLosses) -> ModelConfig {
        let route = RouterConfig {
            experts: 4,
            chosen: 2,
            score: Score::Softmax,
            groups: None,
            norm_top_k: true,
            scaling: 1.0,
        };
        let mixture = MixtureConfig {
            route,
            has_bias: false,
            bias_update_rate: 0.0,
            intermediate_size: 8,
            first_dense_layers: 1,
            shared: None,
            losses,
            dispatch,
            fuses_permutation: false,
            router_init_std: 0.01,
        };
        ModelConfig { mixture: Some(mixture), ..dense() }
    }

    fn dense() -> ModelConfig {
        ModelConfig::llama(Sizes {
            vocab_size: 8,
            hidden_size: 8,
            num_layers: 2,
            num_heads: 2,
            intermediate_size: 8,
            seq_length: 8,
        })
    }

    #[test]
    fn losses_and_capacities_decide_what_is_measured() {
        let of = |model: &ModelConfig| expert_instruments(model, &Instruments::default(), "small").unwrap();
        let capacity = Capacity { factor: 1.5, order: DropOrder::Choice, renormalises: false, hot: None };
        let expert = BalanceLosses { expert: 0.1, ..BalanceLosses::default() };
        let limited = of(&model(TokenDispatch::Capacity(capacity), expert));
        assert_eq!((limited.capacity_factor, limited.has_balance_loss), (Some(1.5), true));
        let z = BalanceLosses { z: 0.1, ..BalanceLosses::default() };
        let dropless = of(&model(TokenDispatch::Dropless { safe_tokens: false }, z));
        let expected = ExpertInstruments { has_z_loss: true, ..ExpertInstruments::default() };
        assert_eq!(dropless, expected, "nothing is logged or written unless it is asked for");
        let sequence = BalanceLosses { sequence: 0.1, ..BalanceLosses::default() };
        assert!(of(&model(TokenDispatch::Dropless { safe_tokens: false }, sequence)).has_balance_loss);
    }

    #[test]
    fn a_dense_model_has_none() {
        let summary = SummaryConfig { folder: "nowhere".into(), every_steps: 5 };
        let shown = Instruments { logs_drop_rate: true, token_distribution: Some(summary) };
        assert_eq!(expert_instruments(&dense(), &shown, "small"), None);
        let mixture = model(TokenDispatch::Dropless { safe_tokens: false }, BalanceLosses::default());
        let instruments = expert_instruments(&mixture, &shown, "small").unwrap();
        assert!(instruments.logs_drop_rate);
        let written = TokenDistribution::new(Path::new("nowhere"), "small", 5);
        assert_eq!(instruments.distribution, Some(written));
    }
}
