//! The heads of multi-head latent attention.

use super::{Tape, Var};
use crate::ops::latent_heads::{
    self, Angles, LatentHeads, LatentParts, latent_heads_backward_kv, latent_heads_backward_q,
    latent_heads_backward_rope,
};
use crate::record::{Recorder, Tensor};

impl Tape<'_, '_> {
    /// Packed queries, keys and values (N, layout().cols()) from their parts, rotated by `angles`. Nothing is saved:
    /// the backward only needs the angles.
    #[track_caller]
    pub fn latent_heads(&mut self, parts: LatentParts<Var>, angles: Angles, sizes: LatentHeads) -> Var {
        let LatentParts { q, kv, k_rope } = parts;
        let qkv = self.rec.tensor("y", q.tensor.rows, sizes.layout().cols(), q.tensor.element);
        let tensors = LatentParts { q: q.tensor, kv: kv.tensor, k_rope: k_rope.tensor };
        latent_heads::latent_heads(self.rec, &tensors, &angles, qkv, &sizes);
        self.result(qkv, &[q, kv, k_rope], false, move |tape, dqkv| {
            let backwards = [
                (q, latent_heads_backward_q as Backward),
                (kv, latent_heads_backward_kv),
                (k_rope, latent_heads_backward_rope),
            ];
            for (part, backward) in backwards {
                if let Some(target) = tape.target(part) {
                    backward(tape.rec, dqkv, &angles, target.tensor, target.accumulate, &sizes);
                }
            }
        })
    }
}

type Backward = fn(&mut Recorder, Tensor, &Angles, Tensor, bool, &LatentHeads);
