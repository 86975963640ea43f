//! `train_gpt` as a newcomer meets it: help, usage, and the shaders it can show.

mod launch;
mod runs;

use gristmill::kernels::Tier;
use launch::{at_home, run, train_gpt};
use runs::Setup;
use std::collections::HashSet;
use std::process::Command;

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
            assert!(help.contains(text), "{argument} says nothing of {text}:\n{help}");
        }
        assert!(help.lines().all(|line| line.len() <= 110), "lines too long for a terminal");
    }
    // Wherever it stands, also behind overrides.
    assert!(
        run(&mut train_gpt(["configs/tiny.yaml", "--batch_size=4", "--help"]))
            .succeeded()
            .stdout
            .contains("Exit codes")
    );
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

/// What the parser of command lines finds wrong has the form of every other error.
#[test]
fn a_wrong_command_line_is_one_line() {
    let cases: [(&[&str], &[&str]); 7] = [
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
        (&["tokenize"], &["required arguments were not provided", "usage: gristmill tokenize"]),
    ];
    for (arguments, expected) in cases {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gristmill"));
        command.args(arguments);
        at_home(&mut command);
        let ended = run(&mut command);
        println!("{}", ended.stderr.trim_end());
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{arguments:?}: {}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{arguments:?}: {}", ended.stderr);
        assert!(ended.stderr.starts_with("error: "), "{arguments:?}: {}", ended.stderr);
        for text in expected {
            assert!(ended.stderr.contains(text), "{arguments:?}: `{text}` is not in: {}", ended.stderr);
        }
    }
}

/// Every kernel of a run's recordings, composed, in a file of its own; with a tier named, without an adapter.
#[test]
fn the_shaders_of_a_run_can_be_written_out() {
    let place = tempfile::tempdir().expect("a folder");
    let setup = Setup::new("dumped", "use_qk_norm: True, qkv_has_bias: True");
    let config = setup.write(place.path());
    for tier in Tier::ALL {
        let folder = place.path().join(tier.name());
        let output_dir = format!("--output_dir={}", place.path().display());
        let mut command = train_gpt([config.as_os_str()]);
        command.args(["--tier", tier.name(), &output_dir, "--dump-wgsl"]).arg(&folder);
        command.env("VK_ICD_FILENAMES", "/dev/null").env("VK_DRIVER_FILES", "/dev/null");
        run(&mut command).succeeded();
        assert!(!place.path().join("dumped").exists(), "nothing was trained");

        let capabilities = gristmill::kernels::Capabilities::software().with_tier(tier);
        let recordings =
            gristmill::train::recordings::Recordings::new(&setup.plan(), capabilities, 1).expect("a plan");
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
                .expect("the kernel's name in front");
            assert!(shader.contains(&format!("fn {}(", kernel.entry)), "{name} lacks its entry point");
            assert!(!shader.contains("@if(") && !shader.contains("import "), "{name} is not composed");
        }
    }
}
