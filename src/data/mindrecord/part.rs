//! The rows of a file as parts of a stream: the tokens that the model reads, and for each the one to predict.

use std::sync::Arc;

use super::{MindRecordFile, NumberColumn};
use crate::data::batch::NO_LABEL;
use crate::data::token_encoding::NO_TOKEN;

/// How the rows of a file become tokens and targets. All rows have the same length.
#[derive(Debug)]
pub(super) struct RowColumns {
    /// The file.
    pub file: MindRecordFile,
    /// Token ids.
    pub tokens: NumberColumn,
    /// What is predicted: token ids, or what is negative for none. The tokens themselves where the file has no labels.
    pub labels: NumberColumn,
    /// How many places further the label of a token is: 1 where each is the token itself, 0 where it is the next one.
    pub shift: usize,
    /// What leaves a token's label out of the loss.
    pub mask: Mask,
    /// Tokens of a row that the model reads.
    pub seq_length: usize,
}

/// What leaves the label of a token out of the loss, by the token or by what a column says at its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mask {
    /// Tokens with this id.
    pub pad: Option<i64>,
    /// Places with 0 in this column.
    pub column: Option<NumberColumn>,
}

/// The tokens or the targets of all rows of a file, one after the other.
#[derive(Clone, Debug)]
pub struct TokensOfRows {
    reading: Arc<RowColumns>,
    is_targets: bool,
}

impl TokensOfRows {
    /// The tokens and the targets.
    pub(super) fn pair(reading: RowColumns) -> [Self; 2] {
        let reading = Arc::new(reading);
        [false, true].map(|is_targets| Self { reading: reading.clone(), is_targets })
    }

    /// Number of tokens, or of targets.
    pub(in crate::data) fn len(&self) -> usize {
        self.reading.file.rows() * self.reading.seq_length
    }

    /// Copies the tokens or targets from number `start`.
    pub(in crate::data) fn read(&self, mut start: usize, mut out: &mut [u32]) {
        let seq_length = self.reading.seq_length;
        while !out.is_empty() {
            let (row, within) = (start / seq_length, start % seq_length);
            let count = out.len().min(seq_length - within);
            let (own, rest) = out.split_at_mut(count);
            match self.is_targets {
                true => self.reading.targets(row, within, own),
                false => self.reading.tokens(row, within, own),
            }
            (start, out) = (start + count, rest);
        }
    }
}

impl RowColumns {
    /// The tokens of a row from place `start`. What a file lacks that has changed since the start reads as no token, which no
    /// vocabulary has.
    fn tokens(&self, row: usize, start: usize, out: &mut [u32]) {
        out.fill(NO_TOKEN);
        let ids = self.file.elements(row, self.tokens).skip(start);
        out.iter_mut().zip(ids).for_each(|(out, id)| *out = u32::try_from(id).unwrap_or(NO_TOKEN));
    }

    /// The targets of a row's tokens from place `start`.
    fn targets(&self, row: usize, start: usize, out: &mut [u32]) {
        out.fill(NO_LABEL);
        let labels = self.file.elements(row, self.labels).skip(start + self.shift);
        out.iter_mut().zip(labels).for_each(|(out, label)| *out = u32::try_from(label).unwrap_or(NO_LABEL));
        if let Some(pad) = self.mask.pad {
            let ids = self.file.elements(row, self.tokens).skip(start);
            out.iter_mut().zip(ids).filter(|(_, id)| *id == pad).for_each(|(out, _)| *out = NO_LABEL);
        }
        if let Some(column) = self.mask.column {
            let kept = self.file.elements(row, column).skip(start);
            out.iter_mut().zip(kept).filter(|(_, kept)| *kept == 0).for_each(|(out, _)| *out = NO_LABEL);
        }
    }
}
