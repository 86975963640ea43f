//! Training runs of mixtures of experts against an f64 run of the whole trainer.

mod runs;

use gristmill::model::config::{
    BalanceLosses, MixtureConfig, ModelConfig, MultiToken, SharedExpert, Sizes, TokenDispatch,
};
use gristmill::model::parameters::Gpt;
use gristmill::ops::route::{RouterConfig, Score};
use gristmill::reference::adamw::Correction;
use gristmill::reference::trainer::{AdamWSettings, MuonSettings, Trainer, decays};
use gristmill::settings::{MuonConfig, OptimizerKind};
use gristmill::train::length::RunLength;
use runs::{Setup, relative_distance};
use std::collections::BTreeMap;

/// Losses and final weights of the device's run must follow the f64 run this closely, as those of dense models.
const ALLOWED: f64 = 1e-5;

/// Two experts of four for each token, as many tokens for an expert as choose it.
const GROUPED: &str = "expert_num: 4, num_experts_chosen: 2, use_gmm: True";

/// A 2-layer model with experts of odd width; `routing` is the rest of `moe_config`, `model` adds keys to the model.
fn experts(name: &'static str, routing: &str, model: &str) -> Setup {
    let moe_config = format!("--moe_config={{{routing}, moe_intermediate_size: 37}}");
    Setup::new(name, model).with(&[&moe_config])
}

/// Six steps with accumulation, clipping, decay and warm-up, in f32 on the device and in f64 on the host.
fn follows_the_reference(setup: &Setup) {
    let steps = 6;
    let trained = setup.train(steps);
    let plan = setup.plan();
    assert!(plan.model.mixture.is_some(), "{} is no mixture", setup.name);
    let mut reference = Trainer::new(runs::reference_shape(&plan.model), setup.initial_weights());
    let settings = AdamWSettings {
        beta1: plan.optimizer.beta1,
        beta2: plan.optimizer.beta2,
        eps: plan.optimizer.eps,
        weight_decay: plan.optimizer.weight_decay,
        correction: Correction::Published,
    };
    if let OptimizerKind::Muon(muon) = plan.optimizer.kind {
        let MuonConfig { momentum, nesterov, ns_steps: steps, matched_adamw_rms: rms } = muon;
        reference.muon = Some(MuonSettings { momentum, nesterov, steps, rms });
    }
    let data = plan.load_data().expect("the text is there");
    let length = RunLength::new(&plan, data.train.steps_per_epoch());
    let accumulation = plan.settings.runner.gradient_accumulation_steps as u64;
    for step in 0..steps {
        let batches: Vec<(Vec<u32>, Vec<u32>)> = (step * accumulation..(step + 1) * accumulation)
            .map(|i| data.train.batch(i).expect("a batch"))
            .map(|batch| (batch.tokens, batch.targets))
            .collect();
        let lr = length.schedule.lr_at(step);
        let want = reference.train_step(
            &batches,
            plan.model.seq_length,
            lr,
            &settings,
            plan.settings.wrapper.clip(),
        );
        let got = &trained.states[step as usize];
        let error = |got: f32, want: f64| (f64::from(got) - want).abs() / want;
        let (loss, norm) = (error(got.loss, want.loss), error(got.grad_norm, want.grad_norm));
        println!(
            "{} step {}: loss {:.6}, off by {:.1} % of what is allowed; norm {:.4}, by {:.1} %",
            setup.name,
            step + 1,
            got.loss,
            100.0 * loss / ALLOWED,
            got.grad_norm,
            100.0 * norm / ALLOWED
        );
        assert!(loss <= ALLOWED, "{} step {step}: loss {} and {}", setup.name, got.loss, want.loss);
    }
    let distance = relative_distance(&trained.weights, &reference.weights);
    println!("{}: final weights off by {:.1} % of what is allowed", setup.name, 100.0 * distance / ALLOWED);
    assert!(distance <= ALLOWED, "{}: the final weights differ by {distance:.2e} in norm", setup.name);
}

#[test]
fn dropless_experts_follow_the_reference() {
    follows_the_reference(&experts("dropless", GROUPED, ""));
}

/// The losses join the objective and stay out of the loss.
#[test]
fn balance_losses_follow_the_reference() {
    let losses = "expert_num: 4, num_experts_chosen: 2, use_gmm: True, aux_loss_types: [expert], aux_loss_factors: [0.1], z_loss_factor: 0.01";
    follows_the_reference(&experts("balanced", losses, ""));
}

/// Sigmoid scores, a bias that moves, groups, a dense layer, a gated shared expert: as DeepSeek-V3 and Qwen2 together.
#[test]
fn biased_groups_with_a_shared_expert_follow_the_reference() {
    let routing = "expert_num: 6, num_experts_chosen: 3, n_group: 3, topk_group: 2, topk_method: noaux_tc, \
                   use_gmm: True, use_gating_sigmoid: True, routed_scaling_factor: 2.5, balance_via_topk_bias: True, \
                   topk_bias_update_rate: 0.05, shared_expert_num: 1, use_shared_expert_gating: True, \
                   first_k_dense_replace: 1";
    follows_the_reference(&experts("deepseek", routing, "use_qk_norm: True, n_kv_heads: 2"));
}

/// Experts take fewer choices than they get, by either order.
#[test]
fn dropped_choices_follow_the_reference() {
    for (name, order) in [("by choice", "False"), ("by token", "True")] {
        let routing = format!(
            "expert_num: 4, num_experts_chosen: 2, routing_policy: TopkRouterV2, capacity_factor: 0.8, enable_sdrop: {order}"
        );
        follows_the_reference(&experts(name, &routing, ""));
    }
}

/// What is kept makes up for what is dropped; two experts keep all their slots.
#[test]
fn hot_experts_follow_the_reference() {
    let routing = "expert_num: 4, num_experts_chosen: 2, routing_policy: TopkRouterV1, capacity_factor: 1.2, enable_cold_hot_expert: True, \
                   hot_expert_num: 2, cold_token_percent: 0.5, update_step: 100";
    follows_the_reference(&experts("hot", routing, ""));
}

#[test]
fn tokens_further_ahead_follow_the_reference() {
    let model = "mtp_depth: 2, mtp_loss_factor: 0.3, tie_word_embeddings: True";
    follows_the_reference(&experts("ahead", GROUPED, model));
}

/// Each expert's matrices are updated alone; routers are left to AdamW.
#[test]
fn experts_under_muon_follow_the_reference() {
    let model = "mtp_depth: 1, mtp_loss_factor: 0.3";
    let routing = "expert_num: 3, num_experts_chosen: 2, use_gmm: True, shared_expert_num: 1, use_shared_expert_gating: True";
    let setup = experts("muon", routing, model).with(&["--optimizer={type: Muon, weight_decay: 0.1}"]);
    follows_the_reference(&setup);
}

/// What the model is made of, and what of it decays, is what the reference has, tensor by tensor.
#[test]
fn the_reference_has_the_same_tensors() {
    let sizes = Sizes {
        vocab_size: 16,
        hidden_size: 8,
        num_layers: 3,
        num_heads: 2,
        intermediate_size: 12,
        seq_length: 4,
    };
    let route = RouterConfig {
        experts: 5,
        chosen: 2,
        score: Score::Sigmoid,
        groups: None,
        norm_top_k: true,
        scaling: 1.0,
    };
    let mixture = |is_gated| MixtureConfig {
        route,
        has_bias: true,
        bias_update_rate: 0.1,
        intermediate_size: 7,
        first_dense_layers: 1,
        shared: Some(SharedExpert { intermediate_size: 9, is_gated }),
        losses: BalanceLosses::default(),
        dispatch: TokenDispatch::Dropless { safe_tokens: false },
        fuses_permutation: true,
        router_init_std: 0.01,
    };
    for is_gated in [false, true] {
        let multi_token = Some(MultiToken { depth: 2, loss_factor: 0.3 });
        let config =
            ModelConfig { mixture: Some(mixture(is_gated)), multi_token, ..ModelConfig::llama(sizes) };
        let specs = Gpt::describe(&config);
        let pieces = specs.iter().flat_map(|spec| spec.pieces.iter().map(move |piece| (spec, piece)));
        let ours: BTreeMap<String, (usize, bool)> = pieces
            .map(|(spec, piece)| {
                (piece.name.clone(), (spec.piece_shape(piece).iter().product(), spec.decays))
            })
            .collect();
        let theirs = runs::reference_shape(&config).parameters().into_iter();
        let theirs: BTreeMap<String, (usize, bool)> =
            theirs.map(|(name, count)| (name.clone(), (count, decays(&name)))).collect();
        assert_eq!(ours, theirs);
    }
}
