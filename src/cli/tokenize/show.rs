//! `tokenize --show`: what is learned of the first records of a file.

use crate::cli::output::print;
use crate::cli::trained::open;
use crate::data::{ChatForm, Codec, DecodeStream, FileKind, Form, LearnedSample, plural};
use crate::error::{Error, Result};
use std::io::{IsTerminal, stdout};
use std::path::Path;

/// What stands before and after text that is learned.
#[derive(Clone, Copy)]
struct Marks([&'static str; 2]);

const COLOURED: Marks = Marks(["\x1b[32m", "\x1b[0m"]);
const BRACKETS: Marks = Marks(["⟦", "⟧"]);

/// Prints the first `count` records of the file `data` as the model learns them, with what is predicted in green, or in
/// brackets where no terminal is or `NO_COLOR` is set.
///
/// # Errors
/// A model without a tokenizer; records that are not learned from; a file that cannot be read.
pub(super) fn show(data: &Path, model: &Path, count: u64, chat: &ChatForm) -> Result<()> {
    let codec = open(model, &[])?.plan.codec()?;
    let kind = FileKind::of(data, chat, false)?;
    let samples = kind.learned(data, &codec, count)?;
    if kind == FileKind::Text {
        return Err(Error::file(
            data,
            "is a text, all of which is learned; name records (JSON lines, CSV, Parquet)",
        ));
    }
    let marks =
        if stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() { COLOURED } else { BRACKETS };
    let is_pairs = matches!(kind, FileKind::Answers(Form::Preference(_)));
    for (number, sample) in samples.iter().enumerate() {
        let name = match is_pairs {
            true => format!("pair {}, {}", number / 2 + 1, ["chosen", "rejected"][number % 2]),
            false => format!("sample {}", number + 1),
        };
        let learned = sample.is_learned.iter().filter(|is_learned| **is_learned).count();
        let tokens = plural(sample.tokens.len() as u64, "token");
        let text =
            format!("{name}: {tokens}, {learned} of them learned\n{}\n\n", marked(sample, &codec, marks));
        if print(&text).is_break() {
            break;
        }
    }
    Ok(())
}

/// The text of a sample, with `marks` around what is learned.
fn marked(sample: &LearnedSample, codec: &Codec, Marks([begins, ends]): Marks) -> String {
    let (mut text, mut stream, mut is_within) = (String::new(), DecodeStream::new(codec), false);
    for (token, is_learned) in sample.tokens.iter().zip(&sample.is_learned) {
        if *is_learned != is_within {
            text += if *is_learned { begins } else { ends };
            is_within = *is_learned;
        }
        text += &stream.push(*token);
    }
    text += &stream.finish();
    if is_within { text + ends } else { text }
}
