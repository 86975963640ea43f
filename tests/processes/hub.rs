//! Models by their names: from a server on the loopback that speaks what is asked of the Hugging Face Hub, with its redirects,
//! and with faults.

use crate::launch::{Ended, gristmill, run};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::spawn;
use tempfile::TempDir;

const FOLDER: &str = "tests/data/folders/qwen2";
const NAME: &str = "mill/tiny";
const WEIGHTS: &str = "model.safetensors";
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What the server does otherwise than the Hub on a good day.
#[derive(Clone, Default)]
struct Faults {
    /// Answers with weights that break off after a third of what was asked for, or if there are many, at once.
    breaks: u32,
    /// Weights are sent from the beginning, whatever was asked for.
    no_ranges: bool,
    /// A byte of the weights differs.
    wrong_byte: bool,
    /// The list says that weights have one byte less.
    wrong_size: bool,
    /// Nothing is given, and nothing taken, without this token.
    token: Option<&'static str>,
    /// Large files are taken in parts of so many bytes.
    part: Option<usize>,
}

/// A Hub with one model, and the cache of a user.
struct Hub {
    home: TempDir,
    address: String,
    faults: Arc<Mutex<Faults>>,
    /// The first lines of requests.
    asked: Arc<Mutex<Vec<String>>>,
    sent: Arc<Mutex<Sent>>,
}

/// What was sent to the Hub.
#[derive(Default)]
struct Sent {
    /// Large files, or their parts, by the end of their address.
    large: BTreeMap<String, Vec<u8>>,
    /// The lines of commits.
    commits: Vec<Vec<Value>>,
    created: Vec<Value>,
}

impl Hub {
    fn with(faults: Faults) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let hub = Self {
            home: tempfile::tempdir().expect("a folder"),
            address,
            faults: Arc::new(Mutex::new(faults)),
            asked: Arc::default(),
            sent: Arc::default(),
        };
        let (faults, asked, sent) = (hub.faults.clone(), hub.asked.clone(), hub.sent.clone());
        let serve = move |stream| answer(stream, &faults, &asked, &sent);
        spawn(move || listener.incoming().flatten().for_each(serve));
        hub
    }

    fn gristmill(&self, words: &[&str], variables: &[(&str, &str)]) -> Ended {
        let mut command = gristmill(words.iter().copied());
        for other in ["HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"] {
            command.env_remove(other);
        }
        command.env("HF_HOME", self.home.path()).env("HF_ENDPOINT", format!("http://{}/", self.address));
        run(command.envs(variables.iter().copied()))
    }

    fn plan(&self) -> Ended {
        self.gristmill(&["plan", NAME], &[])
    }

    /// What `plan` is refused with.
    fn failed(&self) -> String {
        refused(self.plan())
    }

    fn cache(&self) -> PathBuf {
        self.home.path().join("hub").join("models--mill--tiny")
    }

    fn snapshot(&self) -> PathBuf {
        self.cache().join("snapshots").join(COMMIT)
    }

    /// How often weights were asked for since the last time, and anything.
    fn asked(&self) -> (usize, usize) {
        let asked = std::mem::take(&mut *self.asked.lock().expect("no panic"));
        (asked.iter().filter(|line| line.contains("/cdn/")).count(), asked.len())
    }
}

fn refused(ended: Ended) -> String {
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    ended.stderr
}

fn listing(faults: &Faults) -> Value {
    let mut files = vec![json!({"rfilename": "README.md", "size": 3, "blobId": "a".repeat(40)})];
    for entry in fs::read_dir(FOLDER).expect("a folder") {
        let path = entry.expect("an entry").path();
        let (bytes, name) =
            (fs::read(&path).expect("a file"), path.file_name().and_then(|name| name.to_str()));
        let git = Sha1::new_with_prefix(format!("blob {}\0", bytes.len())).chain_update(&bytes).finalize();
        let mut file = json!({"rfilename": name, "size": bytes.len(), "blobId": digits(&git)});
        if name == Some(WEIGHTS) {
            let size = bytes.len() - usize::from(faults.wrong_size);
            file["lfs"] =
                json!({"sha256": digits(&Sha256::digest(&bytes)), "size": size, "pointerSize": 130});
        }
        files.push(file);
    }
    json!({"id": NAME, "sha": COMMIT, "private": false, "siblings": files})
}

fn digits(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn answer(mut stream: TcpStream, faults: &Mutex<Faults>, asked: &Mutex<Vec<String>>, sent: &Mutex<Sent>) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).expect("a head").to_lowercase();
    let first = head.lines().next().unwrap_or_default().to_string();
    let path = first.split(' ').nth(1).unwrap_or_default();
    let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let port = header("host").and_then(|host| host.rsplit(':').next()).unwrap_or_default();
    asked.lock().expect("no panic").push(first.clone());
    let mut body = vec![0; header("content-length").map_or(0, |length| length.parse().expect("a length"))];
    stream.read_exact(&mut body).expect("a body");
    let mut faults = faults.lock().expect("no panic");
    let (token, authorization) =
        (faults.token.map(|token| format!("bearer {token}")), header("authorization"));
    let mut say = |status: &str, more: &str, body: &[u8], count: usize| {
        let head =
            format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n{more}\r\n", body.len());
        // The other side may have gone.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body[..count]));
    };
    if let Some(name) = path.strip_prefix("/cdn/") {
        assert_eq!(authorization, None, "the token is for the Hub alone");
        let mut bytes = fs::read(Path::new(FOLDER).join(name)).expect("a file");
        let last = bytes.len() - 1;
        bytes[last] ^= u8::from(faults.wrong_byte);
        let first =
            header("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
        let rest = &bytes[first.filter(|_| !faults.no_ranges).unwrap_or(0)..];
        let count = match faults.breaks {
            0 => rest.len(),
            1..10 => rest.len() / 3,
            _ => 0,
        };
        faults.breaks = faults.breaks.saturating_sub(1);
        let whole = bytes.len();
        return match first.filter(|_| !faults.no_ranges) {
            Some(first) => {
                let range = format!("Content-Range: bytes {first}-{last}/{whole}\r\n");
                say("206 Partial Content", &range, rest, count);
            }
            None => say("200 OK", "", rest, count),
        };
    }
    if let Some(name) = path.strip_prefix("/s3/") {
        assert_eq!(authorization, None, "the token is for the Hub alone");
        sent.lock().expect("no panic").large.insert(name.to_string(), body);
        return say("200 OK", &format!("ETag: \"tag of {name}\"\r\n"), b"", 0);
    }
    if token.is_some() && token.as_deref() != authorization {
        return say("401 Unauthorized", "X-Error-Code: GatedRepo\r\n", b"{}", 2);
    }
    if first.starts_with("post ") {
        return match taken(path, &body, port, &faults, &mut sent.lock().expect("no panic")) {
            Some(answer) => say("200 OK", "", answer.to_string().as_bytes(), answer.to_string().len()),
            None => say("409 Conflict", "", b"{}", 2),
        };
    }
    let file = path.strip_prefix(&format!("/{NAME}/resolve/{COMMIT}/"));
    if path == format!("/api/models/{NAME}/revision/main?blobs=true") {
        let list = listing(&faults).to_string();
        return say("200 OK", "", list.as_bytes(), list.len());
    }
    match (file, path.strip_prefix("/moved/")) {
        // Another host by its name.
        (Some(WEIGHTS), _) => {
            say("302 Found", &format!("Location: http://localhost:{port}/cdn/{WEIGHTS}\r\n"), b"", 0);
        }
        (Some(name), _) => say("307 Temporary Redirect", &format!("Location: /moved/{name}\r\n"), b"", 0),
        (_, Some(name)) => {
            let bytes = fs::read(Path::new(FOLDER).join(name)).expect("a file");
            say("200 OK", "", &bytes, bytes.len());
        }
        _ => say("404 Not Found", "X-Error-Code: RepoNotFound\r\n", b"{}", 2),
    }
}

/// What the Hub answers to something sent; `None` if the model exists.
fn taken(path: &str, body: &[u8], port: &str, faults: &Faults, sent: &mut Sent) -> Option<Value> {
    let parsed = || serde_json::from_slice::<Value>(body).expect("JSON");
    let own =
        path.strip_prefix("/api/models/me/tuned/").or_else(|| path.strip_prefix("/me/tuned.git/info/lfs/"));
    match own.unwrap_or(path) {
        "/api/repos/create" => {
            sent.created.push(parsed());
            (sent.created.len() == 1).then(|| json!({}))
        }
        "preupload/main" => {
            let mode = |file: &Value| {
                let is_large = file["path"].as_str().is_some_and(|name| name.ends_with(".safetensors"));
                json!({"path": file["path"], "uploadMode": if is_large { "lfs" } else { "regular" }})
            };
            Some(json!({"files": parsed()["files"].as_array()?.iter().map(mode).collect::<Vec<_>>()}))
        }
        "objects/batch" => {
            let object = |object: &Value| {
                let (oid, size) =
                    (object["oid"].as_str().unwrap_or_default(), object["size"].as_u64().unwrap_or(0));
                let is_there = sent.large.keys().any(|name| name.starts_with(oid));
                let address = |end: String| format!("http://localhost:{port}/s3/{oid}{end}");
                let action = match faults.part {
                    None => json!({"href": address(String::new()), "header": {"x-signed": "1"}}),
                    Some(part) => {
                        let parts = (size as usize).div_ceil(part);
                        let mut header = json!({"chunk_size": part.to_string()});
                        (1..=parts)
                            .for_each(|at| header[format!("{at:05}")] = address(format!(".{at}")).into());
                        json!({"href": format!("http://127.0.0.1:{port}/complete"), "header": header})
                    }
                };
                let actions = if is_there { json!({}) } else { json!({"upload": action}) };
                json!({"oid": oid, "size": size, "actions": actions})
            };
            Some(json!({"objects": parsed()["objects"].as_array()?.iter().map(object).collect::<Vec<_>>()}))
        }
        "/complete" => {
            let whole = parsed();
            let (oid, parts) = (whole["oid"].as_str()?, whole["parts"].as_array()?);
            let mut bytes = Vec::new();
            for part in parts {
                let name = format!("{oid}.{}", part["partNumber"]);
                assert_eq!(part["etag"], format!("\"tag of {name}\""));
                bytes.extend(sent.large.remove(&name)?);
            }
            sent.large.insert(oid.to_string(), bytes);
            Some(json!({}))
        }
        "commit/main" => {
            let lines = std::str::from_utf8(body).expect("text").lines();
            sent.commits.push(lines.map(|line| serde_json::from_str(line).expect("JSON")).collect());
            Some(json!({"commitOid": COMMIT}))
        }
        other => panic!("{other} is not asked for"),
    }
}

#[test]
fn a_model_is_fetched_by_its_name_once() {
    let hub = Hub::with(Faults { breaks: 2, ..Faults::default() });
    let fetched = hub.plan().succeeded();
    assert!(fetched.stderr.contains(&format!("{NAME}: fetching ")), "{}", fetched.stderr);
    let planned = fetched.stdout.replace(&hub.snapshot().display().to_string(), FOLDER);
    assert_eq!(planned, run(&mut gristmill(["plan", FOLDER])).succeeded().stdout);
    assert_eq!(hub.asked().0, 3);
    for entry in fs::read_dir(FOLDER).expect("a folder") {
        let path = entry.expect("an entry").path();
        let copy = hub.snapshot().join(path.file_name().expect("a name"));
        assert_eq!(fs::read(&path).expect("a file"), fs::read(copy).expect("a copy"));
    }
    assert!(!hub.snapshot().join("README.md").exists());
    assert_eq!(fs::read_to_string(hub.cache().join("refs/main")).expect("a file"), COMMIT);
    // What is there is not asked for again, and serves without a network.
    assert_eq!((hub.plan().succeeded().stdout, hub.asked()), (fetched.stdout.clone(), (0, 1)));
    for variable in [("HF_HUB_OFFLINE", "1"), ("HF_ENDPOINT", "http://127.0.0.1:1")] {
        let offline = hub.gristmill(&["plan", NAME], &[variable]).succeeded();
        assert_eq!(offline.stdout, fetched.stdout);
        assert!(offline.stderr.starts_with("notice: "), "{}", offline.stderr);
    }
    // A run is named after the model, and trains what is in the cache.
    let data = hub.home.path().join("data.jsonl");
    fs::write(&data, r#"{"text": "which?"}"#.to_string() + "\n").expect("a file");
    let words = [
        "finetune",
        NAME,
        data.to_str().expect("a path"),
        "--eval-fraction=0",
        "--memory=1GB",
        "--print-config",
    ];
    let config = hub.gristmill(&words, &[]).succeeded().stdout;
    assert!(config.contains(&format!("load_checkpoint: {}", hub.snapshot().display())), "{config}");
    assert!(config.contains("run_name: tiny-finetuned"), "{config}");
}

#[test]
fn a_file_goes_on_where_an_earlier_command_left_it() {
    let hub = Hub::with(Faults { breaks: 1, no_ranges: true, ..Faults::default() });
    let hash = digits(&Sha256::digest(fs::read(Path::new(FOLDER).join(WEIGHTS)).expect("a file")));
    hub.plan().succeeded(); // from the beginning after the break
    assert_eq!(hub.asked().0, 2);
    let blob = hub.cache().join("blobs").join(&hash);
    let begun = blob.with_file_name(format!("{hash}.incomplete"));
    fs::write(&begun, &fs::read(&blob).expect("a file")[..1000]).expect("a file");
    fs::remove_file(&blob).expect("a file");
    *hub.faults.lock().expect("no panic") = Faults::default();
    let again = hub.plan().succeeded();
    assert!(
        again.stderr.contains("of which 1.0") || again.stderr.contains("of which 1000 B"),
        "{}",
        again.stderr
    );
    assert!(blob.exists() && !begun.exists());
}

#[test]
fn files_that_the_hub_does_not_list_are_not_kept() {
    for (faults, what) in [
        (Faults { wrong_byte: true, ..Faults::default() }, "the hash"),
        (Faults { wrong_size: true, ..Faults::default() }, "bytes"),
    ] {
        let hub = Hub::with(faults);
        let refused = hub.failed();
        assert!(refused.contains(&format!("{NAME}: {WEIGHTS} has ")) && refused.contains(what), "{refused}");
        assert!(refused.contains("call this again"), "{refused}");
        let blobs = fs::read_dir(hub.cache().join("blobs")).expect("a folder").flatten();
        let left = blobs.filter(|entry| entry.metadata().is_ok_and(|data| data.len() > 50_000)).count();
        assert_eq!((left, hub.cache().join("refs/main").exists()), (0, false));
        *hub.faults.lock().expect("no panic") = Faults::default();
        hub.plan().succeeded();
    }
}

#[test]
fn a_model_that_does_not_come_says_what_to_do() {
    let hub = Hub::with(Faults { token: Some("secret"), ..Faults::default() });
    let closed = hub.failed();
    assert!(closed.contains("401") && closed.contains("set HF_TOKEN"), "{closed}");
    let wrong = refused(hub.gristmill(&["plan", NAME], &[("HF_TOKEN", "other")]));
    assert!(wrong.contains("accept its terms"), "{wrong}");
    hub.gristmill(&["plan", NAME], &[("HF_TOKEN", "secret")]).succeeded();
    let none = Hub::with(Faults::default());
    let missing = refused(none.gristmill(&["generate", "mill/other", "--prompt", "a"], &[]));
    assert!(missing.contains("mill/other: there is no such model at http://"), "{missing}");
    for variable in [("HF_HUB_OFFLINE", "1"), ("HF_ENDPOINT", "http://127.0.0.1:1")] {
        let offline = refused(none.gristmill(&["plan", NAME], &[variable]));
        assert!(
            offline.contains("`hf download mill/tiny --local-dir tiny`, and name that folder"),
            "{offline}"
        );
    }
    let broken = Hub::with(Faults { breaks: 99, ..Faults::default() });
    assert!(broken.failed().contains("and it goes on from there"));
}

#[test]
fn an_adapter_is_sent_with_its_card() {
    let hub = Hub::with(Faults::default());
    let [data, run] = ["data.jsonl", "run"].map(|name| hub.home.path().join(name).display().to_string());
    let record = r#"{"prompt": "which?", "completion": "this"}"#;
    fs::write(&data, [record; 8].join("\n")).expect("a file");
    let output = format!("--output={run}");
    let words = ["finetune", NAME, &data, "--steps=2", "--tier=software", "--eval-fraction=0.25", &output];
    hub.gristmill(&words, &[]).succeeded();
    let (push, private) = (["push", &run, "me/tuned"], ["push", &run, "me/tuned", "--private"]);
    let without = refused(hub.gristmill(&push, &[]));
    assert!(without.contains("me/tuned: sending needs a token that may write: set HF_TOKEN"), "{without}");
    *hub.faults.lock().expect("no panic") =
        Faults { token: Some("secret"), part: Some(5000), ..Faults::default() };
    let wrong = refused(hub.gristmill(&push, &[("HF_TOKEN", "other")]));
    assert!(wrong.contains("401") && wrong.contains("may write there"), "{wrong}");
    let misnamed = refused(hub.gristmill(&["push", &run, "tuned"], &[("HF_TOKEN", "secret")]));
    assert!(misnamed.contains("is no name on the Hub"), "{misnamed}");
    let token = [("HF_TOKEN", "secret")];
    let pushed = hub.gristmill(&private, &token).succeeded();
    assert!(pushed.stdout.contains(" files sent to http://"), "{}", pushed.stdout);
    // Again: it exists, and so does its large file.
    hub.asked();
    hub.gristmill(&push, &token).succeeded();
    let sent = hub.sent.lock().expect("no panic");
    assert!(!hub.asked.lock().expect("no panic").iter().any(|line| line.contains("/s3/")));
    assert_eq!(
        sent.created[0],
        json!({"type": "model", "organization": "me", "name": "tuned", "private": true})
    );
    let [first, second] = &sent.commits[..] else { panic!("{} commits", sent.commits.len()) };
    assert_eq!(first, second);
    let file = |name: &str| {
        let value = first.iter().map(|line| &line["value"]).find(|value| value["path"] == name);
        let text = value.and_then(|value| BASE64.decode(value["content"].as_str()?).ok());
        String::from_utf8(text.unwrap_or_else(|| panic!("{name} in {first:?}"))).expect("text")
    };
    let config: Value = serde_json::from_str(&file("adapter_config.json")).expect("JSON");
    assert_eq!(config["base_model_name_or_path"], NAME);
    let large =
        first.iter().find(|line| line["key"] == "lfsFile").map(|line| &line["value"]).expect("a large file");
    let weights = Path::new(&run).join("checkpoint/step_0000002/adapter/adapter_model.safetensors");
    let weights = fs::read(weights).expect("a file");
    assert_eq!(
        (&large["path"], &large["size"]),
        (&json!("adapter_model.safetensors"), &json!(weights.len()))
    );
    assert_eq!(sent.large[large["oid"].as_str().expect("a hash")], weights);
    file("tokenizer.json");
    let card = file("README.md");
    for expected in [
        "base_model: mill/tiny\n",
        "- lora\n",
        "| base | mill/tiny |",
        "| adapters | rank 16, alpha 32",
        "| training data | XXH3 `",
        "| steps | 2 of 2 |",
        "| training loss | ",
        "| evaluation loss | ",
        "lr_schedule.learning_rate: 0.0002",
    ] {
        assert!(card.contains(expected), "{expected} in {card}");
    }
    assert!(!card.contains(&*hub.home.path().to_string_lossy()), "{card}");
    assert!(!first.iter().any(|line| {
        ["optimizer.safetensors", "config.json", "base.json"]
            .contains(&line["value"]["path"].as_str().unwrap_or(""))
    }));
}

#[test]
fn an_adapter_finds_its_base_by_name() {
    let hub = Hub::with(Faults::default());
    let adapter = hub.home.path().join("adapter");
    fs::create_dir(&adapter).expect("a folder");
    let [data, run] = ["data.jsonl", "run"].map(|name| hub.home.path().join(name).display().to_string());
    fs::write(&data, r#"{"text": "which?"}"#).expect("a file");
    let words =
        ["finetune", NAME, &data, "--steps=1", "--tier=software", "--eval-fraction=0", "--output", &run];
    hub.gristmill(&words, &[]).succeeded();
    let made = Path::new(&run).join("checkpoint/step_0000001/adapter");
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        let bytes = fs::read(made.join(name)).expect("a file");
        let text = String::from_utf8_lossy(&bytes).replace(&hub.snapshot().display().to_string(), NAME);
        let bytes = if name.ends_with("json") { text.into_bytes() } else { bytes };
        fs::write(adapter.join(name), bytes).expect("a file");
    }
    let words =
        ["generate", adapter.to_str().expect("a path"), "--prompt=a", "--tokens=1", "--tier=software"];
    hub.gristmill(&words, &[]).succeeded();
}
