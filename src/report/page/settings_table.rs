//! The settings of a run, from its `config.yaml`.

use std::io::{ErrorKind, Read};
use std::path::Path;

use serde::Serialize;

use crate::settings::{Resolved, RunConfig};
use crate::store::run_folder::open_file;

/// The settings of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SettingsTable {
    /// Every setting with its default.
    Rows(Vec<Resolved>),
    /// The text of the file, which this version cannot read.
    Text {
        /// The text of the file.
        text: String,
        /// The reason why it cannot be read.
        reason: String,
    },
}

impl SettingsTable {
    /// The settings in the file at `path`.
    pub fn read(path: &Path) -> Self {
        let mut bytes = Vec::new();
        let text = match open_file(path).and_then(|mut file| file.read_to_end(&mut bytes)) {
            Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) => {
                let reason = match error.kind() {
                    ErrorKind::NotFound => "config.yaml is missing".to_string(),
                    _ => format!("config.yaml cannot be read: {error}"),
                };
                return Self::Text { text: String::new(), reason };
            }
        };
        // Read as for a plan, which needs none of the data or ranks that the run had.
        match RunConfig::of_run_folder(&text, path, &[], None) {
            Ok(config) => Self::Rows(config.plan.settings.resolved()),
            Err(error) => Self::Text { text, reason: error.to_string() },
        }
    }

    /// The step after which the settings end the run; `None` if they do not.
    pub fn stop_step(&self) -> Option<u64> {
        let Self::Rows(rows) = self else { return None };
        let row = rows.iter().find(|row| row.path == "runner_config.stop_step")?;
        row.value.as_u64().filter(|step| *step > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_that_cannot_be_read_is_shown_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        let SettingsTable::Text { text, reason } = SettingsTable::read(&path) else { panic!("no file") };
        assert_eq!((text.as_str(), reason.as_str()), ("", "config.yaml is missing"));
        fs::write(&path, "seed: 1\nmodel: {\n").unwrap();
        let SettingsTable::Text { text, reason } = SettingsTable::read(&path) else { panic!("no YAML") };
        assert!(text.starts_with("seed: 1") && reason.contains("config.yaml"), "{reason}");
        fs::write(&path, "an_old_key: 1\n").unwrap();
        let SettingsTable::Text { reason, .. } = SettingsTable::read(&path) else { panic!("unknown keys") };
        assert!(reason.contains("an_old_key"), "{reason}");
    }

    /// A folder from elsewhere must not make the page show other files of this machine.
    #[cfg(unix)]
    #[test]
    fn no_file_outside_the_folder_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let [run, secret] = ["run", "secret"].map(|name| folder.path().join(name));
        fs::create_dir(&run).unwrap();
        fs::write(&secret, "password: 1234\n").unwrap();
        let path = run.join("config.yaml");
        fs::write(&path, "base_config: ../secret\n").unwrap();
        let SettingsTable::Text { text, reason } = SettingsTable::read(&path) else { panic!("a base") };
        assert_eq!(text, "base_config: ../secret\n");
        assert!(reason.contains("config.yaml:1: base_config: the file of a run folder"), "{reason}");
        assert!(!reason.contains("password"), "{reason}");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&secret, &path).unwrap();
        let SettingsTable::Text { text, reason } = SettingsTable::read(&path) else { panic!("a link") };
        assert_eq!(text, "");
        assert_eq!(reason, "config.yaml cannot be read: it is a link that leads out of the run's folder");
    }
}
