//! `{% generation %}`, with which a template marks the text that the assistant writes.

/// The variables with which a template writes the marks.
pub(super) const MARK_NAMES: [&str; 2] = ["__generation_start__", "__generation_end__"];

/// Replaces `{% generation %}`, which Jinja does not know, with a block that writes marks, has the same whitespace
/// rules, and has a scope of its own.
pub(super) fn mark_generation(source: &str) -> String {
    let mark = |number: usize| format!("{{{{ {} }}}}", MARK_NAMES[number]);
    let mut marked = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start + 2..].find("%}") else { break };
        let end = start + 2 + length + 2;
        let inner = &rest[start + 2..end - 2];
        let word = inner.trim_matches(['-', '+']).trim();
        let left = if inner.starts_with('-') { "-" } else { "" };
        let right = if inner.ends_with('-') { "-" } else { "" };
        marked.push_str(&rest[..start]);
        match word {
            "generation" => {
                marked.push_str(&format!("{{%{left} with %}}{start}{{% if true {right}%}}", start = mark(0)));
            }
            "endgeneration" => {
                marked.push_str(&format!("{{%{left} endif %}}{end}{{% endwith {right}%}}", end = mark(1)));
            }
            _ => marked.push_str(&rest[start..end]),
        }
        rest = &rest[end..];
    }
    marked.push_str(rest);
    marked
}
