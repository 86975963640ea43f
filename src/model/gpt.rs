//! The model: a decoder shaped like Llama or GPT-2, read from top to bottom.
//!
//! The weights and their shapes are in [`parameters`](super::parameters), the other inputs of a pass in
//! [`ForwardContext`], the ops in [`tape`](crate::tape).
//!
//! Letters: N = B·T tokens, D width, H query heads and G key-value heads of C dimensions, F feed-forward width, V
//! vocabulary.
//!
//! What may differ between layers is read from [`ModelConfig::layer`](super::config::ModelConfig::layer).

use super::config::{Activation, Gate, Magnitudes, Norm, NormPlacement, ParallelResidual};
use super::context::{DropoutSite, ForwardContext};
use super::multi_token::Prediction;
use super::parameters::{Block, DenseFeedForward, FeedForward, Gpt, Linear, Lora, NormWeights};
use super::per_layer::LayerInputs;
use super::stages::Chunk;
use crate::element::Element;
use crate::ops::column_scale::ColumnFactors;
use crate::ops::dropout::{Dropout, MaskPart};
use crate::ops::matrix_ranks::MatrixRanks;
use crate::record::Tensor;
use crate::tape::{CrossEntropy, HeadForm, Parameter, Tape, Var};
use std::collections::BTreeMap;

/// What layers have of each other and of the model, beside the residual stream.
#[derive(Default)]
pub(super) struct Shared<'p> {
    /// The keys and values (N, 2 G·C) that later layers read, by the number of their layer.
    pub keys: BTreeMap<usize, Var>,
    /// What layers make their own embeddings of, if they have some.
    inputs: Option<LayerInputs<'p>>,
}

impl Gpt<Parameter> {
    /// Adds the batch's next-token `loss` to its state, and in training the losses of multi-token prediction to theirs.
    /// On a tape for training, [`Tape::backward`] continues from here.
    pub fn loss<'p>(&'p self, tape: &mut Tape<'_, 'p>, ctx: &ForwardContext<'p>, loss: &CrossEntropy) {
        let chunk = Chunk::whole(self.blocks.len());
        self.chunk(tape, ctx, &chunk, None, loss);
    }

    /// The part of [`loss`](Self::loss) that belongs to `chunk`. It starts from `rows` (N, D), the result of the
    /// previous chunk, unless it is the first chunk. Returns the rows for the next chunk; the last chunk adds the losses
    /// instead.
    pub fn chunk<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'p>,
        chunk: &Chunk,
        rows: Option<Var>,
        loss: &CrossEntropy,
    ) -> Option<Var> {
        let x = self.layers(tape, ctx, chunk, rows); // (N, D)
        if !chunk.is_last {
            return Some(x);
        }
        self.losses(tape, ctx, x, loss);
        None
    }

    /// Adds the cross-entropy of the head's logits for x (N, D), the residual stream after the last layer.
    fn losses<'p>(&'p self, tape: &mut Tape<'_, 'p>, ctx: &ForwardContext<'p>, x: Var, loss: &CrossEntropy) {
        let h = self.normed(tape, ctx, x);
        let h = ctx.all_rows(tape, h); // (N, D)
        let form = self.head_form(ctx);
        tape.scope("loss", |tape| tape.linear_cross_entropy(h, self.head(), loss, form));
        let ahead = ctx.training().and_then(|training| training.ahead_loss);
        if let (Some(config), Some(ahead)) = (ctx.config.multi_token, ahead) {
            let factor = (config.loss_factor / config.depth as f64) as f32;
            for Prediction { hidden, targets } in self.predict_ahead(tape, ctx, x) {
                let hidden = ctx.all_rows(tape, hidden);
                let further =
                    CrossEntropy { targets, loss: ahead, correct: None, losses: None, factor, ..*loss };
                tape.scope("loss_ahead", |tape| {
                    tape.linear_cross_entropy(hidden, self.head(), &further, form)
                });
            }
        }
    }

    /// (1, 4 P): the [log-probabilities](crate::ops::preference::log_probabilities) of the pairs of `loss`, on a tape
    /// without a backward; into `log_probs` if it is given.
    pub fn log_probabilities<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'p>,
        loss: &CrossEntropy,
        log_probs: Option<Tensor>,
    ) -> Tensor {
        let x = self.layers(tape, ctx, &Chunk::whole(self.blocks.len()), None);
        let h = self.normed(tape, ctx, x);
        let h = ctx.all_rows(tape, h); // (N, D)
        let form = self.head_form(ctx);
        tape.scope("loss", |tape| tape.log_probabilities(h, self.head(), loss, form, log_probs))
    }

    /// The form of the head's rows and logits.
    fn head_form<'c>(&'c self, ctx: &'c ForwardContext<'_>) -> HeadForm<'c> {
        HeadForm {
            unit_epsilon: ctx.config.head_epsilon.map(|epsilon| epsilon as f32),
            bias: self.head_bias.as_ref(),
            factor: ctx.config.logits_factor(),
            soft_cap: ctx.config.logit_cap.map(|cap| cap as f32),
            ranks: ctx.vocabulary_ranks(),
        }
    }

    /// Hidden states (N, D) after the last norm, ready for the head; (N, E) if its table has another width.
    pub fn hidden<'p>(&'p self, tape: &mut Tape<'_, 'p>, ctx: &ForwardContext<'p>) -> Var {
        let x = self.layers(tape, ctx, &Chunk::whole(self.blocks.len()), None); // (N, D)
        self.normed(tape, ctx, x)
    }

    /// The head's table (V, D): the embedding's if they are tied.
    pub fn head(&self) -> &Parameter {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// The residual stream after the last norm, projected for the head. If the last layer's queries are learned, that
    /// norm came before the layer.
    fn normed<'p>(&'p self, tape: &mut Tape<'_, 'p>, ctx: &ForwardContext<'p>, x: Var) -> Var {
        let norm = self.norm.as_ref().filter(|_| !ctx.config.learns_queries());
        let x = norm.map_or(x, |norm| norm.forward(tape, "norm", ctx, x));
        match &self.project_out {
            Some(project_out) => tape.scope("project_out", |tape| project_out.forward(tape, ctx, x, None)),
            None => x,
        }
    }

    /// The residual stream (N, D) after the last layer of `chunk`, which starts from `rows` or from the embedded
    /// tokens.
    fn layers<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'p>,
        chunk: &Chunk,
        rows: Option<Var>,
    ) -> Var {
        let mut shared = Shared::default();
        let mut x = rows.unwrap_or_else(|| {
            let x = self.embedded(tape, ctx);
            shared.inputs = self.per_layer.as_ref().map(|source| LayerInputs::new(source, tape, ctx, x));
            x
        }); // (N, D)
        for (layer, block) in self.blocks.iter().enumerate().filter(|(layer, _)| chunk.layers.contains(layer))
        {
            if let (Some(norm), true) = (&self.norm, ctx.config.layer(layer).has_query_table) {
                x = norm.forward(tape, "norm", ctx, x); // (N, D)
            }
            let scope = format!("layers.{layer}");
            x = tape.scope(scope, |tape| block.layer(tape, ctx, layer, x, &mut shared)); // (N, D)
        }
        x
    }

    /// The input of the first layer: (N, D), or this rank's rows if ranks share tokens.
    fn embedded<'p>(&'p self, tape: &mut Tape<'_, 'p>, ctx: &ForwardContext<'_>) -> Var {
        let x = tape.scope("embedding", |tape| self.embed(tape, ctx));
        match ctx.dropout(DropoutSite::Embedding) {
            None => x,
            Some(dropout) => tape.scope("embedding_dropout", |tape| tape.dropout(x, None, dropout)),
        }
    }

    /// The embedding's rows of the tokens, plus the rows of their positions if positions are learned, normalised in
    /// some models: (N, D).
    fn embed<'p>(&'p self, tape: &mut Tape<'_, 'p>, ctx: &ForwardContext<'_>) -> Var {
        let ids = [ctx.batch.tokens, ctx.batch.order];
        let x = ctx.embed(tape, &self.embedding, ids, self.project_in.as_ref(), self.positions.as_ref());
        match &self.embedding_norm {
            Some(norm) => norm.forward(tape, "norm", ctx, x),
            None => x,
        }
    }
}

impl Block<Parameter> {
    /// [`forward`](Self::forward) as layer number `layer`. Training keeps the layer's result and everything that the
    /// model does not [recompute](super::config::ModelConfig::recomputes).
    pub(super) fn layer<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'p>,
        layer: usize,
        x: Var, // (N, D)
        shared: &mut Shared<'p>,
    ) -> Var {
        let config = ctx.config;
        let drops = move |path: &str| config.recomputed.covers(layer, path);
        if let Some(ranks) =
            ctx.matrix_ranks.filter(|ranks| config.recomputed.keeps_slices && !ranks.shares_tokens)
            && config.recomputed.layers.contains(&layer)
        {
            tape.scope("input", |tape| tape.keep_slice(x, ranks));
        }
        tape.recompute(drops, |tape| self.forward(tape, ctx, layer, x, shared))
    }

    /// x + attention(norm(x)), then x + feed_forward(norm(x)); in some models x + norm(attention(x)), or with both
    /// norms, or norm(x + attention(x)). Where both stand beside each other, the feed-forward network reads the input of
    /// the layer, too.
    fn forward<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        layer: usize,
        x: Var, // (N, D)
        shared: &mut Shared<'p>,
    ) -> Var {
        let is_after_sum = ctx.config.norm_placement == NormPlacement::AfterSum;
        let before = |norm: &'p Option<NormWeights<Parameter>>| norm.as_ref().filter(|_| !is_after_sum);
        let after_sum = |norm: &'p Option<NormWeights<Parameter>>| norm.as_ref().filter(|_| is_after_sum);
        let h = match before(&self.attention_norm) {
            Some(norm) => norm.before(self.attention.reader(), tape, "attention_norm", ctx, x),
            None => Normed::Done(tape.scope("attention", |tape| ctx.enter(tape, x))),
        };
        let residual = Residual { x, norm: self.post_attention_norm.as_ref() };
        let y = tape
            .scope("attention", |tape| self.attention.forward(tape, ctx, layer, h, residual.fused(), shared));
        let site = DropoutSite::AttentionOutput(layer);
        let sum = residual.plus(tape, "post_attention_norm", ctx, y, site); // (N, D)
        let sum = match after_sum(&self.attention_norm) {
            Some(norm) => norm.forward(tape, "attention_norm", ctx, sum),
            None => sum,
        };

        let inputs = shared.inputs.as_ref();
        let (x, shared) = match ctx.config.parallel_residual {
            None => (sum, None),
            Some(ParallelResidual::TwoNorms) => (x, None),
            Some(ParallelResidual::OneNorm) => (x, Some(h)),
        };
        let residual = Residual { x: sum, norm: self.post_ffn_norm.as_ref() };
        let y = match &self.feed_forward {
            FeedForward::Dense(dense) => {
                let h = match (before(&self.ffn_norm), shared) {
                    (_, Some(shared)) => shared,
                    (Some(norm), _) => norm.before(&dense.w_gate_up, tape, "ffn_norm", ctx, x),
                    (None, _) => Normed::Done(tape.scope("feed_forward", |tape| ctx.enter(tape, x))),
                };
                tape.scope("feed_forward", |tape| dense.forward(tape, ctx, layer, h, residual.fused()))
            }
            FeedForward::Mixture(mixture) => {
                let h = match shared {
                    Some(Normed::Done(shared)) => shared,
                    // The product of attention normalised by itself.
                    Some(Normed::Pending(x, weight)) => {
                        tape.scope("ffn_norm", |tape| tape.rms_norm(x, weight, ctx.rms_norm()))
                    }
                    None => {
                        let norm = before(&self.ffn_norm);
                        let h = norm.map_or(x, |norm| norm.forward(tape, "ffn_norm", ctx, x));
                        tape.scope("ffn_norm", |tape| ctx.enter(tape, h))
                    }
                };
                tape.scope("feed_forward", |tape| {
                    mixture.forward(tape, ctx, layer, h, None, residual.fused())
                })
            }
            FeedForward::Both(both) => {
                let norm = self.ffn_norm.as_ref().expect("a norm before both");
                let h = norm.before(&both.dense.w_gate_up, tape, "ffn_norm", ctx, x);
                tape.scope("feed_forward", |tape| both.forward(tape, ctx, layer, h, x))
            }
        };
        let site = DropoutSite::FeedForwardOutput(layer);
        let x = residual.plus(tape, "post_ffn_norm", ctx, y, site); // (N, D)
        let x = match after_sum(&self.ffn_norm) {
            Some(norm) => norm.forward(tape, "ffn_norm", ctx, x),
            None => x,
        };
        let x = match (&self.input, inputs) {
            (None, _) => x,
            (Some(own), Some(inputs)) => tape.scope("input", |tape| own.forward(tape, ctx, layer, x, inputs)),
            (Some(_), None) => {
                panic!("layer {layer} reads the embedded tokens, which are not computed with it")
            }
        };
        match &self.scalar {
            Some(scalar) => tape.scope("scalar", |tape| tape.scaled(x, scalar)),
            None => x,
        }
    }
}

/// The residual stream x (N, D) beside a sublayer, and the norm of the sublayer's output.
struct Residual<'p> {
    x: Var,
    norm: Option<&'p Parameter>,
}

impl<'p> Residual<'p> {
    /// What the sublayer itself adds to its output: nothing if the norm comes first.
    fn fused(&self) -> Option<Var> {
        self.norm.is_none().then_some(self.x)
    }

    /// x + dropout(norm(y)) of a sublayer's output y (N, D), which without a norm is that sum already.
    fn plus(
        self,
        tape: &mut Tape<'_, 'p>,
        name: &str,
        ctx: &ForwardContext<'_>,
        y: Var,
        site: DropoutSite,
    ) -> Var {
        let Some(weight) = self.norm else { return y };
        tape.scope(name, |tape| match ctx.dropout(site) {
            None => tape.add_rms_norm(self.x, y, weight, ctx.post_norm()),
            Some(dropout) => {
                let y = tape.rms_norm(y, weight, ctx.post_norm());
                tape.scope("dropout", |tape| tape.dropout(y, Some(self.x), dropout))
            }
        })
    }
}

/// The input (N, D) of a layer's first product.
#[derive(Clone, Copy)]
pub(super) enum Normed<'p> {
    /// After the norm.
    Done(Var),
    /// Before it: the product normalises, with this weight.
    Pending(Var, &'p Parameter),
}

impl DenseFeedForward<Parameter> {
    /// x + dropout(f · W_down · activation(W_gate_up · h)), or without x just the product.
    pub(super) fn forward<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        layer: usize,
        h: Normed<'p>,  // (N, D)
        x: Option<Var>, // (N, D)
    ) -> Var {
        let y = self.activated(tape, ctx, layer, h); // (N, F)
        let dropout = ctx.dropout(DropoutSite::FeedForwardOutput(layer));
        let factor = ctx.config.residual_factor();
        tape.scope("w_down", |tape| self.w_down.add(tape, ctx, y, factor, dropout, x)) // (N, D)
    }

    /// activation(W_gate_up · h): (N, F).
    fn activated<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        layer: usize,
        h: Normed<'p>,
    ) -> Var {
        let (w, config) = (&self.w_gate_up, ctx.config);
        let inner = config.layer(layer).intermediate_size as u32;
        if let (Some(gate), true, None) = (config.activation.gate(), ctx.has_few_rows(), &w.lora) {
            return tape.scope("w_gate_up", |tape| w.of_few_rows(tape, ctx, h, Some((inner, gate))));
        }
        let name = match config.activation {
            Activation::Gated(_) => "mul",
            Activation::Gelu(_) => "gelu",
            Activation::Xielu => "xielu",
        };
        // One kernel makes an activation and its argument, unless adapters change the argument, or only one of the two
        // is kept.
        let is_kept = |operator: &str| !config.recomputed.covers(layer, &format!("feed_forward.{operator}"));
        if let (Normed::Done(h), None, None, true) =
            (h, &w.lora, &self.xielu, is_kept("w_gate_up") == is_kept(name))
        {
            return tape.scope("w_gate_up", |tape| match config.activation {
                Activation::Gated(gate) => tape.linear_swiglu(h, &w.weight, w.bias.as_ref(), inner, gate),
                Activation::Gelu(kind) => tape.linear_gelu(h, &w.weight, w.bias.as_ref(), kind),
                Activation::Xielu => panic!("xIELU has numbers"),
            });
        }
        let h = tape.scope("w_gate_up", |tape| w.of_normed(tape, ctx, h)); // (N, 2 F); without a gate (N, F)
        tape.scope(name, |tape| match config.activation {
            Activation::Gated(gate) => tape.swiglu(h, inner, gate),
            Activation::Gelu(kind) => tape.gelu(h, kind),
            Activation::Xielu => {
                let numbers = self.xielu.as_ref().expect("xIELU has numbers");
                tape.xielu(h, &numbers.alphas, &numbers.constants)
            }
        })
    }
}

impl NormWeights<Parameter> {
    /// The norm of x for `reader`, which computes it itself if [that is faster](ForwardContext::has_few_rows).
    fn before<'p>(
        &'p self,
        reader: &Linear<Parameter>,
        tape: &mut Tape<'_, 'p>,
        name: &str,
        ctx: &ForwardContext<'_>,
        x: Var,
    ) -> Normed<'p> {
        if ctx.has_few_rows() && ctx.config.norm == Norm::RmsNorm && reader.lora.is_none() {
            Normed::Pending(x, &self.weight)
        } else {
            let h = self.forward(tape, name, ctx, x);
            Normed::Done(tape.scope(name, |tape| ctx.enter(tape, h)))
        }
    }

    /// The model's norm of x: (N, D).
    fn forward<'p>(&'p self, tape: &mut Tape<'_, 'p>, name: &str, ctx: &ForwardContext<'_>, x: Var) -> Var {
        tape.scope(name, |tape| match ctx.config.norm {
            Norm::LayerNorm => tape.layer_norm(x, &self.weight, self.bias.as_ref(), ctx.layer_norm()),
            Norm::RmsNorm => tape.rms_norm(x, &self.weight, ctx.rms_norm()),
        })
    }
}

impl Linear<Parameter> {
    /// x Wᵀ + b + residual, plus the adapters' output.
    pub(super) fn forward<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        x: Var,
        residual: Option<Var>,
    ) -> Var {
        self.scaled(tape, ctx, x, residual, None, None)
    }

    /// residual + factor · (x Wᵀ + b), plus the adapters' output times the factor; x is some columns of the whole if
    /// `ranks` share them.
    pub(super) fn scaled<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        x: Var,
        residual: Option<Var>,
        factor: Option<f32>,
        ranks: Option<&MatrixRanks>,
    ) -> Var {
        if let Some((lora, magnitudes)) = self.magnitudes().filter(|_| ctx.adapts()) {
            let y = tape.linear(x, &self.weight, None, None); // (N, rows), without bias and factor
            let y = lora.add(tape, ctx, x, y, None, ranks);
            let of = lora.column_factors(tape, ctx, &self.weight, magnitudes);
            return tape.scope("magnitudes", |tape| {
                tape.scaled_columns(y, (magnitudes, of), self.bias.as_ref(), residual, factor)
            });
        }
        let y = tape.scaled_linear(x, &self.weight, self.bias.as_ref(), residual, factor);
        self.adapted(tape, ctx, x, y, factor, ranks)
    }

    /// The adapters, if they scale the columns of the product, and their magnitudes.
    fn magnitudes(&self) -> Option<(&Lora<Parameter>, &Parameter)> {
        let lora = self.lora.as_ref()?;
        Some((lora, lora.magnitudes.as_ref()?))
    }

    /// y plus the adapters' output times `factor`; their input x is some columns of the whole if `ranks` share them.
    fn adapted<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        x: Var,
        y: Var,
        factor: Option<f32>,
        ranks: Option<&MatrixRanks>,
    ) -> Var {
        match self.lora.as_ref().filter(|_| ctx.adapts()) {
            Some(lora) => lora.add(tape, ctx, x, y, factor, ranks),
            None => y,
        }
    }

    /// h Wᵀ + b, plus the adapters' output.
    pub(super) fn of_normed<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        h: Normed<'p>,
    ) -> Var {
        match h {
            Normed::Done(h) => self.forward(tape, ctx, h, None),
            Normed::Pending(..) => self.of_few_rows(tape, ctx, h, None),
        }
    }

    /// h Wᵀ + b for few rows or, if it is packed gate and up, their activation(gate) · up: `gated` is the width of each
    /// and that activation.
    fn of_few_rows<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        h: Normed<'p>,
        gated: Option<(u32, Gate)>,
    ) -> Var {
        let (x, norm) = match h {
            Normed::Done(h) => (h, None),
            Normed::Pending(x, weight) => (x, Some((weight, ctx.rms_norm()))),
        };
        tape.linear_of_few_rows(x, norm, &self.weight, self.bias.as_ref(), gated)
    }

    /// x + dropout(f · (y Wᵀ + b)), where f is `factor`, or without x just f · (y Wᵀ + b).
    /// Without dropout the product's kernel adds x. If ranks share W's columns, the first rank adds b.
    pub(super) fn add<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        y: Var,
        factor: Option<f32>,
        dropout: Option<Dropout>,
        x: Option<Var>,
    ) -> Var {
        if let Some(ranks) = ctx.matrix_ranks {
            return ctx.leave(tape, ranks, dropout, x, |tape| {
                let is_first = ranks.place == 0;
                let part = tape.linear_part(y, &self.weight, self.bias.as_ref(), is_first, factor);
                self.adapted(tape, ctx, y, part, factor, Some(ranks))
            });
        }
        match dropout.filter(|_| x.is_some()) {
            None => self.scaled(tape, ctx, y, x, factor, None),
            Some(dropout) => {
                let y = self.scaled(tape, ctx, y, None, factor, None);
                tape.scope("dropout", |tape| tape.dropout(y, x, dropout))
            }
        }
    }
}

impl Lora<Parameter> {
    /// The factors of the columns of the product with `weight` (rows, in): 1 where no map is adapted.
    fn column_factors(
        &self,
        tape: &mut Tape<'_, '_>,
        ctx: &ForwardContext<'_>,
        weight: &Parameter,
        magnitudes: &Parameter,
    ) -> ColumnFactors {
        let is_learned = ctx.config.low_rank.as_ref().is_some_and(|of| of.magnitudes == Magnitudes::Learned);
        let magnitudes = magnitudes.weight();
        if !is_learned {
            return ColumnFactors { magnitudes, squares: None };
        }
        // They are few numbers, and cost as much as some rows of the product.
        let squares = tape.keeping(|tape| {
            tape.scope("row_squares", |tape| {
                let squares = tape.rec.tensor("squares", 1, magnitudes.cols, Element::F32);
                self.row_squares(tape.rec, weight, true, squares);
                squares
            })
        });
        ColumnFactors { magnitudes, squares: Some(squares) }
    }

    /// y + factor · scale · (dropout(x) Aᵀ) Bᵀ, in place: y must have no other reader.
    fn add<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        x: Var,
        y: Var,
        factor: Option<f32>,
        ranks: Option<&MatrixRanks>,
    ) -> Var {
        let scale = self.scale * factor.unwrap_or(1.0);
        let cols = x.tensor.cols;
        let part = ranks.map(|ranks| MaskPart {
            first_row: 0,
            first_col: ranks.place as u32 * cols,
            cols: ranks.size() * cols,
        });
        let dropout = ctx.dropout(DropoutSite::AdapterInput(self.layer, self.place));
        let dropout = dropout.map(|dropout| Dropout { part, ..dropout });
        let z = tape.scope("lora_a", |tape| tape.low_rank_down(x, &self.a, dropout, scale)); // (N, sum of padded r)
        tape.scope("lora_b", |tape| tape.low_rank_up(y, z, &self.b, self.maps.clone()))
    }
}
