//! What routers remember, as checkpoints hold it: the bias of the choice among the weights, under its Hugging Face name, and
//! how many rows each expert has among the optimizer's tensors.

use super::arena_tensors::check;
use super::tensor_file::{TensorFile, TensorInfo};
use crate::error::Result;
use crate::model::{ExpertState, selection_bias};
use crate::record::Tensor;
use safetensors::Dtype;

/// A row of numbers that outlives a step, and its place in a file.
pub(super) struct Remembered {
    pub info: TensorInfo,
    pub tensor: Tensor,
}

/// The biases of the choice, layer by layer.
pub(super) fn biases(experts: Option<&ExpertState>) -> Vec<Remembered> {
    rows(experts, Dtype::F32, |experts, layer| Some((selection_bias(layer), experts.bias(layer)?)))
}

/// Rows that experts have, where that changes from step to step.
pub(super) fn capacities(experts: Option<&ExpertState>) -> Vec<Remembered> {
    rows(experts.filter(|experts| experts.hot_and_cold().is_some()), Dtype::U32, |experts, layer| {
        Some((format!("expert_capacities.{layer}"), experts.capacities(layer)?))
    })
}

fn rows(
    experts: Option<&ExpertState>,
    dtype: Dtype,
    row: impl Fn(&ExpertState, usize) -> Option<(String, Tensor)>,
) -> Vec<Remembered> {
    let remembered = |experts: &ExpertState, layer| {
        let (name, tensor) = row(experts, layer)?;
        let info = TensorInfo { name, dtype, shape: vec![tensor.cols as usize] };
        Some(Remembered { info, tensor })
    };
    let of = |experts: &ExpertState| -> Vec<Remembered> {
        experts.layers().filter_map(|layer| remembered(experts, layer)).collect()
    };
    experts.map_or_else(Vec::new, of)
}

/// Reads what `file` holds of `remembered`. Weights of another origin need not have it: `is_required` is for resuming.
///
/// # Errors
/// A tensor that is missing, or of another shape; nothing is written then.
pub(super) fn load(
    remembered: &[Remembered],
    file: &TensorFile,
    is_required: bool,
    write: impl Fn(Tensor, &[u8]),
) -> Result<()> {
    let names = file.names();
    let wanted: Vec<&Remembered> =
        remembered.iter().filter(|row| is_required || names.contains(&row.info.name)).collect();
    wanted.iter().try_for_each(|row| check(file, &row.info))?;
    for Remembered { info, tensor } in wanted {
        write(*tensor, file.tensor(&info.name)?.2);
    }
    Ok(())
}
