//! The configuration that `finetune` makes for a model and its data: the keys that follow from both and from the flags.

use super::choices::{
    SAMPLES_PER_STEP, epochs, held_out, interval, most_lengths, packs, rows_per_step, tenth,
};
use super::division;
use super::keys::Keys;
use super::{Arguments, Packing, beside};
use crate::cli::adapters::{COMPUTE_DTYPE, pet_config};
use crate::cli::trained::AdapterArguments;
use crate::data::{ChatForm, FileKind, Form, SampleLengths, plural};
use crate::error::{Error, Result};
use crate::hugging_face::refuse_name_of_hub;
use crate::model::config::BalanceLosses;
use crate::model::groups::compile;
use crate::model::{ALL_LINEAR, adaptable, adaptable_modules, adaptable_parameters};
use crate::settings::{Override, RunConfig, RunPlan};
use crate::store::model_path::StandaloneAdapter;
use crate::train::pretrained::{check_tokenizer, check_weights};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

/// The run ends after this many evaluations without a better one, out of the ten that it has.
const PATIENCE: u64 = 4;
/// The section of adapters.
const PET: &str = "model.model_config.pet_config";
/// The rank of adapters.
const RANK: u32 = 16;
/// The word for all linear layers that a model adapts by default.
const ALL: &str = "all";
/// The key that says how samples share rows.
const PACKING_KEY: &str = "data_loader.packing";
/// MindFormers' handler that packs, which is another way to write this key.
const PACKING_HANDLER: [&str; 2] = ["train_dataset.data_loader.handler", "PackingHandler"];
/// Number of tokens in a window of text, if the model can read as many.
const LONGEST_TEXT: usize = 2048;

/// A file of data.
struct Data {
    kind: FileKind,
    /// The lengths in tokens of its samples, or of the whole text.
    lengths: SampleLengths,
    loader: Value,
}

impl Data {
    fn read(file: &Path, chat: &ChatForm, plan: &RunPlan) -> Result<Self> {
        let kind = FileKind::of(file, chat, false)?;
        let loader = loader(&kind, file)?;
        let (lengths, notes) = kind.lengths(file, &plan.codec()?)?;
        // The run itself prints the notes on other kinds.
        if kind == FileKind::Answers(Form::Columns) {
            notes.lines().iter().for_each(|line| eprintln!("notice: {}: {line}", file.display()));
        }
        Ok(Self { lengths, kind, loader })
    }

    /// Number of samples, or of windows of `length` tokens of a text.
    fn samples(&self, length: usize) -> usize {
        match self.kind {
            FileKind::Text => self.tokens().saturating_sub(1) / length.max(1),
            _ => self.lengths.samples() as usize,
        }
    }

    /// Whether the samples should share rows of `length` tokens, if the user does not say so: that must save enough
    /// rows, and a row must not have more samples than a step takes.
    fn is_worth_packing(&self, length: usize) -> bool {
        self.kind != FileKind::Text && packs(self.lengths.samples(), self.lengths.packed_rows(length))
    }

    fn tokens(&self) -> usize {
        self.lengths.tokens() as usize
    }
}

impl Arguments {
    /// The configuration: first the keys that follow from the model and the data, then the length of the run, then how
    /// its steps are divided.
    pub(super) fn configuration(&self, written: &[Override]) -> Result<String> {
        let chat = ChatForm { template: self.chat_template.clone(), raw: self.raw, ..ChatForm::default() };
        refuse_name_of_hub(&self.model)?;
        if !self.model.join("config.json").is_file() {
            let message = match self.model.exists() {
                true => "has no config.json; name a folder of Hugging Face's, with weights and a tokenizer",
                false => {
                    "no such folder; name one of Hugging Face's, with config.json, weights and a tokenizer"
                }
            };
            return Err(Error::file(&self.model, message));
        }
        let plan = model_of(&self.model)?;
        check_weights(&plan)?;
        check_tokenizer(&plan, None)?;
        self.check_targets(&plan)?;
        let data = Data::read(&self.data, &chat, &plan)?;
        let eval = self.eval.as_deref().map(|file| Data::read(file, &chat, &plan)).transpose()?;
        let mut keys = Keys::new(written.to_vec());
        self.check_pairs(&keys, &self.data, &data)?;
        eval.iter().zip(&self.eval).try_for_each(|(eval, file)| self.check_pairs(&keys, file, eval))?;
        self.run_keys(&mut keys, &plan);
        let begun = self.begun.as_deref().map(|folder| {
            let adapter = StandaloneAdapter::open(folder)?;
            adapter.check(&plan.model)?;
            adapter.training_keys()
        });
        let begun = begun.transpose()?;
        let length = self.model_keys(&mut keys, &plan, (&data, eval.as_ref()), begun.as_deref());
        let held_out = self.data_keys(&mut keys, &data, eval.as_ref(), length);
        if held_out == 0 && self.eval_fraction != Some(0.0) && !keys.writes_within("train_dataset.eval_") {
            eprintln!(
                "notice: of {} none is held out, so nothing is evaluated and no checkpoint is the best; evaluate others by --eval FILE, \
                 or a share of these by --eval-fraction",
                plural(data.samples(length) as u64, "sample")
            );
        }
        self.packing_keys(&mut keys, &data, eval.as_ref(), length);
        let file = beside(&self.output());
        self.rate_keys(&mut keys);
        // The number of samples to learn from is known only after they are read. They are read by a configuration that
        // has all keys, because some keys are valid only beside others.
        let mut probe = keys.clone();
        self.length_keys(&mut probe, 1, held_out);
        probe.add("runner_config.batch_size", 1);
        let probe = RunConfig::parse(&probe.yaml(), &file, &[])?.plan;
        let is_packed = probe.settings.train_dataset.is_packed();
        if is_packed && self.packing == Some(Packing::Off) {
            let [key, handler] = PACKING_HANDLER;
            return Err(Error::config(
                "--packing",
                format!("is off, and the {handler} of --{key} packs; keep one of them"),
            ));
        }
        let learned = probe.divided(1, 1, &[]).load_data()?.train;
        let (rows, samples) = (learned.rows_per_epoch(), learned.samples_per_epoch());
        let step = self.step(&keys, rows, is_packed.then_some(samples));
        let steps = rows / step as u64;
        self.length_keys(&mut keys, steps, held_out);
        division::divide(self, &mut keys, &file, step, steps)?;
        if is_packed {
            let of_step = (samples * step as u64).div_ceil(rows.max(1));
            let [all, taken] = [samples, of_step].map(|count| plural(count, "sample"));
            let [rows, of_rows] = [rows, step as u64].map(|count| plural(count, "row"));
            let share = if samples == 1 { "shares" } else { "share" };
            // The advice `--packing off` would contradict keys or flags that the user has written.
            let is_own = self.packing.is_none() && !self.writes_packing(&keys);
            let way = if is_own { "; --packing off keeps each in its own" } else { "" };
            eprintln!(
                "notice: {all} {share} {rows}, in which none sees another, and a step takes {of_rows}, about {taken}{way}"
            );
        }
        Ok(keys.yaml())
    }

    /// Whether the run learns from pairs of answers.
    fn learns_pairs(&self, keys: &Keys) -> bool {
        self.preference.is_some() || keys.writes_within("preference.")
    }

    /// Refuses pairs of answers without a loss for them, and such a loss without pairs.
    fn check_pairs(&self, keys: &Keys, file: &Path, data: &Data) -> Result<()> {
        let has_pairs = matches!(data.kind, FileKind::Answers(Form::Preference(_)));
        match (has_pairs, self.learns_pairs(keys)) {
            (true, false) => Err(Error::file(
                file,
                "has `chosen` and `rejected`: say how pairs of answers are learned, for example by --preference dpo; or write the answers that are to be learned as `messages`, or as `prompt` and `completion`",
            )),
            (false, true) => Err(Error::file(
                file,
                "has no pairs of answers, which --preference learns from: name records with `chosen` and `rejected`, or leave it out",
            )),
            _ => Ok(()),
        }
    }

    /// Refuses targets that match no linear layer of the model under the names of its files, nor its experts. A target
    /// is a whole name, the end of a name, or a regular expression of one.
    fn check_targets(&self, plan: &RunPlan) -> Result<()> {
        let [_, targets] = self.split_targets(plan);
        let modules = adaptable_modules(&plan.model);
        let is_word = |target: &String| [ALL, ALL_LINEAR].contains(&target.as_str());
        let wrong = |target: &&String| !is_word(target) && !is_one_of(target, &modules);
        let Some(target) = targets.iter().find(wrong) else { return Ok(()) };
        let names = adaptable(&plan.model).into_iter().collect::<Vec<_>>().join(", ");
        let has_experts = !adaptable_parameters(&plan.model).is_empty();
        let experts = if has_experts { ", experts.gate_up_proj, experts.down_proj" } else { "" };
        let message = format!("`{target}` is no linear layer of this model; it has {names}{experts}, or all");
        Err(Error::config("--targets", message))
    }

    /// The targets that name experts, and the others.
    fn split_targets(&self, plan: &RunPlan) -> [Vec<String>; 2] {
        let parameters = adaptable_parameters(&plan.model);
        let is_of_experts = |target: &&String| target.contains("experts") && is_one_of(target, &parameters);
        let (experts, others) = self.targets.iter().partition::<Vec<&String>, _>(is_of_experts);
        [experts, others].map(|targets| targets.into_iter().cloned().collect())
    }

    /// Whether the user's keys say whether samples share rows.
    fn writes_packing(&self, keys: &Keys) -> bool {
        let [key, handler] = PACKING_HANDLER;
        keys.written(&format!("train_dataset.{PACKING_KEY}")).is_some() || keys.has_word(key, handler)
    }

    /// Adds the keys that let samples share rows.
    fn packing_keys(&self, keys: &mut Keys, data: &Data, eval: Option<&Data>, length: usize) {
        if self.packing == Some(Packing::On) && data.kind == FileKind::Text {
            eprintln!("notice: --packing on changes nothing: the rows of a text are full");
        }
        let of_train = match self.packing {
            Some(packing) => packing == Packing::On && data.kind != FileKind::Text,
            None => !self.writes_packing(keys) && data.is_worth_packing(length),
        };
        if of_train && !keys.has_word(PACKING_HANDLER[0], PACKING_HANDLER[1]) {
            keys.add(&format!("train_dataset.{PACKING_KEY}"), "best_fit");
        }
        if of_train && eval.is_some_and(|eval| eval.is_worth_packing(length)) {
            keys.add(&format!("eval_dataset.{PACKING_KEY}"), "best_fit");
        }
    }

    /// Number of rows in a step, at most as many as there are to learn from. `packed` is the number of samples in them,
    /// if they share rows.
    fn step(&self, keys: &Keys, rows: u64, packed: Option<u64>) -> usize {
        let paths = [division::BATCH, division::ACCUMULATION];
        if paths.iter().any(|path| keys.written(path).is_some()) {
            let [batch, parts] = paths.map(|path| keys.number::<usize>(path).unwrap_or(1));
            return batch.saturating_mul(parts).max(1);
        }
        let there = usize::try_from(rows).unwrap_or(usize::MAX).max(1);
        let samples = packed.map(|samples| usize::try_from(samples).unwrap_or(usize::MAX));
        let usual = samples.map_or(SAMPLES_PER_STEP, |samples| rows_per_step(samples, there));
        let batch = self.batch_size.map_or(usual, usize::from);
        let asked = batch * self.accumulate.map_or(1, usize::from);
        let step = asked.min(there);
        if there < asked {
            let all = plural(there as u64, if packed.is_some() { "row" } else { "sample" });
            eprintln!(
                "notice: a step takes {all} in place of {asked}, since there are no more to learn from"
            );
        }
        step
    }

    /// Adds the keys of the run itself, and of the device.
    fn run_keys(&self, keys: &mut Keys, plan: &RunPlan) {
        let output = self.output();
        let folder = output.parent().filter(|parent| !parent.as_os_str().is_empty());
        keys.add_json("output_dir", &path_of(folder.unwrap_or(Path::new("."))));
        keys.add_json("run_name", &json!(output.file_name().unwrap_or_default().to_string_lossy()));
        keys.add_json("load_checkpoint", &path_of(&self.model));
        self.seed.iter().for_each(|seed| keys.add("seed", seed));
        self.preference.iter().for_each(|kind| keys.add("preference.type", kind));
        self.beta.iter().for_each(|beta| keys.add("preference.beta", beta));
        let is_kind = |kind: &str| {
            self.preference.as_deref() == Some(kind) || keys.written("preference.type") == Some(kind)
        };
        let compares = ["dpo", "ipo"].into_iter().any(is_kind);
        if self.begun.is_some() && compares {
            keys.add("preference.reference", "precompute"); // with the adapter that the run starts from
        }
        // Balance losses are means over micro-batches, so the key is added only without them.
        let losses = plan.model.mixture.as_ref().map(|mixture| mixture.losses).unwrap_or_default();
        if losses == BalanceLosses::default() {
            keys.add("calculate_per_token_loss", "True");
        }
        let AdapterArguments { device_name, tier } = &self.adapter;
        for (key, value) in [("device_name", device_name), ("tier", tier)] {
            value.iter().for_each(|value| keys.add_json(&format!("context.{key}"), &json!(value)));
        }
    }

    /// Adds the keys of the model and its adapters. Returns the number of tokens in a row.
    fn model_keys(
        &self,
        keys: &mut Keys,
        plan: &RunPlan,
        (data, eval): (&Data, Option<&Data>),
        begun: Option<&[(&'static str, Value)]>,
    ) -> usize {
        let lengths = eval.map_or_else(|| data.lengths.clone(), |eval| data.lengths.and(&eval.lengths));
        // Rows are no longer than the longest sample needs, but packed rows are as long as was asked for.
        let whole = lengths.longest().map_or(1, |longest| longest.next_multiple_of(16));
        let longest = match data.kind {
            FileKind::Text => LONGEST_TEXT,
            _ => most_lengths(&lengths),
        };
        let is_exact = data.kind == FileKind::Text || self.packing == Some(Packing::On);
        let length = match self.max_length.map(|length| length as usize) {
            None => longest.min(plan.model.seq_length),
            Some(length) if is_exact => length,
            Some(length) => length.min(whole),
        };
        keys.add("model.model_config.seq_length", length);
        keys.add(COMPUTE_DTYPE.0, COMPUTE_DTYPE.1);
        if let Some(begun) = begun {
            keys.add_json(&format!("{PET}.pet_type"), &json!("lora"));
            keys.add_json(&format!("{PET}.lora_dropout"), &json!(self.lora_dropout.unwrap_or(0.0)));
            self.base.iter().for_each(|base| keys.add_json(&format!("{PET}.base_dtype"), &json!(base)));
            begun.iter().for_each(|(key, value)| keys.add_json(&format!("{PET}.{key}"), value));
            self.loraplus.iter().for_each(|ratio| keys.add(&format!("{PET}.loraplus_lr_ratio"), ratio));
        } else if !self.full {
            let written = keys.number::<u32>(&format!("{PET}.lora_rank"));
            let rank = written.or(self.lora.map(u32::from)).unwrap_or(RANK);
            let [experts, targets] = self.split_targets(plan);
            let all = match &targets[..] {
                [] => experts.is_empty(),
                [one] => one == ALL,
                _ => false,
            };
            let targets = if all { adaptable(&plan.model).into_iter().collect() } else { targets };
            let dropout = self.lora_dropout.unwrap_or(0.0);
            for (key, value) in
                pet_config(rank, self.lora_alpha, dropout, [&targets, &experts], self.base.as_deref())
            {
                keys.add_json(&format!("{PET}.{key}"), &value);
            }
            for (key, is_on) in [("use_rslora", self.rslora), ("use_dora", self.dora)] {
                is_on.then(|| keys.add_json(&format!("{PET}.{key}"), &json!(true)));
            }
            self.loraplus.iter().for_each(|ratio| keys.add(&format!("{PET}.loraplus_lr_ratio"), ratio));
            if !self.save_modules.is_empty() {
                keys.add_json(&format!("{PET}.modules_to_save"), &json!(self.save_modules));
            }
        }
        keys.number("model.model_config.seq_length").unwrap_or(length)
    }

    /// Adds the keys of the data, in rows of `length` tokens. Returns the number of samples or windows that an
    /// evaluation takes.
    fn data_keys(&self, keys: &mut Keys, data: &Data, eval: Option<&Data>, length: usize) -> usize {
        let samples = data.samples(length);
        let held_out = match self.eval_fraction {
            Some(share) => (share * samples as f64).round() as usize,
            None if eval.is_some() => 0,
            None => held_out(samples),
        };
        if held_out > 0 {
            match data.kind {
                FileKind::Text => {
                    // The first token has nothing before it, so one more token is held out.
                    let share = (held_out * length + 1) as f64 / data.tokens() as f64;
                    keys.add("train_dataset.eval_fraction", format!("{:.5}", (share * 1e5).ceil() / 1e5));
                }
                _ => keys.add("train_dataset.eval_samples", held_out),
            }
        }
        let sections = [("train_dataset", Some(data)), ("eval_dataset", eval)];
        for (section, data) in sections.iter().filter_map(|(section, data)| Some((section, (*data)?))) {
            let mut loader: Vec<_> = data.loader.as_object().into_iter().flatten().collect();
            loader.sort_by_key(|(key, _)| *key != "type");
            for (key, value) in loader {
                keys.add_json(&format!("{section}.data_loader.{key}"), value);
            }
        }
        let written = match data.kind {
            FileKind::Text => {
                let share: Option<f64> = keys.number("train_dataset.eval_fraction");
                share.map(|share| (share * samples as f64).round() as usize)
            }
            _ => keys.number("train_dataset.eval_samples"),
        };
        eval.map_or(written.unwrap_or(held_out), |eval| eval.samples(length))
    }

    /// Adds the keys of the optimizer and its rate.
    fn rate_keys(&self, keys: &mut Keys) {
        let written = keys.number("lr_schedule.learning_rate").filter(|rate| *rate > 0.0);
        // Pairs of answers move a model further than answers do.
        let usual = match (self.full, self.learns_pairs(keys)) {
            (true, false) => 1e-5,
            (false, false) => 2e-4,
            (true, true) => 1e-6,
            (false, true) => 2e-5,
        };
        let rate = written.or(self.learning_rate).unwrap_or(usual);
        keys.add("runner_wrapper.use_clip_grad", "True");
        keys.add("runner_wrapper.max_grad_norm", "1.0");
        keys.add("optimizer.type", "AdamW");
        keys.add("optimizer.weight_decay", "0.0");
        keys.add("lr_schedule.type", "CosineWithWarmUpLR");
        keys.add("lr_schedule.learning_rate", format!("{rate:e}"));
        keys.add("lr_schedule.lr_end", format!("{:e}", tenth(rate)));
        // A ratio would take precedence over the steps or epochs that are written.
        if keys.written("lr_schedule.warmup_steps").or(keys.written("lr_schedule.warmup_epochs")).is_none() {
            keys.add("lr_schedule.warmup_ratio", 0.1);
        }
        self.steps.iter().for_each(|all| keys.add("lr_schedule.total_steps", all));
    }

    /// Adds the keys for the length of the run, and for when it evaluates and saves, for epochs of `steps` steps.
    fn length_keys(&self, keys: &mut Keys, steps: u64, evaluated: usize) {
        let steps = steps.max(1);
        let epochs = match self.steps {
            Some(all) => all.div_ceil(steps),
            None => self.epochs.unwrap_or_else(|| epochs(steps)),
        };
        keys.add("runner_config.epochs", epochs);
        self.steps.iter().for_each(|all| keys.add("runner_config.stop_step", all));
        let epochs = keys.number("runner_config.epochs").unwrap_or(epochs);
        let stop = keys.number("runner_config.stop_step").or(self.steps).filter(|stop| *stop > 0);
        let all = epochs.saturating_mul(steps).min(stop.unwrap_or(u64::MAX));
        if evaluated > 0 {
            keys.add("do_eval", "True");
            keys.add("eval_on_start", "True");
            keys.add("eval_step_interval", interval(all));
            keys.add("eval_batches", evaluated);
            keys.add("keep_best", "True");
            keys.add("early_stopping_patience", PATIENCE);
        }
        keys.add("callbacks.0.type", "CheckpointMonitor");
        keys.add("callbacks.0.save_checkpoint_steps", interval(all));
        keys.add("callbacks.0.keep_checkpoint_max", 1);
    }
}

/// Whether `target` is one of `names`, the end of one, or a regular expression of either.
fn is_one_of(target: &str, names: &BTreeSet<String>) -> bool {
    let pattern = compile(&format!("(^|\\.)(?:{target})$"));
    pattern.is_ok_and(|pattern| names.iter().any(|name| pattern.is_match(name.as_bytes())))
}

/// A path as a value, whatever characters it contains.
fn path_of(path: &Path) -> Value {
    json!(path.display().to_string())
}

fn model_of(folder: &Path) -> Result<RunPlan> {
    let RunConfig { plan, data_faults, .. } = RunConfig::of_model_folder(folder, &[], None)?;
    if data_faults.is_empty() { Ok(plan) } else { Err(Error::all(data_faults)) }
}

/// The `data_loader` that reads the data.
fn loader(kind: &FileKind, data: &Path) -> Result<Value> {
    let files = json!([data.display().to_string()]);
    Ok(match kind {
        FileKind::Text => json!({"type": "TextDataLoader", "dataset_files": files}),
        FileKind::Texts | FileKind::Answers(Form::Columns) => {
            json!({"type": "HFDataLoader", "data_files": files})
        }
        FileKind::Answers(Form::Chat(form) | Form::Preference(form)) => {
            let mut loader = json!({"type": "SFTDataLoader", "dataset_files": files});
            if let Some(template) = &form.template {
                loader["chat_template"] = json!(template.display().to_string());
            }
            if form.raw {
                loader["raw"] = json!(true);
            }
            loader
        }
        FileKind::Answers(Form::Alpaca | Form::Prompts(_)) => {
            unreachable!("only loaders of MindFormers make these of records")
        }
        FileKind::Choices(_) => {
            return Err(Error::file(data, "holds questions with answers to choose from, which `eval` takes"));
        }
    })
}
