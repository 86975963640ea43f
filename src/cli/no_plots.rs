//! `token-distribution` in a build without the feature `plots`.

use crate::error::{Error, Result};

/// The flags, which are accepted and not read.
#[derive(clap::Args)]
pub struct Arguments {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _flags: Vec<String>,
}

/// Draws nothing in this build.
///
/// # Errors
/// Always.
pub fn token_distribution(_: &Arguments) -> Result<()> {
    let remedy = "build gristmill with the feature `plots`, which is on by default";
    Err(Error::Plan(format!("token-distribution: this build draws no plots; {remedy}")))
}
