//! Numbers of the command line, checked against the ranges of their keys, so that an error names the flag.

/// A finite number above 0.
pub fn above_zero(text: &str) -> Result<f64, String> {
    within(text, "a number above 0", |number| number > 0.0 && number.is_finite())
}

/// A number from 0.
pub fn from_zero(text: &str) -> Result<f64, String> {
    within(text, "a number from 0", |number| number >= 0.0 && number.is_finite())
}

/// A share above 0, up to all.
pub fn positive_share(text: &str) -> Result<f64, String> {
    within(text, "a number above 0 and up to 1", |number| number > 0.0 && number <= 1.0)
}

/// A share from 0 to below 1.
pub fn share(text: &str) -> Result<f64, String> {
    within(text, "a share from 0 to below 1", |number| (0.0..1.0).contains(&number))
}

fn within(text: &str, expected: &str, is_within: impl Fn(f64) -> bool) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| is_within(*number));
    number.ok_or_else(|| format!("expected {expected}, found `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_or_out_of_range_is_refused() {
        assert_eq!((above_zero("2e-4"), share("0"), share("0.5")), (Ok(2e-4), Ok(0.0), Ok(0.5)));
        for text in ["0", "-1", "nan", "inf", "1e999", "", "x"] {
            assert_eq!(above_zero(text), Err(format!("expected a number above 0, found `{text}`")));
        }
        for text in ["1", "-0.1", "nan", "-inf", ""] {
            assert_eq!(share(text), Err(format!("expected a share from 0 to below 1, found `{text}`")));
        }
    }
}
