//! `metrics.jsonl`: one JSON object per step, for `jq`, plotting scripts and tests.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::settings::Formats;

/// The result of an evaluation before the first step: a line of step 0 with only these keys.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct StartMetrics {
    /// 0.
    pub step: u64,
    /// Mean loss on the evaluation data in nats per token, for the weights that the run starts from.
    pub eval_loss: f32,
    /// The exponential of `eval_loss`, if it is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_perplexity: Option<f32>,
    /// The share of targets that have the largest logit, 0 to 1, if it is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_accuracy: Option<f32>,
    /// Mean difference of the rewards of both answers, for a run that learns from pairs of answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_rewards_margin: Option<f32>,
    /// The share of pairs whose chosen answer has the higher reward, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_rewards_accuracy: Option<f32>,
}

impl StartMetrics {
    /// The evaluation after a step, if there was one.
    pub(super) fn of(metrics: &StepMetrics) -> Option<Self> {
        let &StepMetrics {
            step,
            eval_perplexity,
            eval_accuracy,
            eval_rewards_margin,
            eval_rewards_accuracy,
            ..
        } = metrics;
        metrics.eval_loss.map(|eval_loss| Self {
            step,
            eval_loss,
            eval_perplexity,
            eval_accuracy,
            eval_rewards_margin,
            eval_rewards_accuracy,
        })
    }
}

impl fmt::Display for StartMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: eval_loss {:.4}", self.step, self.eval_loss)?;
        let others = [
            ("eval_perplexity", self.eval_perplexity),
            ("eval_accuracy", self.eval_accuracy),
            ("eval_rewards_margin", self.eval_rewards_margin),
            ("eval_rewards_accuracy", self.eval_rewards_accuracy),
        ];
        let mut known = others.iter().filter_map(|(name, number)| Some((name, (*number)?)));
        known.try_for_each(|(name, number)| write!(f, ", {name} {number:.4}"))
    }
}

/// The metrics of one step. JSON cannot hold numbers that are not finite: they are written as `null` and read back as
/// NaN.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct StepMetrics {
    /// Index of the step, from 1; steps whose update was skipped by an overflow count.
    pub step: u64,
    /// Optimizer updates done after this step.
    pub global_step: u64,
    /// Mean cross-entropy of the next token over the step's tokens, in nats per token; or the mean loss of the step's
    /// pairs of answers.
    #[serde(deserialize_with = "number")]
    pub loss: f32,
    /// The learning rate that the update used.
    #[serde(deserialize_with = "number")]
    pub lr: f32,
    /// The L2 norm of the gradient, unscaled and before clipping.
    #[serde(deserialize_with = "number")]
    pub global_norm: f32,
    /// The loss scale of this step, not of the next one.
    #[serde(deserialize_with = "number")]
    pub loss_scale: f64,
    /// Steps without overflow after which the scale grows, as of the end of this step; for a loss scale with a list of
    /// windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale_window: Option<u32>,
    /// Increases of that scale since its window last changed, modulo 4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale_increases: Option<u32>,
    /// Decreases of that scale since its last increase, modulo 4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale_decreases: Option<u32>,
    /// The list of windows, shortest first, in the first step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale_windows: Option<Vec<u32>>,
    /// Whether a gradient was not finite and the update was skipped.
    pub overflow: bool,
    /// Whether the update was skipped because of its norm, if the run skips such steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_skip: Option<bool>,
    /// The sum of squares of each parameter's gradients, in the order of the log's `local_norm`, if it is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present_list")]
    pub local_norm: Option<Vec<f32>>,
    /// Trained tokens per second in this step, not counting the padding of samples.
    #[serde(serialize_with = "to_thousandths", deserialize_with = "number")]
    pub tokens_per_second: f64,
    /// Tokens per second including padding, which is computed too, if there is any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub computed_tokens_per_second: Option<f64>,
    /// Wall-clock time of this step in milliseconds.
    #[serde(serialize_with = "to_thousandths", deserialize_with = "number")]
    pub step_ms: f64,
    /// Time of the step on each rank in milliseconds, by rank, if it is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present_list")]
    pub rank_step_ms: Option<Vec<f32>>,
    /// Device memory of each rank in MiB, by rank, if it is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present_list")]
    pub rank_memory_mib: Option<Vec<f32>>,
    /// Device memory that the run's buffers take on the first rank, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub device_memory_mib: Option<f32>,
    /// Host memory that the first rank's process takes, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub host_memory_mib: Option<f32>,
    /// Mean loss on the evaluation data in nats per token, if an evaluation followed this step.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub eval_loss: Option<f32>,
    /// The exponential of `eval_loss`, if it is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub eval_perplexity: Option<f32>,
    /// The share of the evaluation's targets that have the largest logit, 0 to 1, if it is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub eval_accuracy: Option<f32>,
    /// Mean reward of the chosen answers, for a run that learns from pairs of answers.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub rewards_chosen: Option<f32>,
    /// Mean reward of the rejected answers.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub rewards_rejected: Option<f32>,
    /// Mean difference of both rewards.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub rewards_margin: Option<f32>,
    /// The share of pairs whose chosen answer has the higher reward, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub rewards_accuracy: Option<f32>,
    /// Mean log-probability of the chosen answers, in nats; per token where the loss takes it so.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub logps_chosen: Option<f32>,
    /// Mean log-probability of the rejected answers.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub logps_rejected: Option<f32>,
    /// The same of the evaluation: mean difference of both rewards.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub eval_rewards_margin: Option<f32>,
    /// Of the evaluation: the share of pairs whose chosen answer has the higher reward.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub eval_rewards_accuracy: Option<f32>,
    /// Per layer with experts: the fraction of choices that were dropped, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present_list")]
    pub drop_rate: Option<Vec<f32>>,
    /// Per layer: that fraction as MindFormers estimates it, from the last micro-batch, with the share of slots that
    /// cold experts have.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present_list")]
    pub drop_rate_estimate: Option<Vec<f32>>,
    /// Per layer: the experts that were hot in this step, in ascending order, if hot experts have more slots than
    /// others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hot_experts: Option<Vec<Vec<u32>>>,
    /// Per layer: entropy of the load over ln E, 1 if all experts are equally busy, 0 if one expert gets all tokens.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present_list")]
    pub expert_load_entropy: Option<Vec<f32>>,
    /// Per layer: choices of the busiest expert over the mean, 1 to E.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present_list")]
    pub expert_load_max_over_mean: Option<Vec<f32>>,
    /// Balance losses of all layers, factors included; not part of `loss`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub load_balancing_loss: Option<f32>,
    /// Z-losses of all layers, factor included; not part of `loss`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub z_loss: Option<f32>,
    /// Mean loss of multi-token prediction in nats per token, without its factor; not part of `loss`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub mtp_loss: Option<f32>,
    /// The numbers that `monitor_config` asks for, by tag, in steps in which they are due.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present_map")]
    pub monitor: Option<BTreeMap<String, f32>>,
}

/// A monitored value of a step, with its tag.
#[derive(Clone, Debug, PartialEq)]
pub struct MonitorValue {
    /// For example `local_norm/layers.0.attention.wo`.
    pub tag: String,
    /// One number or several.
    pub numbers: Numbers,
}

/// The numbers of a tag. `metrics.jsonl` and TensorBoard only have single numbers.
#[derive(Clone, Debug, PartialEq)]
pub enum Numbers {
    /// A number.
    One(f32),
    /// Numbers with a line each, such as those of micro-batches.
    Lines(Vec<f32>),
    /// Numbers in one line, such as those of heads.
    List(Vec<f32>),
}

impl MonitorValue {
    /// One number.
    pub fn one(tag: impl Into<String>, value: f64) -> Self {
        Self { tag: tag.into(), numbers: Numbers::One(value as f32) }
    }
}

/// Where the numbers of `monitor_config` go, by the part of their tags before the first `/`. All of them are in
/// `metrics.jsonl`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MonitorFormats(BTreeMap<String, Formats>);

impl MonitorFormats {
    /// Sets where the numbers go whose tags start with `prefix`.
    pub fn set(&mut self, prefix: impl Into<String>, formats: Formats) {
        self.0.insert(prefix.into(), formats);
    }

    /// Where the number of `tag` goes; nowhere unless it was set.
    pub fn of(&self, tag: &str) -> Formats {
        let prefix = tag.split_once('/').map_or(tag, |(prefix, _)| prefix);
        self.0.get(prefix).copied().unwrap_or_default()
    }
}

/// The single numbers among `values`, by tag; `None` if there are no values.
pub(crate) fn singles(values: &[MonitorValue]) -> Option<BTreeMap<String, f32>> {
    let single = |value: &MonitorValue| match value.numbers {
        Numbers::One(number) => Some((value.tag.clone(), number)),
        Numbers::Lines(_) | Numbers::List(_) => None,
    };
    (!values.is_empty()).then(|| values.iter().filter_map(single).collect())
}

/// Rounds to three decimals: further digits are noise of the clock and make lines hard to read.
fn to_thousandths<S: Serializer>(number: &f64, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_f64((number * 1e3).round() / 1e3)
}

/// A number; NaN for `null`.
fn number<'de, D, N>(deserializer: D) -> std::result::Result<N, D::Error>
where
    D: Deserializer<'de>,
    N: Deserialize<'de> + From<f32>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or(N::from(f32::NAN)))
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<f32>, D::Error> {
    number(deserializer).map(Some)
}

fn present_list<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<Vec<f32>>, D::Error> {
    let numbers = Vec::<Option<f32>>::deserialize(deserializer)?;
    Ok(Some(numbers.into_iter().map(|number| number.unwrap_or(f32::NAN)).collect()))
}

fn present_map<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<BTreeMap<String, f32>>, D::Error> {
    let numbers = BTreeMap::<String, Option<f32>>::deserialize(deserializer)?;
    Ok(Some(numbers.into_iter().map(|(tag, number)| (tag, number.unwrap_or(f32::NAN))).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(step: u64) -> StepMetrics {
        StepMetrics {
            step,
            global_step: step,
            loss: 3.3,
            lr: 3e-4,
            global_norm: 44.313248,
            loss_scale: 1.0,
            tokens_per_second: 1523.5,
            step_ms: 672.250_000_1,
            ..StepMetrics::default()
        }
    }

    #[test]
    fn a_step_is_one_line_with_the_documented_keys() {
        assert_eq!(
            serde_json::to_string(&metrics(1)).unwrap(),
            "{\"step\":1,\"global_step\":1,\"loss\":3.3,\"lr\":0.0003,\"global_norm\":44.313248,\"loss_scale\":1.0,\
             \"overflow\":false,\"tokens_per_second\":1523.5,\"step_ms\":672.25}"
        );
        let full = StepMetrics { eval_loss: Some(2.5), drop_rate: Some(vec![0.125, 0.0]), ..metrics(2) };
        let line = serde_json::to_string(&full).unwrap();
        assert!(line.ends_with("\"eval_loss\":2.5,\"drop_rate\":[0.125,0.0]}"), "{line}");
        let rounded = StepMetrics { step_ms: 672.25, ..full };
        assert_eq!(serde_json::from_str::<StepMetrics>(&line).unwrap(), rounded);
    }

    #[test]
    fn numbers_that_are_not_finite_stay_valid_json() {
        let overflow = StepMetrics {
            loss: f32::NAN,
            global_norm: f32::INFINITY,
            tokens_per_second: f64::NEG_INFINITY,
            eval_loss: Some(f32::NAN),
            drop_rate: Some(vec![f32::NAN, 0.5]),
            overflow: true,
            ..metrics(7)
        };
        let line = serde_json::to_string(&overflow).unwrap();
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert!(value["loss"].is_null() && value["global_norm"].is_null() && value["eval_loss"].is_null());
        let back: StepMetrics = serde_json::from_str(&line).unwrap();
        assert!(back.loss.is_nan() && back.global_norm.is_nan() && back.tokens_per_second.is_nan());
        assert!(back.eval_loss.unwrap().is_nan() && back.drop_rate.unwrap()[0].is_nan());
    }

    #[test]
    fn single_numbers_are_kept_by_tag() {
        let several = MonitorValue { tag: "b".into(), numbers: Numbers::Lines(vec![1.0, 2.0]) };
        let values = [MonitorValue::one("a", 0.5), several];
        assert_eq!(singles(&values), Some(BTreeMap::from([("a".to_string(), 0.5)])));
        assert_eq!(singles(&[]), None);
    }

    #[test]
    fn the_first_part_of_a_tag_says_where_it_goes() {
        let mut formats = MonitorFormats::default();
        formats.set("local_norm", Formats::LOG);
        assert!(formats.of("local_norm/embedding").log && formats.of("local_norm").log);
        assert_eq!(formats.of("local_norms/embedding"), Formats::default());
    }
}
