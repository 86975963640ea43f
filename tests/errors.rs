//! What can go wrong for a user, each as the process shows it: exit code 2 and one line with the culprit and the remedy.

mod launch;
mod runs;

use gristmill::train::checkpoint_folder::CheckpointFolder;
use launch::{Ended, train_gpt};
use runs::Setup;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

/// Holds the process to the promise: `error: ` once, at the last line, with everything in `expected`; no panic.
#[track_caller]
fn refused(name: &str, ended: &Ended, expected: &[&str]) {
    let Ended { code, stderr, .. } = ended;
    let lines: Vec<&str> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    println!("{name}: {}", lines.join("\n"));
    assert_eq!(*code, Some(2), "{name}: exit code, after:\n{stderr}");
    assert_eq!(lines.len(), 1, "{name}: not one error line:\n{stderr}");
    assert_eq!(
        stderr.lines().last(),
        lines.first().copied(),
        "{name}: the error is not the last line:\n{stderr}"
    );
    for text in ["panicked", "RUST_BACKTRACE", "stack backtrace"] {
        assert!(!stderr.contains(text), "{name}: a panic shows:\n{stderr}");
    }
    for text in expected {
        assert!(lines[0].contains(text), "{name}: `{text}` is not in: {}", lines[0]);
    }
}

/// A small configuration in a folder of its own.
struct Place {
    home: tempfile::TempDir,
    setup: Setup,
}

impl Place {
    fn new() -> Self {
        Self { home: tempfile::tempdir().expect("a folder"), setup: Setup::new("small", "") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// The run's folder.
    fn run(&self) -> PathBuf {
        self.path("small")
    }

    /// What follows the program's name; a checkpoint is written after every step.
    fn arguments(&self, extra: &[&str]) -> Vec<String> {
        let config = self.setup.write(self.home.path()).display().to_string();
        let output_dir = format!("--output_dir={}", self.home.path().display());
        let callbacks =
            "--callbacks=[{type: CheckpointMonitor, save_checkpoint_steps: 1, keep_checkpoint_max: 2}]";
        let mut arguments = vec![config, output_dir, callbacks.into(), "--stop_step=4".into()];
        arguments.extend(extra.iter().map(|argument| argument.to_string()));
        arguments
    }

    fn command(&self, extra: &[&str]) -> Command {
        train_gpt(self.arguments(extra))
    }

    #[track_caller]
    fn refuses(&self, name: &str, extra: &[&str], expected: &[&str]) {
        refused(name, &launch::run(&mut self.command(extra)), expected);
    }

    /// With the checkpoints of steps 1 and 2 in it, as a run leaves them that was stopped there.
    fn with_run() -> Self {
        static TRAINED: OnceLock<Place> = OnceLock::new();
        let trained = TRAINED.get_or_init(|| {
            let place = Self::new();
            let arguments = place.arguments(&["--stop_step=2"]);
            pollster::block_on(gristmill::train::run(
                Path::new(&arguments[0]),
                &arguments[1..],
                Arc::default(),
            ))
            .unwrap_or_else(|e| panic!("{e}"));
            place
        });
        let place = Self::new();
        copy(&trained.run(), &place.run());
        place
    }

    fn newest(&self) -> (u64, PathBuf) {
        CheckpointFolder::new(self.run().join("checkpoint"), 0)
            .latest()
            .expect("a folder")
            .expect("a checkpoint")
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder").flatten() {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            std::fs::copy(&path, &target).expect("a file");
        }
    }
}

#[test]
fn what_the_configuration_gets_wrong() {
    let place = Place::new();
    let empty = place.path("empty");
    std::fs::create_dir(&empty).expect("a folder");
    std::fs::write(empty.join("image.bin"), [0u8, 159, 146, 150]).expect("a file");
    let data = |path: &Path| format!("--train_dataset.data_loader.dataset_files={}", path.display());
    let (no_data, no_text) = (data(&place.path("nowhere.txt")), data(&empty));
    let cases: &[(&str, &[&str], &[&str])] = &[
        (
            "a missing data file",
            &[&no_data],
            &["nowhere.txt: no such file", "correct `dataset_dir` or `dataset_files`"],
        ),
        (
            "a folder without text",
            &[&no_text],
            &["empty: 1 file found, none of them UTF-8 text", "name text files"],
        ),
        (
            "a misspelt key",
            &["--model.model_config.hiden_size=48"],
            &["--model.model_config.hiden_size: unknown key; did you mean `hidden_size`?"],
        ),
        (
            "a word for a number",
            &["--model.model_config.num_layers=two"],
            &["--model.model_config.num_layers: expected a whole number", "found `two`"],
        ),
        (
            "heads that do not divide",
            &["--model.model_config.num_heads=5"],
            &["--model.model_config.num_heads: 5 heads do not divide hidden_size 48; change one of them"],
        ),
        (
            "more chosen experts than experts",
            &["--moe_config.expert_num=4", "--moe_config.num_experts_chosen=5"],
            &[
                "--moe_config.num_experts_chosen: a token cannot choose 5 of 4 experts (`expert_num`); lower it",
            ],
        ),
        (
            "a callback of another model",
            &[
                "--moe_config.expert_num=4",
                "--callbacks=[{type: TopkBiasBalanceCallback, expert_num: 8, mtp_depth: 0}]",
            ],
            &["--callbacks: `expert_num` is `8`, but the model's is `4`; make them equal"],
        ),
        (
            "a window longer than the data",
            &["--model.model_config.seq_length=4096"],
            &[
                "seq_length 4096 is longer than the data",
                "1160 were found; lower model.model_config.seq_length",
            ],
        ),
        ("a batch larger than the data", &["--batch_size=4000"], &["the data has 48: lower batch_size"]),
        (
            "a vocabulary that is too small",
            &["--model.model_config.vocab_size=100"],
            &["is outside vocab_size 100"],
        ),
        (
            "an unknown flag",
            &["--batchsize=4"],
            &["--batchsize: unknown key; did you mean `runner_config.batch_size`?"],
        ),
        (
            "a flag without value",
            &["--batch_size"],
            &["--batch_size: has no value; write --batch_size=value"],
        ),
        (
            "an unknown tier",
            &["--context.tier=fast"],
            &["--context.tier: expected one of software, portable, found `fast`"],
        ),
        (
            "an unknown tier by its short flag",
            &["--tier", "fast"],
            &["--tier: expected one of software, portable, found `fast`"],
        ),
        (
            "an adapter that is not there",
            &["--device_name", "Voodoo 2"],
            &["none is named like `Voodoo 2`; set context.device_name to one of: "],
        ),
        (
            "a memory cap",
            &["--context.max_device_memory=1MB"],
            &["over context.max_device_memory of 1.0 MiB", "lower runner_config.batch_size or raise the cap"],
        ),
    ];
    for (name, extra, expected) in cases {
        place.refuses(name, extra, expected);
    }
    assert!(
        !place.run().exists(),
        "a run that never started left a folder, which would refuse the next start"
    );
}

/// The same by the file, which is named with the line.
#[test]
fn what_the_file_gets_wrong() {
    let place = Place::new();
    let yaml = place.setup.yaml();
    let cases: &[(&str, &str, &str, &[&str])] = &[
        (
            "a misspelt key",
            "hidden_size:",
            "hiden_size:",
            &["config.yaml:3: model.model_config.hiden_size: unknown key; did you mean `hidden_size`?"],
        ),
        (
            "a word for a number",
            "num_layers: 2",
            "num_layers: two",
            &["config.yaml:3: model.model_config.num_layers: expected a whole number", "`two`"],
        ),
        ("no YAML", "seed: 7", "seed: [7", &["config.yaml:", "not valid YAML"]),
    ];
    for (name, from, to, expected) in cases {
        let path = place.path("config.yaml");
        assert!(yaml.contains(from), "{name}: nothing to replace");
        std::fs::write(&path, yaml.replace(from, to)).expect("a file");
        refused(name, &launch::run(&mut train_gpt([&path])), expected);
    }
    let missing = launch::run(&mut train_gpt([place.path("nowhere.yaml")]));
    refused(
        "a missing file",
        &missing,
        &["nowhere.yaml: no such file; name a configuration, such as configs/tiny.yaml"],
    );
    refused(
        "a folder",
        &launch::run(&mut train_gpt([place.home.path()])),
        &["no such file; name a configuration"],
    );
}

#[test]
fn no_adapter() {
    let place = Place::new();
    // The Vulkan loader's two names for the list of drivers; a list of none.
    let mut command = place.command(&[]);
    command.env("VK_ICD_FILENAMES", "/dev/null").env("VK_DRIVER_FILES", "/dev/null");
    refused(
        "no adapter",
        &launch::run(&mut command),
        &["no usable GPU adapter: Vulkan, Metal and DX12 were tried", "run ./setup.sh"],
    );
    assert!(!place.run().exists());
}

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
        &["other: --resume_training=True, but no run folder is here"],
    );
    // A path below a file is unwritable for root too.
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
    let busy = std::fs::File::open(place.run().join("run.lock")).expect("the lock");
    busy.lock().expect("the lock");
    place.refuses(
        "a folder in use",
        &["--resume_training=True"],
        &["is training into this folder: wait for it, or choose another"],
    );
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
        // The second remedy works.
        std::fs::remove_dir_all(place.newest().1).expect("a folder");
        launch::run(&mut place.command(&["--resume_training=True"])).succeeded();
        assert_eq!(place.newest().0, 4);
    }
}

#[test]
fn checkpoints_of_another_model() {
    let other = "--model.model_config.hidden_size=64";
    let place = Place::with_run();
    let resumed: &[(&str, &str, &str)] = &[
        ("resuming another model", other, "hidden_size is 48 there, 64 here, "),
        (
            "with another rate",
            "--lr_schedule.learning_rate=1e-2",
            "lr_schedule.learning_rate is 0.003 there, 0.01 here: ",
        ),
        ("with other data", "--train_dataset.eval_fraction=0.3", "data fingerprint is "),
        (
            "with another optimizer",
            "--optimizer.type=FP32StateAdamWeightDecay",
            "optimizer.type is absent there, \"FP32StateAdamWeightDecay\" here: ",
        ),
        (
            "with frozen parameters",
            "--model.model_config.freeze=[embedding]",
            "freeze is absent there, [\"embedding\"] here: ",
        ),
        (
            "with groups",
            "--grouped_lr_schedule={default: {type: CosineWithWarmUpLR, learning_rate: 3.e-3, lr_end: 3.e-4, \
             warmup_steps: 3, total_steps: 40}, grouped: [{params: [head], type: linear, learning_rate: 1.e-3}]}",
            "grouped_lr_schedule.grouped.0 is absent there, {",
        ),
        (
            "in another order",
            "--train_dataset.data_loader.shuffle=False",
            "shuffle is true there, false here: ",
        ),
    ];
    for (name, change, difference) in resumed {
        let remedy =
            "continue with the configuration and data of the checkpoint, or start a new run in another";
        place.refuses(name, &["--resume_training=True", change], &["step_0000002: ", difference, remedy]);
    }
    let checkpoint = format!("--load_checkpoint={}", place.newest().1.display());
    let remedy = "give model.model_config the shape of the checkpoint, or load another";
    let cases: &[(&str, &str, &[&str])] = &[
        (
            "a wider model's weights",
            other,
            &["`model.embed_tokens.weight` is F32 [256, 48] there, F32 [256, 64] in this model", remedy],
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

/// A disk with room for half a checkpoint, as far as a process without privileges can have one: a limit on the size of
/// files, and where the system allows it a file system of its own.
#[cfg(unix)]
#[test]
fn a_full_disk_during_a_checkpoint() {
    let size = |folder: &Path, name: &str| folder.join(name).metadata().expect("a file").len();
    let want = Place::with_run();
    launch::run(&mut want.command(&["--resume_training=True"])).succeeded();

    // The signal that a too large write sends must be ignored for the write to fail; exec keeps that.
    let limited = Place::with_run();
    let kib = size(&limited.newest().1, "optimizer.safetensors") / 2 / 1024;
    let script = format!("trap '' XFSZ; ulimit -f {kib}; exec \"$@\"");
    let mut cases = vec![("a limit on file sizes", limited, script, "the file would pass the size limit")];

    // A file system is gone when the process that mounted it for itself ends, so what it holds is copied out first.
    let full = Place::with_run();
    let room = folder_bytes(&full.run()) + size(&full.newest().1, "model.safetensors") * 3 / 2;
    let disk = full.path("disk");
    std::fs::create_dir(&disk).expect("a folder");
    let script = format!(
        "mount -t tmpfs -o size={room} none {1} && cp -r {0} {1} || exit 99; \"$@\" --output_dir={1}; code=$?; \
         rm -r {0} && cp -r {1}/small {0} && exit $code",
        full.run().display(),
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
            "a full disk: only the size limit is tried, since this system lets no user mount a file system"
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
        shell
            .args(["-c", &script, "sh"])
            .arg(launch::program())
            .args(place.arguments(&["--resume_training=True"]));
        launch::at_home(&mut shell);
        refused(
            name,
            &launch::run(&mut shell),
            &["checkpoint/step_0000003.tmp/", "cannot write: ", expected],
        );
        let (step, _) = place.newest();
        assert_eq!(step, 2, "{name}: the previous checkpoint is gone");
        launch::run(&mut place.command(&["--resume_training=True"])).succeeded();
        let (got, want) = (place.newest().1, want.newest().1);
        for file in ["model.safetensors", "optimizer.safetensors"] {
            let [got, want] = [&got, &want].map(|folder| std::fs::read(folder.join(file)).expect("a file"));
            assert!(got == want, "{name}: {file} differs from that of a run whose disk never was full");
        }
    }
}

fn folder_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).expect("a folder").flatten();
    let bytes = |path: PathBuf| {
        if path.is_dir() { folder_bytes(&path) } else { path.metadata().map_or(0, |d| d.len()) }
    };
    // Whole pages, which is what a file in memory takes.
    entries.map(|entry| bytes(entry.path()).next_multiple_of(4096)).sum()
}
