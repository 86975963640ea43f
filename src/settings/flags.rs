//! `--a.b.c=value` on the command line: any key, and the short flags of the original's launcher.

use super::engine::Override;
use crate::error::{Error, Result};

/// Flags that are shorter than the path of their key.
const SHORT_FLAGS: [(&str, &str); 8] = [
    ("epochs", "runner_config.epochs"),
    ("batch_size", "runner_config.batch_size"),
    ("gradient_accumulation_steps", "runner_config.gradient_accumulation_steps"),
    ("stop_step", "runner_config.stop_step"),
    ("train_dataset_dir", "train_dataset.data_loader.dataset_dir"),
    ("eval_dataset_dir", "eval_dataset.data_loader.dataset_dir"),
    ("device_name", "context.device_name"),
    ("tier", "context.tier"),
];

/// Flags that mean `True` where no value follows.
const SWITCHES: [&str; 2] = ["resume_training", "do_eval"];

impl Override {
    /// Reads `--key=value` and `--key value` pairs.
    ///
    /// # Errors
    /// If an argument is no flag or a flag has no value.
    pub fn parse_all<I>(arguments: I) -> Result<Vec<Self>>
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        let mut overrides = Vec::new();
        let mut arguments = arguments.into_iter().map(Into::into).peekable();
        while let Some(argument) = arguments.next() {
            let Some(flag) = argument.strip_prefix("--").filter(|flag| !flag.is_empty()) else {
                return Err(Error::config(argument, "expected a flag: --section.key=value"));
            };
            let (key, value) = match flag.split_once('=') {
                Some((key, value)) => (key.to_string(), Some(value.to_string())),
                None => (flag.to_string(), arguments.next_if(|next| !next.starts_with("--"))),
            };
            let is_switch = SWITCHES.contains(&key.as_str());
            let value = value.or_else(|| is_switch.then(|| "True".to_string()));
            let flag = format!("--{key}");
            let value =
                value.ok_or_else(|| Error::config(&flag, format!("has no value; write {flag}=value")))?;
            let short = SHORT_FLAGS.iter().find(|(short, _)| *short == key);
            let path = short.map_or(key, |(_, path)| (*path).to_string());
            overrides.push(Self { flag, path, value });
        }
        Ok(overrides)
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
    }
}
