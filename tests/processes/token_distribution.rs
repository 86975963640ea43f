//! `gristmill token-distribution`: its output, its plots and its errors.
//!
//! `UPDATE_GOLDEN=1 cargo test --release --test processes token_distribution::` writes the golden plot again.

use crate::launch::{Ended, gristmill, run};
use gristmill::durable::PathOrigin;
use gristmill::store::npy;
use std::path::Path;

const HERE: PathOrigin = PathOrigin("a folder");

fn token_distribution(arguments: &[&str]) -> Ended {
    run(gristmill(["token-distribution"]).args(arguments))
}

/// Two layers with three experts at three steps, in the folders of a summary.
fn write_counts(folder: &Path) {
    let tensors = folder.join("export_small/tensor");
    std::fs::create_dir_all(&tensors).expect("a folder");
    // The last counts of layer 1 differ by one above 2048, where f16 has no odd numbers.
    let counts: [[[f32; 3]; 3]; 2] = [
        [[40.0, 30.0, 30.0], [20.0, 60.0, 20.0], [50.0, 10.0, 40.0]],
        [[9.0, 1.0, 1.0], [9.0, 1.0, 1.0], [2048.0, 2049.0, 5.0]],
    ];
    for (layer, counts) in counts.iter().enumerate() {
        // Sorted by name, step 10 comes before step 5.
        for (step, counts) in [1, 5, 10].into_iter().zip(counts) {
            npy::write(HERE, &tensors.join(format!("layer-{layer}_{step}.npy")), counts).expect("a file");
        }
    }
}

#[test]
fn a_folder_becomes_plots_and_hot_experts() {
    let home = tempfile::tempdir().expect("a folder");
    write_counts(home.path());
    let (load, prefix) = (home.path().display().to_string(), home.path().join("plots/small_"));
    let prefix = prefix.display().to_string();
    let flags = [
        "--num_layers",
        "2",
        "--hot_expert_num",
        "2",
        "--npy_files_load_path",
        &load,
        "--save_path_prefix",
        &prefix,
    ];
    let ended = token_distribution(&flags).succeeded();
    assert_eq!(
        ended.stdout,
        "layer-0 token_distribution generate successful\n\
         layer-1 token_distribution generate successful\n\
         hot_expert_index:  [[0, 2], [1, 0]]\n"
    );
    let plot = |name: &str| std::fs::read(format!("{prefix}layer-{name}")).expect("a plot");
    for layer in [0, 1] {
        assert!(plot(&format!("{layer}_token_distribution.png")).starts_with(b"\x89PNG\r\n"));
    }
    let svg = String::from_utf8(plot("0_token_distribution.svg")).expect("text");
    for text in ["Layer-0_Token_Distribution", "num of step", "num of token", "expert-0", "expert-2"] {
        assert!(svg.contains(text), "{text} is not in the plot");
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/token_distribution.svg");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&golden, &svg).expect("a golden file");
    }
    let expected = std::fs::read_to_string(&golden).expect("the golden file");
    assert!(
        svg == expected,
        "the plot differs from {}; if that is meant, set UPDATE_GOLDEN=1",
        golden.display()
    );
    // A second run draws the same bytes.
    let first = plot("1_token_distribution.png");
    token_distribution(&flags).succeeded();
    assert!(plot("1_token_distribution.png") == first, "a second run draws another plot");
}

#[test]
fn errors_are_one_line_and_no_plot() {
    let home = tempfile::tempdir().expect("a folder");
    write_counts(home.path());
    let load = home.path().display().to_string();
    let prefix = home.path().join("plots/").display().to_string();
    let refused = |layers: &str, hot: &str, expected: &str| {
        let path = ["--npy-files-load-path", &load, "--save-path-prefix", &prefix];
        let ended =
            token_distribution(&[&["--num-layers", layers, "--hot-expert-num", hot][..], &path].concat());
        let line = ended.stderr.trim_end();
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{line}");
        assert!(
            line.lines().count() == 1 && line.starts_with("error: ") && line.contains(expected),
            "{line}"
        );
        assert!(!home.path().join("plots").exists(), "something was drawn");
    };
    refused("3", "1", "layer-2_ is not exist: no file layer-2_STEP.npy is here; correct --num_layers");
    refused("2", "4", "--hot_expert_num 4: layer 0 has 3 experts; lower it");
    refused("0", "1", "--first_layer 0 leaves none of --num_layers 0; lower it");
    let tensors = home.path().join("export_small/tensor");
    npy::write(HERE, &tensors.join("layer-0_7.npy"), &[1.0, 2.0]).expect("a file");
    refused("2", "1", "have 3 experts and 2; keep those of one run");
    std::fs::write(tensors.join("layer-0_7.npy"), b"PK").expect("a file");
    refused("2", "1", "layer-0_7.npy: not a NumPy vector of numbers: its first bytes are not NumPy's");
    std::fs::rename(tensors.join("layer-0_7.npy"), tensors.join("layer-0_last.npy")).expect("renamed");
    refused("2", "1", "layer-0_last.npy: expected a name layer-0_STEP.npy; rename or remove it");
}

#[test]
fn layers_before_the_first_with_experts_need_no_files() {
    let home = tempfile::tempdir().expect("a folder");
    write_counts(home.path());
    for step in [1, 5, 10] {
        let file = home.path().join(format!("export_small/tensor/layer-0_{step}.npy"));
        std::fs::remove_file(file).expect("removed");
    }
    let load = home.path().display().to_string();
    let prefix = format!("{load}/plots/");
    let ended = token_distribution(&[
        "--num_layers=2",
        "--first_layer=1",
        &format!("--npy_files_load_path={load}"),
        &format!("--save_path_prefix={prefix}"),
    ])
    .succeeded();
    assert!(ended.stdout.ends_with("hot_expert_index:  [[1]]\n"), "{}", ended.stdout);
}

#[cfg(unix)]
#[test]
fn a_linked_folder_is_not_followed() {
    let home = tempfile::tempdir().expect("a folder");
    write_counts(home.path());
    std::os::unix::fs::symlink(home.path(), home.path().join("export_small/again")).expect("a link");
    let path = |name: &str| format!("{}{name}", home.path().display());
    let flags = |prefix: &str| {
        [
            "--num_layers=2".to_string(),
            format!("--npy_files_load_path={}", path("")),
            format!("--save_path_prefix={prefix}"),
        ]
    };
    let drawn = run(gristmill(["token-distribution"]).args(flags(&path("/plots/")))).succeeded();
    assert!(drawn.stdout.contains("hot_expert_index:  [[0], [1]]"), "{}", drawn.stdout);
    // Advice names the flag of this program, not a run's setting.
    std::fs::write(path("/file"), "").expect("a file");
    let refused = run(gristmill(["token-distribution"]).args(flags(&path("/file/plots/"))));
    assert!(
        refused.stderr.contains("is a file, not a folder: choose another --save_path_prefix"),
        "{}",
        refused.stderr
    );
}
