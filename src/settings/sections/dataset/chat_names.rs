//! `map_function_kwargs` of a loader of conversations.

use crate::data::ChatForm;
use crate::settings::engine::*;

/// The names of a conversation's parts, `map_function_kwargs` of `SFTDataLoader`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatNames(ChatForm);

const NAMES: [&str; 5] =
    ["data_field", "from_keyword", "value_keyword", "user_role_name", "assistant_role_name"];

impl ChatNames {
    /// The names, without a template.
    pub(super) fn form(&self) -> ChatForm {
        self.0.clone()
    }

    fn of(form: &ChatForm) -> [&Option<String>; 5] {
        [&form.messages, &form.role, &form.content, &form.user, &form.assistant]
    }

    /// Reads the names; what else MindFormers' function takes is said by the chat template.
    pub(super) fn read(reader: &Reader<'_>, key: &'static str) -> Option<Self> {
        let node = reader.node(key)?;
        let Node::Map(entries) = node else {
            reader.fault(key, format!("expected {}, found {node}", Self::kind().expected()));
            return None;
        };
        let [messages, role, content, user, assistant] =
            NAMES.map(|name| node.get(name).and_then(String::from_node));
        for (other, _) in entries.iter().filter(|(name, _)| !NAMES.contains(&name.as_str())) {
            reader.note(key, format!("`{other}` is not read; the chat template says what surrounds a turn"));
        }
        Some(Self(ChatForm { messages, role, content, user, assistant, ..ChatForm::default() }))
    }
}

impl Setting for ChatNames {
    fn kind() -> ValueKind {
        ValueKind::Form("a section of names, such as `from_keyword`")
    }

    fn to_node(&self) -> Option<Node> {
        let named = NAMES.iter().zip(Self::of(&self.0));
        let pairs = named.filter_map(|(key, name)| Some((key.to_string(), name.as_deref()?.into())));
        let pairs: Vec<(String, Node)> = pairs.collect();
        (!pairs.is_empty()).then_some(Node::Map(pairs))
    }
}
