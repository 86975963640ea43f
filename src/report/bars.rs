//! Progress bars on the terminal. A build without the feature `cli` has none, and reports a run only by lines.

#[cfg(feature = "cli")]
pub(super) use indicatif::{MultiProgress, ProgressBar};
#[cfg(not(feature = "cli"))]
pub(super) use none::{MultiProgress, ProgressBar};

/// A bar of `total` steps at step `start`, below the lines that the terminal already shows.
#[cfg(feature = "cli")]
pub(super) fn add_bar(bars: &MultiProgress, total: u64, start: u64) -> ProgressBar {
    let style = indicatif::ProgressStyle::with_template("{bar:16} {pos}/{len}  {wide_msg}")
        .expect("a constant template")
        .progress_chars("█▉▊▋▌▍▎▏ ");
    bars.add(ProgressBar::new(total).with_style(style).with_position(start))
}

/// A bar that is never shown.
#[cfg(not(feature = "cli"))]
pub(super) fn add_bar(_: &MultiProgress, _: u64, _: u64) -> ProgressBar {
    ProgressBar
}

/// The functions of indicatif that `report` uses, without a terminal.
#[cfg(not(feature = "cli"))]
mod none {
    #[derive(Clone, Debug, Default)]
    pub struct MultiProgress;

    impl MultiProgress {
        pub fn is_hidden(&self) -> bool {
            true
        }

        pub fn println(&self, _: &str) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[derive(Debug)]
    pub struct ProgressBar;

    impl ProgressBar {
        pub fn set_message(&self, _: impl Into<String>) {}

        pub fn set_position(&self, _: u64) {}

        pub fn abandon(&self) {}
    }
}
