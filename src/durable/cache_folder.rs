//! The user's cache: files that can be made again, and may be deleted at any time.

use std::env::var_os;
use std::path::PathBuf;

/// The folder of this program in the user's cache: below `XDG_CACHE_HOME`, or where the system keeps caches. `None` if
/// there is no home folder.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    let named = |name: &str| var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let usual = || match () {
        () if cfg!(windows) => named("LOCALAPPDATA"),
        () if cfg!(target_os = "macos") => Some(named("HOME")?.join("Library").join("Caches")),
        () => Some(named("HOME")?.join(".cache")),
    };
    named("XDG_CACHE_HOME").or_else(usual).map(|root| root.join("gristmill"))
}
