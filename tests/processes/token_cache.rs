//! The tokens of much data are made once, and kept for the next start: what decides them decides which are taken, and
//! nothing half done is left behind.

use crate::launch::{Ended, end, gristmill, run, start};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const TEMPLATE: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}\
    {% if add_generation_prompt %}assistant: {% endif %}";

struct Work {
    home: TempDir,
}

impl Work {
    /// So many conversations of 900 bytes; tokens are kept of a megabyte or more.
    fn new(talks: usize) -> Self {
        let work = Self { home: tempfile::tempdir().expect("a folder") };
        work.write("template.jinja", TEMPLATE);
        work.talk(talks);
        work
    }

    fn talk(&self, talks: usize) {
        let line = |number: usize| {
            let answer =
                format!("number {number} of the mill, which grinds {}", "rye ".repeat(200 + number % 7));
            json!({"messages": [{"role": "user", "content": "which?"}, {"role": "assistant", "content": answer}]})
                .to_string()
        };
        self.write("talks.jsonl", &(0..talks).map(line).collect::<Vec<_>>().join("\n"));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.path(name), content).expect("a file");
    }

    fn edit(&self, name: &str, old: &str, new: &str) {
        let text = fs::read_to_string(self.path(name)).expect("a file");
        assert!(text.contains(old));
        self.write(name, &text.replacen(old, new, 1));
    }

    fn command(&self, flags: &[&str]) -> Command {
        let mut command = gristmill(["finetune", "tests/data/folders/qwen3"]);
        command.arg(self.path("talks.jsonl")).arg("--chat-template").arg(self.path("template.jinja"));
        command.args(["--print-config", "--memory=1GB"]).args(flags);
        command.env("XDG_CACHE_HOME", self.path("cache"));
        command
    }

    /// `plan` of the configuration that `finetune` prints for a file of data.
    fn plan(&self, data: &str, flags: &[&str], keys: &[&str]) -> Command {
        let file = self.path(&format!("{data}.yaml"));
        if !file.exists() {
            // One with a tokenizer: bytes are not kept.
            let mut printed = gristmill(["finetune", "tests/data/folders/qwen2"]);
            printed.arg(self.path(data)).arg("--chat-template").arg(self.path("template.jinja"));
            let printed =
                run(printed.args(["--print-config", "--memory=1GB", "--no-cache"])).succeeded().stdout;
            fs::write(&file, printed).expect("a file");
        }
        let mut command = gristmill(["plan"]);
        command.args(flags).arg(file).args(keys).env("XDG_CACHE_HOME", self.path("cache"));
        command
    }

    fn finetune(&self, flags: &[&str]) -> Ended {
        run(&mut self.command(flags))
    }

    /// The files of the cache.
    fn kept(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("cache/gristmill/tokens")).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        files.sort();
        files
    }
}

const MADE: &str = "; they are kept in ";
const FOUND: &str = "tokens of 1200 samples are those in ";
const DAMAGED: &str = "is damaged, and made again";
const UNKEPT: &str = "tokens are not kept for the next start: ";

#[test]
fn tokens_are_made_once_of_what_decides_them() {
    let work = Work::new(1_200);
    let expect = |name: &str, flags: &[&str], said: &[&str], files: usize| {
        let ended = work.finetune(flags).succeeded();
        for line in [MADE, FOUND, DAMAGED, UNKEPT] {
            let count = ended.stderr.matches(line).count();
            assert_eq!(count, usize::from(said.contains(&line)), "{name}: `{line}` in\n{}", ended.stderr);
        }
        assert_eq!(work.kept().len(), files, "{name}: {:?}", work.kept());
        ended.stdout
    };
    let without = expect("no cache", &["--no-cache"], &[], 0);
    // The second reading of the command, of how many samples are learned from, finds them.
    let first = expect("the first start", &[], &[MADE, FOUND], 1);
    assert_eq!(first, without);
    assert_eq!(expect("the next start", &[], &[FOUND], 1), first);
    expect("another length", &["--max-length=40"], &[FOUND], 1);
    expect("no cache", &["--no-cache"], &[], 1);

    let file = work.kept().remove(0);
    let bytes = fs::read(&file).expect("a file");
    let mut damaged = bytes.clone();
    damaged[bytes.len() / 2] ^= 4;
    for content in [damaged, bytes[..bytes.len() - 1].to_vec(), b"something else".to_vec(), Vec::new()] {
        fs::write(&file, content).expect("a file");
        assert_eq!(expect("a damaged file", &[], &[DAMAGED, MADE, FOUND], 1), first);
        assert_eq!(fs::read(&file).expect("a file"), bytes);
    }

    work.edit("talks.jsonl", "number 7 of the mill", "number 8 of the mill");
    expect("other data", &[], &[MADE, FOUND], 2);
    work.edit("template.jinja", "{{ message.role }}:", "{{ message.role }}>");
    expect("another template", &[], &[MADE, FOUND], 3);
    work.edit("template.jinja", "{{ message.role }}>", "{{ message.role }}:");
    work.edit("talks.jsonl", "number 8 of the mill", "number 7 of the mill");
    assert_eq!(expect("the first ones again", &[], &[FOUND], 3), first);
}

/// Processes that make the same tokens at the same time get the same, keep one file of them, and leave no other.
#[test]
fn processes_that_make_the_same_tokens_at_once_keep_one_file() {
    let work = Work::new(6_000);
    let started = [start(&mut work.command(&[])), start(&mut work.command(&[]))];
    let ended = started.map(|child| end(child).succeeded());
    assert_eq!(ended[0].stdout, ended[1].stdout);
    let said = |line: &str| ended.iter().map(|one| one.stderr.matches(line).count()).sum::<usize>();
    assert!((1..=2).contains(&said(MADE)), "{}\n{}", ended[0].stderr, ended[1].stderr);
    assert_eq!((said(UNKEPT), said(DAMAGED), work.kept().len()), (0, 0, 1), "{:?}", work.kept());
    assert_eq!(work.finetune(&[]).succeeded().stdout, ended[0].stdout);
}

/// To keep tokens, all of the files are hashed, which takes longer than to read a part of them.
#[test]
fn tokens_of_a_part_are_not_kept() {
    let work = Work::new(10);
    work.write("mill.txt", &"The mill grinds rye, and the miller turns a stone.\n".repeat(21_000));
    let (few, many) =
        ("--train_dataset.data_loader.max_bytes=200000", "--train_dataset.data_loader.max_bytes=9000000");
    let found = "tokens of 1 document are those in ";
    for (name, flags, keys, said, files) in [
        ("a part", &[][..], &[few][..], &[][..], 0),
        ("no cache", &["--no-cache"], &[], &[], 0),
        ("all", &[], &[], &[MADE], 1),
        ("the next start", &[], &[], &[found], 1),
        ("no cache, though there is one", &["--no-cache"], &[], &[], 1),
        ("a limit beyond the data", &[], &[many], &[MADE], 2),
    ] {
        let ended = run(&mut work.plan("mill.txt", flags, keys)).succeeded();
        for line in [MADE, found, DAMAGED, UNKEPT] {
            let count = ended.stderr.matches(line).count();
            assert_eq!(count, usize::from(said.contains(&line)), "{name}: `{line}` in\n{}", ended.stderr);
        }
        assert_eq!(work.kept().len(), files, "{name}: {:?}", work.kept());
        assert!(!ended.stdout.contains("not known without the data"), "{name}: {}", ended.stdout);
    }
}

#[test]
fn a_cache_that_cannot_be_written_is_done_without() {
    let work = Work::new(1_200);
    let without = work.finetune(&["--no-cache"]).succeeded().stdout;
    work.write("blocked", "a file");
    let ended = run(work.command(&[]).env("XDG_CACHE_HOME", work.path("blocked"))).succeeded();
    assert_eq!((ended.stdout, ended.stderr.matches(UNKEPT).count()), (without, 1), "{}", ended.stderr);
}

#[test]
fn faults_and_interrupts_leave_nothing_half_done() {
    let work = Work::new(1_200);
    work.edit("talks.jsonl", "number 1100 of the mill, which", "number\nof the mill, which");
    let ended = work.finetune(&[]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("line 1101: is not valid JSON"), "{}", ended.stderr);
    assert_eq!(work.kept(), Vec::<PathBuf>::new());

    let work = Work::new(200);
    work.plan("talks.jsonl", &[], &[]);
    work.talk(40_000);
    for mut command in [work.command(&[]), work.plan("talks.jsonl", &[], &[])] {
        is_interrupted(&work, &mut command);
    }
}

/// An interrupt while tokens are written ends `command`, and leaves none.
fn is_interrupted(work: &Work, command: &mut Command) {
    let mut child = start(command);
    while work.kept().is_empty() && child.try_wait().expect("the process").is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let begun = work.kept();
    assert!(
        begun.iter().all(|path: &PathBuf| path.extension().is_some_and(|ending| ending == "tmp")),
        "{begun:?}"
    );
    let sent = Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status();
    assert!(sent.expect("kill").success());
    let ended = end(child);
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    assert_eq!(work.kept(), Vec::<PathBuf>::new());
    let left: &Path = work.home.path();
    assert!(!left.join("output").exists());
}
