//! Multi-head latent attention, up to the packed heads that ordinary attention reads.
//!
//! ```text
//! h (N, D) -- wqkv --> [c_q | c | k_rope] (N, Q + K + R); without a rank of the queries [q | c | k_rope]
//! c_q -- q_norm -- w_uq --> q (N, H (P + R))
//! c -- kv_norm -- w_ukv --> kv (N, H (P + V))
//! q, kv, k_rope -- heads --> [q_nope | rot(q_rope)] [k_nope | rot(k_rope)] [v] (N, H (2 P + 2 R + V)) -- attention
//! ```
//!
//! Letters, besides those of [`gpt`](super::gpt): Q and K are the ranks of the latent vectors, P and R the widths of
//! the parts of a head that do not rotate and that rotate, V the width of a value.
//!
//! The KV cache of generation holds expanded keys and values, H (P + R + V) numbers for each token and layer, so
//! decoding uses the kernel of other models. The latent vectors would be K + R numbers, 71 times fewer at DeepSeek-V3's
//! sizes (576 instead of 40,960), at the price of products with w_ukv at each step or a separate decoding kernel.

use super::config::LatentAttention;
use super::context::ForwardContext;
use super::parameters::{Latent, LatentQueries};
use crate::ops::latent_heads::{Angles, LatentParts};
use crate::tape::{Parameter, Tape, Var};

impl Latent<Parameter> {
    /// Packed queries, keys and values (N, H·(2 P + 2 R + V)) from their latent parts `down` (N, Q + K + R). Without a
    /// rank of the queries, the first part is the queries themselves, (N, H·(P + R) + K + R).
    pub(super) fn heads<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        layer: usize,
        down: Var,
    ) -> Var {
        let config = ctx.config;
        let (Some(sizes), Some((rope, cos_sin))) = (config.latent, ctx.rope(layer)) else {
            panic!("a model with latent attention has its sizes and a table of angles")
        };
        let LatentAttention { kv_rank, rope_dim, .. } = sizes;
        let widths = [sizes.q_cols(config.num_heads), kv_rank, rope_dim].map(|width| width as u32);
        let [q, c, k_rope] = tape.split(down, widths);
        let q = match &self.queries {
            Some(LatentQueries { norm, w_up }) => {
                let h = tape.scope("q_norm", |tape| tape.rms_norm(q, norm, ctx.latent_norm())); // (N, Q)
                tape.scope("heads.w_uq", |tape| tape.linear(h, w_up, None, None)) // (N, H·(P + R))
            }
            None => q,
        };
        let h = tape.scope("kv_norm", |tape| tape.rms_norm(c, &self.kv_norm, ctx.latent_norm())); // (N, K)
        // The backward pass reads neither q nor kv, so these products are recomputed with the heads, never alone.
        let kv = tape.scope("heads.w_ukv", |tape| tape.linear(h, &self.w_ukv, None, None)); // (N, H·(P + V))
        let angles = Angles { positions: ctx.batch.positions, cos_sin };
        let (parts, sizes) =
            (LatentParts { q, kv, k_rope }, sizes.heads(config.num_heads, rope.is_interleaved));
        tape.scope("heads", |tape| tape.latent_heads(parts, angles, sizes))
    }
}
