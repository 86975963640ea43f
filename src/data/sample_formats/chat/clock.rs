//! Today's date, which some templates write into the system prompt: `strftime_now` of `transformers`, in UTC.
//!
//! `SOURCE_DATE_EPOCH` (seconds since 1970) sets another time, as in other programs: samples of another day have other
//! tokens, and a run resumes only with the same data.

use chrono::{DateTime, Utc};
use std::fmt::Write;
use std::time::SystemTime;

/// The current time, or the time in `SOURCE_DATE_EPOCH`.
///
/// # Errors
/// A `SOURCE_DATE_EPOCH` that is not a number, or beyond all calendars.
pub(super) fn now() -> Result<DateTime<Utc>, String> {
    let Ok(text) = std::env::var("SOURCE_DATE_EPOCH") else { return Ok(SystemTime::now().into()) };
    let moment = text.parse().ok().and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    moment.ok_or_else(|| format!("SOURCE_DATE_EPOCH is `{text}`, not seconds since 1970"))
}

/// `moment` written in `format`, as C's `strftime` writes it in English.
///
/// # Errors
/// A conversion letter that is not known.
pub(super) fn strftime(format: &str, moment: DateTime<Utc>) -> Result<String, String> {
    let mut text = String::new();
    let written = write!(text, "{}", moment.format(format));
    written.map(|()| text).map_err(|_| format!("strftime_now(\"{format}\") is no format of C's strftime"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The results of Python's `datetime.fromtimestamp(seconds, timezone.utc).strftime(format)`.
    #[test]
    fn dates_are_those_of_python() {
        let all = "%Y-%m-%d %H:%M:%S %I%p %a %A %d %b %B %y %%";
        for (seconds, format, text) in [
            (0, all, "1970-01-01 00:00:00 12AM Thu Thursday 01 Jan January 70 %"),
            (951_827_696, all, "2000-02-29 12:34:56 12PM Tue Tuesday 29 Feb February 00 %"),
            (1_735_689_599, all, "2024-12-31 23:59:59 11PM Tue Tuesday 31 Dec December 24 %"),
            (4_107_542_400, all, "2100-03-01 00:00:00 12AM Mon Monday 01 Mar March 00 %"),
            (1_751_500_800, "%-d/%-m, %d %b %Y", "3/7, 03 Jul 2025"),
        ] {
            let moment = DateTime::from_timestamp(seconds, 0).unwrap();
            assert_eq!(strftime(format, moment).unwrap(), text);
        }
        for format in ["%Q", "%", "%-"] {
            let refusal = strftime(format, DateTime::UNIX_EPOCH).unwrap_err();
            assert!(refusal.contains(&format!("strftime_now(\"{format}\")")), "{refusal}");
        }
    }
}
