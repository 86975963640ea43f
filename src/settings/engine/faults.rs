//! Faults and notices of a configuration.

use crate::error::Error;

/// A fault at a key.
#[derive(Debug)]
pub(crate) struct Fault {
    /// Dotted path of the key or section, under the names we use.
    pub path: String,
    /// The line of the file on which the key was written; 0 if a flag set it.
    pub line: usize,
    /// The dotted path under which a file writes the key; `None` if a flag does, or if no file could be read.
    pub written: Option<String>,
    /// The line for the user.
    pub error: Error,
}

impl Fault {
    /// A fault that keeps the whole document from being read.
    pub fn of_document(error: Error) -> Self {
        Self { path: String::new(), line: 0, written: None, error }
    }
}

/// Everything found so far.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// The faults, in the order they were found.
    pub list: Vec<Fault>,
    /// Faults that only keep the data from being loaded.
    pub data_faults: Vec<Fault>,
    /// Faults of settings that can be planned for but not trained yet.
    pub unsupported: Vec<Fault>,
    /// Paths without a value to rely on, whose fault is reported elsewhere.
    pub distrusted: Vec<String>,
    /// Notices, each once.
    texts: Vec<String>,
    /// Keys without meaning here, as (line, section, key).
    ignored: Vec<(usize, String, String)>,
}

impl Faults {
    /// Adds a notice, once.
    pub fn note(&mut self, text: String) {
        if !self.texts.contains(&text) {
            self.texts.push(text);
        }
    }

    /// Adds a key without meaning that was written on `line`, once.
    pub fn ignore(&mut self, line: usize, section: &str, key: &str) {
        let place = (line, section.to_string(), key.to_string());
        if !self.ignored.contains(&place) {
            self.ignored.push(place);
        }
    }

    /// All notices; the ignored keys become one, in the order of the file.
    pub fn notices(&self) -> Vec<String> {
        let mut notices = self.texts.clone();
        let mut ignored: Vec<_> = self.ignored.iter().collect();
        ignored.sort_by_key(|(line, ..)| *line);
        let mut sections: Vec<(&str, Vec<&str>)> = Vec::new();
        for (_, section, key) in ignored {
            match sections.iter_mut().find(|(name, _)| name == section) {
                Some((_, keys)) => keys.push(key),
                None => sections.push((section, vec![key])),
            }
        }
        let listed: Vec<String> = sections
            .into_iter()
            .map(|(section, keys)| match (section, keys.as_slice()) {
                ("", keys) => keys.join(", "),
                (section, [key]) => format!("{section}.{key}"),
                (section, keys) => format!("{section}.{{{}}}", keys.join(", ")),
            })
            .collect();
        if !listed.is_empty() {
            notices.push(format!("without meaning here and ignored: {}", listed.join(", ")));
        }
        notices
    }
}
