//! The matrices of all experts of a layer: where a model's files have what PEFT adapts as one parameter, and the factors
//! that it gives them.
//!
//! In `transformers` they are a parameter of one module, `model.layers.0.mlp.experts.gate_up_proj`. Files have a matrix
//! of each expert, under the names of Qwen, Mixtral or LFM2, or one tensor of all, which Granite names after linear
//! layers.

use super::weight_files::WeightFiles;
use crate::model::names::EXPERT_PARAMETERS;
use std::ops::Range;

/// The names of modules of experts in `transformers` and in files that call them otherwise.
const MODULES: [(&str, &str); 1] = [("mlp.experts", "block_sparse_moe.experts")];
/// The names of gate, up and down of an expert in files.
const PROJECTIONS: [[&str; 3]; 2] = [["gate_proj", "up_proj", "down_proj"], ["w1", "w3", "w2"]];
/// Modules of experts and their parameters in files of Granite.
const GRANITE: (&str, [&str; 2]) = ("block_sparse_moe.experts", ["input_linear", "output_linear"]);

/// Where files have a parameter of experts.
pub(super) enum ExpertTensors {
    /// In one tensor: (experts, out, in), or (experts, in, out) if it `is_turned`.
    Stacked { name: String, is_turned: bool },
    /// In one tensor for each matrix: of each expert those of gate and up, or of down.
    Each(Vec<Vec<String>>),
}

impl ExpertTensors {
    /// Where `files` have the parameter that a language model by itself calls `parameter`; `None` if they do not.
    pub fn of(files: &WeightFiles, parameter: &str) -> Option<Self> {
        let (module, of) = parameter.rsplit_once('.')?;
        let kind = EXPERT_PARAMETERS.iter().position(|known| *known == of)?;
        let of_granite = module.strip_suffix(GRANITE.0);
        let of_granite =
            of_granite.map(|layer| format!("{layer}block_sparse_moe.{}.weight", GRANITE.1[kind]));
        let stacked = std::iter::once(parameter.to_string()).chain(of_granite);
        if let Some(name) = stacked.into_iter().find(|name| files.stored_name(name).is_some()) {
            // The matrices of gpt-oss, the only ones with biases, are (in, out).
            let is_turned = files.stored_name(&format!("{parameter}_bias")).is_some();
            return Some(Self::Stacked { name, is_turned });
        }
        let renamed = MODULES
            .iter()
            .filter_map(|(theirs, own)| module.strip_suffix(theirs).map(|layer| format!("{layer}{own}")));
        let modules: Vec<String> = std::iter::once(module.to_string()).chain(renamed).collect();
        let named = modules.iter().flat_map(|module| PROJECTIONS.iter().map(move |names| (module, names)));
        let of_expert = |(module, names): (&String, &[&str; 3]), expert: usize| {
            let names = if kind == 0 { &names[..2] } else { &names[2..] };
            let names: Vec<String> =
                names.iter().map(|name| format!("{module}.{expert}.{name}.weight")).collect();
            names.iter().all(|name| files.holds(name)).then_some(names)
        };
        let found = named.into_iter().find(|of| of_expert(*of, 0).is_some())?;
        Some(Self::Each((0..).map_while(|expert| of_expert(found, expert)).collect()))
    }
}

/// The factors of a matrix of each expert, which computes x Wᵀ + scale · (x Aᵀ) Bᵀ.
pub(super) struct ExpertFactors {
    pub experts: usize,
    /// Rows of an expert's A.
    pub rank: usize,
    /// (experts · rank, in).
    pub a: Vec<f32>,
    /// (out, rank · experts): column j of expert e is column j · experts + e.
    pub b: Vec<f32>,
    pub scale: f64,
}

impl ExpertFactors {
    pub fn inputs(&self) -> usize {
        self.a.len() / (self.experts * self.rank)
    }

    pub fn outputs(&self) -> usize {
        self.b.len() / (self.experts * self.rank)
    }

    /// The factors with a rank of `rank`, which is not smaller, and a scale of `scale`: their products are the same.
    pub fn padded(&self, rank: usize, scale: f64) -> Self {
        let (inputs, share, more) = (self.inputs(), self.scale / scale, rank - self.rank);
        let zeros = |count: usize| std::iter::repeat_n(0.0, count);
        let of_a = |a: &[f32]| a.iter().copied().chain(zeros(more * inputs)).collect::<Vec<f32>>();
        let of_b = |b: &[f32]| {
            let scaled = b.iter().map(|value| (share * f64::from(*value)) as f32);
            scaled.chain(zeros(more * self.experts)).collect::<Vec<f32>>()
        };
        Self {
            experts: self.experts,
            rank,
            a: self.a.chunks(self.rank * inputs).flat_map(of_a).collect(),
            b: self.b.chunks(self.rank * self.experts).flat_map(of_b).collect(),
            scale,
        }
    }

    /// Adds the rows `outputs` of the product of an expert's factors to values of its matrix; `place` says where that of
    /// an output, counted from the first of these, and an input is.
    pub fn add(
        &self,
        expert: usize,
        outputs: Range<usize>,
        values: &mut [f32],
        place: impl Fn(usize, usize) -> usize,
    ) {
        let (inputs, width) = (self.inputs(), self.rank * self.experts);
        let mut product = vec![0.0; inputs];
        for (output, row) in self.b[outputs.start * width..outputs.end * width].chunks(width).enumerate() {
            product.fill(0.0);
            let own = row.iter().skip(expert).step_by(self.experts);
            let of_a = self.a[expert * self.rank * inputs..].chunks(inputs);
            for (b, a) in own.zip(of_a) {
                let b = self.scale * f64::from(*b);
                product.iter_mut().zip(a).for_each(|(sum, a)| *sum += b * f64::from(*a));
            }
            for (input, product) in product.iter().enumerate() {
                let value = &mut values[place(output, input)];
                *value = (f64::from(*value) + product) as f32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two experts of rank 1, with 2 inputs and 1 output.
    #[test]
    fn padding_changes_no_product() {
        let factors =
            ExpertFactors { experts: 2, rank: 1, a: vec![1.0, 2.0, 3.0, 4.0], b: vec![5.0, 7.0], scale: 2.0 };
        for factors in [factors.padded(3, 0.5), factors] {
            let mut values = [0.0, 0.0, 1.0, 1.0];
            for expert in [0, 1] {
                factors.add(expert, 0..1, &mut values, |_, input| 2 * expert + input);
            }
            assert_eq!(values, [10.0, 20.0, 43.0, 57.0], "rank {}", factors.rank);
        }
    }
}
