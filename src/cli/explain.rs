//! `explain`: describes the keys of a configuration.

use super::output;
use crate::error::Result;
use crate::settings;

/// What to explain.
#[derive(clap::Args)]
pub struct Arguments {
    /// A key under any of its names, a dotted path, or a section: num_heads, optimizer.eps, moe_config
    #[arg(value_name = "KEY|SECTION")]
    name: Option<String>,
}

/// Prints the rows that `arguments` name.
pub fn explain(arguments: &Arguments) -> Result<()> {
    let text = settings::explain(arguments.name.as_deref())?;
    let _ = output::print(&text);
    Ok(())
}
