//! `--a.b.c=value` on the command line: any key, and the short flags of MindFormers' launcher.

use super::dialect::NAMES;
use super::engine::{Override, join};
use crate::error::{Error, Result};

/// Flags that are shorter than the path of their key.
const SHORT_FLAGS: [(&str, &str); 14] = [
    ("epochs", "runner_config.epochs"),
    ("batch_size", "runner_config.batch_size"),
    ("gradient_accumulation_steps", "runner_config.gradient_accumulation_steps"),
    ("stop_step", "runner_config.stop_step"),
    ("profile", "runner_config.profile_steps"),
    ("sink_mode", "runner_config.sink_mode"),
    ("train_dataset_dir", "train_dataset.data_loader.dataset_dir"),
    ("eval_dataset_dir", "eval_dataset.data_loader.dataset_dir"),
    ("num_samples", "train_dataset.data_loader.num_samples"),
    ("mode", "context.mode"),
    ("device_target", "context.device_target"),
    ("device_id", "context.device_id"),
    ("device_name", "context.device_name"),
    ("tier", "context.tier"),
];

/// Flags that mean `True` if no value follows.
const SWITCHES: [&str; 3] = ["resume_training", "do_eval", "as_single"];

/// MindFormers' flag for any keys: `--options a.b=1 c.d=2`.
const OPTIONS: &str = "--options";

impl Override {
    /// Reads `--key=value` and `--key value` pairs, and the pairs behind `--options`. Words of a key are joined by
    /// `_` or by `-`.
    ///
    /// # Errors
    /// If an argument is no flag, a flag has no value, or two different flags set one key to different values.
    pub fn parse_all<I>(arguments: I) -> Result<Vec<Self>>
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        let mut overrides: Vec<Self> = Vec::new();
        let mut arguments = arguments.into_iter().map(Into::into).peekable();
        while let Some(argument) = arguments.next() {
            let Some(flag) = argument.strip_prefix("--").filter(|flag| !flag.is_empty()) else {
                return Err(Error::config(argument, "expected a flag: --section.key=value"));
            };
            let (key, value) = match flag.split_once('=') {
                Some((key, value)) => (key.to_string(), Some(value.to_string())),
                None => (flag.to_string(), arguments.next_if(|next| !next.starts_with("--"))),
            };
            let flag = format!("--{key}");
            let key = underscored(&key);
            let is_switch = SWITCHES.contains(&key.as_str());
            let value = value.or_else(|| is_switch.then(|| "True".to_string()));
            let value = value
                .ok_or_else(|| Error::config(&flag, format!("has no value; write {}", example(&flag))))?;
            match flag.as_str() {
                OPTIONS => {
                    let more = std::iter::from_fn(|| arguments.next_if(|next| !next.starts_with("--")));
                    let options = std::iter::once(value).chain(more).map(|pair| Self::option(&pair));
                    overrides.extend(options.collect::<Result<Vec<_>>>()?);
                }
                "--config" => {
                    return Err(Error::config(flag, "the configuration is named twice; name it once"));
                }
                _ => {
                    // MindFormers has a switch `profile`.
                    let is_switch = key == "profile" && value.parse::<u64>().is_err();
                    let short = SHORT_FLAGS.iter().find(|(short, _)| *short == key && !is_switch);
                    let path = short.map_or(key, |(_, path)| (*path).to_string());
                    overrides.push(Self { flag, path, value });
                }
            }
        }
        refuse_conflicts(&overrides)?;
        Ok(overrides)
    }

    /// One pair behind `--options`. A list may be written without brackets there: `KEY=1,2`.
    fn option(pair: &str) -> Result<Self> {
        let Some((path, value)) = pair.split_once('=').filter(|(path, _)| !path.is_empty()) else {
            return Err(Error::config(OPTIONS, format!("expected section.key=value, found `{pair}`")));
        };
        let is_bare_list = value.contains(',') && !value.starts_with(['[', '(', '{', '"', '\'']);
        let value = match is_bare_list {
            true => format!("[{value}]"),
            false => value.to_string(),
        };
        Ok(Self { flag: format!("{OPTIONS} {path}"), path: underscored(path), value })
    }
}

/// `flag` with underscores in place of hyphens: no key has a hyphen, but other programs write their flags with them.
fn underscored(flag: &str) -> String {
    flag.replace('-', "_")
}

/// Refuses two different flags that set one key to different values. One flag may be repeated; its last value counts.
fn refuse_conflicts(overrides: &[Override]) -> Result<()> {
    let canonical = |path: &str| {
        let (section, key) = path.rsplit_once('.').unwrap_or(("", path));
        join(section, NAMES.key(section, key))
    };
    for (index, one) in overrides.iter().enumerate() {
        let differs = |other: &&Override| {
            underscored(&other.flag) != underscored(&one.flag)
                && other.value != one.value
                && canonical(&other.path) == canonical(&one.path)
        };
        if let Some(other) = overrides[..index].iter().find(differs) {
            let (Override { flag, value, .. }, path) = (other, &one.path);
            let message =
                format!("sets `{path}` to `{}`, and {flag} to `{value}`; keep one of them", one.value);
            return Err(Error::config(&one.flag, message));
        }
    }
    Ok(())
}

/// An example of how `flag` is written with a value.
fn example(flag: &str) -> String {
    match flag {
        OPTIONS => format!("{OPTIONS} section.key=value"),
        _ => format!("{flag}=value"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_forms() {
        let arguments = ["--a.b=1", "--epochs", "-1", "--resume_training", "--seed", "7", "--x=a=b"];
        let overrides = Override::parse_all(arguments).unwrap();
        let pairs: Vec<_> = overrides.iter().map(|one| (one.path.as_str(), one.value.as_str())).collect();
        let expected = [
            ("a.b", "1"),
            ("runner_config.epochs", "-1"),
            ("resume_training", "True"),
            ("seed", "7"),
            ("x", "a=b"),
        ];
        assert_eq!(pairs, expected);
        assert_eq!(overrides[1].flag, "--epochs");
        let arguments =
            ["--batch-size=-1", "--model.model-config.n-layer=2", "--resume-training", "--as-single"];
        let overrides = Override::parse_all(arguments).unwrap();
        let pairs: Vec<_> = overrides.iter().map(|one| (one.path.as_str(), one.value.as_str())).collect();
        let expected = [
            ("runner_config.batch_size", "-1"),
            ("model.model_config.n_layer", "2"),
            ("resume_training", "True"),
            ("as_single", "True"),
        ];
        assert_eq!(pairs, expected);
        assert_eq!(overrides[0].flag, "--batch-size");
    }

    #[test]
    fn refuses_what_is_no_pair() {
        let message = |arguments: &[&str]| Override::parse_all(arguments.to_vec()).unwrap_err().to_string();
        assert_eq!(message(&["four"]), "four: expected a flag: --section.key=value");
        assert_eq!(
            message(&["--batch_size", "--seed=1"]),
            "--batch_size: has no value; write --batch_size=value"
        );
        assert_eq!(message(&["--"]), "--: expected a flag: --section.key=value");
        assert_eq!(message(&["--options"]), "--options: has no value; write --options section.key=value");
        assert_eq!(message(&["--options", "seed"]), "--options: expected section.key=value, found `seed`");
        assert_eq!(
            message(&["--config", "b.yaml"]),
            "--config: the configuration is named twice; name it once"
        );
    }

    #[test]
    fn options_of_the_original_are_pairs() {
        let arguments = [
            "--options",
            "a.b=1",
            "c=2,x",
            "--seed",
            "7",
            "--options=d=[1, 2]",
            "--options",
            "e={f: 1, g: 2}",
            "model.model-config.n-layer=a-b",
            "--as-single",
        ];
        let overrides = Override::parse_all(arguments).unwrap();
        let pairs: Vec<_> = overrides.iter().map(|one| (one.path.as_str(), one.value.as_str())).collect();
        let expected = [
            ("a.b", "1"),
            ("c", "[2,x]"),
            ("seed", "7"),
            ("d", "[1, 2]"),
            ("e", "{f: 1, g: 2}"),
            ("model.model_config.n_layer", "a-b"),
            ("as_single", "True"),
        ];
        assert_eq!(pairs, expected);
        assert_eq!(overrides[0].flag, "--options a.b");
    }

    #[test]
    fn two_flags_for_one_key_may_only_agree() {
        let message = |arguments: &[&str]| {
            Override::parse_all(arguments.to_vec())
                .map_or_else(|error| error.to_string(), |_| "accepted".to_string())
        };
        assert_eq!(
            message(&["--batch_size", "2", "--runner_config.batch_size=4"]),
            "--runner_config.batch_size: sets `runner_config.batch_size` to `4`, and --batch_size to `2`; keep one \
             of them"
        );
        assert_eq!(
            message(&["--model.model_config.n_layer=2", "--options", "model.model_config.num_layers=3"]),
            "--options model.model_config.num_layers: sets `model.model_config.num_layers` to `3`, and \
             --model.model_config.n_layer to `2`; keep one of them"
        );
        for fine in [
            &["--seed=1", "--seed=2"][..],
            &["--batch-size=1", "--batch_size=2"],
            &["--epochs=3", "--runner_config.epochs=3"],
        ] {
            assert_eq!(message(fine), "accepted");
        }
    }
}
