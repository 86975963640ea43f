//! Where a run stood when its checkpoint was written, apart from the tensors: `trainer_state.json`.
//!
//! `decisions` are the keys whose rows decide the shape of the model or the numbers of the run, as JSON by path, and
//! what `train/resume.rs` adds from the data: lengths of schedules in steps, where rates depend on them, and the id of
//! the end-of-document token. A run resumes only if all are equal, and the data too; an error names up to four that
//! differ, with both values. A key that the checkpoint's version did not know is compared with its row's default.
//! Counters are those of a single rank that accumulates the micro-batches of all ranks, so nothing here says how many
//! ranks wrote the file.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::checkpoint_folder::Best;
use super::hex::{self, hex};
use super::{OUTPUT_DIR, remedy_for};
use crate::durable::read_json;
use crate::error::{Error, Result, new_run_from};
use crate::ops::loss_scale::LossScaleState;

/// The format this version writes and reads.
pub const FORMAT_VERSION: u32 = 1;

/// The numbers that a resumed run starts from, and the settings and hashes that must be as they were.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainerState {
    /// [`FORMAT_VERSION`] of the writer.
    pub format_version: u32,
    /// Steps done, including those that an overflow skipped.
    pub step: u64,
    /// Optimizer updates done: the row of the schedule that comes next.
    pub global_step: u64,
    /// Micro-batches consumed by all ranks together: where the data goes on.
    pub micro_step: u64,
    /// The loss scale of the next step.
    pub loss_scale: f64,
    /// How far the loss scale is on its way to the next change, if it adapts and a step was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaler: Option<LossScaleState>,
    /// A hash of a sample of the training data; in the file as 16 hexadecimal digits, which no JSON reader rounds.
    #[serde(with = "hex")]
    pub data_fingerprint: u64,
    /// A hash of all training data, written in the file as the fingerprint is. `None` if the data were not read to the
    /// end by then.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "hex::optional")]
    pub data_hash: Option<u64>,
    /// A hash of all evaluation data, written in the same way; `None` also where there are no evaluation data.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "hex::optional")]
    pub eval_data_hash: Option<u64>,
    /// The best evaluation so far, if anything follows from evaluations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<Best>,
    /// Evaluations since the last one that was better by more than `min_delta`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub evaluations_since: u64,
    /// Steps that the run was to have; it may have more when it goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_steps: Option<u64>,
    /// The settings that decide the model's shape and the run's numbers, by the path of each key.
    pub decisions: BTreeMap<String, Value>,
}

impl TrainerState {
    /// Writes the state to `path`, through to the disk.
    ///
    /// # Errors
    /// The file cannot be written; a loss scale that is not a finite number, which JSON cannot hold.
    pub fn save(&self, path: &Path) -> Result<()> {
        if !self.loss_scale.is_finite() {
            return Err(Error::file(path, format!("cannot write: the loss scale is {}", self.loss_scale)));
        }
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| OUTPUT_DIR.error(path, "write", &error.into()))?;
        OUTPUT_DIR.write(path, &text)
    }

    /// Reads the state from `path`.
    ///
    /// # Errors
    /// One line: the file is missing, of another format version, or not what [`TrainerState::save`] writes.
    pub fn load(path: &Path) -> Result<Self> {
        #[derive(Deserialize)]
        struct Versioned {
            format_version: u32,
        }
        // Read first, since another version may have other fields.
        let Versioned { format_version } = read(path)?;
        if format_version != FORMAT_VERSION {
            return Err(Error::file(
                path,
                format!(
                    "is of format {format_version}, this gristmill resumes format {FORMAT_VERSION}: continue with the \
                     version that wrote it, or start a new run from its weights with --load_checkpoint"
                ),
            ));
        }
        read(path)
    }

    /// The settings that differ between this state and the one that is `expected`. `default` returns the values of
    /// settings that are not written.
    pub(crate) fn differing(
        &self,
        expected: &Self,
        default: impl Fn(&str) -> Option<Value>,
    ) -> Vec<Differing> {
        let (there, here) = (&self.decisions, &expected.decisions);
        let keys = there.keys().chain(here.keys().filter(|key| !there.contains_key(*key)));
        let value = |decisions: &BTreeMap<String, Value>, key: &str| {
            decisions.get(key).cloned().or_else(|| default(key))
        };
        let shown = |own: &BTreeMap<String, Value>, key: &String| match own.get(key) {
            Some(value) => value.to_string(),
            None => default(key).map_or("absent".to_owned(), |value| format!("{value} (its default)")),
        };
        // Builds before this one wrote an empty list for a key that the type of a section does not have.
        let says_nothing = |key: &&String| {
            there.get(*key).and_then(Value::as_array).is_some_and(Vec::is_empty) && !here.contains_key(*key)
        };
        keys.filter(|key| !says_nothing(key) && value(there, key) != value(here, key))
            .map(|key| Differing { key: key.clone(), there: shown(there, key), here: shown(here, key) })
            .collect()
    }

    /// Compares the state found in `checkpoint` with the state of the run that is to continue it: settings and data
    /// must be the same. The run takes over the counters and the loss scale, so these may differ. `default` returns the
    /// value of a setting that is not written: a checkpoint from before a setting was known lacks it.
    ///
    /// # Errors
    /// The differences, each by its name and both values.
    pub fn check_matches(
        &self,
        checkpoint: &Path,
        expected: &Self,
        default: impl Fn(&str) -> Option<Value>,
    ) -> Result<()> {
        let of = |Differing { key, there, here }: &Differing| difference(key, there, here);
        let mut differences: Vec<String> = self.differing(expected, default).iter().map(of).collect();
        if differences.is_empty() {
            // Hashes change with the settings too, and say less than the names of settings do.
            let differs = |name: &str, there: u64, here: u64| {
                let shown = |hash: u64| format!("\"{}\"", hex(hash));
                (there != here).then(|| difference(name, &shown(there), &shown(here)))
            };
            let hashes = self.data_hash.zip(expected.data_hash);
            let fingerprint = differs("data fingerprint", self.data_fingerprint, expected.data_fingerprint);
            let of_all = hashes.and_then(|(there, here)| differs("data hash", there, here));
            differences.extend(fingerprint.or(of_all));
        }
        if differences.is_empty() {
            return Ok(());
        }
        let listed = differences[..differences.len().min(LISTED)].join(", ");
        Err(Error::file(
            checkpoint,
            format!(
                "{listed}: continue with the configuration and data of the checkpoint, or {}",
                new_run_from(checkpoint, "--output_dir or --run_name")
            ),
        ))
    }
}

/// A setting that two states have differently, with both values as they are shown.
pub(crate) struct Differing {
    pub key: String,
    pub there: String,
    pub here: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    read_json(path, "a trainer state", remedy_for(path))
}

/// How many differences are named: one change of a configuration shows in a few numbers, another run in nearly all.
const LISTED: usize = 4;

/// A number that counts for all ranks together in a checkpoint, and for each rank in a configuration.
const OF_ALL_RANKS: &str = "runner_config.gradient_accumulation_steps";

fn difference(name: &str, there: &str, here: &str) -> String {
    let whose = if name == OF_ALL_RANKS { " (times data_parallel, where ranks share a step)" } else { "" };
    format!("{name}{whose} is {there} there, {here} here")
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use std::fs;

    use super::*;

    fn state() -> TrainerState {
        let decisions = [("hidden_size", json!(128)), ("num_layers", json!(2)), ("seed", json!(u64::MAX))];
        TrainerState {
            format_version: FORMAT_VERSION,
            step: 20,
            global_step: 19,
            micro_step: 80,
            loss_scale: 4_294_967_296.0,
            scaler: Some(LossScaleState {
                window: 1,
                index: -1,
                increases: 2,
                step: 21,
                last_change: 19,
                ..LossScaleState::default()
            }),
            data_fingerprint: 0xfedc_ba98_7654_3210,
            data_hash: Some(0x0123_4567_89ab_cdef),
            eval_data_hash: None,
            best: Some(Best { step: 10, eval_loss: 2.3 }),
            evaluations_since: 2,
            total_steps: Some(40),
            decisions: decisions.map(|(key, value)| (key.to_owned(), value)).into(),
        }
    }

    #[test]
    fn loads_exactly_what_it_saved() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trainer_state.json");
        state().save(&path).unwrap();
        assert_eq!(TrainerState::load(&path).unwrap(), state());
        assert!(fs::read_to_string(&path).unwrap().contains("\"fedcba9876543210\""));
        let infinite = TrainerState { loss_scale: f64::INFINITY, ..state() };
        assert!(infinite.save(&path).unwrap_err().to_string().contains("loss scale is inf"));
    }

    #[test]
    fn every_truncation_and_foreign_content_is_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trainer_state.json");
        state().save(&path).unwrap();
        let whole = fs::read_to_string(&path).unwrap();
        let refused = |text: &str| {
            fs::write(&path, text).unwrap();
            let line = TrainerState::load(&path).expect_err(text).to_string();
            assert!(line.contains("trainer_state.json: ") && line.lines().count() == 1, "{line}");
            line
        };
        (0..whole.len()).for_each(|length| drop(refused(&whole[..length])));
        let other = refused(&whole.replace("\"format_version\": 1", "\"format_version\": 2"));
        assert!(other.contains("is of format 2") && other.contains("--load_checkpoint"), "{other}");
        assert!(refused(&whole.replace("global_step", "globel_step")).contains("globel_step"));
        assert!(refused(&whole.replace("fedcba", "fedcbz")).contains("16 hexadecimal digits"));
        assert!(refused("[]").contains("not a trainer state"));
    }

    #[test]
    fn a_mismatch_names_what_differs() {
        let checkpoint = Path::new("out/checkpoint/step_0000020");
        let default = |key: &str| (key == "dropout").then(|| json!(0.0));
        let check = |change: fn(&mut TrainerState)| {
            let mut here = state();
            change(&mut here);
            state().check_matches(checkpoint, &here, default).map_err(|error| error.to_string())
        };
        let line = |change| check(change).unwrap_err();
        let width = line(|here| drop(here.decisions.insert("hidden_size".into(), json!(256))));
        assert!(
            width.starts_with("out/checkpoint/step_0000020: hidden_size is 128 there, 256 here: "),
            "{width}"
        );
        let both = line(|here| {
            here.decisions.insert("hidden_size".into(), json!(256));
            here.decisions.insert("seed".into(), json!(7));
        });
        assert!(
            both.contains("hidden_size is 128 there, 256 here, seed is 18446744073709551615 there, 7 here: ")
        );
        let layers = line(|here| drop(here.decisions.remove("num_layers")));
        assert!(layers.contains("num_layers is 2 there, absent here"), "{layers}");
        assert!(
            line(|here| here.data_fingerprint = 1).contains("data fingerprint is \"fedcba9876543210\" there")
        );
        let all = line(|here| here.data_hash = Some(1));
        assert!(all.contains("data hash is \"0123456789abcdef\" there, \"0000000000000001\" here"), "{all}");
        // Unknown so far, or to the version that wrote the checkpoint.
        check(|here| here.data_hash = None).unwrap();
        check(|here| here.eval_data_hash = Some(1)).unwrap();
        // Earlier builds wrote an empty list for a key that the section's type does not have.
        let mut older = state();
        older.decisions.insert("optimizer.adamw_betas".into(), json!([]));
        older.check_matches(checkpoint, &state(), |_| Some(json!([0.95, 0.95]))).unwrap();
        let accumulation = "runner_config.gradient_accumulation_steps";
        let steps = state().check_matches(
            checkpoint,
            &TrainerState { decisions: [(accumulation.to_owned(), json!(8))].into(), ..state() },
            |_| Some(json!(0)),
        );
        let steps = steps.unwrap_err().to_string();
        let whose = format!(
            "{accumulation} (times data_parallel, where ranks share a step) is 0 (its default) there, 8 here"
        );
        assert!(steps.contains(&whose), "{steps}");
        // A setting that the checkpoint's writer did not know had its default.
        check(|here| drop(here.decisions.insert("dropout".into(), json!(0.0)))).unwrap();
        let dropout = line(|here| drop(here.decisions.insert("dropout".into(), json!(0.1))));
        assert!(dropout.contains("dropout is 0.0 (its default) there, 0.1 here"), "{dropout}");
        let later = |here: &mut TrainerState| {
            *here = TrainerState { step: 0, global_step: 0, micro_step: 0, loss_scale: 1.0, ..state() };
        };
        check(later).unwrap();
    }
}
