//! `optimizer` under every name that files of the original use.

use super::*;
use crate::train::optimizer::{OptimizerConfig, OptimizerKind};

#[test]
fn every_type_reads_and_reads_back() {
    let rows = [
        ("AdamW", OptimizerKind::AdamW, 1e-8),
        ("adamw", OptimizerKind::AdamW, 1e-8),
        ("FusedAdamW", OptimizerKind::AdamW, 1e-8),
        ("FusedAdamWeightDecay", OptimizerKind::AdamW, 1e-6),
        ("FP32StateAdamWeightDecay", OptimizerKind::Fp32StateAdamWeightDecay, 1e-6),
        ("AdamWeightDecayX", OptimizerKind::AdamWeightDecayX, 1e-8),
    ];
    for (name, kind, eps) in rows {
        let text = BASE.replace("type: AdamW", &format!("type: {name}\n  beta1: 0.8\n  weight_decay: 0.1"));
        let found = plan(&text);
        let want = OptimizerConfig { kind, beta1: 0.8, beta2: 0.999, eps, weight_decay: 0.1 };
        assert_eq!(found.optimizer, want, "{name}");
        let (again, notices) = resolve(&found.to_yaml(), &[]).unwrap();
        assert_eq!(found, again, "{name}");
        assert_eq!(notices, [""; 0], "{name}");
    }
}
