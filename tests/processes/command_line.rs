//! The command lines: help, usage, errors, and the shaders that `train_gpt` writes out.

use crate::launch::{gristmill, run, train_gpt, without_adapter};
use crate::runs::Setup;
use gristmill::kernels::Tier;
use gristmill::train::recordings::{Recordings, assumed_capabilities};
use std::collections::HashSet;

#[test]
fn help_says_how_to_override_and_what_the_exit_codes_are() {
    for argument in ["--help", "-h"] {
        let help = run(&mut train_gpt([argument])).succeeded().stdout;
        println!("{help}");
        let expected = [
            "configs/tiny.yaml",
            "--SECTION.KEY=VALUE",
            "--resume_training",
            "--tier",
            "--device_name",
            "--dump-wgsl",
            "Exit codes",
            "0 ",
            "2 ",
        ];
        for text in expected {
            assert!(help.contains(text), "{argument} does not mention {text}:\n{help}");
        }
        assert!(help.lines().all(|line| line.len() <= 110), "lines too long for a terminal");
    }
    // Also after overrides, of either program.
    let overridden = ["configs/tiny.yaml", "--batch_size=4", "--help"];
    for mut command in [train_gpt(overridden), gristmill([&["train"], &overridden[..]].concat())] {
        let help = run(&mut command).succeeded().stdout;
        assert!(help.contains("--SECTION.KEY=VALUE"), "{help}");
    }
}

#[test]
fn no_arguments_print_the_usage() {
    let ended = run(&mut train_gpt([""; 0]));
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("usage: train_gpt"), "{}", ended.stderr);
    let ended = run(&mut train_gpt(["--batch_size=4"]));
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(
        ended.stderr.lines().last().is_some_and(|line| line.starts_with("error: --batch_size=4: ")),
        "{}",
        ended.stderr
    );
}

/// Errors of the argument parser have the form of every other error.
#[test]
fn a_wrong_command_line_is_one_line() {
    let cases: [(&[&str], &[&str]); 8] = [
        (&[], &["gristmill: no command is given; known are train, plan, ", "try 'gristmill --help'"]),
        (&["trian"], &["unrecognized subcommand 'trian'", "'train'", "usage: gristmill <COMMAND>"]),
        (
            &["train"],
            &["the following required arguments were not provided: <CONFIG>", "usage: gristmill train"],
        ),
        (
            &["generate", "x", "--topk=3"],
            &["unexpected argument '--topk' found", "usage: gristmill generate"],
        ),
        (
            &["generate", "x", "--tokens=many"],
            &["invalid value 'many' for '--tokens <N>'", "see also '--help'"],
        ),
        (&["doctor", "extra"], &["unexpected argument 'extra' found", "usage: gristmill doctor"]),
        (&["doctor", "--memory=-5"], &["invalid value '-5' for '--memory <SIZE>'", "8GB"]),
        (&["tokenize"], &["required arguments were not provided", "usage: gristmill tokenize"]),
    ];
    for (arguments, expected) in cases {
        let ended = run(&mut gristmill(arguments));
        println!("{}", ended.stderr.trim_end());
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{arguments:?}: {}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{arguments:?}: {}", ended.stderr);
        assert!(ended.stderr.starts_with("error: "), "{arguments:?}: {}", ended.stderr);
        for text in expected {
            assert!(ended.stderr.contains(text), "{arguments:?}: `{text}` is not in: {}", ended.stderr);
        }
    }
}

/// Names of files may have any bytes; arguments are text.
#[cfg(unix)]
#[test]
fn an_argument_that_is_not_text_is_one_line() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let name = OsStr::from_bytes(b"mill\xff.yaml");
    let commands: [&[&str]; 5] = [&["train"], &["finetune", "x"], &["plan"], &["eval", "x"], &[]];
    for words in commands {
        let mut command = gristmill(words);
        let ended = run(command.arg(name).arg("--seed=1"));
        let expected = "error: mill\u{fffd}.yaml: is not UTF-8, as arguments must be; rename the file, or write it otherwise\n";
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(2), expected), "{words:?}");
    }
    let ended = run(&mut train_gpt([name]));
    assert_eq!((ended.code, ended.stderr.lines().count()), (Some(2), 1), "{}", ended.stderr);
}

/// Each kernel of a run's recordings is written to its own file, composed; with `--tier` this needs no adapter.
#[test]
fn the_shaders_of_a_run_can_be_written_out() {
    let place = tempfile::tempdir().expect("a folder");
    let setup = Setup::new("dumped", "use_qk_norm: True, qkv_has_bias: True");
    let config = setup.write(place.path());
    for tier in Tier::EVERYWHERE {
        let folder = place.path().join(tier.name());
        let output_dir = format!("--output_dir={}", place.path().display());
        let mut command = train_gpt([config.as_os_str()]);
        command.args(["--tier", tier.name(), &output_dir, "--dump-wgsl"]).arg(&folder);
        run(without_adapter(&mut command)).succeeded();
        assert!(!place.path().join("dumped").exists(), "dumping shaders started a run");

        let recordings = Recordings::new(&setup.plan(), assumed_capabilities(tier), 1).expect("a plan");
        let kernels: HashSet<_> =
            recordings.all().iter().flat_map(|r| r.dispatches.iter().map(|d| d.kernel.clone())).collect();
        let files: Vec<_> = std::fs::read_dir(&folder)
            .expect("a folder")
            .map(|entry| entry.expect("a file").path())
            .collect();
        println!("{}: {} shaders", tier.name(), files.len());
        assert_eq!(files.len(), kernels.len());
        for path in files {
            let name = path.file_name().and_then(|name| name.to_str()).expect("a plain name");
            assert!(
                name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-+=.".contains(&b))
                    && name.ends_with(".wgsl"),
                "{name}"
            );
            let text = std::fs::read_to_string(&path).expect("a shader");
            let (first, shader) = text.split_once('\n').expect("lines");
            let kernel = kernels
                .iter()
                .find(|kernel| first == format!("// {kernel}"))
                .expect("the kernel's name in the first line");
            assert!(shader.contains(&format!("fn {}(", kernel.entry)), "{name} lacks its entry point");
            assert!(!shader.contains("@if(") && !shader.contains("import "), "{name} is not composed");
        }
    }
}
