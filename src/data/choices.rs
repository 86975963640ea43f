//! Multiple-choice questions, worded as in lm-evaluation-harness, so that scores can be compared.
//!
//! A model chooses the answer that it finds most likely after the question. The tokens of an answer are those that it
//! adds to the tokens of the question alone, because a tokenizer may join the end of the question with the start of the
//! answer.

use super::batch::NO_LABEL;
use super::codec::Codec;
use super::records::Record;
use super::sequences::Sequence;
use crate::error::Result;
use serde_json::Value;

/// The form in which a data set is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChoiceForm {
    /// `ctx` (or `ctx_a` and `ctx_b`), `endings` and `label`.
    HellaSwag,
    /// `question`, `choices.text`, `choices.label` and `answerKey`.
    Arc,
    /// `question`, `choices` and `answer`: the model says the letter of one choice.
    Mmlu,
}

/// A question and its answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The answers, at least two.
    pub answers: Vec<Answer>,
    /// Index of the right answer.
    pub right: usize,
}

/// An answer after its question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Question and answer; only the answer is predicted.
    pub sequence: Sequence,
    /// Characters of the answer.
    pub chars: usize,
    /// Bytes of the answer.
    pub bytes: usize,
}

/// A question as text.
struct ChoicePrompt {
    question: String,
    answers: Vec<String>,
    right: usize,
}

impl ChoiceForm {
    /// The question of a record. If question and answer are longer than `window` tokens, only the end is kept.
    ///
    /// # Errors
    /// A record that lacks a field of the form; a text that cannot be encoded.
    pub(super) fn question(self, record: &Record, codec: &Codec, window: usize) -> Result<Question> {
        let ChoicePrompt { question, answers, right } = match self {
            Self::HellaSwag => hella_swag(record)?,
            Self::Arc => arc(record)?,
            Self::Mmlu => mmlu(record)?,
        };
        if answers.len() < 2 || right >= answers.len() {
            let message = format!("has {} answers, of which number {right} is right", answers.len());
            return Err(record.error(message));
        }
        let answer = |text: &String| {
            let sequence = answered(&question, &format!(" {text}"), codec, window)?;
            Ok(Answer { sequence, chars: text.chars().count(), bytes: text.len() })
        };
        Ok(Question { answers: answers.iter().map(answer).collect::<Result<_>>()?, right })
    }
}

/// The tokens of question and answer; only the tokens that the answer adds are predicted.
fn answered(question: &str, answer: &str, codec: &Codec, window: usize) -> Result<Sequence> {
    // Spaces at the end of the question become a part of the answer's first word.
    let asked = question.trim_end();
    let answer = format!("{}{answer}", &question[asked.len()..]);
    let encode = |text: &str| Ok(codec.started(codec.encode(text)?));
    let (mut tokens, asked) = match asked.is_empty() {
        true => ([vec![codec.separator()], codec.encode(&answer)?].concat(), 1),
        false => (encode(&format!("{asked}{answer}"))?, encode(asked)?.len()),
    };
    let mut targets = vec![NO_LABEL; asked.saturating_sub(1)];
    targets.extend(tokens.iter().skip(asked.max(1)));
    tokens.truncate(targets.len());
    let cut = tokens.len().saturating_sub(window);
    Ok(Sequence { tokens: tokens.split_off(cut), targets: targets.split_off(cut) })
}

fn hella_swag(record: &Record) -> Result<ChoicePrompt> {
    let context = match (record.optional_text("ctx_a")?, record.optional_text("ctx_b")?) {
        (Some(start), next) => format!("{start} {}", capitalized(next.unwrap_or_default())),
        (None, _) => record.text("ctx")?.to_string(),
    };
    let activity = record.optional_text("activity_label")?.map(|label| format!("{label}: "));
    let question = without_brackets(&format!("{}{context}", activity.unwrap_or_default()));
    let answers = texts(record, "endings", record.list("endings")?)?;
    let answers = answers.iter().map(|ending| without_brackets(ending)).collect();
    Ok(ChoicePrompt { question, answers, right: number(record, "label")? })
}

fn arc(record: &Record) -> Result<ChoicePrompt> {
    let question = format!("Question: {}\nAnswer:", record.text("question")?);
    let choices = record.fields.get("choices").ok_or_else(|| record.missing("choices"))?;
    let list = |key: &str| match choices.get(key) {
        Some(Value::Array(items)) => texts(record, "choices", items),
        _ => Err(record.error(format!("expected a list under `choices.{key}`"))),
    };
    let (labels, answers) = (list("label")?, list("text")?);
    let key = record.text("answerKey")?;
    let right = labels.iter().position(|label| label == key);
    let right = right
        .ok_or_else(|| record.error(format!("`answerKey` is `{key}`, which no label of `choices` is")))?;
    Ok(ChoicePrompt { question, answers, right })
}

fn mmlu(record: &Record) -> Result<ChoicePrompt> {
    let about = record.optional_text("subject")?.map(|subject| {
        let subject = subject.replace('_', " ");
        format!("The following are multiple choice questions (with answers) about {subject}.\n\n")
    });
    let choices = texts(record, "choices", record.list("choices")?)?;
    let letters: Vec<String> = ('A'..='Z').take(choices.len()).map(String::from).collect();
    let lines: String =
        letters.iter().zip(&choices).map(|(letter, choice)| format!("\n{letter}. {choice}")).collect();
    let question = record.text("question")?.trim();
    let question = format!("{}{question}{lines}\nAnswer:", about.unwrap_or_default());
    let answer = record.fields.get("answer").and_then(Value::as_str);
    let right = match answer.and_then(|answer| letters.iter().position(|letter| letter == answer)) {
        Some(right) => right,
        None => number(record, "answer")?,
    };
    Ok(ChoicePrompt { question, answers: letters, right })
}

/// A whole number under `key`; some files write it as text.
fn number(record: &Record, key: &str) -> Result<usize> {
    let value = record.fields.get(key).ok_or_else(|| record.missing(key))?;
    let number = match value {
        Value::String(text) => text.parse().ok(),
        other => other.as_u64().map(|number| number as usize),
    };
    number.ok_or_else(|| {
        record.error(format!("expected the number of the right answer under `{key}`, found {value}"))
    })
}

fn texts(record: &Record, key: &str, items: &[Value]) -> Result<Vec<String>> {
    let texts: Option<Vec<String>> = items.iter().map(|item| Some(item.as_str()?.to_string())).collect();
    texts.ok_or_else(|| record.error(format!("expected texts in `{key}`")))
}

/// The text with its first letter in upper case and the others in lower case, like Python's `capitalize`.
fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(letters.flat_map(char::to_lowercase)).collect()
    })
}

/// A text of HellaSwag without the marks of WikiHow, from which half of the texts come.
fn without_brackets(text: &str) -> String {
    let text = text.trim().replace(" [title]", ". ");
    let (mut kept, mut rest) = (String::new(), text.as_str());
    while let Some(start) = rest.find('[') {
        let Some(length) = rest[start..].find(']').filter(|end| !rest[start..start + end].contains('\n'))
        else {
            kept.push_str(&rest[..=start]);
            rest = &rest[start + 1..];
            continue;
        };
        kept.push_str(&rest[..start]);
        rest = &rest[start + length + 1..];
    }
    kept.push_str(rest);
    kept.replace("  ", " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;
    use std::sync::Arc;

    fn record(value: Value) -> Record {
        let Value::Object(fields) = value else { panic!("an object") };
        Record {
            fields,
            text: String::new(),
            path: Arc::from(Path::new("questions.jsonl")),
            place: "line 1".into(),
        }
    }

    fn asked(form: ChoiceForm, value: Value) -> Result<(Vec<String>, usize)> {
        let codec = Codec::Bytes { eod: 0 };
        let question = form.question(&record(value), &codec, 1000)?;
        let shown = |answer: &Answer| {
            let Sequence { tokens, targets } = &answer.sequence;
            let predicted = targets.iter().position(|target| *target != NO_LABEL).expect("an answer");
            assert_eq!(tokens[predicted + 1..], targets[predicted..targets.len() - 1]);
            format!("{}|{}", codec.decode(&tokens[..=predicted]), codec.decode(&targets[predicted..]))
        };
        Ok((question.answers.iter().map(shown).collect(), question.right))
    }

    #[test]
    fn questions_are_worded_as_the_harness_words_them() {
        let swag = json!({
            "activity_label": "Roof", "ctx_a": "A man [substeps] is on a roof.", "ctx_b": "he STARTS", "ctx": "unused",
            "endings": ["to sing [title] loudly", "falling"], "label": "1",
        });
        let roof = "Roof: A man is on a roof. He starts";
        assert_eq!(
            asked(ChoiceForm::HellaSwag, swag).unwrap(),
            (vec![format!("{roof}| to sing. loudly"), format!("{roof}| falling")], 1)
        );

        let arc = json!({
            "question": "Which?", "choices": {"text": ["this", "that"], "label": ["1", "2"]}, "answerKey": "2",
        });
        let which = "Question: Which?\nAnswer:";
        assert_eq!(
            asked(ChoiceForm::Arc, arc).unwrap(),
            (vec![format!("{which}| this"), format!("{which}| that")], 1)
        );

        let mmlu = json!({"question": " Which? ", "subject": "abstract_algebra", "choices": ["0", "1"], "answer": 0});
        let which = "The following are multiple choice questions (with answers) about abstract algebra.\n\nWhich?\nA. 0\nB. 1\nAnswer:";
        assert_eq!(
            asked(ChoiceForm::Mmlu, mmlu).unwrap(),
            (vec![format!("{which}| A"), format!("{which}| B")], 0)
        );
    }

    #[test]
    fn the_end_of_what_is_too_long_is_kept() {
        let codec = Codec::Bytes { eod: 0 };
        let whole = answered("ab ", " cd", &codec, 100).unwrap();
        assert_eq!(codec.decode(&whole.tokens), "ab  c");
        assert_eq!(whole.targets[..1], [NO_LABEL]);
        assert_eq!(codec.decode(&whole.targets[1..]), "  cd");
        let cut = answered("ab ", " cd", &codec, 3).unwrap();
        assert_eq!((codec.decode(&cut.tokens), codec.decode(&cut.targets)), ("  c".into(), " cd".into()));
        let bare = answered("", " c", &codec, 3).unwrap();
        assert_eq!((codec.decode(&bare.tokens), codec.decode(&bare.targets)), ("\n ".into(), " c".into()));
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = |form, value| asked(form, value).unwrap_err().to_string();
        let swag = json!({"ctx": "a", "endings": ["b", "c"], "label": ""});
        assert!(
            error(ChoiceForm::HellaSwag, swag)
                .contains("expected the number of the right answer under `label`")
        );
        let arc = json!({"question": "a", "choices": {"text": ["b"], "label": ["A"]}, "answerKey": "C"});
        assert!(error(ChoiceForm::Arc, arc).contains("`answerKey` is `C`"));
        let arc = json!({"question": "a", "answerKey": "A"});
        assert!(error(ChoiceForm::Arc, arc).contains("has no key `choices`, only `answerKey`, `question`"));
        let mmlu = json!({"question": "a", "choices": ["b", "c"], "answer": 2});
        assert!(error(ChoiceForm::Mmlu, mmlu).contains("has 2 answers, of which number 2 is right"));
    }
}
