//! `metric`: the metrics that evaluations report in addition to the loss.

use crate::settings::engine::*;

rows! {
    /// `metric`: the metrics that evaluations report in addition to the loss; one section, or a list of sections.
    pub struct MetricKeys in PATH {
        /// `PerplexityMetric` is the exponential of the loss, and `Accuracy` the share of targets that have the largest
        /// logit. The other metrics are ignored with a notice.
        kind "type": MetricType = Host.required().read_by(|reader, key| reader.kind(key, Self::ID)),
    }
}

words! {
    /// `type` of a metric.
    pub enum MetricType {
        /// The exponential of the loss.
        #[default]
        Perplexity = "PerplexityMetric",
        /// The share of targets with the largest logit.
        Accuracy = "Accuracy",
        /// A metric of generated text, or of another task.
        Other = "ADGENMetric" "EntityScore" "SQuADMetric" "PromptAccMetric" "EmF1Metric",
    }
}

/// The numbers that evaluations report in addition to the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// The exponential of the loss.
    pub perplexity: bool,
    /// The share of targets with the largest logit.
    pub accuracy: bool,
}

const PATH: &str = "metric";

/// Reads the section or the list of sections. If the run does not evaluate, they are ignored with a notice.
pub(crate) fn read(source: &Source, evaluates: bool) -> Metrics {
    let mut metrics = Metrics::default();
    let Some(node) = source.node(PATH) else { return metrics };
    if !evaluates {
        source.ignore(PATH);
        return metrics;
    }
    let paths = match node {
        Node::List(_) => source.items(PATH),
        _ => vec![PATH.to_string()],
    };
    for path in paths {
        match MetricKeys::read_at(source, &path).kind {
            MetricType::Perplexity => metrics.perplexity = true,
            MetricType::Accuracy => metrics.accuracy = true,
            MetricType::Other => {
                let kind = source.word(&join(&path, "type")).unwrap_or_default();
                source.note(format!(
                    "{path}: {kind} judges generated text or other tasks than training here; not reported"
                ));
            }
        }
    }
    metrics
}

impl Metrics {
    /// The sections of the reported metrics, as items of a list.
    pub(crate) fn placed(self) -> Vec<Placed> {
        let reported = [(MetricType::Perplexity, self.perplexity), (MetricType::Accuracy, self.accuracy)];
        let kinds = reported.into_iter().filter(|(_, is_reported)| *is_reported).map(|(kind, _)| kind);
        let place = |(number, kind)| MetricKeys { kind }.placed(format!("{PATH}.{number}"));
        kinds.enumerate().map(place).collect()
    }
}
