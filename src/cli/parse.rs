//! Parses command lines, with clap's errors reduced to one line like ours.

use crate::error::{Error, Result};
use clap::Parser;
use clap::error::ErrorKind;

/// Parses a command line, in which the words of an option may be joined by `_` too, as those of keys are. If it asks for help or the
/// version, prints that and exits the process.
///
/// # Errors
/// clap's, in one line.
pub fn parse<T: Parser>(arguments: Vec<String>) -> Result<T> {
    let matches = with_underscores(T::command()).try_get_matches_from(arguments);
    matches.and_then(|matches| T::from_arg_matches(&matches)).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = super::output::print(&error.to_string());
            std::process::exit(0)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let commands = T::command();
            let names: Vec<&str> = commands.get_subcommands().map(clap::Command::get_name).collect();
            let name = commands.get_name();
            Error::config(
                name,
                format!("no command is given; known are {}; try '{name} --help'", names.join(", ")),
            )
        }
        _ => Error::Plan(in_one_line(&error.to_string())),
    })
}

/// `command` and its subcommands, whose options have a second name with `_` where their own has `-`, or the other way round.
fn with_underscores(command: clap::Command) -> clap::Command {
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_string()).collect();
    let other = |long: &str| if long.contains('-') { long.replace('-', "_") } else { long.replace('_', "-") };
    let command =
        command.mut_args(|arg| match arg.get_long().map(|long| (other(long), other(long) != long)) {
            Some((alias, true)) => arg.alias(alias),
            _ => arg,
        });
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, with_underscores))
}

/// Whether `argument` is the option `--name`, alone or with a value behind `=`, however its words are joined.
pub fn is_option(argument: &str, name: &str) -> bool {
    let own = argument.split_once('=').map_or(argument, |(own, _)| own);
    own.starts_with("--") && own.replace('_', "-") == name
}

/// Moves requests for help, and the options `valued` with their values, to just after the first `start` arguments: clap
/// takes everything after a configuration for overrides.
pub fn options_first(mut arguments: Vec<String>, start: usize, valued: &[&str]) -> Vec<String> {
    let rest = arguments.split_off(start.min(arguments.len()));
    let (mut others, mut rest) = (Vec::new(), rest.into_iter());
    while let Some(argument) = rest.next() {
        let is_valued = valued.iter().any(|name| is_option(&argument, name));
        match (["-h", "--help"].contains(&argument.as_str()), is_valued) {
            (true, _) => arguments.push(argument),
            (_, true) if argument.contains('=') => arguments.push(argument),
            (_, true) => arguments.extend([argument].into_iter().chain(rest.next())),
            _ => others.push(argument),
        }
    }
    arguments.extend(others);
    arguments
}

/// Joins the paragraphs of clap's message (the error, a tip, the usage, a reference to the help) with semicolons.
fn in_one_line(message: &str) -> String {
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let paragraphs = message.split("\n\n").map(|paragraph| {
        let paragraph = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        // Lower case after a semicolon.
        paragraph.replacen("Usage: ", "usage: ", 1).replacen("For more information, try", "see also", 1)
    });
    let parts: Vec<String> = paragraphs.filter(|paragraph| !paragraph.is_empty()).collect();
    parts.join("; ").trim_end_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use super::{in_one_line, options_first, parse};

    #[test]
    fn options_move_before_the_configuration() {
        let moved = |text: &str| {
            let arguments = text.split(' ').map(str::to_string).collect();
            options_first(arguments, 2, &["--fit"]).join(" ")
        };
        assert_eq!(moved("g plan x.yaml --a.b=1 --fit 8GB --c=2"), "g plan --fit 8GB x.yaml --a.b=1 --c=2");
        assert_eq!(moved("g plan x.yaml --fit=8GB -h"), "g plan --fit=8GB -h x.yaml");
        assert_eq!(moved("g plan x.yaml --fit"), "g plan --fit x.yaml");
        assert_eq!(moved("g plan x.yaml --fitness=1"), "g plan x.yaml --fitness=1");
        assert_eq!(moved("g"), "g");
    }

    #[test]
    fn words_of_options_are_joined_either_way() {
        #[derive(clap::Parser, Debug, PartialEq)]
        struct Program {
            #[command(subcommand)]
            command: Command,
        }
        #[derive(clap::Subcommand, Debug, PartialEq)]
        enum Command {
            Generate {
                #[arg(long)]
                top_k: u32,
            },
        }
        for flag in ["--top-k", "--top_k"] {
            let arguments = ["program", "generate", flag, "5"].map(str::to_string).to_vec();
            assert_eq!(parse::<Program>(arguments).unwrap().command, Command::Generate { top_k: 5 });
        }
        let moved = |text: &str| {
            let arguments = text.split(' ').map(str::to_string).collect();
            options_first(arguments, 2, &["--link-gbs"]).join(" ")
        };
        assert_eq!(moved("g plan x.yaml --link_gbs 5 --c=2"), "g plan --link_gbs 5 x.yaml --c=2");
    }

    #[test]
    fn paragraphs_become_one_line() {
        let message = "error: unexpected argument '--topk' found\n\n  tip: a similar argument exists: '--top-k'\n\nUsage: \
                       gristmill generate --top-k <K> <RUN>\n\nFor more information, try '--help'.\n";
        let line = "unexpected argument '--topk' found; tip: a similar argument exists: '--top-k'; usage: gristmill \
                    generate --top-k <K> <RUN>; see also '--help'";
        assert_eq!(in_one_line(message), line);
    }
}
