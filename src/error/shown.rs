//! Text from files, shown in messages.

use std::borrow::Cow;
use std::ops::RangeInclusive;

/// Characters that terminals do not show, or that change the direction of the text after them: soft hyphens, zero-width
/// spaces, marks of direction, tags.
const UNSEEN: [RangeInclusive<char>; 10] = [
    '\u{ad}'..='\u{ad}',
    '\u{61c}'..='\u{61c}',
    '\u{115f}'..='\u{1160}',
    '\u{180e}'..='\u{180e}',
    '\u{200b}'..='\u{200f}',
    '\u{2028}'..='\u{202e}',
    '\u{2060}'..='\u{206f}',
    '\u{feff}'..='\u{feff}',
    '\u{fff9}'..='\u{fffb}',
    '\u{e0000}'..='\u{e007f}',
];

/// `text` with its invisible characters written as in Rust: `\u{200b}`, `\u{1b}`. Two keys that look alike can then be
/// told apart, and no file can move the cursor. Line ends and tabs stay.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    let is_unseen = |c: char| {
        (c.is_control() && !matches!(c, '\n' | '\t')) || UNSEEN.iter().any(|range| range.contains(&c))
    };
    if !text.contains(is_unseen) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_unseen(c) { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use crate::error::Error;

    #[test]
    fn what_cannot_be_seen_is_written_out() {
        for (name, shown) in [
            ("role", "role"),
            ("ro\u{200b}le", r"ro\u{200b}le"),
            ("\u{feff}messages", r"\u{feff}messages"),
            ("a\u{202e}b", r"a\u{202e}b"),
            ("\u{1b}[31mred", r"\u{1b}[31mred"),
            ("a\rb\0", r"a\u{d}b\u{0}"),
            ("Übergröße, 磨, नमस्ते", "Übergröße, 磨, नमस्ते"),
        ] {
            let error = Error::file(name, format!("has `{name}`"));
            assert_eq!(error.to_string(), format!("{shown}: has `{shown}`"));
            let both = Error::Several(vec![error.clone(), error]);
            assert_eq!(both.to_string().lines().count(), 2);
        }
    }
}
