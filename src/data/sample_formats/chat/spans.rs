//! Finds the parts of a text that the assistant wrote, where the template does not mark them with `{% generation %}`.
//!
//! The span of an answer is the text that the template writes for its message after the generation prompt: the answer,
//! what the template adds to it (such as an empty block of thoughts), and the end of the turn. In turns before the last
//! one, parts of it may be missing or the end may differ.

use std::ops::Range;

use super::conversation::Conversation;
use super::template::{ChatTemplate, Marks};

/// The spans of the turns that are learned, in the `text` that the template wrote of the conversation.
///
/// # Errors
/// If the template refuses a part of the conversation, or does not tell where a turn is.
pub(super) fn find(
    conversation: &Conversation,
    template: &ChatTemplate,
    text: &str,
    marks: Marks,
) -> Result<Vec<Range<usize>>, String> {
    let (mut spans, mut from) = (Vec::new(), 0);
    let spoken = conversation.messages.iter().enumerate().filter(|(_, message)| message.role == "assistant");
    for (index, message) in spoken {
        let number = index + 1;
        let is_last = number == conversation.messages.len();
        let after = match is_last {
            true => text.to_string(),
            false => template.render(conversation, number, false, marks)?,
        };
        let said = message.texts.iter().chain(&message.calls);
        let said: Vec<&str> = said.filter_map(|text| Some(text.trim().lines().last()?.trim())).collect();
        let [unasked, before] = match template.render(conversation, index, true, marks) {
            // By far the most turns are exactly the text that follows the prompt.
            Ok(before)
                if template.reads("add_generation_prompt")
                    && after.starts_with(&before)
                    && text.starts_with(&after) =>
            {
                from = after.len();
                spans.extend(Some(before.len()..from).filter(|_| message.is_learned));
                continue;
            }
            Ok(before) => [template.render(conversation, index, false, marks)?, before],
            // Some templates refuse to ask for the first message; they are asked for the message after the last one.
            Err(refusal) if index == 0 => {
                let asked = template.render(conversation, conversation.messages.len(), true, marks)?;
                let prompt = asked.strip_prefix(text).filter(|prompt| !prompt.is_empty());
                let place =
                    prompt.and_then(|prompt| Some(after.find(prompt)?..after.find(prompt)? + prompt.len()));
                let Range { start, end } = place.ok_or(refusal)?;
                [after[..start].to_string(), after[..end].to_string()]
            }
            Err(refusal) => return Err(refusal),
        };
        if !template.reads("add_generation_prompt")
            && unasked == before
            && !said.iter().any(|said| after[common(&before, &after)..].trim_start().starts_with(said))
        {
            return Err(format!(
                "the chat template has no generation prompt before message {number}, so the assistant's text cannot be told apart; let it heed `add_generation_prompt`, or use a template with `{{% generation %}}` blocks"
            ));
        }
        let turn = Turn {
            asked: common(&unasked, &before),
            // The prompt may open a block that a message without thoughts lacks; the common part is before the answer.
            start: common(&before, &after),
            after: &after,
            said,
            ends: &template.ends,
        };
        let is_told = turn.start >= unasked.len();
        match turn.place(text, from).filter(|_| is_told) {
            Some(span) => {
                from = span.end;
                spans.extend(Some(span).filter(|_| message.is_learned));
            }
            None if !message.is_learned => {}
            None => {
                return Err(format!(
                    "the chat template writes message {number} differently depending on what follows it, so the assistant's text cannot be told apart; use a template with `{{% generation %}}` blocks"
                ));
            }
        }
    }
    Ok(spans)
}

/// A turn of the assistant, as it is written where it is the last turn.
struct Turn<'a> {
    /// The conversation up to the end of the turn.
    after: &'a str,
    /// Where the prompt with which the template asks for an answer begins in `after`.
    asked: usize,
    /// Where the turn begins in `after`.
    start: usize,
    /// The last line of each text of the message, and of each tool that it calls.
    said: Vec<&'a str>,
    /// The special tokens, one of which ends the turn.
    ends: &'a [String],
}

impl Turn<'_> {
    /// The range of the turn in the text of the whole conversation, after `from`.
    fn place(&self, whole: &str, from: usize) -> Option<Range<usize>> {
        let turn = &self.after[self.start..];
        // In turns before the last one, the template may not write everything that its prompt opens (thoughts).
        let prompt = self.after.get(self.asked..self.start)?;
        let cuts = prompt.rmatch_indices('\n').map(|(at, _)| self.asked + at + 1);
        let starts: Vec<usize> =
            [self.start].into_iter().chain(cuts.filter(|cut| *cut < self.start)).collect();
        for start in &starts {
            if let Some(rest) = whole.strip_prefix(&self.after[..*start])
                && let Some(length) = self.length(&self.after[*start..], rest)
            {
                return Some(*start..*start + length);
            }
        }
        // The text before the turn depends on what follows it, so the prompt is searched for.
        for start in &starts {
            let prompt = &self.after[self.asked..*start];
            for (place, _) in whole[from..].match_indices(prompt).filter(|_| !prompt.trim().is_empty()) {
                let place = from + place + prompt.len();
                let rest = &whole[place..];
                let one = &rest[..rest.find(prompt).unwrap_or(rest.len())];
                if let Some(length) = self.length(&self.after[*start..], one) {
                    return Some(place..place + length);
                }
            }
        }
        let place = from + whole[from..].find(turn).filter(|_| self.is_in(turn))?;
        Some(place..place + turn.len())
    }

    /// Whether a text contains something that the message says.
    fn is_in(&self, text: &str) -> bool {
        self.said.iter().any(|said| !said.is_empty() && text.contains(said))
    }

    /// The length of `turn` at the start of `rest`: as it is, without a part that turns before the last one lack
    /// (thoughts or an empty block of them), or up to another end.
    fn length(&self, turn: &str, rest: &str) -> Option<usize> {
        if rest.starts_with(turn) {
            return Some(turn.len());
        }
        let same = common(rest, turn);
        let mut tails = turn[same..].char_indices().map(|(at, _)| &turn[same + at..]);
        let tail = tails.find(|tail| rest[same..].starts_with(tail)).filter(|tail| !tail.trim().is_empty());
        if let Some(tail) = tail.filter(|tail| self.is_in(tail) || self.is_in(&turn[..same])) {
            return Some(same + tail.len());
        }
        let places = self.said.iter().filter(|said| !said.is_empty());
        let said = places.filter_map(|said| Some(rest.find(said)? + said.len())).max();
        // A turn may contain nothing that the message says.
        let said = said.or_else(|| (!self.is_in(turn)).then_some(0))?;
        let end =
            self.ends.iter().filter_map(|end| Some(rest[said..].find(end.as_str())? + end.len())).min()?;
        Some(said + end)
    }
}

/// Bytes of the common prefix of two texts.
fn common(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
}
