//! A conversation as text, and which parts of it the assistant wrote.

use std::ops::Range;

use super::conversation::{Conversation, Message};
use super::template::{ChatTemplate, Marks};

/// The text of a conversation, and the ranges of its bytes that are to be learned: what `{% generation %}` blocks contain,
/// or where a template has none, what a turn of the assistant adds to the text up to its prompt.
///
/// # Errors
/// If the template refuses the conversation, or does not tell where the assistant's turns begin.
pub(super) fn render(
    conversation: &Conversation,
    template: &ChatTemplate,
) -> Result<(String, Vec<Range<usize>>), String> {
    let all = conversation.messages.len();
    let marks = template.marks(conversation)?;
    let text = template.render(conversation, all, false, marks)?;
    if template.has_generation {
        return marked(conversation, &text, marks);
    }
    let mut turns = Vec::new();
    for (index, message) in conversation.messages.iter().enumerate().filter(|(_, message)| message.is_learned)
    {
        let before = template.render(conversation, index, true, marks)?;
        let after = template.render(conversation, index + 1, false, marks)?;
        let number = index + 1;
        let (Some(turn), true) = (after.strip_prefix(&before), text.starts_with(&after)) else {
            return Err(format!(
                "the chat template writes message {number} differently depending on what follows it, so the assistant's text cannot be told apart; use a template with `{{% generation %}}` blocks"
            ));
        };
        let start = message.start.as_deref().unwrap_or_default().trim();
        if !turn.trim_start().starts_with(start) {
            return Err(format!(
                "the chat template has no generation prompt before message {number}, so the assistant's text cannot be told apart; let it heed `add_generation_prompt`, or use a template with `{{% generation %}}` blocks"
            ));
        }
        turns.push(before.len()..after.len());
    }
    Ok((text, turns))
}

/// The text without the marks, and the ranges between them, one for each turn of the assistant that is to be learned.
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
    // Turns that are not to be learned are blocks too.
    let is_spoken = |message: &&Message| {
        message.value.get_attr("role").is_ok_and(|role| role.as_str() == Some("assistant"))
    };
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
