//! The tensors of an adapter, and the factors of each module.

use super::config::{LoraConfig, Start};
use super::start::{orthonormal, principal};
use super::{MERGED, other_model};
use crate::error::{Error, Result};
use crate::model::parameters::{MAGNITUDES, PEFT_PREFIX, adapted_module};
use crate::store::experts::ExpertFactors;
use crate::store::peft_modules;
use crate::store::weight_files::{EMBEDDINGS, HEAD, WeightFiles};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// An open adapter. Each of its tensors is a factor, the bias of a factor, or a parameter that trained beside the
/// factors.
pub(in crate::store) struct Adapter {
    /// Its file.
    pub weights: PathBuf,
    /// The configuration, which says how the adapter computes. Without it, the run that reads the adapter says how.
    pub config: Option<LoraConfig>,
    pub files: WeightFiles,
    /// What the factors of each module are, by the name that the module has in the file.
    adapted: BTreeMap<String, Adapted>,
}

/// The factors of a module.
struct Adapted {
    /// Rows of A, of one expert.
    rank: usize,
    /// The parameter that has them, and the number of its experts, if they are of experts.
    experts: Option<(String, usize)>,
}

/// The factors of a module, which computes x Wᵀ + scale · (x Aᵀ) Bᵀ.
pub(in crate::store) struct Factors {
    /// Rows of A.
    pub rank: usize,
    /// (rank, in).
    pub a: Vec<f32>,
    /// (out, rank).
    pub b: Vec<f32>,
    pub scale: f64,
}

impl Adapter {
    /// Opens the adapter in the file `weights`.
    ///
    /// # Errors
    /// A damaged file; a configuration that asks for something that is not built; a tensor that is no part of a
    /// low-rank adapter.
    pub fn open(weights: &Path) -> Result<Self> {
        let (config, files) = (LoraConfig::beside(weights)?, WeightFiles::open(weights)?);
        let mut adapter = Self { weights: weights.to_path_buf(), config, files, adapted: BTreeMap::new() };
        let names = adapter.files.names();
        names.iter().try_for_each(|name| adapter.check_name(name))?;
        let modules: BTreeSet<&str> = names.iter().filter_map(|name| adapted_module(name)).collect();
        let adapted = modules.iter().map(|module| Ok(((*module).to_string(), adapter.checked(module)?)));
        adapter.adapted = adapted.collect::<Result<_>>()?;
        if !adapter.keeps_base() && adapter.parameters().next().is_some() {
            let message = format!(
                "adapts experts, and its `init_lora_weights` took something out of the base, which PEFT does with linear layers \
                 only; {MERGED}"
            );
            return Err(Error::file(weights, message));
        }
        Ok(adapter)
    }

    fn check_name(&self, name: &str) -> Result<()> {
        let has_bias = self.config.as_ref().is_some_and(|config| config.lora_bias);
        let has_magnitudes = self.has_magnitudes();
        let known = ["A.weight", "B.weight", "B.bias", "magnitude_vector"];
        let is_known = match name.strip_prefix(PEFT_PREFIX).map(|inner| inner.rsplit_once(".lora_")) {
            None => false,
            Some(None) => true,
            Some(Some((_, part))) => {
                known.contains(&part)
                    && (has_bias || part != known[2])
                    && (has_magnitudes || part != known[3])
            }
        };
        if is_known {
            return Ok(());
        }
        let message = format!(
            "`{name}` is no tensor of a low-rank adapter of linear layers, as PEFT calls them; {MERGED}"
        );
        Err(Error::file(&self.weights, message))
    }

    /// The factors of `module`, which fit each other and the configuration.
    fn checked(&self, module: &str) -> Result<Adapted> {
        let [a, b] = factor_names(module).map(|name| self.files.info(&name).map(|info| info.shape));
        let (a, b) = (a?, b?);
        let parameter = self.config.as_ref().and_then(|config| config.parameter_of(module));
        let key = parameter.as_deref().unwrap_or(module);
        let configured = self.config.as_ref().map(|config| config.rank_of(key));
        match (&a[..], &b[..], parameter.clone().zip(configured)) {
            (&[rank, _], &[_, of_b], None)
                if rank == of_b && rank > 0 && configured.is_none_or(|r| r == rank) =>
            {
                Ok(Adapted { rank, experts: None })
            }
            (&[rows, _], &[_, of_b], Some((parameter, rank)))
                if rows == of_b && rows > 0 && rows.is_multiple_of(rank) =>
            {
                Ok(Adapted { rank, experts: Some((parameter, rows / rank)) })
            }
            _ => {
                let of_config =
                    configured.map_or_else(String::new, |rank| format!(", where the rank is {rank}"));
                let message = format!(
                    "has factors of the sizes {a:?} and {b:?} at `{key}`{of_config}; name another adapter"
                );
                Err(Error::file(&self.weights, message))
            }
        }
    }

    /// The linear layers that it adapts, as its file calls them.
    pub fn modules(&self) -> impl Iterator<Item = &str> {
        let modules = self.adapted.iter().filter(|(_, adapted)| adapted.experts.is_none());
        modules.map(|(module, _)| module.as_str())
    }

    /// The parameters of experts that it adapts, as its file would call them.
    pub fn parameters(&self) -> impl Iterator<Item = &str> {
        self.adapted.values().filter_map(|adapted| Some(adapted.experts.as_ref()?.0.as_str()))
    }

    /// The parameter of experts whose factors are those of `module`; `None` if these are of a linear layer.
    pub fn parameter_of(&self, module: &str) -> Option<&str> {
        Some(self.adapted.get(module)?.experts.as_ref()?.0.as_str())
    }

    /// The names by which the configuration knows all that it adapts.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.adapted.keys().map(|module| self.key(module))
    }

    /// The name by which the configuration knows `module`.
    fn key<'a>(&'a self, module: &'a str) -> &'a str {
        self.parameter_of(module).unwrap_or(module)
    }

    /// The names of all modules that have factors in its file.
    pub fn wrappers(&self) -> impl Iterator<Item = &str> {
        self.adapted.keys().map(String::as_str)
    }

    /// The configuration, which says how the adapter computes.
    ///
    /// # Errors
    /// There is none.
    pub fn config(&self) -> Result<&LoraConfig> {
        self.config.as_ref().ok_or_else(|| LoraConfig::missing(&self.weights))
    }

    /// The rank of the [`factors`](Self::factors) of `module` on the unchanged base.
    pub fn rank_of(&self, module: &str) -> usize {
        let rank = self.adapted.get(module).map_or(0, |adapted| adapted.rank);
        if self.keeps_base() { rank } else { 2 * rank }
    }

    /// The scale of the product of the factors of `module`.
    pub fn scale_of(&self, module: &str) -> Option<f64> {
        self.config.as_ref().map(|config| config.scale_of(self.key(module)))
    }

    /// The factors of `module`, which are of experts.
    ///
    /// # Errors
    /// They do not hold floats.
    pub fn expert_factors(&self, module: &str) -> Result<ExpertFactors> {
        let Adapted { rank, experts } = &self.adapted[module];
        let [a, b] = factor_names(module).map(|name| self.files.values(&name));
        let (scale, experts) = (self.scale_of(module).unwrap_or(1.0), experts.as_ref().map_or(1, |of| of.1));
        Ok(ExpertFactors { experts, rank: *rank, a: a?, b: b?, scale })
    }

    /// Whether the adapter is on the whole base, from which its initial values took nothing out.
    pub fn keeps_base(&self) -> bool {
        self.start() == Start::Whole
    }

    fn start(&self) -> Start {
        self.config.as_ref().and_then(|config| config.start().ok()).unwrap_or(Start::Whole)
    }

    /// The factors of `module` for use on the unchanged `base`: they also subtract what the adapter's initial values
    /// took out of the base. The matrices of the base are (in, out) if `is_transposed`.
    ///
    /// # Errors
    /// A module that the base does not have; factors that are not floats.
    pub fn factors(
        &self,
        module: &str,
        base: &WeightFiles,
        matrix: &str,
        is_transposed: bool,
    ) -> Result<Factors> {
        let [a, b] = factor_names(module);
        let (rank, scale) = (self.adapted[module].rank, self.scale_of(module).unwrap_or(1.0));
        let factors = Factors { rank, a: self.files.values(&a)?, b: self.files.values(&b)?, scale };
        let start = self.start();
        if start == Start::Whole {
            return Ok(factors);
        }
        let (inputs, outputs) = (factors.a.len() / rank, factors.b.len() / rank);
        let mut weights = base.values(matrix)?;
        if weights.len() != inputs * outputs || rank > inputs.min(outputs) {
            return Err(other_model(&self.weights, module, "has another size in the model"));
        }
        if is_transposed {
            weights = (0..outputs).flat_map(|row| weights[row..].iter().step_by(outputs).copied()).collect();
        }
        let (left, right, share) = match start {
            Start::WithoutPrincipal => {
                let (left, right) = principal(&weights, outputs, rank);
                (left, right, 1.0 / scale)
            }
            _ => {
                let (left, right) = orthonormal(&weights, outputs, rank);
                (left, right, 1.0)
            }
        };
        Ok(factors.without(&left, &right, share))
    }

    /// Whether it scales outputs by magnitudes. Without a configuration its tensors say so.
    pub fn has_magnitudes(&self) -> bool {
        match &self.config {
            Some(config) => config.use_dora,
            None => self.files.names().iter().any(|name| name.ends_with(MAGNITUDES)),
        }
    }

    /// The magnitudes of the outputs of `module`, if it has some.
    ///
    /// # Errors
    /// They are missing, not floats, or not `outputs` numbers.
    pub fn magnitudes(&self, module: &str, outputs: usize) -> Result<Option<Vec<f32>>> {
        if !self.has_magnitudes() {
            return Ok(None);
        }
        let values = self.files.values(&format!("{PEFT_PREFIX}{module}.{MAGNITUDES}"))?;
        match values.len() == outputs {
            true => Ok(Some(values)),
            false => Err(other_model(
                &self.weights,
                module,
                &format!("has {outputs} outputs, and there are {} magnitudes", values.len()),
            )),
        }
    }

    /// The bias of B of `module`, times the scale.
    ///
    /// # Errors
    /// It does not hold floats.
    pub fn bias(&self, module: &str) -> Result<Option<Vec<f32>>> {
        let (name, scale) =
            (format!("{PEFT_PREFIX}{module}.lora_B.bias"), self.scale_of(module).unwrap_or(1.0));
        let scaled =
            |values: Vec<f32>| values.into_iter().map(|value| (scale * f64::from(value)) as f32).collect();
        self.files.holds(&name).then(|| self.files.values(&name).map(scaled)).transpose()
    }

    /// Whether it has a bias for `module`.
    pub fn has_bias(&self, module: &str) -> bool {
        self.files.holds(&format!("{PEFT_PREFIX}{module}.lora_B.bias"))
    }

    /// Checks that the adapter has its own copy of each tensor of the model, among these `names`, that its
    /// `modules_to_save` lists.
    ///
    /// # Errors
    /// A tensor that is listed and not there.
    pub fn check_saved(&self, mut names: impl Iterator<Item = String>) -> Result<()> {
        let is_listed = |name: &String| self.config.as_ref().is_some_and(|config| config.saves(name));
        match names.find(|name| is_listed(name) && peft_modules::find(&self.files, name).is_none()) {
            None => Ok(()),
            Some(name) => {
                let message = format!(
                    "has no copy of `{name}`, which its `modules_to_save` lists; name another adapter"
                );
                Err(Error::file(&self.weights, message))
            }
        }
    }

    /// Whether `name` is the head in the adapter's file and equals the embedding there bit for bit.
    pub fn repeats_head(&self, name: &str) -> bool {
        let is_head =
            peft_modules::find(&self.files, HEAD).is_some_and(|head| self.files.stored(&head) == Some(name));
        let embedding = || EMBEDDINGS.iter().find_map(|embedding| peft_modules::find(&self.files, embedding));
        let is_same = |embedding: String| self.files.bytes(&embedding).ok() == self.files.bytes(name).ok();
        is_head && embedding().is_some_and(is_same)
    }

    /// Whether the adapter has its own embedding or head, which the model then uses although the base ties the two.
    pub fn is_apart(&self) -> bool {
        let Some(config) = self.config.as_ref().filter(|config| !config.ensure_weight_tying) else {
            return false;
        };
        let is_held = |name: &str| config.saves(name) && peft_modules::find(&self.files, name).is_some();
        EMBEDDINGS.iter().chain([&HEAD]).any(|name| is_held(name))
    }
}

impl Factors {
    /// Extends the factors by `left` (out, r) and `right` (r, in), so that their product loses `share` times the
    /// product of these two. The scale applies to both products.
    fn without(self, left: &[f64], right: &[f64], share: f64) -> Self {
        let Self { rank, mut a, b, scale } = self;
        a.extend(right.iter().map(|value| *value as f32));
        let rows = b.chunks(rank).zip(left.chunks(rank));
        let b = rows.flat_map(|(b, left)| {
            let left = left.iter().map(move |value| (-share * value) as f32);
            b.iter().copied().chain(left).collect::<Vec<f32>>()
        });
        Self { rank: 2 * rank, b: b.collect(), a, scale }
    }
}

/// Scales `row`, the weights of an output, so that their length is its `magnitude`; a row of zeros stays.
pub(in crate::store) fn scaled_to(row: &mut [f64], magnitude: f32) {
    let length = row.iter().map(|weight| weight * weight).sum::<f64>().sqrt();
    if length > 0.0 {
        row.iter_mut().for_each(|weight| *weight *= f64::from(magnitude) / length);
    }
}

/// The names of A and B of a module.
pub(in crate::store) fn factor_names(module: &str) -> [String; 2] {
    ["A", "B"].map(|factor| format!("{PEFT_PREFIX}{module}.lora_{factor}.weight"))
}
