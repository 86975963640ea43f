//! `gristmill report`: the page of a run, or of several that are compared.

use std::path::{Path, PathBuf};

use super::output::say;
use crate::durable::PathOrigin;
use crate::error::{Error, Result};
use crate::report::page::{RunFiles, page};
use crate::store::model_path::run_of;

/// The setting that chose the place of the page.
const OUTPUT: PathOrigin = PathOrigin("--output");

/// The name of a page unless `--output` names another.
const REPORT: &str = "report.html";

/// Runs to draw.
#[derive(clap::Args)]
pub struct Arguments {
    /// The folder of a run, such as output/tiny, or a checkpoint or an adapter in it; several are drawn in the same
    /// charts
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// The page to write [default: report.html in the run's folder, or here for several runs]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Writes the page and prints its path.
///
/// # Errors
/// A folder is missing or has no metrics; the page cannot be written.
pub fn report(arguments: &Arguments) -> Result<()> {
    let Arguments { runs, output } = arguments;
    let runs: Vec<PathBuf> = runs.iter().map(|run| run_of(run).unwrap_or_else(|| run.clone())).collect();
    let files = runs.iter().map(|run| read(run)).collect::<Result<Vec<_>>>()?;
    let path = match (output, runs.as_slice()) {
        (Some(path), _) => path.clone(),
        (None, [run]) => run.join(REPORT),
        (None, _) => PathBuf::from(REPORT),
    };
    OUTPUT.write(&path, page(&files, None).as_bytes())?;
    let steps =
        |files: &RunFiles| format!("{} to step {}", files.folder().display(), files.step().unwrap_or(0));
    say!("{}: {}", path.display(), files.iter().map(steps).collect::<Vec<_>>().join(", "));
    Ok(())
}

fn read(run: &Path) -> Result<RunFiles> {
    let files = RunFiles::open(run)?;
    match files.step() {
        Some(_) => Ok(files),
        None => {
            let message = "no step is in its metrics.jsonl; name the folder of a run, such as output/tiny";
            Err(Error::file(run, message))
        }
    }
}
