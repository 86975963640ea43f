//! The classes of MindFormers: which are of which type here, which keys they have beside the type's, and which stay out.

use crate::settings::engine::*;
use crate::settings::sections::model::{DEEPSEEK_V2, DEEPSEEK_V3, LLAMA, ModelType, PATH};

/// A class of MindFormers' configuration, together with the classes of `model.arch.type` that compute it as a type does.
struct Class {
    /// The type.
    word: &'static str,
    /// The class of its configuration.
    config: &'static str,
    /// The classes of models that go with it, between spaces.
    models: &'static str,
}

/// Every class. Where several types share one, the first is meant unless `model.arch.type` names another.
const CLASSES: [Class; 18] = [
    own(LLAMA, "LlamaForCausalLM LlamaForCausalLMWithLora"),
    own("GPT2Config", "GPT2LMHeadModel GPT2WithLora"),
    own("ChatGLM2Config", "ChatGLM2ForConditionalGeneration ChatGLM2WithLora"),
    own("QwenConfig", "QwenForCausalLM QwenForCausalLMWithLora"),
    own("InternLMConfig", "InternLMForCausalLM InternLMForCausalLMWithLora"),
    own("InternLM2Config", "InternLM2ForCausalLM InternLM2ForCausalLMWithLora"),
    own("TelechatConfig", "TelechatForCausalLM TelechatForCausalLMWithLora"),
    of_llama("Baichuan2_7BConfig", "Baichuan7BV2ForCausalLM Baichuan7BV2ForCausalLMWithLora"),
    of_llama("Baichuan_13BConfig", "Baichuan13BForCausalLM"),
    of_llama("Baichuan2_13BConfig", "Baichuan13BV2ForCausalLM Baichuan13BV2ForCausalLMWithLora"),
    own("BloomConfig", "BloomLMHeadModel"),
    own("WizardCoderConfig", "WizardCoderLMHeadModel"),
    own("PanguAlphaConfig", "PanguAlphaHeadModel CodeGeexHeadModel"),
    own(DEEPSEEK_V3, "DeepseekV3ForCausalLM DeepseekV3ForTraining"),
    own(DEEPSEEK_V2, "DeepseekV2ForCausalLM DeepseekForCausalLM"),
    // Of transformers alone.
    own("Phi3Config", "Phi3ForCausalLM"),
    own("Ernie4_5Config", "Ernie4_5ForCausalLM"),
    own("HeliumConfig", "HeliumForCausalLM"),
];

/// A type that is called as the class of its configuration.
const fn own(word: &'static str, models: &'static str) -> Class {
    Class { word, config: word, models }
}

/// A type whose configuration is Llama's class.
const fn of_llama(word: &'static str, models: &'static str) -> Class {
    Class { word, config: LLAMA, models }
}

const ARCH: &str = "model.arch.type";

/// Writes the type that `model_config.type` and `arch.type` name, Llama where neither does; `None` after a fault.
pub(super) fn translate(source: &mut Source) -> Option<ModelType> {
    let config = join(PATH, "type");
    if [&config, ARCH].into_iter().any(|path| stays_out(source, path)) {
        return None;
    }
    let is_called = |class: &&Class| match source.node(&config) {
        Some(node) => node.word().is_some_and(|word| class.word == word || class.config == word),
        None => true,
    };
    let classes: Vec<&Class> = CLASSES.iter().filter(is_called).collect();
    let Some(first) = classes.first() else {
        let found = source.node(&config).map_or(String::new(), ToString::to_string);
        let list = "`gristmill explain model.model_config.type` lists those that are";
        source.fault(&config, format!("{found} is not built; {list}"));
        return None;
    };
    let class = match source.node(ARCH) {
        None => first,
        Some(arch) => match classes.iter().find(|class| class.computes(arch)) {
            Some(class) => class,
            None => {
                source.fault(ARCH, first.does_not_go_with(arch, &classes));
                return None;
            }
        },
    };
    let origin = [config.as_str(), ARCH].into_iter().find(|path| source.node(path).is_some());
    if let Some(origin) = origin {
        source.document.put(&config, class.word.into(), origin);
    }
    ModelType::named(class.word)
}

impl Class {
    fn computes(&self, arch: &Node) -> bool {
        arch.word().is_some_and(|word| words(self.models).any(|known| known == word))
    }

    /// Why `arch` is not its model, where `classes` have the name that is written.
    fn does_not_go_with(&self, arch: &Node, classes: &[&Self]) -> String {
        if CLASSES.iter().any(|class| class.computes(arch)) {
            return format!("is not the model of `{}`; change one of the two", self.word);
        }
        let known: Vec<&str> = classes.iter().filter_map(|class| words(class.models).next()).collect();
        format!("{arch} is not built; write `type: {}`", known.join("` or `type: "))
    }
}

/// What the documentation of the type `word` says of its classes.
pub(super) fn about(word: &str) -> String {
    let Some(class) = CLASSES.iter().find(|class| class.word == word) else { return String::new() };
    let models = words(class.models).collect::<Vec<_>>().join("`, `");
    match class.config == class.word {
        true => format!(" `model.arch.type`: `{models}`."),
        false => {
            format!(" In MindFormers its configuration is `{}`. `model.arch.type`: `{models}`.", class.config)
        }
    }
}

/// Classes of configurations and of models, between spaces, and what they would need.
pub(crate) const OUTSIDE: [(&str, &str); 9] = [
    (
        "GLMConfig GLMForPreTraining GLMForPreTrainingWithLora GLMChatModel GLMChatModelWithLora",
        "the first ChatGLM attends to its prompt in both directions, by a mask of each row's own, and attention here is causal; \
         ChatGLM2Config is causal",
    ),
    (
        "WhisperConfig WhisperForConditionalGeneration",
        "Whisper reads audio by an encoder, and models here read tokens",
    ),
    (
        "VisualGLMConfig VisualGLMForPreTraining VisualglmWithLora LlavaConfig LlavaVlm LlavaNextConfig LlavaNextVlm Blip2Config \
         Blip2Llm ItPlus QwenVLConfig QwenVL Qwen2VLConfig Qwen2VLForConditionalGeneration CogVLM2Config \
         CogVLM2ForCausalLM CogVLM2VideoLM CogVLM2ContrastiveLM InternVLChatConfig MllamaConfig \
         MllamaForConditionalGeneration",
        "its text follows images, which an encoder reads, and models here read tokens; train the language model alone by its \
         own type",
    ),
    (
        "BloomRewardModel LlamaRewardModel GPT2RewardModel PanguAlphaRewardModel Baichuan7BReward",
        "a reward model scores whole answers by a head of its own, and a run here predicts tokens; write the model's class with \
         a language head",
    ),
    (
        "LlamaDPO ChatGLM2DPO ChatGLM4DPO DPO GPT2DPO",
        "preference pairs need a second, frozen model beside the one that trains; fine-tune the model's class with a language \
         head on the preferred answers",
    ),
    (
        "ChatGLM2WithPtuning2 LlamaForCausalLMWithPtuning2",
        "P-tuning trains prefixes of keys and values, which attention here does not have; write the model's plain class",
    ),
    (
        "GPT2ForSequenceClassification LlamaForSequenceClassification PanguAlphaPromptTextClassificationModel \
         BertForTokenClassification BertForMultipleChoice BertForQuestionAnswering BertForPreTraining BertConfig RobertaConfig",
        "a run here predicts the next token of a text; write the model's class with a language head",
    ),
    (
        "T5Config T5ForConditionalGeneration",
        "T5 has an encoder beside its decoder, and models here are decoders alone",
    ),
    (
        "ViTConfig SwinConfig ViTMAEConfig CLIPConfig SamConfig ViTForImageClassification SwinForImageClassification CLIPModel \
         SamModel ViTMAEForPreTraining",
        "it reads images, and models here read tokens",
    ),
];

/// Whether the class at `path` stays out; then that is a fault.
pub(super) fn stays_out(source: &Source, path: &str) -> bool {
    let Some(word) = source.word(path) else { return false };
    let why = OUTSIDE.iter().find(|(classes, _)| words(classes).any(|class| class == word));
    if let Some((_, why)) = why {
        source.fault(path, format!("`{word}` is not built: {why}"));
    }
    why.is_some()
}
