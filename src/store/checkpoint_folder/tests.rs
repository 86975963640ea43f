use std::fs::File;
use std::io::Write;

use super::*;

const FILES: [&str; 2] = ["model.safetensors", "trainer_state.json"];

fn save(checkpoints: &CheckpointFolder, step: u64) -> PathBuf {
    let pending = checkpoints.begin(step).unwrap();
    for name in FILES {
        fs::write(pending.path().join(name), format!("{name} of step {step}")).unwrap();
    }
    pending.commit().unwrap()
}

fn steps(checkpoints: &CheckpointFolder) -> Vec<u64> {
    checkpoints.list().unwrap().into_iter().map(|(step, _)| step).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn keeps_the_newest_and_finds_the_latest() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = CheckpointFolder::new(folder.path().join("run/checkpoint"), Keep::Newest(2));
    assert_eq!(checkpoints.latest().unwrap(), None);
    for step in [5, 10, 15] {
        let path = save(&checkpoints, step);
        assert!(path.ends_with(format!("step_{step:07}")));
        assert_eq!(checkpoints.latest().unwrap(), Some((step, path)));
    }
    assert_eq!(steps(&checkpoints), [10, 15]);

    let all = CheckpointFolder::new(folder.path().join("all"), Keep::All);
    // Past seven digits, names and steps no longer sort alike.
    for step in [9_999_999, 10_000_000, 1] {
        save(&all, step);
    }
    assert_eq!(steps(&all), [1, 9_999_999, 10_000_000]);
}

#[test]
fn what_a_kill_left_behind_is_ignored_and_then_cleared() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = CheckpointFolder::new(folder.path(), Keep::Newest(5));
    save(&checkpoints, 10);
    // Killed while writing step 20 (a partial file), while deleting step 5, and things that are not ours.
    fs::create_dir(folder.path().join("step_0000020.tmp")).unwrap();
    fs::write(folder.path().join("step_0000020.tmp/model.safetensors"), "part").unwrap();
    fs::create_dir(folder.path().join("step_0000005.tmp")).unwrap();
    fs::create_dir(folder.path().join("step_7")).unwrap();
    fs::write(folder.path().join("step_0000030"), "a file, not a checkpoint").unwrap();
    fs::create_dir(folder.path().join("notes.tmp")).unwrap();
    assert_eq!(steps(&checkpoints), [10]);

    save(&checkpoints, 20);
    assert_eq!(steps(&checkpoints), [10, 20]);
    assert_eq!(names(folder.path()), ["notes.tmp", "step_0000010", "step_0000020", "step_0000030", "step_7"]);
    assert_eq!(names(&folder.path().join("step_0000020")), FILES);
}

#[test]
fn a_dropped_checkpoint_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = CheckpointFolder::new(folder.path(), Keep::Newest(1));
    save(&checkpoints, 10);
    let pending = checkpoints.begin(20).unwrap();
    fs::write(pending.path().join("model.safetensors"), "part").unwrap();
    drop(pending);
    assert_eq!(names(folder.path()), ["step_0000010"]);
}

#[test]
fn a_kill_at_any_point_of_a_replacement_leaves_one_whole_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = CheckpointFolder::new(folder.path(), Keep::Newest(1));
    let path = save(&checkpoints, 10);
    let old = with_suffix(&path, REPLACED);
    assert_eq!(save(&checkpoints, 10), path, "the same step is replaced");
    assert_eq!(names(folder.path()), ["step_0000010"]);

    // Killed between the two renames: only the old one is there.
    fs::rename(&path, &old).unwrap();
    assert_eq!(checkpoints.latest().unwrap(), Some((10, old.clone())));
    drop(checkpoints.begin(20).unwrap());
    assert_eq!(checkpoints.latest().unwrap(), Some((10, path.clone())));

    // Killed after both: the new one counts and the old one goes.
    fs::create_dir(&old).unwrap();
    assert_eq!(checkpoints.list().unwrap(), [(10, path.clone())]);
    drop(checkpoints.begin(20).unwrap());
    assert_eq!(names(folder.path()), ["step_0000010"]);
    assert_eq!(names(&path), FILES);
}

#[test]
fn the_checkpoint_just_written_is_never_the_one_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let all = CheckpointFolder::new(folder.path(), Keep::All);
    for step in [10, 20, 30] {
        save(&all, step);
    }
    let two = CheckpointFolder::new(folder.path(), Keep::Newest(2));
    save(&two, 5);
    assert_eq!(steps(&two), [5, 30]);
}

#[test]
fn a_folder_that_cannot_be_made_is_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("checkpoint");
    File::create(&file).unwrap().write_all(b"not a folder").unwrap();
    let line = CheckpointFolder::new(&file, Keep::Newest(1)).begin(10).unwrap_err().to_string();
    assert!(line.contains("checkpoint: cannot ") && line.lines().count() == 1, "{line}");
}

/// `/dev/full` is a real full disk for every user: each write to it ends in "no space left on device".
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_named_and_the_previous_checkpoint_survives() {
    use std::collections::HashMap;

    use crate::store::tensor_file::{TensorFile, TensorInfo};

    let folder = tempfile::tempdir().unwrap();
    let checkpoints = CheckpointFolder::new(folder.path(), Keep::Newest(1));
    let previous = save(&checkpoints, 10);

    let pending = checkpoints.begin(20).unwrap();
    let path = pending.path().join("model.safetensors");
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    let tensors = [TensorInfo { name: "w".into(), dtype: safetensors::Dtype::F32, shape: vec![1 << 20] }];
    let written = TensorFile::write(&path, &tensors, HashMap::new(), |_, sink| {
        (0..64).try_for_each(|_| sink.put(&[0; 1 << 16]))
    });
    let line = written.unwrap_err().to_string();
    assert!(line.contains("model.safetensors: cannot write: disk full"), "{line}");
    drop(pending);

    assert_eq!(checkpoints.latest().unwrap(), Some((10, previous.clone())));
    assert_eq!(names(folder.path()), ["step_0000010"]);
    assert_eq!(names(&previous), FILES);
}

/// The epoch, the step and the name in `meta.json`.
fn meta(folder: &Path) -> (u64, u64, String) {
    let text = fs::read(folder.join("meta.json")).unwrap();
    let meta: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let number = |key: &str| meta[key].as_u64().unwrap();
    (number("last_epoch"), number("last_step"), meta["last_ckpt_file"].as_str().unwrap().to_owned())
}

#[test]
fn meta_names_the_newest_checkpoint_in_the_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = CheckpointFolder::new(folder.path(), Keep::Newest(2)).with_meta(10);
    for (step, epoch, in_epoch) in [(1, 1, 1), (10, 1, 10), (11, 2, 1), (25, 3, 5)] {
        let path = save(&checkpoints, step);
        assert_eq!(meta(folder.path()), (epoch, in_epoch, format!("step_{step:07}")));
        assert!(path.is_dir());
    }
    // Killed after the rename and before the file was replaced.
    let unaware = CheckpointFolder::new(folder.path(), Keep::Newest(2));
    save(&unaware, 30);
    assert_eq!(meta(folder.path()).2, "step_0000025");
    let (step, path) = checkpoints.latest().unwrap().unwrap();
    checkpoints.note_newest(step, &path);
    assert_eq!(meta(folder.path()), (3, 10, "step_0000030".into()));
}

#[test]
fn a_meta_file_that_cannot_be_written_does_not_fail_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("meta.json")).unwrap();
    let checkpoints = CheckpointFolder::new(folder.path(), Keep::Newest(2)).with_meta(10);
    save(&checkpoints, 5);
    assert_eq!(steps(&checkpoints), [5]);
}

#[test]
fn a_prefix_names_checkpoints_and_others_are_still_found() {
    let folder = tempfile::tempdir().unwrap();
    let plain = CheckpointFolder::new(folder.path(), Keep::Newest(3));
    save(&plain, 10);
    save(&plain, 20);
    let named =
        CheckpointFolder::new(folder.path(), Keep::Newest(3)).with_prefix("llama2-7.b").with_meta(100);
    let path = save(&named, 15);
    assert!(path.ends_with("llama2-7.b-step_0000015"));
    assert_eq!(meta(folder.path()).2, "llama2-7.b-step_0000015");
    assert_eq!(steps(&plain), [10, 15, 20]);
    assert_eq!(plain.latest().unwrap().unwrap().0, 20);
    // Each step has one checkpoint, whatever its prefix.
    save(&named, 20);
    assert_eq!(
        names(folder.path()),
        ["llama2-7.b-step_0000015", "llama2-7.b-step_0000020", "meta.json", "step_0000010"]
    );
    save(&named, 30);
    assert_eq!(steps(&named), [15, 20, 30]);
    fs::create_dir(folder.path().join("llama2-7.b-step_0000040.tmp")).unwrap();
    fs::create_dir(folder.path().join("misstep_0000050")).unwrap();
    save(&named, 60);
    assert_eq!(steps(&named), [20, 30, 60], "what is unfinished or not ours does not count");
    assert!(!folder.path().join("llama2-7.b-step_0000040.tmp").exists());
}

#[test]
fn one_checkpoint_is_kept_per_stretch_and_the_newest() {
    const MINUTE: Duration = Duration::from_secs(60);
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = CheckpointFolder::new(folder.path(), Keep::OnePer(5 * MINUTE));
    let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    // One checkpoint a minute, under a clock of our own. MindFormers keeps the same ones.
    let mut kept = Vec::new();
    for minute in 0..=12 {
        let path = folder.path().join(name_of(minute));
        fs::create_dir(&path).unwrap();
        let now = start + MINUTE * minute as u32;
        File::open(&path).unwrap().set_modified(now).unwrap();
        checkpoints.delete_old(minute, &path, now).unwrap();
        kept.push(steps(&checkpoints));
    }
    assert_eq!(kept[..6], [vec![0], vec![0, 1], vec![0, 2], vec![0, 3], vec![0, 4], vec![0, 4, 5]]);
    assert_eq!(kept[9], [0, 4, 8, 9]);
    assert_eq!(kept[12], [0, 4, 8, 12]);
}
