//! The largest attention scores of each layer, as the forward pass leaves them.

use crate::element::Element;
use crate::model::config::ModelConfig;
use crate::ops::max_logit::score;
use crate::record::{Persistents, Tensor};
use crate::report::metrics::{MonitorValue, Numbers};
use crate::settings::RunPlan;

/// The largest attention scores of a step.
#[derive(Clone, Debug)]
pub struct MaxLogits {
    /// (layers, heads) u32, with rows padded to the alignment of bindings; cleared at the start of a step.
    pub largest: Tensor,
    heads: usize,
    /// Number and path of the attention of each layer that has scores.
    paths: Vec<(usize, String)>,
}

impl MaxLogits {
    /// The scores for the model of `plan`, if they are asked for.
    pub(in crate::train) fn new(plan: &RunPlan, persistents: &mut Persistents) -> Option<Self> {
        let model = &plan.model;
        plan.settings.monitor.max_attention_logit_format.is_on().then(|| Self {
            largest: persistents.tensor(
                "largest attention scores",
                layers(model) as u32,
                (model.num_heads as u32).next_multiple_of(64),
                Element::U32,
            ),
            heads: model.num_heads,
            paths: (0..layers(model))
                .filter(|layer| model.layer(*layer).has_softmax())
                .map(|layer| (layer, format!("layers.{layer}.attention")))
                .collect(),
        })
    }

    /// The numbers of each layer, from the `words` that the host read.
    pub(super) fn values(&self, words: &[u32]) -> Vec<MonitorValue> {
        let stride = self.largest.stride as usize;
        let of_layer = |(layer, path): &(usize, String)| {
            self.of_layer(path, &words[layer * stride..(layer + 1) * stride])
        };
        self.paths.iter().flat_map(of_layer).collect()
    }

    fn of_layer(&self, path: &str, row: &[u32]) -> [MonitorValue; 3] {
        let heads: Vec<f32> = row[..self.heads].iter().map(|word| score(*word)).collect();
        let mean = heads.iter().map(|score| f64::from(*score)).sum::<f64>() / heads.len() as f64;
        let largest = heads.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let tag = format!("max_attention_logit/{path}");
        let [of_mean, of_largest] = ["mean", "max"].map(|name| format!("{tag}/{name}"));
        [
            MonitorValue { tag, numbers: Numbers::List(heads) },
            MonitorValue::one(of_mean, mean),
            MonitorValue::one(of_largest, largest.into()),
        ]
    }
}

/// Layers with attention, those of multi-token prediction included.
fn layers(model: &ModelConfig) -> usize {
    model.num_layers + model.multi_token.map_or(0, |ahead| ahead.depth)
}
