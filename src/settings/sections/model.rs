//! `model.model_config`: the shape of the model.

mod fill;
mod latent;
mod layers;
mod pet;
mod rope_scaling;
mod rows;
mod types;

pub(crate) use pet::path_of as pet_path;
pub use pet::{BaseType, Pet, PetType};
pub use rope_scaling::Scaling;
pub(crate) use rope_scaling::{Method as ScalingMethod, keys_of as scaling_keys, takes as scaling_takes};
pub use rows::Model;
pub use types::ModelType;
pub(crate) use types::tables as type_tables;

use crate::model::config::{Family, MixtureConfig, ModelConfig, Recomputed, WIDEST_HEAD};
use crate::settings::engine::*;
use fill::SWITCHES;

/// The section of the model.
pub(crate) const PATH: &str = "model.model_config";
/// The two types whose rows all others share: `LLAMA` for types with gated layers and without positions added to the
/// embedding, and `GPT2` for the others.
pub(crate) const LLAMA: &str = "LlamaConfig";
pub(crate) const GPT2: &str = "GPT2Config";
/// A type with keys of its own.
pub(crate) const CHATGLM2: &str = "ChatGLM2Config";
/// The widest head that the kernels of attention take.
const MAX_HEAD_DIM: usize = WIDEST_HEAD as usize;

/// Dimensions of a head that rotate: rounded down, except that 47.999… gives 48 where the share stands for 48.
fn rotary_dim(head_dim: usize, share: f64) -> usize {
    (head_dim as f64 * share + 1e-6) as usize
}
/// The types with latent attention.
pub(crate) const DEEPSEEK_V2: &str = "DeepseekV2Config";
pub(crate) const DEEPSEEK_V3: &str = "DeepseekV3Config";
pub(crate) const GPT_OSS: &str = "GptOssConfig";
pub(crate) const OPT: &str = "OPTConfig";

const OUTER: TableId = TableId::of("model");

/// The table of the section `model` itself.
pub(crate) fn outer_table() -> (TableId, Table) {
    (OUTER, Table::unused("`model`: the model.", [sections("model_config arch")]))
}

/// Reads the section and fills in its defaults.
pub(crate) fn read(source: &Source) -> Model {
    Reader::open(source, "model", &[OUTER]);
    let class = ["model.model_config.type", "model.arch.type"];
    if !class.iter().all(|path| source.is_sound(path)) || is_elsewhere(source) {
        // Another model's keys are unknown only because the model is; adapters do not depend on it.
        pet::check(source);
        source.distrust(PATH);
        return Model::default();
    }
    let kind = source.value::<ModelType>(class[0]).unwrap_or_default();
    Reader::open(source, "model.arch", &[TableId::of("model.arch")]);
    let [of_type, of_base] = kind.reads().map(|word| Model::ID.of_type(word));
    let reader = Reader::open(source, PATH, &[Model::ID, of_type, of_base]).of_types(&kind.reads());
    if !is_described(source) {
        return Model::default();
    }
    let foreign: Vec<_> = reader.foreign::<Model>().filter(|(key, _)| reader.asks(key)).collect();
    let others = foreign.iter().filter(|(key, _)| !latent::KEYS.contains(key));
    others.for_each(|(key, types)| reader.refuse(key, types));
    let is_foreign = |key: &&str| foreign.iter().any(|(other, _)| other == key);
    latent::refuse(&reader, &latent::KEYS.into_iter().filter(is_foreign).collect::<Vec<_>>());
    let mut model = Model::read(&reader);
    (kind.entry().check)(&mut model, &reader);
    fill::fill(&mut model, &reader);
    model
}

impl Model {
    /// Whether attention is latent.
    fn is_latent(&self) -> bool {
        [DEEPSEEK_V2, DEEPSEEK_V3].contains(&self.kind.word())
    }

    /// Number of blocks, those of multi-token prediction included.
    pub(crate) fn blocks(&self) -> usize {
        self.config.num_layers.saturating_add(self.mtp_depth.unwrap_or(0))
    }

    /// The model of a section that has no fault, with this `mixture` and these activations `recomputed`. The modules
    /// that have adapters follow from the names of the rest.
    pub(crate) fn with(&self, mixture: Option<MixtureConfig>, recomputed: Recomputed) -> ModelConfig {
        let config = ModelConfig { mixture, recomputed, ..self.config.clone() };
        let family = if (self.kind.entry().fits)(&config) { config.family } else { Family::Llama };
        ModelConfig { family, ..config }
    }

    /// The section with the rows that its type reads. A switch of a bias that agrees with the base's default is left
    /// out, as files without these keys mean the default.
    pub(crate) fn written_rows(&self) -> Placed {
        let (table, base) = (Self::table(), self.kind.is(GPT2));
        let is_base = [LLAMA, GPT2].contains(&self.kind.word());
        let is_read = |entry: &Entry| table.row(entry.key).is_some_and(|row| self.kind.reads_row(row));
        let says_nothing = |entry: &Entry| {
            is_base && SWITCHES.contains(&entry.key) && entry.written == Some(Node::Bool(base))
        };
        let mut placed = self.placed(PATH);
        placed.entries.retain(|entry| is_read(entry) && !says_nothing(entry));
        placed
    }
}

/// Whether the shape is in a folder that could not be read; that fault is reported already.
pub(crate) fn is_elsewhere(source: &Source) -> bool {
    let is_named = source.node("pretrained_model_dir").is_some_and(|node| !node.is_off());
    is_named || !source.is_sound("load_checkpoint")
}

/// Whether any required key is written. Templates leave out all of them; that is one fault and not five.
fn is_described(source: &Source) -> bool {
    let rows = source.table(Model::ID).map_or(&[][..], |table| &table.rows);
    let required: Vec<&str> = rows.iter().filter(|row| row.is_required).map(|row| row.key).collect();
    let describes = |(key, node): &(String, Node)| required.contains(&key.as_str()) && !node.is_none();
    if source.entries(PATH).iter().any(describes) {
        return true;
    }
    let is_explained = required.iter().any(|key| source.explains_absence(PATH, key));
    source.distrust(PATH);
    if !is_explained {
        source.missing(
            PATH,
            required[0],
            format!("describes no model; write at least `{}`", required.join("`, `")),
        );
    }
    false
}
