//! No kernel for GPUs may keep registers in memory: AMD's compiler reports what it spills, without an AMD GPU.

#[path = "../driver/mod.rs"]
mod driver;

use crate::shaders::{conversions, portable_variants};
use driver::{Driver, FAMILIES, FAMILY, environment, is_installed};
use gristmill::element::Element::{self, Bf16, F16, F32, U32};
use gristmill::kernels::{Capabilities, Condition, Kernel};
use gristmill::ops::attention::{
    Attention, AttentionTensors, DocumentBounds, Sinks, attention, attention_backward,
};
use gristmill::ops::decode::{Decode, DecodeTensors, decode};
use gristmill::ops::dropout::{Dropout, DropoutState};
use gristmill::ops::heads::HeadLayout;
use gristmill::ops::matmul::{Layout, Problem, plan};
use gristmill::record::{Recorder, State};
use std::collections::BTreeMap;
use std::process::Command;

/// The environment variable with the number of a process among those that share a family's kernels.
const SHARE: &str = "GRISTMILL_REGISTERS_SHARE";

/// Tokens of a sequence.
const TOKENS: u32 = 256;

/// Sequences that are decoded together.
const SEQUENCES: u32 = 16;

/// Attention at the head sizes of real models, plain and with every mask. The backward pass leaves parts of the
/// queries' gradient, or takes two kernels, where no binding holds enough of these.
fn attention_kernels([head_dim, value_dim]: [u32; 2], element: Element, has_parts: bool) -> Vec<Kernel> {
    let layout = HeadLayout { heads: 2, kv_heads: 1, head_dim, value_dim };
    let qkv_bytes = F32.bytes_of(u64::from(TOKENS * layout.cols()));
    let capabilities = Capabilities::portable();
    let capabilities = if has_parts { capabilities } else { capabilities.with_binding_bytes(qkv_bytes) };
    let mut rec = Recorder::new("attention", capabilities);
    let mut tensor = |cols, element| rec.tensor("x", TOKENS, cols, element);
    let [qkv, dqkv] = [0; 2].map(|_| tensor(layout.cols(), element));
    let [out, dout] = [0; 2].map(|_| tensor(layout.out_cols(), element));
    let lse = tensor(layout.heads, F32);
    let [starts, ends] = [0; 2].map(|_| rec.tensor("bounds", 1, TOKENS, U32));
    let state = rec.tensor("dropout state", 1, DropoutState::WORDS, U32);
    let dropout = Dropout { probability: 0.1, seed: 0, site: 0, state, part: None };
    let everything = (Some(DocumentBounds { starts, ends }), Some(192), Some(dropout));
    let masks = [(None, None, None), everything];
    let sinks = Sinks { logits: rec.tensor("sinks", 1, layout.heads, element), gradient: None };
    let scores =
        [(false, None, None), (true, None, None), (false, Some(50.0), None), (false, None, Some(sinks))];
    for ((documents, window, dropout), (has_alibi, soft_cap, sinks)) in
        masks.into_iter().flat_map(|masks| scores.map(|score| (masks, score)))
    {
        let shape = Attention {
            layout,
            tokens: TOKENS,
            is_causal: true,
            scale: 1.0,
            soft_cap,
            window,
            has_alibi,
            head_range: None,
            dropout,
        };
        let tensors = AttentionTensors { documents, sinks, ..AttentionTensors::new(qkv, out, lse) };
        attention(&mut rec, &tensors, &shape);
        attention_backward(&mut rec, &tensors, dout, dqkv, &shape);
    }
    let kernels: Vec<Kernel> = rec.finish().dispatches.into_iter().map(|dispatch| dispatch.kernel).collect();
    let leaves_parts = kernels.iter().any(|kernel| kernel.conditions().any(|of| of == Condition::Split));
    assert_eq!(leaves_parts, has_parts, "heads of {head_dim}");
    kernels
}

fn decode_kernels([head_dim, value_dim]: [u32; 2], element: Element) -> Vec<Kernel> {
    let layout = HeadLayout { heads: 2, kv_heads: 1, head_dim, value_dim };
    let mut rec = Recorder::new("decode", Capabilities::portable());
    let [qkv, out] = [layout.cols(), layout.out_cols()].map(|cols| rec.tensor("x", SEQUENCES, cols, element));
    // The longer caches are divided.
    let sinks = Sinks { logits: rec.tensor("sinks", 1, layout.heads, element), gradient: None };
    let scores =
        [(false, None, None), (true, None, None), (false, Some(50.0), None), (false, None, Some(sinks))];
    for (tokens, (has_alibi, soft_cap, sinks)) in
        [8, 512].into_iter().flat_map(|tokens| scores.map(|score| (tokens, score)))
    {
        let shape = Decode { layout, tokens, scale: 1.0, soft_cap, window: None, has_alibi };
        let (positions, cache) = (
            rec.tensor("positions", 1, SEQUENCES, U32),
            rec.tensor("x", SEQUENCES * tokens, shape.cache_cols(), element),
        );
        decode(&mut rec, &DecodeTensors { qkv, positions, cache, rope: None, sinks, out }, &shape);
    }
    rec.finish().dispatches.into_iter().map(|dispatch| dispatch.kernel).collect()
}

/// The products of large models, which have the larger tiles; the models of `portable_variants` are small.
fn large_products() -> impl Iterator<Item = Kernel> {
    let tiles = [(2048, 2048, [2, 2]), (64, 32768, [1, 2]), (32768, 64, [2, 1])];
    let layouts = [Layout::Nt, Layout::Nn, Layout::Tn];
    let shapes = tiles.into_iter().flat_map(move |tile| layouts.map(|layout| (tile, layout)));
    shapes.flat_map(|((m, n, [rows4, columns4]), layout)| {
        [F32, F16, Bf16].map(|element| {
            let problem = Problem { layout, m, n, k: 2048 };
            let kernel = plan(problem, element, Capabilities::portable()).kernel;
            let has = |constant| kernel.constants().contains(&constant);
            assert!(has(("TM4", rows4)) && has(("TN4", columns4)), "{kernel} has another tile");
            kernel
        })
    })
}

fn kernels() -> BTreeMap<String, Kernel> {
    // 192 and 128 are DeepSeek's latent attention.
    let sizes = [
        ([64; 2], F32, false),
        ([64; 2], F16, false),
        ([32; 2], F32, true),
        ([64; 2], F32, true),
        ([64; 2], Bf16, true),
        ([128; 2], F32, false),
        ([128; 2], Bf16, false),
        ([192, 128], F32, false),
        ([192, 128], Bf16, false),
        ([256; 2], F32, false),
        ([256; 2], Bf16, false),
        ([512; 2], F32, false),
    ];
    let kernels = |(dims, element, has_parts)| {
        [attention_kernels(dims, element, has_parts), decode_kernels(dims, element)].concat()
    };
    let attention = sizes.into_iter().flat_map(kernels).flat_map(conversions);
    let products = large_products().flat_map(conversions);
    let all = portable_variants().into_iter().chain(attention).chain(products);
    all.map(|kernel| (kernel.to_string(), kernel)).collect()
}

/// With `GRISTMILL_LONG` every kernel on each family, which takes minutes. Else every second on the newest, and every
/// eighth on the others.
#[test]
fn no_kernel_spills_on_amd() {
    if !is_installed() {
        assert!(std::env::var_os("CI").is_none(), "CI needs Mesa's driver for AMD ({})", driver::DRIVER);
        println!("SKIPPED: Mesa's driver for AMD is not installed ({})", driver::DRIVER);
        return;
    }
    let program = std::env::current_exe().expect("this program");
    // The newest has most kernels, and two processes.
    let shares = FAMILIES.into_iter().zip(std::iter::repeat(0)).chain([(FAMILIES[0], 1)]);
    let children = shares.map(|(family, share)| {
        let mut child = Command::new(&program);
        child.args(["--exact", "registers::compile_for_the_family_of_the_environment", "--nocapture"]);
        child.envs(environment(family)).env(SHARE, share.to_string());
        (family, child.stdout(std::process::Stdio::piped()).spawn().expect("a child"))
    });
    for (family, child) in children.collect::<Vec<_>>() {
        let output = child.wait_with_output().expect("its output");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{family}:\n{text}");
        assert!(text.contains("1 passed"), "{family} ran no test:\n{text}");
    }
}

#[test]
fn compile_for_the_family_of_the_environment() {
    let Some(family) = std::env::var_os(FAMILY) else {
        return; // no_kernel_spills_on_amd runs this test again, in the environment of each family
    };
    let share: usize = std::env::var(SHARE).expect("a share").parse().expect("a number");
    let (step, shares) = match (std::env::var_os("GRISTMILL_LONG"), family == FAMILIES[0]) {
        (Some(_), is_newest) => (1, 1 + usize::from(is_newest)),
        (None, true) => (2, 2),
        (None, false) => (8, 1),
    };
    let compiler = Driver::open();
    let mut spilling = Vec::new();
    for kernel in kernels().values().step_by(step).skip(share).step_by(shares) {
        let statistics = compiler.statistics(kernel);
        let count = |name: &str| {
            statistics.get(name).copied().unwrap_or_else(|| panic!("no {name} in {statistics:?}"))
        };
        if count("Spilled VGPRs") + count("Scratch size") > 0 {
            spilling.push(format!("{kernel}: {statistics:?}"));
        }
    }
    let (driver, count) = (compiler.driver(), spilling.len());
    assert!(spilling.is_empty(), "{driver}: {count} kernels spill:\n{}", spilling.join("\n"));
}
