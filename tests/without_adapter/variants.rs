//! Recordings that use every variant of the kernels of mixtures of experts.

use gristmill::element::Element::{self, F32, U32};
use gristmill::kernels::Capabilities;
use gristmill::ops::attention::DocumentBounds;
use gristmill::ops::balance::{Balance, BalanceGradient, balance};
use gristmill::ops::causal_conv::{self, CausalConv, ConvForm};
use gristmill::ops::clip;
use gristmill::ops::column_sum::{column_sum, grouped_column_sum};
use gristmill::ops::delta_gates::{
    GateInputs, delta_gates, delta_gates_backward, delta_gates_backward_weight,
};
use gristmill::ops::embedding::{add_embedding, embedding, embedding_backward};
use gristmill::ops::expert_scale;
use gristmill::ops::fingerprint::fingerprint;
use gristmill::ops::gated_delta_rule::{
    DeltaInputs, GatedDeltaRule, gated_delta_rule, gated_delta_rule_backward, gated_delta_rule_step,
};
use gristmill::ops::gated_norm::{GatedNorm, gated_norm, gated_norm_backward, gated_norm_backward_weight};
use gristmill::ops::gelu::{Gelu, gelu, gelu_backward};
use gristmill::ops::grad_norm::StepTensors;
use gristmill::ops::grouped_matmul::{
    grouped_matmul, grouped_matmul_backward, grouped_matmul_backward_weight,
};
use gristmill::ops::heads::HeadLayout;
use gristmill::ops::hot_copies::{self, HomeRange};
use gristmill::ops::hot_experts::{HotLast, HotSteps, hot_experts};
use gristmill::ops::latent_heads::{
    Angles, LatentHeads, LatentParts, latent_heads, latent_heads_backward_kv, latent_heads_backward_q,
    latent_heads_backward_rope,
};
use gristmill::ops::layer_norm::{self, LayerNorm, LayerNormSaved};
use gristmill::ops::linear_cross_entropy::{CrossEntropy, OutputProjection, linear_cross_entropy};
use gristmill::ops::matmul::{Activated, Epilogue, FEW_ROWS, FewRows, Layout, matmul, matmul_of_few_rows};
use gristmill::ops::muon::{Block, DividedMatrix, Matrix, Muon, muon_in_turns};
use gristmill::ops::permute::{self, DropOrder, HotAndCold, PlacementConfig, RowAllocation, Slots};
use gristmill::ops::preference::{PairLoss, Preference};
use gristmill::ops::qk_layer_norm::{
    QkLayerNormSaved, qk_layer_norm, qk_layer_norm_backward, qk_layer_norm_backward_weight,
};
use gristmill::ops::rounding::Rounding;
use gristmill::ops::route::{
    ExpertGroups, GateNorm, GroupScore, RouterConfig, RouterOutput, Score, route, route_backward,
};
use gristmill::ops::row_gate;
use gristmill::ops::sigmoid_gate::{sigmoid_gate, sigmoid_gate_backward};
use gristmill::ops::spread::local_offsets;
use gristmill::ops::step_state::{LossState, PreferenceState, StepState};
use gristmill::ops::swiglu::{Gate, gate_up_cols, swiglu, swiglu_backward};
use gristmill::ops::tally::{self, tally_columns};
use gristmill::ops::unit_heads::{unit_heads, unit_heads_backward};
use gristmill::ops::work_list::WorkList;
use gristmill::ops::xielu::{self, Xielu};
use gristmill::ops::zero::zero;
use gristmill::ranks::Group;
use gristmill::record::{Dispatch, Recorder, State};

/// Routers, their balance losses, tallies, biases and row gates.
pub fn routers(capabilities: Capabilities) -> Vec<Dispatch> {
    let mut rec = Recorder::new("routers", capabilities);
    let tensor = |rec: &mut Recorder, rows, cols| rec.tensor("x", rows, cols, F32);
    let [tally, step] = [tally_columns(8), StepState::WORDS].map(|cols| rec.tensor("words", 1, cols, U32));
    let limited = Some(ExpertGroups { count: 4, chosen: 2, score: GroupScore::BestTwo });
    for (score, groups, has_bias) in [
        (Score::Softmax, None, false),
        (Score::Softmax, limited, true),
        (Score::Sigmoid, None, true),
        (Score::Sigmoid, limited, false),
        (Score::SparseMixer { jitter: 0.01 }, None, false),
    ] {
        let norm = (!matches!(score, Score::SparseMixer { .. })).then_some(GateNorm::SUM);
        let shape = RouterConfig { experts: 8, chosen: 2, score, groups, norm, scaling: 1.0 };
        let (logits, bias) = (tensor(&mut rec, 6, 8), tensor(&mut rec, 1, 8));
        let routed = RouterOutput::new(&mut rec, &shape, 6, has_bias);
        route(&mut rec, &shape, logits, has_bias.then_some(bias), &routed);
        for (expert, z) in [(0.1, 0.0), (0.1, 0.1), (0.0, 0.1)] {
            let losses = Balance { expert, sequence: 0.0, z, tokens: 3, accumulation: 1 };
            balance(&mut rec, &shape, &losses, &routed, None);
            let d_scores = balance(&mut rec, &shape, &losses, &routed, Some(tally));
            let gradient = BalanceGradient { balance: losses, d_scores, step };
            let (d_gates, d_logits) = (tensor(&mut rec, 6, 2), tensor(&mut rec, 6, 8));
            for (d_gates, balance) in
                [(Some(d_gates), None), (Some(d_gates), Some(&gradient)), (None, Some(&gradient))]
            {
                route_backward(&mut rec, &shape, &routed, logits, d_gates, balance, d_logits);
            }
        }
        let (scale, scaled) = (tensor(&mut rec, 1, 8), tensor(&mut rec, 6, 2));
        expert_scale::scale_gates(&mut rec, routed.gates, routed.ids, scale, scaled);
        expert_scale::expert_scale_gradient(&mut rec, routed.gates, routed.ids, scaled, scale);
        let counts = rec.tensor("counts", 1, 8, U32);
        tally::tally(&mut rec, counts, None, tally);
        tally::update_bias(&mut rec, tally, bias, 0.1, step);
    }
    for element in [F32, Element::F16, Element::Bf16] {
        let tensor = |rec: &mut Recorder, cols| rec.tensor("x", 6, cols, element);
        let [x, y, residual] = [12; 3].map(|cols| tensor(&mut rec, cols));
        let [g, dg] = [1; 2].map(|cols| rec.tensor("gate", 6, cols, F32));
        for residual in [None, Some(residual)] {
            row_gate::row_gate(&mut rec, x, g, residual, y);
            row_gate::row_gate_backward(&mut rec, x, g, y, residual.unwrap_or(y), residual.is_some(), dg);
        }
    }
    rec.finish().dispatches
}

/// The losses of pairs of answers, and the gradients of the head by them.
pub fn preferences(capabilities: Capabilities) -> Vec<Dispatch> {
    let mut rec = Recorder::new("preferences", capabilities);
    let words = |rec: &mut Recorder, count| rec.tensor("words", 1, count, U32);
    for element in [F32, Element::F16, Element::Bf16] {
        let [h, dh] = [0; 2].map(|_| rec.tensor("h", 32, 12, element));
        let head = [rec.tensor("head", 20, 12, element)];
        for soft_cap in [None, Some(30.0)] {
            let preference = Preference {
                loss: PairLoss::Dpo { beta: 0.1, label_smoothing: 0.0 },
                pairs: words(&mut rec, 32),
                reference: Some(rec.tensor("log_probs", 1, 32, F32)),
                state: words(&mut rec, PreferenceState::WORDS),
            };
            let [step, loss] = [StepState::WORDS, LossState::WORDS].map(|count| words(&mut rec, count));
            let loss = CrossEntropy {
                preference: Some(preference),
                ..CrossEntropy::new(words(&mut rec, 32), step, loss)
            };
            let op = OutputProjection { h, head: &head, bias: None, factor: None, soft_cap, ranks: None };
            linear_cross_entropy(&mut rec, &op, &loss, dh, None);
        }
    }
    rec.finish().dispatches
}

/// Convolutions over the last tokens, and their backward passes.
pub fn convolutions(capabilities: Capabilities) -> Vec<Dispatch> {
    let mut rec = Recorder::new("convolutions", capabilities);
    let [starts, ends] = [0; 2].map(|_| rec.tensor("integers", 1, 6, U32));
    for element in [F32, Element::F16, Element::Bf16] {
        let [x, y, dx] = [0; 3].map(|_| rec.tensor("x", 6, 12, element));
        let (w, dw) = (rec.tensor("w", 4, 12, element), rec.tensor("dw", 1, 48, F32));
        let (state, last_rows) = (rec.tensor("state", 18, 12, element), rec.tensor("integers", 1, 2, U32));
        let bounds = Some(DocumentBounds { starts, ends });
        for (documents, form) in [(None, ConvForm::Plain), (bounds, ConvForm::Silu)] {
            let conv = CausalConv { tokens: 3, documents, form };
            causal_conv::causal_conv(&mut rec, x, w, y, &conv);
            causal_conv::causal_conv_slopes(&mut rec, x, w, y, None, &conv);
            causal_conv::causal_conv_backward(&mut rec, w, y, dx, form == ConvForm::Silu, &conv);
            causal_conv::causal_conv_backward_weight(&mut rec, x, w, y, dw, &conv);
            causal_conv::causal_conv_step(&mut rec, x, w, state, y, form);
        }
        causal_conv::causal_conv_state(&mut rec, x, last_rows, state.rows(0, 6), 4, ConvForm::Plain);
        let [x, dx] = [0; 2].map(|_| rec.tensor("x", 6, 36, element));
        for documents in [None, bounds] {
            let conv = CausalConv { tokens: 3, documents, form: ConvForm::Gated };
            causal_conv::causal_conv(&mut rec, x, w, y, &conv);
            causal_conv::causal_conv_slopes(&mut rec, x, w, y, Some(dx), &conv);
            causal_conv::gated_conv_backward(&mut rec, x, w, y, dx, &conv);
            causal_conv::causal_conv_backward_weight(&mut rec, x, w, y, dw, &conv);
        }
        causal_conv::causal_conv_step(&mut rec, x, w, state, y, ConvForm::Gated);
        causal_conv::causal_conv_state(&mut rec, x, last_rows, state.rows(0, 6), 4, ConvForm::Gated);
    }
    rec.finish().dispatches
}

/// Heads of latent attention that rotate in halves, and their backward passes.
pub fn heads_in_halves(capabilities: Capabilities) -> Vec<Dispatch> {
    let sizes = LatentHeads { heads: 3, nope_dim: 8, rope_dim: 4, is_interleaved: false, value_dim: 12 };
    let mut rec = Recorder::new("latent heads", capabilities);
    let angles = Angles { positions: rec.tensor("ids", 1, 6, U32), cos_sin: rec.tensor("angles", 6, 4, F32) };
    for element in [F32, Element::F16, Element::Bf16] {
        let qkv = rec.tensor("qkv", 6, sizes.layout().cols(), element);
        let [q, kv, k_rope] = [36, sizes.kv_cols(), 4].map(|cols| rec.tensor("x", 6, cols, element));
        latent_heads(&mut rec, &LatentParts { q, kv, k_rope }, &angles, qkv, &sizes);
        for accumulate in [false, true] {
            latent_heads_backward_q(&mut rec, qkv, &angles, q, accumulate, &sizes);
            latent_heads_backward_kv(&mut rec, qkv, &angles, kv, accumulate, &sizes);
            latent_heads_backward_rope(&mut rec, qkv, &angles, k_rope, accumulate, &sizes);
        }
    }
    rec.finish().dispatches
}

/// xIELU and clipping, and their backward passes.
pub fn learned_activations(capabilities: Capabilities) -> Vec<Dispatch> {
    let mut rec = Recorder::new("xIELU", capabilities);
    let [alphas, constants, gradient] = [0; 3].map(|_| rec.tensor("numbers", 1, 2, F32));
    let numbers = Xielu { alphas, constants };
    for element in [F32, Element::F16, Element::Bf16] {
        let [x, y, dx] = [0; 3].map(|_| rec.tensor("x", 6, 12, element));
        xielu::xielu(&mut rec, x, numbers, y);
        xielu::xielu_backward_weight(&mut rec, x, numbers, y, gradient);
        xielu::xielu_backward(&mut rec, x, numbers, y, dx);
        clip::clip(&mut rec, x, y, 1.0);
        clip::clip_backward(&mut rec, x, dx, 1.0);
    }
    rec.finish().dispatches
}

/// The gated delta rule, its backward pass and its step.
pub fn delta_rules(capabilities: Capabilities) -> Vec<Dispatch> {
    let mut rec = Recorder::new("delta rules", capabilities);
    let starts = rec.tensor("integers", 1, 6, U32);
    for element in [F32, Element::F16, Element::Bf16] {
        let [qk, dqk, v, dv, out] = [16, 16, 24, 24, 24].map(|cols| rec.tensor("x", 6, cols, element));
        let [gates, dgates] = [0; 2].map(|_| rec.tensor("gates", 6, 8, F32));
        let inputs = DeltaInputs { qk, v, gates };
        let gradients = DeltaInputs { qk: dqk, v: dv, gates: dgates };
        let [of_sequences, of_tokens] = [2, 6].map(|count| rec.tensor("states", count * 16, 12, F32));
        for (documents, state) in
            [(None, Some(of_sequences)), (Some(DocumentBounds { starts, ends: starts }), None)]
        {
            let shape = GatedDeltaRule {
                tokens: 3,
                heads: 2,
                key_heads: 1,
                key_dim: 8,
                value_dim: 12,
                scale: 1.0,
                documents,
            };
            gated_delta_rule(&mut rec, &inputs, out, state, &shape);
            gated_delta_rule_backward(&mut rec, &inputs, out, &gradients, &shape);
            gated_delta_rule_step(&mut rec, &inputs, of_tokens, out, &shape);
        }
        let (x, dx) = (rec.tensor("x", 6, 8, element), rec.tensor("x", 6, 8, element));
        let [a_log, bias] = [0; 2].map(|_| rec.tensor("vector", 1, 2, element));
        let [da_log, dbias] = [0; 2].map(|_| Some(rec.tensor("vector", 1, 2, F32)));
        let inputs = GateInputs { x, a_log, bias };
        let last_rows = rec.tensor("integers", 1, 2, U32);
        delta_gates(&mut rec, &inputs, gates, None);
        delta_gates(&mut rec, &inputs, gates, Some(last_rows));
        delta_gates_backward(&mut rec, &inputs, dgates, dx);
        delta_gates_backward_weight(&mut rec, &inputs, dgates, [da_log, dbias]);
        let (w, dw) = (rec.tensor("vector", 1, 12, element), rec.tensor("vector", 1, 12, F32));
        let norm = GatedNorm { x: v, z: out, w, epsilon: 1e-6 };
        gated_norm(&mut rec, &norm, dv);
        gated_norm_backward_weight(&mut rec, &norm, dv, dw);
        sigmoid_gate(&mut rec, v, out, dv);
        let [dx, dz] = [0; 2].map(|_| rec.tensor("gradient", 6, 24, element));
        for accumulate in [false, true] {
            gated_norm_backward(&mut rec, &norm, dv, dx, (dz, accumulate));
            sigmoid_gate_backward(&mut rec, [v, out], dv, dx, (dz, accumulate));
        }
        unit_heads(&mut rec, qk, dqk, 8, 1e-6);
        unit_heads_backward(&mut rec, qk, qk, dqk, 8, 1e-6);
    }
    rec.finish().dispatches
}

/// Placement and permutation under every allocation.
pub fn permutations(capabilities: Capabilities) -> Vec<Dispatch> {
    let mut rec = Recorder::new("permutations", capabilities);
    let [ids, capacities, state] = [32, 4, StepState::WORDS].map(|cols| rec.tensor("integers", 1, cols, U32));
    let two = HotAndCold { hot: 1, capacity: 9, cold_capacity: 5 };
    let steps = HotSteps { update_step: 10, checkpoint_step: None };
    for element in [Element::F32, Element::F16, Element::Bf16] {
        for slots in [Some(Slots::HotAndCold(two)), Some(Slots::Equal(9)), None] {
            let allocation = slots.map(|slots| RowAllocation::Capacity { slots, order: DropOrder::Choice });
            let allocation = allocation.unwrap_or(RowAllocation::Dropless { safe_tokens: true });
            let routes = PlacementConfig { tokens: 16, chosen: 2, experts: 4, allocation };
            let is_hot = matches!(slots, Some(Slots::HotAndCold(_)));
            let placement = permute::place(&mut rec, &routes, ids, is_hot.then_some(capacities));
            let mut tensor = |rows, element| rec.tensor("x", rows, 9, element);
            let (x, y) = (tensor(16, element), tensor(16, element));
            let (rows, d_rows) = (tensor(routes.rows(), element), tensor(routes.rows(), element));
            let [gates, d_gates] = [0; 2].map(|_| rec.tensor("gates", 16, 2, F32));
            permute::permute(&mut rec, &placement, x, rows);
            for residual in [None, Some(x)] {
                permute::combine(&mut rec, &placement, rows, gates, residual, y);
                permute::permute_backward(&mut rec, &placement, d_rows, x, residual.is_some());
            }
            let saved = permute::CombineSaved { rows, gates };
            permute::combine_backward(&mut rec, &placement, &saved, y, d_rows, d_gates);
            permute::renormalise_gates(&mut rec, &placement, gates, d_gates, 1.0);
            permute::renormalise_gates_backward(&mut rec, &placement, gates, gates, d_gates, 1.0);
            hot_experts(&mut rec, placement.counts, state, capacities, &two, &steps);
            if is_hot {
                let last = HotLast::new(&mut rec, capacities, &two);
                permute::place_hot_last(&mut rec, &routes, ids, &last);
            }
        }
    }
    rec.finish().dispatches
}

/// What several ranks need beside their exchanges.
pub fn of_several_ranks(capabilities: Capabilities) -> Vec<Dispatch> {
    let mut rec = Recorder::new("several ranks", capabilities);
    let offsets = rec.tensor("offsets", 2, 5, U32);
    local_offsets(&mut rec, offsets, 1);
    let (weights, sums) = (rec.tensor("weights", 1, 40, F32), rec.tensor("fingerprints", 1, 2, U32));
    fingerprint(&mut rec, weights, 0, sums, 0);
    for element in [F32, Element::F16, Element::Bf16] {
        let gradients = rec.tensor("gradients", 1, 40, element);
        zero(&mut rec, gradients);
    }
    copies_of_hot_experts(&mut rec);
    columns_under_muon(&mut rec);
    rec.finish().dispatches
}

/// Of one of three experts with a matrix (5, 4), two of which this rank holds.
fn copies_of_hot_experts(rec: &mut Recorder) {
    let capacities = rec.tensor("capacities", 1, 3, U32);
    let last = HotLast::new(rec, capacities, &HotAndCold { hot: 1, capacity: 9, cold_capacity: 5 });
    let (elements, matrices) = (rec.tensor("stack", 1, 40, F32), rec.tensor("copies", 5, 4, F32));
    let home = HomeRange { elements, start: 0, first_expert: 1 };
    let slots = hot_copies::Slots { matrices, first: 0, count: 1 };
    hot_copies::hot_copies(rec, &home, &last, &slots);
    hot_copies::hot_copies_backward(rec, &slots, &last, &home);
}

/// A matrix (6, 8) of which two ranks have four columns each.
fn columns_under_muon(rec: &mut Recorder) {
    let [weights, gradients, moments] = [0; 3].map(|_| rec.tensor("matrix", 6, 4, F32));
    let [state, loss] = [StepState::WORDS, LossState::WORDS].map(|words| rec.tensor("words", 1, words, U32));
    let step = StepTensors { state, loss, schedule: rec.tensor("schedule", 2, 5, F32) };
    let block = |place: u32| Block { held: [0, 0], whole: [0, 4 * place], size: [6, 4] };
    let settings = Muon {
        momentum: 0.9,
        is_nesterov: true,
        steps: 1,
        rms: 0.2,
        decay: 0.1,
        rate_column: 0,
        rounding: Rounding::default(),
    };
    let part = DividedMatrix {
        name: "matrix".into(),
        matrix: Matrix { weights, gradients, moments },
        settings,
        whole: [6, 8],
        blocks: vec![vec![block(0)], vec![block(1)]],
    };
    muon_in_turns(rec, &[part], (&Group::all(2), 0), &step);
}

/// Grouped products of small and large groups, and of many small ones.
pub fn grouped_products(capabilities: Capabilities) -> Vec<Dispatch> {
    let mut rec = Recorder::new("grouped products", capabilities);
    let small = [F32, Element::F16, Element::Bf16].map(|element| (40, 2, element));
    for (rows, experts, element) in small.into_iter().chain([(2048, 2, F32), (2048, 6, F32)]) {
        let offsets = rec.tensor("offsets", 1, experts + 1, U32);
        let [x, dx, dy] = [20, 20, 12].map(|cols| rec.tensor("x", rows, cols, element));
        let [stack, gradient] = [element, F32].map(|element| rec.tensor("stack", 12 * experts, 20, element));
        let work = WorkList::new(&mut rec, offsets, rows);
        for accumulate in [false, true] {
            let into = || Epilogue { accumulate, ..Default::default() };
            grouped_matmul(&mut rec, x, &[stack], &work, dy, into());
            grouped_matmul_backward(&mut rec, dy, &[stack], &work, dx, into());
        }
        grouped_matmul_backward_weight(&mut rec, dy, x, &work, &[gradient]);
        experts_of_gpt2(&mut rec, &work, element, [20, 12]);
        // In the largest tiles.
        let wide = [F32, Element::F16, Element::Bf16].into_iter().filter(|_| (rows, experts) == (2048, 2));
        wide.for_each(|element| experts_of_gpt2(&mut rec, &work, element, [2048, 2048]));
    }
    rec.finish().dispatches
}

/// The products of experts with biases and GELU, and the gradient of a bias.
fn experts_of_gpt2(rec: &mut Recorder, work: &WorkList, element: Element, [inner, outer]: [u32; 2]) {
    let (rows, experts) = (work.rows, work.experts);
    let [x, y, value] = [inner, outer, outer].map(|cols| rec.tensor("x", rows, cols, element));
    let stack = [rec.tensor("stack", outer * experts, inner, element)];
    let bias = Some(rec.tensor("bias", experts, outer, element));
    grouped_matmul(rec, x, &stack, work, y, Epilogue { bias, ..Default::default() });
    for kind in GELUS {
        for bias in [None, bias] {
            let activated = Some(Activated::Gelu(kind, value));
            grouped_matmul(rec, x, &stack, work, y, Epilogue { bias, activated, ..Default::default() });
        }
        let activated = Some(Activated::Slope(kind, x));
        let dx = rec.tensor("dx", rows, inner, element);
        grouped_matmul_backward(rec, y, &stack, work, dx, Epilogue { activated, ..Default::default() });
    }
    let gradient = rec.tensor("gradient", experts, outer, F32);
    grouped_column_sum(rec, y, work.offsets, gradient);
}

/// LayerNorms of heads, with a weight and a bias that all share, and with a weight of each.
pub fn head_layer_norms(capabilities: Capabilities) -> Vec<Dispatch> {
    let mut rec = Recorder::new("layer norms of heads", capabilities);
    let layout = HeadLayout { heads: 3, kv_heads: 1, head_dim: 8, value_dim: 8 };
    for element in [F32, Element::F16, Element::Bf16] {
        let [x, y] = [0; 2].map(|_| rec.tensor("x", 6, layout.cols(), element));
        let [mean, rstd] = [0; 2].map(|_| rec.tensor("statistics", 6, 4, F32));
        for (cols, has_bias) in [([8, 8], true), ([24, 8], false)] {
            let [weights, biases] = [0; 2].map(|_| cols.map(|cols| rec.tensor("w", 1, cols, element)));
            let saved = QkLayerNormSaved { x, weights, mean, rstd };
            for is_zero_centered in [false, true] {
                let norm = LayerNorm { is_zero_centered, ..LayerNorm::new(1e-5) };
                qk_layer_norm(&mut rec, &saved, has_bias.then_some(biases), y, &layout, norm);
                qk_layer_norm_backward(&mut rec, &saved, y, &layout, norm);
            }
            let gradients = cols.map(|cols| [0; 2].map(|_| Some(rec.tensor("gradient", 1, cols, F32))));
            let gradients = gradients.map(|[dw, db]| [dw, db.filter(|_| has_bias)]);
            qk_layer_norm_backward_weight(&mut rec, &saved, y, gradients, &layout);
        }
    }
    rec.finish().dispatches
}

/// LayerNorms that multiply by 1 + w, and that have no bias.
pub fn other_layer_norms(capabilities: Capabilities) -> Vec<Dispatch> {
    let mut rec = Recorder::new("other layer norms", capabilities);
    for element in [F32, Element::F16, Element::Bf16] {
        let [x, y, dx] = [(); 3].map(|()| rec.tensor("x", 40, 20, element));
        let [w, b] = [(); 2].map(|()| rec.tensor("w", 1, 20, element));
        let [mean, rstd] = [(); 2].map(|()| rec.tensor("mean", 1, 40, F32));
        let [dw, db] = [(); 2].map(|()| rec.tensor("dw", 1, 20, F32));
        let saved = LayerNormSaved { x, w, mean, rstd };
        for (is_zero_centered, has_bias) in [(true, true), (false, false), (true, false)] {
            let norm = LayerNorm { epsilon: 1e-5, is_zero_centered };
            let of = |tensor| Some(tensor).filter(|_| has_bias);
            layer_norm::layer_norm(&mut rec, &saved, of(b), y, norm);
            for accumulate in [false, true] {
                layer_norm::layer_norm_backward(&mut rec, &saved, norm, y, dx, accumulate);
            }
            layer_norm::layer_norm_backward_weight(&mut rec, &saved, y, dw, of(db));
        }
    }
    rec.finish().dispatches
}

/// Products with GELU in their epilogue: in the smallest and the largest tiles, of few rows and in parts; and GELU
/// alone, as adapters and recomputation need it.
pub fn products_through_gelu(capabilities: Capabilities) -> Vec<Dispatch> {
    let mut rec = Recorder::new("products through GELU", capabilities);
    for element in [F32, Element::F16, Element::Bf16] {
        for kind in GELUS {
            for (rows, inner, outer) in [(40, 20, 36), (2, 20, 36), (2048, 512, 2048), (64, 2048, 64)] {
                let [x, dy] = [inner, outer].map(|cols| rec.tensor("x", rows, cols, element));
                let [y, value, dx] = [outer, outer, inner].map(|cols| rec.tensor("y", rows, cols, element));
                let (w, bias) =
                    (rec.tensor("w", outer, inner, element), rec.tensor("bias", 1, outer, element));
                let activated = Some(Activated::Gelu(kind, value));
                for bias in [None, Some(bias)] {
                    matmul(&mut rec, Layout::Nt, x, w, y, Epilogue { bias, activated, ..Default::default() });
                }
                let activated = Some(Activated::Slope(kind, x));
                matmul(&mut rec, Layout::Nn, dy, w, dx, Epilogue { activated, ..Default::default() });
                gelu(&mut rec, y, value, kind);
                gelu_backward(&mut rec, y, value, dy, kind);
            }
        }
    }
    rec.finish().dispatches
}

const GELUS: [Gelu; 5] = [Gelu::Tanh, Gelu::Exact, Gelu::Fast, Gelu::Relu, Gelu::ReluSquared];
const GATES: [Gate; 5] =
    [Gate::Silu, Gate::Gelu(Gelu::Tanh), Gate::Gelu(Gelu::Exact), Gate::Gelu(Gelu::Fast), Gate::Clamped];

/// Products with SwiGLU or GeGLU in their epilogue: in tiles without pairs of columns, of few rows, in the tiles with
/// them, and in parts; and GeGLU alone, and after products of few rows.
pub fn products_through_swiglu(capabilities: Capabilities) -> Vec<Dispatch> {
    let mut rec = Recorder::new("products through SwiGLU", capabilities);
    for element in [F32, Element::F16, Element::Bf16] {
        let weights = [element, Element::Nf4, Element::Int8];
        for (rows, inner, width) in
            [(40, 20, 36), (2, 20, 36), (2048, 512, 2048), (64, 512, 16384), (64, 2048, 64)]
        {
            let packed = gate_up_cols(width);
            let [x, value, dx] = [inner, width, inner].map(|cols| rec.tensor("x", rows, cols, element));
            let [y, dy] = [0; 2].map(|_| rec.tensor("y", rows, packed, element));
            let bias = rec.tensor("bias", 1, packed, element);
            for (bias, weight) in
                [None, Some(bias)].into_iter().zip([element; 2]).chain(weights.map(|w| (None, w)))
            {
                let w = rec.tensor("w", packed, inner, weight);
                let of_dx = rec.tensor("w", inner, width, weight);
                for gate in GATES {
                    let activated = Some(Activated::Swiglu(gate, value));
                    matmul(&mut rec, Layout::Nt, x, w, y, Epilogue { bias, activated, ..Default::default() });
                    let activated = Some(Activated::SwigluSlopes(gate, y));
                    matmul(&mut rec, Layout::Nn, dx, of_dx, dy, Epilogue { activated, ..Default::default() });
                    if rows <= FEW_ROWS {
                        let more = FewRows { norm: None, bias, gate: Some(gate) };
                        matmul_of_few_rows(&mut rec, x, w, value, more);
                    }
                }
            }
            for gate in GATES {
                swiglu(&mut rec, y, value, gate);
                swiglu_backward(&mut rec, y, value, dy, gate);
            }
        }
    }
    rec.finish().dispatches
}

/// Everything that has a factor: products of every layout, of few rows, in parts and with quantised weights, alone and
/// with what is added to them, gradients of activations, sums of rows, and embedded tokens.
pub fn scaled_launches(capabilities: Capabilities) -> Vec<Dispatch> {
    let mut rec = Recorder::new("launches with factors", capabilities);
    let factor = Some(0.5);
    for element in [F32, Element::F16, Element::Bf16] {
        for (rows, inner, outer) in [(40, 20, 36), (2, 20, 36), (2048, 512, 2048), (64, 2048, 64)] {
            let [x, y, residual] = [inner, outer, outer].map(|cols| rec.tensor("x", rows, cols, element));
            let bias = rec.tensor("bias", 1, outer, element);
            let alone = Epilogue { factor, ..Default::default() };
            let biased = Epilogue { bias: Some(bias), ..alone };
            let both = Epilogue { residual: Some(residual), ..biased };
            let adding = Epilogue { residual: Some(residual), ..alone };
            for weights in [element, Element::Nf4, Element::Int8] {
                let w = rec.tensor("w", outer, inner, weights);
                for epilogue in [alone, biased, both, adding] {
                    matmul(&mut rec, Layout::Nt, x, w, y, epilogue);
                }
                let dx = rec.tensor("dx", rows, inner, element);
                for accumulate in [false, true] {
                    matmul(&mut rec, Layout::Nn, y, w, dx, Epilogue { accumulate, ..alone });
                }
                let [gate_up, d_gate_up] =
                    [0; 2].map(|_| rec.tensor("gate_up", rows, gate_up_cols(inner), element));
                let activated = Some(Activated::SwigluSlopes(Gate::Silu, gate_up));
                matmul(&mut rec, Layout::Nn, y, w, d_gate_up, Epilogue { activated, ..alone });
                for kind in GELUS {
                    let activated = Some(Activated::Slope(kind, x));
                    matmul(&mut rec, Layout::Nn, y, w, dx, Epilogue { activated, ..alone });
                }
            }
            let dw = rec.tensor("dw", outer, inner, F32);
            for accumulate in [false, true] {
                matmul(&mut rec, Layout::Tn, y, x, dw, Epilogue { accumulate, ..alone });
            }
            let db = rec.tensor("db", 1, outer, F32);
            column_sum(&mut rec, y, db, factor);
            let logits = rec.tensor("logits", rows, outer, F32);
            let head = rec.tensor("head", outer, inner, element);
            matmul(&mut rec, Layout::Nt, x, head, logits, alone);
            let [ids, order] = [0; 2].map(|_| rec.tensor("ids", 1, rows, U32));
            let dtable = rec.tensor("dtable", outer, inner, F32);
            embedding(&mut rec, ids, &[head], factor, x);
            embedding_backward(&mut rec, ids, order, x, &[dtable], factor);
            let [of_table, of_gradient] = [head, dtable].map(|tensor| tensor.columns(4, 8));
            let part = rec.tensor("part", rows, 8, element);
            add_embedding(&mut rec, ids, &[of_table], (0, factor), part);
            embedding_backward(&mut rec, ids, order, part, &[of_gradient], factor);
        }
    }
    rec.finish().dispatches
}

/// Products of few rows, as in decoding.
pub fn products_of_few_rows(capabilities: Capabilities) -> Vec<Dispatch> {
    let mut rec = Recorder::new("products of few rows", capabilities);
    for element in [F32, Element::F16, Element::Bf16] {
        for weights in [element, Element::Nf4, Element::Int8] {
            for rows in 1..=4 {
                let (x, y) = (rec.tensor("x", rows, 512, element), rec.tensor("y", rows, 512, element));
                let w = rec.tensor("w", 512, 512, weights);
                matmul(&mut rec, Layout::Nt, x, w, y, Epilogue::default());
            }
        }
    }
    rec.finish().dispatches
}

/// Products with quantised weights: of the small and the large tile, in parts, with every epilogue, and grouped.
pub fn quantised_products(capabilities: Capabilities) -> Vec<Dispatch> {
    let mut rec = Recorder::new("quantised products", capabilities);
    for weights in [Element::Nf4, Element::Int8] {
        for element in [F32, Element::F16, Element::Bf16] {
            for (rows, width) in [(40, 20), (40, 2048), (2048, 2048)] {
                let [x, dx] = [0; 2].map(|_| rec.tensor("x", rows, width, element));
                let [y, residual] = [0; 2].map(|_| rec.tensor("y", rows, width, element));
                let (w, bias) =
                    (rec.tensor("w", width, width, weights), rec.tensor("bias", 1, width, element));
                let adding = Epilogue { accumulate: true, ..Epilogue::default() };
                let biased = Epilogue { bias: Some(bias), ..Epilogue::default() };
                let both = Epilogue { residual: Some(residual), ..biased };
                for epilogue in [Epilogue::default(), biased, both, adding] {
                    matmul(&mut rec, Layout::Nt, x, w, y, epilogue);
                }
                for epilogue in [Epilogue::default(), adding] {
                    matmul(&mut rec, Layout::Nn, y, w, dx, epilogue);
                }
                let offsets = rec.tensor("offsets", 1, 3, U32);
                let work = WorkList::new(&mut rec, offsets, rows);
                let stack = rec.tensor("stack", 2 * width, width, weights);
                grouped_matmul(&mut rec, x, &[stack], &work, y, Epilogue::default());
                for accumulate in [false, true] {
                    grouped_matmul_backward(
                        &mut rec,
                        y,
                        &[stack],
                        &work,
                        dx,
                        Epilogue { accumulate, ..Default::default() },
                    );
                }
            }
        }
    }
    rec.finish().dispatches
}
