//! Stable ranks of weights against the f64 trainer.

use super::{ALLOWED, reference, take};
use crate::draws::StartVector;
use crate::runs::{FolderRun, Setup, metrics, reference_tensors};
use gristmill::model::parameters::{Gpt, Role, Spec};
use reference::stable_rank::power_iteration;
use std::collections::BTreeMap;

/// Every matrix of a Llama and of its experts, in a run of 3 steps, of which the second is due.
#[test]
fn stable_ranks_are_those_of_the_reference() {
    let experts = "expert_num: 4, num_experts_chosen: 2, use_gmm: True";
    for setup in [Setup::new("ranks of weights", ""), Setup::experts("ranks of experts", experts, "")] {
        let monitor = "--monitor_config={monitor_on: True, stable_rank_config: {format: log, step_interval: 2, power_iteration_num: 4}}";
        let run = FolderRun::new(setup.with(&[monitor]));
        let plan = run.setup.plan();
        run.train(3);
        let steps = metrics(&run.folder());
        assert!(steps[0].monitor.is_none() && steps[2].monitor.is_none());
        let mut left = steps[1].monitor.clone().expect("stable ranks");
        let (_, trainer) = reference(&run.setup, &plan, 2).pop().expect("two steps");
        let all = Gpt::describe(&plan.model);
        for (parameter, spec) in all.iter().enumerate().filter(|(_, spec)| spec.role != Role::Vector) {
            let matrices = matrices(spec, &trainer.weights);
            let is_stack = matrices.len() > 1;
            let tag = |name: &str, end: &str| match is_stack {
                true => format!("{name}/{}/expert_{end}", spec.path),
                false => format!("{name}/{}", spec.path),
            };
            let mut ranks = Vec::new();
            for (number, matrix) in matrices.iter().enumerate() {
                let (groups, seed) = (spec.cols.div_ceil(4), plan.settings.run.seed);
                let vector = StartVector { seed, stream: parameter as u32, step: 2 };
                let start = (0..groups).flat_map(|group| vector.at((number * groups + group) as u32));
                let start: Vec<f64> = start.take(spec.cols).map(f64::from).collect();
                let eigenvalue = power_iteration(matrix, matrix.len() / spec.cols, &start, 4);
                let rank = matrix.iter().map(|x| x * x).sum::<f64>() / eigenvalue;
                take(&mut left, &tag("weight_eigenvalue", &number.to_string()), eigenvalue, 5.0 * ALLOWED);
                take(&mut left, &tag("weight_stable_rank", &number.to_string()), rank, 5.0 * ALLOWED);
                ranks.push(rank);
            }
            if is_stack {
                let (least, most) = (
                    ranks.iter().copied().fold(f64::MAX, f64::min),
                    ranks.iter().copied().fold(0.0, f64::max),
                );
                let mean = ranks.iter().sum::<f64>() / ranks.len() as f64;
                for (end, want) in [("min", least), ("max", most), ("mean", mean)] {
                    take(&mut left, &tag("weight_stable_rank", end), want, 5.0 * ALLOWED);
                    assert!(left.remove(&tag("weight_eigenvalue", end)).is_some());
                }
            }
        }
        assert!(left.is_empty(), "{left:?}");
    }
}

/// The matrices of a parameter as it is stored, row by row.
fn matrices(spec: &Spec, tensors: &BTreeMap<String, Vec<f64>>) -> Vec<Vec<f64>> {
    let count = match spec.role {
        Role::ExpertStack { experts } => experts,
        _ => 1,
    };
    let stored = spec.pieces.iter().flat_map(|piece| {
        let names = reference_tensors(&piece.name, vec![0.0; 2]).into_iter();
        names.flat_map(|(name, _)| tensors[&name].clone()).collect::<Vec<f64>>()
    });
    let stored: Vec<f64> = stored.collect();
    stored.chunks_exact(stored.len() / count).map(<[f64]>::to_vec).collect()
}
