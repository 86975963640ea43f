use std::fs;

use super::*;

fn refused(output_dir: &Path, start: Start) -> String {
    let line = RunFolder::create(output_dir, "seed: 1\n", start).expect_err("was accepted").to_string();
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.starts_with(&output_dir.display().to_string()), "{line}");
    line
}

fn write_steps(folder: &RunFolder, steps: std::ops::RangeInclusive<u64>) {
    let mut file = OpenOptions::new().create(true).append(true).open(folder.path().join(METRICS)).unwrap();
    steps.for_each(|step| writeln!(file, "{{\"step\":{step},\"loss\":3.5}}").unwrap());
}

fn metric_steps(folder: &RunFolder) -> Vec<u64> {
    let text = fs::read_to_string(folder.path().join(METRICS)).unwrap();
    let step =
        |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["step"].as_u64().unwrap();
    text.lines().map(step).collect()
}

#[test]
fn a_new_run_gets_its_folder_and_a_second_start_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("output/tiny");
    let folder = RunFolder::create(&path, "seed: 1\n", Start::New).unwrap();
    assert_eq!(fs::read_to_string(folder.path().join(CONFIG)).unwrap(), "seed: 1\n");
    assert_eq!(folder.resume_point(), None);
    assert_eq!(folder.accept_resume().unwrap(), 0);
    drop(folder);

    let line = refused(&path, Start::New);
    assert!(line.contains("found config.yaml") && line.contains("--resume_training=True"), "{line}");
    assert!(line.contains("--output_dir") && line.contains("--run_name"), "{line}");
    for name in [METRICS, CHECKPOINTS] {
        let other = parent.path().join(name);
        fs::create_dir_all(other.join(name)).unwrap();
        assert!(refused(&other, Start::New).contains(name));
        assert!(!other.join("run.lock").exists(), "a refused start leaves nothing");
    }
}

#[test]
fn files_of_others_are_no_run() {
    let parent = tempfile::tempdir().unwrap();
    fs::write(parent.path().join("notes.txt"), "mine").unwrap();
    RunFolder::create(parent.path(), "", Start::New).unwrap();
    assert_eq!(fs::read_to_string(parent.path().join("notes.txt")).unwrap(), "mine");
}

#[test]
fn resuming_needs_a_run_and_a_checkpoint() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("run");
    assert!(refused(&path, Start::Resume).contains("no run folder is here"));
    assert!(!path.exists());

    drop(RunFolder::create(&path, "", Start::New).unwrap());
    fs::create_dir_all(path.join("checkpoint/step_0000010.tmp")).unwrap();
    assert!(refused(&path, Start::Resume).contains("no complete checkpoint is here"));
}

#[test]
fn resuming_repeats_no_step_and_changes_nothing_before_it_is_accepted() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("run");
    let folder = RunFolder::create(&path, "epochs: 1\n", Start::New).unwrap();
    write_steps(&folder, 1..=23);
    folder.checkpoints(Keep::Newest(2)).begin(10).unwrap().commit().unwrap();
    let checkpoint = folder.checkpoints(Keep::Newest(2)).begin(20).unwrap().commit().unwrap();
    std::mem::forget(folder.checkpoints(Keep::Newest(2)).begin(30).unwrap()); // killed while writing it
    drop(folder);

    let folder = RunFolder::create(&path, "epochs: 2\n", Start::Resume).unwrap();
    assert_eq!(folder.resume_point(), Some((20, checkpoint.as_path())));
    assert_eq!(metric_steps(&folder).len(), 23);
    assert_eq!(fs::read_to_string(folder.path().join(CONFIG)).unwrap(), "epochs: 1\n");

    assert_eq!(folder.accept_resume().unwrap(), 3);
    write_steps(&folder, 21..=25);
    assert_eq!(metric_steps(&folder), (1..=25).collect::<Vec<_>>());
    assert_eq!(fs::read_to_string(folder.path().join(CONFIG)).unwrap(), "epochs: 2\n");
}

#[test]
fn two_processes_do_not_share_a_folder_and_a_dead_one_holds_nothing() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("run");
    let first = RunFolder::create(&path, "", Start::New).unwrap();
    first.checkpoints(Keep::All).begin(1).unwrap().commit().unwrap();
    let line = refused(&path, Start::Resume);
    let holder = if cfg!(unix) { format!("process {}", std::process::id()) } else { "process".to_owned() };
    assert!(line.contains(&format!("{holder} is training into this folder")), "{line}");
    assert!(is_in_use(&path) && !is_in_use(parent.path()));
    drop(first);
    assert!(!is_in_use(&path));
    // A process that only looks does not keep a run from starting.
    let look = File::open(path.join("run.lock")).unwrap();
    look.lock_shared().unwrap();
    let looking = std::thread::spawn(move || {
        std::thread::sleep(LOOK / 4);
        drop(look);
    });
    drop(RunFolder::create(&path, "", Start::Resume).unwrap());
    looking.join().unwrap();
    assert!(path.join("run.lock").exists(), "the lock is the operating system's, not the file's existence");
    RunFolder::create(&path, "", Start::Resume).unwrap();
}

#[test]
fn an_unwritable_place_is_found_at_once() {
    let parent = tempfile::tempdir().unwrap();
    let file = parent.path().join("file");
    fs::write(&file, "").unwrap();
    let below = refused(&file.join("run"), Start::New);
    assert!(below.contains("cannot create the folder") && below.contains("--output_dir"), "{below}");
    let itself = refused(&file, Start::New);
    assert!(itself.contains("cannot create the folder"), "{itself}");
}

/// sysfs refuses new folders even to root, which permission bits would not stop.
#[cfg(target_os = "linux")]
#[test]
fn a_forbidden_place_is_found_at_once() {
    let line = refused(Path::new("/sys/gristmill"), Start::New);
    assert!(line.contains("cannot create the folder"), "{line}");
}

/// A kill before the first checkpoint leaves a folder that a repeated command must be able to use.
#[test]
fn beginning_again_replaces_a_run_without_a_checkpoint_and_no_other() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("run");
    let killed = RunFolder::create(&path, "seed: 1\n", Start::Again).unwrap();
    write_steps(&killed, 1..=3);
    fs::create_dir_all(path.join("checkpoint/step_0000002.tmp")).unwrap();
    drop(killed);
    let again = RunFolder::create(&path, "seed: 2\n", Start::Again).unwrap();
    assert_eq!((metric_steps(&again), again.resume_point()), (vec![], None));
    assert_eq!(fs::read_to_string(again.path().join(CONFIG)).unwrap(), "seed: 2\n");
    again.checkpoints(Keep::All).begin(4).unwrap().commit().unwrap();
    drop(again);
    assert!(refused(&path, Start::Again).contains("a run is here already"));
}
