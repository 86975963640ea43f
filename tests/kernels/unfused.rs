//! The unfused compositions that benches compare with give the results of the fused kernels.

use crate::lab::{allowed, check};
use crate::packed::{pack_gate_up, split_gate_up, split_qkv};
use gristmill::element::Element::{Bf16, F32};
use gristmill::ops::attention::Attention;
use gristmill::ops::heads::HeadLayout;
use gristmill::ops::swiglu::gate_up_cols;
use gristmill::ops::unfused;
use gristmill::reference;

#[test]
fn swiglu_in_two_passes() {
    for element in [F32, Bf16] {
        for (n, f) in [(1, 1), (3, 31), (7, 257)] {
            check(&format!("swiglu in two passes {n}x{f} {element:?}"), |case| {
                let [gate, up] = [0; 2].map(|_| (0..n * f).map(|_| case.normal()).collect::<Vec<f64>>());
                let packed = case.input_of(&pack_gate_up(&gate, &up, f), n, gate_up_cols(f), element);
                let [gate, up] = split_gate_up(&packed.values, f);
                let want = reference::swiglu::swiglu(&gate, &up);
                let out = case.output(n, f, element);
                unfused::swiglu(&mut case.rec, packed.tensor, out);
                // Rounded to storage twice: after the activation and at the end.
                case.expect("out", out, want, 2.0 * allowed(element, 2));
            });
        }
    }
}

#[test]
fn rope_in_four_passes() {
    for (tokens, sequences, heads, head_dim) in [(5, 1, 1, 8), (3, 4, 6, 32)] {
        check(&format!("rope in four passes {tokens} {sequences} {heads}x{head_dim}"), |case| {
            let x = case.input(sequences * tokens, heads * head_dim, F32);
            let angle = |p: u32, i: u32| {
                p as f64 * 10000f64.powf(-2.0 * (i % (head_dim / 2)) as f64 / head_dim as f64)
            };
            let table = |f: fn(f64) -> f64| -> Vec<f64> {
                (0..tokens).flat_map(|p| (0..head_dim).map(move |i| f(angle(p, i)))).collect()
            };
            let (cos, sin) = (table(f64::cos), table(f64::sin));
            let (cos, sin) =
                (case.input_of(&cos, tokens, head_dim, F32), case.input_of(&sin, tokens, head_dim, F32));
            let out = case.output(sequences * tokens, heads * head_dim, F32);
            unfused::rope(&mut case.rec, x.tensor, cos.tensor, sin.tensor, head_dim, out);
            let rope = reference::rope::Rope {
                head_dim: head_dim as usize,
                rotary_dim: head_dim as usize,
                theta: 10000.0,
                interleaved: false,
                scaling: reference::rope_scaling::Scaling::None,
            };
            let positions: Vec<u32> = (0..sequences * tokens).map(|i| i % tokens).collect();
            let mut want = x.values;
            reference::rope::rope(&mut want, &positions, heads as usize, &rope);
            case.expect("out", out, want, allowed(F32, 2));
        });
    }
}

#[test]
fn attention_with_a_matrix_of_scores() {
    for (tokens, batch, heads, kv_heads, head_dim) in [(1, 1, 1, 1, 4), (33, 2, 4, 2, 12)] {
        check(&format!("attention with scores {tokens} {batch} {heads}/{kv_heads}x{head_dim}"), |case| {
            let layout = HeadLayout { heads, kv_heads, head_dim, value_dim: head_dim };
            let shape = Attention {
                layout,
                tokens,
                is_causal: true,
                scale: 0.3,
                window: None,
                has_alibi: false,
                dropout: None,
            };
            let qkv = case.input(batch * tokens, layout.cols(), F32);
            let [q, k, v] = split_qkv(&qkv.values, &layout);
            let sizes = reference::attention::Attention {
                tokens: tokens as usize,
                heads: heads as usize,
                kv_heads: kv_heads as usize,
                head_dim: head_dim as usize,
                value_dim: head_dim as usize,
                causal: true,
                scale: 0.3f32 as f64,
                window: None,
                starts: None,
                factors: None,
                alibi: false,
            };
            let (want, _) = reference::attention::attention(&q, &k, &v, &sizes);
            let out = case.output(batch * tokens, layout.out_cols(), F32);
            unfused::attention(&mut case.rec, qkv.tensor, out, &shape);
            case.expect("out", out, want, allowed(F32, head_dim + tokens));
        });
    }
}
