//! The programs of a run, each under its name.

use crate::infer::GeneratePrograms;

/// A value for each program of a run, such as its recording or its place among the prepared ones. A run may lack some
/// programs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Programs<T> {
    /// Forward, loss and backward of a micro-batch: gradients are added to their arena. One program, or in a pipeline
    /// one for each chunk of layers and each of its micro-batches under way.
    pub micro_steps: Vec<Vec<T>>,
    /// Norm, clipping, step state and the optimizer.
    pub update: T,
    /// Forward and loss of a micro-batch, for each chunk.
    pub evals: Vec<T>,
    /// Generation of the sample at the end.
    pub sample: Option<GeneratePrograms<T>>,
    /// The sum of an evaluation's losses over the ranks.
    pub sum_evaluation: Option<T>,
    /// The log-probabilities of pairs before the first step.
    pub references: Option<T>,
    /// Copies of the weights in the storage type of layers.
    pub copy: Option<T>,
    /// The norms from which magnitudes of adapters start.
    pub magnitudes: Option<T>,
    /// Norms of gradients.
    pub gradient_norms: Option<T>,
    /// Norms of moments and weights.
    pub state_norms: Option<T>,
    /// Exchanges of the scores and losses that ranks watch.
    pub shared: Option<T>,
    /// Fingerprints of the weights, which ranks compare.
    pub fingerprints: Option<T>,
}

impl<T> Programs<T> {
    /// The same programs, with each value replaced by the result of `of`, in the order in which they are prepared.
    pub fn map<U>(self, mut of: impl FnMut(T) -> U) -> Programs<U> {
        Programs {
            micro_steps: (self.micro_steps.into_iter())
                .map(|slots| slots.into_iter().map(&mut of).collect())
                .collect(),
            update: of(self.update),
            evals: self.evals.into_iter().map(&mut of).collect(),
            sample: self.sample.map(|sample| sample.map(&mut of)),
            sum_evaluation: self.sum_evaluation.map(&mut of),
            references: self.references.map(&mut of),
            copy: self.copy.map(&mut of),
            magnitudes: self.magnitudes.map(&mut of),
            gradient_norms: self.gradient_norms.map(&mut of),
            state_norms: self.state_norms.map(&mut of),
            shared: self.shared.map(&mut of),
            fingerprints: self.fingerprints.map(&mut of),
        }
    }

    /// All values, in the order in which programs are prepared.
    pub fn all(self) -> Vec<T> {
        let mut all = Vec::new();
        self.map(|one| all.push(one));
        all
    }

    /// The place of each in [`all`](Self::all).
    pub fn places(self) -> Programs<usize> {
        let mut count = 0;
        self.map(|_| {
            count += 1;
            count - 1
        })
    }
}
