//! The feed-forward network of an expert.

use super::{Layer, Network, SHARED_GATE, Shared};
use crate::gelu::{gelu, gelu_backward};
use crate::gpt::{Weights, accumulate};
use crate::low_rank::{EXPERT_PARAMETERS, LowRank, low_rank, low_rank_backward, of_expert, to_all};
use crate::matmul::{linear, linear_backward, matmul_nn, matmul_nt, matmul_tn};
use crate::swiglu::{Gate, gated, gated_backward};
use crate::vector::{add, dot};

/// Names of the projections of an expert with a gate.
pub(super) const NAMES: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

impl Layer<'_> {
    /// The network of the expert `name`, on rows x (M, D).
    pub(super) fn expert(&self, name: &str, x: &[f64]) -> Vec<f64> {
        if let Network::Gelu { activation, names: [up, down], .. } = self.mixture.network {
            let up = self.storage.store(self.project(name, up, x, self.mixture.intermediate_size));
            let activated = self.storage.store(gelu(&up, activation));
            return self.storage.store(self.project(name, down, &activated, self.width()));
        }
        let [gate, up] = self.gate_up(name, x);
        let activated = self.storage.store(gated(&gate, &up, self.gate()));
        self.storage.store(self.down(name, &activated))
    }

    /// The activation of an expert's gate.
    fn gate(&self) -> Gate {
        match self.mixture.network {
            Network::Gated(gate) => gate,
            Network::Gelu { .. } => Gate::Silu,
        }
    }

    /// The gradient (M, D) of x, given that of the output; adds those of the weights to `grads`.
    pub(super) fn expert_backward(&self, name: &str, x: &[f64], dy: &[f64], grads: &mut Weights) -> Vec<f64> {
        let store = |values| self.storage.store(values);
        if let Network::Gelu { activation, names: [v, w], .. } = self.mixture.network {
            let inner = self.mixture.intermediate_size;
            let up = store(self.project(name, v, x, inner));
            let activated = store(gelu(&up, activation));
            let dactivated = store(self.project_backward(name, w, &activated, dy, self.width(), grads));
            let dup = store(gelu_backward(&up, &dactivated, activation));
            return store(self.project_backward(name, v, x, &dup, inner, grads));
        }
        let [gate, up] = self.gate_up(name, x);
        let activated = store(gated(&gate, &up, self.gate()));
        let mut dactivated = self.project_backward(name, NAMES[2], &activated, dy, self.width(), grads);
        if let Some(lora) = self.lora(name, EXPERT_PARAMETERS[1], &activated, self.width()) {
            dactivated = add(&dactivated, &lora.backward(&activated, dy, grads));
        }
        let (dgate, dup) = gated_backward(&gate, &up, &store(dactivated), self.gate());
        let (dgate, dup) = (store(dgate), store(dup));
        let inner = self.inner(name);
        let dx = self.project_backward(name, NAMES[0], x, &dgate, inner, grads);
        let mut dx = add(&dx, &self.project_backward(name, NAMES[1], x, &dup, inner, grads));
        if let Some(lora) = self.lora(name, EXPERT_PARAMETERS[0], x, 2 * inner) {
            let rows = dgate.chunks_exact(inner).zip(dup.chunks_exact(inner));
            let both: Vec<f64> = rows.flat_map(|(gate, up)| gate.iter().chain(up).copied()).collect();
            dx = add(&dx, &lora.backward(x, &both, grads));
        }
        store(dx)
    }

    /// down_proj of the expert `name` on x (M, F), plus what its adapter adds.
    fn down(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let y = self.project(name, NAMES[2], x, self.width());
        match self.lora(name, EXPERT_PARAMETERS[1], x, self.width()) {
            Some(lora) => add(&y, &lora.forward(x)),
            None => y,
        }
    }

    /// The adapter of the parameter `of` in the expert `name`, which maps x to `n` columns; `None` if it has none, as a
    /// shared expert.
    fn lora(&self, name: &str, of: &str, x: &[f64], n: usize) -> Option<ExpertLora> {
        let expert: usize = name.strip_prefix("experts.")?.parse().ok()?;
        let module = format!("{}.experts", self.path);
        let adapter = self.low_rank?.of_experts(&module, of)?;
        let names = ["A", "B"].map(|factor| LowRank::factor(&adapter, factor));
        let ((rank, scale), experts) = (self.low_rank?.of(&format!("{module}.{of}")), self.mixture.experts);
        let a = &self.weights[&names[0]];
        let k = a.len() / (rank * experts);
        let factors = of_expert(a, &self.weights[&names[1]], expert, [experts, n, k, rank]);
        let sizes = [x.len() / k, n, k, rank];
        Some(ExpertLora { scale, names, factors, sizes, expert, experts })
    }

    /// The shared expert on x (N, D), times σ(x·w) if it is gated.
    pub(super) fn shared(&self, shared: &Shared, x: &[f64]) -> Vec<f64> {
        let y = self.expert(shared.name(), x);
        let gates = self.shared_gates(shared, x);
        y.chunks_exact(self.width())
            .zip(&gates)
            .flat_map(|(y, gate)| y.iter().map(move |y| y * gate))
            .collect()
    }

    /// The gradient (N, D) of x in [`Layer::shared`], given dy; adds those of the weights to `grads`.
    pub(super) fn shared_backward(
        &self,
        shared: &Shared,
        x: &[f64],
        dy: &[f64],
        grads: &mut Weights,
    ) -> Vec<f64> {
        let width = self.width();
        let gates = self.shared_gates(shared, x);
        let rows = dy.chunks_exact(width).zip(&gates);
        let dout: Vec<f64> = rows.flat_map(|(dy, gate)| dy.iter().map(move |d| d * gate)).collect();
        let dx = self.expert_backward(shared.name(), x, &self.storage.store(dout), grads);
        if !shared.is_gated {
            return dx;
        }
        let out = self.expert(shared.name(), x);
        let rows = dy.chunks_exact(width).zip(out.chunks_exact(width)).zip(&gates);
        let dlogits: Vec<f64> = rows.map(|((dy, out), gate)| dot(dy, out) * gate * (1.0 - gate)).collect();
        let (name, w) = self.weight(SHARED_GATE);
        let (dx_gate, dw, _) = linear_backward(x, w, &dlogits, gates.len(), 1, width);
        accumulate(grads, &name, dw);
        add(&dx, &self.storage.store(dx_gate))
    }

    /// Gates of the shared expert (N); 1 if it is not gated.
    fn shared_gates(&self, shared: &Shared, x: &[f64]) -> Vec<f64> {
        let tokens = x.len() / self.width();
        match shared.is_gated {
            true => {
                let logits = linear(x, self.weight(SHARED_GATE).1, None, tokens, 1, self.width());
                logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect()
            }
            false => vec![1.0; tokens],
        }
    }

    /// The outputs of gate_proj and up_proj, (M, F) each.
    fn gate_up(&self, name: &str, x: &[f64]) -> [Vec<f64>; 2] {
        let inner = self.inner(name);
        let added = self.lora(name, EXPERT_PARAMETERS[0], x, 2 * inner).map(|lora| lora.forward(x));
        [0, 1].map(|half| {
            let mut y = self.project(name, NAMES[half], x, inner);
            let rows = added.iter().flat_map(|added| added.chunks_exact(2 * inner));
            let added = rows.flat_map(|row| &row[half * inner..][..inner]);
            y.iter_mut().zip(added).for_each(|(y, added)| *y += added);
            self.storage.store(y)
        })
    }

    /// F, the width of the expert `name`.
    fn inner(&self, name: &str) -> usize {
        self.weight(&format!("{name}.{}", NAMES[0])).1.len() / self.width()
    }

    /// x (M, ·) through a projection of the expert to `n` columns.
    fn project(&self, expert: &str, of: &str, x: &[f64], n: usize) -> Vec<f64> {
        let (_, w) = self.weight(&format!("{expert}.{of}"));
        let bias = self.weights.get(&self.bias(expert, of));
        let k = w.len() / n;
        if !self.is_transposed() {
            let y = linear(x, w, bias.map(Vec::as_slice), x.len() / k, n, k);
            let added = self.lora_of_module(expert, of, [x.len() / k, n, k]).map(|lora| lora.forward(x));
            return added.map_or_else(|| y.clone(), |added| add(&y, &added));
        }
        let mut y = matmul_nn(x, w, x.len() / k, n, k);
        for (y, bias) in y.iter_mut().zip(bias.into_iter().flatten().cycle()) {
            *y += bias;
        }
        y
    }

    /// The name of a projection's bias.
    fn bias(&self, expert: &str, of: &str) -> String {
        format!("{}.{expert}.{of}.bias", self.path)
    }

    /// Whether the experts' matrices are stored (in, out).
    fn is_transposed(&self) -> bool {
        matches!(self.mixture.network, Network::Gelu { is_transposed: true, .. })
    }

    /// The gradient of x in [`Layer::project`], given dy (M, n); adds those of weight and bias to `grads`.
    fn project_backward(
        &self,
        expert: &str,
        of: &str,
        x: &[f64],
        dy: &[f64],
        n: usize,
        grads: &mut Weights,
    ) -> Vec<f64> {
        let (name, w) = self.weight(&format!("{expert}.{of}"));
        let k = w.len() / n;
        let m = x.len() / k;
        let (mut dx, mut dw, dbias) = linear_backward(x, w, dy, m, n, k);
        if self.is_transposed() {
            (dx, dw) = (matmul_nt(dy, w, m, k, n), matmul_tn(x, dy, k, n, m));
        }
        accumulate(grads, &name, dw);
        let bias = self.bias(expert, of);
        if self.weights.contains_key(&bias) {
            accumulate(grads, &bias, dbias);
        }
        match self.lora_of_module(expert, of, [m, n, k]) {
            Some(lora) => add(&dx, &lora.backward(x, dy, grads)),
            None => dx,
        }
    }

    /// The adapter of a projection by itself, as of shared experts, with inputs (m, k) and outputs (m, n).
    fn lora_of_module(&self, expert: &str, of: &str, [m, n, k]: [usize; 3]) -> Option<ExpertLora> {
        let module = format!("{}.{expert}.{of}", self.path);
        let low_rank = self.low_rank.filter(|low_rank| low_rank.modules.contains(&module))?;
        let names = ["A", "B"].map(|factor| LowRank::factor(&module, factor));
        let factors = names.each_ref().map(|name| self.weights[name].clone());
        let (rank, scale) = low_rank.of(&module);
        let sizes = [m, n, k, rank];
        Some(ExpertLora { scale, names, factors, sizes, expert: 0, experts: 1 })
    }
}

/// The adapter of a matrix of one expert.
struct ExpertLora {
    scale: f64,
    /// The names of A and B of all experts.
    names: [String; 2],
    /// A (r, k) and B (n, r) of this expert.
    factors: [Vec<f64>; 2],
    /// m, n, k and r.
    sizes: [usize; 4],
    expert: usize,
    experts: usize,
}

impl ExpertLora {
    /// What it adds for x (m, k): (m, n).
    fn forward(&self, x: &[f64]) -> Vec<f64> {
        let [a, b] = &self.factors;
        low_rank(x, a, b, self.scale, self.sizes)
    }

    /// The gradient of x (m, k), given dy (m, n); adds those of the factors to `grads`.
    fn backward(&self, x: &[f64], dy: &[f64], grads: &mut Weights) -> Vec<f64> {
        let [a, b] = &self.factors;
        let (dx, da, db) = low_rank_backward(x, a, b, dy, self.scale, self.sizes);
        let of_all = to_all(&da, &db, self.expert, self.experts);
        self.names.iter().zip(of_all).for_each(|(name, gradient)| accumulate(grads, name, gradient));
        dx
    }
}
