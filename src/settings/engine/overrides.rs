//! A key that the command line sets.

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

/// Whether `path` is `ancestor` or something in it; everything is in the whole, whose path is empty.
pub(super) fn is_below(path: &str, ancestor: &str) -> bool {
    let rest = path.strip_prefix(ancestor);
    ancestor.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}
