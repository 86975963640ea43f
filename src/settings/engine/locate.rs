//! The line on which a key was written. The parser keeps no positions, so this file reads the text again: block style
//! by indentation, and anchors through their definition. A value inside `{...}` or `[...]` has the line of the key that
//! holds the brackets.

/// The line (from 1) of the value at a dotted path, or of the deepest part of the path that can be found.
pub(super) fn line(text: &str, path: &str) -> usize {
    let entries = entries(text);
    let (mut children, mut line) = (0..entries.len(), 1);
    for key in path.split('.').filter(|key| !key.is_empty()) {
        let Some(index) = child(&entries, children, key) else { break };
        line = entries[index].line;
        let definition = entries[index]
            .alias
            .as_ref()
            .and_then(|alias| entries.iter().position(|entry| entry.anchor.as_ref() == Some(alias)));
        children = below(&entries, definition.unwrap_or(index));
    }
    line
}

/// A key or a list item, at the column where it starts.
struct Entry {
    line: usize,
    indent: usize,
    /// The key; nothing for the dash of a list item.
    key: Option<String>,
    anchor: Option<String>,
    alias: Option<String>,
}

fn entries(text: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut brackets = 0;
    // The indentation of the key that a block of literal text (`|`, `>`) belongs to.
    let mut literal: Option<usize> = None;
    for (index, raw) in text.lines().enumerate() {
        let content = raw.trim_start();
        let mut indent = raw.len() - content.len();
        if content.is_empty() || content.starts_with('#') || literal.is_some_and(|owner| indent > owner) {
            continue;
        }
        literal = None;
        let mut rest = content;
        if brackets == 0 {
            while let Some(item) =
                rest.strip_prefix('-').filter(|item| item.is_empty() || item.starts_with(' '))
            {
                let item = item.trim_start();
                let (anchor, alias) = marks(item);
                entries.push(Entry { line: index + 1, indent, key: None, anchor, alias });
                indent += rest.len() - item.len();
                rest = item;
            }
            if let Some((key, value)) = key_and_value(rest) {
                let (anchor, alias) = marks(value);
                entries.push(Entry { line: index + 1, indent, key: Some(key.to_string()), anchor, alias });
                if value.starts_with(['|', '>']) {
                    literal = Some(indent);
                }
            }
        }
        brackets = open_brackets(rest, brackets);
    }
    entries
}

/// The entries inside entry `index`.
fn below(entries: &[Entry], index: usize) -> std::ops::Range<usize> {
    let owner = &entries[index];
    let inside = |entry: &&Entry| {
        // The items of a key's list may stand at its own column.
        entry.indent > owner.indent
            || (entry.indent == owner.indent && owner.key.is_some() && entry.key.is_none())
    };
    index + 1..index + 1 + entries[index + 1..].iter().take_while(inside).count()
}

/// The entry for `key` (or the item with that number) directly inside `range`.
fn child(entries: &[Entry], range: std::ops::Range<usize>, key: &str) -> Option<usize> {
    let indent = entries.get(range.clone())?.first()?.indent;
    let mut direct = range.filter(|index| entries[*index].indent == indent).peekable();
    if direct.peek().is_some_and(|index| entries[*index].key.is_none()) {
        let number = key.parse().ok()?;
        return direct.filter(|index| entries[*index].key.is_none()).nth(number);
    }
    // If a key is there twice, the last one counts.
    direct.rfind(|index| entries[*index].key.as_deref() == Some(key))
}

/// Splits `key: value`; quotes around the key are taken off.
fn key_and_value(content: &str) -> Option<(&str, &str)> {
    let quote = content.chars().next().filter(|quote| matches!(quote, '"' | '\''));
    let end = match quote {
        Some(quote) => content[1..].find(quote)? + 2,
        None => content.match_indices(':').map(|(at, _)| at).find(|at| ends_key(&content[at + 1..]))?,
    };
    let value = content[end..].trim_start().strip_prefix(':').filter(|value| ends_key(value))?;
    let key = content[..end].trim_end();
    Some((quote.map_or(key, |quote| key.trim_matches(quote)), value.trim_start()))
}

fn ends_key(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with([' ', '\t'])
}

/// The anchor that `value` defines and the one it refers to.
fn marks(value: &str) -> (Option<String>, Option<String>) {
    let word = |prefix: char| {
        let name = value.strip_prefix(prefix)?.split_whitespace().next()?;
        Some(name.to_string())
    };
    (word('&'), word('*'))
}

/// How many brackets are open after `content`, quoted text and comments left out.
fn open_brackets(content: &str, mut open: usize) -> usize {
    let (mut quote, mut previous) = (None, ' ');
    for letter in content.chars() {
        match (quote, letter) {
            (Some(end), _) if letter == end => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(letter),
            (None, '#') if previous.is_whitespace() => break,
            (None, '[' | '{') => open += 1,
            (None, ']' | '}') => open = open.saturating_sub(1),
            _ => {}
        }
        previous = letter;
    }
    open
}

#[cfg(test)]
mod tests {
    use super::line;

    const TEXT: &str = "# comment: 1
seed: 0
train: &train   # note: here
  loader:
    type: X
    'quoted key': 1
list: [a: 1,
  b,
  seed: 2]
note: |
  seed: 3
callbacks:
- type: A
  every: 1
- every: 2
  type: B
deep:
    - - x: 1
    -
      y: 2
task:
  config: *train
last: { x: 1 }
";

    #[test]
    fn finds_lines() {
        let expected = [
            ("", 1),
            ("seed", 2),
            ("train", 3),
            ("train.loader.type", 5),
            ("train.loader.quoted key", 6),
            ("train.loader.missing", 4),
            ("list", 7),
            ("list.1", 7),
            ("note", 10),
            ("callbacks", 12),
            ("callbacks.0.type", 13),
            ("callbacks.0.every", 14),
            ("callbacks.1", 15),
            ("callbacks.1.type", 16),
            ("deep.0.0.x", 18),
            ("deep.1.y", 20),
            ("task.config", 22),
            ("task.config.loader.type", 5),
            ("last.x", 23),
            ("missing.key", 1),
        ];
        for (path, number) in expected {
            assert_eq!(line(TEXT, path), number, "{path}");
        }
    }

    #[test]
    fn of_repeated_keys_the_last_is_found() {
        assert_eq!(line("a:\n  b: 1\n  c: 1\nb: 1\nd:\n- b: 1\n- b: 2\nb: 3", "b"), 8);
        assert_eq!(line("a:\n  b: 1\n  c: {b: 1}\n  b: 1", "a.b"), 4);
        assert_eq!(line("a:\n  b: 1\n  c: {b: 1}\n  b: 1", "a.c.b"), 3);
    }
}
