//! Causal flash attention with grouped queries on random data, compared with the f64 reference.
//! `cargo run --release --example flash_attention`

use gristmill::device::{Gpu, GpuOptions};
use gristmill::ops::attention::{Attention, attention};
use gristmill::ops::heads::HeadLayout;
use gristmill::{random::Philox, reference};

const TOKENS: u32 = 200;
const LAYOUT: HeadLayout = HeadLayout { heads: 4, kv_heads: 2, head_dim: 64, value_dim: 64 };
const SHAPE: Attention =
    Attention { layout: LAYOUT, tokens: TOKENS, is_causal: true, scale: 0.125, window: None, dropout: None };

fn main() -> gristmill::error::Result<()> {
    let random = Philox::new(1, 0);
    let qkv: Vec<f32> = (0..TOKENS * LAYOUT.cols()).map(|i| random.normal(i.into()) as f32).collect();
    let out = pollster::block_on(async {
        let gpu = Gpu::request(&GpuOptions::default()).await?;
        gpu.run(|job| {
            let qkv = job.input(&qkv, TOKENS, LAYOUT.cols());
            let (out, lse) = (job.output(TOKENS, LAYOUT.out_cols()), job.output(TOKENS, LAYOUT.heads));
            attention(&mut job.rec, qkv, out, lse, None, &SHAPE);
            out
        })
        .await
    })?;
    let errors = out.iter().zip(expected(&qkv)).map(|(out, want)| (f64::from(*out) - want).abs());
    println!("attention: the largest error is {:.1e}", errors.fold(0.0, f64::max));
    Ok(())
}

/// The same in f64.
fn expected(qkv: &[f32]) -> Vec<f64> {
    let part = |first: u32, count: u32| -> Vec<f64> {
        let rows = qkv.chunks(LAYOUT.cols() as usize);
        rows.flat_map(|row| row[first as usize..][..count as usize].iter().map(|&x| x.into())).collect()
    };
    let (q, k) = (part(0, LAYOUT.q_cols()), part(LAYOUT.k_start(), LAYOUT.k_cols()));
    let shape = reference::attention::Attention {
        tokens: TOKENS as usize,
        heads: LAYOUT.heads as usize,
        kv_heads: LAYOUT.kv_heads as usize,
        head_dim: LAYOUT.head_dim as usize,
        value_dim: LAYOUT.value_dim as usize,
        causal: true,
        scale: SHAPE.scale.into(),
        window: None,
        starts: None,
        factors: None,
    };
    reference::attention::attention(&q, &k, &part(LAYOUT.v_start(), LAYOUT.v_cols()), &shape).0
}
