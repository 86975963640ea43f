//! Causal flash attention with grouped queries on random data: upload, record, read back.
//! `cargo run --release --example flash_attention`

use gristmill::ops::attention::{Attention, AttentionTensors, attention};
use gristmill::ops::heads::HeadLayout;
use gristmill::prelude::*;
use gristmill::random::Philox;

fn main() -> gristmill::error::Result<()> {
    let (tokens, layout) = (1024, HeadLayout { heads: 4, kv_heads: 2, head_dim: 64, value_dim: 64 });
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
    let random = Philox::new(1, 0);
    let qkv: Vec<f32> = (0..tokens * layout.cols()).map(|i| random.normal(i.into()) as f32).collect();

    let gpu = pollster::block_on(Gpu::request(&GpuOptions::default()))?;
    let out = pollster::block_on(gpu.run(|job| {
        let qkv = job.input(&qkv, tokens, layout.cols()); // a row for each token: q, k and v of its heads
        let (out, lse) = (job.output(tokens, layout.out_cols()), job.output(tokens, layout.heads));
        attention(&mut job.rec, &AttentionTensors::new(qkv, out, lse), &shape);
        out
    }))?;

    // The first token sees nothing but itself, so its output is its v.
    let v = &qkv[layout.v_start() as usize..];
    println!("{}: attention of token 0 {:.4?}, its v {:.4?}", gpu.report().name, &out[..4], &v[..4]);
    Ok(())
}
