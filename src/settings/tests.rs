//! Checks that hold for every row of every section. `tests/without_adapter/settings` tests whole files.

use super::*;
use crate::error::Result;
use crate::settings::dialect::tables;
use crate::settings::engine::{Handling, Node, ResumeImpact, RowText, ValueKind, join, to_json};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::Path;
use std::sync::LazyLock;

const BASE: &str = include_str!("../../tests/without_adapter/settings/base.yaml");

/// Overrides of the base that make some section or type of section present.
const BASES: [&[&str]; 48] = [
    &[],
    &[
        "--do_eval",
        "--train_dataset.eval_fraction=0.1",
        "--sample={tokens: 3}",
        "--metric={type: PerplexityMetric}",
    ],
    &["--runner_wrapper={use_clip_grad: True}"],
    &["--monitor_config={monitor_on: True, local_norm_format: log}"],
    &["--runner_wrapper={scale_sense: {type: FixedLossScaleUpdateCell}}"],
    &["--runner_wrapper={scale_sense: {type: DynamicLossScaleUpdateCell}}"],
    &["--runner_wrapper={scale_sense: {type: AdaptiveLossScaleUpdateCell}}"],
    &["--model.model_config.type=GPT2Config"],
    &[
        "--model.model_config.type=DeepseekV3Config",
        "--model.model_config.qk_nope_head_dim=8",
        "--model.model_config.qk_rope_head_dim=4",
    ],
    &["--model.model_config.type=ChatGLM2Config", "--model.model_config.intermediate_size=64"],
    &["--model.model_config.type=TelechatConfig"],
    &["--model.model_config.type=Baichuan2_13BConfig"],
    &["--model.model_config.type=BloomConfig"],
    &["--model.model_config.type=WizardCoderConfig"],
    &["--model.model_config.type=PanguAlphaConfig"],
    &["--model.model_config.type=OPTConfig"],
    &["--model.model_config.compute_dtype=bfloat16"],
    &[
        "--load_checkpoint=./model",
        "--model.model_config.pet_config={pet_type: lora, target_modules: .*wq|.*wv}",
    ],
    &["--model.model_config.rope_scaling={rope_type: linear, factor: 4}"],
    &["--model.model_config.rope_scaling={rope_type: proportional, partial_rotary_factor: 0.5}"],
    &["--model.model_config.rope_scaling={rope_type: yarn, factor: 4, original_max_position_embeddings: 8}"],
    &[
        "--model.model_config.rope_scaling={rope_type: llama3, factor: 4, original_max_position_embeddings: 8, \
        low_freq_factor: 1, high_freq_factor: 4}",
    ],
    &[
        "--model.model_config.rope_scaling={rope_type: dynamic, factor: 4, original_max_position_embeddings: 8}",
    ],
    &["--model.model_config.rope_scaling={rope_type: longrope, original_max_position_embeddings: 8, \
        short_factor: [1, 1, 1, 1, 1, 1, 1, 2], long_factor: [2, 2, 2, 2, 2, 2, 2, 4]}"],
    &["--lr_schedule={type: cosine}", "--optimizer={learning_rate: 0.01}"],
    &["--lr_schedule={type: LearningRateWiseLayer, lr_scale: 0.25, base_lr: {learning_rate: 1e-3}}"],
    &["--lr_schedule={type: polynomial, learning_rate: 1e-3}"],
    &["--lr_schedule={type: ConstantWithCoolDownLR, learning_rate: 1e-3}"],
    &["--lr_schedule={type: WarmUpStableDecayLR, learning_rate: 1e-3, decay_start_steps: 5}"],
    &["--lr_schedule={type: WarmUpStableDecayLR, learning_rate: 1e-3, decay_start_ratio: 0.25}"],
    &["--lr_schedule={type: cosine_annealing, base_lr: 1e-3, t_max: 7}"],
    &["--lr_schedule={type: cosine_annealing_warm_restarts, base_lr: 1e-3, t_0: 7}"],
    &[
        "--grouped_lr_schedule={default: {learning_rate: 1e-3}, grouped: [{learning_rate: 2e-3, params: [norm]}]}",
    ],
    &[
        "--train_dataset={data_loader: {type: TextDataLoader, dataset_files: a}, tokenizer: {tokenizer_file: t.json}}",
    ],
    &["--train_dataset={data_loader: {type: TextDataLoader, data_path: [0.5, a, 0.5, b]}}"],
    &["--train_dataset={data_loader: {type: JsonlDataLoader, dataset_files: a}}"],
    &["--train_dataset={data_loader: {type: TokenDataLoader, dataset_files: a}}"],
    &["--train_dataset={data_loader: {type: MindDataset, dataset_files: a}}"],
    &["--train_dataset={data_loader: {type: BlendedMegatronDatasetDataLoader, config: {data_path: a}}}"],
    &["--train_dataset={data_loader: {type: ADGenDataLoader, dataset_dir: a.json, version: 3}}"],
    &["--train_dataset={data_loader: {type: HFDataLoader, path: json, data_files: a.json}}"],
    &["--train_dataset={data_loader: {type: SFTDataLoader, dataset_files: a.json}}"],
    &[
        "--train_dataset={data_loader: {type: SFTDataLoader, dataset_files: a.json}}",
        "--load_checkpoint=./model",
        "--model.model_config.pet_config={pet_type: lora, target_modules: .*wq|.*wv}",
        "--preference={type: dpo}",
    ],
    &[
        "--train_dataset={data_loader: {type: SFTDataLoader, dataset_files: a.json}}",
        "--preference={type: simpo}",
    ],
    &["--moe_config={expert_num: 8, num_experts_chosen: 2}"],
    &[
        "--moe_config={expert_num: 8, num_experts_chosen: 2}",
        "--load_checkpoint=./model",
        "--model.model_config.pet_config={pet_type: lora, lora_dropout: 0, target_modules: .*wq}",
    ],
    &[
        "--moe_config={expert_num: 8, num_experts_chosen: 2, use_gmm: True, moe_intermediate_size: 8}",
        "--model.model_config.norm_placement=both",
    ],
    &[
        "--moe_config={expert_num: 8, num_experts_chosen: 2, enable_cold_hot_expert: True, hot_expert_num: 1, \
         save_token_distribution: True}",
        "--callbacks=[{type: MFLossMonitor}, {type: CheckpointMonitor}, {type: ColdHotExpertMonitor}, \
         {type: SummaryMonitor}, {type: TopkBiasBalanceCallback}, {type: MoEDropRateCallback, expert_num: 8, \
         capacity_factor: 1.1, num_layers: 2, mtp_depth: 0}, {type: EvalCallBack}, {type: TrainCallBack}]",
        "--train_dataset.eval_fraction=0.1",
    ],
];

/// All bases: those above, and one for each optimizer.
fn bases() -> Vec<Vec<String>> {
    let optimizers = OptimizerType::sections().map(|section| vec![format!("--optimizer={{{section}}}")]);
    BASES.iter().map(|base| base.iter().map(|flag| flag.to_string()).collect()).chain(optimizers).collect()
}

/// Checkpoints decide nothing, except that hot experts are selected again at a step that writes one. The second key
/// only works with 0 at the first.
const HOT_STEPS: [&str; 2] = ["callbacks.1.save_checkpoint_steps", "callbacks.1.save_checkpoint_seconds"];

/// The finding that a row that decides nothing must never have.
const CHANGES: &str = "changes what the run computes";

/// Positions of the callbacks in the last base.
const CALLBACKS: [&str; 8] = [
    "MFLossMonitor",
    "CheckpointMonitor",
    "ColdHotExpertMonitor",
    "SummaryMonitor",
    "TopkBiasBalanceCallback",
    "MoEDropRateCallback",
    "EvalCallBack",
    "TrainCallBack",
];

/// Keys that may only repeat other keys, have a single value, or name a file that must be there.
const REPEATS: [&str; 9] = [
    "base_config",
    "pretrained_model_dir",
    "model.model_config.kv_channels",
    "model.model_config.pet_config.pet_type",
    "model.model_config.multi_latent_attention",
    "moe_config.use_moe",
    "moe_config.moe_router_pre_softmax",
    "train_dataset.data_loader.config.seq_length",
    "train_dataset.tokenizer.tokenizer_file",
];

/// Keys whose readers have messages of their own; the generated tests only check that these are one line.
const OWN_MESSAGES: [&str; 13] = [
    "runner_config.gradient_accumulation_steps",
    "runner_wrapper.scale_sense",
    "model.model_config.type",
    "model.model_config.hidden_act",
    "model.model_config.scaling_factor",
    "model.model_config.window_size",
    "model.model_config.rope_scaling.rope_type",
    "model.model_config.pet_config.pet_type",
    "train_dataset.tokenizer",
    "train_dataset.data_loader.type",
    "train_dataset.data_loader.data_path",
    "train_dataset.data_loader.config.data_path",
    "train_dataset.data_loader.config.split",
];

/// Switches that may be on without being in the file: properties that a class of models always has, other ways to say
/// what another key says, and what is so on one device.
const SO_WITHOUT: [&str; 15] = [
    "as_single",
    "use_parallel",
    "vocab_emb_dp",
    "multi_latent_attention",
    "attn_proj_has_bias",
    "add_mlp_fc1_bias_linear",
    "add_mlp_fc2_bias_linear",
    "multi_query_attention",
    "untie_embeddings_and_output_weights",
    "has_bias",
    "add_bias_linear",
    "use_sliding_window",
    "use_moe",
    "moe_router_pre_softmax",
    "return_extra_loss",
];

/// Rows, each with the path by which a flag reaches its section.
fn rows() -> impl Iterator<Item = (String, &'static RowText)> {
    tables().iter().flat_map(|(id, table)| table.rows.iter().map(move |row| (flag_path(id.section), row)))
}

/// The path by which a flag reaches the section that is documented at `section`.
fn flag_path(section: &str) -> String {
    let section = section.replace("grouped_lr_schedule.grouped", "grouped_lr_schedule.grouped.0");
    let callbacks = CALLBACKS.iter().enumerate();
    callbacks.fold(section, |path, (index, name)| path.replace(name, &index.to_string()))
}

fn flag(path: &str, key: &str, value: &str) -> String {
    if path.is_empty() { format!("--{key}={value}") } else { format!("--{path}.{key}={value}") }
}

/// A value that is not the default, and the flags of others that it needs.
fn another(path: &str, row: &RowText) -> Option<(String, Vec<String>)> {
    if let Some((first, others)) = row.example.split_once('\n') {
        let others = others.lines().filter_map(|line| line.split_once(": "));
        return Some((first.to_string(), others.map(|(key, value)| flag(path, key, value)).collect()));
    }
    if !row.example.is_empty() {
        return Some((row.example.to_string(), Vec::new()));
    }
    let default = row.default.as_ref().map(to_json);
    let value = match (&row.kind, default) {
        (ValueKind::Switch, default) => {
            if default == Some(true.into()) { "False" } else { "True" }.to_string()
        }
        (ValueKind::Whole | ValueKind::Integer, default) => {
            (default.and_then(|number| number.as_i64()).unwrap_or(511) + 1).to_string()
        }
        (ValueKind::Number, default) => {
            let number = default.and_then(|number| number.as_f64()).unwrap_or(0.5);
            if number == 0.0 { "0.25".to_string() } else { (number / 2.0).to_string() }
        }
        (ValueKind::Words(words), default) => {
            let other = words.iter().rev().find(|word| default.as_ref().is_none_or(|first| first != *word));
            (*other?).to_string()
        }
        (ValueKind::Text, _) => "other".to_string(),
        _ => return None,
    };
    Some((value, Vec::new()))
}

type Resolved = Result<(RunPlan, Vec<String>)>;

/// What `flags` over those of a base are read as. The bases themselves are read once.
fn with(base: &[String], flags: &[String]) -> Resolved {
    type Plans = HashMap<Vec<String>, (RunPlan, Vec<String>)>;
    static ACCEPTED: LazyLock<Plans> = LazyLock::new(|| {
        let resolved = |base: &Vec<String>| resolve(BASE, base.iter().map(String::as_str).collect()).ok();
        bases().into_iter().filter_map(|base| resolved(&base).map(|resolved| (base, resolved))).collect()
    });
    if flags.is_empty()
        && let Some(known) = ACCEPTED.get(base)
    {
        return Ok(known.clone());
    }
    resolve(BASE, base.iter().chain(flags).map(String::as_str).collect())
}

fn resolve(text: &str, flags: Vec<&str>) -> Resolved {
    let config = RunConfig::parse(text, Path::new("x.yaml"), &Override::parse_all(flags)?)?;
    Ok((config.plan, config.notices))
}

/// All bases, those first that have most of `words`: what is read in few bases only is found early.
fn bases_with(words: &[&str]) -> Vec<Vec<String>> {
    let mut bases = bases();
    bases.sort_by_key(|base| {
        let flags = base.join(" ");
        Reverse(words.iter().filter(|word| flags.contains(*word)).count())
    });
    bases
}

/// The bases in which row number `number` is tried where it has to hold in each: all with `GRISTMILL_LONG`, else the
/// first of [`bases_with`] its words, and of the others every fifth in turns.
fn bases_of(number: usize, words: &[&str]) -> impl Iterator<Item = Vec<String>> + use<> {
    let is_long = std::env::var_os("GRISTMILL_LONG").is_some();
    let is_tried = move |place: usize| is_long || place < 3 || (place + number).is_multiple_of(5);
    bases_with(words).into_iter().enumerate().filter(move |(place, _)| is_tried(*place)).map(|(_, base)| base)
}

/// Words that bases have in which a row at `path` is read.
fn words_of<'a>(path: &'a str, row: &'a RowText) -> Vec<&'a str> {
    path.split('.').chain([row.key]).chain(row.types.iter().copied()).collect()
}

/// The finding of `check` in the last base, if there is a finding in every base; `words` are of a base where none is
/// expected.
fn all_fail(words: &[&str], check: impl Fn(&[String]) -> std::result::Result<(), String>) -> Option<String> {
    let mut finding = None;
    for base in bases_with(words) {
        finding = Some(check(&base).err()?);
    }
    finding
}

#[test]
fn every_base_is_accepted() {
    for base in bases() {
        with(&base, &[]).unwrap_or_else(|error| panic!("{base:?}: {error}"));
    }
}

#[test]
fn an_override_keeps_every_character_of_a_text() {
    for text in ["run #2", "a: b", "null", "it's \"one\"", "[a", "1.0"] {
        let one = Override::of("output_dir", &text.into());
        let config = RunConfig::parse(BASE, Path::new("x.yaml"), &[one]).unwrap();
        assert_eq!(config.plan.settings.run.output_dir, Path::new(text));
    }
}

#[test]
fn another_value_is_read_written_and_counts_for_what_the_row_decides() {
    // The longest of all unit tests, so on two threads.
    let rows: Vec<_> = rows().collect();
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let halves = rows.chunks(rows.len().div_ceil(2)).map(|half| scope.spawn(|| untrue(half)));
        let halves: Vec<_> = halves.collect();
        halves.into_iter().flat_map(|half| half.join().expect("no panic")).collect()
    });
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The findings about rows whose key has another value.
fn untrue(rows: &[(String, &RowText)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (number, (path, row)) in rows.iter().enumerate() {
        let name = flag(path, row.key, "").trim_start_matches("--").trim_end_matches('=').to_string();
        let is_claim = ["callbacks.4", "callbacks.5"].contains(&path.as_str());
        if REPEATS.contains(&name.as_str()) || is_claim {
            continue;
        }
        let Some((value, others)) = another(path, row) else {
            wrong.push(format!("{name}: its row has no example"));
            continue;
        };
        let flags: Vec<String> = others.iter().cloned().chain([flag(path, row.key, &value)]).collect();
        let check = |base: &[String]| -> std::result::Result<(), String> {
            let (plan, _) = with(base, &flags).map_err(|error| error.to_string())?;
            let (again, _) =
                resolve(&plan.to_yaml(), Vec::new()).map_err(|error| format!("reads back as {error}"))?;
            if again != plan {
                return Err("reads back as something else".to_string());
            }
            // The plan without the row's flag, but with the others that it needs, if that is accepted.
            let before =
                with(base, &others).or_else(|_| with(base, &[])).map_err(|error| error.to_string())?.0;
            let changes = plan.decisions() != before.decisions();
            match row.decides {
                ResumeImpact::Host if changes => Err(CHANGES.to_string()),
                ResumeImpact::Shape | ResumeImpact::Numbers if !changes => {
                    Err("changes no decision".to_string())
                }
                _ => Ok(()),
            }
        };
        let words = words_of(path, row);
        if let Some(finding) = all_fail(&words, check) {
            wrong.push(format!("{name}={value}: {finding}"));
        }
        // A row that decides nothing must decide nothing in any base.
        let is_host = row.decides == ResumeImpact::Host && !HOT_STEPS.contains(&name.as_str());
        let lies = |base: Vec<String>| check(&base) == Err(CHANGES.to_string());
        if is_host && bases_of(number, &words).any(lies) {
            wrong.push(format!("{name}={value}: {CHANGES}"));
        }
    }
    wrong
}

/// The failure if no base answers the flag `--path.key=value` in one line that starts with `answer`; most have `words`
/// that do.
fn unanswered(words: &[&str], path: &str, key: &str, value: &str, answer: &str) -> Option<String> {
    let fault = flag(path, key, value);
    let expected = format!("{}: {answer}", flag(path, key, "").trim_end_matches('='));
    let finding = all_fail(words, |base| match with(base, std::slice::from_ref(&fault)) {
        Ok(_) => Err("accepted".to_string()),
        Err(error) => {
            let line = error.to_string();
            if line.starts_with(&expected) && !line.contains('\n') { Ok(()) } else { Err(line) }
        }
    });
    finding.map(|finding| format!("{fault}\n  expected {expected}\n  found    {finding}"))
}

#[test]
fn a_wrong_type_a_wrong_word_a_number_out_of_range_and_a_wrong_name_are_one_line_each() {
    let mut wrong = Vec::new();
    for (path, row) in rows() {
        let has_own = OWN_MESSAGES.contains(&format!("{path}.{}", row.key).as_str());
        let mut check = |key: &str, value: &str, answer: String| {
            let answer = if has_own && key == row.key { "" } else { &answer };
            wrong.extend(unanswered(&words_of(&path, row), &path, key, value, answer));
        };
        let expected = row.range.map_or_else(|| row.kind.expected(), |range| range.words.to_string());
        check(row.key, "[[[1]]]", format!("expected {expected}, found "));
        check(&format!("{}_", row.key), "1", format!("unknown key; did you mean `{}", row.key));
        match &row.kind {
            ValueKind::Words(words) if row.key == "type" => {
                check(row.key, "other", format!("unknown type `other`; known are {}", words.join(", ")));
            }
            ValueKind::Words(_) => check(row.key, "other", format!("expected {expected}, found `other`")),
            _ => (),
        }
        if let Some(range) = row.range {
            let outside = range.outside.to_string();
            check(row.key, &outside, format!("expected {}, found `{outside}`", range.words));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn keys_that_are_not_used_are_refused_or_noticed() {
    let mut wrong = Vec::new();
    for (id, table) in tables() {
        let path = flag_path(id.section);
        let words: Vec<&str> = path.split('.').chain(id.type_word()).collect();
        let others = table.unused.iter().flat_map(|other| {
            let keys = other.keys.split_ascii_whitespace().flat_map(|names| names.split('|'));
            keys.map(move |key| (key, other))
        });
        for (key, other) in others {
            // A key with a kind takes only values of that kind, and a switch that changes nothing is named, whether it
            // is on or off.
            if let Some(kind) = &other.kind {
                let wrong_kind = if *kind == ValueKind::Text { "3" } else { "other" };
                let answer = format!("expected {}, found `{wrong_kind}`", kind.expected());
                wrong.extend(unanswered(&words, &path, key, wrong_kind, &answer));
                let values: &[&str] = match kind {
                    ValueKind::Switch => &["True", "False"],
                    ValueKind::Number => &["7", "0.5"],
                    _ => &["other"],
                };
                for fault in values.iter().map(|value| flag(&path, key, value)) {
                    let is_named = |notice: &String| {
                        let is_list = notice.starts_with("without meaning here and ignored: ");
                        (is_list && notice.contains(key))
                            || notice.ends_with(&format!("{key}: {}", other.sentence))
                    };
                    let finding = all_fail(&words, |base| match with(base, std::slice::from_ref(&fault)) {
                        Ok((_, notices)) if notices.iter().any(is_named) => Ok(()),
                        Ok((_, notices)) => Err(format!("only notices {notices:?}")),
                        Err(error) => Err(error.to_string()),
                    });
                    wrong.extend(finding.map(|finding| format!("{fault}: {finding}")));
                }
                continue;
            }
            let (start, end) = match other.handling {
                Handling::Section => continue,
                Handling::Refused(_) => {
                    let answer = format!("not built yet (found `other`); {}", other.sentence);
                    wrong.extend(unanswered(&words, &path, key, "other", &answer));
                    continue;
                }
                Handling::Ignored => ("without meaning here and ignored: ", String::new()),
                Handling::Differs(_) => ("", format!("{key}: {}", other.sentence)),
            };
            let is_notice =
                |notice: &String| notice.starts_with(start) && notice.contains(key) && notice.ends_with(&end);
            let fault = flag(&path, key, "other");
            let finding = all_fail(&words, |base| match with(base, std::slice::from_ref(&fault)) {
                Ok((_, notices)) if notices.iter().any(is_notice) => Ok(()),
                Ok((_, notices)) => Err(format!("only notices {notices:?}")),
                Err(error) => Err(error.to_string()),
            });
            wrong.extend(finding.map(|finding| format!("{fault}: {finding}")));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Checks the defaults of single types of model, which the documentation gives as "of `TYPE` `VALUE`".
#[test]
fn a_default_of_a_type_is_the_documented_one() {
    let mut count = 0;
    for (path, row) in rows() {
        for claim in row.filled.split(", of `").skip(1) {
            let (kinds, value) = claim.trim_end_matches('`').rsplit_once("` `").expect("types and a value");
            for kind in kinds.split("` and `") {
                let kind = format!("--model.model_config.type={kind}");
                let flags = [
                    kind.as_str(),
                    "--model.model_config.qk_nope_head_dim=8",
                    "--model.model_config.qk_rope_head_dim=4",
                    "--model.model_config.expert_num=8",
                    "--model.model_config.num_experts_chosen=2",
                ];
                let (plan, _) = resolve(BASE, flags.to_vec()).unwrap_or_else(|error| panic!("{error}"));
                let (path, resolved) = (join(&path, row.key), plan.settings.resolved());
                let found = resolved.iter().find(|one| one.path == path).map(|one| &one.value);
                let said = serde_json::from_str(&value.to_lowercase()).expect("a value");
                assert_eq!(found, Some(&said), "{path} of {kind}");
                count += 1;
            }
        }
    }
    assert!(count > 0, "no default is one of a type");
}

/// Checks the values that a section fills in, where the documentation gives one value.
#[test]
fn a_default_that_is_filled_in_is_the_documented_one() {
    let mut wrong = Vec::new();
    for (path, row) in rows() {
        let value = row.filled.strip_prefix('`').and_then(|text| text.strip_suffix('`'));
        let Some(value) = value.filter(|text| !text.contains('`')) else { continue };
        let is_filled = |base: &Vec<String>| {
            let plan = with(base, &[]).map(|(plan, _)| plan);
            let resolved = plan.map_or(Vec::new(), |plan| plan.settings.resolved());
            // A section within a value has no path of its own.
            let own = resolved.iter().find(|one| one.path == join(&path, row.key)).map(|one| &one.value);
            let whole = resolved.iter().find(|one| one.path == path).map(|one| &one.value);
            let found = own.or_else(|| whole.and_then(|value| value.get(row.key)));
            found.is_some_and(|found| {
                let text = found.to_string().replace(".0", "").replace(',', ", ");
                text == value || found.as_f64().is_some_and(|found| Ok(found) == value.parse())
            })
        };
        if !bases().iter().any(is_filled) {
            wrong.push(format!("{path}.{}: {value} where nothing is written in no base", row.key));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// In every base ([`bases_of`] it) a switch changes the plan, agrees with the plan already, or is named in a notice.
#[test]
fn a_switch_that_changes_nothing_is_named() {
    let mut wrong = Vec::new();
    let switches = rows().filter(|(_, row)| row.kind == ValueKind::Switch && !SO_WITHOUT.contains(&row.key));
    for (number, (path, row)) in switches.enumerate() {
        let bases = || bases_of(number, &words_of(&path, row));
        for (value, base) in
            [true, false].into_iter().flat_map(|value| bases().map(move |base| (value, base)))
        {
            let one = flag(&path, row.key, if value { "True" } else { "False" });
            let (Ok((before, _)), Ok((plan, notices))) =
                (with(&base, &[]), with(&base, std::slice::from_ref(&one)))
            else {
                continue;
            };
            let written = plan.settings.resolved().into_iter().find(|one| one.path == join(&path, row.key));
            // A switch that is off and absent is off.
            let is_so = written.map_or(!value, |written| written.value == value);
            if !is_so && before == plan && !notices.iter().any(|notice| notice.contains(row.key)) {
                wrong.push(format!("{one}, in {base:?}: is not so, and no notice names it"));
                break;
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Older checkpoints lack keys that were added since, whichever section holds a schedule.
#[test]
fn a_setting_has_its_default_wherever_its_section_is() {
    for path in [
        "lr_schedule.type",
        "lr_schedule.base_lr.type",
        "grouped_lr_schedule.default.type",
        "grouped_lr_schedule.default.base_lr.type",
        "grouped_lr_schedule.grouped.0.type",
        "grouped_lr_schedule.grouped.12.base_lr.type",
    ] {
        assert_eq!(default_decision(path), Some("ConstantWarmUpLR".into()), "{path}");
    }
    assert_eq!(default_decision("train_dataset.eod_reset"), Some(false.into()), "another form of a key");
    assert_eq!(default_decision("seed.x"), None);
}

#[test]
fn every_key_has_one_fate() {
    for (path, table) in tables() {
        let mut names: Vec<&str> = table.names().collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{path} lists a key twice");
        for row in &table.rows {
            assert!(row.about.ends_with('.'), "{path}.{}: its documentation is no sentence", row.key);
            let is_empty = row.default.as_ref().is_some_and(|node| *node == Node::Text(String::new()));
            assert!(
                !is_empty || !row.example.is_empty(),
                "{path}.{}: an empty default needs an example",
                row.key
            );
        }
    }
}
