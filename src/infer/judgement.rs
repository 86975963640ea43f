//! Measures of a model from the losses of tokens: loss, perplexity and bits per byte of texts, and the share of
//! questions that it answers correctly.

use super::scoring::Scorer;
use crate::data::{EvalData, NO_LABEL, Question, Sequence};
use crate::error::Result;
use serde::Serialize;

/// A share of questions, and its standard error, which a single question does not have.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Share {
    /// Between 0 and 1.
    pub share: f64,
    /// Standard error over the questions.
    pub stderr: Option<f64>,
}

/// The results of judging a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Judgement {
    /// How well it predicts tokens.
    Loss {
        /// Mean loss over all tokens, in nats.
        loss: f64,
        /// e raised to the loss.
        perplexity: f64,
        /// Standard error of the perplexity over the sequences; `None` for a single one.
        perplexity_stderr: Option<f64>,
        /// Bits per byte of the texts; `None` for answers.
        bits_per_byte: Option<f64>,
        /// Tokens that were predicted.
        tokens: u64,
        /// Windows of texts, or samples.
        sequences: u64,
    },
    /// How well it chooses answers.
    Choice {
        /// Share of the questions whose right answer is the most likely one.
        acc: Share,
        /// The share if the log-likelihood of an answer is divided by its characters.
        acc_norm: Share,
        /// The share if it is divided by its bytes.
        acc_bytes: Share,
        /// Number of questions.
        questions: u64,
    },
}

impl Judgement {
    /// Judges the model of `scorer` by `data`, whose sequences it was loaded for. `on_batch` is called with the number
    /// of finished batches and their total number.
    ///
    /// # Errors
    /// A token outside the vocabulary; a device that fails.
    pub async fn of(scorer: &Scorer<'_>, data: &EvalData, on_batch: impl FnMut(u64, u64)) -> Result<Self> {
        let losses = scorer.losses(on_batch).await?;
        Ok(match data {
            EvalData::Texts { windows, bytes, .. } => Self::of_losses(windows, &losses, Some(*bytes)),
            EvalData::Answers { samples, .. } => Self::of_losses(samples, &losses, None),
            EvalData::Questions(questions) => {
                let sums: Vec<f64> = losses.iter().map(|losses| sum(losses)).collect();
                Self::of_choices(questions, &sums)
            }
        })
    }

    fn of_losses(sequences: &[Sequence], losses: &[Vec<f32>], bytes: Option<u64>) -> Self {
        let count =
            |sequence: &Sequence| sequence.targets.iter().filter(|target| **target != NO_LABEL).count();
        let counts: Vec<f64> = sequences.iter().map(|sequence| count(sequence) as f64).collect();
        let sums: Vec<f64> = losses.iter().map(|losses| sum(losses)).collect();
        let (tokens, total) = (counts.iter().sum::<f64>(), sums.iter().sum::<f64>());
        let (loss, sequences) = (total / tokens, counts.len() as f64);
        // The mean is a ratio of two sums over sequences; the residuals give its variance (Cochran, 1977, section
        // 2.11).
        let squares: f64 = sums.iter().zip(&counts).map(|(sum, count)| (sum - loss * count).powi(2)).sum();
        let stderr = (sequences / (sequences - 1.0) * squares).sqrt() / tokens;
        Self::Loss {
            loss,
            perplexity: loss.exp(),
            perplexity_stderr: (sequences > 1.0).then(|| loss.exp() * stderr),
            bits_per_byte: bytes.map(|bytes| total / std::f64::consts::LN_2 / bytes as f64),
            tokens: tokens as u64,
            sequences: sequences as u64,
        }
    }

    /// `sums` are the losses of all answers, in order.
    fn of_choices(questions: &[Question], sums: &[f64]) -> Self {
        let (mut plain, mut by_chars, mut by_bytes) = (Vec::new(), Vec::new(), Vec::new());
        let mut rest = sums;
        for Question { answers, right } in questions {
            let (own, others) = rest.split_at(answers.len());
            rest = others;
            let is_right = |length: &dyn Fn(usize) -> usize| {
                let each = own.iter().enumerate().map(|(index, sum)| sum / length(index).max(1) as f64);
                smallest(each) == *right
            };
            plain.push(is_right(&|_| 1));
            by_chars.push(is_right(&|index| answers[index].chars));
            by_bytes.push(is_right(&|index| answers[index].bytes));
        }
        Self::Choice {
            acc: Share::of(&plain),
            acc_norm: Share::of(&by_chars),
            acc_bytes: Share::of(&by_bytes),
            questions: questions.len() as u64,
        }
    }
}

impl Share {
    fn of(are_right: &[bool]) -> Self {
        let count = are_right.len() as f64;
        let share = are_right.iter().filter(|is_right| **is_right).count() as f64 / count;
        let stderr = (count > 1.0).then(|| (share * (1.0 - share) / (count - 1.0)).sqrt());
        Self { share, stderr }
    }
}

/// Index of the smallest value, the first of equal ones.
fn smallest(values: impl Iterator<Item = f64>) -> usize {
    values.enumerate().min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(index, _)| index)
}

fn sum(losses: &[f32]) -> f64 {
    losses.iter().map(|loss| f64::from(*loss)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Answer;

    #[test]
    fn losses_are_weighed_by_tokens() {
        let sequence =
            |targets: &[u32]| Sequence { tokens: vec![0; targets.len()], targets: targets.to_vec() };
        let sequences = [sequence(&[1, 2, NO_LABEL]), sequence(&[1])];
        let Judgement::Loss { loss, perplexity, perplexity_stderr, bits_per_byte, tokens, sequences } =
            Judgement::of_losses(&sequences, &[vec![1.0, 2.0, 0.0], vec![3.0]], Some(4))
        else {
            panic!("a loss")
        };
        assert_eq!((loss, tokens, sequences), (2.0, 3, 2));
        assert_eq!(perplexity, 2.0_f64.exp());
        // Residuals -1 and 1: sqrt(2 · 2) / 3.
        assert!((perplexity_stderr.unwrap() - 2.0_f64.exp() * 2.0 / 3.0).abs() < 1e-12);
        assert!((bits_per_byte.unwrap() - 6.0 / 2.0_f64.ln() / 4.0).abs() < 1e-12);
    }

    #[test]
    fn the_likeliest_answer_is_chosen() {
        let answer = |text: &str| Answer {
            sequence: Sequence::default(),
            chars: text.chars().count(),
            bytes: text.len(),
        };
        let question = |texts: [&str; 2], right| Question { answers: texts.map(answer).to_vec(), right };
        // By character the second answer of the first question is likelier, by byte the first again.
        let questions = [question(["éé", "ab!"], 0), question(["a", "b"], 1)];
        let Judgement::Choice { acc, acc_norm, acc_bytes, questions } =
            Judgement::of_choices(&questions, &[2.0, 2.5, 1.0, 1.0])
        else {
            panic!("choices")
        };
        assert_eq!([acc.share, acc_norm.share, acc_bytes.share], [0.5, 0.0, 0.5]);
        assert_eq!((acc.stderr, acc_norm.stderr, questions), (Some(0.5), Some(0.0), 2));
    }
}
