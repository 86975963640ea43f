//! The flags of `finetune` that stand for keys of the configuration: one of each is given, and errors name what the user can write.

use super::Arguments;
use super::division::{ACCUMULATION, BATCH};
use crate::error::{Error, Result};
use crate::settings::Override;
use std::path::Path;

/// A flag, and the keys that it decides. An error about the first of them is one about the flag.
struct Flag {
    name: &'static str,
    is_given: fn(&Arguments) -> bool,
    keys: &'static [&'static str],
}

/// The keys of the adapters.
const PET: &str = "model.model_config.pet_config";

const FLAGS: [Flag; 21] = [
    Flag {
        name: "--lora",
        is_given: |given| given.lora.is_some(),
        keys: &["model.model_config.pet_config.lora_rank"],
    },
    Flag {
        name: "--lora-alpha",
        is_given: |given| given.lora_alpha.is_some(),
        keys: &["model.model_config.pet_config.lora_alpha"],
    },
    Flag {
        name: "--lora-dropout",
        is_given: |given| given.lora_dropout.is_some(),
        keys: &["model.model_config.pet_config.lora_dropout"],
    },
    Flag {
        name: "--targets",
        is_given: |given| !given.targets.is_empty(),
        keys: &["model.model_config.pet_config.target_modules"],
    },
    Flag {
        name: "--base",
        is_given: |given| given.base.is_some(),
        keys: &["model.model_config.pet_config.base_dtype"],
    },
    Flag { name: "--full", is_given: |given| given.full, keys: &[PET] },
    Flag {
        name: "--learning-rate",
        is_given: |given| given.learning_rate.is_some(),
        keys: &["lr_schedule.learning_rate"],
    },
    Flag { name: "--epochs", is_given: |given| given.epochs.is_some(), keys: &["runner_config.epochs"] },
    Flag {
        name: "--steps",
        is_given: |given| given.steps.is_some(),
        keys: &["runner_config.stop_step", "runner_config.epochs", "lr_schedule.total_steps"],
    },
    Flag { name: "--batch-size", is_given: |given| given.batch_size.is_some(), keys: &[BATCH, ACCUMULATION] },
    Flag { name: "--accumulate", is_given: |given| given.accumulate.is_some(), keys: &[ACCUMULATION, BATCH] },
    // Which divides the samples of a step.
    Flag { name: "--memory", is_given: |given| given.memory.is_some(), keys: &[BATCH, ACCUMULATION] },
    Flag {
        name: "--max-length",
        is_given: |given| given.max_length.is_some(),
        keys: &["model.model_config.seq_length"],
    },
    Flag { name: "--seed", is_given: |given| given.seed.is_some(), keys: &["seed"] },
    Flag {
        name: "--eval",
        is_given: |given| given.eval.is_some(),
        keys: &[
            "eval_dataset.data_loader.dataset_files",
            "eval_dataset.data_loader.data_files",
            "eval_dataset.data_loader.dataset_dir",
        ],
    },
    Flag {
        name: "--eval-fraction",
        is_given: |given| given.eval_fraction.is_some(),
        keys: &["train_dataset.eval_samples", "train_dataset.eval_fraction"],
    },
    Flag {
        name: "--chat-template",
        is_given: |given| given.chat_template.is_some(),
        keys: &["train_dataset.data_loader.chat_template"],
    },
    Flag {
        name: "--packing",
        is_given: |given| given.packing.is_some(),
        keys: &["train_dataset.data_loader.packing"],
    },
    Flag { name: "--raw", is_given: |given| given.raw, keys: &["train_dataset.data_loader.raw"] },
    Flag {
        name: "--device-name",
        is_given: |given| given.adapter.device_name.is_some(),
        keys: &["context.device_name"],
    },
    Flag { name: "--tier", is_given: |given| given.adapter.tier.is_some(), keys: &["context.tier"] },
];

/// What errors of a run say, and how it is said here.
const SAID: [(&str, &str); 5] = [
    ("`eval_samples`", "--eval-fraction"),
    ("--output_dir or --run_name", "--output"),
    ("--output_dir", "--output"),
    ("--resume_training=True", "--resume"),
    ("leave --resume_training out", "leave --resume out"),
];

/// Fails if a key that is `written` would take the place of a flag that is given, which would be lost.
///
/// # Errors
/// Which key and flag these are.
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

/// The error with flags in place of keys that are not `written`, and of lines of the configuration at `file`, which the user has not
/// written.
pub fn naming(error: Error, written: &[Override], file: &Path) -> Error {
    // Errors about adapters are not about their absence.
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
