//! Models by their names, such as `Qwen/Qwen3-0.6B`, where a command takes a folder.

use crate::error::Result;
use crate::hugging_face::hub::{Hub, Watch};
use crate::hugging_face::name_of_hub;
use crate::report::log::Log;
use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::path::{Path, PathBuf};

/// `path`; or if nothing is there and it is the name of a model on the Hugging Face Hub, its folder in the cache, with
/// what was missing fetched.
///
/// # Errors
/// The Hub does not give it; a disk that fails.
pub fn folder_of(path: &Path) -> Result<PathBuf> {
    match name_of_hub(path) {
        Some(name) => Hub::of_environment()?.folder_of(name, &mut Shown::new(name, "fetching")),
        None => Ok(path.to_path_buf()),
    }
}

/// Files on their way, on standard error.
pub struct Shown<'a> {
    name: &'a str,
    /// What is done with them.
    doing: &'static str,
    bar: Option<ProgressBar>,
}

impl<'a> Shown<'a> {
    pub fn new(name: &'a str, doing: &'static str) -> Self {
        Self { name, doing, bar: None }
    }
}

impl Watch for Shown<'_> {
    fn begins(&mut self, bytes: u64, present: u64, place: &str) {
        let goes_on =
            if present > 0 { format!(", of which {} are there", HumanBytes(present)) } else { String::new() };
        let Self { name, doing, .. } = self;
        eprintln!("{name}: {doing} {}{goes_on}, to {place}", HumanBytes(bytes));
        let style =
            ProgressStyle::with_template("{bar:24} {bytes} of {total_bytes}  {bytes_per_sec}, {eta} left");
        let bar = ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::hidden());
        let bar =
            Log::start().add_bar(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())));
        bar.set_position(present);
        bar.reset_eta();
        self.bar = Some(bar);
    }

    fn came(&mut self, bytes: i64) {
        if let Some(bar) = &self.bar {
            bar.set_position(bar.position().saturating_add_signed(bytes));
        }
    }

    fn notice(&mut self, line: &str) {
        eprintln!("notice: {line}");
    }
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        self.bar.iter().for_each(ProgressBar::finish_and_clear);
    }
}
