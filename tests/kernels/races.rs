//! Every kernel is executed by the interpreter, which finds races. That it does is shown with each barrier: without it
//! a case has a race.
//!
//! Here a few small cases of each family are executed; `GRISTMILL_INTERPRET=1` executes those of all tests.

use crate::lab::{Barrier, Coverage, FirstCases, covering};
use crate::{
    attention, balance, causal_conv, decode, delta_gates, draw, dropout, elementwise, expert_scale,
    fingerprint, gated_delta_rule, grad_norm, grouped, hot_copies, latent_heads, linear_attention,
    linear_cross_entropy, loss_scale, magnitudes, matmul, matrices, max_logit, muon, norms_and_sums,
    optimizers, permute, placement, preference, route, row_gate, spread, squares,
};
use gristmill::kernels::Sources;
use std::collections::{BTreeMap, BTreeSet};

/// Tests that together reach every entry point and every barrier, and how many of their first cases, counted by tier,
/// are looked at. A list has tests of the same kernels, and those that take longest come first.
const SOME_OF_EVERY_FAMILY: &[&[FirstCases]] = &[
    &[
        (matmul::matmul_is_the_product, 9),
        (matmul::products_of_few_rows, 9),
        (matmul::products_of_few_rows_and_quantised_ones, 40),
        (matmul::weights_may_be_quantised, 50),
        (matmul::split_products_of_every_layout, 9),
        (grouped::each_group_is_multiplied_by_its_expert_s_matrix, 9),
        (matrices::tiles_of_every_size_and_layout, 14),
        (matrices::gate_beside_up_of_all_factors, 1),
        (matrices::grouped_products, 6),
    ],
    &[
        (latent_heads::each_part_has_its_gradient, 9),
        (latent_heads::parts_become_packed_heads, 9),
        (decode::a_token_attends_to_the_cache, 12),
        (decode::a_token_attends_to_a_ring, 6),
        (attention::attention_backward_is_the_gradient, 21),
        (attention::attention_is_the_weighted_mean_of_the_values, 21),
        (attention::attention_with_sinks, 12),
        (attention::attention_with_large_scores_does_not_overflow, 6),
        (attention::attention_at_the_sizes_of_a_gpu, 9),
    ],
    &[
        (balance::balance_losses_and_their_gradient, 9),
        (balance::tallies_add_up, 9),
        (balance::the_bias_follows_the_load, 9),
        (route::routes_and_their_backward, 18),
        (route::sparse_mixers_and_their_backward, 6),
        (permute::permute_and_its_backward, 9),
        (permute::combine_and_its_backward, 9),
        (permute::renormalised_gates_and_their_backward, 9),
        (placement::placements_are_those_of_the_reference, 9),
        (placement::hot_experts_are_placed_last, 9),
        (placement::the_busiest_experts_become_hot_at_their_steps, 9),
        (hot_copies::hot_experts_come_last_in_order, 9),
        (hot_copies::copies_are_those_of_the_hot_experts, 9),
        (hot_copies::gradients_of_copies_are_added_at_home, 9),
        (spread::the_rows_of_each_expert_start_after_those_of_the_one_before, 9),
    ],
    &[
        (causal_conv::causal_conv_and_its_backward, 15),
        (causal_conv::decoding_continues_a_prompt, 3),
        (causal_conv::gates_and_their_backward, 2),
        (delta_gates::gates_and_their_backward, 6),
        (delta_gates::gates_after_the_last_token_are_zero, 1),
        (delta_gates::unit_heads_and_their_backward, 2),
        (linear_attention::gates_after_attention_and_their_backward, 6),
        (gated_delta_rule::gated_delta_rule_and_its_backward, 2),
        (gated_delta_rule::decoding_continues_a_prompt, 2),
    ],
    &[
        (squares::norms_of_every_storage_type, 9),
        (max_logit::the_largest_of_each_column_over_all_launches, 9),
        (grad_norm::sizes_that_are_summed_apart, 9),
        (loss_scale::corner_cases, 9),
        (muon::matrices_of_all_shapes_match_the_reference, 9),
        (muon::parts_are_orthogonalised_as_the_matrix, 9),
        (optimizers::update_of_every_optimizer_and_group, 60),
        (optimizers::update_clips_and_steps, 9),
        (fingerprint::fingerprints_are_those_of_the_reference, 9),
    ],
    &[
        (norms_and_sums::rms_norm_and_its_backward, 15),
        (norms_and_sums::l2_norm_and_its_backward, 9),
        (norms_and_sums::layer_norm_and_its_backward, 9),
        (magnitudes::squares_of_rows, 30),
        (magnitudes::norms_and_factors_of_rows, 1),
        (magnitudes::columns_scaled_by_magnitudes_and_their_backward, 24),
        (norms_and_sums::qk_norm_and_its_backward, 9),
        (norms_and_sums::qk_norm_of_ranges, 1),
        (norms_and_sums::qk_layer_norm_and_its_backward, 6),
        (norms_and_sums::column_sum_adds_rows, 9),
        (norms_and_sums::embedding_gathers_and_scatters, 9),
        (norms_and_sums::add_scales_and_accumulates, 9),
        (norms_and_sums::cast_rounds_to_nearest_even, 9),
    ],
    &[
        (elementwise::gelu_and_its_backward, 9),
        (elementwise::xielu_and_its_backward, 15),
        (elementwise::clipping_and_its_backward, 9),
        (elementwise::swiglu_is_the_gated_activation, 9),
        (elementwise::swiglu_backward_writes_both_gradients, 9),
        (elementwise::rope_rotates_queries_and_keys_in_place, 9),
        (elementwise::zeros_are_where_the_tensor_is, 9),
        (row_gate::row_gates_and_their_backward, 9),
        (expert_scale::scales_of_experts_and_their_gradient, 2),
        (dropout::dropout_is_the_mask_times_its_input, 9),
        (dropout::the_device_draws_the_host_s_words, 9),
        (dropout::micro_batches_are_counted, 9),
    ],
    &[
        (linear_cross_entropy::linear_cross_entropy_matches_the_reference, 9),
        (preference::pairs_of_answers_and_their_gradients, 9),
        (draw::tokens_are_drawn_by_their_probability, 9),
    ],
];

/// Entry points that no case has: the device's own probe, and what needs an exchange with other ranks.
const NOT_EXECUTED: [(&str, &str); 2] = [("lanes", "hear_lanes"), ("linear_cross_entropy", "row_parts")];

/// Barriers without which no case has a race: file, unless the function is imported, function and number there. What
/// comes next is behind another barrier, or in another place of the memory; and a matrix is stored where the same
/// subgroup has loaded one.
const SPARE: [(&str, &str, usize); 2] =
    [("", "attention_portable_tiles__group_sum", 1), ("attention/matrix/forward", "attention", 5)];

#[test]
fn every_kernel_is_free_of_races_and_needs_its_barriers() {
    let Coverage { entries, barriers, .. } = covering(SOME_OF_EVERY_FAMILY);
    println!("{} variants with {} barriers", entries.len(), barriers.len());
    let executed: BTreeSet<(&str, &str)> = entries.iter().map(|(file, entry, _)| (*file, *entry)).collect();
    let (sources, mut missing) = (Sources::default(), BTreeSet::new());
    for (file, source) in sources.iter() {
        for after in source.split("@compute").skip(1) {
            let name = after.split("fn ").nth(1).and_then(|rest| rest.split('(').next()).expect("a name");
            if !executed.contains(&(&file, name)) && !NOT_EXECUTED.contains(&(&file, name)) {
                missing.insert(format!("no case executes {name} of {file}"));
            }
        }
        let mut function = "";
        for line in source.lines().map(str::trim_start).filter(|line| !line.starts_with("//")) {
            function = line.split("fn ").nth(1).and_then(|rest| rest.split('(').next()).unwrap_or(function);
            let is_passed = barriers.keys().any(|Barrier { file: of, function: passed, .. }| {
                let is_imported = passed.split_once("__").is_some_and(|(_, item)| item == function);
                is_imported || (*of, passed.as_str()) == (&file, function)
            });
            if !is_passed && line.contains("Barrier();") {
                missing.insert(format!("no case passes the barriers of {function} in {file}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");

    // Of a function that several kernels call, one has to need it: a reduction ends with a barrier for the next one.
    let mut needed = BTreeMap::new();
    for (Barrier { file, function, number, .. }, is_needed) in &barriers {
        let file = if function.contains("__") { "" } else { *file };
        *needed.entry((file, function.as_str(), *number)).or_insert(false) |= is_needed;
    }
    let spare: Vec<_> =
        needed.iter().filter(|(_, is_needed)| !**is_needed).map(|(barrier, _)| *barrier).collect();
    assert_eq!(spare, SPARE, "barriers without which no race is found");
}
