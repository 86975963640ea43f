//! How products and attention are divided among the workgroups of published GPUs. The listing is golden: grids follow
//! from the problem and the table of GPUs alone.
//!
//! `UPDATE_GOLDEN=1 cargo test --release --test without_adapter grids::` writes it again.

use crate::configs::assert_golden;
use crate::configuration::plan as plan_of;
use gristmill::element::Element::{self, Bf16, F16, F32, Int8, Nf4, U32};
use gristmill::kernels::{Capabilities, PublishedGpu, Tier, Units};
use gristmill::ops::attention::{Attention, AttentionTensors, attention, attention_backward};
use gristmill::ops::grouped_matmul::{
    grouped_matmul, grouped_matmul_backward, grouped_matmul_backward_weight,
};
use gristmill::ops::heads::HeadLayout;
use gristmill::ops::matmul::Layout::{Nn, Nt, Tn};
use gristmill::ops::matmul::{Epilogue, Plan, Problem, plan};
use gristmill::ops::work_list::WorkList;
use gristmill::record::{Dispatch, Recorder};
use gristmill::train::recordings::Recordings;
use std::collections::HashSet;
use std::path::Path;

/// Desktop cards of three vendors, a server's, a laptop's, a handheld's, and one that is in no table.
const GPUS: [&str; 7] =
    ["RX 7900 XTX", "RTX 4090", "H100 80GB HBM3", "Apple M3 Max", "Arc A770", "Custom GPU 0405", "Voodoo 2"];

/// Only products of f16 or bf16 by factors of the same type or by quantised weights are for matrices, and only on their
/// tier.
#[test]
fn matrices_multiply_f16_bf16_and_quantised_weights() {
    let problem = Problem { layout: Nt, m: 4096, n: 2304, k: 768 };
    let file = |element, capabilities| plan(problem, element, capabilities).kernel.file;
    let (portable, matrix) = (Capabilities::portable(), Capabilities::matrix());
    for element in [F16, Bf16] {
        assert_eq!(file(element, matrix), "matmul/matrix");
        assert_eq!(file(element, matrix.with_tier(Tier::Portable)), "matmul/portable");
        for weights in [Nf4, Int8] {
            assert_eq!(matrix.for_factors([element, weights]), matrix);
            assert_eq!(matrix.for_factors([F32, weights]), matrix.with_tier(Tier::Portable));
        }
        assert_eq!(matrix.for_factors([element, F32]), matrix.with_tier(Tier::Portable));
    }
    assert_eq!(plan(problem, F32, matrix), plan(problem, F32, portable));
}

#[test]
fn published_gpus_have_their_grids() {
    // GPT-2 with 4,096 tokens, and its head with 1,024: forward, gradients of inputs, and those of weights.
    let problems = [
        (Nt, 4096, 2304, 768),
        (Nt, 4096, 768, 3072),
        (Nn, 4096, 768, 2304),
        (Nn, 1024, 768, 50304),
        (Tn, 2304, 768, 4096),
        (Tn, 768, 768, 4096),
        (Tn, 3072, 768, 4096),
        (Tn, 50304, 768, 1024),
    ];
    let mut listing = String::new();
    for adapter in GPUS {
        let capabilities = Capabilities::portable().with_units(Units::of(adapter));
        listing += &format!("{adapter}, {} units\n", capabilities.units.count);
        for (layout, m, n, k) in problems {
            let plan = plan(Problem { layout, m, n, k }, F32, capabilities);
            listing += &format!("{layout:?} {m}x{n}x{k}: {:?}, parts of {}\n", plan.grid, plan.part_k);
        }
        let gpt_2 = attention_of([12, 12], 4, 1024, F32, capabilities);
        let llama = attention_of([32, 4], 1, 2048, F32, capabilities);
        let products = products_of_experts(capabilities);
        for launch in gpt_2.into_iter().chain(llama).chain(products) {
            let width = launch.kernel.constants().iter().find(|(name, _)| *name == "WIDTH");
            let width = width.map_or(String::new(), |(_, lanes)| format!(" {lanes} lanes wide"));
            listing += &format!("{}{width}: {:?}\n", launch.kernel.entry, launch.grid);
        }
    }
    for gpu in GPUS.into_iter().filter_map(PublishedGpu::named) {
        let capabilities = gpu.capabilities(true);
        listing += &format!("{} in f16, {capabilities}\n", gpu.model);
        for (layout, m, n, k) in problems.into_iter().chain([(Nt, 2, 2304, 768), (Nn, 5, 7, 9)]) {
            let plan = plan(Problem { layout, m, n, k }, F16, capabilities);
            let Plan { kernel, grid, part_k } = plan;
            listing += &format!("{layout:?} {m}x{n}x{k}: {}, {grid:?}, parts of {part_k}\n", kernel.file);
        }
        for Dispatch { kernel, grid, .. } in attention_of([12, 12], 4, 1024, F16, capabilities) {
            listing += &format!("{}: {}, {grid:?}\n", kernel.entry, kernel.file);
        }
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/grids.txt");
    assert_golden(&golden, &listing);
}

/// Forward and backward over `batch` sequences, of so many heads of queries and of keys.
fn attention_of(
    [heads, kv_heads]: [u32; 2],
    batch: u32,
    tokens: u32,
    element: Element,
    capabilities: Capabilities,
) -> Vec<Dispatch> {
    let layout = HeadLayout { heads, kv_heads, head_dim: 64, value_dim: 64 };
    let shape = Attention {
        layout,
        tokens,
        is_causal: true,
        scale: 0.125,
        soft_cap: None,
        window: None,
        has_alibi: false,
        head_range: None,
        dropout: None,
    };
    let mut rec = Recorder::new("attention", capabilities);
    let mut tensor = |cols| rec.tensor("x", batch * tokens, cols, element);
    let [qkv, dqkv] = [layout.cols(); 2].map(&mut tensor);
    let [out, dout] = [layout.out_cols(); 2].map(&mut tensor);
    let lse = rec.tensor("lse", batch * tokens, layout.heads, F32);
    let tensors = AttentionTensors::new(qkv, out, lse);
    attention(&mut rec, &tensors, &shape);
    attention_backward(&mut rec, &tensors, dout, dqkv, &shape);
    rec.finish().dispatches
}

/// Forward and backward of 8 experts of 4096 x 768, of 8,192 rows.
fn products_of_experts(capabilities: Capabilities) -> Vec<Dispatch> {
    const EXPERTS: u32 = 8;
    let mut rec = Recorder::new("experts", capabilities);
    let offsets = rec.tensor("offsets", 1, EXPERTS + 1, U32);
    let [x, dx, y] = [768, 768, 4096].map(|cols| rec.tensor("x", 8192, cols, F32));
    let stack = [rec.tensor("stack", EXPERTS * 4096, 768, F32)];
    let work = WorkList::new(&mut rec, offsets, 8192);
    grouped_matmul(&mut rec, x, &stack, &work, y, Epilogue::default());
    grouped_matmul_backward(&mut rec, y, &stack, &work, dx, Epilogue::default());
    grouped_matmul_backward_weight(&mut rec, y, x, &work, &stack);
    rec.finish().dispatches
}

/// A block that is recomputed multiplies again what it multiplies again in f16, and the products find what was
/// measured.
#[test]
fn recomputation_repeats_no_measurement() {
    let products = |element: &str, file: &str| {
        let overrides = [
            "--recompute_config.recompute=True",
            "--model.model_config.pet_config={pet_type: lora, lora_rank: 4, random_base: True, target_modules: '.*'}",
            &format!("--model.model_config.compute_dtype={element}"),
        ];
        let plan = plan_of(SMALL, &overrides).unwrap_or_else(|e| panic!("{e}"));
        let recordings = Recordings::new(&plan, Capabilities::matrix(), 10).expect("recordings");
        let dispatches = &recordings.micro_step().dispatches;
        let mut measured = HashSet::new();
        for Dispatch { kernel, bindings, path, .. } in dispatches {
            for binding in bindings {
                let is_read = ["a_largest", "b_largest"].contains(&binding.variable);
                assert!(
                    !is_read || measured.contains(&binding.buffer),
                    "{path}: nothing is measured before {kernel}"
                );
                if binding.variable == "largest" {
                    measured.insert(binding.buffer);
                }
            }
        }
        let again = dispatches.iter().filter(|dispatch| dispatch.path.contains("recomputed"));
        [
            dispatches.iter().filter(|of| of.kernel.file == file).count(),
            again.filter(|of| of.kernel.file == file).count(),
        ]
    };
    assert_eq!(products("bfloat16", "matmul/matrix"), products("float16", "matmul/matrix"));
    let [measured, again] = products("bfloat16", "largest");
    assert!(measured > 0 && again == 0, "{measured} measurements, {again} of them repeated");
}

const SMALL: &str = "
model:
  model_config: { vocab_size: 300, hidden_size: 64, num_layers: 2, num_heads: 4, intermediate_size: 96, seq_length: 64 }
train_dataset: { data_loader: { type: CargoRegistryDataLoader } }
lr_schedule: { learning_rate: 1.0e-3 }
";
