//! `optimizer` under every name that files of MindFormers use.

use super::*;
use gristmill::settings::{Optimizer, OptimizerType, Rule};

#[test]
fn every_type_reads_and_reads_back() {
    let rows = [
        ("AdamW", OptimizerType::AdamW, 1e-8),
        ("adamw", OptimizerType::AdamW, 1e-8),
        ("FusedAdamW", OptimizerType::AdamW, 1e-8),
        ("FusedAdamWeightDecay", OptimizerType::AdamW, 1e-6),
        ("FP32StateAdamWeightDecay", OptimizerType::Fp32StateAdamWeightDecay, 1e-6),
        ("AdamWeightDecayX", OptimizerType::AdamWeightDecayX, 1e-8),
    ];
    for (name, kind, eps) in rows {
        let text = BASE.replace("type: AdamW", &format!("type: {name}\n  beta1: 0.8\n  weight_decay: 0.1"));
        let found = plan(&text);
        let Optimizer { rule, weight_decay, .. } = &found.settings.optimizer;
        assert_eq!((rule, *weight_decay), (&Rule::AdamW { betas: [0.8, 0.999], eps }, 0.1), "{name}");
        assert_eq!(found.settings.optimizer.kind, kind, "{name}");
        let (again, notices) = resolve(&found.to_yaml(), &[]).unwrap();
        assert_eq!(found, again, "{name}");
        assert_eq!(notices, [""; 0], "{name}");
    }
}

#[track_caller]
fn assert_rule(plan: &RunPlan, rule: Rule, weight_decay: f64) {
    let found = &plan.settings.optimizer;
    let want = Optimizer { rule, weight_decay, stochastic_rounding: false, kind: found.kind };
    assert_eq!(*found, want);
}

#[test]
fn muon_has_keys_of_its_own() {
    let with = |keys: &str| BASE.replace("  type: AdamW", &format!("  type: Muon{keys}"));
    let found = plan(&with(""));
    let rule = Rule::Muon {
        momentum: 0.95,
        nesterov: true,
        ns_steps: 5,
        matched_adamw_rms: 0.2,
        adamw_betas: [0.95; 2],
        adamw_eps: 1e-8,
    };
    assert_rule(&found, rule, 0.1);
    assert_eq!(found.settings.optimizer.corrected_betas(), Some([0.95; 2]));
    let found = plan(&with(
        "\n  momentum: 0.9\n  nesterov: False\n  ns_steps: 3\n  matched_adamw_rms: 0.3\n  adamw_betas: [0.8, 0.9]\n  \
         adamw_eps: 1e-6\n  weight_decay: 0",
    ));
    let rule = Rule::Muon {
        momentum: 0.9,
        nesterov: false,
        ns_steps: 3,
        matched_adamw_rms: 0.3,
        adamw_betas: [0.8, 0.9],
        adamw_eps: 1e-6,
    };
    assert_rule(&found, rule, 0.0);
    let (again, notices) = resolve(&found.to_yaml(), &[]).unwrap();
    assert_eq!(found, again);
    assert_eq!(notices, [""; 0]);
    assert_answers(MUON, |_, keys| message(&with(&format!("\n{keys}")), &[]));
    assert_eq!(
        message(&BASE.replace("  type: AdamW", "  type: AdamW\n  ns_steps: 5"), &[]),
        "x.yaml:15: optimizer.ns_steps: is a key of `type: Muon`, not of `AdamW`; remove it"
    );
}

#[test]
fn nesterov_momentum_needs_momentum() {
    let with = |keys: &str| BASE.replace("  type: AdamW", &format!("  type: SGD\n{keys}"));
    let sgd = Rule::Sgd { momentum: 0.9, nesterov: true, dampening: 0.0 };
    assert_rule(&plan(&with("  momentum: 0.9\n  nesterov: True")), sgd, 0.0);
    assert_answers(SGD, |_, keys| message(&with(keys), &[]));
}

/// MindSpore's words for SGD without dampening, under every key of its own.
#[test]
fn momentum_is_sgd_in_the_words_of_mindspore() {
    let with = |keys: &str| BASE.replace("  type: AdamW", &format!("  type: Momentum\n{keys}"));
    let found = plan(&with(
        "  learning_rate: 0.1\n  momentum: 0.9\n  use_nesterov: True\n  weight_decay: 0.01\n  loss_scale: 1.0",
    ));
    let sgd = |momentum, nesterov| Rule::Sgd { momentum, nesterov, dampening: 0.0 };
    assert_rule(&found, sgd(0.9, true), 0.01);
    let (again, notices) = resolve(&found.to_yaml(), &[]).unwrap();
    assert_eq!((&found, notices), (&again, Vec::new()));
    assert_rule(&plan(&with("  momentum: 0.9")), sgd(0.9, false), 0.0);
    let none = plan(&with("  momentum: 0\n  use_nesterov: True"));
    assert_rule(&none, sgd(0.0, false), 0.0); // what is ahead by no momentum is here
    assert_reads_back(&none);
    assert_answers(MOMENTUM, |_, keys| message(&with(keys), &[]));
}

const MOMENTUM: &str = "
+  weight_decay: 0.1
= x.yaml:13: optimizer: `momentum` is missing; give it a number in [0, 1)
+  momentum: 0.9
+  dampening: 0.1
= x.yaml:16: optimizer.dampening: is a key of `type: SGD`, not of `Momentum`; remove it
+  momentum: 0.9
+  loss_scale: 1024
= x.yaml:16: optimizer.loss_scale: not built yet (found `1024`); write 1: `runner_wrapper.scale_sense` divides gradients by what it multiplied the loss with
+  momentum: 0.9
+  use_nesterov: x
= x.yaml:16: optimizer.use_nesterov: expected True or False, found `x`
";

const SGD: &str = "
+  nesterov: True
= x.yaml:15: optimizer.nesterov: needs a `momentum` above 0, and no `dampening`
+  nesterov: True
+  momentum: 0.9
+  dampening: 0.1
= x.yaml:15: optimizer.nesterov: needs a `momentum` above 0, and no `dampening`
+  betas: [0.9, 0.95]
= x.yaml:15: optimizer.betas: is a key of `type: AdamW` or `FusedAdamWeightDecay` or `FP32StateAdamWeightDecay` or `AdamWeightDecayX`, not of `SGD`; remove it
";

const MUON: &str = "
+  betas: [0.9, 0.95]
= x.yaml:15: optimizer.betas: Muon has no such key; write `adamw_betas`
+  ns_steps: 99
= x.yaml:15: optimizer.ns_steps: expected a whole number from 1 to 20, found `99`
+  adamw_betas: 0.9
= x.yaml:15: optimizer.adamw_betas: expected two numbers in (0, 1), found [0.9]
+  qk_clip_threshold: 100
= x.yaml:15: optimizer.qk_clip_threshold: not built yet (found `100`); remove it
";

/// Weights in bfloat16 alone: what the three keys that speak of them need of each other.
#[test]
fn stochastic_rounding_needs_weights_in_bfloat16() {
    let resolved = |flags: &[&str]| resolve(BASE, flags).map_err(|error| error.to_string());
    let [compute, rounding] =
        ["--model.model_config.compute_dtype=bfloat16", "--optimizer.stochastic_rounding=True"];
    let stored = |word: &str| format!("--model.model_config.param_init_type={word}");
    for flags in [&[compute, rounding][..], &[compute, rounding, &stored("bfloat16")]] {
        let (plan, notices) = resolved(flags).unwrap();
        assert!(plan.settings.optimizer.stochastic_rounding, "{flags:?}");
        assert!(!notices.iter().any(|notice| notice.contains("param_init_type")), "{notices:?}");
        assert_reads_back(&plan);
    }
    for word in ["float32", "float16"] {
        assert_eq!(
            resolved(&[compute, rounding, &stored(word)]).unwrap_err(),
            "--model.model_config.param_init_type: `optimizer.stochastic_rounding: True` stores weights in bfloat16; write \
             `bfloat16`"
        );
    }
    for compute in [&[][..], &["--model.model_config.compute_dtype=float16"]] {
        assert_eq!(
            resolved(&[compute, &[rounding]].concat()).unwrap_err(),
            "--optimizer.stochastic_rounding: stores weights in bfloat16, as layers read them; write \
             `model.model_config.compute_dtype: bfloat16`"
        );
    }
}

#[test]
fn weights_of_another_type_are_noticed() {
    let notices = |family: &str, word: &str| {
        let flags = [
            format!("--model.model_config.type={family}"),
            format!("--model.model_config.param_init_type={word}"),
        ];
        let (plan, notices) = resolve(BASE, &flags.each_ref().map(String::as_str)).unwrap();
        assert_reads_back(&plan);
        notices.into_iter().filter(|notice| notice.contains("param_init_type")).collect::<Vec<_>>()
    };
    const KEY: &str = "model.model_config.param_init_type: float32 here, which is more precise";
    for family in ["LlamaConfig", "GPT2Config"] {
        assert_eq!(notices(family, "float32"), [""; 0]);
        assert_eq!(notices(family, "float16"), [KEY]);
        let bfloat16 =
            format!("{KEY}; `optimizer.stochastic_rounding: True` stores weights in bfloat16 alone");
        assert_eq!(notices(family, "bfloat16"), [bfloat16]);
    }
}

/// Muon multiplies in float32, whatever the model computes in.
#[test]
fn products_that_cannot_be_split_are_noticed() {
    let notices = |flags: &[&str]| {
        let split = ["--context.f32_products=split"];
        let (plan, notices) = resolve(BASE, &[&split[..], flags].concat()).unwrap();
        assert_reads_back(&plan);
        let notices = notices.into_iter().filter(|notice| notice.contains("f32_products"));
        ([plan.splits_f32(), plan.tries_matrices()], notices.collect::<Vec<_>>())
    };
    const BFLOAT16: &str = "--model.model_config.compute_dtype=bfloat16";
    let notice = "context.f32_products: no effect, as all products of this run are of bf16";
    assert_eq!(notices(&[]), ([true, true], vec![]));
    assert_eq!(notices(&[BFLOAT16]), ([false, true], vec![notice.to_string()]));
    assert_eq!(notices(&[BFLOAT16, "--optimizer.type=Muon"]), ([true, true], vec![]));
    let notice = "context.f32_products: no effect, as tier portable has no matrices";
    assert_eq!(notices(&["--context.tier=portable"]), ([false, false], vec![notice.to_string()]));
    assert_eq!(notices(&["--context.tier=matrix"]), ([true, true], vec![]));
}
