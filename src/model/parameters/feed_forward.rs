//! The parameters of what follows attention in a layer.

/// A dense network, or experts.
#[derive(Clone, Debug, PartialEq)]
pub enum FeedForward<P> {
    /// Every token goes through all of it.
    Dense(DenseFeedForward<P>),
    /// Each token goes through a few experts.
    Mixture(Mixture<P>),
}

/// A feed-forward network.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseFeedForward<P> {
    /// (2·stride of F, D): gate, then up, each padded with zero rows to a multiple of 4. Without a gate up alone, (F, D).
    pub w_gate_up: P,
    /// As many as `w_gate_up` has rows.
    pub b_gate_up: Option<P>,
    /// (D, F)
    pub w_down: P,
    /// (D)
    pub b_down: Option<P>,
}

/// E experts of width F, and what chooses among them. The bias of the choice is none of its parameters: no gradient
/// reaches it.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixture<P> {
    /// (E, D)
    pub router: P,
    /// (E·2·stride of F, D): gate and up of each expert in turn, each half padded with zero rows to a multiple of 4.
    pub w_gate_up: P,
    /// (E·D, F): expert by expert.
    pub w_down: P,
    /// The expert that every token visits.
    pub shared: Option<Shared<P>>,
}

/// The expert that every token visits, S wide.
#[derive(Clone, Debug, PartialEq)]
pub struct Shared<P> {
    /// (2·stride of S, D), as in [`DenseFeedForward`].
    pub w_gate_up: P,
    /// (D, S)
    pub w_down: P,
    /// (1, D): the logit of what its output is multiplied with.
    pub gate: Option<P>,
}

impl<P> FeedForward<P> {
    /// The dense network, if it is one.
    pub fn dense(&self) -> Option<&DenseFeedForward<P>> {
        match self {
            Self::Dense(dense) => Some(dense),
            Self::Mixture(_) => None,
        }
    }

    /// The experts, if there are such.
    pub fn mixture(&self) -> Option<&Mixture<P>> {
        match self {
            Self::Dense(_) => None,
            Self::Mixture(mixture) => Some(mixture),
        }
    }

    pub(super) fn try_map<Q, E>(self, f: &mut impl FnMut(P) -> Result<Q, E>) -> Result<FeedForward<Q>, E> {
        Ok(match self {
            Self::Dense(dense) => FeedForward::Dense(DenseFeedForward {
                w_gate_up: f(dense.w_gate_up)?,
                b_gate_up: dense.b_gate_up.map(&mut *f).transpose()?,
                w_down: f(dense.w_down)?,
                b_down: dense.b_down.map(&mut *f).transpose()?,
            }),
            Self::Mixture(mixture) => FeedForward::Mixture(Mixture {
                router: f(mixture.router)?,
                w_gate_up: f(mixture.w_gate_up)?,
                w_down: f(mixture.w_down)?,
                shared: mixture.shared.map(|shared| shared.try_map(f)).transpose()?,
            }),
        })
    }

    pub(super) fn visit<'a>(&'a self, f: &mut impl FnMut(&'a P)) {
        match self {
            Self::Dense(dense) => {
                f(&dense.w_gate_up);
                dense.b_gate_up.iter().for_each(&mut *f);
                f(&dense.w_down);
                dense.b_down.iter().for_each(f);
            }
            Self::Mixture(mixture) => {
                [&mixture.router, &mixture.w_gate_up, &mixture.w_down].into_iter().for_each(&mut *f);
                if let Some(shared) = &mixture.shared {
                    f(&shared.w_gate_up);
                    f(&shared.w_down);
                    shared.gate.iter().for_each(f);
                }
            }
        }
    }
}

impl<P> Shared<P> {
    fn try_map<Q, E>(self, f: &mut impl FnMut(P) -> Result<Q, E>) -> Result<Shared<Q>, E> {
        Ok(Shared {
            w_gate_up: f(self.w_gate_up)?,
            w_down: f(self.w_down)?,
            gate: self.gate.map(&mut *f).transpose()?,
        })
    }
}
