//! Stands in for `mpi` where the feature is missing.

use super::Transport;
use crate::error::{Error, Result};

/// Connects nothing.
///
/// # Errors
/// Always: which feature is missing.
pub fn connect() -> Result<Box<dyn Transport>> {
    Err(Error::Ranks(
        "this program was built without MPI; run ./setup.sh --mpi, build it with --features mpi, and start it again".into(),
    ))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_error_names_the_feature() {
        assert!(super::connect().is_err_and(|error| error.to_string().contains("--features mpi")));
    }
}
