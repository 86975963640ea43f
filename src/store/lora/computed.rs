//! The tensors of a model with an adapter that neither file holds in the form in which they are used.
//!
//! An adapter may have other ranks and scales than the model: its factors are padded with zeros, and B is scaled. A bias of B becomes a
//! bias of the layer.

use super::adapter::{Adapter, factor_names};
use super::config::is_same_scale;
use super::other_model;
use crate::error::Result;
use crate::model::config::LowRank;
use crate::model::parameters::{Spec, adapted_module, module_of};
use crate::store::weight_files::WeightFiles;
use crate::store::{peft_modules, wrapped};
use std::collections::HashMap;

/// Tensors by their names in the model, with values as a file would hold them.
#[derive(Default)]
pub(in crate::store) struct ComputedTensors {
    values: HashMap<String, Vec<f32>>,
}

impl ComputedTensors {
    /// The tensors that have to be computed for `base` with `adapter`, in a model that has the parameters `whole` and
    /// adapters like `low_rank`.
    ///
    /// # Errors
    /// An adapter of another model, or of a larger rank; a file that does not hold floats.
    pub fn of(adapter: &Adapter, base: &WeightFiles, whole: &[Spec], low_rank: &LowRank) -> Result<Self> {
        let mut computed = Self::default();
        let has_bias = adapter.config.as_ref().is_some_and(|config| config.lora_bias);
        let pieces = || whole.iter().flat_map(|spec| spec.pieces.iter().map(move |piece| (spec, piece)));
        for (spec, piece) in pieces() {
            match adapted_module(&piece.name) {
                Some(module) if piece.name.ends_with("lora_A.weight") => {
                    computed.add_factors(adapter, base, module, &piece.name, low_rank)?;
                }
                None if has_bias && piece.name.ends_with(".bias") && spec.role.is_vector() => {
                    computed.add_bias(
                        adapter,
                        base,
                        &piece.name,
                        spec.piece_shape(piece).iter().product(),
                    )?;
                }
                _ => {}
            }
        }
        Ok(computed)
    }

    fn add_factors(
        &mut self,
        adapter: &Adapter,
        base: &WeightFiles,
        module: &str,
        name: &str,
        low_rank: &LowRank,
    ) -> Result<()> {
        let own = adapter.files.stored(name).and_then(adapted_module);
        // A missing tensor is reported where the files are checked.
        let Some((own, scale)) = own.and_then(|own| Some((own, adapter.scale_of(own)?))) else {
            return Ok(());
        };
        let key = wrapped::alone(adapter.parameter_of(own).unwrap_or(own));
        let (rank, wanted, wanted_scale) =
            (adapter.rank_of(own), low_rank.rank_of(&key), low_rank.scale_of(&key));
        if adapter.keeps_base() && rank == wanted && is_same_scale(scale, wanted_scale) {
            return Ok(());
        }
        if rank > wanted {
            return Err(other_model(
                &adapter.weights,
                own,
                &format!("has a rank of {rank}, and the run's is {wanted}"),
            ));
        }
        if adapter.parameter_of(own).is_some() {
            let padded = adapter.expert_factors(own)?.padded(wanted, wanted_scale);
            let [a, b] = factor_names(module);
            self.values.extend([(a, padded.a), (b, padded.b)]);
            return Ok(());
        }
        let is_transposed =
            base.is_transposed().unwrap_or_else(|| adapter.config.as_ref().is_some_and(|c| c.fan_in_fan_out));
        let factors = adapter.factors(own, base, &format!("{module}.weight"), is_transposed)?;
        let [a, b] = factor_names(module);
        let mut padded = factors.a;
        padded.resize(padded.len() / rank * wanted, 0.0);
        let share = factors.scale / wanted_scale;
        let row = |row: &[f32]| {
            let scaled = row.iter().map(|value| (share * f64::from(*value)) as f32);
            scaled.chain(std::iter::repeat_n(0.0, wanted - rank)).collect::<Vec<f32>>()
        };
        self.values.insert(b, factors.b.chunks(rank).flat_map(row).collect());
        self.values.insert(a, padded);
        Ok(())
    }

    /// Adds the bias `name` of `count` values: the model's own bias, if it has one, plus the adapter's.
    fn add_bias(&mut self, adapter: &Adapter, base: &WeightFiles, name: &str, count: usize) -> Result<()> {
        let module = name.strip_suffix(".bias").unwrap_or(name);
        let [a, _] = factor_names(module);
        let own = adapter.files.stored(&a).and_then(adapted_module);
        let added = own.map(|own| adapter.bias(own)).transpose()?.flatten();
        if added.is_none() && base.holds(name) {
            return Ok(());
        }
        let mut values = match peft_modules::find(&adapter.files, name) {
            Some(kept) => adapter.files.values(&kept)?,
            None if base.holds(name) => base.values(name)?,
            None => vec![0.0; count],
        };
        let added = added.unwrap_or_else(|| vec![0.0; count]);
        if added.len() != values.len() {
            return Err(other_model(&adapter.weights, module_of(name), "has another size in the model"));
        }
        values.iter_mut().zip(added).for_each(|(value, added)| *value += added);
        self.values.insert(name.to_string(), values);
        Ok(())
    }

    /// The values of the tensor `name`, if they were computed.
    pub fn values(&self, name: &str) -> Option<&[f32]> {
        self.values.get(name).map(Vec::as_slice)
    }
}
