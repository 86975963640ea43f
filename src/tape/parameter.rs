//! A parameter on the tape.

use crate::record::Tensor;

/// Weight and gradient of one parameter. A matrix over the binding limit is split into parts of whole rows.
///
/// # Examples
///
/// A parameter that trains, and the same parameter frozen. Backward passes add to the gradient: a step starts by
/// [zeroing](crate::ops::zero::zero) it.
///
/// ```
/// use gristmill::device::Job;
/// use gristmill::kernels::Capabilities;
/// use gristmill::tape::Parameter;
///
/// let mut job = Job::new("parameters", Capabilities::software());
/// let weight = vec![job.input(&[0.5; 12], 3, 4)];
/// let trained = Parameter { weight, gradient: Some(vec![job.output(3, 4)]) };
/// let frozen = Parameter { gradient: None, ..trained.clone() };
/// assert!(trained.trains() && !frozen.trains());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// The weight, part by part.
    pub weight: Vec<Tensor>,
    /// The accumulated gradient, part by part; `None` if the parameter is frozen.
    pub gradient: Option<Vec<Tensor>>,
}

impl Parameter {
    /// A parameter that another rank holds: no op on this rank reads it.
    pub fn elsewhere() -> Self {
        Self { weight: Vec::new(), gradient: None }
    }

    /// The weight of a parameter in one part.
    #[track_caller]
    pub fn weight(&self) -> Tensor {
        assert!(
            self.weight.len() == 1,
            "only embeddings, heads and stacks of experts may be split into parts"
        );
        self.weight[0]
    }

    /// Rows of all parts.
    pub fn rows(&self) -> u32 {
        self.weight.iter().map(|part| part.rows).sum()
    }

    /// The gradient of a parameter in one part, if it trains.
    #[track_caller]
    pub fn gradient(&self) -> Option<Tensor> {
        self.gradient.as_ref().map(|parts| {
            assert!(parts.len() == 1, "only embeddings, heads and stacks of experts may be split into parts");
            parts[0]
        })
    }

    /// Whether the parameter has a gradient. Every op asks this of its parameters when it is recorded, so that a
    /// gradient of the wrong shape is reported there, at the caller's line, and not in the backward pass.
    ///
    /// # Panics
    /// If the gradient has another shape than the weight.
    #[track_caller]
    pub fn trains(&self) -> bool {
        let shape = |tensor: &Tensor| (tensor.rows, tensor.cols);
        if let Some(gradient) = &self.gradient {
            let [weight, gradient] = [&self.weight, gradient].map(|parts| parts.iter().map(shape));
            assert!(
                weight.clone().eq(gradient.clone()),
                "a gradient has the shape of its weight: (rows, columns) {:?} for {:?}",
                gradient.collect::<Vec<_>>(),
                weight.collect::<Vec<_>>()
            );
        }
        self.gradient.is_some()
    }

    /// Whether one of `parameters` trains. All are [asked](Self::trains).
    #[track_caller]
    pub(super) fn any_trains<'a>(parameters: impl IntoIterator<Item = &'a Self>) -> bool {
        let mut trains = false;
        for parameter in parameters {
            trains |= parameter.trains();
        }
        trains
    }
}
