//! The progress bar for reading large data on a terminal, and the flag of the commands that cache the tokens.

use crate::data::progress::{Progress, show_by};
use crate::data::token_cache;
use crate::report::log::Log;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Readings that take less time are not shown.
const SHORT: Duration = Duration::from_secs(1);

/// Whether tokens are kept from one start to the next. A command with this flag listens to interrupts, which leave
/// nothing half done.
#[derive(clap::Args)]
pub struct CacheArguments {
    /// Neither keep the tokens of large files for the next start nor read what was kept
    #[arg(long)]
    no_cache: bool,
}

impl CacheArguments {
    /// Turns the cache off from here on, if that is asked for.
    pub fn apply(&self) {
        if self.no_cache {
            token_cache::turn_off();
        }
    }
}

static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Shows a bar for everything that this process reads from here on.
pub fn show_readings() {
    show_by(show);
}

/// Removes the bar for good, since the process ends: a reading that would show more blocks until the process has ended.
pub fn hide() {
    let mut bar = BAR.lock().unwrap_or_else(PoisonError::into_inner);
    bar.take().iter().for_each(ProgressBar::finish_and_clear);
    std::mem::forget(bar);
}

fn show(progress: Option<&Progress>) {
    let mut bar = BAR.lock().unwrap_or_else(PoisonError::into_inner);
    match progress {
        None => bar.take().iter().for_each(ProgressBar::finish_and_clear),
        Some(progress) if progress.elapsed >= SHORT => {
            let bar = bar.get_or_insert_with(|| Log::start().add_bar(begun(progress)));
            bar.set_position(progress.bytes);
            bar.set_message(message(progress));
        }
        Some(_) => {}
    }
}

fn begun(progress: &Progress) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:24} {bytes} of {total_bytes}  {msg}");
    // The set of bars that it is added to draws it.
    ProgressBar::with_draw_target(Some(progress.total), ProgressDrawTarget::hidden())
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Records, tokens per second, and the remaining time at the mean speed.
fn message(progress: &Progress) -> String {
    let Progress { bytes, total, records, tokens, elapsed } = *progress;
    let seconds = elapsed.as_secs_f64();
    let left = seconds * total.saturating_sub(bytes) as f64 / bytes.max(1) as f64;
    let rate = tokens as f64 / seconds.max(1e-3);
    format!("{records} records  {rate:.0} tokens/s  {:.0} s left", left.ceil())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_that_of_the_mean_speed() {
        let elapsed = Duration::from_secs(4);
        let progress = Progress { bytes: 100, total: 350, records: 7, tokens: 4_000_000, elapsed };
        assert_eq!(message(&progress), "7 records  1000000 tokens/s  10 s left");
    }
}
