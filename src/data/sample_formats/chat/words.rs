//! The keys that a template names, from which follows what it leaves out of messages. The engine tells which variables
//! it reads.

use std::collections::BTreeSet;

/// Names in the code of templates (within `{{ }}` and `{% %}`) that may be keys of a value: after a dot
/// (`message.name`), or in quotes (`message['name']`).
#[derive(Debug, Default)]
pub(super) struct Words(BTreeSet<String>);

impl Words {
    /// Whether `key` is one of the names.
    pub fn contains(&self, key: &str) -> bool {
        self.0.contains(key)
    }

    /// The names in some templates.
    pub fn of<'a>(sources: impl IntoIterator<Item = &'a str>) -> Self {
        let mut words = Self::default();
        for source in sources {
            let mut rest = source;
            while let Some(at) =
                rest.find("{{").into_iter().chain(rest.find("{%")).chain(rest.find("{#")).min()
            {
                let (start, after) = rest[at..].split_at(2);
                rest = match start {
                    "{#" => after.find("#}").map_or("", |end| &after[end..]),
                    "{{" => words.code(after, "}}"),
                    _ => words.code(after, "%}"),
                };
            }
        }
        words
    }

    /// Takes the names of code up to its `end`, and returns the text after it.
    fn code<'a>(&mut self, mut rest: &'a str, end: &str) -> &'a str {
        let mut before = ' ';
        while let Some(first) = rest.chars().next().filter(|_| !rest.starts_with(end)) {
            let length = match first {
                '\'' | '"' => quoted(rest, first),
                _ if is_of_name(first) => rest.find(|letter| !is_of_name(letter)).unwrap_or(rest.len()),
                _ => first.len_utf8(),
            };
            let (token, after) = rest.split_at(length);
            match first {
                '\'' | '"' => drop(self.0.insert(token.trim_matches(first).to_string())),
                _ if is_of_name(first) && before == '.' => drop(self.0.insert(token.to_string())),
                _ => {}
            }
            if !first.is_whitespace() {
                before = first;
            }
            rest = after;
        }
        rest
    }
}

fn is_of_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// Number of bytes of a text in quotes, including the quotes.
fn quoted(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    let end = text.char_indices().skip(1).find(|(_, letter)| {
        let ends = *letter == quote && !is_escaped;
        is_escaped = *letter == '\\' && !is_escaped;
        ends
    });
    end.map_or(text.len(), |(at, _)| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_whole_and_of_code() {
        let words = Words::of([
            "{# message.gone #}name: {%- for message in messages -%}{{ message['role'] + \"it's }} \\\" 'a'\" }}{% endfor %}",
            "{% if thinking is defined and m . content|trim %}{{ m.get('tool_calls') }}{% endif %} m.prose {{ open",
        ]);
        let all = words.0.iter().cloned().collect::<Vec<_>>().join(" ");
        assert_eq!(all, "content get it's }} \\\" 'a' role tool_calls");
    }
}
