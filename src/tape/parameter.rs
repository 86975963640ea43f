//! A parameter as ops see it.

use crate::record::Tensor;

/// Weight and gradient of one parameter. A matrix over the binding limit comes in parts of whole rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// The weight, part by part.
    pub weight: Vec<Tensor>,
    /// Where its gradient is added up, part by part; `None` if the parameter is frozen.
    pub gradient: Option<Vec<Tensor>>,
}

impl Parameter {
    /// The weight of a parameter in one part.
    #[track_caller]
    pub fn weight(&self) -> Tensor {
        assert!(
            self.weight.len() == 1,
            "only embeddings, heads and stacks of experts may have several parts"
        );
        self.weight[0]
    }

    /// The gradient of a parameter in one part, if it trains.
    #[track_caller]
    pub fn gradient(&self) -> Option<Tensor> {
        self.gradient.as_ref().map(|parts| {
            assert!(parts.len() == 1, "only embeddings, heads and stacks of experts may have several parts");
            parts[0]
        })
    }

    /// Whether its gradient is wanted.
    pub fn trains(&self) -> bool {
        self.gradient.is_some()
    }
}
