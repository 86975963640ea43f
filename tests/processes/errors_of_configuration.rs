//! Errors of a configuration, in the file or on the command line: exit code 2 and one line with the culprit and the
//! remedy.

use crate::launch::{assert_refused, run, train_gpt, without_adapter};
use crate::place::Place;
use std::path::Path;

#[test]
fn errors_on_the_command_line() {
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
            "heads that do not divide",
            &["--model.model_config.num_heads=5"],
            &["--model.model_config.num_heads: 5 heads do not divide hidden_size 32; change one of them"],
        ),
        (
            "multi-token prediction at an odd width",
            &[
                "--model.model_config.hidden_size=50",
                "--model.model_config.head_dim=12",
                "--model.model_config.mtp_depth=1",
            ],
            &["mtp_depth: needs a hidden_size that is a multiple of 4, not 50"],
        ),
        (
            "experts wider than a grid",
            &["--moe_config={expert_num: 2, use_gmm: True, moe_intermediate_size: 32768}"],
            &[
                "experts have 65536 columns in gate and up projection",
                "lower moe_config.moe_intermediate_size",
            ],
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
            &["--callbacks: 0.expert_num: `expert_num` is `8`, but the model's is `4`; make them equal"],
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
            &["--context.tier: expected software, portable or matrix, found `fast`"],
        ),
        (
            "an unknown tier by its short flag",
            &["--tier", "fast"],
            &["--tier: expected software, portable or matrix, found `fast`"],
        ),
        (
            "an adapter that is not there",
            &["--device_name", "Voodoo 2"],
            &["no adapter name contains `Voodoo 2`; set context.device_name to one of: "],
        ),
        (
            "an adapter beyond the list",
            &["--context.device_id=64"],
            &["context.device_id is 64, beyond the list; choose one of the adapters: 0 ("],
        ),
        (
            "a memory cap",
            &["--context.max_device_memory=1MB"],
            &[
                "over context.max_device_memory of 1.0 MiB",
                "lower runner_config.batch_size, write `recompute_config.recompute: True`, ",
            ],
        ),
    ];
    for (name, extra, expected) in cases {
        place.refuses(name, extra, expected);
    }
    assert!(
        !place.folder().exists(),
        "a run that never started left a folder, which would block the next start"
    );
}

/// Errors in a file name the file and the line.
#[test]
fn errors_in_the_file() {
    let place = Place::new();
    let yaml = place.setup.yaml();
    let path = place.path("config.yaml");
    std::fs::write(&path, yaml.replace("num_layers: 2", "num_layers: two")).expect("a file");
    assert_refused(
        "a word for a number",
        &run(&mut train_gpt([&path])),
        &["config.yaml:3: model.model_config.num_layers: expected a whole number", "`two`"],
    );
    let missing = run(&mut train_gpt([place.path("nowhere.yaml")]));
    assert_refused(
        "a missing file",
        &missing,
        &["nowhere.yaml: no such file; name a configuration, such as configs/tiny.yaml"],
    );
    assert_refused(
        "a folder",
        &run(&mut train_gpt([place.home.path()])),
        &["no such file; name a configuration"],
    );
}

#[test]
fn no_adapter() {
    let place = Place::new();
    assert_refused(
        "no adapter",
        &run(without_adapter(&mut place.command(&[]))),
        &["no usable GPU adapter: Vulkan, Metal and DX12 were tried", "run ./setup.sh"],
    );
    assert!(!place.folder().exists());
}
