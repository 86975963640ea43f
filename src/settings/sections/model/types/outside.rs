//! Classes of MindFormers that stay out, and why.

use super::{ARCH, PATH};
use crate::settings::engine::*;

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

/// Whether the configuration or the architecture of the model stays out; then that is a fault.
pub(crate) fn stays_out(source: &Source) -> bool {
    [format!("{PATH}.type").as_str(), ARCH].into_iter().any(|path| refuses(source, path))
}

fn refuses(source: &Source, path: &str) -> bool {
    let Some(word) = source.word(path) else { return false };
    let why = OUTSIDE.iter().find(|(classes, _)| words(classes).any(|class| class == word));
    if let Some((_, why)) = why {
        source.fault(path, format!("`{word}` is not built: {why}"));
    }
    why.is_some()
}
