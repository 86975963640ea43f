//! Files appear whole or not at all, and errors name the setting that chose their place.

use gristmill::durable::PathOrigin;
use std::fs;
use std::io::{self, ErrorKind, Write};

const PLACE: PathOrigin = PathOrigin("--output_dir");

#[test]
fn replaces_the_whole_content_and_leaves_no_other_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yaml");
    PLACE.write(&path, b"a longer first content").unwrap();
    PLACE.write(&path, b"second").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"second");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_failed_write_keeps_the_old_content() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.jsonl");
    PLACE.write(&path, b"old").unwrap();
    let mut file = PLACE.begin(&path).unwrap();
    file.fill(|out| out.write_all(b"ne")).unwrap();
    let error = file.fill(|_| Err(io::Error::from(ErrorKind::StorageFull))).unwrap_err();
    drop(file);
    let line = error.to_string();
    assert!(line.contains("metrics.jsonl") && line.contains("disk full"), "{line}");
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[cfg(unix)]
#[test]
fn a_link_at_the_temporary_name_is_not_written_through() {
    let folder = tempfile::tempdir().unwrap();
    let [path, precious, link] =
        ["tokens.bin", "precious", "tokens.bin.tmp"].map(|name| folder.path().join(name));
    fs::write(&precious, "mine").unwrap();
    std::os::unix::fs::symlink(&precious, &link).unwrap();
    PLACE.write(&path, b"tokens").unwrap();
    assert_eq!(fs::read(&precious).unwrap(), b"mine");
    assert!(fs::read(&path).unwrap() == b"tokens" && !path.is_symlink() && !link.exists());
}

#[test]
fn errors_are_one_line_naming_path_cause_and_remedy() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let line = PLACE.create_folder(&file.path().join("run")).unwrap_err().to_string();
    assert!(line.contains("is a file, not a folder: choose another --output_dir"), "{line}");
    let place = PathOrigin("--save_path_prefix");
    for kind in [ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem, ErrorKind::QuotaExceeded] {
        let line = place.error("out/run", "write", &io::Error::from(kind)).to_string();
        assert!(
            line.starts_with("out/run: cannot write: ")
                && line.ends_with("choose another --save_path_prefix"),
            "{line}"
        );
    }
}
