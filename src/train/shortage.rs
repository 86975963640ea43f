//! Too little memory: what takes it, and what would save some, for errors.

use super::recordings::Recordings;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::model::config::ModelConfig;
use crate::record::{Consumer, LARGEST};

/// What an error about memory says of a run.
pub(super) struct Shortage {
    /// The largest consumers, with their sizes.
    pub largest: String,
    /// What would save memory, one remedy each, the cheapest first.
    pub remedies: Vec<String>,
}

impl Shortage {
    /// That of a run of `recordings`.
    pub fn of(recordings: &Recordings) -> Self {
        let windows = recordings.tensors.batch.tokens.cols as usize / recordings.model.seq_length;
        Self {
            largest: Consumer::list(&recordings.largest_consumers(LARGEST)),
            remedies: remedies(&recordings.model, windows),
        }
    }

    /// Refuses a run that takes `bytes` of device memory at its peak, over `cap`.
    pub fn check(&self, bytes: u64, cap: Option<u64>) -> Result<()> {
        let Some(cap) = cap.filter(|cap| bytes > *cap) else { return Ok(()) };
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / 1048576.0);
        Err(Error::Plan(format!(
            "the run takes {}, over context.max_device_memory of {}; the largest consumers: {}; {}, or raise the cap",
            mib(bytes),
            mib(cap),
            self.largest,
            self.remedies.join(", ")
        )))
    }

    /// `error`; if it is that the device is out of memory, with what takes it and the remedies.
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

/// What would lower the memory of `model` in micro-batches of `windows` windows: the settings that are left, and where all
/// are used up, sizes.
pub(super) fn remedies(model: &ModelConfig, windows: usize) -> Vec<String> {
    let layers = model.num_layers + model.multi_token.map_or(0, |ahead| ahead.depth);
    let settings = [
        ("lower runner_config.batch_size", windows > 1),
        ("write `recompute_config.recompute: True`", model.recomputed_layers.len() < layers),
        ("write `model.model_config.compute_dtype: bfloat16`", model.compute == Element::F32),
    ];
    let left: Vec<String> =
        settings.into_iter().filter(|(_, is_left)| *is_left).map(|(remedy, _)| remedy.to_string()).collect();
    match left.is_empty() {
        true => vec![SMALLER_MODEL.to_string()],
        false => left,
    }
}

/// What is left where no setting helps.
pub(super) const SMALLER_MODEL: &str = "lower num_layers, hidden_size or seq_length of model.model_config";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::Sizes;

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

    #[test]
    fn settings_that_are_used_up_are_not_named() {
        let batch = "lower runner_config.batch_size";
        let recompute = "write `recompute_config.recompute: True`";
        let half = "write `model.model_config.compute_dtype: bfloat16`";
        assert_eq!(remedies(&model(), 4), [batch, recompute, half]);
        assert_eq!(remedies(&model(), 1), [recompute, half]);
        let lean = ModelConfig { recomputed_layers: vec![0, 1], compute: Element::Bf16, ..model() };
        assert_eq!(remedies(&lean, 2), [batch]);
        assert_eq!(remedies(&lean, 1), [SMALLER_MODEL]);
        assert_eq!(remedies(&ModelConfig { recomputed_layers: vec![0], ..lean }, 1), [recompute]);
    }

    /// Wherever in a run it happens, as when a submission loses the device.
    #[test]
    fn only_a_lack_of_memory_is_explained() {
        let shortage = Shortage { largest: "weights 0 2.0 MiB".into(), remedies: remedies(&model(), 2) };
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
