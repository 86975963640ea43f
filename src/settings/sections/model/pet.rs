//! `model.model_config.pet_config`: low-rank adapters, which train in place of the model's own parameters.

use super::PATH;
use crate::element::Element;
use crate::model::config::{FactorInit, LowRank, ModelConfig};
use crate::model::{ModuleList, Selected, select_modules};
use crate::settings::engine::*;
use std::path::{Path, PathBuf};

rows! {
    /// `model.model_config.pet_config`: low-rank adapters (LoRA; Hu et al., 2021). An adapted linear layer computes x
    /// Wᵀ + lora_alpha / lora_rank · (x Aᵀ) Bᵀ, and only A and B train. Checkpoints hold A and B as PEFT does, in
    /// `adapter_model.safetensors`, and name the model of `load_checkpoint` instead of copying it.
    pub struct Pet in "model.model_config.pet_config" {
        /// Kind of the adapters; `lora` is the only one.
        kind "pet_type": PetType = Shape.required().read_by(|reader, key| reader.kind(key, Self::ID)),
        /// Rank r of the adapters: rows of A and columns of B.
        lora_rank: usize = Shape.default(8).within(SIZE),
        /// Scale of the adapters: the product of A and B is multiplied by `lora_alpha / lora_rank`.
        lora_alpha: f64 = Numbers.default(16.0).within(ABOVE_ZERO),
        /// Dropout probability of A's input. Layers that are stored as one matrix, such as q, k and v, share a mask. It
        /// must be 0 with `target_parameters`, as in PEFT, and is by default.
        lora_dropout: f64 = Numbers.default(0.01).within(SHARE_BELOW_ONE),
        /// Layers that get adapters: regular expressions that match from the start of a name or of a part of it. Names
        /// are those of Hugging Face (`q_proj`), of MindFormers (`wq`, `attention.wq`) and of Megatron (`linear_qkv`).
        /// Required, except under `model.arch.type: ...WithLora` and beside `target_parameters`.
        target_modules: Vec<String> = Shape.optional().example("['.*wq', '.*wv']"),
        /// Experts that get adapters, by the parameters that hold the matrices of all experts of a layer in
        /// `transformers`, whatever files call them: regular expressions as in `target_modules`, such as
        /// `mlp.experts.gate_up_proj` and `mlp.experts.down_proj`. Each expert has factors of its own, and gate and up
        /// of an expert share A, as in PEFT, whose key this is.
        target_parameters: Vec<String> = Shape.optional().example("['experts.down_proj']"),
        /// Layers that get no adapters although `target_modules` or `target_parameters` matches them: regular
        /// expressions of the same form.
        exclude_layers: Vec<String> = Shape.optional().example("['1']"),
        /// Initial values of A: `he_uniform`, uniform in ±1/√(columns of A), or `normal`, with a standard deviation of
        /// 0.01. B starts at zero.
        lora_a_init: FactorInit = Numbers.default(FactorInit::HeUniform),
        /// Storage type of the frozen matrices of the model's layers: `nf4`, 4 bits and a scale for each 64 weights of
        /// a row (QLoRA), or `int8`, 8 bits and a scale for each 32; `compute_dtype` by default. Weights are quantised
        /// while they are loaded.
        base_dtype: Option<BaseType> = Numbers.optional().example("nf4\nrandom_base: False"),
        /// Parameters that do not train, adapters among them: names in which `*` stands for any text.
        freeze_include: Vec<String> = Numbers.optional().example("['*wo.lora*']\ntarget_modules: .*wq|.*wo"),
        /// Parameters of the model that train beside the adapters, in the form of `freeze_include`. A parameter that
        /// both match is left as it is.
        freeze_exclude: Vec<String> = Numbers.optional().example("['*norm*']"),
        /// Adapters to start from, instead of initial values: `adapter_model.safetensors` of this program or of PEFT,
        /// or its folder. By default the one beside the weights of `load_checkpoint`, if there is one.
        adapter_path: PathBuf = Host.optional().example("./adapter"),
        /// Whether adapters may train on a model of random weights, where `load_checkpoint` names none: for trials
        /// only.
        random_base: bool = Host.default(false),
    }
}

words! {
    /// `pet_type`.
    pub enum PetType {
        /// Low-rank adapters.
        #[default]
        Lora = "lora",
    }
}

words! {
    /// `base_dtype`.
    pub enum BaseType {
        /// 4-bit NormalFloat.
        #[default]
        Nf4 = "nf4",
        /// 8-bit integers.
        Int8 = "int8",
    }
}

impl BaseType {
    /// The storage type.
    pub fn element(self) -> Element {
        match self {
            Self::Nf4 => Element::Nf4,
            Self::Int8 => Element::Int8,
        }
    }

    /// The type whose storage type is `element`, if there is one.
    pub(crate) fn of(element: Element) -> Option<Self> {
        Self::ALL.into_iter().find(|base| base.element() == element)
    }

    /// All types, the one with the smallest error first.
    pub const ALL: [Self; 2] = [Self::Int8, Self::Nf4];

    /// The word for the type in a configuration.
    pub fn name(self) -> &'static str {
        self.word()
    }
}

impl Words for FactorInit {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("he_uniform", Self::HeUniform),
        ("kaiming", Self::HeUniform),
        ("kaiming_uniform", Self::HeUniform),
        ("normal", Self::Normal),
    ];
}

impl Setting for Pet {
    fn kind() -> ValueKind {
        ValueKind::Form("a section with a `pet_type`")
    }

    fn to_node(&self) -> Option<Node> {
        Some(self.written())
    }

    /// Where adapters and their model start from does not matter once they have started.
    fn to_decision(&self) -> Option<Node> {
        let decides = |entry: &Entry| entry.decides != Host;
        let entries = self.entries().into_iter().filter(decides);
        Some(Node::Map(entries.filter_map(|entry| Some((entry.key.to_string(), entry.written?))).collect()))
    }
}

impl Pet {
    /// The adapters of the model of `config`.
    ///
    /// # Errors
    /// The key whose patterns do not fit the model, and why.
    pub(crate) fn low_rank(&self, config: &ModelConfig) -> std::result::Result<LowRank, (String, String)> {
        let selected =
            select_modules(config, &self.target_modules, &self.target_parameters, &self.exclude_layers);
        let Selected { modules, parameters } = selected.map_err(|(list, message)| {
            let key = match list {
                ModuleList::Targets => "target_modules",
                ModuleList::Parameters => "target_parameters",
                ModuleList::Excluded => "exclude_layers",
            };
            (path_of(key), message)
        })?;
        Ok(LowRank {
            rank: self.lora_rank,
            alpha: self.lora_alpha,
            dropout: self.lora_dropout,
            init: self.lora_a_init,
            base: self.base_dtype.map(BaseType::element),
            modules,
            parameters,
        })
    }

    /// The adapter that training starts from, if one is named.
    pub fn adapter(&self) -> Option<&Path> {
        (!self.adapter_path.as_os_str().is_empty()).then_some(&self.adapter_path)
    }
}

/// The path of a key of the section.
pub(crate) fn path_of(key: &str) -> String {
    format!("{}.pet_config.{key}", PATH)
}

/// The section at `key`; none where it is absent or empty.
pub(super) fn read(reader: &Reader<'_>, key: &'static str) -> Option<Option<Pet>> {
    let node = reader.node(key)?;
    if node.is_off() {
        return Some(None);
    }
    if !matches!(node, Node::Map(_)) {
        reader.fault(key, format!("expected {}, found {node}", Pet::kind().expected()));
        return None;
    }
    Some(Some(read_at(reader.source, &reader.path(key))))
}

fn read_at(source: &Source, path: &str) -> Pet {
    let kind = format!("{path}.pet_type");
    if let Some(word) = source.word(&kind).filter(|word| source.plans(Pet::ID, word)) {
        // The other keys of the section are unknown only because its kind is.
        source.fault(&kind, format!("`{word}` is not built yet; write {}", PetType::Lora.word()));
        return Pet::default();
    }
    let section = Reader::open(source, path, &[Pet::ID]);
    let mut pet = Pet::read(&section);
    if !pet.target_parameters.is_empty() {
        if !section.has("lora_dropout") {
            pet.lora_dropout = 0.0;
        }
        let message = "must be 0 with `target_parameters`: adapters of experts have no dropout, as in PEFT";
        section.require(&["lora_dropout"], pet.lora_dropout == 0.0, message);
    } else if pet.target_modules.is_empty() {
        section.missing("target_modules", "patterns of the layers that get adapters, such as `.*wq|.*wv`");
    }
    pet
}

/// Reports what is wrong with the adapters of a model whose other keys are not read.
pub(super) fn check(source: &Source) {
    let path = format!("{}.pet_config", PATH);
    if source.node(&path).is_some_and(|node| !node.is_off()) {
        read_at(source, &path);
    }
}
