//! A conversation as text, the parts of it that are learned, and notes on what the template leaves out.

use std::collections::BTreeSet;
use std::ops::Range;

use super::conversation::{Conversation, KWARGS};
use super::message::Message;
use super::spans;
use super::template::{ChatTemplate, Marks};

/// A text of fewer bytes may occur by chance in what the template writes.
const SHORT: usize = 12;

/// A conversation that the template has written.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub text: String,
    /// The ranges of its bytes that are to be learned.
    pub learned: Vec<Range<usize>>,
    /// Notes on what is left out.
    pub notes: BTreeSet<String>,
}

/// The text of a conversation, and the ranges of its bytes that are to be learned: the content of `{% generation %}`
/// blocks, or, if a template has none, the text that a turn of the assistant adds after its prompt.
///
/// # Errors
/// If the template refuses the conversation, or does not tell where the assistant's turns begin.
pub(super) fn render(conversation: &Conversation, template: &ChatTemplate) -> Result<Written, String> {
    let all = conversation.messages.len();
    let marks = template.marks(conversation)?;
    let text = template.render(conversation, all, false, marks)?;
    let (text, learned) = match template.has_generation(conversation) {
        true => marked(conversation, &text, marks)?,
        false => {
            let learned = spans::find(conversation, template, &text, marks)?;
            (text, learned)
        }
    };
    let notes = left_out(conversation, template, &text, marks);
    Ok(Written { text, learned, notes })
}

/// Notes on what the template does not write: messages of a role, tools, keys that it does not name.
fn left_out(
    conversation: &Conversation,
    template: &ChatTemplate,
    text: &str,
    marks: Marks,
) -> BTreeSet<String> {
    let mut notes: BTreeSet<String> = conversation
        .keys
        .iter()
        .filter(|key| !template.names(key))
        .map(|key| format!("`{key}` of a message is not written by the chat template"))
        .collect();
    let unread = conversation.variables.iter().filter(|(name, _)| !template.reads(name));
    notes.extend(unread.map(|(name, _)| format!("`{name}` of `{KWARGS}` is not read by the chat template")));
    if conversation.tools.is_some() && !template.reads("tools") {
        notes.insert("`tools` are not written by the chat template".to_string());
    }
    let (mut at, mut doubtful) = (0, Vec::new());
    for (index, message) in conversation.messages.iter().enumerate() {
        for said in message.texts.iter().map(|said| said.trim()).filter(|said| !said.is_empty()) {
            match text[at..].find(said) {
                Some(place) => at += place + said.len(),
                None if text.contains(said) => {}
                None => doubtful.push(index),
            }
            if said.len() < SHORT {
                doubtful.push(index);
            }
        }
    }
    doubtful.dedup();
    let lacks = |index: &usize| !is_written(conversation, template, *index, text, marks);
    let dropped =
        doubtful.iter().filter(|index| lacks(index)).map(|index| &conversation.messages[*index].role);
    notes.extend(
        dropped.map(|role| format!("a message of the role `{role}` is left out by the chat template")),
    );
    notes
}

/// Whether a template writes the text of a message: whether a mark that is put into it is found in the output. For a
/// message of several parts, whether its texts are found.
fn is_written(
    conversation: &Conversation,
    template: &ChatTemplate,
    index: usize,
    text: &str,
    marks: Marks,
) -> bool {
    let mut marked = Conversation {
        messages: conversation.messages.clone(),
        tools: conversation.tools.clone(),
        variables: conversation.variables.clone(),
        ..Conversation::default()
    };
    let message = &mut marked.messages[index];
    let content = message.value.get_attr("content").unwrap_or_default();
    let Some(content) = content.as_str() else {
        return message.texts.iter().all(|said| text.contains(said.trim()));
    };
    let mark = marks[2];
    message.value = message.with_content(&format!("{}{mark}", content.trim_end()));
    let all = marked.messages.len();
    // If the template refuses the message with the mark, nothing is known.
    template.render(&marked, all, false, marks).map_or(true, |text| text.contains(mark))
}

/// The text without the marks, and the ranges between the marks, one for each turn of the assistant that is to be
/// learned.
fn marked(
    conversation: &Conversation,
    text: &str,
    marks: Marks,
) -> Result<(String, Vec<Range<usize>>), String> {
    let mut plain = String::with_capacity(text.len());
    let (mut ranges, mut start) = (Vec::new(), 0);
    for character in text.chars() {
        match character {
            mark if mark == marks[0] => start = plain.len(),
            mark if mark == marks[1] => ranges.push(start..plain.len()),
            character => plain.push(character),
        }
    }
    if ranges.is_empty() {
        return Err(
            "the chat template wrote no `{% generation %}` block for the assistant's turns; correct it"
                .to_string(),
        );
    }
    // Turns that are not to be learned are in blocks too.
    let is_spoken = |message: &&Message| message.role == "assistant";
    let spoken: Vec<bool> =
        conversation.messages.iter().filter(is_spoken).map(|message| message.is_learned).collect();
    if spoken.iter().all(|is_learned| *is_learned) {
        return Ok((plain, ranges));
    }
    if spoken.len() != ranges.len() {
        return Err(format!(
            "the chat template wrote {} `{{% generation %}}` blocks for {} turns of the assistant, so those with `loss: False` cannot be \
             told from the others; let it write a block for each, or leave these turns out",
            ranges.len(),
            spoken.len()
        ));
    }
    let mut wanted = spoken.into_iter();
    ranges.retain(|_| wanted.next().unwrap_or(true));
    Ok((plain, ranges))
}
