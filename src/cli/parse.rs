//! Parses command lines: the arguments are put into clap's order, and clap's errors are reduced to one line like those
//! of this crate.

use super::watch::WatchAddress;
use crate::error::{Error, Result};
use clap::error::ErrorKind;
use clap::{Arg, Command, Parser};

/// Parses a command line. Options may be anywhere in it, and their words may also be joined by `_`, as in keys. If it
/// asks for help or the version, prints that and exits the process.
///
/// # Errors
/// clap's error, in one line.
pub fn parse<T: Parser>(arguments: impl Iterator<Item = String>) -> Result<T> {
    T::try_parse_from(ordered(&T::command(), arguments)).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = super::output::print(&error.to_string());
            std::process::exit(0)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let commands = T::command();
            let names: Vec<&str> = commands.get_subcommands().map(Command::get_name).collect();
            let name = commands.get_name();
            Error::config(
                name,
                format!("no command is given; known are {}; try '{name} --help'", names.join(", ")),
            )
        }
        _ => Error::Plan(in_one_line(&error.to_string())),
    })
}

/// The arguments in the order in which clap takes them: first the options of the command, each spelled as clap knows it
/// and with its value after `=`; then the configuration, whether it stands alone or after `--config`; then the others,
/// which clap takes for overrides. The options are those of all commands with a configuration, so that an option of
/// another command is not taken for a key.
fn ordered(program: &Command, arguments: impl Iterator<Item = String>) -> Vec<String> {
    let mut arguments = arguments.peekable();
    let mut ordered: Vec<String> = arguments.next().into_iter().collect();
    let named = arguments.peek().and_then(|name| program.find_subcommand(name));
    ordered.extend(named.and_then(|_| arguments.next()));
    let command = named.unwrap_or(program);
    let (options, place) = (options_beside(program, command), before_configuration(command));
    // Without a configuration, keys may be anywhere among the other arguments.
    let has_loose_keys = place.is_none() && has_keys(command);
    let [mut others, mut keys, mut configurations, mut singles, mut lacking] = [const { Vec::new() }; 5];
    while let Some(argument) = arguments.next_if(|argument| argument != "--") {
        let option =
            options.iter().find(|option| option.get_long().is_some_and(|own| is_named(&argument, own)));
        let is = |flag| place.is_some() && is_named(&argument, flag);
        let has_value = argument.contains('=') || arguments.peek().is_some_and(|next| is_value(next));
        let (group, is_meant): (&mut Vec<String>, fn(&str) -> bool) = match option {
            Some(option) if option.is_require_equals_set() => (&mut ordered, WatchAddress::is_meant),
            Some(option) if !option.get_action().takes_values() => (&mut ordered, |_| false),
            Some(_) if has_value => (&mut ordered, is_value),
            None if ["-h", "--help"].contains(&argument.as_str()) => (&mut ordered, |_| false),
            None if is("config") => (&mut configurations, is_value),
            None if is("as-single") => (&mut singles, is_truth),
            None if has_loose_keys && argument.starts_with("--") => (&mut keys, is_value),
            None => (&mut others, |_| false),
            // Anywhere else it would take the argument after it for its value.
            Some(_) => (&mut lacking, |_| false),
        };
        let mut argument = match option.and_then(|option| option.get_long()) {
            Some(own) => format!("--{own}{}", argument.find('=').map_or("", |at| &argument[at..])),
            None => argument,
        };
        if let Some(value) = arguments.next_if(|next| !argument.contains('=') && is_meant(next)) {
            argument = format!("{argument}={value}");
        }
        group.push(argument);
    }
    if let Some(place) = place {
        insert_configuration(&mut others, place, &mut configurations);
    }
    // A second configuration is an error among the overrides; in their midst, `--as-single` would end `--options`.
    [ordered, others, keys, configurations, singles, lacking, arguments.collect()].concat()
}

/// Moves the path after the first `--config` to its place, unless there is already one, or the arguments before it are
/// missing.
fn insert_configuration(others: &mut Vec<String>, place: usize, flags: &mut Vec<String>) {
    let is_free = place <= others.len() && others.get(place).is_none_or(|there| there.starts_with('-'));
    if let Some(path) = flags.first().filter(|_| is_free).and_then(|flag| flag.strip_prefix("--config=")) {
        others.insert(place, path.to_string());
        flags.remove(0);
    }
}

/// Whether a command takes keys of a configuration.
fn has_keys(command: &Command) -> bool {
    command.get_positionals().any(Arg::is_trailing_var_arg_set)
}

/// Number of arguments before the configuration of a command; `None` if it has no configuration.
fn before_configuration(command: &Command) -> Option<usize> {
    command.get_positionals().position(|argument| argument.get_id() == "config").filter(|_| has_keys(command))
}

/// The options of `command`; if it has a configuration, the options of all commands that have one.
fn options_beside<'a>(program: &'a Command, command: &'a Command) -> Vec<&'a Arg> {
    let all = std::iter::once(program).chain(program.get_subcommands());
    let is_beside = |other: &&Command| match before_configuration(command) {
        Some(_) => before_configuration(other).is_some(),
        None => std::ptr::eq(*other, command),
    };
    all.filter(is_beside).flat_map(Command::get_arguments).filter(|arg| !arg.is_positional()).collect()
}

/// Whether `argument` is the option `--name`, alone or with a value after `=`; its words may be joined by `-` or by
/// `_`.
fn is_named(argument: &str, name: &str) -> bool {
    let own = argument.split_once('=').map_or(argument, |(own, _)| own);
    own.strip_prefix("--").is_some_and(|own| own.replace('_', "-") == name.replace('_', "-"))
}

/// Whether the argument after an option may be its value.
fn is_value(argument: &str) -> bool {
    !argument.starts_with("--")
}

fn is_truth(argument: &str) -> bool {
    ["true", "false"].contains(&argument.to_lowercase().as_str())
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
    use super::*;
    use crate::cli::Arguments;
    use clap::CommandFactory;

    /// The arguments of `gristmill` in clap's order.
    fn moved(text: &str) -> String {
        ordered(&Arguments::command(), text.split(' ').map(str::to_string)).join(" ")
    }

    #[test]
    fn options_move_before_the_configuration() {
        for (text, expected) in [
            ("g plan x.yaml --a.b=1 --fit 8GB --c=2", "g plan --fit=8GB x.yaml --a.b=1 --c=2"),
            ("g plan x.yaml --fit=8GB -h", "g plan --fit=8GB -h x.yaml"),
            ("g plan x.yaml --link_gbs 5 --c=2", "g plan --link-gbs=5 x.yaml --c=2"),
            ("g plan x.yaml --fitness=1", "g plan x.yaml --fitness=1"),
            ("g plan x.yaml --fit", "g plan x.yaml --fit"),
            ("g plan --fit --seed 1 x.yaml", "g plan --seed 1 x.yaml --fit"),
            ("g train x.yaml --fit 8GB", "g train --fit=8GB x.yaml"),
            ("g train x.yaml --tier portable", "g train x.yaml --tier portable"),
            ("g train x.yaml -- --ranks 2", "g train x.yaml -- --ranks 2"),
            ("g dump-wgsl folder x.yaml --seed 1 --help", "g dump-wgsl --help folder x.yaml --seed 1"),
            ("g", "g"),
            // The options of `finetune` are its own.
            (
                "g finetune --a.b=1 m --lora 8 d --c.d 2 --resume",
                "g finetune --lora=8 --resume m d --a.b=1 --c.d=2",
            ),
            ("g finetune m d --do_eval --watch", "g finetune --watch m d --do_eval"),
            ("g train x.yaml --seed 7 --epochs 8", "g train x.yaml --seed 7 --epochs 8"),
        ] {
            assert_eq!(moved(text), expected);
        }
    }

    #[test]
    fn the_configuration_behind_a_flag_is_the_one_in_its_place() {
        for (text, expected) in [
            ("g plan --seed 1 --config x.yaml", "g plan x.yaml --seed 1"),
            ("g plan --fit 8GB --config=x.yaml", "g plan --fit=8GB x.yaml"),
            ("g plan x.yaml --config y.yaml", "g plan x.yaml --config=y.yaml"),
            ("g plan --config x.yaml --config y.yaml", "g plan x.yaml --config=y.yaml"),
            ("g plan --config", "g plan --config"),
            ("g dump-wgsl --config x.yaml folder", "g dump-wgsl folder x.yaml"),
            ("g dump-wgsl folder --config=x.yaml --seed 1", "g dump-wgsl folder x.yaml --seed 1"),
            ("g dump-wgsl --config x.yaml", "g dump-wgsl --config=x.yaml"),
        ] {
            assert_eq!(moved(text), expected);
        }
    }

    #[test]
    fn flags_may_stand_without_their_value() {
        for (text, expected) in [
            ("g plan --as-single x.yaml", "g plan x.yaml --as-single"),
            (
                "g train x.yaml --resume_training --as_single False",
                "g train x.yaml --resume_training --as_single=False",
            ),
            (
                "g train --options a=1 --as-single b=2 --config x.yaml",
                "g train x.yaml --options a=1 b=2 --as-single",
            ),
            ("g train --watch x.yaml", "g train --watch x.yaml"),
            ("g train --watch 80 x.yaml", "g train --watch=80 x.yaml"),
            ("g train x.yaml --seed 1 --watch gpu7:80", "g train --watch=gpu7:80 x.yaml --seed 1"),
            ("g train x.yaml --watch --seed 1", "g train --watch x.yaml --seed 1"),
        ] {
            assert_eq!(moved(text), expected);
        }
    }

    #[test]
    fn words_of_options_are_joined_either_way() {
        for (text, expected) in [
            ("g generate run --top_k 5 --ignore_eod", "g generate --top-k=5 --ignore-eod run"),
            ("g generate run --temperature -1", "g generate --temperature=-1 run"),
            ("g generate run --tokens", "g generate run --tokens"),
            ("g tokenize a b -o c --text_key=d", "g tokenize --text-key=d a b -o c"),
            ("g doctor --device_name x", "g doctor --device-name=x"),
        ] {
            assert_eq!(moved(text), expected);
        }
        #[cfg(feature = "plots")]
        assert_eq!(moved("g token-distribution --num-layers 2"), "g token-distribution --num_layers=2");
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
