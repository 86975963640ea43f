//! Counts as messages write them.

/// `1 file`, `2 files`.
pub(crate) fn plural(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// `1 binary file and 2 empty documents skipped`; empty if nothing was skipped.
pub(super) fn skipped(binary_files: u64, empty_documents: u64) -> String {
    let counts = [(binary_files, "binary file"), (empty_documents, "empty document")];
    let counts: Vec<String> =
        counts.into_iter().filter(|(count, _)| *count > 0).map(|(count, noun)| plural(count, noun)).collect();
    if counts.is_empty() { String::new() } else { format!("{} skipped", counts.join(" and ")) }
}
