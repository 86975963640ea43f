//! What a sample of a conversation is made of.

use std::path::PathBuf;

/// A sample is a conversation as the chat template writes it; the turns of the assistant are predicted, with what ends
/// them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatForm {
    /// Key of the list of messages; `None`: `messages` or `conversations`.
    pub messages: Option<String>,
    /// Key of a message's role; `None`: `role` or `from`.
    pub role: Option<String>,
    /// Key of its text; `None`: `content` or `value`.
    pub content: Option<String>,
    /// The user's role; `None`: `user` or `human`.
    pub user: Option<String>,
    /// The assistant's role; `None`: `assistant` or `gpt`.
    pub assistant: Option<String>,
    /// A file of the chat template; `None`: that of the tokenizer.
    pub template: Option<PathBuf>,
    /// Whether prompts and completions, and instructions, are written without the chat template.
    pub raw: bool,
}
