//! The programs as a user starts them: processes with a command line, an exit code, output and signals.
//!
//! `cargo test --release --test processes` does not build the example `train_gpt`, which most of these tests start:
//! build it with `cargo build --release --examples` first, or run plain `cargo test --release`.

#[path = "../runs/mod.rs"]
mod runs;

mod browser;
mod event_files;
mod launch;
mod place;

mod adapter_base;
mod announced;
mod command_line;
mod console;
mod conversations;
mod doctor;
mod elsewhere;
mod errors_of_configuration;
mod errors_of_runs;
mod finetune;
mod folders;
mod foreign_weights;
mod generate;
mod hub;
mod instruments;
mod mixture;
mod monitors;
mod out_of_memory;
mod plan;
mod report;
mod report_in_browser;
mod resume;
mod token_cache;
mod token_distribution;
mod watch;
mod watch_in_browser;
