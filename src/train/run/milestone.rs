//! What a run tells the program around it.

use std::path::Path;

/// How far a run has got on a rank.
#[derive(Clone, Copy, Debug)]
pub enum Milestone<'a> {
    /// The first rank is about to make the run folder.
    Makes(&'a Path),
    /// The first rank has made it; on the others.
    Made(&'a Path),
    /// The log goes on in the run folder; only on the first rank.
    Opened(&'a Path),
    /// The first step begins.
    Trains,
}
