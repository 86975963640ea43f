//! Whole runs of mixtures of experts.

mod equivalence;
mod evaluation;
mod families;
mod generate;
mod reference;
mod resume;
