//! Token ids into text as they come, one after the other.

use super::codec::Codec;

/// What bytes that are no character (yet) are shown as.
const UNREADABLE: char = '\u{fffd}';

/// A character has at most 4 bytes, so at most 3 signs may become a character with the next token.
const INCOMPLETE: usize = 3;

/// Where so many tokens end within a character, the text is broken, and only the last half of them is kept.
const MOST_KEPT: usize = 32;

/// Text that appears token by token. All parts together are what [`Codec::decode`] makes of all tokens at once, and no part
/// ends within a character; a token costs the same wherever it stands.
///
/// A tokenizer may spell a token by what stands before it (a word's space is not spelt at the start), so the tokens of the
/// previous part are kept and decoded again with those of the next.
#[derive(Debug)]
pub struct Decoding<'a> {
    codec: &'a Codec,
    /// The tokens of the previous part, and after them those of the next.
    kept: Vec<u32>,
    /// How many of them are of the previous part.
    previous: usize,
    /// The text of `kept` that was handed out.
    shown: String,
}

impl<'a> Decoding<'a> {
    /// Before the first token.
    pub fn new(codec: &'a Codec) -> Self {
        Self { codec, kept: Vec::new(), previous: 0, shown: String::new() }
    }

    /// The text that `token` makes whole, if any.
    pub fn push(&mut self, token: u32) -> String {
        self.kept.push(token);
        let text = self.codec.decode(&self.kept);
        if text == self.shown {
            self.kept.pop(); // it has no text, so it must not take the place of one that has
            return String::new();
        }
        let whole = &text[..whole_bytes(&text)];
        let is_whole = whole.len() == text.len();
        // Some tokenizers spell whole characters as unreadable too while the one after them is incomplete.
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

    /// What is left when no more tokens come: the signs of a character that stays incomplete.
    pub fn finish(self) -> String {
        after(&self.shown, &self.codec.decode(&self.kept)).to_string()
    }
}

/// What `text` has more than `shown`. A tokenizer that joins words may spell the end of `shown` otherwise now; what is out
/// stays out, so `text` is taken from where the two part.
fn after<'t>(shown: &str, text: &'t str) -> &'t str {
    let agree = shown.chars().zip(text.chars()).take_while(|(a, b)| a == b);
    &text[agree.map(|(a, _)| a.len_utf8()).sum()..]
}

/// The length of `text` without the signs at its end that the next token may change.
fn whole_bytes(text: &str) -> usize {
    let signs = text.chars().rev().take(INCOMPLETE).take_while(|&c| c == UNREADABLE).count();
    text.len() - signs * UNREADABLE.len_utf8()
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

    /// The parts of `ids`, which together must be their text.
    #[track_caller]
    fn parts(codec: &Codec, ids: &[u32]) -> Vec<String> {
        let mut decoding = Decoding::new(codec);
        let mut parts = Vec::new();
        for &id in ids {
            parts.push(decoding.push(id));
            assert!(decoding.kept.len() <= MOST_KEPT + 1, "{} tokens are kept", decoding.kept.len());
        }
        parts.push(decoding.finish());
        assert_eq!(parts.concat(), codec.decode(ids), "{ids:?}");
        parts
    }

    #[test]
    fn no_part_ends_within_a_character() {
        let text = "The miller — der Müller, 粉屋 🌾🌾 — grinds.";
        for codec in [BYTES, bpe()] {
            let parts = parts(&codec, &codec.encode(text).unwrap());
            assert!(parts.iter().all(|part| !part.contains(UNREADABLE)), "{parts:?}");
            assert!(parts.iter().filter(|part| !part.is_empty()).count() > 20, "{parts:?}");
            assert_eq!(parts.concat(), text);
        }
    }

    #[test]
    fn the_parts_of_anything_are_the_whole() {
        let random = Philox::new(3, 0);
        for codec in [BYTES, bpe()] {
            for case in 0..200u64 {
                // Ids up to 320 are no tokens of either; half of the cases are mostly bytes within characters.
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
