//! Templates render as `transformers` renders them, and only what the assistant wrote is learned.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::*;

mod table;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/samples/chat");
/// The output of `rendered.py`.
const RENDERED: &str = include_str!("../../../../tests/data/samples/chat/rendered.json");
const CONVERSATIONS: &str = include_str!("../../../../tests/data/samples/chat/conversations.jsonl");

fn template(source: &str) -> ChatTemplate {
    let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")];
    let tokens = tokens.map(|(name, text)| (name.to_string(), text.to_string())).to_vec();
    ChatTemplate::parse(source, tokens).unwrap()
}

fn named(name: &str) -> ChatTemplate {
    template(&std::fs::read_to_string(format!("{FOLDER}/{name}.jinja")).unwrap())
}

fn record(line: &str) -> Record {
    let Value::Object(fields) = serde_json::from_str(line).unwrap() else { panic!("no object: {line}") };
    Record {
        fields,
        text: line.to_string(),
        path: Arc::from(Path::new("x.jsonl")),
        place: "line 3".to_string(),
    }
}

/// The text of a conversation, and its parts that are learned.
fn learned(template: &ChatTemplate, line: &str) -> std::result::Result<(String, Vec<String>), String> {
    let form = ChatForm::default();
    let conversation = Conversation::read(&form, &record(line)).map_err(|error| error.to_string())?;
    let Written { text, learned, .. } = turns::render(&conversation, template)?;
    let parts = learned.into_iter().map(|turn| text[turn].to_string()).collect();
    Ok((text, parts))
}

#[test]
fn templates_render_byte_by_byte_as_transformers_does() {
    let rendered: Value = serde_json::from_str(RENDERED).unwrap();
    for (name, conversations) in rendered.as_object().unwrap() {
        let template = named(name);
        for (line, expected) in CONVERSATIONS.lines().zip(conversations.as_array().unwrap()) {
            let conversation = Conversation::read(&ChatForm::default(), &record(line)).unwrap();
            for (asks, expected) in [false, true].into_iter().zip(expected.as_array().unwrap()) {
                let marks = template.marks(&conversation).unwrap();
                let got = template.render(&conversation, conversation.messages.len(), asks, marks).unwrap();
                let plain: String = got.chars().filter(|character| !marks.contains(character)).collect();
                assert_eq!(plain, expected.as_str().unwrap(), "{name}: {line}");
            }
        }
    }
}

#[cfg(feature = "tokenizers")]
#[test]
fn generation_blocks_mask_the_tokens_that_transformers_masks() {
    let file = Path::new(FOLDER).parent().unwrap().join("tokenizer.json");
    let codec = Codec::of_tokenizer(&file, "</s>", usize::MAX).unwrap();
    let rendered: Value = serde_json::from_str(RENDERED).unwrap();
    for (line, expected) in CONVERSATIONS.lines().zip(rendered["generation"].as_array().unwrap()) {
        let formed = ChatForm::default().form(&record(line), Some(&named("generation")), &codec).unwrap();
        let numbers = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).unwrap() };
        let (ids, mask) = (numbers(&expected[2][0]), numbers(&expected[2][1]));
        let targets = ids.iter().zip(&mask).skip(1).map(|(id, is_learned)| match is_learned {
            1 => *id,
            _ => NO_LABEL,
        });
        assert_eq!(formed.tokens, ids);
        assert_eq!(formed.targets, targets.chain([NO_LABEL]).collect::<Vec<_>>());
    }
}

/// A chat stops at the token that a template writes after an answer.
#[cfg(feature = "tokenizers")]
#[test]
fn a_turn_ends_at_a_token_of_the_template() {
    let file = Path::new(FOLDER).parent().unwrap().join("tokenizer.json");
    let codec = Codec::of_tokenizer(&file, "</s>", usize::MAX).unwrap();
    let of = |source: &str| template(source).turn_end(&codec);
    assert_eq!(named("generation").turn_end(&codec), Some(2));
    assert_eq!(named("mistral").turn_end(&codec), Some(2));
    // The vocabulary has no `<|im_end|>`.
    assert_eq!(named("qwen2").turn_end(&codec), None);
    // Where nothing ends a turn, the token that begins the next turn ends it.
    assert_eq!(
        of("{% for m in messages %}{{ '<unk>' if m.role == 'user' else '<s>' }}{{ m.content }}{% endfor %}"),
        Some(0)
    );
    assert_eq!(of("{{ raise_exception('no') }}"), None);
    assert_eq!(named("generation").turn_end(&Codec::Bytes { eod: 0 }), None);
}

/// Templates that write turns before the last one in another way: without the empty block of thoughts of Qwen3 and
/// GLM-4.5, after a prompt that opens thoughts, and with another end, as gpt-oss does.
#[test]
fn the_span_of_an_answer_is_what_is_written_for_it() {
    let source = |last: &str, others: &str, prompt: &str| {
        let written = format!("{{% if loop.last %}}{last}{{% else %}}{others}{{% endif %}}");
        let turn =
            format!("{{% if m.role == 'user' %}}U{{{{ m.content }}}}\n{{% else %}}A\n{written}{{% endif %}}");
        format!(
            "{{% for m in messages %}}{turn}{{% endfor %}}{{% if add_generation_prompt %}}{prompt}{{% endif %}}"
        )
    };
    let line = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "first"},
        {"role": "user", "content": "b"}, {"role": "assistant", "content": "second"}]}"#;
    let said = "{{ m.content }}";
    for (last, others, prompt, parts) in [
        ("<t></t>{}$", "{}$", "A\n", ["first$", "<t></t>second$"]),
        ("<t>\n</t>{}$", "{}$", "A\n<t>\n", ["first$", "</t>second$"]),
        ("{}<r>", "{}<e>", "A\n", ["first<e>", "second<r>"]),
        ("{}$", "{}$", "A\n", ["first$", "second$"]),
    ] {
        let [last, others] = [last, others].map(|text| text.replace("{}", said));
        let template = template(&source(&last, &others, prompt)).ending(vec!["<e>".into(), "<r>".into()]);
        assert_eq!(learned(&template, line).unwrap().1, parts, "{last} {others}");
    }
}

#[test]
fn prefixes_tell_what_the_assistant_wrote() {
    let lines: Vec<&str> = CONVERSATIONS.lines().collect();
    for (name, line, parts) in [
        ("llama3", lines[1], vec!["Yes: 2 < 3.<|eot|>", "你好！<|eot|>"]),
        ("qwen2", lines[1], vec!["Yes: 2 < 3.<|im_end|>\n", "你好！<|im_end|>\n"]),
        ("qwen2", lines[2], vec!["Rain.<|im_end|>\n"]),
        ("mistral", lines[0], vec![" Hi there.</s>"]),
        ("chatglm", lines[1], vec!["\n Yes: 2 < 3.", "\n 你好！"]),
        ("generation", lines[1], vec!["Yes: 2 < 3.</s>", "你好！</s>"]),
    ] {
        assert_eq!(learned(&named(name), line).unwrap().1, parts, "{name}");
    }
}

#[test]
fn other_names_of_roles_and_turns_that_are_not_learned() {
    let line = r#"{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", "loss": false},
        {"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}]}"#;
    for name in ["qwen2", "generation"] {
        let parts = learned(&named(name), line).unwrap().1;
        assert_eq!(parts.len(), 1, "{name}");
        assert!(parts[0].starts_with('d'), "{name}: {parts:?}");
    }
    let tool = r#"{"tools": ["t"], "conversations": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
        {"role": "tool", "name": "look", "parameters": {"q": "x", "n": 2}, "observation": "seen"},
        {"role": "assistant", "content": "d"}]}"#;
    let (text, parts) = learned(&named("chatglm"), tool).unwrap();
    assert_eq!(parts, ["\n b", "look\n ```python\ntool_call(q='x', n=2)\n```", "\n d"]);
    assert!(text.contains("<|observation|>\n seen"), "{text}");
}

#[test]
fn marks_are_characters_that_the_conversation_lacks() {
    let of = |text: &str| {
        format!(
            r#"{{"messages": [{{"role": "user", "content": "a{text}b"}}, {{"role": "assistant", "content": "{text}d"}}]}}"#
        )
    };
    for text in ["\u{fdd0}", "\u{fdd1}\u{fdd0}", "\\ufdd0", "\u{fdd0}\u{fdd2}"] {
        let (rendered, parts) = learned(&named("generation"), &of(text)).unwrap();
        let text = text.replace("\\ufdd0", "\u{fdd0}");
        assert_eq!(parts, [format!("{text}d</s>")]);
        assert!(rendered.contains(&format!("a{text}b")), "{rendered:?}");
    }
    let all: String = ('\u{fdd0}'..='\u{fdef}').collect();
    let error = learned(&named("generation"), &of(&all)).unwrap_err();
    assert!(error.starts_with("has the characters U+FDD0 to U+FDEF"), "{error}");
}

/// Two turns of the assistant in one block: nothing tells which part of it is to be learned.
#[test]
fn blocks_that_are_not_the_turns_learn_none_that_is_excluded() {
    let one_block = template(
        "{% for m in messages %}{% if loop.first %}{% generation %}\
         {% for n in messages if n.role == 'assistant' %}{{ n.content }}{% endfor %}{% endgeneration %}{% endif %}{% endfor %}",
    );
    let of = |loss: &str| {
        format!(
            r#"{{"messages": [{{"role": "assistant", "content": "b"{loss}}}, {{"role": "assistant", "content": "d"}}]}}"#
        )
    };
    assert_eq!(learned(&one_block, &of("")).unwrap().1, ["bd"]);
    let error = learned(&one_block, &of(r#", "loss": false"#)).unwrap_err();
    assert!(error.starts_with("the chat template wrote 1 `{% generation %}` blocks for 2 turns"), "{error}");
}

#[test]
fn a_template_that_does_not_end_is_stopped() {
    let line = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;
    let endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}";
    let error = learned(&template(endless), line).unwrap_err();
    assert_eq!(
        error,
        "the chat template does not end within 20000000 instructions for it in its line 1; correct the template"
    );
    let endless = "{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}";
    let error = learned(&template(endless), line).unwrap_err();
    assert!(error.starts_with("the chat template writes more than 64 MiB for it"), "{error}");
}

#[test]
fn what_is_wrong_is_one_line() {
    let qwen = named("qwen2");
    let no_prompt = template("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}");
    let last_only = template(
        "{% for m in messages %}{{ m.role if loop.last }}{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}",
    );
    let turn = |role: &str, text: &str| format!(r#"{{"role": "{role}", "content": {text}}}"#);
    let of = |turns: &[String]| format!(r#"{{"messages": [{}]}}"#, turns.join(", "));
    let good = of(&[turn("user", "\"a\""), turn("assistant", "\"b\"")]);
    for (template, line, message) in [
        (&qwen, of(&[turn("user", "\"a\"")]), "x.jsonl: line 3: has no turn of the assistant"),
        (&qwen, of(&[]), "x.jsonl: line 3: has no turn of the assistant"),
        (&qwen, "{\"text\": 1}".to_string(), "x.jsonl: line 3: has no key `messages`, only `text`"),
        (
            &qwen,
            "{\"messages\": 1}".to_string(),
            "x.jsonl: line 3: expected a list under `messages`, found a number",
        ),
        (
            &qwen,
            "{\"messages\": [1]}".to_string(),
            "x.jsonl: line 3: message 1 of `messages` has no text under `role`",
        ),
        (
            &qwen,
            of(&[turn("user", "\"a\""), turn("assistant", "\" \"")]),
            "x.jsonl: line 3: message 2 of `messages` is the assistant's and has no text under `content`",
        ),
        (&no_prompt, good.clone(), "the chat template has no generation prompt before message 2"),
        (&last_only, good.clone(), "the chat template writes message 2 differently"),
        (
            &named("mistral"),
            of(&[turn("critic", "\"a\""), turn("assistant", "\"b\"")]),
            "the chat template refuses it in its line 12: Only user, assistant and system roles are known, not critic",
        ),
    ] {
        let error = learned(template, &line).unwrap_err();
        assert!(error.starts_with(message) && !error.contains('\n'), "{error}\n{message}");
    }
}

/// Variables of `chat_template_kwargs`, which transformers takes as keywords and a column of a table holds as text.
#[test]
fn variables_are_read_or_named() {
    let source = "{% for m in messages %}{{ m.role }}>{{ m.content }}{{ '!' if loud }}\n{% endfor %}\
        {% if add_generation_prompt %}assistant>{% endif %}";
    let of = |kwargs: &str| {
        format!(
            r#"{{"messages": [{{"role": "user", "content": "a"}}, {{"role": "assistant", "content": "b"}}], "chat_template_kwargs": {kwargs}}}"#
        )
    };
    let written = |kwargs: &str| {
        let conversation = Conversation::read(&ChatForm::default(), &record(&of(kwargs)))?;
        Ok::<_, crate::error::Error>(turns::render(&conversation, &template(source)).unwrap())
    };
    for kwargs in [r#"{"loud": true}"#, r#""{\"loud\": true}""#] {
        let Written { text, notes, .. } = written(kwargs).unwrap();
        assert!(text.ends_with("b!\n") && notes.is_empty(), "{text} {notes:?}");
    }
    for kwargs in ["null", "{}", r#""""#, r#""{}""#, r#""null""#] {
        assert!(written(kwargs).unwrap().text.ends_with("b\n"));
    }
    for (kwargs, name) in [(r#"{"lou": true}"#, "lou"), (r#""{\"content\": 1}""#, "content")] {
        let notes: Vec<_> = written(kwargs).unwrap().notes.into_iter().collect();
        assert_eq!(notes, [format!("`{name}` of `chat_template_kwargs` is not read by the chat template")]);
    }
    for (kwargs, fault) in [
        (
            r#"{"messages": []}"#,
            "has `messages` under `chat_template_kwargs`, which the conversation itself says",
        ),
        (r#""{\"add_generation_prompt\": true}""#, "has `add_generation_prompt` under"),
        ("[1]", "expected an object under `chat_template_kwargs`"),
        (r#""loud""#, "`chat_template_kwargs` is text that is not JSON ("),
    ] {
        let error = written(kwargs).unwrap_err().to_string();
        assert!(error.contains(fault), "{kwargs}: {error}");
    }
    let history = |history: &str| {
        let line = format!(r#"{{"instruction": "a", "output": "b", "history": {history}}}"#);
        let conversation = Conversation::read(&ChatForm::default(), &record(&line));
        conversation.map(|conversation| conversation.messages.len()).map_err(|error| error.to_string())
    };
    for (text, count) in [(r#"[["x", "y"]]"#, 4), (r#""[[\"x\", \"y\"]]""#, 4), (r#""[]""#, 2), ("[]", 2)] {
        assert_eq!(history(text), Ok(count), "{text}");
    }
    assert!(history(r#"{"x": "y"}"#).unwrap_err().ends_with("expected pairs of texts in `history`"));
    assert!(history(r#""x""#).unwrap_err().contains("`history` is text that is not JSON"));
}

/// Keys are found in code, and only by their whole names.
#[test]
fn keys_within_other_words_are_not_read() {
    let template = template(
        "name: {% for m in messages if m.role is string %}{{ m['sender'] }}{{ m.content }}{% endfor %}",
    );
    for (key, is_read) in [("sender", true), ("is", false), ("sage", false), ("name", false), ("send", false)]
    {
        assert_eq!(template.names(key), is_read, "{key}");
    }
    assert!(template.reads("messages") && !template.reads("message"));
}

/// A variable is read where the template takes its value, but not where a filter, a test, an argument or a variable of
/// the template's own has its name.
#[test]
fn variables_are_not_names_of_other_things() {
    let template = template(
        "{% macro shown(turn, loud=false) %}{{ turn.content|trim }}{{ '!' if loud }}{% endmacro %}\
         {% set ns = namespace(found=false) %}{% if custom is defined %}{% set tools = custom %}{% endif %}\
         {% if not tools is defined %}{% set tools = none %}{% endif %}{% set system = 'be brief' %}{{ system }}\
         {% for m in messages if m.content is string %}{{ shown(m, loud=true) }}{% endfor %}",
    );
    for name in ["custom", "tools", "messages"] {
        assert!(template.reads(name), "{name}");
    }
    for name in ["trim", "string", "defined", "loud", "found", "turn", "m", "system", "ns", "set", "if"] {
        assert!(!template.reads(name), "{name}");
    }
}

/// Other names for known roles, and the message about a role that is unknown.
#[test]
fn roles_of_others_are_understood_or_named() {
    let read = |roles: [&str; 2]| {
        let [first, second] = roles;
        let line = format!(
            r#"{{"messages": [{{"role": "{first}", "content": "a"}}, {{"role": "{second}", "content": "b"}}]}}"#
        );
        let conversation = Conversation::read(&ChatForm::default(), &record(&line));
        let conversation = conversation.map_err(|error| error.to_string())?;
        let roles: Vec<_> = conversation.messages.iter().map(|message| message.role.clone()).collect();
        Ok::<_, String>((roles.join(" "), conversation.notes.into_iter().collect::<Vec<_>>().join("; ")))
    };
    let taken = |role: &str| format!("the role `{role}` is taken for `assistant`");
    for (roles, expected, notes) in [
        (["user", "assistant"], "user assistant", String::new()),
        (["human", "gpt"], "user assistant", String::new()),
        (["user", "model"], "user assistant", taken("model")),
        (["human", "bot"], "user assistant", taken("bot")),
        (["user", "Assistant"], "user assistant", taken("Assistant")),
        (
            ["System", "AI"],
            "system assistant",
            format!("{}; the role `System` is taken for `system`", taken("AI")),
        ),
        (["observation", "gpt"], "observation assistant", String::new()),
    ] {
        assert_eq!(read(roles), Ok((expected.to_string(), notes)), "{roles:?}");
    }
    let error = read(["user", "critic"]).unwrap_err();
    let expected = "the role is called `critic` there, and none of `assistant`, `gpt`, `model`, `bot`, `chatgpt`, `ai`; rename it";
    assert!(error.ends_with(expected), "{error}");
    let left_out = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "observation", "content": "b"},
        {"role": "assistant", "content": "c", "weight": 0}]}"#;
    let error = Conversation::read(&ChatForm::default(), &record(left_out)).unwrap_err().to_string();
    assert!(error.contains("leaves all turns of the assistant out of the loss"), "{error}");
    let named = ChatForm { assistant: Some("critic".to_string()), ..ChatForm::default() };
    let line = r#"{"messages": [{"role": "critic", "content": "b"}]}"#;
    let conversation = Conversation::read(&named, &record(line)).unwrap();
    assert!(conversation.notes.is_empty() && conversation.messages[0].role == "assistant");
}

/// Without the template there are no messages, whatever the tokenizer has.
#[test]
fn messages_are_not_raw() {
    let form = ChatForm { raw: true, ..ChatForm::default() };
    for line in [
        r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#,
        r#"{"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}]}"#,
    ] {
        let error = form.form(&record(line), None, &Codec::Bytes { eod: 0 }).unwrap_err().to_string();
        assert!(
            error.starts_with(
                "x.jsonl: line 3: holds messages, which only a chat template writes: leave out --raw"
            ),
            "{error}"
        );
    }
}

/// The text that a template writes for a conversation without messages.
fn rendered(source: &str) -> std::result::Result<String, String> {
    template(source).prompt(&[])
}

#[test]
fn json_is_that_of_python() {
    let value = r#"{"b": [1, {"ü": "😀\n", "a": []}], "a": {}}"#;
    for (options, expected) in [
        ("", r#"{"b": [1, {"ü": "😀\n", "a": []}], "a": {}}"#),
        (
            "indent=2",
            "{\n  \"b\": [\n    1,\n    {\n      \"ü\": \"😀\\n\",\n      \"a\": []\n    }\n  ],\n  \"a\": {}\n}",
        ),
        ("sort_keys=true", r#"{"a": {}, "b": [1, {"a": [], "ü": "😀\n"}]}"#),
        ("ensure_ascii=true", r#"{"b": [1, {"\u00fc": "\ud83d\ude00\n", "a": []}], "a": {}}"#),
        ("separators=(',', ':')", r#"{"b":[1,{"ü":"😀\n","a":[]}],"a":{}}"#),
        (
            "indent=1, separators=(', ', ' : '), sort_keys=true",
            "{\n \"a\" : {}, \n \"b\" : [\n  1, \n  {\n   \"a\" : [], \n   \"ü\" : \"😀\\n\"\n  }\n ]\n}",
        ),
    ] {
        assert_eq!(
            rendered(&format!("{{{{ {value} | tojson({options}) }}}}")).unwrap(),
            expected,
            "{options}"
        );
    }
    assert!(rendered("{{ 1 | tojson(indnt=2) }}").unwrap_err().contains("indnt"));
}

#[test]
fn a_template_may_write_the_date() {
    let day = || clock::strftime("%d %b %Y", clock::now().unwrap()).unwrap();
    let source =
        r#"{% if strftime_now is defined %}{{ strftime_now("%d %b %Y") }}{% else %}26 Jul 2024{% endif %}"#;
    let (before, text) = (day(), rendered(source).unwrap());
    assert!([before, day()].contains(&text), "{text}");
    assert!(rendered(r#"{{ strftime_now("%Q") }}"#).unwrap_err().contains("no format of C's strftime"));
}

#[test]
fn a_template_is_found_beside_the_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = folder.path().join("tokenizer.json");
    let load = || ChatTemplate::load(None, Some(&tokenizer)).map_err(|error| error.to_string());
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    assert!(
        load().unwrap_err().contains(
            "has no chat template, which conversations need; name a Jinja file: by --chat-template"
        )
    );
    let Err(absent) = ChatTemplate::load(None, None).map_err(|error| error.to_string()) else {
        panic!("no error")
    };
    assert!(absent.starts_with("the data set: has no tokenizer and no chat template, "), "{absent}");
    write("tokenizer_config.json", "{\"bos_token\": {\"content\": \"B\"}}");
    assert!(load().unwrap_err().contains("tokenizer_config.json: has no `chat_template`"));
    write(
        "tokenizer_config.json",
        r#"{"bos_token": {"content": "B"}, "chat_template": [{"name": "default", "template": "{{ bos_token }}"}]}"#,
    );
    let form = ChatForm::default();
    let conversation = |line: &str| Conversation::read(&form, &record(line)).unwrap();
    let hello = conversation(CONVERSATIONS.lines().next().unwrap());
    assert_eq!(load().unwrap().render(&hello, 0, false, [' '; 3]).unwrap(), "B");
    write("chat_template.jinja", "{{ bos_token }}!");
    assert_eq!(load().unwrap().render(&hello, 0, false, [' '; 3]).unwrap(), "B!");
    // The end of a block does not begin within its start.
    write("chat_template.jinja", "{%}");
    assert!(load().unwrap_err().contains("chat_template.jinja: line 1: is no chat template ("));
    write("chat_template.jinja", "a\n{% if %}");
    let error = load().unwrap_err();
    assert!(
        error.contains("chat_template.jinja: line 2: is no chat template (") && !error.contains('\n'),
        "{error}"
    );
}
