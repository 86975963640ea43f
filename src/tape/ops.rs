//! The differentiable ops: each records its kernel, and a closure that records its backward.

use super::{Parameter, Tape, Var};
use crate::element::Element;
use crate::ops::attention::{self, Attention, AttentionTensors, DocumentBounds, Sinks};
use crate::ops::column_sum::column_sum;
use crate::ops::decode::{self, Decode, DecodeTensors};
use crate::ops::dropout::{self, Dropout};
use crate::ops::heads::HeadLayout;
use crate::ops::layer_norm::LayerNorm;
use crate::ops::matrix_ranks::MatrixRanks;
use crate::ops::qk_norm::{self, Values};
use crate::ops::rms_norm::RmsNorm;
use crate::ops::rope::{self, Rope};
use crate::ops::{add, clip, embedding, layer_norm, max_logit, qk_layer_norm, rms_norm, zero};
use crate::record::Tensor;

impl<'p> Tape<'_, 'p> {
    /// Rows of `table` (V, D) by id, times `factor` if there is one: (N, D). `order` (1, N): token indices sorted by
    /// id.
    #[track_caller]
    pub fn embedding(
        &mut self,
        ids: Tensor,
        order: Tensor,
        table: &'p Parameter,
        factor: Option<f32>,
        element: Element,
    ) -> Var {
        let y = self.rec.tensor("y", ids.cols, table.weight[0].cols, element);
        embedding::embedding(self.rec, ids, &table.weight, factor, y);
        self.looked_up(ids, order, (table, factor), 0, y, &[])
    }

    /// One term of an [`embedding`](Self::embedding) that is summed over `ranks`, each of which holds equally many
    /// rows, in `table`.
    #[track_caller]
    pub fn embedding_part(
        &mut self,
        ids: Tensor,
        order: Tensor,
        table: &'p Parameter,
        factor: Option<f32>,
        element: Element,
        ranks: &MatrixRanks,
    ) -> Var {
        let rows: u32 = table.weight.iter().map(|part| part.rows).sum();
        let first = ranks.place as u32 * rows;
        let y = self.rec.tensor("y", ids.cols, table.weight[0].cols, element);
        embedding::embedding_of_rows(self.rec, ids, &table.weight, first, factor, y);
        self.looked_up(ids, order, (table, factor), first, y, &[])
    }

    /// x (N, D) + rows of `table` (V, D) by id, where the first `skipped` rows have no id, in place: `x` must have no
    /// other reader. `order` (1, N): token indices sorted by id. If x is one term of a sum, only the rank with `adds`
    /// adds the rows, and all ranks have their gradient.
    #[track_caller]
    pub fn add_embedding(
        &mut self,
        x: Var,
        [ids, order]: [Tensor; 2],
        (table, skipped): (&'p Parameter, u32),
        adds: bool,
    ) -> Var {
        if adds {
            embedding::add_embedding(
                self.rec,
                ids,
                &table.weight,
                (embedding::first_row_after(skipped), None),
                x.tensor,
            );
        }
        self.looked_up(ids, order, (table, None), embedding::first_row_after(skipped), x.tensor, &[x])
    }

    /// x (N, P) + factor · columns `first` to `first` + P of the rows of `table` by id, in place: `x` must have no
    /// other reader. `first` and P are multiples of 4. `order` (1, N): token indices sorted by id.
    #[track_caller]
    pub fn add_embedding_columns(
        &mut self,
        x: Var,
        [ids, order]: [Tensor; 2],
        (table, first): (&'p Parameter, u32),
        factor: f32,
    ) -> Var {
        let cols = x.tensor.cols;
        let range = move |parts: &[Tensor]| -> Vec<Tensor> {
            parts.iter().map(|part| part.columns(first, cols)).collect()
        };
        embedding::add_embedding(self.rec, ids, &range(&table.weight), (0, Some(factor)), x.tensor);
        self.result(x.tensor, &[x], table.trains(), move |tape, dy| {
            if let Some(gradient) = &table.gradient {
                embedding::embedding_backward(tape.rec, ids, order, dy, &range(gradient), Some(factor));
            }
            tape.give(x, dy); // last: others may add to dy from here on
        })
    }

    /// The result `y` of adding rows of `table`, whose first row is number `first`, times their factor to `inputs`.
    #[track_caller]
    fn looked_up(
        &mut self,
        ids: Tensor,
        order: Tensor,
        (table, factor): (&'p Parameter, Option<f32>),
        first: u32,
        y: Tensor,
        inputs: &[Var],
    ) -> Var {
        let inputs = inputs.to_vec();
        self.result(y, &inputs.clone(), table.trains(), move |tape, dy| {
            if let Some(gradient) = &table.gradient {
                embedding::embedding_of_rows_backward(tape.rec, ids, order, dy, gradient, first, factor);
            }
            for x in inputs {
                tape.give(x, dy); // last: others may add to dy from here on
            }
        })
    }

    /// [a | b] of a (N, K) and b (N, M): (N, K + M). K must be a multiple of 4.
    #[track_caller]
    pub fn join(&mut self, [a, b]: [Var; 2]) -> Var {
        let (rows, split, cols) = (a.tensor.rows, a.tensor.cols, b.tensor.cols);
        let y = self.rec.tensor("y", rows, split + cols, a.tensor.element);
        let halves = [(a, 0, split), (b, split, cols)];
        for (x, first, cols) in halves {
            add::add(self.rec, x.tensor, y.columns(first, cols), 1.0, false);
        }
        self.result(y, &[a, b], false, move |tape, dy| {
            for (x, first, cols) in halves {
                if let Some(target) = tape.target(x) {
                    add::add(tape.rec, dy.columns(first, cols), target.tensor, 1.0, target.accumulate);
                }
            }
        })
    }

    /// A copy of `count` columns of x from number `first` on, both multiples of 4, for readers that outlive x: (N,
    /// count). Its gradient is added to those columns of x's.
    #[track_caller]
    pub fn copied_columns(&mut self, x: Var, first: u32, count: u32) -> Var {
        let range = move |tensor: Tensor| tensor.columns(first, count);
        let y = self.rec.tensor("y", x.tensor.rows, count, x.tensor.element);
        add::add(self.rec, range(x.tensor), y, 1.0, false);
        self.result(y, &[x], false, move |tape, dy| {
            let Some(target) = tape.target(x) else { return };
            if !target.accumulate {
                zero::zero(tape.rec, target.tensor); // no other reader has a gradient
            }
            add::add(tape.rec, dy, range(target.tensor), 1.0, true);
        })
    }

    /// x / rms(x) · w, (N, D).
    #[track_caller]
    pub fn rms_norm(&mut self, x: Var, weight: &'p Parameter, norm: RmsNorm) -> Var {
        self.rms_norm_onto(None, x, weight, norm)
    }

    /// residual + x / rms(x) · w, (N, D), or w times the factor of the norm. The gradient of the residual is the
    /// gradient of the result, without a copy.
    #[track_caller]
    pub fn add_rms_norm(&mut self, residual: Var, x: Var, weight: &'p Parameter, norm: RmsNorm) -> Var {
        self.rms_norm_onto(Some(residual), x, weight, norm)
    }

    #[track_caller]
    fn rms_norm_onto(&mut self, residual: Option<Var>, x: Var, weight: &'p Parameter, norm: RmsNorm) -> Var {
        let Tensor { rows, cols, element, .. } = x.tensor;
        let y = self.rec.tensor("y", rows, cols, element);
        let rstd = self.rec.tensor("rstd", 1, rows, Element::F32);
        let w = weight.weight();
        match residual {
            None => rms_norm::rms_norm(self.rec, x.tensor, w, y, rstd, norm),
            Some(residual) => {
                let saved = rms_norm::RmsNormSaved { x: x.tensor, w, rstd };
                rms_norm::add_rms_norm(self.rec, residual.tensor, &saved, y, norm);
            }
        }
        let (saved_x, saved_rstd) = (self.save(x), self.save_tensor(rstd));
        let inputs: Vec<Var> = [Some(x), residual].into_iter().flatten().collect();
        self.result(y, &inputs, weight.trains(), move |tape, dy| {
            let saved = rms_norm::RmsNormSaved { x: tape.saved(saved_x), w, rstd: tape.saved(saved_rstd) };
            if let Some(dw) = weight.gradient() {
                rms_norm::rms_norm_backward_weight(tape.rec, &saved, norm, dy, dw);
            }
            if let Some(target) = tape.target(x) {
                rms_norm::rms_norm_backward(tape.rec, &saved, norm, dy, target.tensor, target.accumulate);
            }
            if let Some(residual) = residual {
                tape.give(residual, dy); // last: others may add to dy from here on
            }
        })
    }

    /// (x - mean(x)) / std(x) · w, (N, D), plus b if there is a bias.
    #[track_caller]
    pub fn layer_norm(
        &mut self,
        x: Var,
        weight: &'p Parameter,
        bias: Option<&'p Parameter>,
        norm: LayerNorm,
    ) -> Var {
        let Tensor { rows, cols, element, .. } = x.tensor;
        let y = self.rec.tensor("y", rows, cols, element);
        let [mean, rstd] = ["mean", "rstd"].map(|name| self.rec.tensor(name, 1, rows, Element::F32));
        let w = weight.weight();
        let saved = layer_norm::LayerNormSaved { x: x.tensor, w, mean, rstd };
        layer_norm::layer_norm(self.rec, &saved, bias.map(Parameter::weight), y, norm);
        let [saved_x, saved_mean, saved_rstd] = [x.tensor, mean, rstd].map(|tensor| self.save_tensor(tensor));
        let trains = Parameter::any_trains([weight].into_iter().chain(bias));
        self.result(y, &[x], trains, move |tape, dy| {
            let [x_tensor, mean, rstd] = [saved_x, saved_mean, saved_rstd].map(|handle| tape.saved(handle));
            let saved = layer_norm::LayerNormSaved { x: x_tensor, w, mean, rstd };
            let db = bias.and_then(Parameter::gradient);
            if let Some(dw) = weight.gradient() {
                layer_norm::layer_norm_backward_weight(tape.rec, &saved, dy, dw, db);
            } else if let Some(db) = db {
                column_sum(tape.rec, dy, db, None);
            }
            if let Some(target) = tape.target(x) {
                layer_norm::layer_norm_backward(tape.rec, &saved, norm, dy, target.tensor, target.accumulate);
            }
        })
    }

    /// q and k heads of packed `qkv` normalised one by one; v is copied. Rows of queries alone have no weight of keys.
    #[track_caller]
    pub fn qk_norm(
        &mut self,
        qkv: Var,
        (q_weight, k_weight): (&'p Parameter, Option<&'p Parameter>),
        values: Values,
        layout: HeadLayout,
        norm: RmsNorm,
    ) -> Var {
        let Tensor { rows, element, .. } = qkv.tensor;
        let y = self.rec.tensor("y", rows, layout.cols(), element);
        let rstd = self.rec.tensor("rstd", rows, values.normalised_heads(&layout), Element::F32);
        let wq = q_weight.weight();
        let wk = k_weight.map_or(wq, Parameter::weight);
        let saved = qk_norm::QkNormSaved { x: qkv.tensor, wq, wk, rstd, values };
        qk_norm::qk_norm(self.rec, &saved, y, &layout, norm);
        let (saved_x, saved_rstd) = (self.save(qkv), self.save_tensor(rstd));
        let is_range = saved.is_range();
        let trains = Parameter::any_trains([q_weight].into_iter().chain(k_weight));
        self.result(y, &[qkv], trains, move |tape, dy| {
            let (x, rstd) = (tape.saved(saved_x), tape.saved(saved_rstd));
            let saved = qk_norm::QkNormSaved { x, wq, wk, rstd, values };
            let dw = [q_weight.gradient(), k_weight.and_then(Parameter::gradient)];
            qk_norm::qk_norm_backward_weight(tape.rec, &saved, dy, dw, &layout);
            if is_range {
                if let Some(target) = tape.target(qkv) {
                    assert!(!target.accumulate, "a range of columns has one reader");
                    qk_norm::qk_norm_backward(tape.rec, &saved, dy, Some(target.tensor), &layout, norm);
                }
                return;
            }
            let dx = qk_norm::qk_norm_backward(tape.rec, &saved, dy, None, &layout, norm);
            tape.give(qkv, dx);
        })
    }

    /// q and k heads of packed `qkv` (N, (H + 2 G)·C) normalised one by one by LayerNorm; v is copied. All heads share
    /// the weight and the bias of q, (1, C), and those of k, or have weights of their own, (1, H·C) and (1, G·C).
    #[track_caller]
    pub fn qk_layer_norm(
        &mut self,
        qkv: Var,
        weights: [&'p Parameter; 2],
        biases: Option<[&'p Parameter; 2]>,
        layout: HeadLayout,
        norm: LayerNorm,
    ) -> Var {
        let Tensor { rows, cols, element, .. } = qkv.tensor;
        let y = self.rec.tensor("y", rows, cols, element);
        let statistics = ["mean", "rstd"]
            .map(|name| self.rec.tensor(name, rows, layout.heads + layout.kv_heads, Element::F32));
        let saved_by = move |x, [mean, rstd]: [Tensor; 2]| qk_layer_norm::QkLayerNormSaved {
            x,
            weights: weights.map(Parameter::weight),
            mean,
            rstd,
        };
        let of_forward = biases.map(|biases| biases.map(Parameter::weight));
        let saved = saved_by(qkv.tensor, statistics);
        qk_layer_norm::qk_layer_norm(self.rec, &saved, of_forward, y, &layout, norm);
        let (saved_x, statistics) = (self.save(qkv), statistics.map(|tensor| self.save_tensor(tensor)));
        let trains = Parameter::any_trains(weights.into_iter().chain(biases.into_iter().flatten()));
        self.result(y, &[qkv], trains, move |tape, dy| {
            let saved = saved_by(tape.saved(saved_x), statistics.map(|handle| tape.saved(handle)));
            let gradients =
                [0, 1].map(|i| [weights[i].gradient(), biases.and_then(|biases| biases[i].gradient())]);
            qk_layer_norm::qk_layer_norm_backward_weight(tape.rec, &saved, dy, gradients, &layout);
            qk_layer_norm::qk_layer_norm_backward(tape.rec, &saved, dy, &layout, norm); // in place
            tape.give(qkv, dy);
        })
    }

    /// The number `factor` (1, 1), which does not train, times x.
    #[track_caller]
    pub fn scaled(&mut self, x: Var, factor: &'p Parameter) -> Var {
        assert!(factor.gradient().is_none(), "a factor of rows has no gradient");
        let Tensor { rows, cols, element, .. } = x.tensor;
        let y = self.rec.tensor("y", rows, cols, element);
        let factor = factor.weight();
        add::scale(self.rec, x.tensor, factor, y);
        self.result(y, &[x], false, move |tape, dy| {
            let dx = tape.rec.tensor("dx", rows, cols, element);
            add::scale(tape.rec, dy, factor, dx);
            tape.give(x, dx);
        })
    }

    /// All q heads of packed `qkv` (N, (H + 2 G)·C) normalised together, and all k heads; v is copied. The weights are
    /// (1, H·C) and (1, G·C).
    #[track_caller]
    pub fn joint_qk_norm(
        &mut self,
        qkv: Var,
        [q_weight, k_weight]: [&'p Parameter; 2],
        layout: HeadLayout,
        norm: RmsNorm,
    ) -> Var {
        let Tensor { rows, cols, element, .. } = qkv.tensor;
        let y = self.rec.tensor("y", rows, cols, element);
        let [q_cols, k_cols, v_cols] = [layout.q_cols(), layout.k_cols(), layout.v_cols()];
        let normalised = [(q_weight, 0, q_cols), (k_weight, q_cols, k_cols)];
        let values = move |tensor: Tensor| tensor.columns(layout.v_start(), v_cols);
        let rstd = normalised.map(|(weight, first, cols)| {
            let rstd = self.rec.tensor("rstd", 1, rows, Element::F32);
            let [x, y] = [qkv.tensor, y].map(|tensor| tensor.columns(first, cols));
            rms_norm::rms_norm(self.rec, x, weight.weight(), y, rstd, norm);
            rstd
        });
        add::add(self.rec, values(qkv.tensor), values(y), 1.0, false);
        let (saved_x, saved_rstd) = (self.save(qkv), rstd.map(|rstd| self.save_tensor(rstd)));
        self.result(y, &[qkv], Parameter::any_trains([q_weight, k_weight]), move |tape, dy| {
            let gradient = tape.rec.tensor("gradient", rows, cols, element);
            for ((weight, first, cols), saved_rstd) in normalised.into_iter().zip(saved_rstd) {
                let [x, dy, dx] =
                    [tape.saved(saved_x), dy, gradient].map(|tensor| tensor.columns(first, cols));
                let saved = rms_norm::RmsNormSaved { x, w: weight.weight(), rstd: tape.saved(saved_rstd) };
                if let Some(dw) = weight.gradient() {
                    rms_norm::rms_norm_backward_weight(tape.rec, &saved, norm, dy, dw);
                }
                rms_norm::rms_norm_backward(tape.rec, &saved, norm, dy, dx, false);
            }
            add::add(tape.rec, values(dy), values(gradient), 1.0, false);
            tape.give(qkv, gradient);
        })
    }

    /// x with each element between -limit and limit, (N, F).
    #[track_caller]
    pub fn clip(&mut self, x: Var, limit: f32) -> Var {
        let Tensor { rows, cols, element, .. } = x.tensor;
        let y = self.rec.tensor("y", rows, cols, element);
        clip::clip(self.rec, x.tensor, y, limit);
        let saved_x = self.save(x);
        self.result(y, &[x], false, move |tape, dy| {
            let saved_x = tape.saved(saved_x);
            clip::clip_backward(tape.rec, saved_x, dy, limit); // in place
            tape.give(x, dy);
        })
    }

    /// q and k heads of packed `qkv` rotated by their positions, in place: `qkv` must have no other reader.
    #[track_caller]
    pub fn rope(
        &mut self,
        qkv: Var,
        positions: Tensor,
        cos_sin: Tensor,
        layout: HeadLayout,
        rope: Rope,
    ) -> Var {
        rope::rope(self.rec, qkv.tensor, positions, layout, &rope, cos_sin);
        self.result(qkv.tensor, &[qkv], false, move |tape, dy| {
            rope::rope_backward(tape.rec, dy, positions, layout, &rope, cos_sin);
            tape.give(qkv, dy);
        })
    }

    /// Attention over packed `qkv`, within `documents` if given: (N, heads · value_dim). With `sinks` (1, heads) the
    /// softmax of each head has a learned logit more. If `largest` (1, heads of all ranks) is given, raises it to the
    /// [largest scores](max_logit::max_logit) of its heads.
    #[track_caller]
    pub fn attention(
        &mut self,
        qkv: Var,
        documents: Option<DocumentBounds>,
        attention: Attention,
        sinks: Option<&'p Parameter>,
        largest: Option<Tensor>,
    ) -> Var {
        let Tensor { rows, element, .. } = qkv.tensor;
        let layout = attention.layout;
        let y = self.rec.tensor("y", rows, layout.heads * layout.value_dim, element);
        let lse = self.rec.tensor("lse", rows, layout.heads, Element::F32);
        let logits = largest.map(|_| self.rec.tensor("logits", rows, layout.heads, Element::F32));
        let read = move |gradient| sinks.map(|sinks| Sinks { logits: sinks.weight(), gradient });
        let tensors = AttentionTensors {
            documents,
            logits,
            sinks: read(None),
            ..AttentionTensors::new(qkv.tensor, y, lse)
        };
        attention::attention(self.rec, &tensors, &attention);
        if let (Some(largest), Some(logits)) = (largest, logits) {
            let first = attention.head_range.map_or(0, |range| range.first);
            max_logit::max_logit(self.rec, logits, largest, first);
        }
        let (saved_qkv, saved_lse) = (self.save(qkv), self.save_tensor(lse));
        let saved_y = self.save_tensor(y);
        self.result(y, &[qkv], Parameter::any_trains(sinks), move |tape, dy| {
            let (rows, cols) = (qkv.tensor.rows, qkv.tensor.cols);
            let dqkv = tape.rec.tensor("gradient", rows, cols, element);
            let [x, y, lse] = [saved_qkv, saved_y, saved_lse].map(|handle| tape.saved(handle));
            let sinks = read(sinks.and_then(Parameter::gradient));
            let tensors = AttentionTensors { documents, sinks, ..AttentionTensors::new(x, y, lse) };
            attention::attention_backward(tape.rec, &tensors, dy, dqkv, &attention);
            tape.give(qkv, dqkv);
        })
    }

    /// residual + mask · x / (1 - p), (N, D). Saves nothing: the backward recomputes the mask. The gradient of the
    /// residual is the gradient of the result, without a copy.
    #[track_caller]
    pub fn dropout(&mut self, x: Var, residual: Option<Var>, dropout: Dropout) -> Var {
        let Tensor { rows, cols, element, .. } = x.tensor;
        let y = self.rec.tensor("y", rows, cols, element);
        dropout::dropout(self.rec, x.tensor, residual.map(|residual| residual.tensor), y, false, &dropout);
        let inputs: Vec<Var> = [Some(x), residual].into_iter().flatten().collect();
        self.result(y, &inputs, false, move |tape, dy| {
            if let Some(target) = tape.target(x) {
                dropout::dropout(tape.rec, dy, None, target.tensor, target.accumulate, &dropout);
            }
            if let Some(residual) = residual {
                tape.give(residual, dy); // last: others may add to dy from here on
            }
        })
    }

    /// Copies the keys and values of packed `qkv`, the first `shape.tokens` of each sequence (N, layout.cols()), to
    /// `cache`, which has room for as many or more of each. One with room for fewer receives the rows that `kept` (1,
    /// cache.rows) u32 names.
    ///
    /// # Panics
    /// On a tape for training: a cache has no backward.
    #[track_caller]
    pub fn fill_cache(&mut self, qkv: Var, cache: Tensor, kept: Option<Tensor>, shape: &Decode) {
        assert!(!self.is_recording, "a cache has no backward: use Tape::forward_only");
        let keys = qkv.tensor.columns(shape.layout.k_start(), shape.cache_cols());
        let sequences = keys.rows / shape.tokens;
        let room = cache.rows / sequences;
        if room < shape.tokens {
            let Some(kept) = kept else {
                panic!("a cache with room for fewer tokens must be told which it keeps")
            };
            return embedding::embedding(self.rec, kept, &[keys], None, cache);
        }
        let (copies, rows) = if room == shape.tokens { (1, keys.rows) } else { (sequences, shape.tokens) };
        for copy in 0..copies {
            add::add(self.rec, keys.rows(copy * rows, rows), cache.rows(copy * room, rows), 1.0, false);
        }
    }

    /// Attends to `cache` and to the new token of each sequence, whose keys and values, in packed `qkv` (B,
    /// layout.cols()), are added to the cache: (B, heads · value_dim). With `rope`, queries and keys are first rotated
    /// by its table. With `sinks` (1, heads) the softmax of each head has a learned logit more.
    ///
    /// # Panics
    /// On a tape for training, as [`fill_cache`](Self::fill_cache).
    #[track_caller]
    pub fn decode(
        &mut self,
        qkv: Var,
        positions: Tensor,
        cache: Tensor,
        rope: Option<(Rope, Tensor)>,
        sinks: Option<&'p Parameter>,
        shape: &Decode,
    ) -> Var {
        assert!(!self.is_recording, "a cache has no backward: use Tape::forward_only");
        let Tensor { rows, element, .. } = qkv.tensor;
        let out = self.rec.tensor("y", rows, shape.layout.out_cols(), element);
        let sinks = sinks.map(|sinks| Sinks { logits: sinks.weight(), gradient: None });
        decode::decode(
            self.rec,
            &DecodeTensors { qkv: qkv.tensor, positions, cache, rope, sinks, out },
            shape,
        );
        self.result(out, &[qkv], false, |_, _| {})
    }
}
