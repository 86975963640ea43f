//! The backward pass of attention: two kernels that compute the scores of each query and key twice, or one that
//! computes them once and leaves the gradient of the queries in parts. Where few key heads serve many query heads,
//! several workgroups share the queries of a key, and the gradients of keys and values are left in parts as well.

use super::plan::{Division, Plan, divide, plan, sum_keys, sum_queries};
use super::sinks::sinks_backward;
use super::tile::Pass;
use super::{Attention, AttentionTensors, Params, scale_of};
use crate::element::Element;
use crate::kernels::{Condition, Kernel};
use crate::ops::dropout::DropoutState;
use crate::ops::per_item;
use crate::record::{Binding, Recorder, State, Tensor};

/// dqkv (N, layout.cols()), all columns written, from the inputs and outputs of [`attention`](super::attention()) and
/// dout, shaped like out.
///
/// Two dispatches: the gradient of the queries, which also computes delta = Σ dout · out of each head, then the
/// gradients of keys and values. On GPUs, with many heads and sequences and narrow heads, and unless matrices compute
/// it, three dispatches: delta; keys and values, with the gradient of the queries in parts; and the sum of the parts.
/// One more if the gradients of keys and values are in parts.
///
/// [Sinks](super::Sinks) change none of these, since lse and delta contain them; their own gradient, if it is asked
/// for, takes two more dispatches.
#[track_caller]
pub fn attention_backward(
    rec: &mut Recorder,
    tensors: &AttentionTensors,
    dout: Tensor,
    dqkv: Tensor,
    shape: &Attention,
) {
    let AttentionTensors { qkv, out, lse, documents, sinks, .. } = *tensors;
    shape.assert_masks(documents, qkv);
    let batch = shape.assert_fits(qkv, &[("out", out), ("dout", dout)], lse);
    let fits = (dqkv.rows, dqkv.cols, dqkv.element) == (qkv.rows, qkv.cols, qkv.element);
    assert!(fits, "dqkv must have the shape and element type of qkv");
    let delta = rec.tensor("delta", lse.rows, lse.cols, Element::F32);
    let params = Params {
        dout_offset: dout.offset4(),
        dout_stride: dout.stride4(),
        delta_stride: delta.stride,
        dqkv_offset: dqkv.offset4(),
        dqkv_stride: dqkv.stride4(),
        ..shape.params(tensors)
    };
    let division = divide(shape, documents.is_some(), batch, dqkv.element, rec.capabilities());
    let params = Params { parts: division.parts.unwrap_or(0), share: division.share, ..params };
    let pass = Backward { tensors: *tensors, dout, dqkv, delta, batch, shape, division };
    match division.parts {
        Some(_) => pass.in_parts(rec, params),
        None => pass.in_two(rec, params),
    }
    if let Some(sinks) = sinks {
        // Matrices leave delta scaled.
        let by_matrices = division.parts.is_none().then(|| pass.plan(Pass::BackwardQ, rec).kernel);
        let scales = by_matrices.and_then(|kernel| {
            let of_qkv = scale_of(rec, &kernel, qkv, "qkv_largest")?;
            Some([of_qkv, scale_of(rec, &kernel, dout, "dout_largest")?])
        });
        sinks_backward(rec, sinks, qkv.element, [lse, delta], scales);
    }
}

struct Backward<'a> {
    tensors: AttentionTensors,
    dout: Tensor,
    dqkv: Tensor,
    delta: Tensor,
    batch: u32,
    shape: &'a Attention,
    division: Division,
}

impl Backward<'_> {
    fn in_two(&self, rec: &mut Recorder, params: Params) {
        let plan = self.plan(Pass::BackwardQ, rec);
        let grid = plan.grid(self.shape.layout.heads, self.batch);
        let mut bindings = self.of_both_sides(rec, &plan.kernel);
        bindings.extend([self.dqkv(), self.out()]);
        bindings.extend(self.starts());
        rec.dispatch(plan.kernel, &bindings, &params, grid);
        let plan = self.plan(Pass::BackwardKv, rec);
        let grid = plan.grid(self.shape.layout.heads / params.share, self.batch);
        self.of_keys(rec, plan.kernel, Vec::new(), params, grid);
    }

    fn in_parts(&self, rec: &mut Recorder, params: Params) {
        let (layout, element) = (self.shape.layout, self.dqkv.element);
        let items = u64::from(params.rows) * u64::from(params.delta_stride);
        let (kernel, grid) = per_item("attention/portable/delta", "attention_delta", element, items);
        let bindings = [self.out(), self.dout(), self.delta.bind("delta", Element::F32)];
        rec.dispatch(kernel.constant("V4", params.v4), &bindings, &params, grid);

        let parts = rec.tensor(
            "parts of dq",
            params.parts * params.rows,
            layout.heads * layout.head_dim,
            Element::F32,
        );
        let parts = parts.bind("parts", Element::F32);
        let Plan { kernel, .. } = self.plan(Pass::BackwardKv, rec);
        let kernel = kernel.condition(Condition::Split, true);
        let grid = [layout.heads / params.share, self.batch, params.parts];
        self.of_keys(rec, kernel, vec![parts], params, grid);

        let (kernel, grid) = sum_queries(self.shape, self.tensors.documents.is_some(), element, params.rows);
        let mut bindings = vec![parts, self.dqkv()];
        bindings.extend(self.starts());
        rec.dispatch(kernel, &bindings, &params, grid);
    }

    /// Records the gradients of keys and values by `kernel`, which also binds `others`, and the sum of their parts if
    /// it leaves parts.
    fn of_keys(
        &self,
        rec: &mut Recorder,
        kernel: Kernel,
        others: Vec<Binding>,
        params: Params,
        grid: [u32; 3],
    ) {
        let (layout, element) = (self.shape.layout, self.dqkv.element);
        let leaves_parts = self.division.leaves_keys(self.shape);
        let result = if leaves_parts {
            let rows = layout.group() / params.share * params.rows;
            rec.tensor("parts of dk and dv", rows, layout.k_cols() + layout.v_cols(), Element::F32)
                .bind("key_parts", Element::F32)
        } else {
            self.dqkv()
        };
        let mut bindings = self.of_both_sides(rec, &kernel);
        bindings.push(result);
        bindings.extend(others);
        bindings.extend(self.ends());
        rec.dispatch(kernel.condition(Condition::KeyParts, leaves_parts), &bindings, &params, grid);
        if leaves_parts {
            let (kernel, grid) = sum_keys(layout, element, params.rows);
            rec.dispatch(kernel, &[result, self.dqkv()], &params, grid);
        }
    }

    fn plan(&self, pass: Pass, rec: &Recorder) -> Plan {
        let is_packed = self.tensors.documents.is_some();
        plan(pass, self.shape, is_packed, self.batch, self.dqkv.element, rec.capabilities())
    }

    /// The bindings of a kernel that computes scores, except its results.
    fn of_both_sides(&self, rec: &mut Recorder, kernel: &Kernel) -> Vec<Binding> {
        let AttentionTensors { qkv, lse, .. } = self.tensors;
        let mut bindings = vec![
            qkv.bind_with_offset("qkv", qkv.element),
            self.dout(),
            lse.bind_with_offset("lse", Element::F32),
            self.delta.bind("delta", Element::F32),
        ];
        let dropout = self.shape.dropout;
        bindings.extend(dropout.map(|dropout| DropoutState::bind("dropout_state", dropout.state)));
        bindings.extend(scale_of(rec, kernel, qkv, "qkv_largest"));
        bindings.extend(scale_of(rec, kernel, self.dout, "dout_largest"));
        bindings
    }

    fn out(&self) -> Binding {
        self.tensors.out.bind_with_offset("out", self.dqkv.element)
    }

    fn dout(&self) -> Binding {
        self.dout.bind_with_offset("dout", self.dqkv.element)
    }

    fn dqkv(&self) -> Binding {
        self.dqkv.bind_with_offset("dqkv", self.dqkv.element)
    }

    fn starts(&self) -> Option<Binding> {
        self.tensors.documents.map(|documents| documents.starts.bind_with_offset("starts", Element::U32))
    }

    fn ends(&self) -> Option<Binding> {
        self.tensors.documents.map(|documents| documents.ends.bind_with_offset("ends", Element::U32))
    }
}
