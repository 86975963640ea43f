//! Text that the model writes at the end of a run.

use super::trainer::{SAMPLE, Trainer};
use crate::config::SampleConfig;
use crate::data::Codec;
use crate::error::Result;
use crate::random::Philox;

/// The stream of random numbers that samples draw from; parameters use the small ones.
const STREAM: u64 = 1 << 40;

/// Continues the prompt by `config.tokens` tokens, one forward pass over the window each, and returns prompt and
/// continuation; `codec` turns text into tokens and back.
///
/// # Errors
/// If the tokenizer cannot encode the prompt; a device that fails.
pub async fn sample(
    trainer: &Trainer<'_>,
    config: &SampleConfig,
    codec: &Codec,
    seed: u64,
) -> Result<String> {
    let Some(sample) = &trainer.recordings.sample else { return Ok(String::new()) };
    let window = sample.tokens.cols as usize;
    let random = Philox::new(config.seed.unwrap_or(seed), STREAM);
    let positions: Vec<u32> = (0..window as u32).collect();
    trainer.write(sample.positions, bytemuck::cast_slice(&positions));
    let mut text = codec.encode(&config.prompt)?;
    if text.is_empty() {
        text.push(start(codec));
    }
    for i in 0..config.tokens {
        let seen = &text[text.len().saturating_sub(window)..];
        let mut tokens = seen.to_vec();
        tokens.resize(window, 0); // later positions are masked
        trainer.write(sample.tokens, bytemuck::cast_slice(&tokens));
        trainer.write(sample.at, bytemuck::bytes_of(&(seen.len() as u32 - 1)));
        let mut encoder = trainer.gpu.encoder();
        encoder.replay(&trainer.prepared.programs[SAMPLE]).await?;
        encoder.submit().await?;
        let mut logits = Vec::new();
        let take = async |row: &[u8]| {
            logits = row.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            Ok(())
        };
        trainer.read_rows(sample.logits, take).await?;
        text.push(choose(&logits, config.temperature, random.uniform(i as u64)));
    }
    Ok(codec.decode(&text))
}

/// What a text without a prompt starts after: a line end of bytes, the end of another document of a tokenizer's tokens.
fn start(codec: &Codec) -> u32 {
    match codec {
        Codec::Bytes { .. } => u32::from(b'\n'),
        Codec::Tokenizer { .. } => codec.eod().unwrap_or(0),
    }
}

/// The token at `uniform` (0 to 1) of the distribution softmax(logits / temperature); the likeliest at temperature 0.
fn choose(logits: &[f32], temperature: f64, uniform: f64) -> u32 {
    let largest = logits.iter().copied().fold(f32::MIN, f32::max);
    let weight = |z: f32| {
        let below = (z - largest) as f64;
        if temperature > 0.0 { (below / temperature).exp() } else { f64::from(below == 0.0) }
    };
    let total: f64 = logits.iter().map(|&z| weight(z)).sum();
    let mut rest = uniform * total;
    for (token, &z) in logits.iter().enumerate() {
        rest -= weight(z);
        if rest < 0.0 {
            return token as u32;
        }
    }
    logits.len().saturating_sub(1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choice_follows_the_distribution() {
        let logits = [0.0, 3f32.ln(), f32::MIN];
        assert_eq!(choose(&logits, 0.0, 0.99), 1);
        assert_eq!([0.0, 0.24, 0.26, 0.999].map(|u| choose(&logits, 1.0, u)), [0, 0, 1, 1]);
    }
}
