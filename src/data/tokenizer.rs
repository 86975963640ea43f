//! Tokenizers of Hugging Face's format, and byte-level BPE trained on text. The only file that knows the library.

use std::path::{Path, PathBuf};

use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, DecoderWrapper, PreTokenizerWrapper};

use super::files;
use crate::error::{Error, Result};

/// The token that ends a document, unless told otherwise: GPT-2's.
pub const END_OF_TEXT: &str = "<|endoftext|>";

/// Byte-level BPE cannot have fewer tokens: all 256 bytes and [`END_OF_TEXT`].
pub const SMALLEST_VOCABULARY: usize = 257;

/// Text is encoded in pieces of at most about this many bytes, since the library holds 50 to 100 bytes a token meanwhile.
const PIECE_BYTES: usize = 4 << 20;

/// Turns text into token ids and back, as its `tokenizer.json` says.
///
/// Special tokens that a text spells out (`<|endoftext|>`) become their ids; none is added to a text on its own.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    file: PathBuf,
    vocab_size: usize,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// If it is missing, no JSON, or JSON but no tokenizer.
    pub fn load(file: &Path) -> Result<Self> {
        let bytes = files::read(file)?;
        if let Err(error) = serde_json::from_slice::<serde::de::IgnoredAny>(&bytes) {
            let message =
                format!("is not valid JSON: {error}; name a tokenizer.json of Hugging Face's format");
            return Err(Error::file(file, message));
        }
        let inner = tokenizers::Tokenizer::from_bytes(&bytes).map_err(|error| {
            let message = format!(
                "is JSON but no tokenizer that can be read ({}); name a tokenizer.json of Hugging Face's format",
                one_line(&error)
            );
            Error::file(file, message)
        })?;
        Ok(Self::new(inner, file))
    }

    /// Trains byte-level BPE with `vocab_size` tokens, of which token 0 is [`END_OF_TEXT`], on text. A pair of tokens that
    /// occurs less often than `min_frequency` is not merged, so that there may be fewer. The same text gives the same
    /// tokenizer. Training stops at the first error of `text` and returns it.
    ///
    /// # Errors
    /// If `vocab_size` is below [`SMALLEST_VOCABULARY`]; those of `text`.
    pub fn train(
        text: impl Iterator<Item = Result<String>> + Send,
        vocab_size: usize,
        min_frequency: u64,
    ) -> Result<Self> {
        if vocab_size < SMALLEST_VOCABULARY {
            let message = format!(
                "a vocabulary of {vocab_size} is too small: byte-level BPE needs {SMALLEST_VOCABULARY} tokens (256 bytes and {END_OF_TEXT})"
            );
            return Err(Error::Plan(message));
        }
        let trainer = BpeTrainerBuilder::new()
            .show_progress(false)
            .vocab_size(vocab_size)
            .min_frequency(min_frequency)
            .special_tokens(vec![AddedToken::from(END_OF_TEXT, true)])
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .build();
        let mut inner = tokenizers::Tokenizer::new(BPE::default());
        // As in GPT-2: no space before the first word, and the offsets that nothing here reads are left alone.
        inner.with_pre_tokenizer(Some(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, true))));
        inner.with_decoder(Some(DecoderWrapper::ByteLevel(ByteLevel::default())));
        let mut failed = None;
        let text = text.map_while(|piece| piece.map_err(|error| failed = Some(error)).ok());
        let trained = inner.train(&mut TrainerWrapper::from(trainer), text).map(|_| ());
        if let Some(error) = failed {
            return Err(error);
        }
        trained
            .map_err(|error| Error::Plan(format!("training the tokenizer failed: {}", one_line(&error))))?;
        Ok(Self::new(inner, Path::new("the trained tokenizer")))
    }

    fn new(mut inner: tokenizers::Tokenizer, file: &Path) -> Self {
        // A file may ask for the window of the model it was made for: documents would be cut there, or filled up to it.
        inner.with_padding(None);
        let _ = inner.with_truncation(None); // fails only where there is a truncation that does not fit
        // Ids may have gaps, so the number of tokens does not say how many rows the model needs.
        let vocab_size = inner.get_vocab(true).values().max().map_or(0, |id| *id as usize + 1);
        Self { inner, file: file.to_path_buf(), vocab_size }
    }

    /// The content of a `tokenizer.json`.
    ///
    /// # Errors
    /// If a part of the tokenizer has no such form.
    pub fn to_json(&self) -> Result<String> {
        let failed =
            |error| Error::file(&self.file, format!("cannot be written as JSON: {}", one_line(&error)));
        self.inner.to_string(true).map(|json| json + "\n").map_err(failed)
    }

    /// The file it was read from.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// One more than the largest token id.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The id of a token by its spelling.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The token ids of a text.
    ///
    /// # Errors
    /// If the tokenizer has no token for a part of it.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        for piece in pieces(text, PIECE_BYTES) {
            let encoding = self.inner.encode_fast(piece, false).map_err(|error| self.fails(&error))?;
            ids.extend_from_slice(encoding.get_ids());
        }
        Ok(ids)
    }

    /// The token ids of each of `texts`, on all cores.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_all(&self, texts: &[String]) -> Result<Vec<Vec<u32>>> {
        if texts.iter().any(|text| text.len() > PIECE_BYTES) {
            return texts.iter().map(|text| self.encode(text)).collect();
        }
        let texts = texts.iter().map(String::as_str).collect();
        let encodings = self.inner.encode_batch_fast(texts, false).map_err(|error| self.fails(&error))?;
        Ok(encodings.iter().map(|encoding| encoding.get_ids().to_vec()).collect())
    }

    /// The text of token ids; ids that are no tokens are left out, special tokens are spelt out.
    pub fn decode(&self, ids: &[u32]) -> String {
        self.inner.decode(ids, false).unwrap_or_default()
    }

    fn fails(&self, error: &tokenizers::Error) -> Error {
        let message = format!("cannot encode the text: {}; choose another tokenizer", one_line(error));
        Error::file(&self.file, message)
    }
}

/// `text` in pieces of about `bytes`, cut between two lines that are not blank, where the words of common tokenizers end:
/// a piece encodes to what it would in the whole. A text without such a place stays whole.
fn pieces(text: &str, bytes: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (piece, after) = rest.split_at(cut(rest, bytes).unwrap_or(rest.len()));
        rest = after;
        Some(piece)
    })
}

fn cut(text: &str, at: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    // Between bytes of ASCII, so never inside a character; what follows may be any character that is not white space.
    (at.max(2)..bytes.len()).find(|&i| {
        bytes[i - 1] == b'\n'
            && bytes[i - 2].is_ascii_graphic()
            && text[i..].starts_with(|c: char| !c.is_whitespace())
    })
}

fn one_line(error: &tokenizers::Error) -> String {
    error.to_string().replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trained() -> Tokenizer {
        let text = include_str!("../../tests/data/mill.txt").to_string();
        Tokenizer::train([Ok(text)].into_iter(), 300, 2).unwrap()
    }

    #[test]
    fn pieces_encode_as_the_whole() {
        let tokenizer = trained();
        let text = "The mill, the mill;\nthe stones  turn.\n\n  And the miller's wheel\nturns — ünd tœrns\n"
            .repeat(7);
        let whole = tokenizer.encode(&text).unwrap();
        for bytes in [1, 10, 50, 200, 10_000] {
            let pieces: Vec<&str> = pieces(&text, bytes).collect();
            assert_eq!(pieces.concat(), text);
            let ids: Vec<u32> =
                pieces.into_iter().flat_map(|piece| tokenizer.encode(piece).unwrap()).collect();
            assert_eq!(ids, whole, "in pieces of {bytes}");
        }
        assert!(pieces(&text, 1).count() > 7);
        assert_eq!(pieces("no line ends here", 2).count(), 1);
    }

    #[test]
    fn many_texts_encode_as_each_alone() {
        let tokenizer = trained();
        let texts: Vec<String> = (0..40).map(|i| format!("grain {i} of the mill")).collect();
        let each: Vec<Vec<u32>> = texts.iter().map(|text| tokenizer.encode(text).unwrap()).collect();
        assert_eq!(tokenizer.encode_all(&texts).unwrap(), each);
    }

    #[test]
    fn an_error_of_the_text_ends_training() {
        let text =
            vec![Ok("some text".to_string()), Err(Error::Plan("broken".into())), Ok("more".to_string())];
        let error = Tokenizer::train(text.into_iter(), 300, 2).unwrap_err().to_string();
        assert_eq!(error, "broken");
        let error = Tokenizer::train(std::iter::empty(), 256, 2).unwrap_err().to_string();
        assert!(error.starts_with("a vocabulary of 256 is too small"), "{error}");
    }
}
