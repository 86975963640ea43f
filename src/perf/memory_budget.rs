//! Errors about too little memory: the largest consumers, and ways to save memory.

use crate::element::Element;
use crate::error::{Error, Result};
use crate::model::config::ModelConfig;
use crate::record::{Consumer, LARGEST};
use crate::settings::Bytes;
use crate::train::recordings::Recordings;
use std::path::Path;

/// The parts of an error about memory that describe a run.
pub(crate) struct Shortage {
    /// The largest consumers, with their sizes.
    pub largest: String,
    /// Remedies that would save memory, the cheapest first.
    pub remedies: Vec<String>,
}

impl Shortage {
    /// The shortage of a run of `recordings`.
    pub fn of(recordings: &Recordings) -> Self {
        let windows = recordings.tensors.batch.tokens.cols as usize / recordings.model.seq_length;
        Self {
            largest: Consumer::list(&recordings.largest_consumers(LARGEST)),
            remedies: remedies(&recordings.model, windows, recordings.is_loaded),
        }
    }

    /// Refuses a run that takes `bytes` of device memory at its peak, over `cap`.
    pub fn check(&self, bytes: u64, cap: Option<u64>) -> Result<()> {
        let Some(cap) = cap.filter(|cap| bytes > *cap) else { return Ok(()) };
        Err(Error::Plan(format!(
            "the run takes {}, over context.max_device_memory of {}; the largest consumers: {}; {}, or raise the cap",
            mib(bytes),
            mib(cap),
            self.largest,
            self.remedies.join(", ")
        )))
    }

    /// `error`; if the device is out of memory, with the largest consumers and the remedies.
    pub fn explain(&self, error: Error) -> Error {
        let Error::OutOfMemory { what, .. } = error else { return error };
        let Self { largest, remedies } = self;
        let remedies = remedies.join(", ");
        let remedy = format!(
            "the largest consumers: {largest}; {remedies}, or see what fits with `gristmill plan --fit BYTES CONFIG`"
        );
        Error::OutOfMemory { what, remedy }
    }
}

/// A whole model that is to write a sample on the same device as the run that has trained a part of it.
pub(crate) struct Beside<'a> {
    /// Bytes of device memory that the run holds.
    pub run: u64,
    /// Bytes that the model takes.
    pub model: u64,
    /// The checkpoint that it is loaded from.
    pub weights: &'a Path,
}

impl Beside<'_> {
    /// Refuses the model if both together take more than `cap`.
    pub fn check(&self, cap: Option<Bytes>) -> Result<()> {
        let together = self.run + self.model;
        let Some(Bytes(cap)) = cap.filter(|Bytes(cap)| together > *cap) else { return Ok(()) };
        Err(Error::Plan(format!(
            "{}, over context.max_device_memory of {}; raise it to {} MB, or {}",
            self.sizes(),
            mib(cap),
            together.div_ceil(1 << 20),
            self.alone()
        )))
    }

    /// `error`; if the device is out of memory, with the sizes of both.
    pub fn explain(&self, error: Error) -> Error {
        let Error::OutOfMemory { what, .. } = error else { return error };
        Error::OutOfMemory { what, remedy: format!("{}; {}", self.sizes(), self.alone()) }
    }

    fn sizes(&self) -> String {
        format!("the model takes {} beside the {} of the run", mib(self.model), mib(self.run))
    }

    fn alone(&self) -> String {
        format!("write text with the model alone: gristmill generate {}", self.weights.display())
    }
}

/// Remedies that lower the memory of `model` in micro-batches of `windows` windows: the settings that are left, and if
/// all are used up, sizes. A model whose weights are loaded has given sizes, except for the length of its context;
/// fewer of its weights can be trained, or held in fewer bits.
pub(crate) fn remedies(model: &ModelConfig, windows: usize, is_loaded: bool) -> Vec<String> {
    let layers = model.num_layers + model.multi_token.map_or(0, |ahead| ahead.depth);
    let settings = [
        ("lower runner_config.batch_size", windows > 1),
        ("write `recompute_config.recompute: True`", model.recomputed.layers.len() < layers),
        ("write `model.model_config.compute_dtype: bfloat16`", model.compute == Element::F32),
        ("train adapters, by a `model.model_config.pet_config`", is_loaded && model.low_rank.is_none()),
        (QUANTISE, is_loaded && model.low_rank.as_ref().is_some_and(|low_rank| low_rank.base.is_none())),
    ];
    let left: Vec<String> =
        settings.into_iter().filter(|(_, is_left)| *is_left).map(|(remedy, _)| remedy.to_string()).collect();
    match left.is_empty() {
        true => vec![smaller(is_loaded).to_string()],
        false => left,
    }
}

/// A remedy that changes the results.
pub(crate) const QUANTISE: &str = "write `base_dtype: nf4` under pet_config";

/// The remedy if no setting helps.
pub(crate) fn smaller(is_loaded: bool) -> &'static str {
    match is_loaded {
        true => "lower model.model_config.seq_length",
        false => "lower num_layers, hidden_size or seq_length of model.model_config",
    }
}

pub(crate) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / 1048576.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::{LowRank, Recomputed, Sizes};

    fn model() -> ModelConfig {
        ModelConfig::llama(Sizes {
            vocab_size: 256,
            hidden_size: 64,
            num_layers: 2,
            num_heads: 4,
            intermediate_size: 96,
            seq_length: 32,
        })
    }

    fn low_rank() -> LowRank {
        LowRank { rank: 4, alpha: 8.0, base: Some(Element::Nf4), ..LowRank::default() }
    }

    fn layers(numbers: &[usize]) -> Recomputed {
        Recomputed { layers: numbers.to_vec(), ..Recomputed::default() }
    }

    #[test]
    fn settings_that_are_used_up_are_not_named() {
        let batch = "lower runner_config.batch_size";
        let recompute = "write `recompute_config.recompute: True`";
        let half = "write `model.model_config.compute_dtype: bfloat16`";
        let of = |model: &ModelConfig, windows| remedies(model, windows, false);
        assert_eq!(of(&model(), 4), [batch, recompute, half]);
        assert_eq!(of(&model(), 1), [recompute, half]);
        let lean = ModelConfig { recomputed: layers(&[0, 1]), compute: Element::Bf16, ..model() };
        assert_eq!(of(&lean, 2), [batch]);
        assert_eq!(of(&lean, 1), [smaller(false)]);
        // Loaded weights have a given number of layers.
        assert_eq!(remedies(&lean, 1, true), ["train adapters, by a `model.model_config.pet_config`"]);
        let base = LowRank { base: None, ..low_rank() };
        let adapted = ModelConfig { low_rank: Some(base), ..lean.clone() };
        assert_eq!(remedies(&adapted, 1, true), ["write `base_dtype: nf4` under pet_config"]);
        let stored = ModelConfig { low_rank: Some(low_rank()), ..lean.clone() };
        assert_eq!(remedies(&stored, 1, true), ["lower model.model_config.seq_length"]);
        assert_eq!(of(&ModelConfig { recomputed: layers(&[0]), ..lean }, 1), [recompute]);
    }

    #[test]
    fn a_model_beside_a_run_needs_room_for_both() {
        let beside =
            Beside { run: 3 << 20, model: (5 << 19) + 1, weights: Path::new("checkpoint/step_0000003") };
        assert!(beside.check(None).is_ok() && beside.check(Some(Bytes(6 << 20))).is_ok());
        let sizes = "the model takes 2.5 MiB beside the 3.0 MiB of the run";
        let alone = "write text with the model alone: gristmill generate checkpoint/step_0000003";
        let refusal = beside.check(Some(Bytes(5 << 20))).expect_err("no room").to_string();
        let cap = "over context.max_device_memory of 5.0 MiB; raise it to 6 MB, or";
        assert_eq!(refusal, format!("{sizes}, {cap} {alone}"));
        let full = Error::OutOfMemory { what: "for pool 0".into(), remedy: "smaller".into() };
        assert_eq!(beside.explain(full).to_string(), format!("out of memory for pool 0; {sizes}; {alone}"));
    }

    /// Wherever in a run it occurs, for example when a submission loses the device.
    #[test]
    fn only_a_lack_of_memory_is_explained() {
        let shortage =
            Shortage { largest: "weights 0 2.0 MiB".into(), remedies: remedies(&model(), 2, false) };
        let lost = Error::OutOfMemory {
            what: "on llvmpipe, device lost: Out of memory".into(),
            remedy: "make the batch or the model smaller".into(),
        };
        let line = "out of memory on llvmpipe, device lost: Out of memory; the largest consumers: weights 0 2.0 MiB; lower \
                    runner_config.batch_size, write `recompute_config.recompute: True`, write \
                    `model.model_config.compute_dtype: bfloat16`, or see what fits with `gristmill plan --fit BYTES CONFIG`";
        assert_eq!(shortage.explain(lost).to_string(), line);
        assert_eq!(
            shortage.explain(Error::Device("device lost: reset".into())).to_string(),
            "device lost: reset"
        );
    }
}
