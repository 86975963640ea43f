//! The names that other programs have for the flags of `finetune`: transformers, PEFT, TRL, unsloth, LLaMA-Factory and
//! mlx-lm. An answer contains the value that was asked for if it exists here, and otherwise the form of the values that
//! exist.

use crate::element::Element;
use crate::error::{Error, Result, shell_word};
use crate::settings::{OptimizerType, ScheduleType, Words};

/// The counterpart of another program's flag here.
pub(super) enum Ours {
    /// The same flag for every value. The value goes where the braces are; they contain what stands there if there is
    /// no value.
    As(&'static str),
    /// A flag without a value, for a flag that is true or left out.
    Switch(&'static str),
    /// The flag depends on the value.
    By(fn(Option<&str>) -> String),
}

use Ours::{As, By, Switch};

/// The names of other programs' flags, with words joined by `_`, and their counterparts.
pub(super) const NAMES: [(&str, Ours); 46] = [
    ("num_train_epochs num_epochs", As("--epochs {}")),
    ("max_steps iters num_steps", By(steps)),
    ("per_device_train_batch_size train_batch_size micro_batch_size", As("--batch-size {}")),
    ("gradient_accumulation_steps grad_accumulation_steps accumulation_steps", As("--accumulate {}")),
    ("lr", As("--learning-rate {}")),
    ("pref_loss loss_type dpo_loss_type train_mode", As("--preference {dpo}")),
    ("pref_beta dpo_beta", As("--beta {0.1}")),
    ("simpo_gamma", As("--preference.gamma={1.0}")),
    ("r rank lora_r lora_rank", As("--lora {}")),
    ("alpha", As("--lora-alpha {}")),
    ("dropout", As("--lora-dropout {}")),
    ("use_rslora", Switch("--rslora")),
    ("use_dora", Switch("--dora")),
    ("loraplus_lr_ratio loraplus_ratio", As("--loraplus {RATIO}")),
    ("modules_to_save additional_target", As("--save-modules {}")),
    ("target_modules lora_target_modules lora_target lora_modules target_parameters", As("--targets {}")),
    ("max_seq_length max_seq_len model_max_length cutoff_len seq_length", As("--max-length {}")),
    ("val_size test_size eval_split", By(held_out)),
    ("eval_file eval_dataset eval_dataset_dir validation_file valid_file", As("--eval {FILE}")),
    ("output_dir run_name save_path adapter_path", As("--output {}")),
    ("resume_training resume_from_checkpoint resume_adapter_file", Switch("--resume")),
    ("load_in_4bit", Switch("--base nf4")),
    ("quantization_bit", By(quantised)),
    ("load_in_8bit", Switch("--base int8")),
    ("neat_packing pack_sequences sample_packing", By(packing)),
    ("random_seed", As("--seed {}")),
    ("full_finetuning", Switch("--full")),
    ("fine_tune_type finetuning_type", By(trained)),
    ("model_name_or_path model_name", As("the first argument")),
    ("dataset dataset_name train_file train_data dataset_path", As("the second argument")),
    (
        "train_dataset_dir train_dataset.data_loader.dataset_dir train_dataset.data_loader.dataset_files \
         train_dataset.data_loader.data_files",
        As("the second argument"),
    ),
    ("warmup_ratio", As("--lr_schedule.warmup_ratio={0.1}")),
    ("warmup_steps warmup", As("--lr_schedule.warmup_steps={10}")),
    ("lr_scheduler_type", By(|word| one_of::<ScheduleType>("lr_schedule.type", word))),
    ("weight_decay", As("--optimizer.weight_decay={0.01}")),
    ("optim", By(optimizer)),
    ("adam_beta1", As("--optimizer.betas=[{BETA1},BETA2]")),
    ("adam_beta2", As("--optimizer.betas=[BETA1,{BETA2}]")),
    ("max_grad_norm", As("--runner_wrapper.use_clip_grad=True --runner_wrapper.max_grad_norm={1.0}")),
    ("bf16", By(half)),
    ("fp16", Switch("--model.model_config.compute_dtype=float16")),
    ("torch_dtype dtype", By(|word| one_of::<Element>("model.model_config.compute_dtype", word))),
    ("eval_steps steps_per_eval", As("--eval_step_interval={50}")),
    ("save_steps save_every", As("--callbacks.0.save_checkpoint_steps={50}")),
    ("save_total_limit", As("--callbacks.0.keep_checkpoint_max={2}")),
    ("load_best_model_at_end", By(kept)),
];

/// The flags among `words`, each with its value.
pub fn flags(words: &[String]) -> Vec<(&str, Option<&str>)> {
    let next = words.iter().skip(1).map(Some).chain([None]);
    let flags = words.iter().zip(next).filter(|(word, _)| word.starts_with("--"));
    flags
        .map(|(word, next)| match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (word.as_str(), next.map(String::as_str).filter(|next| !next.starts_with("--"))),
        })
        .collect()
}

/// Fails if flags belong to another program. The error names our flags with their values, or a key that our flag sets.
/// Any other flag that names a key by its path is ours.
///
/// # Errors
/// Says what each flag is called here.
pub fn check<'a>(flags: impl Iterator<Item = (&'a str, Option<&'a str>)>) -> Result<()> {
    let refused: Vec<Error> = flags
        .filter_map(|(flag, value)| {
            let name = flag.trim_start_matches('-').replace('-', "_");
            let known = NAMES.iter().find(|(theirs, _)| theirs.split(' ').any(|theirs| theirs == name));
            known.map(|(_, ours)| Error::config(flag, format!("is {} here", ours.with(value))))
        })
        .collect();
    if refused.is_empty() { Ok(()) } else { Err(Error::all(refused)) }
}

impl Ours {
    /// The counterpart of a flag with this `value`.
    pub(super) fn with(&self, value: Option<&str>) -> String {
        match self {
            As(ours) => with_value(ours, value),
            Switch(_) if is_off(value) => LEFT_OUT.to_string(),
            Switch(ours) => (*ours).to_string(),
            By(ours) => ours(value),
        }
    }
}

const LEFT_OUT: &str = "left out";

/// Whether a switch is turned off.
fn is_off(value: Option<&str>) -> bool {
    value.is_some_and(|value| ["false", "no", "off", "0", "none"].contains(&&*value.to_lowercase()))
}

/// Our flag, with `value` in its place.
fn with_value(ours: &str, value: Option<&str>) -> String {
    let Some((before, rest)) = ours.split_once('{') else { return ours.to_string() };
    let (example, after) = rest.split_once('}').unwrap_or((rest, ""));
    format!("{before}{}{after}", value.map_or(example.to_string(), shell_word)).trim_end().to_string()
}

/// The key with `word` if that is one of its words, in upper or lower case.
fn one_of<T: Words>(key: &str, word: Option<&str>) -> String {
    let known = T::WORDS.iter().find(|(known, _)| word.is_some_and(|word| known.eq_ignore_ascii_case(word)));
    match known {
        Some((known, _)) => format!("--{key}={known}"),
        None => format!("--{key}=TYPE, one of {},", T::firsts().collect::<Vec<_>>().join(", ")),
    }
}

/// The optimizers of `transformers` that compute the same as ours.
fn optimizer(word: Option<&str>) -> String {
    let adam = ["adamw_torch", "adamw_torch_fused", "adamw_hf"];
    one_of::<OptimizerType>(
        "optimizer.type",
        word.map(|word| if adam.contains(&word) { "AdamW" } else { word }),
    )
}

/// A number below 0 means that epochs count.
fn steps(value: Option<&str>) -> String {
    let is_none = value.is_some_and(|value| value.starts_with('-'));
    if is_none { LEFT_OUT.to_string() } else { with_value("--steps {}", value) }
}

/// A share, or a number of samples if it is 1 or more.
fn held_out(value: Option<&str>) -> String {
    let counts = value.and_then(|value| value.parse::<f64>().ok()).is_some_and(|value| value >= 1.0);
    let ours = if counts { "--train_dataset.eval_samples={}" } else { "--eval-fraction {}" };
    with_value(ours, value)
}

fn quantised(bits: Option<&str>) -> String {
    let base = match bits {
        Some("4") => "--base nf4",
        Some("8") => "--base int8",
        _ => "--base nf4, of 4 bits, or --base int8",
    };
    base.to_string()
}

/// Without this flag, those programs compute in float32.
fn half(value: Option<&str>) -> String {
    let element = if is_off(value) { "float32" } else { "bfloat16" };
    format!("--model.model_config.compute_dtype={element}")
}

fn packing(value: Option<&str>) -> String {
    if is_off(value) { "--packing off" } else { "--packing on" }.to_string()
}

fn trained(what: Option<&str>) -> String {
    let ours = match what {
        Some("full") => "--full",
        Some("lora") => "--lora RANK",
        Some("dora") => "--lora RANK --dora",
        _ => "--full, or --lora RANK",
    };
    ours.to_string()
}

fn kept(value: Option<&str>) -> String {
    format!("--keep_best={}", if is_off(value) { "False" } else { "True" })
}
