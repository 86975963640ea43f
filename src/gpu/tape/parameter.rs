//! A parameter on the tape.

use crate::record::Tensor;

/// Weight and gradient of one parameter. A matrix over the binding limit is split into parts of whole rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// The weight, part by part.
    pub weight: Vec<Tensor>,
    /// The accumulated gradient, part by part; `None` if the parameter is frozen.
    pub gradient: Option<Vec<Tensor>>,
}

impl Parameter {
    /// One that another rank holds: no op here reads it.
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

    /// The gradient of a parameter in one part, if it trains.
    #[track_caller]
    pub fn gradient(&self) -> Option<Tensor> {
        self.gradient.as_ref().map(|parts| {
            assert!(parts.len() == 1, "only embeddings, heads and stacks of experts may be split into parts");
            parts[0]
        })
    }

    /// Whether it has a gradient.
    pub fn trains(&self) -> bool {
        self.gradient.is_some()
    }
}
