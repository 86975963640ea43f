//! What people bring: records, messages and special tokens mean here what they mean in transformers 5.23 and TRL 1.16,
//! or a note says that they are not read. Each row is a kind of what was silent once.

use gristmill::data::{ChatForm, Codec, EvalData, FileKind, Form};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// ChatML with tools, calls and thoughts.
const TEMPLATE: &str = "{%- if tools %}<tools>{% for tool in tools %}{{ tool.function.name }},{% endfor %}\n{% endif -%}\
    {% for m in messages if m.role != 'developer' %}[{{ m.role }}]{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}\
    {{ m.content }}{% for call in m.tool_calls or [] %}{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}\
    </s>\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";

/// A folder with the tokenizer of the other tests, `edited`, and the template or none.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(template: Option<&str>, edit: impl Fn(&mut Value)) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let tokenizer = std::fs::read("tests/data/samples/tokenizer.json").expect("a file");
        let mut tokenizer: Value = serde_json::from_slice(&tokenizer).expect("JSON");
        edit(&mut tokenizer);
        std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).expect("a file");
        let mut config = json!({"eos_token": "</s>", "bos_token": {"content": "<s>"}});
        if let Some(template) = template {
            config["chat_template"] = template.into();
        }
        std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).expect("a file");
        Self(folder)
    }

    fn codec(&self) -> Codec {
        Codec::of_tokenizer(&self.0.path().join("tokenizer.json"), "</s>", usize::MAX).expect("a codec")
    }

    fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).expect("a file");
        path
    }

    /// What is read of a file: all of its tokens, those that are learned as text between bars, and the notes.
    fn judged(&self, file: &Path, raw: bool) -> Result<(String, Vec<String>), String> {
        let codec = self.codec();
        let form = ChatForm { raw, ..ChatForm::default() };
        let judged = EvalData::load(file, &codec, 1000, None, &form).map_err(|error| error.to_string())?;
        let (samples, notes) = match judged {
            EvalData::Answers { samples, notes, .. } => (samples, notes),
            EvalData::Texts { windows, notes, .. } => (windows, notes),
            EvalData::Questions(_) => panic!("questions"),
        };
        let mut text = String::new();
        for sample in &samples {
            let mut learned = vec![false];
            learned.extend(sample.targets.iter().map(|target| *target != u32::MAX));
            let mut tokens = sample.tokens.clone();
            tokens.extend(sample.targets.last().filter(|target| **target != u32::MAX));
            let mut was = false;
            for (token, is_learned) in tokens.into_iter().zip(learned) {
                text += if is_learned != was { "|" } else { "" };
                text += &codec.decode(&[token]);
                was = is_learned;
            }
            text += if was { "|" } else { "" };
        }
        Ok((text, notes.lines()))
    }

    fn line(&self, record: &Value) -> (String, Vec<String>) {
        let file = self.write("records.jsonl", &record.to_string());
        self.judged(&file, false).unwrap_or_else(|error| panic!("{record}: {error}"))
    }
}

fn with_template() -> Folder {
    Folder::new(Some(TEMPLATE), |_| ())
}

fn said(content: &str) -> Value {
    json!({"role": "assistant", "content": content})
}

fn with(mut value: Value, key: &str, item: impl Into<Value>) -> Value {
    value[key] = item.into();
    value
}

fn asked(content: &str) -> Value {
    json!({"role": "user", "content": content})
}

/// A record means what another one says in the names that templates know.
#[test]
fn fields_mean_what_they_mean_elsewhere() {
    let folder = with_template();
    let talk = |messages: Vec<Value>| json!({"messages": messages});
    let tools = json!([{"type": "function", "function": {"name": "look"}}]);
    let call = |arguments: Value| json!([{"type": "function", "function": {"name": "look", "arguments": arguments}}]);
    let calling = |arguments| talk(vec![asked("a"), with(said(""), "tool_calls", call(arguments))]);
    let plain = talk(vec![asked("a"), said("b")]);
    let (learned, notes) = folder.line(&plain);
    assert_eq!((learned.as_str(), notes.len()), ("[user]a</s>\n[assistant]|b</s>\n|", 0));
    for (what, record, same) in [
        ("a prompt", json!({"prompt": "a", "completion": "b"}), plain.clone()),
        (
            "a prompt of messages",
            json!({"prompt": [asked("x"), said("y"), asked("a")], "completion": [said("b")]}),
            talk(vec![asked("x"), with(said("y"), "loss", false), asked("a"), said("b")]),
        ),
        ("an instruction", json!({"instruction": "a", "input": "", "output": "b"}), plain.clone()),
        (
            "an instruction with an input",
            json!({"instruction": "a", "input": "c", "output": "b", "system": "s", "history": [["q", "r"]]}),
            talk(vec![
                json!({"role": "system", "content": "s"}),
                asked("q"),
                said("r"),
                asked("a\nc"),
                said("b"),
            ]),
        ),
        (
            "a system message",
            json!({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "system": "s"}),
            talk(vec![json!({"role": "system", "content": "s"}), asked("a"), said("b")]),
        ),
        ("messages as text", json!({"messages": json!([asked("a"), said("b")]).to_string()}), plain.clone()),
        (
            "tools as text",
            with(plain.clone(), "tools", tools.to_string()),
            with(plain.clone(), "tools", tools.clone()),
        ),
        ("no tools", with(plain.clone(), "tools", ""), plain.clone()),
        ("arguments as text", calling(json!("{\"x\": 1}")), calling(json!({"x": 1}))),
        (
            "the older call",
            talk(vec![
                asked("a"),
                json!({"role": "assistant", "content": "", "function_call": {"name": "look", "arguments": "{\"x\": 1}"}}),
            ]),
            calling(json!({"x": 1})),
        ),
        (
            "thinking",
            talk(vec![asked("a"), with(said("b"), "thinking", "hm")]),
            talk(vec![asked("a"), with(said("b"), "reasoning_content", "hm")]),
        ),
        (
            "reasoning",
            talk(vec![asked("a"), with(said("b"), "reasoning", "hm")]),
            talk(vec![asked("a"), with(said("b"), "reasoning_content", "hm")]),
        ),
    ] {
        assert_eq!(folder.line(&record).0, folder.line(&same).0, "{what}");
    }
    let learned = folder.line(&talk(vec![asked("a"), with(said("b"), "thinking", "hm")])).0;
    assert_eq!(learned, "[user]a</s>\n[assistant]|(hm)b</s>\n|");
    let (learned, _) = folder.line(&calling(json!("{\"b\": 1, \"a\": [2.0]}")));
    assert_eq!(learned, "[user]a</s>\n[assistant]|look{\"b\": 1, \"a\": [2.0]}</s>\n|");
}

/// OpenAI's `weight`, axolotl's `train`, and `loss`.
#[test]
fn a_message_may_say_that_it_is_not_learned() {
    let folder = with_template();
    let learned = |key: &str, value: Value| {
        let messages = vec![asked("a"), with(said("bad"), key, value), asked("b"), said("ok")];
        folder.line(&json!({"messages": messages})).0
    };
    for key in ["loss", "weight", "train", "training"] {
        for off in [json!(0), json!(false), json!(0.0)] {
            assert_eq!(learned(key, off.clone()), learned("loss", json!(false)), "{key} {off}");
        }
        for on in [json!(1), json!(true), json!(null)] {
            assert_eq!(learned(key, on.clone()), learned("loss", json!(true)), "{key} {on}");
        }
    }
    let half = folder
        .write("half.jsonl", &json!({"messages": [asked("a"), with(said("b"), "weight", 0.5)]}).to_string());
    let error = folder.judged(&half, false).expect_err("an error");
    assert!(error.contains("message 2 of `messages` has `weight` 0.5; only 0 and 1"), "{error}");
}

#[test]
fn what_is_not_read_is_said_once_with_a_count() {
    let folder = with_template();
    let developer = json!({"role": "developer", "content": "IN CAPITALS"});
    let record = json!({"id": 7, "messages": [developer, asked("a"), with(said("b"), "name", "miller")]});
    let file = folder.write(
        "three.jsonl",
        &[record.to_string(), record.to_string(), json!({"messages": [asked("a"), said("b")]}).to_string()]
            .join("\n"),
    );
    let (_, notes) = folder.judged(&file, false).expect("records");
    assert_eq!(
        notes,
        [
            "`id` is not read (2 records)",
            "a message of the role `developer` is left out by the chat template (2 records)"
        ]
    );
    let plain = Folder::new(
        Some(
            "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
        ),
        |_| (),
    );
    let (_, notes) = plain.line(
        &json!({"tools": [{"name": "t"}], "messages": [asked("a"), with(said("b"), "thinking", "hm")]}),
    );
    assert_eq!(
        notes,
        [
            "`thinking` of a message is not written by the chat template (1 record)",
            "`tools` are not written by the chat template (1 record)"
        ]
    );
}

/// One beginning and one end, whatever the tokenizer adds and the text spells.
#[test]
fn special_tokens_are_there_once() {
    let end = json!({"SpecialToken": {"id": "</s>", "type_id": 0}});
    let ending = |tokenizer: &mut Value| {
        let single = tokenizer["post_processor"]["single"].as_array_mut().expect("a list");
        single.push(end.clone());
        tokenizer["post_processor"]["special_tokens"]["</s>"] =
            json!({"id": "</s>", "ids": [2], "tokens": ["</s>"]});
    };
    let none = |tokenizer: &mut Value| tokenizer["post_processor"] = Value::Null;
    let alpaca = "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n\
        ### Instruction:\na\n\n### Response:\n";
    for (folder, before) in [
        (Folder::new(None, |_| ()), "<s>"),
        (Folder::new(None, ending), "<s>"),
        (Folder::new(None, none), ""),
    ] {
        for (record, want) in [
            (json!({"prompt": "the mill", "completion": " turns"}), format!("{before}the mill| turns</s>|")),
            (
                json!({"prompt": "the mill", "completion": " turns</s>"}),
                format!("{before}the mill| turns</s>|"),
            ),
            (json!({"instruction": "a", "output": "b"}), format!("{before}{alpaca}|b</s>|")),
        ] {
            assert_eq!(folder.line(&record).0, want);
        }
        let text = folder.line(&json!({"text": "turns"})).0.replace('|', "");
        assert_eq!(text, format!("{before}turns</s>"));
        let text = folder.line(&json!({"text": "<s>turns</s>"})).0.replace('|', "");
        assert_eq!(text, "<s>turns</s>");
        assert_eq!(folder.codec().before_text().len(), before.len() / 3);
    }
}

/// A tokenizer whose own file lacks the special tokens that the files beside it name.
#[test]
fn files_beside_a_tokenizer_name_special_tokens() {
    let folder = Folder::new(None, |tokenizer| {
        tokenizer["post_processor"] = Value::Null;
        tokenizer["added_tokens"].as_array_mut().expect("a list").retain(|token| token["content"] != "</s>");
    });
    assert_eq!(folder.codec().encode("a</s>").expect("tokens").len(), 2);
    let count = folder.codec().vocab_size();
    folder.write("added_tokens.json", "{\"<new>\": 999}");
    assert_eq!(folder.codec().vocab_size(), count + 1);
    assert_eq!(folder.codec().encode("a<new>").expect("tokens").len(), 2);
}

#[test]
fn without_a_template_or_raw_records_are_as_they_are() {
    let pair = json!({"prompt": "a", "completion": "b"}).to_string();
    let with = with_template();
    let file = with.write("pair.jsonl", &pair);
    assert_eq!(with.judged(&file, true).expect("a record").0, "<s>a|b</s>|");
    let without = Folder::new(None, |_| ());
    let file = without.write("talk.jsonl", &json!({"messages": [asked("a"), said("b")]}).to_string());
    let error = without.judged(&file, false).expect_err("an error");
    assert!(
        error.contains("tokenizer_config.json: has no `chat_template`, which conversations need"),
        "{error}"
    );
}

#[test]
fn files_are_read_by_their_endings() {
    let folder = with_template();
    let line = json!({"prompt": "a, \"b\"", "completion": "c"}).to_string();
    let want = folder.judged(&folder.write("x.jsonl", &line), false).expect("a record");
    for (name, content) in [
        ("x.ndjson", line.clone()),
        ("x.JSONL", line),
        ("x.csv", "\u{feff}prompt,completion\r\n\"a, \"\"b\"\"\",c\r\n".to_string()),
        ("x.tsv", "prompt\tcompletion\n\"a, \"\"b\"\"\"\tc\n".to_string()),
    ] {
        assert_eq!(folder.judged(&folder.write(name, &content), false).expect("a record"), want, "{name}");
    }
    for (name, remedy) in [
        ("x.jsonl.gz", "unpack it"),
        ("x.arrow", "convert it to JSON lines or Parquet"),
        ("x.XLSX", "convert it"),
    ] {
        let error = folder.judged(&folder.write(name, "x"), false).expect_err("an error");
        assert!(error.contains("is of a kind that is not read; ") && error.contains(remedy), "{error}");
    }
}

#[test]
fn all_faults_of_a_file_are_said_up_to_ten() {
    let folder = with_template();
    let good = json!({"messages": [asked("a"), said("b")]}).to_string();
    let lines = [good.as_str(), "{\"messages\": [", &good, "{\"messages\": 3}", "[]", "{\"a\": 1}"];
    let error = folder.judged(&folder.write("x.jsonl", &lines.join("\n")), false).expect_err("an error");
    let places: Vec<&str> = error.lines().filter_map(|line| line.split(": ").nth(1)).collect();
    assert_eq!(places, ["line 2", "line 4", "line 5", "line 6"], "{error}");
    // What is the same of many lines is said once; of what differs ten are said.
    let many = [&[good.as_str()][..], &["{"; 20]].concat().join("\n");
    let error = folder.judged(&folder.write("y.jsonl", &many), false).expect_err("an error");
    assert!(error.lines().count() == 1 && error.contains(": lines 2, 3, 4 and 17 more: "), "{error}");
    let many = (0..20).map(|number| format!("{{\"key{number}\": 1}}"));
    let many = [good.clone()].into_iter().chain(many).collect::<Vec<_>>().join("\n");
    let error = folder.judged(&folder.write("z.jsonl", &many), false).expect_err("an error");
    assert_eq!(error.lines().count(), 10, "{error}");
    let table = "prompt,completion\na,b\nc\nd,e,f\n";
    let error = folder.judged(&folder.write("x.csv", table), false).expect_err("an error");
    assert_eq!(error.lines().count(), 2, "{error}");
}

/// `finetune` learns from them, and other commands refuse them.
#[test]
fn preferences_are_of_their_own_kind() {
    let folder = with_template();
    for record in [
        json!({"prompt": "a", "chosen": "b", "rejected": "c"}),
        json!({"chosen": [asked("a"), said("b")], "rejected": [asked("a"), said("c")]}),
    ] {
        let file = folder.write("x.jsonl", &record.to_string());
        let kind = FileKind::of(&file, &ChatForm::default(), false).expect("a kind");
        assert_eq!(kind, FileKind::Answers(Form::Preference(ChatForm::default())));
        let error = FileKind::of(&file, &ChatForm::default(), true).expect_err("an error").to_string();
        assert!(
            error.contains(
                "line 1: has `chosen` and `rejected`: pairs of answers are learned by finetune --preference"
            ),
            "{error}"
        );
    }
}

/// Parquet has each column in each row.
#[cfg(feature = "parquet")]
#[test]
fn nulls_of_a_schema_are_no_fields() {
    let folder = with_template();
    let (table, _) = folder.judged(Path::new("tests/data/samples/tools.parquet"), false).expect("rows");
    let lines = folder.judged(Path::new("tests/data/samples/tools.jsonl"), false).expect("records").0;
    assert_eq!(table, lines);
    assert!(
        table.contains("weather{\"city\": \"Bern\"}") && table.contains("clock{\"zone\": \"CET\"}"),
        "{table}"
    );
}
