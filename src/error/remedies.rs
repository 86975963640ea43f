//! Remedies that are a part of a command line.

use std::path::Path;

/// `text` as one word of a command line, quoted for a POSIX shell if necessary.
pub(crate) fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_@%+=:,./-".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_string(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// The remedy that starts a new run from the weights of a checkpoint that a run cannot continue. `place` is the
/// command's name for the folder of a run.
pub(crate) fn new_run_from(checkpoint: &Path, place: &str) -> String {
    let weights = shell_word(&format!("--load_checkpoint={}", checkpoint.display()));
    format!("start a new run from its weights, by {weights} and another {place}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remedy_can_be_pasted_into_a_shell() {
        let remedy = |path: &str| new_run_from(Path::new(path), "folder");
        assert_eq!(
            remedy("out/step_1"),
            "start a new run from its weights, by --load_checkpoint=out/step_1 and another folder"
        );
        assert!(remedy("my runs/it's").contains(r" '--load_checkpoint=my runs/it'\''s' and"));
    }
}
