//! The flags of `finetune` that stand for keys of the configuration: a user gives either the flag or the key, and
//! errors name what the user can write.

use super::Arguments;
use super::division::{ACCUMULATION, BATCH};
use crate::error::{Error, Result};
use crate::settings::Override;
use std::path::Path;

/// A flag, and the keys that it sets. An error about the first of these keys is an error about the flag.
struct Flag {
    name: &'static str,
    is_given: fn(&Arguments) -> bool,
    keys: &'static [&'static str],
}

/// The key of the adapters' section.
const PET: &str = "model.model_config.pet_config";

const FLAGS: [Flag; 28] = [
    flag("--lora", |given| given.lora.is_some(), &["model.model_config.pet_config.lora_rank"]),
    flag("--lora-alpha", |given| given.lora_alpha.is_some(), &["model.model_config.pet_config.lora_alpha"]),
    flag(
        "--lora-dropout",
        |given| given.lora_dropout.is_some(),
        &["model.model_config.pet_config.lora_dropout"],
    ),
    flag(
        "--targets",
        |given| !given.targets.is_empty(),
        &["model.model_config.pet_config.target_modules", "model.model_config.pet_config.target_parameters"],
    ),
    flag("--rslora", |given| given.rslora, &["model.model_config.pet_config.use_rslora"]),
    flag("--dora", |given| given.dora, &["model.model_config.pet_config.use_dora"]),
    flag(
        "--loraplus",
        |given| given.loraplus.is_some(),
        &["model.model_config.pet_config.loraplus_lr_ratio"],
    ),
    flag(
        "--save-modules",
        |given| !given.save_modules.is_empty(),
        &["model.model_config.pet_config.modules_to_save"],
    ),
    flag("--adapter", |given| given.begun.is_some(), &["model.model_config.pet_config.adapter_path"]),
    flag("--base", |given| given.base.is_some(), &["model.model_config.pet_config.base_dtype"]),
    flag("--full", |given| given.full, &[PET]),
    flag("--preference", |given| given.preference.is_some(), &["preference.type"]),
    flag("--beta", |given| given.beta.is_some(), &["preference.beta"]),
    flag("--learning-rate", |given| given.learning_rate.is_some(), &["lr_schedule.learning_rate"]),
    flag("--epochs", |given| given.epochs.is_some(), &["runner_config.epochs"]),
    flag(
        "--steps",
        |given| given.steps.is_some(),
        &["runner_config.stop_step", "runner_config.epochs", "lr_schedule.total_steps"],
    ),
    flag("--batch-size", |given| given.batch_size.is_some(), &[BATCH, ACCUMULATION]),
    flag("--accumulate", |given| given.accumulate.is_some(), &[ACCUMULATION, BATCH]),
    // The memory decides how the samples of a step are divided.
    flag("--memory", |given| given.memory.is_some(), &[BATCH, ACCUMULATION]),
    flag("--max-length", |given| given.max_length.is_some(), &["model.model_config.seq_length"]),
    flag("--seed", |given| given.seed.is_some(), &["seed"]),
    flag(
        "--eval",
        |given| given.eval.is_some(),
        &[
            "eval_dataset.data_loader.dataset_files",
            "eval_dataset.data_loader.data_files",
            "eval_dataset.data_loader.dataset_dir",
        ],
    ),
    flag(
        "--eval-fraction",
        |given| given.eval_fraction.is_some(),
        &["train_dataset.eval_samples", "train_dataset.eval_fraction"],
    ),
    flag(
        "--chat-template",
        |given| given.chat_template.is_some(),
        &["train_dataset.data_loader.chat_template"],
    ),
    flag("--packing", |given| given.packing.is_some(), &["train_dataset.data_loader.packing"]),
    flag("--raw", |given| given.raw, &["train_dataset.data_loader.raw"]),
    flag("--device-name", |given| given.adapter.device_name.is_some(), &["context.device_name"]),
    flag("--tier", |given| given.adapter.tier.is_some(), &["context.tier"]),
];

const fn flag(name: &'static str, is_given: fn(&Arguments) -> bool, keys: &'static [&'static str]) -> Flag {
    Flag { name, is_given, keys }
}

/// Words in errors of a run, and the words that replace them here.
const SAID: [(&str, &str); 5] = [
    ("`eval_samples`", "--eval-fraction"),
    ("--output_dir or --run_name", "--output"),
    ("--output_dir", "--output"),
    ("--resume_training=True", "--resume"),
    ("leave --resume_training out", "leave --resume out"),
];

/// Fails if a key that is `written` would replace a flag that is given, so that the flag would be lost.
///
/// # Errors
/// Names the key and the flag.
pub fn refuse_written(arguments: &Arguments, written: &[Override]) -> Result<()> {
    for flag in FLAGS.iter().filter(|flag| (flag.is_given)(arguments)) {
        let decides = |one: &&Override| flag.keys.iter().any(|key| one.covers(key) || one.lies_within(key));
        if let Some(one) = written.iter().find(decides) {
            let message = format!("decides `{}` too, which {} sets; keep one of them", one.path, one.flag);
            return Err(Error::config(flag.name, message));
        }
    }
    Ok(())
}

/// The error with flags in place of keys that are not `written`, and in place of lines of the configuration at `file`,
/// which the user has not written.
pub fn naming(error: Error, written: &[Override], file: &Path) -> Error {
    // An error about adapters is not about their absence.
    let named = |flag: &&Flag| flag.keys[0] != PET && !written.iter().any(|one| one.covers(flag.keys[0]));
    let names = || FLAGS.iter().filter(named).map(|flag| (flag.keys[0], flag.name));
    let flagged = |text: String| {
        let keys = names().filter(|(key, _)| key.contains('.'));
        keys.chain(SAID).fold(text, |text, (key, flag)| text.replace(key, flag))
    };
    match error {
        Error::Plan(text) => Error::Plan(flagged(text)),
        Error::TooLarge { what, remedy } => Error::TooLarge { what, remedy: flagged(remedy) },
        Error::File { path, message } => Error::File { path, message: flagged(message) },
        Error::Config { origin, message } => {
            let line = origin.strip_prefix(&format!("{}:", file.display()));
            let key = line.and_then(|line| line.split_once(": ")).map(|(_, key)| key);
            let flag = key.map(|key| {
                let flag = names().find(|(own, _)| *own == key);
                flag.map_or_else(|| format!("--{key}"), |(_, flag)| flag.to_string())
            });
            Error::Config { origin: flag.unwrap_or(origin), message: flagged(message) }
        }
        Error::Several(errors) => {
            Error::Several(errors.into_iter().map(|error| naming(error, written, file)).collect())
        }
        error => error,
    }
}
