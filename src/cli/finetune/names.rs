//! What other programs call the flags of `finetune`: transformers, PEFT, TRL, unsloth, LLaMA-Factory and mlx-lm.

use crate::error::{Error, Result, shell_word};

/// Their names, with words joined by `_`, and ours. In braces is where their value goes, and what stands there without one.
pub(super) const NAMES: [(&str, &str); 34] = [
    ("num_train_epochs num_epochs", "--epochs {}"),
    ("max_steps iters num_steps", "--steps {}"),
    ("per_device_train_batch_size train_batch_size micro_batch_size", "--batch-size {}"),
    ("gradient_accumulation_steps grad_accumulation_steps accumulation_steps", "--accumulate {}"),
    ("lr", "--learning-rate {}"),
    ("r rank lora_r lora_rank", "--lora {}"),
    ("alpha", "--lora-alpha {}"),
    ("dropout", "--lora-dropout {}"),
    ("target_modules lora_target_modules lora_target lora_modules", "--targets {}"),
    ("max_seq_length max_seq_len model_max_length cutoff_len seq_length", "--max-length {}"),
    ("val_size test_size eval_split", "--eval-fraction {}"),
    ("eval_file eval_dataset eval_dataset_dir validation_file valid_file", "--eval {FILE}"),
    ("output_dir run_name save_path adapter_path", "--output {}"),
    ("resume_training resume_from_checkpoint resume_adapter_file", "--resume"),
    ("load_in_4bit quantization_bit", "--base nf4"),
    ("load_in_8bit", "--base int8"),
    ("neat_packing pack_sequences sample_packing", "--packing on"),
    ("random_seed", "--seed {}"),
    ("full_finetuning fine_tune_type finetuning_type", "--full, or --lora RANK"),
    ("model_name_or_path model_name", "the first argument"),
    ("dataset dataset_name train_file train_data dataset_path", "the second argument"),
    (
        "train_dataset_dir train_dataset.data_loader.dataset_dir train_dataset.data_loader.dataset_files \
         train_dataset.data_loader.data_files",
        "the second argument",
    ),
    ("warmup_ratio", "--lr_schedule.warmup_ratio={0.1}"),
    ("warmup_steps warmup", "--lr_schedule.warmup_steps={10}"),
    ("lr_scheduler_type", "--lr_schedule.type=linear"),
    ("weight_decay", "--optimizer.weight_decay={0.01}"),
    ("optim", "--optimizer.type=AdamW"),
    ("adam_beta1 adam_beta2", "--optimizer.betas=[0.9,0.999]"),
    ("max_grad_norm", "--runner_wrapper.use_clip_grad=True --runner_wrapper.max_grad_norm={1.0}"),
    ("bf16 fp16 torch_dtype dtype", "--model.model_config.compute_dtype=bfloat16"),
    ("eval_steps steps_per_eval", "--eval_step_interval={50}"),
    ("save_steps save_every", "--callbacks.0.save_checkpoint_steps={50}"),
    ("save_total_limit", "--callbacks.0.keep_checkpoint_max={2}"),
    ("load_best_model_at_end", "--keep_best=True"),
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

/// Fails if flags are those of another program, and names ours with their values, or a key that ours sets. Another that names a key by its
/// path is ours.
///
/// # Errors
/// What each flag is called here.
pub fn check<'a>(flags: impl Iterator<Item = (&'a str, Option<&'a str>)>) -> Result<()> {
    let refused: Vec<Error> = flags
        .filter_map(|(flag, value)| {
            let name = flag.trim_start_matches('-').replace('-', "_");
            let known = NAMES.iter().find(|(theirs, _)| theirs.split(' ').any(|theirs| theirs == name));
            let ours = known.map(|(_, ours)| with_value(ours, value));
            ours.map(|ours| Error::config(flag, format!("is {ours} here")))
        })
        .collect();
    if refused.is_empty() { Ok(()) } else { Err(Error::all(refused)) }
}

/// Our flag with `value` in its place.
pub(super) fn with_value(ours: &str, value: Option<&str>) -> String {
    let Some((before, rest)) = ours.split_once('{') else { return ours.to_string() };
    let (example, after) = rest.split_once('}').unwrap_or((rest, ""));
    format!("{before}{}{after}", value.map_or(example.to_string(), shell_word)).trim_end().to_string()
}
