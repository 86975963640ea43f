//! Measurements of tensors, which later dispatches share.

use super::{Position, Recorder};
use crate::element::Element;
use crate::kernels::Kernel;
use crate::record::params::Params;
use crate::record::recording::Dispatch;
use crate::record::tensor::{Binding, BufferId, Tensor};
use std::ops::Range;

/// The shader whose dispatches are measurements.
const MEASUREMENT: &str = "largest";

impl Recorder {
    /// A measurement of the tensor that is bound first: a row of `words` u32, which `kernel` writes to a variable of
    /// the name of its file. Records nothing if the tensor was measured before and nothing recorded since may have
    /// changed it.
    ///
    /// A recording that repeats dispatches does not repeat measurements: repeated dispatches write the same bits.
    #[track_caller]
    pub fn measure<P: Params>(
        &mut self,
        kernel: Kernel,
        inputs: &[Binding],
        params: &P,
        words: u32,
    ) -> Tensor {
        if let Some(buffer) = self.known(&kernel, inputs, bytemuck::bytes_of(params)) {
            return Tensor::new(buffer, 0, 1, words, Element::U32);
        }
        let result = self.tensor(kernel.file, 1, words, Element::U32);
        let bindings = [inputs, &[result.bind(kernel.file, Element::U32)]].concat();
        self.dispatch(kernel, &bindings, params, [words, 1, 1]);
        result
    }

    /// The results of the measurements in `range`.
    pub fn measurements_of(&self, range: Range<Position>) -> impl Iterator<Item = BufferId> + '_ {
        let dispatches = &self.dispatches[range.start.dispatches..range.end.dispatches];
        dispatches.iter().filter(|dispatch| is_measurement(dispatch)).map(result_of)
    }

    /// The result of a measurement that still holds.
    fn known(&self, kernel: &Kernel, inputs: &[Binding], params: &[u8]) -> Option<BufferId> {
        let measured = inputs[0].span();
        let is_it = |dispatch: &Dispatch| {
            is_measurement(dispatch)
                && (&dispatch.kernel, dispatch.params.as_slice()) == (kernel, params)
                && dispatch.bindings.starts_with(inputs)
        };
        let may_change = |dispatch: &Dispatch| {
            let mut used = dispatch.bindings.iter().filter(|binding| binding.span().overlaps(&measured));
            used.any(|binding| !is_only_read(dispatch, binding))
        };
        let last = self.dispatches.iter().rposition(|dispatch| is_it(dispatch) || may_change(dispatch))?;
        let results = self.exchanges.iter().filter(|exchange| exchange.at > last);
        let mut results = results.flat_map(|exchange| exchange.collective.results());
        let holds = is_it(&self.dispatches[last]) && !results.any(|span| span.overlaps(&measured));
        holds.then(|| result_of(&self.dispatches[last]))
    }
}

pub(super) fn is_measurement(dispatch: &Dispatch) -> bool {
    dispatch.kernel.file == MEASUREMENT
}

fn result_of(measurement: &Dispatch) -> BufferId {
    measurement.bindings.last().expect("a measurement has a result").buffer
}

/// Whether `binding` is known to be an input: a factor of a product, an operand of attention by matrices, or what is
/// measured. Recordings do not say which bindings a kernel writes; a tensor that something else has used is measured
/// again.
fn is_only_read(dispatch: &Dispatch, binding: &Binding) -> bool {
    let is_one_of = |folder, variables: [&str; 2]| {
        dispatch.kernel.file.starts_with(folder) && variables.contains(&binding.variable)
    };
    is_one_of("matmul/", ["a", "b"])
        || is_one_of("attention/matrix/", ["qkv", "dout"])
        || is_measurement(dispatch) && binding.variable != MEASUREMENT
}
