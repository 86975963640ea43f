//! The tokenizer of the tokenizers library. Only this file uses that library.

use std::ops::Range;
use std::path::{Path, PathBuf};

use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, DecoderWrapper, Encoding, PostProcessor, PreTokenizerWrapper, Token};
use twox_hash::XxHash3_128;

use super::special::AddedText;
use super::{Added, END_OF_TEXT, SMALLEST_VOCABULARY, SpecialTokens};
use crate::data::all_cores::on_all_cores;
use crate::durable::read_description;
use crate::error::{Error, Result, foreign};

/// Text is encoded in pieces of about this many bytes: of the first size where words surely end with lines, of the
/// second where they may not. The library needs 50 to 100 bytes of memory for each token of a piece.
const PIECE_BYTES: [usize; 2] = [1 << 18, 4 << 20];

/// The line ends at which a text may be cut: what a piece ends with, and what the next piece begins with. A cut lies
/// between two lines where neither the character before the line end nor the one after it is blank. GPT-2's words keep
/// a carriage return apart from the line feed after it; words of later tokenizers do not.
const LINE_ENDS: [[&str; 2]; 3] = [["\n", ""], ["\r\n", ""], ["\r", "\n"]];
/// The number of bytes from which on a piece ends at each of [`LINE_ENDS`].
type Cuts = [usize; LINE_ENDS.len()];

/// Lines between which a text may be cut, since tokenizers of common kinds make the same tokens of each line alone.
const LINES: [&str; 9] = [
    "The mill's 12 stones;\n",
    "    turn (slowly), and\n",
    "if x {\n",
    "\tgrind()\n",
    "Übermut — 麦、\n",
    "麦を挽く。\n",
    "\"Für Fräulein Ü\n",
    "12 Säcke\n",
    "— or 7\n",
];

/// What to do about a file that is not a tokenizer.
const REMEDY: &str = "name a tokenizer.json in Hugging Face's format";

/// Turns text into token ids and back, as its `tokenizer.json` defines.
///
/// A special token that is written in a text (`<|endoftext|>`) becomes its id; no special token is added to a text.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    file: PathBuf,
    vocab_size: usize,
    /// All ids that the model has are below this.
    limit: usize,
    added: Added,
    /// The sizes at which a long text is cut.
    cuts: Cuts,
    /// A hash of the files from which the tokenizer was read; `None` if it was trained.
    content: Option<u128>,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`, with the special tokens of the files beside it.
    ///
    /// # Errors
    /// If the file cannot be read, is not JSON, or is not a tokenizer.
    pub fn load(file: &Path) -> Result<Self> {
        let special = SpecialTokens::beside(file)?;
        let bytes = read_description(file)?;
        if let Err(error) = serde_json::from_slice::<serde::de::IgnoredAny>(&bytes) {
            let message = format!("is not valid JSON: {error}; {REMEDY}");
            return Err(Error::file(file, message));
        }
        let read = foreign(|| {
            let mut inner = tokenizers::Tokenizer::from_bytes(&bytes)?;
            add_tokens(&mut inner, &special)?;
            let files = [&bytes[..], format!("{special:?}").as_bytes()].concat();
            Ok(Self { content: Some(XxHash3_128::oneshot(&files)), ..Self::new(inner, file) })
        });
        read.unwrap_or_else(|panic| Err(panic.into())).map_err(|error| {
            let message = format!("is JSON but not a readable tokenizer ({}); {REMEDY}", one_line(&error));
            Error::file(file, message)
        })
    }

    /// Trains byte-level BPE on text. It has at most `vocab_size` tokens, of which token 0 is [`END_OF_TEXT`], and
    /// fewer if not enough pairs of tokens occur at least `min_frequency` times. The same text gives the same
    /// tokenizer. Training stops at the first error of `text` and returns it.
    ///
    /// # Errors
    /// If `vocab_size` is below [`SMALLEST_VOCABULARY`]; the errors of `text`.
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
        // As in GPT-2, no space is added before the first word.
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
        // A file may cut or pad texts to the window of the model it was made for; documents need neither.
        inner.with_padding(None);
        let _ = inner.with_truncation(None); // fails only for truncations with bad settings
        // Ids may have gaps, and the model needs a row for each id up to the largest.
        let vocab_size = inner.get_vocab(true).values().max().map_or(0, |id| *id as usize + 1);
        let added = foreign(|| added_by(&inner)).unwrap_or_default();
        let cuts = cuts_of(&inner);
        Self { inner, file: file.to_path_buf(), vocab_size, limit: usize::MAX, added, cuts, content: None }
    }

    /// This tokenizer for a model of `vocab_size` tokens. Added tokens may have larger ids, such as a `pad_token` that
    /// no text contains; a text that contains one is an error.
    ///
    /// # Errors
    /// If the tokenizer's own vocabulary, or what it adds to each text, has tokens that the model lacks.
    pub(in crate::data) fn within(self, vocab_size: usize) -> Result<Self> {
        let own = self.inner.get_vocab(false).into_values();
        let needed = own.chain(self.added.before.iter().chain(&self.added.after).copied()).max();
        match needed.filter(|id| *id as usize >= vocab_size) {
            Some(id) => {
                let message = format!(
                    "has tokens up to {id}, outside vocab_size {vocab_size}: raise model.model_config.vocab_size to at least {}",
                    id + 1
                );
                Err(Error::file(&self.file, message))
            }
            None => Ok(Self { limit: vocab_size, ..self }),
        }
    }

    /// The content of the `tokenizer.json`.
    ///
    /// # Errors
    /// If a part of the tokenizer cannot be written as JSON.
    pub fn to_json(&self) -> Result<String> {
        let failed =
            |error| Error::file(&self.file, format!("cannot be written as JSON: {}", one_line(&error)));
        self.inner.to_string(true).map(|json| json + "\n").map_err(failed)
    }

    /// A text that identifies everything that decides the tokens of a text; `None` if the tokenizer was trained.
    pub(in crate::data) fn identity(&self) -> Option<String> {
        self.content.map(|content| format!("{content:032x} below {}", self.limit))
    }

    /// The file from which the tokenizer was read, for messages.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// One more than the largest token id.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The id of the token with this spelling, if there is one that the model has.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token).filter(|id| (*id as usize) < self.limit)
    }

    /// The token ids of a text.
    ///
    /// # Errors
    /// If the tokenizer has no token for a part of the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        for piece in pieces(text, self.cuts) {
            ids.append(&mut self.encode_piece(piece)?);
        }
        Ok(ids)
    }

    /// The tokens that were added to the vocabulary, each with its id and whether it is special, by id.
    pub(crate) fn added_tokens(&self) -> Vec<(u32, String, bool)> {
        let tokens = self.inner.get_added_tokens_decoder().into_iter();
        let mut tokens: Vec<_> = tokens.map(|(id, token)| (id, token.content, token.special)).collect();
        tokens.sort_unstable();
        tokens
    }

    /// The tokens that the file's post-processor adds before and after a text.
    pub(in crate::data) fn added(&self) -> &Added {
        &self.added
    }

    /// The spellings of the tokens that are never split: special tokens, and other tokens that were added, except runs
    /// of blanks.
    pub(in crate::data) fn special_texts(&self) -> Vec<String> {
        let tokens = self.inner.get_added_tokens_decoder().into_values().map(|token| token.content);
        tokens.filter(|text| !text.trim().is_empty()).collect()
    }

    /// The token ids of a text, each with the bytes of the text that it stands for.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub(in crate::data) fn encode_with_ranges(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>> {
        let encoding = self.guard(|inner| inner.encode(text, false))?;
        let ranges = encoding.get_offsets().iter().map(|(start, end)| *start..*end);
        Ok(self.known(&encoding)?.iter().copied().zip(ranges).collect())
    }

    /// The token ids of each of `texts`, encoded on all cores.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_all(&self, texts: &[String]) -> Result<Vec<Vec<u32>>> {
        let mut all = vec![Vec::new(); texts.len()];
        let pieces = texts
            .iter()
            .enumerate()
            .flat_map(|(number, text)| pieces(text, self.cuts).map(move |piece| (number, piece)));
        self.encode_each(pieces, &mut |number, mut ids, _| {
            let text: &mut Vec<u32> = &mut all[number];
            if text.is_empty() {
                *text = ids
            } else {
                text.append(&mut ids)
            }
            true
        })?;
        Ok(all)
    }

    /// Calls `take` with the token ids of each piece of a text and the bytes of the piece, in order, until it returns
    /// false.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub(in crate::data) fn encode_pieces(
        &self,
        text: &str,
        take: &mut dyn FnMut(Vec<u32>, usize) -> bool,
    ) -> Result<()> {
        let pieces = pieces(text, self.cuts).map(|piece| (0, piece));
        self.encode_each(pieces, &mut |_, ids, bytes| take(ids, bytes))
    }

    /// As [`encode_pieces`](Self::encode_pieces), for pieces with a number each, which are encoded on all cores.
    fn encode_each<'a>(
        &self,
        mut pieces: impl Iterator<Item = (usize, &'a str)>,
        take: &mut dyn FnMut(usize, Vec<u32>, usize) -> bool,
    ) -> Result<()> {
        let mut failed = None;
        on_all_cores(
            1,
            |(_, piece): &(usize, &str)| piece.len(),
            |give| {
                pieces.all(give);
                Ok(())
            },
            |(number, piece)| (number, piece.len(), self.encode_piece(piece)),
            &mut |(number, bytes, ids): (usize, usize, Result<Vec<u32>>)| match ids {
                Ok(ids) => take(number, ids, bytes),
                Err(error) => {
                    failed = Some(error);
                    false
                }
            },
        )?;
        failed.map_or(Ok(()), Err)
    }

    fn encode_piece(&self, piece: &str) -> Result<Vec<u32>> {
        let encoding = self.guard(|inner| inner.encode_fast(piece, false))?;
        Ok(self.known(&encoding)?.to_vec())
    }

    /// The ids of an encoding, all of which the model must have.
    fn known<'a>(&self, encoding: &'a Encoding) -> Result<&'a [u32]> {
        let ids = encoding.get_ids();
        let Some(beyond) = ids.iter().find(|id| **id as usize >= self.limit) else { return Ok(ids) };
        let token = self.inner.id_to_token(*beyond).unwrap_or_default();
        let message = format!(
            "a text has the added token `{token}` of id {beyond}, outside vocab_size {}, so the model has no row for it: take it out of the \
             text, or name weights that have it",
            self.limit
        );
        Err(Error::file(&self.file, message))
    }

    /// The text of token ids. Ids that are not tokens are left out; special tokens are written as they are spelt.
    pub fn decode(&self, ids: &[u32]) -> String {
        foreign(|| self.inner.decode(ids, false).unwrap_or_default()).unwrap_or_default()
    }

    /// Calls the library with a text. Its errors and panics become errors about the tokenizer's file.
    fn guard<T>(&self, encode: impl FnOnce(&tokenizers::Tokenizer) -> tokenizers::Result<T>) -> Result<T> {
        foreign(|| encode(&self.inner)).unwrap_or_else(|panic| Err(panic.into())).map_err(|error| {
            let message = format!("cannot encode the text: {}; choose another tokenizer", one_line(&error));
            Error::file(&self.file, message)
        })
    }
}

/// Adds the tokens that `tokenizer.json` lacks, and tokens that replace one of its own. A special token that is in the
/// vocabulary as letters becomes a token of its own.
fn add_tokens(inner: &mut tokenizers::Tokenizer, special: &SpecialTokens) -> tokenizers::Result<()> {
    let known: Vec<String> =
        inner.get_added_tokens_decoder().values().map(|token| token.content.clone()).collect();
    let is_added =
        |token: &&AddedText| !token.text.is_empty() && (token.replaces || !known.contains(&token.text));
    let of_library = |token: &AddedText| {
        let [before, after] = token.strips;
        let added = AddedToken::from(token.text.as_str(), token.is_special).single_word(token.is_word);
        added.lstrip(before).rstrip(after).normalized(token.is_normalized())
    };
    let tokens: Vec<AddedToken> = special.added.iter().filter(is_added).map(of_library).collect();
    if !tokens.is_empty() {
        inner.add_tokens(tokens)?;
    }
    Ok(())
}

/// The tokens that the post-processor adds around a text, here a text of a single token.
fn added_by(inner: &tokenizers::Tokenizer) -> Added {
    let Some(processor) = inner.get_post_processor() else { return Added::default() };
    let text = Encoding::from_tokens(vec![Token::new(0, String::new(), (0, 0))], 0);
    let Ok(whole) = processor.process(text, None, true) else { return Added::default() };
    let (ids, mask) = (whole.get_ids(), whole.get_special_tokens_mask());
    let Some(place) = mask.iter().position(|is_added| *is_added == 0) else { return Added::default() };
    Added { before: ids[..place].to_vec(), after: ids[place + 1..].to_vec() }
}

/// The sizes at which texts are cut at each of [`LINE_ENDS`]: early if lines with this end surely have the same tokens
/// alone. If not, they are cut late, and never inside of a line end.
fn cuts_of(inner: &tokenizers::Tokenizer) -> Cuts {
    let [early, late] = PIECE_BYTES;
    let unsure = [late, late, usize::MAX];
    std::array::from_fn(|end| {
        let is_sure = foreign(|| encodes_lines_alone(inner, end)).unwrap_or(false);
        if is_sure { early } else { unsure[end] }
    })
}

/// Whether lines with this one of [`LINE_ENDS`] have the same tokens alone as within a text.
fn encodes_lines_alone(inner: &tokenizers::Tokenizer, end: usize) -> bool {
    let ids = |text: &str| inner.encode_fast(text, false).map(|encoding| encoding.get_ids().to_vec()).ok();
    let text = [LINES, LINES].concat().concat().replace('\n', &LINE_ENDS[end].concat());
    let whole = ids(&text);
    let mut cuts = [usize::MAX; LINE_ENDS.len()];
    cuts[end] = 1;
    let lines: Option<Vec<Vec<u32>>> = pieces(&text, cuts).map(ids).collect();
    whole.is_some() && whole == lines.map(|lines| lines.concat())
}

/// `text` in pieces, which are cut by `cuts` between two non-blank lines. The words of common tokenizers end there, so
/// that a piece encodes as it does within the whole text. A text without such a place is one piece.
fn pieces(text: &str, cuts: Cuts) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (piece, after) = rest.split_at(cut(rest, cuts).unwrap_or(rest.len()));
        rest = after;
        Some(piece)
    })
}

/// The first place where `text` is cut.
fn cut(text: &str, cuts: Cuts) -> Option<usize> {
    let is_end = |at: usize, [before, after]: [&str; 2]| {
        let [line, next] = [text[..at].strip_suffix(before), text[at..].strip_prefix(after)];
        line.is_some_and(|line| line.ends_with(|c: char| !c.is_whitespace()))
            && next.is_some_and(|next| next.starts_with(|c: char| !c.is_whitespace()))
    };
    let first = cuts.into_iter().min().unwrap_or(0).max(1);
    // The byte before a cut is ASCII, so it is never inside a character.
    (first..text.len())
        .filter(|at| matches!(text.as_bytes()[at - 1], b'\n' | b'\r'))
        .find(|&at| LINE_ENDS.into_iter().zip(cuts).any(|(end, from)| at >= from && is_end(at, end)))
}

fn one_line(error: &tokenizers::Error) -> String {
    error.to_string().replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trained() -> Tokenizer {
        let text = include_str!("../../../tests/data/mill.txt").to_string() + "x" + &"\r\n".repeat(999);
        Tokenizer::train([Ok(text)].into_iter(), 300, 2).unwrap()
    }

    #[test]
    fn pieces_encode_as_the_whole() {
        let tokenizer = trained();
        // The vocabulary joins the bytes of a line end. Where a text is cut depends on whether the tokenizer's words do
        // so, too.
        let [early, late] = PIECE_BYTES;
        assert_eq!(tokenizer.encode("\r\n").unwrap().len(), 1);
        assert_eq!(tokenizer.cuts, [early, late, early]);
        let text = "The mill, the mill;\nthe stones  turn。\n\n  And the miller's wheel\nturns — ünd tœrns ü\n麦を挽く。\n"
            .repeat(7);
        for text in [text.clone(), text.replace('\n', "\r\n"), text.clone() + &text.replace('\n', "\r\n")] {
            let whole = tokenizer.encode(&text).unwrap();
            for bytes in [1, 10, 50, 200, 10_000] {
                let cuts = tokenizer.cuts.map(|from| if from == early { bytes } else { usize::MAX });
                let pieces: Vec<&str> = pieces(&text, cuts).collect();
                assert_eq!(pieces.concat(), text);
                assert!(pieces.len() > 20 || bytes > 1, "{} pieces", pieces.len());
                let ids: Vec<u32> =
                    pieces.into_iter().flat_map(|piece| tokenizer.encode(piece).unwrap()).collect();
                assert_eq!(ids, whole, "in pieces of {bytes}");
            }
        }
        assert_eq!(pieces("no line ends here", [2; 3]).count(), 1);
        assert_eq!(pieces("a\n\nb\r\n\r\nc\n d \ne\n", [1; 3]).count(), 1, "blank lines and blanks");
        // A tokenizer that writes a blank before each text.
        let mut json: serde_json::Value = serde_json::from_str(&tokenizer.to_json().unwrap()).unwrap();
        json["pre_tokenizer"]["add_prefix_space"] = true.into();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("other.json");
        std::fs::write(&file, json.to_string()).unwrap();
        assert_eq!(Tokenizer::load(&file).unwrap().cuts, [late, late, usize::MAX]);
    }

    #[test]
    fn many_texts_encode_as_each_alone() {
        let tokenizer = trained();
        let mut texts: Vec<String> = (0..40).map(|i| format!("grain {i} of the mill")).collect();
        texts.extend(["The stones turn;\nthe wheel  turns.\n".repeat(40_000), String::new()]);
        assert!(texts.iter().any(|text| text.len() > 4 * PIECE_BYTES[0]));
        let each: Vec<Vec<u32>> = texts.iter().map(|text| tokenizer.encode(text).unwrap()).collect();
        assert_eq!(tokenizer.encode_all(&texts).unwrap(), each);
    }

    /// As in transformers, which loads such a tokenizer and lets the model fail at a text with the token.
    #[test]
    fn added_tokens_may_be_beyond_the_model() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokenizer.json");
        std::fs::write(&file, trained().to_json().unwrap()).unwrap();
        let config = r#"{"pad_token": "[PAD]", "additional_special_tokens": ["<x>"]}"#;
        std::fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
        let load = || Tokenizer::load(&file).unwrap();
        let count = load().vocab_size() - 2;
        let last = count as u32;
        let whole = load().within(count + 2).unwrap();
        assert_eq!(whole.encode("[PAD]").unwrap(), [last]);
        assert_eq!(whole.encode("<x>hi").unwrap()[0], last + 1);
        let smaller = load().within(count).unwrap();
        assert_eq!(smaller.encode("hi").unwrap(), whole.encode("hi").unwrap());
        assert_eq!((smaller.token_id("[PAD]"), whole.token_id("[PAD]")), (None, Some(last)));
        for error in [
            smaller.encode("a [PAD]").unwrap_err(),
            smaller.encode_with_ranges("a [PAD]").unwrap_err(),
            smaller.encode_all(&["a".to_string(), "[PAD]".to_string()]).unwrap_err(),
        ] {
            let error = error.to_string();
            assert!(error.contains(&format!("`[PAD]` of id {count}, outside vocab_size {count}")), "{error}");
        }
        let error = load().within(count - 1).unwrap_err().to_string();
        assert!(error.contains(&format!("has tokens up to {}, outside", count - 1)), "{error}");
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
