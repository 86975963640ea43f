//! The callbacks that watch experts, and what a run shows of them.

use std::path::PathBuf;

use super::document::Document;
use super::known_keys;
use super::mixture::MixtureSection;
use super::node::Node;
use super::run::RunConfig;
use super::section::{Notes, Section};
use crate::error::Result;
use crate::model::config::ModelConfig;

/// What a run shows of its experts, beside the numbers that `metrics.jsonl` has of every mixture.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Instruments {
    /// A log line a step for the drop rate of each layer of experts. They are 0 where no token is dropped.
    pub logs_drop_rate: bool,
    /// Where and when each layer's choices per expert are written.
    pub token_distribution: Option<SummaryConfig>,
}

/// `SummaryMonitor`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SummaryConfig {
    /// The folder, created when the first file is written.
    pub folder: PathBuf,
    /// After every so many steps.
    pub every_steps: u64,
}

/// The callbacks about experts as written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExpertCallbacks {
    /// Path of a `MoEDropRateCallback`, and what it says of the model.
    pub drop_rate: Option<(String, Claims)>,
    /// Path of a `TopkBiasBalanceCallback`, and what it says of the model.
    pub topk_bias: Option<(String, Claims)>,
    /// `save_checkpoint_steps` of a `ColdHotExpertMonitor`.
    pub cold_hot_checkpoint_step: Option<u64>,
    /// `SummaryMonitor`: its folder, if it names one, and its frequency.
    pub summary: Option<(Option<PathBuf>, u64)>,
}

/// What a callback repeats of the model; it must be so.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Claims {
    /// Experts of a layer.
    pub expert_num: Option<u64>,
    /// Slots over choices of an equal share.
    pub capacity_factor: Option<f64>,
    /// Blocks, those not counted that predict further ahead.
    pub num_layers: Option<u64>,
    /// Blocks that predict further ahead.
    pub mtp_depth: Option<u64>,
    /// Whether a bias takes part in the choice.
    pub balance_via_topk_bias: Option<bool>,
    /// By how much it moves.
    pub topk_bias_update_rate: Option<f64>,
    /// Micro-batches in a step.
    pub gradient_accumulation_steps: Option<u64>,
}

pub(super) const DROP_RATE: &str = "MoEDropRateCallback";
pub(super) const TOPK_BIAS: &str = "TopkBiasBalanceCallback";
pub(super) const COLD_HOT: &str = "ColdHotExpertMonitor";
pub(super) const SUMMARY: &str = "SummaryMonitor";
/// The callbacks that are read here.
pub(super) const KINDS: [&str; 4] = [DROP_RATE, TOPK_BIAS, COLD_HOT, SUMMARY];

/// The original's `collect_freq`.
const COLLECT_FREQ: u64 = 10;

impl ExpertCallbacks {
    /// Reads the callback at `path`, one of [`KINDS`].
    pub(super) fn read(
        &mut self,
        document: &Document,
        path: &str,
        kind: &str,
        notes: &mut Notes,
    ) -> Result<()> {
        match kind {
            DROP_RATE => {
                let section = Section::open(document, path, &known_keys::DROP_RATE, notes)?;
                let claims = Claims {
                    expert_num: Some(section.require("expert_num")?),
                    capacity_factor: Some(section.require("capacity_factor")?),
                    num_layers: Some(section.require("num_layers")?),
                    mtp_depth: Some(section.require("mtp_depth")?),
                    ..Claims::default()
                };
                self.drop_rate = Some((path.to_string(), claims));
            }
            TOPK_BIAS => {
                let section = Section::open(document, path, &known_keys::TOPK_BIAS, notes)?;
                let claims = Claims {
                    expert_num: section.get("expert_num")?,
                    num_layers: section.get("num_layers")?,
                    mtp_depth: section.get("mtp_depth")?,
                    balance_via_topk_bias: section.get("balance_via_topk_bias")?,
                    topk_bias_update_rate: section.get("topk_bias_update_rate")?,
                    gradient_accumulation_steps: section.get("gradient_accumulation_steps")?,
                    ..Claims::default()
                };
                self.topk_bias = Some((path.to_string(), claims));
            }
            COLD_HOT => {
                let section = Section::open(document, path, &known_keys::COLD_HOT, notes)?;
                // -1 is the original's word for no checkpoints.
                let step: i64 = section.or("save_checkpoint_steps", -1)?;
                self.cold_hot_checkpoint_step = u64::try_from(step).ok().filter(|step| *step > 0);
            }
            _ => {
                let section = Section::open(document, path, &known_keys::SUMMARY, notes)?;
                if section.node("export_options").is_some() {
                    Section::open(document, &section.path("export_options"), &known_keys::EXPORT, notes)?;
                }
                let folder: Option<String> = section.get("summary_dir")?;
                let folder = folder.filter(|folder| !folder.is_empty()).map(PathBuf::from);
                self.summary = Some((folder, section.positive("collect_freq", COLLECT_FREQ)?));
            }
        }
        Ok(())
    }

    /// Says which callbacks have nothing to do.
    pub(super) fn note_idle(&self, mixture: Option<&MixtureSection>, notes: &mut Notes) {
        let saves = mixture.is_some_and(|mixture| mixture.save_token_distribution);
        if saves && self.summary.is_none() {
            notes.add(format!(
                "moe_config.save_token_distribution: written every {COLLECT_FREQ} steps into the run's folder; a \
                 {SUMMARY} says where and when"
            ));
        }
        if self.summary.is_some() && !saves {
            notes.add(format!(
                "callbacks: {SUMMARY} writes what `moe_config.save_token_distribution` asks for: nothing"
            ));
        }
        if self.cold_hot_checkpoint_step.is_some() && mixture.is_none_or(|mixture| mixture.hot.is_none()) {
            notes.add(format!(
                "callbacks: {COLD_HOT} has nothing to do without `moe_config.enable_cold_hot_expert`"
            ));
        }
        if self.drop_rate.is_some() && mixture.is_some_and(MixtureSection::is_dropless) {
            notes.add(format!("callbacks: {DROP_RATE} shows rates of 0, as no token is dropped"));
        }
        if self.drop_rate.is_some() && mixture.is_none() {
            notes.add(format!("callbacks: {DROP_RATE} has nothing to say of a model without experts"));
        }
    }
}

/// Decides what is shown, and holds what callbacks say of the model against the model.
pub(super) fn resolve(config: &RunConfig, model: &ModelConfig) -> Result<Instruments> {
    let callbacks = &config.callbacks.experts;
    for (path, claims) in [&callbacks.drop_rate, &callbacks.topk_bias].into_iter().flatten() {
        check(config, model, path, claims)?;
    }
    let Some(mixture) = &config.mixture else { return Ok(Instruments::default()) };
    let token_distribution = mixture.save_token_distribution.then(|| {
        let (folder, every_steps) = callbacks.summary.clone().unwrap_or((None, COLLECT_FREQ));
        let folder = folder.unwrap_or_else(|| config.output_dir.join(&config.run_name).join("summary"));
        SummaryConfig { folder, every_steps }
    });
    let logs_drop_rate = mixture.callback_moe_droprate || callbacks.drop_rate.is_some();
    Ok(Instruments { logs_drop_rate, token_distribution })
}

fn check(config: &RunConfig, model: &ModelConfig, path: &str, claims: &Claims) -> Result<()> {
    let mixture = config.mixture.as_ref();
    let count = |number: usize| Some(Node::from(number));
    // A factor that no slot follows from is only compared where it is written.
    let capacity = mixture.filter(|mixture| !mixture.use_gmm || mixture.capacity_factor.is_some());
    let pairs: [(&str, Option<Node>, Option<Node>); 7] = [
        (
            "expert_num",
            claims.expert_num.map(Node::from),
            count(model.mixture.as_ref().map_or(1, |m| m.experts())),
        ),
        ("num_layers", claims.num_layers.map(Node::from), count(model.num_layers)),
        (
            "mtp_depth",
            claims.mtp_depth.map(Node::from),
            count(model.multi_token.map_or(0, |ahead| ahead.depth)),
        ),
        (
            "capacity_factor",
            claims.capacity_factor.map(Node::from),
            capacity.map(|mixture| mixture.capacity_factor().into()),
        ),
        (
            "balance_via_topk_bias",
            claims.balance_via_topk_bias.map(Node::from),
            Some(mixture.is_some_and(|mixture| mixture.balance_via_topk_bias).into()),
        ),
        (
            "topk_bias_update_rate",
            claims.topk_bias_update_rate.map(Node::from),
            Some(mixture.map_or(0.0, |mixture| mixture.topk_bias_update_rate).into()),
        ),
        (
            "gradient_accumulation_steps",
            claims.gradient_accumulation_steps.map(Node::from),
            count(config.runner.gradient_accumulation_steps),
        ),
    ];
    for (key, claimed, actual) in pairs {
        let (Some(claimed), Some(actual)) = (claimed, actual) else { continue };
        if claimed != actual {
            let message = format!("`{key}` is {claimed}, but the model's is {actual}; make them equal");
            return Err(config.error(&format!("{path}.{key}"), message));
        }
    }
    Ok(())
}
