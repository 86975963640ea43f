//! The tokenizer of a build without the feature `tokenizers`: its constructors are errors that name the feature.

use std::ops::Range;
use std::path::Path;

use super::Added;
use crate::error::{Error, Result};

/// What to do about the missing feature.
const REMEDY: &str = "build gristmill with the feature `tokenizers`, which is on by default";

/// Turns text into token ids and back. There is none in this build: it lacks the feature `tokenizers`.
#[derive(Clone, Debug)]
pub enum Tokenizer {}

impl Tokenizer {
    /// Reads no `tokenizer.json` in this build.
    ///
    /// # Errors
    /// Always.
    pub fn load(file: &Path) -> Result<Self> {
        Err(Error::file(file, format!("this build reads no tokenizers; {REMEDY}")))
    }

    /// Trains nothing in this build.
    ///
    /// # Errors
    /// Always.
    pub fn train(
        _: impl Iterator<Item = Result<String>> + Send,
        _vocab_size: usize,
        _min_frequency: u64,
    ) -> Result<Self> {
        Err(Error::Plan(format!("this build trains no tokenizers; {REMEDY}")))
    }

    /// The content of the `tokenizer.json`.
    ///
    /// # Errors
    /// None.
    pub fn to_json(&self) -> Result<String> {
        match *self {}
    }

    /// A text that identifies everything that decides the tokens of a text.
    pub(in crate::data) fn identity(&self) -> Option<String> {
        match *self {}
    }

    /// The file from which the tokenizer was read, for messages.
    pub fn file(&self) -> &Path {
        match *self {}
    }

    /// This tokenizer for a model of some number of tokens.
    ///
    /// # Errors
    /// None.
    pub(in crate::data) fn within(self, _: usize) -> Result<Self> {
        match self {}
    }

    /// One more than the largest token id.
    pub fn vocab_size(&self) -> usize {
        match *self {}
    }

    /// The id of the token with this spelling, if there is one.
    pub fn token_id(&self, _: &str) -> Option<u32> {
        match *self {}
    }

    /// The token ids of a text.
    ///
    /// # Errors
    /// None.
    pub fn encode(&self, _: &str) -> Result<Vec<u32>> {
        match *self {}
    }

    /// The tokens that were added to the vocabulary.
    pub(crate) fn added_tokens(&self) -> Vec<(u32, String, bool)> {
        match *self {}
    }

    /// The tokens that are added to a text.
    pub(in crate::data) fn added(&self) -> &Added {
        match *self {}
    }

    /// The spellings of the special tokens.
    pub(in crate::data) fn special_texts(&self) -> Vec<String> {
        match *self {}
    }

    /// The token ids of a text, each with its bytes.
    pub(in crate::data) fn encode_with_ranges(&self, _: &str) -> Result<Vec<(u32, Range<usize>)>> {
        match *self {}
    }

    /// The token ids of each piece of a text.
    pub(in crate::data) fn encode_pieces(
        &self,
        _: &str,
        _: &mut dyn FnMut(Vec<u32>, usize) -> bool,
    ) -> Result<()> {
        match *self {}
    }

    /// The token ids of each of some texts.
    ///
    /// # Errors
    /// None.
    pub fn encode_all(&self, _: &[String]) -> Result<Vec<Vec<u32>>> {
        match *self {}
    }

    /// The text of token ids.
    pub fn decode(&self, _: &[u32]) -> String {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_feature() {
        let load = Tokenizer::load(Path::new("tokenizer.json")).unwrap_err().to_string();
        let train = Tokenizer::train(std::iter::empty(), 300, 2).unwrap_err().to_string();
        assert!(load.starts_with("tokenizer.json: ") && load.contains("feature `tokenizers`"), "{load}");
        assert!(train.contains("feature `tokenizers`"), "{train}");
    }
}
