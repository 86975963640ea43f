//! Errors in the folders, checkpoints and disks of a run: exit code 2 and one line with the culprit and the remedy,
//! while existing files stay intact.
//!
//! A byte of the data that changed, anywhere, is noticed when a run resumes; a panic of a library on a file is a
//! line.

use crate::launch::{assert_refused, in_repository, program, run};
use crate::place::Place;
use crate::runs::{events, kinds};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn folders_that_cannot_be_used() {
    let place = Place::with_run();
    place.refuses(
        "an existing run",
        &[],
        &[
            "small: a run is here already",
            "continue it with --resume_training=True, or choose another --output_dir or --run_name",
        ],
    );
    place.refuses(
        "nothing to resume",
        &["--resume_training=True", "--run_name=other"],
        &["other: no run folder is here to continue"],
    );
    place.refuses(
        "too few steps for a profile",
        &["--profile=3", "--stop_step=5", "--run_name=profiled"],
        &["profile", "the run has 5 steps; 3 that warm up and 3 that are timed are 6"],
    );
    assert!(!place.path("profiled").exists(), "a run folder that refuses the next start");
    // Not even root can create a folder below a file.
    let config = place.path("small.yaml");
    let below = format!("--output_dir={}", config.display());
    place.refuses(
        "an unwritable place",
        &[&below],
        &[
            "small.yaml/small: cannot create the folder: a part of this path is a file",
            "choose another --output_dir",
        ],
    );
    let summary = format!("--callbacks=[{{type: SummaryMonitor, summary_dir: {}}}]", config.display());
    place.refuses(
        "an unwritable place for what experts chose",
        &["--moe_config={expert_num: 2, save_token_distribution: True}", &summary, "--run_name=summarised"],
        &[
            "cannot create the folder: a part of this path is a file, not a folder",
            "choose another summary_dir of SummaryMonitor",
        ],
    );
    let events = format!("--tensorboard.tensorboard_dir={}", config.display());
    place.refuses(
        "an unwritable place for event files",
        &[&events, "--run_name=shown"],
        &[
            "cannot create the folder: a part of this path is a file",
            "choose another tensorboard.tensorboard_dir",
        ],
    );
    assert!(!place.path("shown").exists(), "a run folder that refuses the next start");
    let busy = std::fs::File::open(place.folder().join("run.lock")).expect("the lock");
    busy.lock().expect("the lock");
    place.refuses(
        "a folder in use",
        &["--resume_training=True"],
        &["is training into this folder: wait for it, or choose another"],
    );
}

/// Files this long are checked while the run trains, which would reach the bad token only after many steps.
#[test]
fn a_bad_token_far_into_a_long_file() {
    const TOKENS: u64 = (64 << 20) + 1000;
    let place = Place::new();
    let path = place.path("long.bin");
    let mut file = std::fs::File::create(&path).expect("a file");
    file.set_len(2 * TOKENS - 2).expect("a file with a hole");
    file.seek(SeekFrom::End(0)).and_then(|_| file.write_all(&300u16.to_le_bytes())).expect("a token");
    let data = format!(
        "--train_dataset={{data_loader: {{type: TokenDataLoader, dataset_files: {}}}}}",
        path.display()
    );
    place.refuses(
        "a bad token",
        &[&data, "--callbacks=[]", "--stop_step=5000"],
        &[&format!("token 300 at position {} of the data is outside vocab_size 256", TOKENS - 1)],
    );
    // The work before it is saved, as after a signal.
    assert!(place.newest().0 < 5000);
    // The log and the events have the error too, which the program has printed once, and the report knows how the run
    // ended.
    let read = |name: &str| std::fs::read_to_string(place.folder().join(name)).expect("a file");
    let is_error = |line: &&str| line.contains("ERROR") && line.contains("token 300 at position");
    assert_eq!(read("log.txt").lines().filter(is_error).count(), 1);
    let events = events(&place.folder());
    assert_eq!((kinds(&events), &events[0]["total_steps"]), (vec!["start", "failed"], &5000.into()));
    assert!(
        events[1]["text"].as_str().is_some_and(|text| text.contains("token 300 at position")),
        "{events:?}"
    );
    assert!(read("report.html").contains("\"state\":{\"word\":\"failed\",\"detail\":"));
}

#[test]
fn checkpoints_that_are_damaged() {
    for file in ["model.safetensors", "optimizer.safetensors", "trainer_state.json"] {
        let place = Place::with_run();
        let path = place.newest().1.join(file);
        let length = path.metadata().expect("a file").len();
        std::fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|f| f.set_len(length / 2))
            .expect("a file");
        let remedy =
            "use another checkpoint, or delete the folder of this one to resume from the one before it";
        place.refuses(
            &format!("{file} cut in half"),
            &["--resume_training=True"],
            &[&format!("step_0000002/{file}: "), remedy],
        );
        if file == "model.safetensors" {
            let load = format!("--load_checkpoint={}", path.display());
            place.refuses(
                "loading half a file",
                &[&load, "--run_name=new"],
                &["step_0000002/model.safetensors: ", remedy],
            );
        }
        // The second remedy of the message works.
        std::fs::remove_dir_all(place.newest().1).expect("a folder");
        run(&mut place.command(&["--resume_training=True"])).succeeded();
        assert_eq!(place.newest().0, 4);
    }
}

#[test]
fn checkpoints_of_another_model() {
    let other = "--model.model_config.hidden_size=64";
    let place = Place::with_run();
    let resumed: &[(&str, &str, &str)] = &[
        ("resuming another model", other, "hidden_size is 32 there, 64 here"),
        (
            "with other data",
            "--train_dataset.eval_fraction=0.3",
            "train_dataset.eval_fraction is 0.0 there, 0.3 here",
        ),
        (
            "with another text",
            "--train_dataset.data_loader.dataset_files=LICENSE-APACHE",
            "data fingerprint is ",
        ),
        (
            "with documents apart",
            "--train_dataset={data_loader: {type: TextDataLoader, dataset_files: tests/data/mill.txt}, \
             eod_token_id: 32, eod_reset: True, eod_mask_loss: True}",
            "train_dataset.eod_mask_loss is false there, true here, train_dataset.reset_attention_mask is false there, true \
             here, train_dataset.reset_position_ids is false there, true here, train_dataset.eod_token_id is absent there, \
             32 here: ",
        ),
        (
            "with another loss scale",
            "--runner_wrapper.scale_sense=2048",
            "scale_sense is 1024.0 there, 2048.0 here: ",
        ),
        (
            "with another optimizer",
            "--optimizer.type=FP32StateAdamWeightDecay",
            "optimizer.type is \"AdamW\" there, \"FP32StateAdamWeightDecay\" here: ",
        ),
        (
            "with frozen parameters",
            "--model.model_config.freeze=[embedding]",
            "freeze is [] there, [\"embedding\"] here: ",
        ),
        (
            "with groups",
            "--grouped_lr_schedule={default: {type: CosineWithWarmUpLR, learning_rate: 3.e-3, lr_end: 3.e-4, \
             warmup_steps: 3, total_steps: 40}, grouped: [{params: [head], type: linear, learning_rate: 1.e-3}]}",
            "lr_schedule.learning_rate is 0.003 there, absent here, ",
        ),
        (
            "in another order",
            "--train_dataset.data_loader.shuffle=False",
            "shuffle is true there, false here: ",
        ),
    ];
    for (name, change, difference) in resumed {
        let remedy = "continue with the configuration and data of the checkpoint, or start a new run from its weights, by --load_checkpoint=";
        place.refuses(name, &["--resume_training=True", change], &["step_0000002: ", difference, remedy]);
    }
    let rate = ["--resume_training=True", "--lr_schedule.learning_rate=1e-2"];
    let expected = [
        "step_0000002: lr_schedule.learning_rate is 0.003 there, 0.01 here: ",
        "or train on with this one from step 2 by ",
        "--lr_schedule.learning_rate=1e-2 --resume_training=extend",
    ];
    place.refuses("with another rate", &rate, &expected);
    let checkpoint = format!("--load_checkpoint={}", place.newest().1.display());
    // It would say so of the tensors' model; see foreign_weights.rs.
    std::fs::remove_file(place.newest().1.join("config.json")).expect("a file");
    let remedy = "give model.model_config the shape of the checkpoint, or load another";
    let cases: &[(&str, &str, &[&str])] = &[
        (
            "a wider model's weights",
            other,
            &["`model.embed_tokens.weight` is F32 [256, 32] there, F32 [256, 64] in this model", remedy],
        ),
        (
            "weights without biases",
            "--model.model_config.qkv_has_bias=True",
            &["model.safetensors: holds no tensor `model.layers.0.self_attn.q_proj.bias`", remedy],
        ),
    ];
    for (name, change, expected) in cases {
        place.refuses(name, &[&checkpoint, change, "--run_name=new"], expected);
        assert!(!place.path("new").exists(), "{name}: a run that never started left a folder");
    }
    let missing = format!("--load_checkpoint={}", place.path("nowhere").display());
    place.refuses(
        "no weights at all",
        &[&missing, "--run_name=new"],
        &["nowhere: cannot open: no such file or folder"],
    );
}

/// A disk with room for half a checkpoint, as far as an unprivileged process can have one: a limit on file sizes, and
/// where the system allows it a file system of its own.
#[cfg(unix)]
#[test]
fn a_full_disk_during_a_checkpoint() {
    let size = |folder: &Path, name: &str| folder.join(name).metadata().expect("a file").len();
    let want = Place::with_run();
    run(&mut want.command(&["--resume_training=True"])).succeeded();

    // The signal of an oversized write must be ignored for the write to fail instead; exec preserves that.
    let limited = Place::with_run();
    let kib = size(&limited.newest().1, "optimizer.safetensors") / 2 / 1024;
    let script = format!("trap '' XFSZ; ulimit -f {kib}; exec \"$@\"");
    let mut cases = vec![("a limit on file sizes", limited, script, "the file would pass the size limit")];

    // The file system disappears with the process that mounted it, so its contents are copied out first.
    let full = Place::with_run();
    let room = folder_bytes(&full.folder()) + size(&full.newest().1, "model.safetensors") * 3 / 2;
    let disk = full.path("disk");
    std::fs::create_dir(&disk).expect("a folder");
    let script = format!(
        "mount -t tmpfs -o size={room} none {1} && cp -r {0} {1} || exit 99; \"$@\" --output_dir={1}; code=$?; \
         rm -r {0} && cp -r {1}/small {0} && exit $code",
        full.folder().display(),
        disk.display()
    );
    let may_mount = Command::new("unshare").args(["-rm", "mount", "-t", "tmpfs", "none", "/mnt"]).output();
    if may_mount.is_ok_and(|output| output.status.success()) {
        cases.push((
            "a full disk",
            full,
            script,
            "disk full: free space there, or choose another --output_dir",
        ));
    } else {
        println!(
            "a full disk: only the size limit is tested, because this system lets no user mount a file system"
        );
    }

    for (name, place, script, expected) in cases {
        let mut shell = match script.starts_with("mount") {
            true => Command::new("unshare"),
            false => Command::new("sh"),
        };
        if script.starts_with("mount") {
            shell.args(["-rm", "sh"]);
        }
        shell.args(["-c", &script, "sh"]).arg(program()).args(place.arguments(&["--resume_training=True"]));
        in_repository(&mut shell);
        assert_refused(name, &run(&mut shell), &["checkpoint/step_0000003.tmp/", "cannot write: ", expected]);
        let (step, _) = place.newest();
        assert_eq!(step, 2, "{name}: the previous checkpoint is gone");
        run(&mut place.command(&["--resume_training=True"])).succeeded();
        let (got, want) = (place.newest().1, want.newest().1);
        for file in ["model.safetensors", "optimizer.safetensors"] {
            let [got, want] = [&got, &want].map(|folder| std::fs::read(folder.join(file)).expect("a file"));
            assert!(got == want, "{name}: {file} differs from that of a run on a disk with room");
        }
    }
}

fn folder_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).expect("a folder").flatten();
    let bytes = |path: PathBuf| {
        if path.is_dir() { folder_bytes(&path) } else { path.metadata().map_or(0, |d| d.len()) }
    };
    // A file in memory takes whole pages.
    entries.map(|entry| bytes(entry.path()).next_multiple_of(4096)).sum()
}

/// The tokenizers library cuts this prefix off parts that are shorter, and panics.
#[test]
fn a_panic_of_a_library_on_a_file_is_one_line() {
    let place = Place::new();
    let path = place.path("tokenizer.json");
    let text = ["tests/data/mill.txt".to_string()];
    gristmill::data::tokenize::train_tokenizer(&text, &path, 300, 2, false).unwrap_or_else(|e| panic!("{e}"));
    let json = std::fs::read(&path).expect("a tokenizer");
    let mut json: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
    json["model"]["continuing_subword_prefix"] = "####".into();
    std::fs::write(&path, json.to_string()).expect("a tokenizer");
    let tokenizer = format!("--train_dataset.tokenizer={}", path.display());
    place.refuses(
        "a tokenizer that its library panics on",
        &[&tokenizer, "--model.model_config.vocab_size=300"],
        &[
            "tokenizer.json: is JSON but not a readable tokenizer (",
            "name a tokenizer.json in Hugging Face's format",
        ],
    );
}

/// Text of 1 MiB, of which the sample that the fingerprint takes is 6 %.
fn long_text(place: &Place, name: &str) -> PathBuf {
    let text = std::fs::read("tests/data/mill.txt").expect("a text");
    let path = place.path(name);
    std::fs::write(&path, text.repeat((1 << 20) / text.len())).expect("a text");
    path
}

/// Changes a byte between the stretches that the fingerprint reads.
fn change_a_byte(path: &Path, at: u64) {
    let mut file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("a file");
    file.seek(SeekFrom::Start(at)).expect("a place");
    let mut byte = [0];
    file.read_exact(&mut byte).expect("a byte");
    file.seek(SeekFrom::Start(at)).expect("a place");
    file.write_all(&[byte[0] ^ 1]).expect("a byte");
}

fn state_of(checkpoint: &Path) -> serde_json::Value {
    let text = std::fs::read(checkpoint.join("trainer_state.json")).expect("a state");
    serde_json::from_slice(&text).expect("JSON")
}

#[test]
fn one_byte_of_the_data_that_changed() {
    let place = Place::new();
    let [text, eval] = ["text.txt", "eval.txt"].map(|name| long_text(&place, name));
    let loader =
        |path: &Path| format!("{{data_loader: {{type: TextDataLoader, dataset_files: {}}}}}", path.display());
    let train = format!("--train_dataset={}", loader(&text));
    let held_out = format!("--eval_dataset={}", loader(&eval));
    // Evaluation data that are read, and no evaluation of 43,000 windows.
    let data = [train.as_str(), &held_out, "--do_eval=True", "--eval_step_interval=-1"];
    let resume = |stop: &'static str| [&data[..], &["--resume_training=True", stop]].concat();
    run(&mut place.command(&[&data[..], &["--stop_step=1"]].concat())).succeeded();
    let state = state_of(&place.newest().1);
    assert!(state["data_hash"].is_string() && state["eval_data_hash"].is_string(), "{state}");

    // Other evaluation data are a notice.
    change_a_byte(&eval, 8_000);
    let log = || std::fs::read_to_string(place.folder().join("log.txt")).expect("a log");
    let notice = "the evaluation data are not those of the checkpoint";
    assert!(!log().contains(notice));
    run(&mut place.command(&resume("--stop_step=1"))).succeeded();
    assert!(log().contains(notice), "{}", log());

    change_a_byte(&text, 8_000);
    let hash = state["data_hash"].as_str().expect("a hash");
    let difference = format!("data hash is \"{hash}\" there, \"");
    place.refuses(
        "one byte",
        &resume("--stop_step=2"),
        &["step_0000001: ", &difference, "continue with the configuration"],
    );
    change_a_byte(&text, 8_000);
    run(&mut place.command(&resume("--stop_step=2"))).succeeded();

    // A checkpoint that was saved before all data were read knows them by their fingerprint alone.
    change_a_byte(&text, 8_000);
    let (_, newest) = place.newest();
    let mut state = state_of(&newest);
    ["data_hash", "eval_data_hash"]
        .iter()
        .for_each(|key| drop(state.as_object_mut().expect("an object").remove(*key)));
    std::fs::write(newest.join("trainer_state.json"), state.to_string()).expect("a state");
    run(&mut place.command(&resume("--stop_step=3"))).succeeded();
    assert!(state_of(&place.newest().1)["data_hash"].is_string(), "the next one knows it");
}

#[test]
fn counters_that_no_run_has() {
    let place = Place::with_run();
    let (_, newest) = place.newest();
    let state = state_of(&newest);
    let past = (1u64 << 32) + 5;
    for (key, value) in [("step", past), ("global_step", past), ("micro_step", u64::MAX)] {
        let mut damaged = state.clone();
        damaged[key] = value.into();
        std::fs::write(newest.join("trainer_state.json"), damaged.to_string()).expect("a state");
        place.refuses(key, &["--resume_training=True"], &["is damaged: after ", &value.to_string()]);
    }
}

/// A corpus that is too long to be read before the first step.
#[test]
#[ignore = "long; `a_bad_token_far_into_a_long_file` ends as late"]
fn data_that_turn_out_to_be_others_end_the_run_unsaved() {
    let place = Place::new();
    let tokens = place.path("tokens.bin");
    // Zeros, which take no space on the disk.
    let file = std::fs::File::create(&tokens).expect("a file");
    file.set_len(2 * ((64 << 20) + 100_000)).expect("a length");
    let loader = format!(
        "--train_dataset={{data_loader: {{type: TokenDataLoader, dataset_files: {}}}}}",
        tokens.display()
    );
    let start = |resume: bool, stop: u64| {
        let (resume, stop) = (
            format!("--resume_training={}", if resume { "auto" } else { "False" }),
            format!("--stop_step={stop}"),
        );
        let save = "--callbacks=[{type: CheckpointMonitor, save_checkpoint_steps: 100000}]";
        run(&mut place.command(&[&loader, &resume, &stop, save]))
    };
    // The hash joins the state once it is known, and each start reads from the beginning: train for longer until it is.
    const FIRST: u64 = 160;
    let mut steps = FIRST;
    loop {
        start(steps > FIRST, steps).succeeded();
        let (step, newest) = place.newest();
        assert_eq!(step, steps);
        if state_of(&newest)["data_hash"].is_string() {
            break;
        }
        steps *= 2;
        assert!(steps < 2_000, "the data are never read to the end");
    }
    change_a_byte(&tokens, 10_000);
    let ended = start(true, 100_000);
    let expected = [
        "data hash is \"",
        "as is known now that all data were read",
        "without the checkpoints of later steps",
    ];
    assert_refused("data that changed", &ended, &expected);
    assert_eq!(place.newest().0, steps, "a checkpoint of other data was saved");
    change_a_byte(&tokens, 10_000);
    start(true, steps + 2).succeeded();
}
