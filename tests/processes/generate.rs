//! `gristmill generate`: what it prints, when it prints it, and how it ends.

use crate::launch::{end, gristmill, run, start};
use crate::runs::{GREEDY, Setup, open_gpu_of, trained_model, trained_model_with_tokenizer};
use gristmill::data::Codec;
use gristmill::data::tokenizer::Tokenizer;
use gristmill::infer::GenerationSettings;
use gristmill::kernels::Tier;
use serde_json::json;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn generate(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = gristmill(["generate"]);
    command.arg(folder).args(arguments);
    command
}

#[test]
fn the_command_prints_prompt_and_continuation() {
    let trained = trained_model(Setup::new("command", ""));
    let count = GREEDY.tokens.to_string();
    let greedy = ["--prompt", "the mill", "--tokens", &count, "--temperature", "0", "--ignore-eod"];
    let printed = run(&mut generate(&trained.folder(), &greedy)).succeeded().stdout;
    let want = trained.generate(&trained.setup.gpu(), &["the mill"], &GREEDY).remove(0);
    assert_eq!(printed, format!("the mill{}\n", Codec::Bytes { eod: 0 }.decode(&want)));

    let several =
        ["--prompt", "a", "--prompt", "b", "--samples", "2", "--top-k=5", "--top-p=0.9", "--seed=3"];
    let several = run(&mut generate(&trained.folder(), &several)).succeeded().stdout;
    assert!(
        ["--- 1\na", "--- 2\na", "--- 3\nb", "--- 4\nb"].iter().all(|text| several.contains(text)),
        "{several}"
    );

    let checkpoint = trained.folder().join("checkpoint/step_0000015");
    run(&mut generate(&checkpoint, &["--tokens=3"])).succeeded();
}

/// Text is printed before generation is complete, and adds up to the text of all tokens: on each tier, through a
/// tokenizer.
#[test]
fn text_is_streamed() {
    const TOKENS: usize = 120;
    let home = tempfile::tempdir().expect("a folder");
    let trained = trained_model_with_tokenizer(home.path());
    let codec = trained.open().codec;
    for tier in Tier::EVERYWHERE {
        let count = TOKENS.to_string();
        let greedy = ["--prompt=The mill", "--tokens", &count, "--temperature=0", "--ignore-eod"];
        let mut child = start(generate(&trained.folder(), &greedy).args(["--tier", tier.name()]));
        let mut stdout = child.stdout.take().expect("a pipe");
        let mut printed = vec![0; "The mill".len() + 1];
        stdout.read_exact(&mut printed).expect("the prompt and the start of its continuation");
        assert!(
            child.try_wait().expect("a process").is_none(),
            "{}: the whole text came at once",
            tier.name()
        );
        stdout.read_to_end(&mut printed).expect("the rest");
        end(child).succeeded();
        let settings = GenerationSettings { tokens: TOKENS, ..GREEDY };
        let tokens = trained.generate(&open_gpu_of(tier), &["The mill"], &settings).remove(0);
        assert_eq!(String::from_utf8_lossy(&printed), format!("The mill{}\n", codec.decode(&tokens)));
    }
}

/// As behind `| head`: when the reader closes the pipe the program ends silently.
#[test]
fn a_closed_output_ends_it_quietly() {
    let trained = trained_model(Setup::new("closed", ""));
    let endless = ["--prompt=the mill", "--tokens=100000000", "--ignore-eod"];
    let mut child = start(&mut generate(&trained.folder(), &endless));
    let mut stdout = child.stdout.take().expect("a pipe");
    stdout.read_exact(&mut [0; 20]).expect("the start of the text");
    drop(stdout);
    let patience = Instant::now() + Duration::from_secs(60);
    while child.try_wait().expect("a process").is_none() {
        if Instant::now() > patience {
            child.kill().expect("a process");
            panic!("it keeps writing into a closed pipe");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let ended = end(child).succeeded();
    assert_eq!(ended.stderr, "");

    let config = trained.setup.write(trained.home.path());
    let mut child = start(gristmill(["plan"]).arg(config));
    drop(child.stdout.take());
    let ended = end(child).succeeded();
    assert_eq!(ended.stderr, "");
}

/// The model has a window of 24.
#[test]
fn a_prompt_that_is_longer_than_the_window_is_noticed() {
    let trained = trained_model(Setup::new("long_prompt", ""));
    let of = |length: usize| {
        let prompt = "the mill ".repeat(9)[..length].to_string();
        let said =
            run(&mut generate(&trained.folder(), &["--tokens=3", "--prompt", &prompt])).succeeded().stderr;
        let (notices, rate) = said.split_at(said.find("3 tokens, ").expect("a rate"));
        assert!(rate.ends_with(" tokens/s\n"), "{rate}");
        notices.to_string()
    };
    assert_eq!(of(24), "");
    let expected =
        "notice: the prompt has 25 tokens, and the model reads 24: it continues the last 24 alone\n";
    assert_eq!(of(25), expected);
}

/// A folder of Hugging Face's alone continues as the run that wrote it does, by the choices of its
/// generation_config.json, over which flags go.
#[test]
fn a_folder_of_hugging_face_is_a_trained_model() {
    let home = tempfile::tempdir().expect("a folder");
    let trained = trained_model_with_tokenizer(home.path());
    let checkpoint = trained.folder().join("checkpoint/step_0000030");
    for name in ["config.json", "model.safetensors"] {
        fs::copy(checkpoint.join(name), home.path().join(name)).expect("a file");
    }
    let prompt = ["--prompt=The mill", "--tokens=12"];
    let of = |more: &[&str]| run(&mut generate(home.path(), &[&prompt, more].concat())).succeeded().stdout;
    let want = trained
        .generate(&trained.setup.gpu(), &["The mill"], &GenerationSettings { tokens: 12, ..GREEDY })
        .remove(0);
    let text = |tokens: &[u32]| format!("The mill{}\n", trained.open().codec.decode(tokens));
    assert_eq!(of(&["--temperature=0", "--ignore-eod"]), text(&want));
    // A path is taken as it is, also where YAML would read a comment.
    let moved = home.path().join("run #2");
    fs::create_dir(&moved).expect("a folder");
    fs::copy(home.path().join("tokenizer.json"), moved.join("tokenizer.json")).expect("a file");
    let tokenizer = moved.join("tokenizer.json").display().to_string();
    assert_eq!(of(&["--temperature=0", "--ignore-eod", "--tokenizer", &tokenizer]), text(&want));

    let generation = home.path().join("generation_config.json");
    let write = |config: serde_json::Value| fs::write(&generation, config.to_string()).expect("a file");
    write(json!({"do_sample": false, "temperature": 5.0, "eos_token_id": [299, want[5]]}));
    let first = want.iter().position(|token| *token == want[5]).expect("a token");
    assert_eq!(of(&[]), text(&want[..=first]));
    assert_ne!(of(&["--temperature=2", "--ignore-eod"]), text(&want));

    write(json!({"top_p": 2.0}));
    let refused = run(&mut generate(home.path(), &prompt));
    assert_eq!(refused.code, Some(2));
    assert!(
        refused.stderr.contains("generation_config.json: `top_p`: expected a number above 0"),
        "{}",
        refused.stderr
    );
}

/// A prompt may come from standard input, and a conversation does: what the model reads is what the template makes of
/// all messages.
#[test]
fn standard_input_is_a_prompt_or_a_conversation() {
    let home = tempfile::tempdir().expect("a folder");
    let template = home.path().join("template.jinja");
    let text = "{% for message in messages %}{{ message.role[0] }}:{{ message.content }}\n{% endfor %}\
                {% if add_generation_prompt %}a:{% endif %}";
    fs::write(&template, text).expect("a file");
    let folder = Path::new("tests/data/folders/llama");
    let greedy = ["--tokens=4", "--temperature=0", "--ignore-eod"];
    let fed = |arguments: &[&str], input: &str| {
        let mut command = generate(folder, &[&greedy, arguments].concat());
        let mut child = start(command.stdin(std::process::Stdio::piped()));
        child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("its input");
        end(child).succeeded()
    };
    let continued = |prompt: &str| {
        let printed = fed(&["--prompt=-"], &format!("{prompt}\n")).stdout;
        assert_eq!(
            printed,
            run(&mut generate(folder, &[&greedy[..], &["--prompt", prompt]].concat())).stdout
        );
        printed.strip_prefix(prompt).expect("the prompt").strip_suffix('\n').expect("a line").to_string()
    };
    let template = format!("--chat-template={}", template.display());
    let chat = ["--chat", "--system=be", &template];
    let ended = fed(&chat, "hi\n\nmore\n");
    let first = continued("s:be\nu:hi\na:");
    let second = continued(&format!("s:be\nu:hi\na:{first}\nu:more\na:"));
    assert_eq!((ended.stdout, ended.stderr.as_str()), (format!("> hi\n{first}\n> more\n{second}\n"), ""));

    // The window is 48: the third message drops the first exchange, and the fourth is too long by itself.
    let ended =
        fed(&chat, &format!("{}\n{}\nmore\n{}\n", "one".repeat(5), "two".repeat(5), "long".repeat(12)));
    let (turns, answers): (Vec<&str>, Vec<&str>) =
        ended.stdout.lines().partition(|line| line.starts_with("> "));
    assert_eq!((turns.len(), answers.len()), (4, 3), "{}", ended.stdout);
    let notices = "notice: the context of 48 tokens is full; the oldest messages are forgotten\n";
    assert!(ended.stderr.starts_with(notices), "{}", ended.stderr);
    assert!(ended.stderr.ends_with("and the model reads 48; write a shorter one\n"), "{}", ended.stderr);
    let refused = run(&mut generate(folder, &["--chat"]));
    assert!(refused.stderr.contains("name a Jinja file: by --chat-template"), "{}", refused.stderr);
}

/// A checkpoint of a model of bytes has a tokenizer whose tokens are bytes.
#[test]
fn bytes_have_a_tokenizer() {
    let trained = trained_model(Setup::new("bytes", ""));
    let checkpoint = trained.folder().join("checkpoint/step_0000030");
    let tokenizer = Tokenizer::load(&checkpoint.join("tokenizer.json")).unwrap_or_else(|e| panic!("{e}"));
    let text = "the mill\n\t \u{e9} \u{20ac} \u{0} \u{1f980} don't";
    let ids: Vec<u32> = text.bytes().map(u32::from).collect();
    assert_eq!((tokenizer.vocab_size(), tokenizer.encode(text).expect("tokens")), (256, ids.clone()));
    assert_eq!(tokenizer.decode(&ids), text);
    let config = fs::read(checkpoint.join("tokenizer_config.json")).expect("a file");
    let config: serde_json::Value = serde_json::from_slice(&config).expect("JSON");
    assert_eq!(tokenizer.token_id(config["eos_token"].as_str().expect("a token")), Some(0));
}

#[test]
fn what_is_wrong_is_one_line() {
    let trained = trained_model(Setup::new("wrong", ""));
    let folder = trained.folder();
    let small = trained_model(Setup::new("small", "").with(&["--model.model_config.vocab_size=128"]));
    let small = small.folder();
    let cases: [(&Path, &[&str], &str); 7] = [
        (&small, &["--prompt=\u{e9}"], "error: the prompt `\u{e9}` has the token 195, outside"),
        (Path::new("/nowhere"), &[], "error: /nowhere: neither the folder of a run"),
        (&folder, &["--temperature=-1"], "error: --temperature: expected a number of at least 0"),
        (&folder, &["--temperature", "-1"], "error: --temperature: expected a number of at least 0"),
        (&folder, &["--top-p", "0"], "error: --top-p: expected a number above 0, at most 1"),
        (
            &folder,
            &["--tier", "warp"],
            "error: --tier: expected one of software, portable, matrix, found `warp`",
        ),
        (&folder, &["--samples", "0"], "error: --samples: expected a whole number from 1 to 4096, found `0`"),
    ];
    for (folder, arguments, expected) in cases {
        let refused = run(&mut generate(folder, arguments));
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        let line = refused.stderr.lines().last().unwrap_or_default().to_string();
        assert!(line.starts_with(expected), "{line}");
    }
}
