//! Today's date, which some templates write into the system prompt: `strftime_now` of `transformers`, in UTC.
//!
//! `SOURCE_DATE_EPOCH`, seconds since 1970, names another moment, as it does for other programs: samples of another day have other
//! tokens, and a run resumes only with the same data.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// The time, in seconds since 1970.
///
/// # Errors
/// A `SOURCE_DATE_EPOCH` that is no number.
pub(super) fn now() -> Result<u64, String> {
    match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => {
            text.parse().map_err(|_| format!("SOURCE_DATE_EPOCH is `{text}`, not seconds since 1970"))
        }
        Err(_) => Ok(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()),
    }
}

/// `seconds` since 1970 in the words of `format`, as C's `strftime` has it in English. `%-d` is `%d` without zeros before it.
///
/// # Errors
/// A letter that is not known.
pub(super) fn strftime(format: &str, seconds: u64) -> Result<String, String> {
    let (days, hour, minute, second) =
        (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let (year, month, day) = date_of(days);
    let (month_name, day_name) = (MONTHS[month as usize - 1], DAYS[(days as usize + 4) % 7]);
    let (mut text, mut letters) = (String::new(), format.chars());
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        let mut kind = letters.next();
        let is_bare = kind == Some('-');
        if is_bare {
            kind = letters.next();
        }
        let (number, width) = match kind {
            Some('Y') => (year, 1),
            Some('y') => (year % 100, 2),
            Some('m') => (month, 2),
            Some('d') => (day, 2),
            Some('H') => (hour, 2),
            Some('I') => ((hour + 11) % 12 + 1, 2),
            Some('M') => (minute, 2),
            Some('S') => (second, 2),
            word => {
                text.push_str(match word {
                    Some('B') => month_name,
                    Some('b') => &month_name[..3],
                    Some('A') => day_name,
                    Some('a') => &day_name[..3],
                    Some('p') => ["AM", "PM"][usize::from(hour >= 12)],
                    Some('%') => "%",
                    _ => return Err(format!("strftime_now(\"{format}\"): only %Y %y %m %d %H %I %M %S %B %b %A %a %p are known")),
                });
                continue;
            }
        };
        let width = if is_bare { 1 } else { width };
        let _ = write!(text, "{number:0width$}"); // a String takes everything
    }
    Ok(text)
}

/// Year, month and day of a number of days since 1970, by the algorithm of Howard Hinnant's `civil_from_days`: years that begin in
/// March have their leap day last.
fn date_of(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468; // from March 1 of year 0
    let (era, day) = (days / 146_097, days % 146_097); // 400 years
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153; // from March
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    (era * 400 + year + u64::from(month < 3), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Python's `datetime.fromtimestamp(seconds, timezone.utc).strftime(format)` gives.
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
            assert_eq!(strftime(format, seconds).unwrap(), text);
        }
        for format in ["%c", "%", "%-"] {
            assert!(
                strftime(format, 0).unwrap_err().contains(&format!("strftime_now(\"{format}\"): only %Y"))
            );
        }
    }

    #[test]
    fn every_moment_is_a_date() {
        assert!(strftime("%Y", u64::MAX).is_ok());
    }
}
