//! The kernels of tier `portable` that take most of a step, for what a compiler makes of them.

use gristmill::element::Element::{F32, U32};
use gristmill::kernels::{Capabilities, Kernel};
use gristmill::ops::attention::{Attention, AttentionTensors, attention, attention_backward};
use gristmill::ops::decode::{Decode, DecodeTensors, decode};
use gristmill::ops::gated_delta_rule::{
    DeltaInputs, GatedDeltaRule, gate_cols, gated_delta_rule, gated_delta_rule_backward,
    gated_delta_rule_step,
};
use gristmill::ops::grouped_matmul::{
    grouped_matmul, grouped_matmul_backward, grouped_matmul_backward_weight,
};
use gristmill::ops::heads::HeadLayout;
use gristmill::ops::matmul::{Epilogue, Layout, Problem, plan};
use gristmill::ops::work_list::WorkList;
use gristmill::record::{Dispatch, Recorder};

/// Tokens, rows, columns and sums large enough for the large tiles.
const LARGE: u32 = 2048;

/// The kernels, with a name for each.
pub fn main_kernels() -> Vec<(String, Kernel)> {
    [attentions(64), attentions(128), delta_rule(), products(), grouped_products()].concat()
}

/// Causal attention, its backward, and decoding.
fn attentions(head_dim: u32) -> Vec<(String, Kernel)> {
    let mut rec = Recorder::new("attention", Capabilities::portable());
    let layout = HeadLayout { heads: 8, kv_heads: 2, head_dim, value_dim: head_dim };
    let mut tensor = |cols| rec.tensor("x", LARGE, cols, F32);
    let [qkv, dqkv] = [0; 2].map(|_| tensor(layout.cols()));
    let [out, dout] = [0; 2].map(|_| tensor(layout.out_cols()));
    let lse = tensor(layout.heads);
    let shape = Attention {
        layout,
        tokens: LARGE,
        is_causal: true,
        scale: 0.125,
        soft_cap: None,
        window: None,
        has_alibi: false,
        head_range: None,
        dropout: None,
    };
    attention(&mut rec, &AttentionTensors::new(qkv, out, lse), &shape);
    attention_backward(&mut rec, &AttentionTensors::new(qkv, out, lse), dout, dqkv, &shape);
    let shape = Decode { layout, tokens: 1, scale: 0.125, soft_cap: None, window: None, has_alibi: false };
    let cache = rec.tensor("cache", LARGE, shape.cache_cols(), F32);
    let positions = rec.tensor("positions", 1, LARGE, U32);
    decode(&mut rec, &DecodeTensors { qkv, positions, cache, rope: None, sinks: None, out }, &shape);
    let kernels = rec.finish().dispatches.into_iter().map(|dispatch| dispatch.kernel);
    kernels.map(|kernel| (format!("{} D={head_dim}", kernel.entry), kernel)).collect()
}

/// The gated delta rule at the sizes of Qwen3.5, its backward, and a step of decoding.
fn delta_rule() -> Vec<(String, Kernel)> {
    const HEADS: u32 = 4;
    const HEAD: u32 = 128;
    let mut rec = Recorder::new("gated delta rule", Capabilities::portable());
    let mut inputs = |rows| {
        let [qk, v] = [HEADS * HEAD; 2].map(|cols| rec.tensor("x", rows, cols, F32));
        DeltaInputs { qk, v, gates: rec.tensor("gates", rows, gate_cols(HEADS), F32) }
    };
    let [given, gradients, one] = [LARGE, LARGE, 1].map(&mut inputs);
    let [out, newest] = [LARGE, 1].map(|rows| rec.tensor("out", rows, HEADS * HEAD, F32));
    let state = rec.tensor("state", HEADS * HEAD, HEAD, F32);
    let shape = GatedDeltaRule {
        tokens: LARGE,
        heads: HEADS,
        key_heads: HEADS / 2,
        key_dim: HEAD,
        value_dim: HEAD,
        scale: 0.09,
        documents: None,
    };
    gated_delta_rule(&mut rec, &given, out, None, &shape);
    gated_delta_rule_backward(&mut rec, &given, out, &gradients, &shape);
    gated_delta_rule_step(&mut rec, &one, state, newest, &shape);
    let mut kernels: Vec<(String, Kernel)> = Vec::new();
    for Dispatch { kernel, .. } in rec.finish().dispatches {
        if kernels.iter().all(|(_, known)| *known != kernel) {
            kernels.push((kernel.entry.to_string(), kernel));
        }
    }
    kernels
}

/// The three products, with the tile of large results and that of small ones.
fn products() -> Vec<(String, Kernel)> {
    let problems = [LARGE, 256].into_iter().flat_map(|side| {
        [Layout::Nt, Layout::Nn, Layout::Tn].map(|layout| Problem { layout, m: side, n: side, k: side })
    });
    let named = |problem: Problem| {
        let plan = plan(problem, F32, Capabilities::portable());
        let [across, down, _] = plan.grid;
        (format!("matmul {:?} {}x{}", problem.layout, problem.m / down, problem.n / across), plan.kernel)
    };
    problems.map(named).collect()
}

/// The grouped products of experts with many rows and with few.
fn grouped_products() -> Vec<(String, Kernel)> {
    const EXPERTS: u32 = 2;
    let mut kernels = Vec::new();
    for rows in [LARGE, 256] {
        let mut rec = Recorder::new("grouped products", Capabilities::portable());
        let offsets = rec.tensor("offsets", 1, EXPERTS + 1, U32);
        let [x, dx, y] = [0; 3].map(|_| rec.tensor("x", rows, rows, F32));
        let stack = [rec.tensor("stack", EXPERTS * rows, rows, F32)];
        let work = WorkList::new(&mut rec, offsets, rows);
        grouped_matmul(&mut rec, x, &stack, &work, y, Epilogue::default());
        grouped_matmul_backward(&mut rec, y, &stack, &work, dx, Epilogue::default());
        grouped_matmul_backward_weight(&mut rec, y, x, &work, &stack);
        let products = rec.finish().dispatches.into_iter().skip(1).map(|dispatch| dispatch.kernel);
        let names = ["grouped_matmul", "grouped_matmul backward", "grouped_matmul backward weight"];
        kernels.extend(names.iter().zip(products).map(|(name, kernel)| (format!("{name} R={rows}"), kernel)));
    }
    kernels
}
