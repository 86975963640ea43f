//! A key that the command line sets.

use super::path::is_below;

/// One key that the command line sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The flag as typed, for messages.
    pub flag: String,
    /// The dotted path of the key; items of lists are numbered from 0.
    pub path: String,
    /// The value, in YAML.
    pub value: String,
}

impl Override {
    /// Whether it sets the value at the dotted path `section`, or one in it.
    pub(super) fn lies_within(&self, section: &str) -> bool {
        is_below(&self.path, section)
    }
}
