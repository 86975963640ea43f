//! The mixture layer: router and experts, forward and backward.

use super::{Choices, EXPERT_SCALE, Losses, Memory, Mixture, ROUTER, balance, slots};
use crate::expert_scale::{scale_gates, scale_gates_backward};
use crate::gpt::{Weights, accumulate};
use crate::low_rank::LowRank;
use crate::matmul::{linear, linear_backward};
use crate::storage::Storage;
use crate::vector::{add, add_scaled, dot};

/// One mixture layer of a model.
#[derive(Clone, Copy, Debug)]
pub struct Layer<'a> {
    /// Sizes and routing rules.
    pub mixture: &'a Mixture,
    /// Tensors of the model.
    pub weights: &'a Weights,
    /// Prefix of the layer's tensor names: `model.layers.3.mlp`.
    pub path: &'a str,
    /// State of the router.
    pub memory: &'a Memory,
    /// T, tokens per sequence.
    pub sequence_length: usize,
    /// What activations and their gradients are rounded to; scores and gates are not.
    pub storage: Storage,
    /// Adapters of the model.
    pub low_rank: Option<&'a LowRank>,
}

/// The result of a forward pass, with what the backward pass needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Visit {
    /// The output, (N, D).
    pub y: Vec<f64>,
    /// The routing decisions.
    pub choices: Choices,
    /// Whether each choice was kept, (N·k).
    pub kept: Vec<bool>,
    /// Choices per expert (E), dropped ones included.
    pub counts: Vec<usize>,
    /// The unweighted balance losses; zero where the factor is zero.
    pub losses: Losses,
    /// The gates after dropping, (N·k).
    gates: Vec<f64>,
}

impl Layer<'_> {
    /// The output for x (N, D), which holds whole sequences. The router reads `scored` (N, D), which is x unless it has
    /// a norm of its own.
    #[track_caller]
    pub fn forward(&self, x: &[f64], scored: &[f64]) -> Visit {
        let mixture = self.mixture;
        let choices = Choices::new(mixture, &self.logits(scored), &self.memory.bias);
        let kept = slots::kept(mixture, &choices.ids, &self.memory.hot);
        let gates = self.scaled(&choices.ids, slots::gates(mixture, &choices.gates, &kept));
        let mut y = vec![0.0; x.len()];
        for expert in 0..mixture.experts {
            let visitors = visitors(&choices.ids, &kept, expert);
            let out = self.expert(&format!("experts.{expert}"), &self.rows_of(x, &visitors));
            for (out, &choice) in out.chunks_exact(self.width()).zip(&visitors) {
                add_scaled(self.row_of(&mut y, choice), gates[choice], out);
            }
        }
        if let Some(shared) = mixture.shared {
            y = add(&y, &self.shared(&shared, x));
        }
        let counts = balance::counts(&choices.ids, mixture.experts);
        let losses = balance::losses(mixture, &choices, self.sequence_length);
        Visit { y, choices, kept, counts, losses, gates }
    }

    /// The gradients (N, D) of x and of `scored`, given that of y (N, D); adds those of the weights to `grads`. They
    /// include the balance losses, weighted by `seed` times their factors.
    #[track_caller]
    pub fn backward(
        &self,
        [x, scored]: [&[f64]; 2],
        visit: &Visit,
        dy: &[f64],
        seed: f64,
        grads: &mut Weights,
    ) -> [Vec<f64>; 2] {
        let mixture = self.mixture;
        let mut dx = vec![0.0; x.len()];
        let mut dgates = vec![0.0; visit.gates.len()];
        for expert in 0..mixture.experts {
            let name = format!("experts.{expert}");
            let visitors = visitors(&visit.choices.ids, &visit.kept, expert);
            let (x, mut dout) = (self.rows_of(x, &visitors), self.rows_of(dy, &visitors));
            let out = self.expert(&name, &x);
            let rows = out.chunks_exact(self.width()).zip(dout.chunks_exact_mut(self.width()));
            for ((out, dout), &choice) in rows.zip(&visitors) {
                dgates[choice] = dot(out, dout);
                dout.iter_mut().for_each(|d| *d *= visit.gates[choice]);
            }
            let dvisitors = self.expert_backward(&name, &x, &self.storage.store(dout), grads);
            for (d, &choice) in dvisitors.chunks_exact(self.width()).zip(&visitors) {
                add_scaled(self.row_of(&mut dx, choice), 1.0, d);
            }
        }
        dx = self.storage.store(dx);
        if let Some(shared) = mixture.shared {
            dx = self.storage.store(add(&dx, &self.shared_backward(&shared, x, dy, grads)));
        }
        if mixture.is_beside_dense {
            let (name, scale) = self.expert_scale();
            let gates = slots::gates(mixture, &visit.choices.gates, &visit.kept);
            let dscale;
            (dgates, dscale) = scale_gates_backward(&gates, &visit.choices.ids, scale, &dgates);
            accumulate(grads, &name, dscale);
        }
        let dgates = slots::gates_backward(mixture, &visit.choices.gates, &visit.kept, &dgates);
        let dprobabilities =
            balance::probabilities_backward(mixture, &visit.choices, self.sequence_length, seed);
        let mut dlogits = visit.choices.backward(mixture, &dgates, &dprobabilities);
        add_scaled(&mut dlogits, 1.0, &balance::z_backward(mixture, &visit.choices, seed));
        let (router, w) = self.weight(ROUTER);
        let tokens = x.len() / self.width();
        let (dscored, dw, dbias) =
            linear_backward(scored, w, &dlogits, tokens, mixture.experts, self.width());
        accumulate(grads, &router, dw);
        if mixture.has_biases {
            accumulate(grads, &self.router_bias(), dbias);
        }
        [dx, self.storage.store(dscored)]
    }

    /// The gates (N·k) times the factors of their experts, where these have some.
    fn scaled(&self, ids: &[usize], gates: Vec<f64>) -> Vec<f64> {
        if !self.mixture.is_beside_dense {
            return gates;
        }
        scale_gates(&gates, ids, self.expert_scale().1)
    }

    /// Name and values of the factors of experts.
    #[track_caller]
    fn expert_scale(&self) -> (String, &[f64]) {
        let name = format!("{}.{EXPERT_SCALE}", self.path);
        let scale = &self.weights[&name];
        (name, scale)
    }

    /// The router logits, (N, E).
    #[track_caller]
    pub fn logits(&self, x: &[f64]) -> Vec<f64> {
        let tokens = x.len() / self.width();
        let bias = self.mixture.has_biases.then(|| &self.weights[&self.router_bias()][..]);
        linear(x, self.weight(ROUTER).1, bias, tokens, self.mixture.experts, self.width())
    }

    fn router_bias(&self) -> String {
        format!("{}.{ROUTER}.bias", self.path)
    }

    /// D, the width of the tokens.
    pub(super) fn width(&self) -> usize {
        self.weight(ROUTER).1.len() / self.mixture.experts
    }

    /// Full name and values of a tensor of the layer.
    #[track_caller]
    pub(super) fn weight(&self, name: &str) -> (String, &[f64]) {
        let name = format!("{}.{name}.weight", self.path);
        let tensor = self.weights.get(&name).unwrap_or_else(|| panic!("the weights should contain {name}."));
        (name, tensor)
    }

    /// The rows of x of the tokens that made these choices, concatenated.
    fn rows_of(&self, x: &[f64], choices: &[usize]) -> Vec<f64> {
        let row = |choice: &usize| &x[choice / self.mixture.chosen * self.width()..][..self.width()];
        choices.iter().flat_map(row).copied().collect()
    }

    /// The row of x of the token that made the choice.
    fn row_of<'x>(&self, x: &'x mut [f64], choice: usize) -> &'x mut [f64] {
        &mut x[choice / self.mixture.chosen * self.width()..][..self.width()]
    }
}

/// The choices of an expert that were kept.
fn visitors(ids: &[usize], kept: &[bool], expert: usize) -> Vec<usize> {
    (0..ids.len()).filter(|&choice| ids[choice] == expert && kept[choice]).collect()
}
