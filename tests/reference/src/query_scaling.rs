//! Queries that grow with their position, as in Ministral 3: the factor of the temperature of Llama 4's long contexts,
//! 1 + β·ln(1 + ⌊p / original⌋) at position p.

use super::vector::assert_len;

/// The parameters of the factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryScaling {
    /// β.
    pub beta: f64,
    /// Positions before the factor first grows.
    pub original: f64,
}

impl QueryScaling {
    /// The factor at `position`.
    fn factor(&self, position: u32) -> f64 {
        1.0 + self.beta * (1.0 + (f64::from(position) / self.original).floor()).ln()
    }

    /// Multiplies q (tokens, width) in place by the factors of the tokens' positions. Its gradient is the same of dq.
    #[track_caller]
    pub fn scale(&self, q: &mut [f64], positions: &[u32], width: usize) {
        assert_len("q", q, positions.len() * width);
        for (row, &position) in q.chunks_exact_mut(width).zip(positions) {
            row.iter_mut().for_each(|value| *value *= self.factor(position));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::assert_close;

    #[test]
    fn queries_grow_at_each_multiple_of_the_original_length() {
        let scaling = QueryScaling { beta: 0.5, original: 4.0 };
        let mut q = vec![1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0];
        scaling.scale(&mut q, &[3, 4, 7, 8], 2);
        let (two, three) = (1.0 + 0.5 * 2f64.ln(), 1.0 + 0.5 * 3f64.ln());
        assert_close("q", &q, &[1.0, 2.0, two, 2.0 * two, two, 2.0 * two, three, 2.0 * three], 1e-15);
    }
}
