//! The rows of a file as parts of a stream: the tokens that the model reads, and for each the token to predict.

use std::sync::Arc;

use super::{MindRecordFile, NumberColumn};
use crate::data::batch::NO_LABEL;
use crate::data::token_encoding::NO_TOKEN;

/// How the rows of a file become tokens and targets. All rows have the same length.
#[derive(Debug)]
pub(super) struct RowColumns {
    pub file: MindRecordFile,
    /// The column of token ids.
    pub tokens: NumberColumn,
    /// The column of labels: token ids to predict, or negative numbers where nothing is predicted. If the file has no
    /// labels, it is the column of token ids.
    pub labels: NumberColumn,
    /// How many places further the label of a token is: 1 if each label is the token itself, 0 if it is the next token.
    pub shift: usize,
    /// The tokens and places whose labels are left out of the loss.
    pub mask: Mask,
    /// Number of tokens of a row that the model reads.
    pub seq_length: usize,
}

/// The labels that are left out of the loss, selected by their token or by a column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mask {
    /// Leaves out tokens with this id.
    pub pad: Option<i64>,
    /// Leaves out places where this column is 0.
    pub column: Option<NumberColumn>,
}

/// The tokens or the targets of all rows of a file, one after the other.
#[derive(Clone, Debug)]
pub struct TokensOfRows {
    reading: Arc<RowColumns>,
    is_targets: bool,
}

impl TokensOfRows {
    /// The stream of tokens and the stream of targets.
    pub(super) fn pair(reading: RowColumns) -> [Self; 2] {
        let reading = Arc::new(reading);
        [false, true].map(|is_targets| Self { reading: reading.clone(), is_targets })
    }

    /// Number of tokens, or of targets.
    pub(in crate::data) fn len(&self) -> usize {
        self.reading.file.rows() * self.reading.seq_length
    }

    /// Copies tokens or targets into `out`, from number `start` on.
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
    /// The tokens of a row from place `start` on. Elements that are missing because the file has changed since the
    /// start read as `NO_TOKEN`, which no vocabulary has.
    fn tokens(&self, row: usize, start: usize, out: &mut [u32]) {
        out.fill(NO_TOKEN);
        let ids = self.file.elements(row, self.tokens).skip(start);
        out.iter_mut().zip(ids).for_each(|(out, id)| *out = u32::try_from(id).unwrap_or(NO_TOKEN));
    }

    /// The targets of a row's tokens from place `start` on.
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
