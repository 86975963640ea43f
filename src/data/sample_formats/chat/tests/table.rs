//! Compares values and templates with Jinja2, whose results `tests/transformers/templates.py` wrote down.

use super::*;

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/samples/chat/table");
/// The environment variable that names the folder of the templates, which are other people's; see the script.
const TEMPLATES: &str = "GRISTMILL_CHAT_TEMPLATES";
/// The texts that end a turn in these templates.
const ENDS: [&str; 9] = [
    "</s>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|eot_id|>",
    "<end_of_turn>",
    "<|END_OF_TURN_TOKEN|>",
    "<turn|>",
];
/// Lines that are refused, with an error that says so: the engine's `%` is of numbers alone, and asks nobody about
/// others; and filters that no template was seen to use.
const REFUSED: [&str; 9] = [
    r#"{{ "%s-%d" % ("a", 3) }}"#,
    r#"{{ "%.2f" % 1.5 }}"#,
    r#"{{ "%5d|" % 3 }}"#,
    r#"{{ "%(a)s" % {"a": 1} }}"#,
    r#"{{ "a b c d"|wordwrap(3) }}"#,
    r#"{{ {"a":1}|xmlattr }}"#,
    r#"{{ {"x":1}|pprint }}"#,
    r#"{{ "abc"|attr("upper") is defined }}"#,
    r#"{{ {"a": 1}|attr("a") is defined }}"#,
];
/// Lines for which something else is written.
const OTHERWISE: [&str; 6] = [
    // The engine's loops take none for an empty list. It can be told to refuse what is undefined, not what is none.
    "{% for x in none %}{{ x }}{% endfor %}",
    // The engine writes the texts within a list itself. Letters that cannot be seen are escaped otherwise there.
    r#"{{ ["é", "\u200b", "\x7f", "\x00"] }}"#,
    // A list of these numbers, which is what templates use it for.
    "{{ range(3) }}",
    // A word of the engine's syntax, which has no value.
    "{{ self is defined }}",
    // The table was made without messages; `transformers` always gives them, and so does this program.
    "{{ messages is defined }}",
    // The engine refuses arguments that a macro does not name, in place of collecting them.
    r#"{% macro f(x, y="d") %}{{ x }}{{ y }}{{ varargs|length if varargs is defined }}{% endmacro %}{{ f("a")|upper }}{{ f("a", "b") }}{{ f(y=1, x=2) }}"#,
];

fn text(name: &str) -> String {
    std::fs::read_to_string(format!("{TABLE}/{name}")).unwrap()
}

fn table(name: &str) -> serde_json::Map<String, Value> {
    serde_json::from_str(&text(name)).unwrap()
}

/// The text of a template whose variables are those of `values.json`.
fn written(source: &str, values: &minijinja::Value) -> std::result::Result<String, String> {
    let names = values.try_iter().unwrap();
    let variables = names.map(|key| (key.to_string(), values.get_item(&key).unwrap())).collect();
    let conversation = Conversation { variables, ..Conversation::default() };
    let template = ChatTemplate::parse(source, Vec::new()).map_err(|error| error.to_string())?;
    let marks = template.marks(&conversation)?;
    Ok(template.render(&conversation, 0, false, marks)?.replace(marks, ""))
}

#[test]
fn values_are_printed_and_tested_as_in_python() {
    let values = python::parse(&text("values.json")).unwrap();
    let mut others = Vec::new();
    for (line, expected) in table("expressions.json") {
        // The test runs at another time.
        if line.contains("strftime_now") {
            continue;
        }
        let got = written(&line, &values);
        if got.as_ref().ok().map(String::as_str) != expected.as_str() {
            others.push((line, got, expected));
        }
    }
    let is_known =
        |line: &str, is_refused| (if is_refused { &REFUSED[..] } else { &OTHERWISE }).contains(&line);
    let unknown = others.iter().filter(|(line, got, _)| !is_known(line, got.is_err()));
    let shown: Vec<String> =
        unknown.map(|(line, got, expected)| format!("{line}\n  {got:?}\n  {expected}")).collect();
    assert!(shown.is_empty(), "{}", shown.join("\n"));
    assert_eq!(others.len(), REFUSED.len() + OTHERWISE.len(), "what is known to differ is equal by now");
}

/// The length of a text in characters, and the FNV-1a hash of its bytes.
fn brief(text: &str) -> Value {
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    serde_json::json!([text.chars().count(), format!("{hash:016x}")])
}

/// The results for a template and a conversation: the texts, and the spans that are learned, in characters.
fn cells(template: &ChatTemplate, line: &str) -> (Vec<Value>, String) {
    let conversation = match Conversation::read(&ChatForm::default(), &record(line)) {
        Ok(conversation) => conversation,
        Err(error) => return (vec![Value::Null, Value::Null, Value::Null], error.to_string()),
    };
    let marks = template.marks(&conversation).unwrap();
    let all = conversation.messages.len();
    let text = |asks| template.render(&conversation, all, asks, marks).map(|text| text.replace(marks, ""));
    let texts = [text(false), text(true)];
    let spans = turns::render(&conversation, template);
    let told = format!("{texts:?}\n{spans:?}");
    let place = |text: &str, at: usize| text[..at].chars().count();
    let spans = spans.map(|written| {
        let spans = written
            .learned
            .iter()
            .map(|span| [place(&written.text, span.start), place(&written.text, span.end)]);
        serde_json::json!(spans.collect::<Vec<_>>())
    });
    let [plain, asking] = texts.map(|text| text.map_or(Value::Null, |text| brief(&text)));
    (vec![plain, asking, spans.unwrap_or(Value::Null)], told)
}

/// Two templates of this project that contain every construct of other people's templates.
#[test]
fn templates_of_ours_render_as_in_jinja() {
    assert_eq!(compare(TABLE), 2);
}

/// Run by hand, over the folder that the environment variable names, to which the script copies other people's
/// templates.
#[test]
fn templates_of_others_render_as_in_jinja() {
    let Ok(folder) = std::env::var(TEMPLATES) else { return };
    assert!(compare(&folder) > 0, "{folder} has none of the table's templates");
}

/// Compares the templates of the table that are in `folder`, and returns their number.
fn compare(folder: &str) -> usize {
    let (mut compared, mut texts, mut spans, mut faults) = (0, 0, 0, Vec::new());
    let table = table("templates.json");
    for (name, entry) in &table {
        // The folder may hold the templates of one package or of several.
        let Ok(source) = std::fs::read_to_string(format!("{folder}/{name}.jinja")) else { continue };
        compared += 1;
        assert_eq!(brief(&source), entry["source"], "{name} is of another version than the table");
        let names = [("bos_token", "<s>"), ("eos_token", "</s>"), ("pad_token", "<pad>")];
        let names = names.map(|(name, text)| (name.to_string(), text.to_string())).to_vec();
        let template = match ChatTemplate::parse(&source, names) {
            Ok(template) => template.ending(ENDS.map(String::from).to_vec()),
            Err(error) => {
                faults.push(format!("{name}: {error}"));
                continue;
            }
        };
        for (line, expected) in text("forms.jsonl").lines().zip(entry["rows"].as_array().unwrap()) {
            let (got, told) = cells(&template, line);
            let form = serde_json::from_str::<Value>(line).unwrap()["form"].clone();
            for (at, what) in ["text", "prompt", "spans"].into_iter().enumerate() {
                // Where Jinja2 tells no span, no span that is found is a fault. Content that is null is refused by a
                // loop of Python's, and is empty here.
                let is_null = form == "call with null content";
                let is_judged = !expected[at].is_null() || (at < 2 && !is_null);
                if is_judged && got[at] != expected[at] {
                    faults
                        .push(format!("{name}: {form}: {what}: {} is {}\n   {told}", got[at], expected[at]));
                } else if is_judged {
                    if at < 2 { texts += 1 } else { spans += 1 }
                }
            }
        }
    }
    println!(
        "{compared} of {} templates: {texts} texts and {spans} conversations' spans are equal",
        table.len()
    );
    let count = faults.len();
    assert!(faults.is_empty(), "{}\n{count} differ", faults.join("\n"));
    compared
}
