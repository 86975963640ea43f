//! The report of runs: one page with their curves, settings and samples, made only from the files of their run folders.
//!
//! ```text
//! metrics.jsonl -> tail -> curves (series, marks) ----------\
//! events.jsonl  -> tail -> history -> state ------------------> run_data -> page.html with style, script and data
//! config.yaml   -> settings_table --------------------------/
//! ```
//!
//! A page is one file without links: no network, no library. Curves have at most 2000 bins, so a page stays small
//! however long the run was; a bin keeps the mean and the extremes of its points. `web/` has the page itself, in the
//! order in which a reader would want it: `page.html`, `page.css`, and the parts of its script.
//!
//! The page at the end of a run, the page of `gristmill report` and the page of `--watch` are made from the same files,
//! and so are the same. `tail` remembers how far a file was read, so following a run only costs what it has written
//! since, and counts the lines that could not be read. `curves` takes whatever numbers a step has and knows no key:
//! runs by other versions are drawn alike. A folder without `events.jsonl` only has curves and settings, and says so. A
//! bin covers a power of two of consecutive points; at 2000 bins neighbours merge. A text of a run can be anything: it
//! is JSON with every `<` escaped, and the page's policy runs no script except its own and loads nothing.

mod curves;
mod document;
mod history;
mod marks;
mod run_data;
mod run_files;
mod series;
mod settings_table;
mod state;
mod tail;
#[cfg(test)]
mod tests;

pub use document::page;
pub use document::{POLL, live_data, live_page};
pub use run_files::{Known, RunFiles};

use crate::store::OUTPUT_DIR;
use crate::store::run_folder::REPORT;
use std::path::{Path, PathBuf};

/// Writes `report.html` into the folder of a run that has ended, and returns its path. A failure is only a warning: a
/// report is not worth a run. Nothing is written for a run that has done no step.
pub(crate) fn write_at_end(folder: &Path) -> Option<PathBuf> {
    let path = folder.join(REPORT);
    let written = RunFiles::open(folder).and_then(|files| match files.step() {
        Some(1..) => OUTPUT_DIR.write(&path, page(&[files], Some(false)).as_bytes()).map(|()| true),
        _ => Ok(false),
    });
    match written {
        Ok(is_written) => is_written.then_some(path),
        Err(error) => {
            tracing::warn!("no report of this run: {error}");
            None
        }
    }
}
