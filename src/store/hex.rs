//! Hashes as files and messages show them: 16 hexadecimal digits, which no JSON reader rounds.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The digits of a hash.
pub(crate) fn hex(number: u64) -> String {
    format!("{number:016x}")
}

pub(super) fn serialize<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&hex(*number))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let digits = String::deserialize(deserializer)?;
    let is_hex = digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = is_hex.then(|| u64::from_str_radix(&digits, 16).ok()).flatten();
    number.ok_or_else(|| de::Error::custom(format!("`{digits}` is not 16 hexadecimal digits")))
}

/// Reads and writes a hash that may be unknown.
pub(super) mod optional {
    use super::{Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(number: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
        number.map(super::hex).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
        super::deserialize(deserializer).map(Some)
    }
}
