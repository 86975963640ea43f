//! The registry of shader files: those of this crate, embedded from `shaders/`, and those that a user adds.
//!
//! A user's files are composed, validated and compared with the recording like those of this crate, but at run time:
//! bindings or a params struct that do not fit are an error of `Gpu::prepare`. Unlike the crate's own files they keep
//! the bounds checks that wgpu injects, since no test of the crate has run them.

use super::link::Source;
use crate::error::{Error, Result};
use include_dir::{Dir, include_dir};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

static SHADERS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/shaders");

/// Shader files by path, from which kernels are composed. By default these are the files of this crate; a user adds
/// files under a package path of their own.
///
/// A file is WGSL with two constructs of WESL. `import package::lib::element::{load4, store4};` makes items known of a
/// file of this crate, of another file of the user, or of `package::tile`, the constants of its kernel.
/// `@if(bf16 && !causal)` keeps the directive, import, declaration, statement, member or parameter after it where these
/// [`Condition`](super::Condition)s hold. The file's bindings are in group 0; the params struct is the uniform at binding 0.
///
/// # Examples
///
/// ```
/// use gristmill::element::Element::F32;
/// use gristmill::kernels::{Kernel, Sources};
///
/// # fn main() -> gristmill::error::Result<()> {
/// let file = include_str!("../../../examples/own_kernel.wgsl");
/// let sources = Sources::default().with("mine/softplus", file)?;
/// let kernel = Kernel::new("mine/softplus", "softplus", F32).constant("LANES", 64);
/// println!("{}", sources.compose(&kernel)?.wgsl);
///
/// let shadows = Sources::default().with("lib/element", file).unwrap_err().to_string();
/// assert!(shadows.contains("`lib` is a folder of gristmill"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Sources {
    added: BTreeMap<String, Cow<'static, str>>,
}

impl Sources {
    /// These files, and `text` under `path`: a package name and a file name, both WGSL identifiers, without extension:
    /// `mine/softplus`. There may be folders in between. Kernels name the file by this path, imports by
    /// `package::mine::softplus`.
    ///
    /// # Errors
    /// A path of another form, one whose first part is a file or folder of this crate, or one that was added already.
    pub fn with(mut self, path: &str, text: impl Into<Cow<'static, str>>) -> Result<Self> {
        let refused = |why: String| Err(Error::Plan(format!("shader file `{path}`: {why}")));
        let parts: Vec<&str> = path.split('/').collect();
        if parts.len() < 2 || !parts.iter().all(|part| is_identifier(part)) {
            return refused(
                "its path must be identifiers joined by slashes, as in `mine/softplus`, without ending"
                    .into(),
            );
        }
        if parts[0] == TILE || Self::embedded().any(|(ours, _)| ours.split('/').next() == Some(parts[0])) {
            return refused(format!("`{}` is a folder of gristmill; choose another package name", parts[0]));
        }
        if self.added.contains_key(path) {
            return refused("it was added already; give every file a path of its own".into());
        }
        self.added.insert(path.to_string(), text.into());
        Ok(self)
    }

    /// Every file: its path without extension (`matmul/portable`), and its text.
    pub fn iter(&self) -> impl Iterator<Item = (String, &str)> {
        let embedded = Self::embedded().map(|(path, text)| (path, text as &str));
        embedded.chain(self.added.iter().map(|(path, text)| (path.clone(), text.as_ref())))
    }

    /// The file at `path`. Those of this crate are split into tokens when they are first asked for: the many kernels of
    /// a run are joined from the same few.
    pub(super) fn source(&self, path: &str) -> Option<Source<'_>> {
        static READ: Mutex<BTreeMap<String, Source<'_>>> = Mutex::new(BTreeMap::new());
        if let Some(text) = self.added.get(path) {
            return Some(Source::new(text));
        }
        let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(source) = read.get(path) {
            return Some(source.clone());
        }
        let text = SHADERS.get_file(format!("{path}.wgsl"))?.contents_utf8()?;
        Some(read.entry(path.to_string()).or_insert(Source::new(text)).clone())
    }

    /// Whether a user added the file at `path`.
    pub fn is_added(&self, path: &str) -> bool {
        self.added.contains_key(path)
    }

    /// Whether a user added any file.
    pub fn has_added(&self) -> bool {
        !self.added.is_empty()
    }

    /// Every file below `shaders/`.
    fn embedded() -> impl Iterator<Item = (String, &'static str)> {
        let mut folders = vec![&SHADERS];
        std::iter::from_fn(move || {
            let folder = folders.pop()?;
            folders.extend(folder.dirs());
            Some(folder.files())
        })
        .flatten()
        .map(|file| {
            let path = file.path().with_extension("");
            let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
            (parts.join("/"), file.contents_utf8().expect("shaders are UTF-8"))
        })
    }
}

/// The virtual module of a kernel's constants, `package::tile`.
pub(super) const TILE: &str = "tile";

fn is_identifier(part: &str) -> bool {
    let is_word = part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_word && part.starts_with(|c: char| c.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refusal(path: &str) -> String {
        let sources = Sources::default().with("mine/scale", "").expect("a path of its own");
        sources.with(path, "").expect_err("a path that is refused").to_string()
    }

    #[test]
    fn a_file_has_a_package_path_of_its_own() {
        for path in ["scale", "mine/scale.wgsl", "mine//scale", "/scale", "mine/2", ""] {
            assert!(refusal(path).contains("identifiers joined by slashes"), "{path}");
        }
        for path in ["lib/scale", "add/scale", "matmul/portable", "tile/scale"] {
            assert!(refusal(path).contains("is a folder of gristmill"), "{path}");
        }
        assert_eq!(
            refusal("mine/scale"),
            "shader file `mine/scale`: it was added already; give every file a path of its own"
        );
    }

    #[test]
    fn added_files_follow_ours() {
        let sources = Sources::default().with("mine/folder/scale", "text").expect("a path of its own");
        assert!(sources.is_added("mine/folder/scale") && !sources.is_added("add"));
        assert_eq!(sources.iter().last(), Some(("mine/folder/scale".to_string(), "text")));
        assert_eq!(sources.iter().count(), Sources::default().iter().count() + 1);
    }
}
