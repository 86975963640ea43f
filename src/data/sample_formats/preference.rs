//! Records of two answers to the same prompt, `chosen` and `rejected`, as two records of a prompt and a completion.
//!
//! The forms are those that TRL reads: with a `prompt`, or with answers that begin alike (implicit prompt); each a
//! text or a list of messages. LLaMA-Factory's are read, too: the prompt as `messages`, `conversations` or
//! `instruction`, an answer as one message.

use minijinja::Value;
use minijinja::value::ValueKind;
use serde_json::Map;

use super::chat::{is_list, root};
use crate::data::records::Record;
use crate::error::Result;

/// The keys of both answers.
pub(in crate::data) const ANSWERS: [&str; 2] = ["chosen", "rejected"];
/// Keys under which a prompt stands, other than the prefix of both answers.
const PROMPTS: [&str; 3] = ["prompt", "messages", "conversations"];

/// Whether a record holds two answers of which one is preferred.
pub(in crate::data) fn has_answers(record: &Record) -> bool {
    ANSWERS.iter().all(|key| record.fields.contains_key(*key))
}

/// The records of the chosen and of the rejected answer.
///
/// # Errors
/// If an answer is missing, both are the same, or they have no prompt.
pub(super) fn sides(record: &Record) -> Result<[Record; 2]> {
    let root = root(record);
    let value = |key: &str| root.get_attr(key).ok().filter(|value| !value.is_undefined() && !value.is_none());
    let answer = |key: &str| {
        let value = value(key).ok_or_else(|| record.missing(key))?;
        // LLaMA-Factory writes an answer of one message without a list.
        Ok(if value.kind() == ValueKind::Map { Value::from(vec![value]) } else { value })
    };
    let [chosen, rejected] = [answer(ANSWERS[0])?, answer(ANSWERS[1])?];
    if chosen == rejected {
        return Err(record.error("has the same answer as `chosen` and as `rejected`; remove the record"));
    }
    if is_list(&chosen) != is_list(&rejected) {
        return Err(record.error("has one answer as text and the other as messages; write both alike"));
    }
    if value("instruction").is_some() {
        return Ok([&chosen, &rejected].map(|answer| side(record, &root, &[("output", answer)])));
    }
    let prompt = PROMPTS.iter().find_map(|key| value(key));
    let is_whole = is_list(&chosen)
        && (prompt.is_none() || (begins_with_prompt(&chosen) && begins_with_prompt(&rejected)));
    let (prompt, answers) = match prompt {
        Some(prompt) if !is_whole => (prompt, [chosen, rejected]),
        _ => split(record, &chosen, &rejected)?,
    };
    Ok(answers.each_ref().map(|answer| side(record, &root, &[("prompt", &prompt), ("completion", answer)])))
}

/// Whether a list of messages is a whole conversation, not an answer alone, which may begin with what a tool said.
fn begins_with_prompt(messages: &Value) -> bool {
    let first = messages.get_item_by_index(0).unwrap_or_default();
    let role =
        ["role", "from"].iter().find_map(|key| first.get_attr(key).ok().filter(|role| !role.is_undefined()));
    let of_prompts = ["system", "developer", "user", "human"];
    role.is_some_and(|role| role.as_str().is_some_and(|role| of_prompts.contains(&role)))
}

/// The beginning that both answers share, and what follows it in each.
fn split(record: &Record, chosen: &Value, rejected: &Value) -> Result<(Value, [Value; 2])> {
    let no_prompt = "has answers without a prompt, and no beginning that both share; write a `prompt`";
    if is_list(chosen) {
        let [chosen, rejected] =
            [chosen, rejected].map(|list| list.try_iter().into_iter().flatten().collect::<Vec<_>>());
        let shared = chosen.iter().zip(&rejected).take_while(|(one, other)| one == other).count();
        if shared == 0 {
            return Err(record.error(no_prompt));
        }
        let rest = [&chosen, &rejected].map(|list| Value::from(list[shared..].to_vec()));
        return Ok((Value::from(chosen[..shared].to_vec()), rest));
    }
    let [chosen, rejected] = [chosen.as_str().unwrap_or_default(), rejected.as_str().unwrap_or_default()];
    let alike =
        chosen.chars().zip(rejected.chars()).take_while(|(one, other)| one == other).map(|(one, _)| one);
    let mut shared = alike.map(char::len_utf8).sum::<usize>();
    // A space belongs to the word after it.
    if chosen[..shared].ends_with(' ') {
        shared -= 1;
    }
    if chosen[..shared].trim().is_empty() {
        return Err(record.error(no_prompt));
    }
    Ok((chosen[..shared].into(), [chosen[shared..].into(), rejected[shared..].into()]))
}

/// The record with these `parts` in place of the prompt and both answers; the keys of its values stay in order.
fn side(record: &Record, root: &Value, parts: &[(&str, &Value)]) -> Record {
    let is_replaced = |key: &str| {
        let is_part = parts.iter().any(|(part, _)| *part == key);
        let is_prompt = parts[0].0 == "prompt" && PROMPTS.contains(&key);
        is_part || is_prompt || ANSWERS.contains(&key)
    };
    let json = |value: &Value| serde_json::to_string(value).unwrap_or_else(|_| "null".to_string());
    let kept = root.try_iter().into_iter().flatten().filter_map(|key| {
        let name = key.as_str()?;
        let value = root.get_item(&key).ok().filter(|_| !is_replaced(name))?;
        Some((name.to_string(), json(&value)))
    });
    let parts = parts.iter().map(|(key, value)| (key.to_string(), json(value)));
    let fields: Vec<String> =
        kept.chain(parts).map(|(key, value)| format!("{}:{value}", json(&key.into()))).collect();
    let text = format!("{{{}}}", fields.join(","));
    let fields: Map<_, _> = serde_json::from_str(&text).unwrap_or_default();
    Record { fields, text, path: record.path.clone(), place: record.place.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;
    use std::sync::Arc;

    fn record(value: &serde_json::Value) -> Record {
        let text = value.to_string();
        let fields = serde_json::from_str(&text).unwrap();
        Record { fields, text, path: Arc::from(Path::new("pairs.jsonl")), place: "line 1".into() }
    }

    fn both(value: &serde_json::Value) -> [serde_json::Value; 2] {
        sides(&record(value)).unwrap().map(|side| side.fields.into())
    }

    #[test]
    fn each_form_is_a_prompt_and_two_completions() {
        let user = json!({"role": "user", "content": "Hi"});
        let [good, bad] = ["Hello", "What"].map(|said| json!({"role": "assistant", "content": said}));
        let lists = [json!([good]), json!([bad])];
        let texts = [json!("Hello"), json!("What")];
        for (form, prompt, answers) in [
            (json!({"prompt": "Hi", "chosen": "Hello", "rejected": "What"}), json!("Hi"), &texts),
            (json!({"prompt": [user], "chosen": [good], "rejected": [bad]}), json!([user]), &lists),
            (json!({"prompt": "Hi", "chosen": [good], "rejected": [bad]}), json!("Hi"), &lists),
            (json!({"chosen": [user, good], "rejected": [user, bad]}), json!([user]), &lists),
            (json!({"prompt": "Hi", "chosen": [user, good], "rejected": [user, bad]}), json!([user]), &lists),
            (json!({"conversations": [user], "chosen": good, "rejected": bad}), json!([user]), &lists),
        ] {
            let [one, other] = both(&form);
            assert_eq!((&one["prompt"], &other["prompt"]), (&prompt, &prompt), "{form}");
            assert_eq!([&one["completion"], &other["completion"]], [&answers[0], &answers[1]], "{form}");
            assert!(one.get("chosen").is_none() && other.get("conversations").is_none());
        }
        let [one, other] =
            both(&json!({"chosen": "Q: a A: yes it", "rejected": "Q: a A: yes no", "score": 3}));
        assert_eq!((&one["prompt"], &one["completion"]), (&json!("Q: a A: yes"), &json!(" it")));
        assert_eq!((&other["completion"], &other["score"]), (&json!(" no"), &json!(3)));
        let [one, _] = both(&json!({"instruction": "Say", "input": "x", "chosen": "y", "rejected": "z"}));
        assert_eq!(one, json!({"instruction": "Say", "input": "x", "output": "y"}));
    }

    #[test]
    fn what_no_pair_can_be_made_of_is_named() {
        let fault = |value| sides(&record(&value)).unwrap_err().to_string();
        assert!(fault(json!({"prompt": "a", "chosen": "b"})).contains("has no key `rejected`"));
        assert!(fault(json!({"prompt": "a", "chosen": "b", "rejected": "b"})).contains("the same answer"));
        assert!(fault(json!({"chosen": "b", "rejected": "c"})).contains("write a `prompt`"));
        assert!(
            fault(json!({"prompt": "a", "chosen": "b", "rejected": [{"role": "assistant", "content": "c"}]}))
                .contains("write both alike")
        );
    }
}
