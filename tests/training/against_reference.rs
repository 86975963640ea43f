//! A run on the device against an f64 run of the whole trainer.

use crate::runs::{Setup, Weights, reference_shape, relative_distance};
use gristmill::element::Element;
use gristmill::model::config::ModelConfig;
use gristmill::random::{Permutation, SHUFFLE_STREAM};
use gristmill::settings::{Optimizer, OptimizerType, Rule as OptimizerRule, RunPlan};
use gristmill::train::length::RunLength;
use reference::adamw;
use reference::trainer::{AdamWSettings, MuonSettings, Rule, SgdSettings, Trainer, decays};
use regex::Regex;

/// Relative error allowed in f32 to losses, gradient norms and the final weights.
pub const ALLOWED: f64 = 1e-5;

/// Relative errors that are allowed.
struct Bounds {
    loss: f64,
    norm: f64,
    weights: f64,
    /// To the movement of each tensor from its initial values. One that never trains is 1 away, one that moves anywhere
    /// else more.
    movement: f64,
}

impl Bounds {
    /// In 16 bits, multiples of half an ulp. The reference rounds where the kernels do, but what both round differs by
    /// f32's errors, so that some values are rounded the other way, and more in each layer. A mean over tokens keeps
    /// little of that, a norm more, and AdamW turns the sign of a small gradient into a full step.
    fn of(element: Element) -> Self {
        let in_half_ulps =
            |half: f64| Self { loss: 0.5 * half, norm: 2.0 * half, weights: 4.0 * half, movement: 0.5 };
        match element {
            Element::F16 => in_half_ulps(2f64.powi(-11)),
            Element::Bf16 => in_half_ulps(2f64.powi(-8)),
            _ => Self { loss: ALLOWED, norm: ALLOWED, weights: ALLOWED, movement: 0.1 },
        }
    }
}

/// Trains `steps` steps in f32 on the device and in f64 on the host, from the same initial weights and the same text,
/// and compares every loss, every gradient norm and the final weights.
pub fn follows_the_reference(setup: &Setup, steps: u64) {
    follows_the_reference_on(setup, steps, reference_batch);
}

/// The same on micro-batches of `batch`, tokens and targets, which is given their numbers.
pub fn follows_the_reference_on(
    setup: &Setup,
    steps: u64,
    batch: impl Fn(&RunPlan, u64) -> (Vec<u32>, Vec<u32>),
) {
    let trained = setup.train(steps);
    let plan = setup.plan();
    let bounds = Bounds::of(plan.model.compute);
    let (mut reference, groups) = reference_trainer(setup, &plan);
    let (rule, settings) = reference_optimizer(&plan.settings.optimizer);
    reference.rule = rule;
    let data = plan.load_data().expect("the text is there");
    let length = RunLength::new(&plan, data.train.steps_per_epoch());
    let accumulation = plan.settings.runner.gradient_accumulation_steps as u64;
    for step in 0..steps {
        let batches: Vec<(Vec<u32>, Vec<u32>)> =
            (step * accumulation..(step + 1) * accumulation).map(|i| batch(&plan, i)).collect();
        let lr = length.schedule.lr_at(step);
        let rate = |group: usize| group.checked_sub(1).map(|i| length.group_schedules[i].lr_at(step));
        reference.rates =
            groups.iter().filter_map(|(name, group)| Some((name.clone(), rate(*group)?))).collect();
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
            "{} step {}: loss {:.6}, {:.1} % of the allowed error; norm {:.4}, {:.1} %",
            setup.name,
            step + 1,
            got.loss,
            100.0 * loss / bounds.loss,
            got.grad_norm,
            100.0 * norm / bounds.norm
        );
        assert!(loss <= bounds.loss, "{} step {step}: loss {} and {}", setup.name, got.loss, want.loss);
        assert!(
            norm <= bounds.norm,
            "{} step {step}: gradient norm {} and {}",
            setup.name,
            got.grad_norm,
            want.grad_norm
        );
    }
    let (mut got, mut want, mut initial) = (trained.weights, reference.weights, setup.initial_weights());
    if has_idle_key_biases(&plan.model) && plan.model.low_rank.is_none() {
        let mut gradients = trained.gradients;
        let whole = norm(&gradients);
        let of_keys = norm(&take_key_biases(&plan.model, &mut gradients)) / whole;
        assert!(of_keys <= bounds.norm, "{}: key biases have {of_keys:.2e} of the gradient", setup.name);
        for weights in [&mut got, &mut want, &mut initial] {
            take_key_biases(&plan.model, weights);
        }
    }
    if plan.model.low_rank.is_some() {
        // The model would hide the adapters.
        let is_frozen = |name: &String| reference.frozen.contains(name);
        assert!(
            got.iter().all(|(name, values)| !is_frozen(name) || values == &initial[name]),
            "{}",
            setup.name
        );
        got.retain(|name, _| !is_frozen(name));
        want.retain(|name, _| !is_frozen(name));
    }
    assert_movement(setup.name, &got, &want, &initial, bounds.movement);
    let distance = relative_distance(&got, &want);
    println!(
        "{}: final weights at {:.1} % of the allowed error",
        setup.name,
        100.0 * distance / bounds.weights
    );
    assert!(distance <= bounds.weights, "{}: the final weights differ by {distance:.2e} in norm", setup.name);
}

/// Panics unless each tensor has moved from its initial values to where it should: in the norm of all weights, one
/// tensor more or less is lost.
fn assert_movement(name: &str, got: &Weights, want: &Weights, initial: &Weights, allowed: f64) {
    let distance = |one: &[f64], other: &[f64]| {
        assert_eq!(one.len(), other.len());
        one.iter().zip(other).map(|(one, other)| (one - other) * (one - other)).sum::<f64>().sqrt()
    };
    let mut worst = (0.0, "");
    for (tensor, want) in want {
        let (moved, apart) = (distance(want, &initial[tensor]), distance(&got[tensor], want));
        if moved == 0.0 {
            assert_eq!(&got[tensor], want, "{name}: {tensor} moves, and does not train");
            continue;
        }
        let share = apart / moved;
        assert!(share <= allowed, "{name}: {tensor} is {share:.3} of its movement from where it should be");
        worst = if share > worst.0 { (share, tensor) } else { worst };
    }
    println!("{name}: {} is {:.1e} of its movement from where it should be, the most", worst.1, worst.0);
}

/// Micro-batch number `micro_step`, cut from the text here: a window starts every T bytes, and each epoch takes them in
/// an order of its own, as many as fill whole steps. Only the permutation is the library's.
pub fn reference_batch(plan: &RunPlan, micro_step: u64) -> (Vec<u32>, Vec<u32>) {
    let text = std::fs::read("tests/data/mill.txt").expect("the text");
    let (length, runner) = (plan.model.seq_length, &plan.settings.runner);
    let (rows, accumulation) = (runner.batch_size, runner.gradient_accumulation_steps);
    let windows = (text.len() - 1) / length;
    let in_epoch = (windows / (rows * accumulation) * accumulation) as u64;
    let order =
        Permutation::new(windows as u64, plan.settings.run.seed, SHUFFLE_STREAM + micro_step / in_epoch);
    let first = micro_step % in_epoch * rows as u64;
    let starts = (first..first + rows as u64).map(|number| order.at(number) as usize * length);
    let bytes = |start: usize| text[start..start + length].iter().map(|byte| u32::from(*byte));
    let (tokens, targets) =
        starts.map(|start| (bytes(start), bytes(start + 1))).unzip::<_, _, Vec<_>, Vec<_>>();
    (tokens.into_iter().flatten().collect(), targets.into_iter().flatten().collect())
}

/// The f64 trainer with the plan's exemptions and frozen tensors; and the parameter group of each tensor. They follow
/// from the names of tensors alone.
pub fn reference_trainer(setup: &Setup, plan: &RunPlan) -> (Trainer, Vec<(String, usize)>) {
    let shape = reference_shape(&plan.model);
    let names: Vec<String> = shape.parameters().into_iter().map(|(name, _)| name).collect();
    let mut reference = Trainer::new(shape, setup.initial_weights());
    let (run, model, groups) = (&plan.settings.run, &plan.settings.model, &plan.settings.groups);
    let group = |name: &String| {
        groups.iter().position(|group| takes(&group.keys.params, name)).map_or(0, |number| number + 1)
    };
    let decay = |name: &String| {
        let own = group(name).checked_sub(1).and_then(|number| groups[number].keys.weight_decay);
        let is_exempt = !decays(name) || takes(&run.no_decay_params, name);
        if is_exempt { 0.0 } else { own.unwrap_or(plan.settings.optimizer.weight_decay) }
    };
    // Beside adapters nothing trains but what `freeze_exclude` of `pet_config` names.
    let trains = |name: &String| {
        let pet = model.pet_config.as_ref();
        pet.is_none_or(|pet| {
            name.contains(".lora_")
                || pet.freeze_exclude.iter().any(|glob| name.ends_with(glob.trim_start_matches('*')))
        })
    };
    let is_frozen =
        |name: &&String| !trains(name) || takes(&model.freeze, name) && !takes(&model.freeze_exclude, name);
    reference.weight_decays = names.iter().map(|name| (name.clone(), decay(name))).collect();
    reference.frozen = names.iter().filter(is_frozen).cloned().collect();
    let groups = names.iter().map(|name| (name.clone(), group(name))).collect();
    (reference, groups)
}

/// Whether one of `patterns` is found in the tensor's name, or in that of the parameter which holds it.
fn takes(patterns: &[String], name: &str) -> bool {
    // What q, k and v, or gate and up, are part of.
    let parameters = [
        ("model.embed_tokens.weight", "embedding"),
        ("lm_head.weight", "head output_layer.weight"),
        ("q_proj.weight", "attention.wqkv"),
        ("k_proj.weight", "attention.wqkv"),
        ("v_proj.weight", "attention.wqkv"),
        ("o_proj.weight", "attention.wo"),
        ("gate_proj.weight", "feed_forward.w_gate_up"),
        ("up_proj.weight", "feed_forward.w_gate_up"),
        ("down_proj.weight", "feed_forward.w_down"),
    ];
    let layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split('.').next());
    let prefix = layer.map_or(String::new(), |layer| format!("layers.{layer}."));
    let holds = parameters.iter().find(|(end, _)| name.ends_with(end));
    let holder = holds.map(|(_, parameter)| format!("{prefix}{parameter}"));
    patterns.iter().any(|pattern| {
        let pattern = Regex::new(pattern).expect("a pattern");
        pattern.is_match(name) || holder.as_ref().is_some_and(|holder| pattern.is_match(holder))
    })
}

/// The f64 trainer's rule, and AdamW's settings for the tensors that the rule leaves to it.
pub fn reference_optimizer(optimizer: &Optimizer) -> (Rule, AdamWSettings) {
    let (rule, [beta1, beta2], eps) = match optimizer.rule {
        OptimizerRule::AdamW { betas, eps } => (Rule::AdamW, betas, eps),
        OptimizerRule::Sgd { momentum, dampening, nesterov } => {
            (Rule::Sgd(SgdSettings { momentum, dampening, nesterov }), [0.0; 2], 1.0)
        }
        OptimizerRule::Muon {
            momentum,
            nesterov,
            ns_steps,
            matched_adamw_rms: rms,
            adamw_betas,
            adamw_eps,
        } => {
            let steps = ns_steps as u32;
            (Rule::Muon(MuonSettings { momentum, nesterov, steps, rms }), adamw_betas, adamw_eps)
        }
    };
    let correction = match optimizer.kind {
        OptimizerType::Fp32StateAdamWeightDecay => adamw::Correction::Absent,
        OptimizerType::AdamWeightDecayX => adamw::Correction::WithEps,
        _ => adamw::Correction::Published,
    };
    (rule, AdamWSettings { beta1, beta2, eps, weight_decay: optimizer.weight_decay, correction })
}

/// Whether the biases of some dimensions of keys have no effect.
fn has_idle_key_biases(model: &ModelConfig) -> bool {
    let rotates_all = model.rope(0).is_some_and(|rope| rope.rotary_dim as usize == model.layer.head_dim);
    model.qkv_bias && !model.qk_norm && !rotates_all
}

/// Takes the key biases of dimensions that do not rotate out of `weights`. Such a bias adds the same amount to all
/// scores of a query, which softmax ignores: its gradient is zero except for rounding, and AdamW turns that rounding
/// into full-length steps. No two computations agree on these biases, and no loss depends on them.
fn take_key_biases(model: &ModelConfig, weights: &mut Weights) -> Weights {
    let keys = model.num_heads..model.num_heads + model.layer.num_kv_heads;
    let rotating = model.rope(0).map_or(0, |rope| rope.rotary_dim as usize);
    let is_key = |name: &str, head: usize| match name {
        name if name.ends_with("attn.c_attn.bias") => keys.contains(&head),
        name if name.ends_with("query_key_value.bias") => head % 3 == 1, // q, k and v of each head in turn
        name => name.ends_with("attn.k_proj.bias"),
    };
    let mut taken = Weights::new();
    for (name, bias) in weights.iter_mut().filter(|(name, _)| name.contains("att")) {
        let width = model.layer.head_dim;
        let is_idle = |index: usize| is_key(name, index / width) && index % width >= rotating;
        let (idle, rest): (Vec<_>, Vec<_>) = bias.iter().enumerate().partition(|(index, _)| is_idle(*index));
        let values =
            |pairs: Vec<(usize, &f64)>| pairs.into_iter().map(|(_, value)| *value).collect::<Vec<f64>>();
        let (idle, rest) = (values(idle), values(rest));
        if !idle.is_empty() {
            *bias = rest;
            taken.insert(name.clone(), idle);
        }
    }
    assert_eq!(taken.len(), model.num_layers);
    taken
}

fn norm(weights: &Weights) -> f64 {
    weights.values().flatten().map(|v| v * v).sum::<f64>().sqrt()
}
