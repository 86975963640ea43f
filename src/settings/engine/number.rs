//! Numbers as YAML 1.1 writes them, which PyYAML reads and the parser takes for text: `1_000`, `010` (8), `0b101`,
//! `1:30` (90). They stay text in the tree, since a key may want text; a key that wants a number reads it here.

/// The whole number that PyYAML reads in `text`.
pub(super) fn whole(text: &str) -> Option<i128> {
    let (is_negative, digits) = signed(text);
    let number = match digits.as_bytes() {
        [b'0', b'b', ..] => based(&digits[2..], 2),
        [b'0', b'x', ..] => based(&digits[2..], 16),
        [b'0'] => Some(0),
        [b'0', ..] => based(&digits[1..], 8),
        [b'1'..=b'9', ..] => sexagesimal(digits).or_else(|| based(digits, 10)),
        _ => None,
    }?;
    Some(if is_negative { -number } else { number })
}

/// The number that PyYAML reads in `text`, or that the text means: `1e-5` without a dot is text to PyYAML, but real
/// files write it.
pub(super) fn real(text: &str) -> Option<f64> {
    if let Some((minutes, seconds)) = text.rsplit_once(':')
        && let Some(minutes) = whole(minutes)
    {
        let seconds = real(seconds).filter(|_| is_below_sixty(seconds))?;
        let minutes = minutes as f64 * 60.0;
        return Some(if text.starts_with('-') { minutes - seconds } else { minutes + seconds });
    }
    // Neither `08` nor `inf` is a number.
    let starts_as_number = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.');
    text.as_bytes().first().filter(|byte| starts_as_number(byte) && text.contains(['.', 'e', 'E']))?;
    text.replace('_', "").parse().ok()
}

/// Whether `text` has a minus sign, and the text after the sign.
fn signed(text: &str) -> (bool, &str) {
    match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    }
}

/// The number of `digits` in base `base`; underscores may stand between the digits.
fn based(digits: &str, base: u32) -> Option<i128> {
    // A second sign would be accepted by the standard library.
    let is_digit = |digit: char| digit == '_' || digit.is_digit(base);
    digits.chars().all(is_digit).then(|| i128::from_str_radix(&digits.replace('_', ""), base).ok())?
}

/// The number of groups of digits with colons between them: digits of base 60, of which the first may be larger.
fn sexagesimal(text: &str) -> Option<i128> {
    let (first, groups) = text.split_once(':')?;
    groups.split(':').try_fold(based(first, 10)?, |number, group| {
        let group = based(group, 10).filter(|_| is_below_sixty(group) && !group.contains('_'))?;
        number.checked_mul(60)?.checked_add(group)
    })
}

/// Whether digits, and a fraction if there is one, are what YAML 1.1 allows after a colon: 0 to 59, or 00 to 59.
fn is_below_sixty(digits: &str) -> bool {
    let whole = digits.split('.').next().unwrap_or_default();
    whole.len() <= 2 && whole.parse::<u8>().is_ok_and(|number| number < 60)
}

#[cfg(test)]
mod tests {
    use crate::settings::engine::node::Node;
    use crate::settings::engine::setting::Setting;
    use crate::settings::engine::yaml;

    const SCALARS: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/yaml_scalars.tsv"));

    /// Whether `text` is text to PyYAML, and a number here where a key wants one: exponents without a sign or a dot,
    /// and YAML 1.2's octal numbers.
    fn is_lenient(text: &str) -> bool {
        text.contains(['e', 'E']) || text.contains("0o") || matches!(text, "-.5" | "+.5")
    }

    #[test]
    fn scalars_mean_what_pyyaml_reads() {
        let rows = SCALARS.lines().filter(|line| !line.starts_with('#'));
        for row in rows {
            let [scalar, kind, value] = row.split('\t').collect::<Vec<_>>()[..] else {
                panic!("three columns: {row}")
            };
            let root = yaml::parse(&format!("key: {scalar}")).map(|parsed| parsed.root);
            let root = root.unwrap_or_else(|error| panic!("{scalar}: {error:?}"));
            let node = root.get("key").unwrap_or_else(|| panic!("{scalar} has no value"));
            match kind {
                "int" => {
                    let wanted: i128 = value.parse().unwrap();
                    assert_eq!(super::super::setting::whole::<i128>(node), Some(wanted), "{scalar}");
                    assert_eq!(f64::from_node(node), Some(wanted as f64), "{scalar}");
                }
                "float" => {
                    let wanted: f64 = value.parse().unwrap();
                    assert_eq!(f64::from_node(node), wanted.is_finite().then_some(wanted), "{scalar}");
                }
                "bool" => assert_eq!(bool::from_node(node), Some(value == "True"), "{scalar}"),
                "NoneType" => assert!(node.is_none(), "{scalar}"),
                "str" if is_lenient(scalar) => {}
                "str" => {
                    assert_eq!(*node, Node::Text(scalar.to_string()));
                    assert_eq!(
                        (i64::from_node(node), f64::from_node(node), bool::from_node(node)),
                        (None, None, None),
                        "{scalar}"
                    );
                }
                _ => assert_eq!(*node, Node::Text(scalar.to_string())),
            }
        }
    }
}
