//! Factors of experts' gates against the f64 reference.

use crate::lab::{Case, allowed, check};
use gristmill::element::Element::F32;
use gristmill::ops::expert_scale::{expert_scale_gradient, scale_gates};
use reference::expert_scale as formula;

/// Choices of `chosen` different experts for each token.
fn choices(case: &mut Case, [tokens, chosen, experts]: [u32; 3]) -> Vec<u32> {
    let firsts = case.ids_below(tokens as usize, experts);
    firsts.into_iter().flat_map(|first| (0..chosen).map(move |j| (first + j) % experts)).collect()
}

#[test]
pub fn scales_of_experts_and_their_gradient() {
    for [tokens, chosen, experts] in [[1, 1, 1], [3, 2, 5], [33, 4, 7], [129, 8, 130], [300, 5, 64]] {
        check(&format!("expert_scale {tokens}x{chosen} of {experts}"), |case| {
            let ids = choices(case, [tokens, chosen, experts]);
            let [gates, dy] = [0; 2].map(|_| case.input(tokens, chosen, F32));
            let [scale, before] = [0; 2].map(|_| case.input(1, experts, F32));
            let [scaled, d_gates] = [0; 2].map(|_| case.output(tokens, chosen, F32));
            let on_device = case.integers(&ids);
            scale_gates(&mut case.rec, gates.tensor, on_device, scale.tensor, scaled);
            scale_gates(&mut case.rec, dy.tensor, on_device, scale.tensor, d_gates);
            expert_scale_gradient(&mut case.rec, gates.tensor, on_device, dy.tensor, before.tensor);
            let ids: Vec<usize> = ids.into_iter().map(|id| id as usize).collect();
            let want = formula::scale_gates(&gates.values, &ids, &scale.values);
            let (want_gates, want_scale) =
                formula::scale_gates_backward(&gates.values, &ids, &scale.values, &dy.values);
            case.expect("gates", scaled, want, allowed(F32, 1));
            case.expect("d gates", d_gates, want_gates, allowed(F32, 1));
            let sum = before.values.iter().zip(&want_scale).map(|(before, d)| before + d).collect();
            case.expect("d scale, on top", before.tensor, sum, allowed(F32, tokens * chosen));
        });
    }
}
