//! The backward pass of attention: two kernels that compute the scores of each query and key twice, or one that computes them
//! once and leaves the gradient of the queries in parts.

use super::plan::{Pass, Plan, parts, plan, sum_queries};
use super::{Attention, AttentionTensors, Params};
use crate::element::Element;
use crate::kernels::Condition;
use crate::ops::dropout::DropoutState;
use crate::ops::per_item;
use crate::record::{Binding, Recorder, State, Tensor};

/// dqkv (N, layout.cols()), all columns written, from the inputs and outputs of [`attention`](super::attention()) and dout,
/// shaped like out.
///
/// Two dispatches: the gradient of the queries, which also computes delta = Σ dout · out of each head, then that of keys and
/// values. Where heads and sequences are many and heads narrow, three on GPUs: delta; keys and values, with the gradient of the
/// queries in parts; and the sum of the parts.
#[track_caller]
pub fn attention_backward(
    rec: &mut Recorder,
    tensors: &AttentionTensors,
    dout: Tensor,
    dqkv: Tensor,
    shape: &Attention,
) {
    let AttentionTensors { qkv, out, lse, documents, .. } = *tensors;
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
    let pass = Backward { tensors: *tensors, dout, dqkv, delta, batch, shape };
    match parts(shape, documents.is_some(), batch, rec.capabilities()) {
        Some(parts) => pass.in_parts(rec, Params { parts, ..params }),
        None => pass.in_two(rec, params),
    }
}

struct Backward<'a> {
    tensors: AttentionTensors,
    dout: Tensor,
    dqkv: Tensor,
    delta: Tensor,
    batch: u32,
    shape: &'a Attention,
}

impl Backward<'_> {
    fn in_two(&self, rec: &mut Recorder, params: Params) {
        let plan = self.plan(Pass::BackwardQ, rec);
        let grid = plan.grid(self.shape.layout.heads, self.batch);
        let mut bindings = self.of_both_sides();
        bindings.push(self.out());
        bindings.extend(self.starts());
        rec.dispatch(plan.kernel, &bindings, &params, grid);
        let plan = self.plan(Pass::BackwardKv, rec);
        let grid = plan.grid(self.shape.layout.kv_heads, self.batch);
        let mut bindings = self.of_both_sides();
        bindings.extend(self.ends());
        rec.dispatch(plan.kernel, &bindings, &params, grid);
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
        let mut bindings = self.of_both_sides();
        bindings.push(parts);
        bindings.extend(self.ends());
        let kernel = kernel.condition(Condition::Split, true);
        rec.dispatch(kernel, &bindings, &params, [layout.kv_heads, self.batch, params.parts]);

        let (kernel, grid) = sum_queries(self.shape, self.tensors.documents.is_some(), element, params.rows);
        let mut bindings = vec![parts, self.dqkv()];
        bindings.extend(self.starts());
        rec.dispatch(kernel, &bindings, &params, grid);
    }

    fn plan(&self, pass: Pass, rec: &Recorder) -> Plan {
        let is_packed = self.tensors.documents.is_some();
        plan(pass, self.shape, is_packed, self.dqkv.element, rec.capabilities())
    }

    /// What the kernels that compute scores bind.
    fn of_both_sides(&self) -> Vec<Binding> {
        let AttentionTensors { qkv, lse, .. } = self.tensors;
        let mut bindings = vec![
            qkv.bind_with_offset("qkv", qkv.element),
            self.dout(),
            lse.bind_with_offset("lse", Element::F32),
            self.delta.bind("delta", Element::F32),
            self.dqkv(),
        ];
        let dropout = self.shape.dropout;
        bindings.extend(dropout.map(|dropout| DropoutState::bind("dropout_state", dropout.state)));
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
