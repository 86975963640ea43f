//! `model.model_config.pet_config`: low-rank adapters, which train in place of the model's own parameters.

use super::PATH;
use crate::element::Element;
use crate::model::config::{FactorInit, LowRank, Magnitudes, ModelConfig};
use crate::model::groups::compile_end;
use crate::model::parameters::{Gpt, Role, module_of};
use crate::model::{ModuleList, Selected, select_modules};
use crate::settings::engine::*;
use std::collections::BTreeMap;
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
        /// Whether that product is multiplied by `lora_alpha / √lora_rank` instead (rsLoRA; Kalajdzievski, 2023).
        use_rslora: bool = Numbers.default(false),
        /// Ranks of some layers: a map of patterns to ranks. Patterns are PEFT's: regular expressions that match the
        /// name of Hugging Face's from its start or from a part of it, to its end. The first that matches counts.
        rank_pattern: ByPattern<usize> = Shape.optional().example("{q_proj: 4}\ntarget_modules: q_proj|v_proj"),
        /// Values of `lora_alpha` of some layers, in the form of `rank_pattern`.
        alpha_pattern: ByPattern<f64> = Numbers.optional().example("{q_proj: 4}\ntarget_modules: q_proj|v_proj"),
        /// Whether each output of an adapted layer is scaled by a learned magnitude over the norm of its row of W +
        /// lora_alpha / lora_rank · B A, which gradients take for a constant (DoRA; Liu et al., 2024). Magnitudes start
        /// from the norms of W.
        use_dora: bool = Shape.default(false),
        /// Dropout probability of A's input. Layers that are stored as one matrix, such as q, k and v, share a mask. It
        /// must be 0 with `target_parameters`, as in PEFT, and with `use_dora`, and is by default.
        lora_dropout: f64 = Numbers.default(0.01).within(SHARE_BELOW_ONE),
        /// Layers that get adapters: regular expressions that match from the start of a name or of a part of it. Names
        /// are those of Hugging Face (`q_proj`), of MindFormers (`wq`, `attention.wq`) and of Megatron (`linear_qkv`).
        /// The word `all-linear` stands for all linear layers except the head, as in PEFT.
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
        /// Initial values of A: `he_uniform`, uniform in ±1/√(columns of A), `normal`, with a standard deviation of
        /// 0.01, or `gaussian`, PEFT's, with one of 1 over the rank, the largest of layers that are stored as one
        /// matrix. B starts at zero.
        lora_a_init: FactorInit = Numbers.default(FactorInit::HeUniform),
        /// Storage type of the frozen matrices of the model's layers: `nf4`, 4 bits and a scale for each 64 weights of
        /// a row (QLoRA), or `int8`, 8 bits and a scale for each 32; `compute_dtype` by default. Weights are quantised
        /// while they are loaded.
        base_dtype: Option<BaseType> = Numbers.optional().example("nf4\nrandom_base: False"),
        /// Parameters that do not train, adapters among them: names in which `*` stands for any text.
        freeze_include: Vec<String> = Numbers.optional().example("['*wo.lora*']\ntarget_modules: .*wq|.*wo"),
        /// Modules of the model that train as a whole beside the adapters, such as `embed_tokens` and `lm_head` where
        /// tokens were added: ends of names of Hugging Face's, as in PEFT. Where embedding and head are one matrix,
        /// they become two, the one that is not named frozen.
        modules_to_save: Vec<String> = Shape.optional().example("['norm']"),
        /// Whether embedding and head stay one matrix, which trains, where `modules_to_save` names one of them.
        ensure_weight_tying: bool = Shape.default(false),
        /// The learning rate of B, of `lora_magnitude_vector` and of biases and norms that train, as a multiple of the
        /// rate of A (LoRA+; Hayou et al., 2024). A parameter in a group of `grouped_lr_schedule` keeps the rate of its
        /// group.
        loraplus_lr_ratio: f64 = Numbers.default(1.0).within(ABOVE_ZERO),
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

/// Values by patterns of names of modules, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ByPattern<T>(pub Vec<(String, T)>);

impl<T: Setting> Setting for ByPattern<T> {
    fn kind() -> ValueKind {
        ValueKind::Form("a map of patterns to numbers")
    }

    fn from_node(node: &Node) -> Option<Self> {
        let Node::Map(entries) = node else { return node.is_off().then(|| Self(Vec::new())) };
        let entry = |(pattern, value): &(String, Node)| Some((pattern.clone(), T::from_node(value)?));
        entries.iter().map(entry).collect::<Option<_>>().map(Self)
    }

    fn to_node(&self) -> Option<Node> {
        let entry = |(pattern, value): &(String, T)| Some((pattern.clone(), value.to_node()?));
        let entries: Vec<_> = self.0.iter().filter_map(entry).collect();
        (!entries.is_empty()).then_some(Node::Map(entries))
    }
}

impl<T: Copy> ByPattern<T> {
    /// The values of those `names` that a pattern matches.
    ///
    /// # Errors
    /// A pattern that is no regular expression or matches no name.
    fn of<'a>(
        &self,
        names: impl Iterator<Item = &'a String> + Clone,
    ) -> std::result::Result<BTreeMap<String, T>, String> {
        let mut values = BTreeMap::new();
        for (pattern, value) in &self.0 {
            let regex = compile_end(pattern)?;
            let matched: Vec<&String> =
                names.clone().filter(|name| regex.is_match(name.as_bytes())).collect();
            if matched.is_empty() {
                let shown = names.clone().next().map_or("", String::as_str);
                return Err(format!(
                    "`{}` matches none of the layers that have adapters, such as {shown}; names are those of Hugging Face",
                    pattern.escape_debug()
                ));
            }
            for name in matched {
                values.entry(name.clone()).or_insert(*value);
            }
        }
        Ok(values)
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
        ("gaussian", Self::Gaussian),
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
        let names = modules.iter().chain(&parameters);
        let of_key = |key: &'static str| move |message: String| (path_of(key), message);
        let ranks = self.rank_pattern.of(names.clone()).map_err(of_key("rank_pattern"))?;
        let alphas = self.alpha_pattern.of(names).map_err(of_key("alpha_pattern"))?;
        let outside = |range: Range, number: f64| {
            let found = (!(range.accepts)(number)).then_some(number);
            found.map_or(Ok(()), |number| Err(format!("expected {}, found `{number}`", range.words)))
        };
        let mut numbers = ranks.values().map(|rank| outside(SIZE, *rank as f64));
        numbers.try_for_each(|checked| checked).map_err(of_key("rank_pattern"))?;
        let mut numbers = alphas.values().map(|alpha| outside(ABOVE_ZERO, *alpha));
        numbers.try_for_each(|checked| checked).map_err(of_key("alpha_pattern"))?;
        Ok(LowRank {
            rank: self.lora_rank,
            alpha: self.lora_alpha,
            is_rank_stabilised: self.use_rslora,
            magnitudes: if self.use_dora { Magnitudes::Learned } else { Magnitudes::None },
            ensures_tying: self.ensure_weight_tying,
            is_untied: false,
            ranks,
            alphas,
            dropout: self.lora_dropout,
            init: self.lora_a_init,
            base: self.base_dtype.map(BaseType::element),
            modules,
            parameters,
        })
    }

    /// Whether embedding and head are one matrix in the model of `config` and become two, because one of them trains.
    pub(crate) fn unties(&self, config: &ModelConfig) -> bool {
        config.tie_word_embeddings && !self.ensure_weight_tying && !self.saved_tables(config).is_empty()
    }

    /// What of embedding and head `modules_to_save` names, by their names in files.
    fn saved_tables(&self, config: &ModelConfig) -> Vec<(Role, String)> {
        if self.modules_to_save.is_empty() {
            return Vec::new();
        }
        let untied = ModelConfig { tie_word_embeddings: false, low_rank: None, ..config.clone() };
        let tables = Gpt::describe(&untied)
            .into_iter()
            .filter(|spec| matches!(spec.role, Role::Embedding | Role::Head));
        let names = tables.flat_map(|spec| spec.pieces.into_iter().map(move |piece| (spec.role, piece.name)));
        let modules = names.map(|(role, name)| (role, module_of(&name).to_string()));
        modules
            .filter(|(_, module)| self.modules_to_save.iter().any(|saved| module.ends_with(saved.as_str())))
            .collect()
    }

    /// The modules that train as a whole in the model of `config`, where the embedding stands for a head that it
    /// is, too.
    pub(crate) fn saved_modules(&self, config: &ModelConfig) -> Vec<String> {
        let heads: Vec<String> = self
            .saved_tables(config)
            .into_iter()
            .filter(|(role, _)| config.tie_word_embeddings && *role == Role::Head)
            .map(|(_, name)| name)
            .collect();
        let is_head = |saved: &&String| heads.iter().any(|head| head.ends_with(saved.as_str()));
        let others = self.modules_to_save.iter().filter(|saved| !is_head(saved)).cloned();
        let specs = if heads.is_empty() { Vec::new() } else { Gpt::describe(config) };
        let embedding =
            specs.into_iter().filter(|spec| spec.role == Role::Embedding).flat_map(|spec| spec.pieces);
        others.chain(embedding.map(|piece| module_of(&piece.name).to_string())).collect()
    }

    /// Whether B learns at another rate than A.
    pub(crate) fn has_own_rate_of_b(&self) -> bool {
        self.loraplus_lr_ratio != 1.0
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
    if pet.use_dora {
        if !section.has("lora_dropout") {
            pet.lora_dropout = 0.0;
        }
        let message = "must be 0 with `use_dora`: the product with W of what is dropped is not built";
        section.require(&["lora_dropout"], pet.lora_dropout == 0.0, message);
        let message = "cannot go with `use_dora`: experts have no magnitudes, as in PEFT; remove one of them";
        section.require(&["target_parameters"], pet.target_parameters.is_empty(), message);
    }
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
