//! A mixture of experts as the feed-forward network of a layer.
//!
//! ```text
//! h (N, D) -- router --> logits (N, E) -- route --> ids, gates (N, k), scores (N, E)
//!      scores, ids -- balance --> the gradient of the balance losses (B, E), added by route's backward
//!      ids -- place --> counts (E), offsets (E + 1), places (N k), sources (R)
//!      counts -- tally --> choices and drops of the step
//!      gates, places -- renormalise_gates --> gates (N, k), under TopkRouterV1 with capacities
//!      gates, ids -- scale_gates --> gates (N, k), beside a dense network
//!      offsets -- work_list --> tiles, grids
//! h -- permute --> (R, D) -- w_gate_up --> (R, 2 F) -- swiglu --> (R, F) -- w_down --> (R, D) = rows
//! or, without a gate                               (R, F) -- gelu --> (R, F), with a bias in both products
//! x, rows, gates -- combine --> x + sum of gate * row (N, D) -- + the shared expert, through row_gate if it has a gate
//! ```
//!
//! Letters: N tokens, B sequences, E experts of which each token visits k, D width, F inner width of an expert, S inner
//! width of the shared expert, R rows of all experts.
//!
//! Balance losses act through the scores, not through the choice: the router's backward adds their gradient, times loss
//! scale / accumulation, even if nothing uses the gates. The metric `loss` is only the cross-entropy of the next token;
//! `load_balancing_loss` and `z_loss` are reported beside it with their factors, `mtp_loss` without its factor. If
//! experts are spread over ranks and some are hot, the last rows are those of the hot ones, which do not travel
//! (`Experts::forward_hot`). Evaluation has neither balance losses nor a tally, and experts have the capacities of
//! training. Generation is always dropless, because a text must not depend on the others in its batch.
//!
//! Adapters of experts are grouped products over the same work list: x A_eᵀ of r columns, and z B_eᵀ, which is added to
//! the product that it adapts.
//!
//! A slot without a token holds a row of zeros, and with biases its result is not zero; but nobody reads that result,
//! and the gradient of the slot is zero, so it adds nothing to the gradients of the biases.

use super::config::{Activation, BalanceLosses, Gate, LowRank, MixtureConfig, ModelConfig, RouterConfig};
use super::context::{DropoutSite, ForwardContext, Training};
use super::expert_state::ExpertState;
use super::gpt::Normed;
use super::parameters::{DenseBesideExperts, ExpertLora, Experts, Mixture, Shared};
use crate::ops::balance::Balance;
use crate::ops::hot_experts::HotLast;
use crate::ops::permute::{place, place_hot_last};
use crate::ops::rms_norm::RmsNorm;
use crate::ops::spread::{Direction, ExpertRanks, SpreadRows};
use crate::ops::work_list::WorkList;
use crate::record::Tensor;
use crate::tape::{Parameter, RouterLosses, Routing, Tape, Var};

impl Mixture<Parameter> {
    /// x + dropout(f · (Σ gate · expert(h) + shared expert(h))), where f is the model's factor of such terms, or without
    /// x just the product with f.
    pub(super) fn forward<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        layer: usize,
        h: Var,              // (N, D), normalised
        scored: Option<Var>, // (N, D), the input of the router, if it is another than h
        x: Option<Var>,      // (N, D), the residual stream
    ) -> Var {
        let (Some(config), Some(state)) = (&ctx.config.mixture, &ctx.buffers.experts) else {
            panic!("layer {layer} has experts, but the configuration of its model has none")
        };
        // Without dropout the last kernel of the layer adds x, unless its output is one term of a sum over ranks.
        let dropout = ctx.dropout(DropoutSite::FeedForwardOutput(layer));
        let residual = x.filter(|_| dropout.is_none() && ctx.matrix_ranks.is_none());
        let shared = self.shared.as_ref().zip(config.shared);
        let factor = ctx.config.residual_factor();
        let start = |tape: &mut Tape<'_, 'p>| {
            let (shared, sizes) = shared?;
            let inner = (sizes.intermediate_size as u32, ctx.config.shared_gate());
            Some((shared, tape.scope("shared", |tape| shared.start(tape, ctx, inner, h, factor))))
        };
        let routed = Routed { config, state, layer, h, scored: scored.unwrap_or(h) };
        let sum = |tape: &mut Tape<'_, 'p>| {
            let mut started = None;
            let mut y = self.routed(tape, ctx, routed, residual, |tape| {
                // Recorded while the rows of other ranks' experts return.
                started = ctx.expert_ranks.and_then(|_| start(tape));
            }); // (N, D)
            if let Some((shared, started)) = started.or_else(|| start(tape)) {
                y = tape.scope("shared", |tape| shared.add(tape, ctx, started, y, factor)); // (N, D)
            }
            y
        };
        if let Some(ranks) = ctx.matrix_ranks {
            return ctx.leave(tape, ranks, dropout, x, sum);
        }
        let y = sum(tape);
        match dropout.filter(|_| x.is_some()) {
            None => y,
            Some(dropout) => tape.scope("dropout", |tape| tape.dropout(y, x, dropout)),
        }
    }

    /// residual + Σ gate · expert(h) over the experts that each token chose: (N, D). `meanwhile` is recorded between
    /// the experts and the sum.
    fn routed<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        Routed { config, state, layer, h, scored }: Routed<'_>,
        residual: Option<Var>,
        meanwhile: impl FnOnce(&mut Tape<'_, 'p>),
    ) -> Var {
        let losses = ctx.training().map(|training| router_losses(ctx, config, state, layer, training));
        let is_dropless = ctx.is_dropless();
        let rows = config.placement(h.tensor.rows, is_dropless);
        let capacities = state.capacities(layer).filter(|_| rows.has_hot_experts());
        let copies = self.copies.as_ref().zip(capacities.zip(rows.hot_and_cold()));

        // The factor of what the layer adds is one of the gates.
        let factor = ctx.config.residual_factor().unwrap_or(1.0);
        let route = RouterConfig { scaling: factor * config.route.scaling, ..config.route };
        let bias = self.router_bias.as_ref();
        let logits = tape.scope("router", |tape| tape.scores(scored, &self.router, bias)); // (N, E)
        let bias = state.bias(layer);
        let Routing { gates, output } =
            tape.scope("route", |tape| tape.route(logits, bias, &route, losses.as_ref())); // (N, k)
        // Decisions are made once, and not counted again.
        let (placement, hot, spread, work) = tape.keeping(|tape| {
            let hot = copies.map(|(copies, (capacities, two))| {
                let last = tape.scope("hot_experts", |tape| HotLast::new(tape.rec, capacities, &two));
                let work = tape
                    .scope("work_list.hot", |tape| WorkList::new(tape.rec, last.hot_offsets, two.hot_rows()));
                Hot { copies, last, work }
            });
            let placement = tape.scope("place", |tape| match &hot {
                None => place(tape.rec, &rows, output.ids, capacities),
                Some(Hot { last, .. }) => place_hot_last(tape.rec, &rows, output.ids, last),
            });
            if let Some(losses) = losses {
                let capacities = state.capacities(layer);
                tape.scope("tally", |tape| tape.tally(placement.counts, capacities, losses.tally));
            }
            let sent = hot.as_ref().map_or(placement.offsets, |hot| hot.last.cold_offsets);
            let spread = ctx
                .expert_ranks
                .map(|ranks| tape.scope("spread", |tape| SpreadRows::new(tape.rec, &rows, sent, ranks)));
            let (offsets, count) = match &spread {
                None => (placement.offsets, rows.rows()),
                Some(spread) => (spread.local_offsets, spread.received),
            };
            let work = tape.scope("work_list", |tape| WorkList::new(tape.rec, offsets, count));
            (placement, hot, spread, work)
        });
        let gates = match config.renormalised_sum().filter(|_| !is_dropless) {
            None => gates,
            Some(sum) => {
                tape.scope("gates", |tape| tape.renormalise_gates(gates, &placement, factor * sum)) // (N, k)
            }
        };
        let gates = match &self.expert_scale {
            None => gates,
            Some(scale) => tape.scope("expert_scale", |tape| tape.scale_gates(gates, output.ids, scale)), // (N, k)
        };
        let x = tape.scope("permute", |tape| tape.permute(h, &placement)); // (R, D)
        let of = (ctx, layer);
        let y = match (spread, hot) {
            (None, _) => self.experts.forward(tape, of, x, &work),
            (Some(spread), None) => {
                let x = tape.scope("spread", |tape| tape.exchange_rows(x, &spread, Direction::ToExperts));
                let y = self.experts.forward(tape, of, x, &work);
                tape.scope("spread", |tape| tape.exchange_rows(y, &spread, Direction::FromExperts))
            }
            (Some(spread), Some(hot)) => self.experts.forward_hot(tape, of, x, (&work, &spread), &hot),
        };
        meanwhile(tape);
        tape.scope("combine", |tape| tape.combine(y, gates, residual, &placement)) // (N, D)
    }
}

impl DenseBesideExperts<Parameter> {
    /// norm(dense(h)) + norm(Σ gate · expert(norm(x))), where the router reads a norm of x, too: (N, D).
    pub(super) fn forward<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        layer: usize,
        h: Normed<'p>, // (N, D), x normalised
        x: Var,        // (N, D), the residual stream
    ) -> Var {
        let norm = ctx.rms_norm();
        let of_router = RmsNorm { factor: Some((x.tensor.cols as f32).sqrt().recip()), ..norm };
        let dense = self.dense.forward(tape, ctx, layer, h, None);
        let dense = tape.scope("dense_norm", |tape| tape.rms_norm(dense, &self.dense_norm, norm));
        let h = tape.scope("experts_norm", |tape| tape.rms_norm(x, &self.experts_norm, norm));
        let scored = tape.scope("router_norm", |tape| tape.rms_norm(x, &self.router_norm, of_router));
        let mixture = self.mixture.forward(tape, ctx, layer, h, Some(scored), None);
        tape.scope("mixture_norm", |tape| tape.add_rms_norm(dense, mixture, &self.mixture_norm, norm))
    }
}

impl Experts<Parameter> {
    /// The outputs of the experts for their rows x (R, D): (R, D).
    fn forward<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        of: (&ForwardContext<'_>, usize),
        x: Var,
        work: &WorkList,
    ) -> Var {
        tape.scope("experts", |tape| {
            let x = self.activated(tape, of, x, work, ""); // (R, F)
            tape.scope("w_down", |tape| self.down(tape, of.0, x, work, None))
        })
    }

    /// The outputs for rows x (R, D) of which the last are those of hot experts: these are computed with this rank's
    /// copies while the others travel.
    fn forward_hot<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        of: (&ForwardContext<'_>, usize),
        x: Var,
        (work, spread): (&WorkList, &SpreadRows),
        Hot { copies, work: hot_work, .. }: &Hot<'p>,
    ) -> Var {
        let Tensor { rows, cols, element, .. } = x.tensor;
        let [cold, hot] = tape.split_rows(x, spread.sent);
        let cold = tape.scope("spread", |tape| tape.exchange_rows(cold, spread, Direction::ToExperts));
        let (y, hot) = tape.scope("experts", |tape| {
            let x = copies.activated(tape, of, hot, hot_work, ".hot");
            tape.scope("w_down.hot", |tape| {
                let y = tape.rec.tensor("y", rows, cols, element);
                let last = y.rows(spread.sent, rows - spread.sent);
                (y, copies.down(tape, of.0, x, hot_work, Some(last)))
            })
        });
        let cold = self.forward(tape, of, cold, work);
        let cold = tape.scope("spread", |tape| {
            let first = y.rows(0, spread.sent);
            tape.exchange_rows_into(cold, spread, Direction::FromExperts, first)
        });
        tape.join_rows(y, [cold, hot])
    }

    /// activation(W_gate_up · x) of each row's expert: (R, F), by launches whose names end with `suffix`.
    fn activated<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        (ctx, layer): (&ForwardContext<'_>, usize),
        x: Var, // (R, D)
        work: &WorkList,
        suffix: &str,
    ) -> Var {
        let (w, b) = (&self.w_gate_up, self.b_gate_up.as_ref());
        let name = |operator: &str| format!("{operator}{suffix}");
        let kind = match ctx.config.activation {
            Activation::Gated(gate) => {
                let inner = ctx.config.mixture.as_ref().map_or(0, |mixture| mixture.intermediate_size) as u32;
                let x = tape.scope(name("w_gate_up"), |tape| {
                    let y = tape.grouped_linear(x, w, b, work);
                    adapted(tape, ctx, self.lora_gate_up.as_ref(), [x, y], work)
                }); // (R, 2 F)
                return tape.scope(name("mul"), |tape| tape.swiglu(x, inner, gate));
            }
            Activation::Gelu(kind) => {
                assert!(self.lora_gate_up.is_none(), "experts without a gate have no adapters");
                kind
            }
            Activation::Xielu => panic!("experts have no xIELU"),
        };
        // One kernel makes an activation and its argument, unless only one of the two is kept.
        let is_kept = |operator: &str| {
            !ctx.config.recomputed.covers(layer, &format!("feed_forward.experts.{operator}"))
        };
        if is_kept("w_gate_up") == is_kept("gelu") {
            return tape.scope(name("w_gate_up"), |tape| tape.grouped_linear_gelu(x, w, b, kind, work));
        }
        let x = tape.scope(name("w_gate_up"), |tape| tape.grouped_linear(x, w, b, work)); // (R, F)
        tape.scope(name("gelu"), |tape| tape.gelu(x, kind))
    }

    /// W_down · x of each row's expert: (R, D), written to the rows `y` of a tensor if they are given.
    fn down<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        x: Var, // (R, F)
        work: &WorkList,
        y: Option<Tensor>,
    ) -> Var {
        // If ranks share matrices, the first rank adds the bias to its term.
        let adds_bias = ctx.matrix_ranks.is_none_or(|ranks| ranks.place == 0);
        let y = tape.grouped_linear_part(x, &self.w_down, self.b_down.as_ref(), adds_bias, work, y);
        adapted(tape, ctx, self.lora_down.as_ref(), [x, y], work)
    }
}

/// y + scale · (x Aᵀ) Bᵀ with the factors of each row's expert, in place: y must have no other reader. Without adapters
/// y.
fn adapted<'p>(
    tape: &mut Tape<'_, 'p>,
    ctx: &ForwardContext<'_>,
    lora: Option<&'p ExpertLora<Parameter>>,
    [x, y]: [Var; 2],
    work: &WorkList,
) -> Var {
    let Some(ExpertLora { a, b, scale }) = lora.filter(|_| ctx.adapts()) else { return y };
    let z = tape.scope("lora_a", |tape| tape.grouped_low_rank_down(x, a, work, *scale)); // (R, r)
    tape.scope("lora_b", |tape| tape.grouped_low_rank_up(y, z, b, work))
}

/// The hot experts of a layer; this rank has copies of them.
struct Hot<'p> {
    copies: &'p Experts<Parameter>,
    last: HotLast,
    /// The work list of their rows.
    work: WorkList,
}

/// The inputs of the routed experts of a layer.
struct Routed<'r> {
    config: &'r MixtureConfig,
    state: &'r ExpertState,
    layer: usize,
    h: Var,      // (N, D)
    scored: Var, // (N, D), the input of the router
}

impl Shared<Parameter> {
    /// The first part of W_down · activation(W_gate_up · h), or, if it is gated, of that times sigmoid(gate · h).
    fn start<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        (inner, activation): (u32, Gate),
        h: Var, // (N, D)
        factor: Option<f32>,
    ) -> Started {
        let gate_up = tape.scope("w_gate_up", |tape| self.w_gate_up.forward(tape, ctx, h, None)); // (N, 2 S)
        let inner = tape.scope("mul", |tape| tape.swiglu(gate_up, inner, activation)); // (N, S)
        let Some(gate) = &self.gate else { return Started::Inner(inner) };
        let ranks = ctx.matrix_ranks;
        // (N, D)
        let output = tape.scope("w_down", |tape| self.w_down.scaled(tape, ctx, inner, None, factor, ranks));
        let logit = tape.scope("gate", |tape| tape.scores(h, gate, None)); // (N, 1)
        Started::Gated { output, logit }
    }

    /// The output of the shared expert times its factor, plus y.
    fn add<'p>(
        &'p self,
        tape: &mut Tape<'_, 'p>,
        ctx: &ForwardContext<'_>,
        started: Started,
        y: Var, // (N, D)
        factor: Option<f32>,
    ) -> Var {
        match started {
            Started::Inner(inner) => {
                let ranks = ctx.matrix_ranks;
                // (N, D)
                tape.scope("w_down", |tape| self.w_down.scaled(tape, ctx, inner, Some(y), factor, ranks))
            }
            Started::Gated { output, logit } => {
                tape.scope("gated", |tape| tape.row_gate(output, logit, Some(y))) // (N, D)
            }
        }
    }
}

/// The part of the shared expert that is computed before the sum of the routed experts is known.
#[derive(Clone, Copy)]
enum Started {
    /// The input of the shared expert's last product (N, S).
    Inner(Var),
    /// The shared expert's output (N, D), and the logit of its gate (N, 1).
    Gated { output: Var, logit: Var },
}

/// The losses that the router of `layer` adds to the objective, and its tally.
///
/// If ranks share matrices, each has one term of the gradient of the scores, and the first rank adds the whole
/// contribution of the balance losses.
fn router_losses(
    ctx: &ForwardContext<'_>,
    config: &MixtureConfig,
    state: &ExpertState,
    layer: usize,
    Training { step, accumulation, .. }: Training,
) -> RouterLosses {
    let adds = ctx.matrix_ranks.is_none_or(|ranks| ranks.place == 0);
    let BalanceLosses { expert, sequence, z } = if adds { config.losses } else { BalanceLosses::default() };
    let balance = Balance {
        expert: expert as f32,
        sequence: sequence as f32,
        z: z as f32,
        tokens: ctx.config.seq_length as u32,
        accumulation,
    };
    RouterLosses { balance, step, tally: state.tally(layer) }
}

/// Rows and columns of the widest tensor that the experts of a model work on, for micro-batches of `tokens` tokens,
/// with the capacities of training or, in generation, without them (`is_dropless`).
pub(crate) fn widest_expert_tensor(config: &ModelConfig, tokens: u32, is_dropless: bool) -> Option<[u64; 2]> {
    let mixture = config.mixture.as_ref()?;
    Some(widest(config, mixture, mixture.placement(tokens, is_dropless).rows()))
}

/// Rows and columns of the widest tensor that the experts on one of `ranks` work on in training, if all ranks send it
/// as many rows as they may.
pub(crate) fn widest_spread_tensor(
    config: &ModelConfig,
    tokens: u32,
    ranks: &ExpertRanks,
) -> Option<[u64; 2]> {
    let mixture = config.mixture.as_ref()?;
    Some(widest(config, mixture, ranks.most_rows(&mixture.placement(tokens, false))))
}

fn widest(config: &ModelConfig, mixture: &MixtureConfig, rows: u32) -> [u64; 2] {
    let inner = match config.activation {
        Activation::Gated(_) => 2 * mixture.intermediate_size.next_multiple_of(4),
        Activation::Gelu(_) | Activation::Xielu => mixture.intermediate_size,
    };
    let adapted = config.low_rank.as_ref().filter(|low_rank| !low_rank.parameters.is_empty());
    let rank = adapted.map_or(0, LowRank::largest_rank);
    [u64::from(rows), inner.max(config.hidden_size).max(rank) as u64]
}
