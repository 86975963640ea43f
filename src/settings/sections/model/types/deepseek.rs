//! DeepSeek-V2 and DeepSeek-V3.

use super::{Model, TypeEntry};
use crate::model::config::{Family, ModelConfig};
use crate::settings::engine::*;
use crate::settings::sections::model::{DEEPSEEK_V2, DEEPSEEK_V3, latent};

pub(super) const V3: TypeEntry = TypeEntry {
    word: DEEPSEEK_V3,
    class: None,
    architectures: "DeepseekV3ForCausalLM DeepseekV3ForTraining",
    about: "DeepSeek-V3: a Llama with multi-head latent attention, experts chosen by sigmoid scores with a bias that balances them, \
        and multi-token prediction where `num_nextn_predict_layers` asks for it (in MindFormers always, unless that is 0). The \
        router is DeepSeek-V3's where a file is silent.",
    base: super::LLAMA,
    others: OTHERS,
    prepare,
    family: Family::Llama,
    finish,
};

pub(super) const V2: TypeEntry = TypeEntry {
    word: DEEPSEEK_V2,
    class: None,
    architectures: "DeepseekV2ForCausalLM DeepseekForCausalLM",
    about: "DeepSeek-V2: the same attention, and experts chosen by softmax scores, whose gates are not made to sum to 1.",
    ..V3
};

const OTHERS: &[Other] = &[
    ignored("mla_qkv_concat", "about the layout of MindFormers' weights"),
    ignored("ep_size pretraining_tp", "`parallel_config` says how a run is spread over ranks"),
    differs(
        "aux_loss_alpha seq_aux",
        Passes::Off,
        "not read, as in MindFormers; `moe_aux_loss_coeff` says what balance counts",
    ),
];

fn prepare(model: &mut Model, reader: &Reader<'_>) {
    if !reader.has("rms_norm_eps") {
        model.rms_norm_eps = 1e-6;
    }
    model.init_method_std.get_or_insert(0.02);
    latent::fill(model, reader);
}

fn finish(model: &Model, config: &mut ModelConfig) {
    if let Some(latent) = latent::latent_attention(model) {
        *config = ModelConfig { qk_norm: false, ..latent.within(config.clone()) };
    }
}
