//! Routers to test, the reference's view of them, and the bounds of their results.

use crate::lab::{Case, Input, allowed};
use gristmill::element::Element::{F32, U32};
use gristmill::ops::route::{ExpertGroups, GateNorm, GroupScore, RouterConfig, RouterOutput, Score};
use gristmill::record::Tensor;

pub const SCALE: f32 = 8.0;
pub const ACCUMULATION: u32 = 4;

/// B sequences of T tokens and their routing.
#[derive(Clone, Copy)]
pub struct Shape {
    pub sequences: u32,
    pub tokens: u32,
    pub route: RouterConfig,
    pub has_bias: bool,
}

pub const fn shape(sequences: u32, tokens: u32, experts: u32, chosen: u32) -> Shape {
    let (score, norm, scaling) = (Score::Softmax, Some(GateNorm::SUM), 1.0);
    let route = RouterConfig { experts, chosen, score, groups: None, norm, scaling };
    Shape { sequences, tokens, route, has_bias: false }
}

impl Shape {
    pub fn sigmoid(mut self) -> Self {
        self.route.score = Score::Sigmoid;
        self.route.scaling = 2.5;
        self
    }

    pub fn groups(mut self, count: u32, chosen: u32, score: GroupScore) -> Self {
        self.route.groups = Some(ExpertGroups { count, chosen, score });
        self
    }

    pub fn bias(mut self) -> Self {
        self.has_bias = true;
        self
    }

    pub fn unnormalised(mut self) -> Self {
        self.route.norm = None;
        self
    }

    pub fn at_least(mut self, least: f32) -> Self {
        self.route.norm = Some(GateNorm::AtLeast(least));
        self
    }

    pub fn sparse_mixer(mut self, jitter: f32) -> Self {
        (self.route.score, self.route.norm) = (Score::SparseMixer { jitter }, None);
        self.route.scaling = 1.7;
        self
    }

    pub fn rows(&self) -> u32 {
        self.sequences * self.tokens
    }

    pub fn name(&self) -> String {
        let Self { sequences, tokens, route: RouterConfig { experts, chosen, score, groups, .. }, has_bias } =
            self;
        let groups = groups.map_or(0, |groups| groups.count);
        let bias = if *has_bias { ", bias" } else { "" };
        format!("{sequences}x{tokens} to {chosen} of {experts}, {score:?}, {groups} groups{bias}")
    }
}

pub fn shapes() -> Vec<Shape> {
    vec![
        shape(1, 1, 1, 1),
        shape(1, 31, 5, 2),
        shape(12, 1, 6, 2).unnormalised(),
        shape(1, 16, 16, 16),
        shape(3, 3, 257, 16),
        shape(2, 35, 8, 2).bias().groups(4, 2, GroupScore::BestTwo),
        shape(2, 65, 33, 5).sigmoid().groups(3, 2, GroupScore::Best).unnormalised(),
        shape(3, 11, 31, 3).sigmoid().bias(),
        shape(1, 257, 64, 8).sigmoid().bias().groups(8, 4, GroupScore::BestTwo),
        shape(4, 5, 512, 16).sigmoid().bias().groups(8, 4, GroupScore::BestTwo),
        shape(1, 33, 4, 1).sigmoid(),
        // Sums on both sides of the floor.
        shape(2, 19, 9, 3).bias().at_least(0.6),
    ]
}

/// The route as the reference takes it.
pub fn formula(route: &RouterConfig) -> reference::route::RouterConfig {
    reference::route::RouterConfig {
        experts: route.experts as usize,
        chosen: route.chosen as usize,
        is_sigmoid: route.score == Score::Sigmoid,
        groups: route.groups.map(|groups| reference::route::ExpertGroups {
            count: groups.count as usize,
            chosen: groups.chosen as usize,
            best: if groups.score == GroupScore::BestTwo { 2 } else { 1 },
        }),
        norm: route.norm.map(|norm| match norm {
            GateNorm::Plus(epsilon) => reference::route::GateNorm::Plus(epsilon.into()),
            GateNorm::AtLeast(least) => reference::route::GateNorm::AtLeast(least.into()),
        }),
        scaling: route.scaling.into(),
    }
}

/// The tensors that the router writes, NaN at the start.
pub fn outputs(case: &mut Case, shape: &Shape, keeps_unbiased: bool) -> RouterOutput {
    let (rows, RouterConfig { experts, chosen, .. }) = (shape.rows(), shape.route);
    let gates = case.output(rows, chosen, F32);
    let (scores, statistics) = (case.output(rows, experts, F32), case.output(rows, 4, F32));
    let [ids, unbiased] = [0; 2].map(|_| case.output(1, rows * chosen, U32));
    RouterOutput { ids, gates, scores, statistics, unbiased: keeps_unbiased.then_some(unbiased) }
}

pub fn bias_of(case: &mut Case, shape: &Shape) -> Option<Input> {
    let scale = if shape.route.score == Score::Sigmoid { 0.2 } else { 1.0 / shape.route.experts as f64 };
    let values: Vec<f64> = (0..shape.route.experts).map(|_| scale * case.normal()).collect();
    shape.has_bias.then(|| case.input_of(&values, 1, shape.route.experts, F32))
}

pub fn expect_ids(case: &mut Case, label: &'static str, ids: Tensor, want: Vec<u32>) {
    case.expect_words(label, ids, move |words| {
        let wrong = words.iter().zip(&want).position(|(got, want)| got != want);
        assert!(wrong.is_none(), "{label}: choice {wrong:?} of {words:?} differs from {want:?}");
        assert!(words.len() >= want.len());
    });
}

/// The gradient through the gates, and the operands of the subtraction in it.
pub fn gates_gradient(logits: &[f64], ids: &[u32], d_gates: &[f64], shape: &Shape) -> (Vec<f64>, Vec<f64>) {
    let route = formula(&shape.route);
    let d_scores = reference::route::gates_backward(logits, ids, d_gates, &route);
    let gates = reference::route::gates(logits, ids, &route);
    let mut terms = vec![0.0; logits.len()];
    for (i, id) in ids.iter().enumerate() {
        terms[i / route.chosen * route.experts + *id as usize] = gates[i] * d_gates[i];
    }
    (reference::route::scores_backward(logits, &d_scores, &route), terms)
}

/// An exponential, divided by a sum of E terms.
pub fn score_bound(shape: &Shape) -> f64 {
    2.0 * allowed(F32, shape.route.experts)
}

/// A score, a sum over E terms, a difference and a product.
pub fn gradient_bound(shape: &Shape) -> f64 {
    4.0 * allowed(F32, shape.route.experts)
}
