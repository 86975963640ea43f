//! The parameters of what predicts tokens further ahead.

use super::Block;

/// A block after the last layer that predicts tokens further ahead, and what stands around it. Embedding and head are the
/// model's.
#[derive(Clone, Debug, PartialEq)]
pub struct MultiTokenBlock<P> {
    /// (D): the norm of the embedded tokens.
    pub token_norm: P,
    /// (D): the norm of the hidden states of the last layer, or of the block before.
    pub state_norm: P,
    /// (D, 2·D): makes the input of the block of both, side by side, the tokens' half first.
    pub w_fuse: P,
    /// An ordinary block.
    pub block: Block<P>,
    /// (D): the norm before the head.
    pub norm: P,
}

impl<P> MultiTokenBlock<P> {
    pub(super) fn try_map<Q, E>(
        self,
        f: &mut impl FnMut(P) -> Result<Q, E>,
    ) -> Result<MultiTokenBlock<Q>, E> {
        Ok(MultiTokenBlock {
            token_norm: f(self.token_norm)?,
            state_norm: f(self.state_norm)?,
            w_fuse: f(self.w_fuse)?,
            block: self.block.try_map(f)?,
            norm: f(self.norm)?,
        })
    }

    pub(super) fn visit<'a>(&'a self, f: &mut impl FnMut(&'a P)) {
        [&self.token_norm, &self.state_norm, &self.w_fuse].into_iter().for_each(&mut *f);
        self.block.visit(f);
        f(&self.norm);
    }
}
