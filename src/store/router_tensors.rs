//! The state of routers in a checkpoint: the selection bias among the weights, under its Hugging Face name, and each
//! expert's capacity among the optimizer's tensors.

use super::tensor_file::TensorInfo;
use super::weight_files::WeightFiles;
use crate::error::Result;
use crate::model::ExpertState;
use crate::record::Tensor;
use safetensors::Dtype;

/// One row of router state: its tensor in a file and on the device.
pub(super) struct RouterTensor {
    pub info: TensorInfo,
    pub tensor: Tensor,
}

/// The selection biases (E), of ERNIE 4.5 (1, E), layer by layer.
pub(super) fn biases(experts: Option<&ExpertState>) -> Vec<RouterTensor> {
    rows(experts, Dtype::F32, |experts, layer| Some((experts.bias_in_files(layer), experts.bias(layer)?)))
}

/// The capacities (E) of experts in rows, layer by layer, where they change from step to step.
pub(super) fn capacities(experts: Option<&ExpertState>) -> Vec<RouterTensor> {
    rows(experts.filter(|experts| experts.hot_and_cold().is_some()), Dtype::U32, |experts, layer| {
        let capacities = experts.capacities(layer)?;
        Some(((format!("expert_capacities.{layer}"), vec![capacities.cols as usize]), capacities))
    })
}

fn rows(
    experts: Option<&ExpertState>,
    dtype: Dtype,
    row: impl Fn(&ExpertState, usize) -> Option<((String, Vec<usize>), Tensor)>,
) -> Vec<RouterTensor> {
    let of_layer = |experts: &ExpertState, layer| {
        let ((name, shape), tensor) = row(experts, layer)?;
        let info = TensorInfo { name, dtype, shape };
        Some(RouterTensor { info, tensor })
    };
    let of = |experts: &ExpertState| -> Vec<RouterTensor> {
        experts.layers().filter_map(|layer| of_layer(experts, layer)).collect()
    };
    experts.map_or_else(Vec::new, of)
}

/// Reads `router_state` from `file`; `write` puts it on the device. Tensors may be absent unless `is_required`:
/// weights of another origin may lack them, but a resumed run needs them.
///
/// # Errors
/// A tensor that is required and missing, or of another shape or type. Nothing is written then.
pub(super) fn load(
    router_state: &[RouterTensor],
    file: &WeightFiles,
    is_required: bool,
    write: impl Fn(Tensor, &[u8]),
) -> Result<()> {
    let wanted: Vec<&RouterTensor> =
        router_state.iter().filter(|row| is_required || file.holds(&row.info.name)).collect();
    wanted.iter().try_for_each(|row| file.check(&row.info))?;
    for RouterTensor { info, tensor } in wanted {
        match info.dtype {
            Dtype::F32 => write(*tensor, bytemuck::cast_slice(&file.values(&info.name)?)),
            _ => write(*tensor, file.bytes(&info.name)?),
        }
    }
    Ok(())
}
