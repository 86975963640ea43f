//! The form of conversations as samples.

use std::path::PathBuf;

/// A sample is a conversation as the chat template writes it. The turns of the assistant are predicted, each with the
/// tokens that end it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatForm {
    /// Key of the list of messages; `None`: `messages` or `conversations`.
    pub messages: Option<String>,
    /// Key of a message's role; `None`: `role` or `from`.
    pub role: Option<String>,
    /// Key of a message's text; `None`: `content` or `value`.
    pub content: Option<String>,
    /// The user's role; `None`: `user` or `human`.
    pub user: Option<String>,
    /// The assistant's role; `None`: `assistant` or `gpt`.
    pub assistant: Option<String>,
    /// A file with the chat template; `None`: the template of the tokenizer.
    pub template: Option<PathBuf>,
    /// Whether prompts and completions, and instructions, are written without the chat template.
    pub raw: bool,
}
