//! Which instruments a run's model and configuration ask for.

use crate::model::config::{ModelConfig, TokenDispatch};
use crate::report::instruments::{ExpertInstruments, TokenDistribution};
use crate::settings::Settings;

/// The instruments for the experts of `model`; `None` for a dense model.
pub(super) fn expert_instruments(model: &ModelConfig, settings: &Settings) -> Option<ExpertInstruments> {
    let mixture = model.mixture.as_ref()?;
    let (run_name, summary) = (&settings.run.run_name, settings.callbacks.summary.as_ref());
    Some(ExpertInstruments {
        capacity_factor: match mixture.dispatch {
            TokenDispatch::Capacity(capacity) => Some(capacity.factor),
            TokenDispatch::Dropless { .. } => None,
        },
        has_balance_loss: mixture.losses.expert > 0.0 || mixture.losses.sequence > 0.0,
        has_z_loss: mixture.losses.z > 0.0,
        logs_drop_rate: settings.moe.as_ref().is_some_and(|moe| moe.callback_moe_droprate),
        distribution: summary
            .map(|summary| TokenDistribution::new(&summary.summary_dir, run_name, summary.collect_freq)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::{BalanceLosses, Capacity, DropOrder, MixtureConfig, Sizes};
    use crate::ops::route::{RouterConfig, Score};
    use crate::settings::{Callbacks, Moe, Run, SummaryMonitor};
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
        let of = |model: &ModelConfig| expert_instruments(model, &Settings::default()).unwrap();
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
        let summary = Some(SummaryMonitor { summary_dir: "nowhere".into(), collect_freq: 5 });
        let shown = Settings {
            run: Run { run_name: "small".into(), ..Run::default() },
            moe: Some(Moe { callback_moe_droprate: true, ..Moe::default() }),
            callbacks: Callbacks { summary, ..Callbacks::default() },
            ..Settings::default()
        };
        assert_eq!(expert_instruments(&dense(), &shown), None);
        let mixture = model(TokenDispatch::Dropless { safe_tokens: false }, BalanceLosses::default());
        let instruments = expert_instruments(&mixture, &shown).unwrap();
        assert!(instruments.logs_drop_rate);
        let written = TokenDistribution::new(Path::new("nowhere"), "small", 5);
        assert_eq!(instruments.distribution, Some(written));
    }
}
