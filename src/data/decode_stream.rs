//! Token ids decoded into text one at a time.

use super::codec::Codec;

/// The replacement character: bytes that are not a character, or not yet, are decoded to it.
const REPLACEMENT: char = '\u{fffd}';

/// A character has at most 4 bytes, so the next token may turn at most 3 replacement characters into one character.
const INCOMPLETE: usize = 3;

/// If this many tokens do not end with a whole character, the text is broken, and only the last half of them is kept.
const MOST_KEPT: usize = 32;

/// Decodes tokens one at a time into parts of text. Concatenated, the parts are the text that [`Codec::decode`] returns
/// for all tokens at once; no part ends within a character, and the cost of a token does not grow with the text.
///
/// How a tokenizer spells a token may depend on the one before it (the space of the first word is left out), so the
/// tokens of the previous part are kept and decoded again with those of the next.
#[derive(Debug)]
pub struct DecodeStream<'a> {
    codec: &'a Codec,
    /// The tokens of the previous part, then those of the next.
    kept: Vec<u32>,
    /// How many of `kept` belong to the previous part.
    previous: usize,
    /// The part of the text of `kept` that was returned already.
    shown: String,
}

impl<'a> DecodeStream<'a> {
    /// A stream without tokens.
    pub fn new(codec: &'a Codec) -> Self {
        Self { codec, kept: Vec::new(), previous: 0, shown: String::new() }
    }

    /// The text that `token` completes; empty if the token ends within a character.
    pub fn push(&mut self, token: u32) -> String {
        self.kept.push(token);
        let text = self.codec.decode(&self.kept);
        if text == self.shown {
            self.kept.pop(); // a token without text must not displace one with text
            return String::new();
        }
        let whole = &text[..whole_bytes(&text)];
        let is_whole = whole.len() == text.len();
        // Some tokenizers replace whole characters too while the one after them is incomplete.
        let may_show = is_whole || whole.starts_with(&self.shown);
        let part = if may_show { after(&self.shown, whole).to_string() } else { String::new() };
        if is_whole {
            self.kept.drain(..self.previous);
            self.previous = self.kept.len();
            self.shown = self.codec.decode(&self.kept);
        } else if self.kept.len() > MOST_KEPT {
            self.kept.drain(..MOST_KEPT / 2);
            self.previous = 0;
            let text = self.codec.decode(&self.kept);
            self.shown = text[..whole_bytes(&text)].to_string();
        } else if may_show {
            self.shown = whole.to_string();
        }
        part
    }

    /// The rest of the text after the last token: the replacement characters of an incomplete character.
    pub fn finish(self) -> String {
        after(&self.shown, &self.codec.decode(&self.kept)).to_string()
    }
}

/// The rest of `text` after its common prefix with `shown`. The two may differ before the end of `shown`: a tokenizer
/// that joins words may now spell it differently, but the text that was returned cannot be taken back.
fn after<'t>(shown: &str, text: &'t str) -> &'t str {
    let agree = shown.chars().zip(text.chars()).take_while(|(a, b)| a == b);
    &text[agree.map(|(a, _)| a.len_utf8()).sum()..]
}

/// The length of `text` in bytes, without the replacement characters at its end that the next token may change.
fn whole_bytes(text: &str) -> usize {
    let replacements = text.chars().rev().take(INCOMPLETE).take_while(|&c| c == REPLACEMENT).count();
    text.len() - replacements * REPLACEMENT.len_utf8()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::tokenizer::Tokenizer;
    use crate::random::Philox;
    use std::sync::Arc;

    const BYTES: Codec = Codec::Bytes { eod: 0 };

    fn bpe() -> Codec {
        let text = include_str!("../../tests/data/mill.txt").to_string();
        let tokenizer = Tokenizer::train([Ok(text)].into_iter(), 300, 2).unwrap();
        Codec::Tokenizer { tokenizer: Arc::new(tokenizer), eos_token: "<|endoftext|>".into() }
    }

    /// The parts of `ids`, which must add up to their text.
    #[track_caller]
    fn parts(codec: &Codec, ids: &[u32]) -> Vec<String> {
        let mut stream = DecodeStream::new(codec);
        let mut parts = Vec::new();
        for &id in ids {
            parts.push(stream.push(id));
            assert!(stream.kept.len() <= MOST_KEPT + 1, "{} tokens are kept", stream.kept.len());
        }
        parts.push(stream.finish());
        assert_eq!(parts.concat(), codec.decode(ids), "{ids:?}");
        parts
    }

    #[test]
    fn no_part_ends_within_a_character() {
        let text = "The miller — der Müller, 粉屋 🌾🌾 — grinds.";
        for codec in [BYTES, bpe()] {
            let parts = parts(&codec, &codec.encode(text).unwrap());
            assert!(parts.iter().all(|part| !part.contains(REPLACEMENT)), "{parts:?}");
            assert!(parts.iter().filter(|part| !part.is_empty()).count() > 20, "{parts:?}");
            assert_eq!(parts.concat(), text);
        }
    }

    #[test]
    fn the_parts_of_any_tokens_add_up_to_their_text() {
        let random = Philox::new(3, 0);
        for codec in [BYTES, bpe()] {
            for case in 0..200u64 {
                // Ids up to 320 include some that neither codec has; half of the cases are mostly parts of characters.
                let ids: Vec<u32> = (0..60)
                    .map(|i| {
                        let [kind, id] = [0, 1].map(|k| random.uniform((case * 60 + i) * 2 + k));
                        match kind < 0.5 && case % 2 == 0 {
                            true => 128 + (id * 128.0) as u32,
                            false => (id * 320.0) as u32,
                        }
                    })
                    .collect();
                parts(&codec, &ids);
            }
        }
    }

    #[test]
    fn a_text_that_never_becomes_whole_is_not_held_back() {
        let codec = BYTES;
        for ids in [vec![0x80; 500], vec![0xf0; 500], [0xe4, 0xbd].repeat(250)] {
            let parts = parts(&codec, &ids);
            assert!(parts.last().is_some_and(|last| last.chars().count() <= INCOMPLETE), "{parts:?}");
        }
    }
}
