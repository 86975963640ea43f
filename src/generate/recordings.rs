//! What generation runs: the prompt in one pass, then one token of each sequence at a time.

use crate::element::Element;
use crate::kernels::Capabilities;
use crate::model::config::{Activation, ModelConfig};
use crate::model::parameters::Gpt;
use crate::model::{BatchTensors, ForwardContext, Mode, ModelBuffers, widest_expert_tensor};
use crate::ops::embedding::embedding;
use crate::ops::matmul::{Epilogue, Layout, matmul};
use crate::record::{Persistents, Recorder, Recording, Tensor};
use crate::tape::{Parameter, Tape};

/// Two recordings for B sequences of at most T tokens, and the tensors they share.
pub struct GenerateRecordings {
    /// B.
    pub sequences: u32,
    /// T: the model's window.
    pub window: u32,
    /// V.
    pub vocab_size: u32,
    /// The prompts' tokens (1, B·T), padded with anything behind their ends.
    pub prompt: Tensor,
    /// Where each stands in its sequence (1, B·T).
    pub prompt_positions: Tensor,
    /// Rows (1, B) of the prompts' last tokens, whose logits are wanted.
    pub last_rows: Tensor,
    /// The newest token (1, B) of each sequence.
    pub token: Tensor,
    /// Where it stands (1, B).
    pub position: Tensor,
    /// What comes next (B, V), f32.
    pub logits: Tensor,
    /// Fills the caches and `logits` from the prompts.
    pub prefill: Recording,
    /// Adds the newest token to the caches and fills `logits`.
    pub step: Recording,
}

impl GenerateRecordings {
    /// Bytes of the largest tensor they have: none may pass what one binding holds.
    pub fn largest_tensor(config: &ModelConfig, sequences: u32) -> u64 {
        let heads = config.head_layout();
        let halves = if config.activation == Activation::SwiGlu { 2 } else { 1 };
        let inner = halves * config.intermediate_size.next_multiple_of(4);
        let widest = heads.cols().max(config.hidden_size as u32).max(inner as u32);
        let logits = 4 * sequences as u64 * config.vocab_size.next_multiple_of(4) as u64;
        let tokens = sequences * config.seq_length as u32;
        let experts = widest_expert_tensor(config, tokens, true).map_or(0, |[rows, cols]| 4 * rows * cols);
        logits.max(4 * u64::from(tokens) * u64::from(widest)).max(experts)
    }

    /// Writes the recordings for the model `gpt` of `config`.
    pub fn new(
        persistents: &mut Persistents,
        gpt: &Gpt<Parameter>,
        config: &ModelConfig,
        buffers: ModelBuffers,
        sequences: u32,
        capabilities: Capabilities,
    ) -> Self {
        let (window, vocab_size) = (config.seq_length as u32, config.vocab_size as u32);
        let mut ids = |label: &str, count| persistents.tensor(label, 1, count, Element::F32);
        let (prompt, prompt_positions) =
            (ids("prompt", sequences * window), ids("prompt positions", sequences * window));
        let (last_rows, token, position) =
            (ids("last rows", sequences), ids("token", sequences), ids("position", sequences));
        let logits = persistents.tensor("logits", sequences, vocab_size, Element::F32);
        let decode = config.decode();
        let cache = |layer| {
            persistents.tensor(
                format!("cache of layer {layer}"),
                sequences * window,
                decode.cache_cols(),
                Element::F32,
            )
        };
        let caches: Vec<Tensor> = (0..config.num_layers).map(cache).collect();

        let hidden = |rec: &mut Recorder, batch, mode| {
            let context = ForwardContext { config, buffers, batch, mode };
            gpt.hidden(&mut Tape::forward_only(rec), &context).tensor
        };
        let prefill = {
            let mut rec = Recorder::new("prefill", capabilities);
            let h = hidden(&mut rec, batch(prompt, prompt_positions), Mode::Prefill(&caches)); // (B·T, D)
            let last = rec.tensor("last", sequences, h.cols, h.element);
            embedding(&mut rec, last_rows, &[h], last);
            head(&mut rec, gpt, last, logits);
            rec.finish()
        };
        let step = {
            let mut rec = Recorder::new("decode", capabilities);
            let h = hidden(&mut rec, batch(token, position), Mode::Decode(&caches)); // (B, D)
            head(&mut rec, gpt, h, logits);
            rec.finish()
        };
        Self {
            sequences,
            window,
            vocab_size,
            prompt,
            prompt_positions,
            last_rows,
            token,
            position,
            logits,
            prefill,
            step,
        }
    }
}

/// Nothing is learned here, so nobody reads targets or the orders in which gradients are added up.
fn batch(tokens: Tensor, positions: Tensor) -> BatchTensors {
    let unread = tokens;
    BatchTensors {
        tokens,
        targets: unread,
        positions,
        order: unread,
        position_order: Some(unread),
        documents: None,
        ahead: None,
    }
}

/// logits (B, V) of hidden states (B, D), part by part of the head.
fn head(rec: &mut Recorder, gpt: &Gpt<Parameter>, h: Tensor, logits: Tensor) {
    let mut column = 0;
    for part in &gpt.head().weight {
        let columns = logits.columns(column, part.rows);
        matmul(rec, Layout::Nt, h, *part, columns, Epilogue::default());
        column += part.rows;
    }
}
