//! How the next token is drawn from logits. The device draws ([`draw`](crate::ops::draw)).

use crate::ops::draw::SamplingState;

/// Sampling parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divisor of the logits: values below 1 sharpen the distribution; 0 is greedy.
    pub temperature: f64,
    /// Number of most likely tokens to sample from; 0: all.
    pub top_k: usize,
    /// Nucleus sampling: sample from the smallest set of most likely tokens with at least this total probability; 1:
    /// all (Holtzman et al., "The Curious Case of Neural Text Degeneration", 2019).
    pub top_p: f64,
    /// Logits of tokens that have occurred are divided by this if positive and multiplied by it if negative (Keskar et
    /// al., "CTRL", 2019, section 4.1); 1: no penalty.
    pub repetition_penalty: f64,
}

impl Default for Sampling {
    /// The unmodified distribution of the model.
    fn default() -> Self {
        Self { temperature: 1.0, top_k: 0, top_p: 1.0, repetition_penalty: 1.0 }
    }
}

impl Sampling {
    /// Always the most likely token.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: 0, top_p: 1.0, repetition_penalty: 1.0 };

    /// The first invalid parameter, if any: its name and what is expected.
    pub fn fault(&self) -> Option<(&'static str, &'static str)> {
        let Self { temperature, top_p, repetition_penalty, .. } = *self;
        match () {
            () if !(temperature.is_finite() && temperature >= 0.0) => {
                Some(("temperature", "a number of at least 0"))
            }
            () if !(top_p > 0.0 && top_p <= 1.0) => Some(("top_p", "a number above 0, at most 1")),
            () if !(repetition_penalty.is_finite() && repetition_penalty > 0.0) => {
                Some(("repetition_penalty", "a number above 0"))
            }
            () => None,
        }
    }

    /// The same parameters for the device, in f32.
    pub(crate) fn state(&self) -> SamplingState {
        SamplingState {
            temperature: self.temperature as f32,
            top_p: self.top_p as f32,
            repetition_penalty: self.repetition_penalty as f32,
            top_k: u32::try_from(self.top_k).unwrap_or(u32::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_named() {
        let fault = |sampling: Sampling| sampling.fault().map(|(name, _)| name);
        assert_eq!(fault(Sampling::default()), None);
        assert_eq!(fault(Sampling { temperature: -1.0, ..Sampling::GREEDY }), Some("temperature"));
        assert_eq!(fault(Sampling { top_p: 0.0, ..Sampling::GREEDY }), Some("top_p"));
        assert_eq!(
            fault(Sampling { repetition_penalty: f64::NAN, ..Sampling::GREEDY }),
            Some("repetition_penalty")
        );
    }
}
