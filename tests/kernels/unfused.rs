//! The unfused compositions of `benches/unfused` compute what the fused kernels do, which the other tests hold against
//! the reference: both sides of a row of the kernel benchmarks do the same work.

#[path = "../../benches/unfused/mod.rs"]
mod baselines;

use crate::lab::allowed;
use gristmill::device::{Gpu, Job};
use gristmill::element::Element::F32;
use gristmill::kernels::Tier;
use gristmill::ops::attention::{Attention, AttentionTensors, attention};
use gristmill::ops::causal_conv::{CausalConv, ConvForm, causal_conv};
use gristmill::ops::heads::HeadLayout;
use gristmill::ops::permute::{self, CombineSaved, DropOrder, PlacementConfig, RowAllocation, Slots};
use gristmill::ops::rope::{Rope, cos_sin_table, rope};
use gristmill::ops::rope_scaling::RopeScaling;
use gristmill::ops::swiglu::{Gate, gate_up_cols, swiglu};
use gristmill::random::Philox;
use gristmill::record::Tensor;

/// Records both sides on each tier; each pair of tensors is equal within twice the error allowed for sums of `terms`.
fn agree(name: &str, terms: u32, record: impl Fn(&mut Inputs<'_>) -> Vec<[Tensor; 2]>) {
    for tier in Tier::EVERYWHERE {
        let gpu = baselines::gpu(Some(tier));
        for (index, [fused, composed]) in results(&gpu, &record).into_iter().enumerate() {
            let rms = (fused.iter().map(|x| f64::from(x * x)).sum::<f64>() / fused.len() as f64).sqrt();
            assert!(rms > 0.0, "{name} [{}]: result {index} is zero", tier.name());
            for (one, other) in fused.into_iter().zip(composed) {
                let bound = 2.0 * allowed(F32, terms) * (f64::from(one.abs()) + rms);
                let is_near = f64::from(one - other).abs() <= bound;
                assert!(is_near, "{name} [{}]: result {index} has {one} and {other}", tier.name());
            }
        }
    }
}

fn results(gpu: &Gpu, record: &impl Fn(&mut Inputs<'_>) -> Vec<[Tensor; 2]>) -> Vec<[Vec<f32>; 2]> {
    let run = gpu.run(|job| record(&mut Inputs { job, drawn: 0 }));
    pollster::block_on(run).unwrap_or_else(|error| panic!("{error}"))
}

/// A job with random inputs.
struct Inputs<'a> {
    job: &'a mut Job,
    drawn: u64,
}

impl Inputs<'_> {
    fn normal(&mut self, rows: u32, cols: u32) -> Tensor {
        let (random, first) = (Philox::new(7, 0), self.drawn);
        let count = u64::from(rows) * u64::from(cols);
        self.drawn += count;
        let values: Vec<f32> = (first..first + count).map(|index| random.normal(index) as f32).collect();
        self.job.input(&values, rows, cols)
    }

    /// NaN, so that what is not written shows.
    fn output(&mut self, rows: u32, cols: u32) -> Tensor {
        self.job.input(&vec![f32::NAN; (rows * cols) as usize], rows, cols)
    }
}

#[test]
fn swiglu_in_two_passes() {
    agree("swiglu", 2, |inputs| {
        let (rows, width) = (7, 256);
        let gate_up = inputs.normal(rows, gate_up_cols(width));
        let sides = [0; 2].map(|_| inputs.output(rows, width));
        swiglu(&mut inputs.job.rec, gate_up, sides[0], Gate::Silu);
        baselines::swiglu(&mut inputs.job.rec, gate_up, sides[1]);
        vec![sides]
    });
}

#[test]
fn gated_convolution_in_three_passes() {
    agree("gated convolution", 3, |inputs| {
        let (tokens, width) = (9, 68);
        let (x, w) = (inputs.normal(tokens, 3 * width), inputs.normal(3, width));
        let sides = [0; 2].map(|_| inputs.output(tokens, width));
        let conv = CausalConv { tokens, documents: None, form: ConvForm::Gated };
        causal_conv(&mut inputs.job.rec, x, w, sides[0], &conv);
        baselines::gated_conv(&mut inputs.job.rec, x, w, sides[1]);
        vec![sides]
    });
}

/// Of heads that are all rotated: 2 of q, 1 of k and a value that stays, in 4 sequences.
#[test]
fn rope_in_four_passes() {
    agree("rope", 2, |inputs| {
        let (tokens, sequences, head_dim) = (3, 4, 32);
        let layout = HeadLayout { heads: 2, kv_heads: 1, head_dim, value_dim: head_dim };
        let fused = inputs.normal(sequences * tokens, layout.cols());
        inputs.drawn = 0;
        let same = inputs.normal(sequences * tokens, layout.cols());
        let settings = Rope { rotary_dim: head_dim, theta: 10000.0, is_interleaved: false };
        let table = cos_sin_table(tokens, &settings, &RopeScaling::None, None);
        let positions: Vec<u32> = (0..sequences * tokens).map(|row| row % tokens).collect();
        let positions = inputs.job.integers(&positions);
        let cos_sin = inputs.job.input(&table, tokens, head_dim);
        rope(&mut inputs.job.rec, fused, positions, layout, &settings, cos_sin);
        // Each pair's cosine and sine for both halves of a head.
        let [cos, sin] = [0, 1].map(|part| {
            let pairs = (head_dim / 2) as usize;
            let of_row =
                |row: &[f32]| (0..2 * pairs).map(|i| row[2 * (i % pairs) + part]).collect::<Vec<_>>();
            let values: Vec<f32> = table.chunks(head_dim as usize).flat_map(of_row).collect();
            inputs.job.input(&values, tokens, head_dim)
        });
        let rotated = 3 * head_dim;
        let turned = inputs.output(sequences * tokens, rotated);
        baselines::rope(&mut inputs.job.rec, same.columns(0, rotated), cos, sin, head_dim, turned);
        vec![[fused.columns(0, rotated), turned]]
    });
}

#[test]
fn attention_with_a_matrix_of_scores() {
    agree("attention", 12 + 33, |inputs| {
        let (tokens, sequences) = (33, 2);
        let layout = HeadLayout { heads: 4, kv_heads: 2, head_dim: 12, value_dim: 12 };
        let shape = Attention {
            layout,
            tokens,
            is_causal: true,
            scale: 0.3,
            soft_cap: None,
            window: None,
            has_alibi: false,
            head_range: None,
            dropout: None,
        };
        let qkv = inputs.normal(sequences * tokens, layout.cols());
        let sides = [0; 2].map(|_| inputs.output(sequences * tokens, layout.out_cols()));
        let lse = inputs.output(sequences * tokens, layout.heads);
        attention(&mut inputs.job.rec, &AttentionTensors::new(qkv, sides[0], lse), &shape);
        baselines::attention(&mut inputs.job.rec, qkv, sides[1], &shape);
        vec![sides]
    });
}

/// Forward and backward, without capacities and with some that drop choices.
#[test]
fn permutations_in_single_purpose_kernels() {
    let dropping = RowAllocation::Capacity { slots: Slots::Equal(20), order: DropOrder::Choice };
    for allocation in [RowAllocation::Dropless { safe_tokens: true }, dropping] {
        agree(&format!("{allocation:?}"), 40, |inputs| {
            let (tokens, chosen, experts, width) = (67, 3, 9, 37);
            let routes = PlacementConfig { tokens, chosen, experts, allocation };
            let ids: Vec<u32> =
                (0..routes.choices()).map(|choice| (choice / 3 * 5 + choice % 3) % experts).collect();
            let ids = inputs.job.integers(&ids);
            let placement = permute::place(&mut inputs.job.rec, &routes, ids, None);
            let [x, dy, residual] = [0; 3].map(|_| inputs.normal(tokens, width));
            let (gates, d_rows) = (inputs.normal(tokens, chosen), inputs.normal(routes.rows(), width));
            let rows = [0; 2].map(|_| inputs.output(routes.rows(), width));
            let into = [0; 2].map(|_| inputs.output(routes.rows(), width));
            let [y, dx] = [0; 2].map(|_| [0; 2].map(|_| inputs.output(tokens, width)));
            let d_gates = [0; 2].map(|_| inputs.output(tokens, chosen));
            let rec = &mut inputs.job.rec;
            permute::permute(rec, &placement, x, rows[0]);
            baselines::permute::permute(rec, &placement, x, rows[1]);
            permute::combine(rec, &placement, rows[0], gates, Some(residual), y[0]);
            baselines::permute::combine(rec, &placement, rows[0], gates, Some(residual), y[1]);
            permute::permute_backward(rec, &placement, d_rows, dx[0], false);
            baselines::permute::permute_backward(rec, &placement, d_rows, dx[1], false);
            let saved = CombineSaved { rows: rows[0], gates };
            permute::combine_backward(rec, &placement, &saved, dy, into[0], d_gates[0]);
            baselines::permute::combine_backward(rec, &placement, &saved, dy, into[1], d_gates[1]);
            vec![rows, y, dx, into, d_gates]
        });
    }
}
