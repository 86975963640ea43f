//! The gradient of attention from what the forward pass saved, as the kernels compute it.

use super::matrix::unit_of_slopes;
use super::{Row, Terms, largest};
use crate::lab::Input;
use ::reference::attention as reference;

/// dq, dk and dv, what is added up for them, and for each element the sum of the absolute values of all terms behind
/// it.
#[derive(Clone)]
pub(super) struct FromSaved {
    pub gradients: [Vec<f64>; 3],
    pub weighted: [Terms; 3],
    pub terms: [Vec<f64>; 3],
}

/// The gradient as the kernel computes it: weights from the saved log-sum-exp, delta from the saved, rounded output.
pub(super) fn from_saved(
    [q, k, v]: [&[f64]; 3],
    saved: [&[f64]; 2],
    dout: &[f64],
    (row, factors, sinks): (&Row, &[f64], Option<&Input>),
) -> FromSaved {
    let (starts, unit) = (row.starts(), unit_of_slopes(row, [q, k, v], dout));
    let shape = row.reference(&starts, factors, sinks);
    let reference::FromSaved { gradients, weighted: [of_q, of_k, of_v], terms } =
        reference::attention_backward_from_saved([q, k, v], saved, dout, &shape);
    let unit = shape.scale * unit;
    let weighted = [
        Terms { sizes: of_q, largest: unit * largest(k) },
        Terms { sizes: of_k, largest: unit * largest(q) },
        Terms { sizes: of_v, largest: largest(dout) },
    ];
    FromSaved { gradients, weighted, terms }
}
