//! The report of runs: one page with their curves, settings and samples, from the files of their run folders alone.
//!
//! ```text
//! metrics.jsonl -> tail -> line -> curves (series, marks) --\
//! events.jsonl  -> tail -> history -> state ------------------> run_data -> page.html with style, script and data
//! config.yaml   -> settings_table --------------------------/
//! ```
//!
//! A page is one file without links: no network, no library. Curves have at most 2000 bins, so a page stays small however long
//! the run was; a bin keeps the mean and the extremes of its points. `web/` has the page itself, in the order in which a reader
//! would want it: `page.html`, `page.css`, and the parts of its script.

mod curves;
mod document;
mod history;
mod line;
mod marks;
mod run_data;
mod run_files;
mod series;
mod settings_table;
mod state;
mod tail;
#[cfg(test)]
mod tests;

pub use document::{POLL, live_data, live_page, page, write};
pub use run_files::{Known, RunFiles};

use crate::store::run_folder::REPORT;
use std::path::{Path, PathBuf};

/// Writes `report.html` into the folder of a run that has ended, and returns its path. A failure is a warning: a report is not worth a
/// run. Nothing is written of a run that has done no step.
pub fn write_at_end(folder: &Path) -> Option<PathBuf> {
    let path = folder.join(REPORT);
    let written = RunFiles::open(folder).and_then(|files| match files.step() {
        Some(_) => write(&path, &page(&[files], Some(false)), crate::store::OUTPUT_DIR).map(|()| true),
        None => Ok(false),
    });
    match written {
        Ok(is_written) => is_written.then_some(path),
        Err(error) => {
            tracing::warn!("no report of this run: {error}");
            None
        }
    }
}
