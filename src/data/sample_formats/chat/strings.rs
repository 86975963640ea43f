//! Methods of strings that Python has and the engine lacks.

use minijinja::value::{Tuple, from_args};
use minijinja::{Error, ErrorKind, Value};

/// Calls a method of strings; `None` if this file has no method of this name.
pub(super) fn string_method(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let width = |fill: char| -> Result<(usize, char), Error> {
        let (width, with): (usize, Option<&str>) = from_args(args)?;
        let given = with.and_then(|with| with.chars().next()).unwrap_or(fill);
        Ok((width.min(MOST_FILLED).saturating_sub(text.chars().count()), given))
    };
    let filled = |before: usize, after: usize, with: char| {
        let fill = |count: usize| std::iter::repeat_n(with, count).collect::<String>();
        Value::from(fill(before) + text + &fill(after))
    };
    let all = |is: fn(char) -> bool| Value::from(!text.is_empty() && text.chars().all(is));
    Ok(Some(match name {
        "ljust" => width(' ').map(|(fill, with)| filled(0, fill, with))?,
        "rjust" => width(' ').map(|(fill, with)| filled(fill, 0, with))?,
        "center" => {
            let (fill, with) = width(' ')?;
            // An odd rest goes to the left where the width is odd.
            let left = fill / 2 + (fill & (fill + text.chars().count()) & 1);
            filled(left, fill - left, with)
        }
        "zfill" => {
            let (fill, _) = width('0')?;
            let sign = if text.starts_with(['+', '-']) { 1 } else { 0 };
            Value::from(format!("{}{}{}", &text[..sign], "0".repeat(fill), &text[sign..]))
        }
        "removeprefix" | "removesuffix" => {
            let (part,): (&str,) = from_args(args)?;
            let rest = if name == "removeprefix" { text.strip_prefix(part) } else { text.strip_suffix(part) };
            Value::from(rest.unwrap_or(text))
        }
        "partition" | "rpartition" => {
            let (by,): (&str,) = from_args(args)?;
            let parts = if name == "partition" { text.split_once(by) } else { text.rsplit_once(by) };
            let parts = match (parts, name) {
                (Some((before, after)), _) => [before, by, after],
                (None, "partition") => [text, "", ""],
                (None, _) => ["", "", text],
            };
            Tuple::new(parts.map(Value::from).to_vec()).into()
        }
        "rsplit" => {
            let (by, most): (Option<&str>, Option<i64>) = from_args(args)?;
            let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX - 1);
            let mut parts: Vec<&str> = match by {
                Some(by) => text.rsplitn(most + 1, by).collect(),
                None => rsplit_blank(text, most),
            };
            parts.reverse();
            parts.into_iter().map(Value::from).collect::<Vec<Value>>().into()
        }
        "index" | "rindex" => {
            let (part,): (&str,) = from_args(args)?;
            let place = if name == "index" { text.find(part) } else { text.rfind(part) };
            let missing = || Error::new(ErrorKind::InvalidOperation, "substring not found");
            Value::from(text[..place.ok_or_else(missing)?].chars().count())
        }
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            let items: Vec<Value> = items.try_iter()?.collect();
            let texts: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
            let no_text =
                || Error::new(ErrorKind::InvalidOperation, "`join` is given an item that is no text");
            Value::from(texts.ok_or_else(no_text)?.join(text))
        }
        "swapcase" => {
            let swap = |letter: char| match letter.is_lowercase() {
                true => letter.to_uppercase().to_string(),
                false => letter.to_lowercase().to_string(),
            };
            Value::from(text.chars().map(swap).collect::<String>())
        }
        "casefold" => Value::from(text.to_lowercase()),
        "isdigit" | "isdecimal" => all(|letter| letter.is_ascii_digit()),
        "isnumeric" => all(char::is_numeric),
        _ => return Ok(None),
    }))
}

/// The greatest length, in characters, to which a text is filled.
const MOST_FILLED: usize = 1 << 16;

/// The words of a text, from the last to the first. After `most` words are split off, the rest is the last part.
fn rsplit_blank(text: &str, most: usize) -> Vec<&str> {
    let (mut parts, mut rest) = (Vec::new(), text.trim_end());
    while !rest.is_empty() {
        let start = rest.rfind(char::is_whitespace).filter(|_| parts.len() < most);
        let start = start.map_or(0, |at| at + rest[at..].chars().next().map_or(0, char::len_utf8));
        let part = if start == 0 { rest.trim_start() } else { &rest[start..] };
        parts.push(part);
        rest = rest[..start].trim_end();
    }
    parts
}
