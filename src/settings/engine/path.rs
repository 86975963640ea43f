//! Dotted paths of keys; the path of the whole document is empty.

/// The path of `key` in the section at `path`.
pub(crate) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_string() } else { format!("{path}.{key}") }
}

/// The section that holds `path`, and its key there.
pub(super) fn parent_and_key(path: &str) -> (&str, &str) {
    path.rsplit_once('.').unwrap_or(("", path))
}

/// Whether `path` is `ancestor` or something in it; everything is in the whole, whose path is empty.
pub(super) fn is_below(path: &str, ancestor: &str) -> bool {
    let rest = path.strip_prefix(ancestor);
    ancestor.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}
