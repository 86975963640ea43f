//! The mixture that the section describes.

use super::rows::{Moe, RoutingPolicy, TopkMethod};
use crate::model::config::{
    Capacity, DropOrder, ExpertGroups, Family, GateNorm, HotExperts, MixtureConfig, RouterConfig, Score,
    SharedExpert, TokenDispatch,
};

/// Standard deviation of a router's initial weights.
const ROUTER_INIT_STD: f64 = 0.01;

impl Moe {
    /// The mixture of a section that was filled and has no fault, in the layers of `family`. Hot experts are also
    /// chosen anew after `hot_step`.
    pub(crate) fn config(&self, family: Family, hot_step: Option<u64>) -> MixtureConfig {
        let shared = self.moe_shared_expert_intermediate_size;
        let is_gated = self.use_shared_expert_gating;
        MixtureConfig {
            route: RouterConfig {
                experts: self.expert_num as u32,
                chosen: self.num_experts_chosen as u32,
                score: match self.sparsemixer_jitter_eps {
                    Some(jitter) => Score::SparseMixer { jitter: jitter as f32 },
                    None if self.use_gating_sigmoid => Score::Sigmoid,
                    None => Score::Softmax,
                },
                groups: self.groups(),
                norm: (self.norm_topk_prob == Some(true)).then(|| self.gate_norm(family)),
                scaling: self.routed_scaling_factor as f32,
            },
            has_bias: self.balance_via_topk_bias,
            bias_update_rate: self.topk_bias_update_rate.unwrap_or(0.0),
            intermediate_size: self.moe_intermediate_size.unwrap_or(0),
            first_dense_layers: self.first_k_dense_replace,
            shared: shared.map(|intermediate_size| SharedExpert { intermediate_size, is_gated }),
            is_beside_dense: self.enable_moe_block,
            losses: self.losses(),
            dispatch: self.dispatch(hot_step),
            router_init_std: ROUTER_INIT_STD,
        }
    }

    fn gate_norm(&self, family: Family) -> GateNorm {
        match self.moe_norm_min {
            Some(least) => GateNorm::AtLeast(least as f32),
            None if family == Family::Lfm2 => GateNorm::Plus(1e-6),
            None => GateNorm::SUM,
        }
    }

    fn groups(&self) -> Option<ExpertGroups> {
        match (self.topk_method?, self.n_group?, self.topk_group?) {
            (TopkMethod::Grouped(score), count, chosen) => {
                Some(ExpertGroups { count: count as u32, chosen: chosen as u32, score })
            }
            (TopkMethod::Greedy, ..) => None,
        }
    }

    fn dispatch(&self, hot_step: Option<u64>) -> TokenDispatch {
        let Some(factor) = self.capacity_factor else {
            return TokenDispatch::Dropless { safe_tokens: self.enable_gmm_safe_tokens };
        };
        TokenDispatch::Capacity(Capacity {
            factor,
            order: if self.enable_sdrop { DropOrder::Token } else { DropOrder::Choice },
            renormalises: self.routing_policy == RoutingPolicy::V1,
            hot: self.hot_expert_num.map(|count| HotExperts {
                count,
                cold_token_share: self.cold_token_percent.unwrap_or(1.0),
                update_step: self.update_step.unwrap_or(1),
                checkpoint_step: hot_step,
            }),
        })
    }
}
