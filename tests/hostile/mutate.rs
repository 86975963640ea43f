//! Damage to a file: one to four changes, of bytes, numbers, words or stretches.

use gristmill::random::Philox;
use serde_json::Value;

/// Texts that readers of text meet rarely.
const TEXTS: &[&str] = &[
    "-1",
    "0",
    "1e999",
    "-1e-999",
    "NaN",
    "null",
    "true",
    "{}",
    "[]",
    "\"\"",
    "\"",
    "18446744073709551616",
    "4294967296",
    "9223372036854775807",
    "2147483648",
    "99999999999999999999999999",
    "0.0000001",
    "\u{feff}",
    "\u{0}",
    "\u{d7ff}",
    "\\ud800",
    "[[[[[[[[",
    "{\"a\":",
    "{% for i in range(99999) %}",
    "{% endfor %}",
    "{{",
    "}}",
    "|tojson",
    "..",
    "/etc/passwd",
    "*",
    "&a",
    "*a",
    "<<: *a",
    "!!binary",
    "? ",
    "- - - -",
    "\t",
    "\r\n",
    "\n\n",
    ",",
    ":",
    "}",
    "]",
];

/// Numbers that lengths, offsets and counts of binary files should not be.
const NUMBERS: &[u64] = &[
    0,
    1,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// The damaged file number `number` made of `sound`.
pub fn mutated(sound: &[u8], number: u64) -> Vec<u8> {
    let mut draws = Draws { random: Philox::new(number, 0x6d75_7461), next: 0 };
    if draws.below(2) == 0
        && let Some(json) = changed_json(sound, &mut draws)
    {
        return json;
    }
    let mut bytes = sound.to_vec();
    for _ in 0..1 + draws.below(4) {
        change(&mut bytes, &mut draws);
    }
    bytes
}

struct Draws {
    random: Philox,
    next: u64,
}

impl Draws {
    /// A number below `count`, which is above 0.
    fn below(&mut self, count: usize) -> usize {
        self.next += 1;
        ((u64::from(self.random.block(self.next)[0]) * count as u64) >> 32) as usize
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

fn change(bytes: &mut Vec<u8>, draws: &mut Draws) {
    if bytes.is_empty() {
        return bytes.push(draws.below(256) as u8);
    }
    let at = draws.below(bytes.len());
    // Headers and footers decide more than the middle does.
    let near_an_end = match draws.below(3) {
        0 => at.min(at % 64),
        1 => bytes.len() - 1 - at % bytes.len().min(64),
        _ => at,
    };
    let stretch = |draws: &mut Draws, from: usize, len: usize| from..(from + 1 + draws.below(40)).min(len);
    match draws.below(11) {
        0 => bytes[at] ^= 1 << draws.below(8),
        1 => bytes[near_an_end] = draws.below(256) as u8,
        2 => bytes.truncate(at),
        3 => drop(bytes.drain(stretch(draws, at, bytes.len()))),
        4 => {
            let copied = bytes[stretch(draws, at, bytes.len())].to_vec();
            let to = draws.below(bytes.len());
            bytes.splice(to..to, copied);
        }
        5 | 6 => {
            let number = draws.of(NUMBERS).to_le_bytes();
            let width = *draws.of(&[1, 2, 4, 8]);
            let from = if draws.below(2) == 0 { at } else { near_an_end } / width * width;
            bytes.iter_mut().skip(from).zip(&number[..width]).for_each(|(byte, new)| *byte = *new);
        }
        7 => {
            let text = draws.of(TEXTS).as_bytes();
            bytes.splice(at..at, text.iter().copied());
        }
        8 | 9 => {
            let (text, word) = (draws.of(TEXTS).as_bytes(), word_at(bytes, at));
            bytes.splice(word, text.iter().copied());
        }
        _ => {
            let (one, other) = (word_at(bytes, at), word_at(bytes, draws.below(bytes.len())));
            let copied = bytes[one].to_vec();
            bytes.splice(other, copied);
        }
    }
}

/// JSON, or lines of it, in which a value is another: what is no JSON never gets past the parser.
fn changed_json(sound: &[u8], draws: &mut Draws) -> Option<Vec<u8>> {
    if let Ok(mut root) = serde_json::from_slice::<Value>(sound) {
        (0..1 + draws.below(2)).for_each(|_| change_value(&mut root, draws));
        return serde_json::to_vec(&root).ok();
    }
    let mut lines: Vec<&[u8]> = sound.split(|byte| *byte == b'\n').collect();
    let at = draws.below(lines.len());
    let mut line: Value = serde_json::from_slice(lines[at]).ok()?;
    change_value(&mut line, draws);
    let line = serde_json::to_vec(&line).ok()?;
    lines[at] = &line;
    Some(lines.join(&b'\n'))
}

/// Replaces or removes a value somewhere in `root`.
fn change_value(root: &mut Value, draws: &mut Draws) {
    let mut value = root;
    // Values near the root decide more than the entries of a vocabulary do, so each level may be the last.
    loop {
        let count = match &*value {
            Value::Array(items) => items.len(),
            Value::Object(fields) => fields.len(),
            _ => 0,
        };
        if count == 0 || draws.below(4) == 0 {
            break;
        }
        let at = draws.below(count);
        let removes = draws.below(12) == 0;
        match value {
            Value::Array(items) if removes => return drop(items.remove(at)),
            Value::Array(items) => value = &mut items[at],
            Value::Object(fields) => {
                let key = fields.keys().nth(at).cloned().expect("a key");
                if removes {
                    return drop(fields.remove(&key));
                }
                value = fields.get_mut(&key).expect("a value");
            }
            _ => unreachable!("only these have values"),
        }
    }
    let number = draws.below(VALUES.len());
    *value = serde_json::from_str(VALUES[number]).expect("JSON");
}

/// Values of every type.
const VALUES: &[&str] = &[
    "null",
    "true",
    "false",
    "0",
    "-1",
    "1",
    "2",
    "1e308",
    "4294967296",
    "18446744073709551615",
    "-9223372036854775808",
    "0.5",
    "\"\"",
    "\"a\"",
    "\"\\u0000\"",
    "\"\\ufffd\\u0120the\"",
    "\"(\"",
    "\"[^\\\\s]+\"",
    "\"####\"",
    "\"ByteLevel\"",
    "\"BPE\"",
    "\"Sequence\"",
    "[]",
    "{}",
    "[[]]",
    "[0]",
    "[-1, 4294967296]",
    "[\"a\", \"b\"]",
    "{\"a\": 0}",
    "{\"type\": \"Sequence\"}",
];

/// The letters and digits around a place.
fn word_at(bytes: &[u8], at: usize) -> std::ops::Range<usize> {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.-".contains(byte);
    let start = at - bytes[..at].iter().rev().take_while(|byte| is_word(byte)).count();
    start..at + bytes[at..].iter().take_while(|byte| is_word(byte)).count()
}
