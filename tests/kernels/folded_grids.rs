//! Grids of more than 32,768 workgroups, which are folded into rows: workgroups of the second row find their place, and
//! those past the end touch nothing.

use crate::lab::{Case, allowed, check, check_tier, order_by_id};
use gristmill::element::Element::F32;
use gristmill::kernels::Tier;
use gristmill::ops::embedding::{embedding, embedding_backward};
use gristmill::ops::rms_norm::{RmsNorm, rms_norm};
use gristmill::ops::swiglu::{Gate, swiglu, swiglu_backward};
use gristmill::record::fold_grid;

/// A little more than the workgroups in one row of a folded grid.
const WORKGROUPS: u32 = 32_800;

/// Rows that a workgroup of the software tier normalises.
const SOFTWARE_ROWS: u32 = 8;

#[test]
fn such_a_grid_has_two_rows() {
    assert_eq!(fold_grid(WORKGROUPS.into()), [32_768, 2, 1]);
}

#[test]
fn norms_of_one_workgroup_or_invocation_per_row() {
    check_tier("rms_norm folded", Tier::Portable, &|case| normalise(case, WORKGROUPS));
    check_tier("rms_norm folded", Tier::Software, &|case| normalise(case, SOFTWARE_ROWS * WORKGROUPS));
}

fn normalise(case: &mut Case, rows: u32) {
    let (x, w) = (case.input(rows, 4, F32), case.input(1, 4, F32));
    let (y, rstd) = (case.output(rows, 4, F32), case.output(1, rows, F32));
    rms_norm(&mut case.rec, x.tensor, w.tensor, y, rstd, RmsNorm::new(1e-5));
    case.expect("y", y, reference::rms_norm::rms_norm(&x.values, &w.values, 4, 1e-5), allowed(F32, 4));
}

#[test]
fn activations_of_one_workgroup_per_row() {
    check("swiglu folded", |case| {
        let (gate_up, dout) = (case.input(WORKGROUPS, 8, F32), case.input(WORKGROUPS, 4, F32));
        let (out, d_gate_up) = (case.output(WORKGROUPS, 4, F32), case.output(WORKGROUPS, 8, F32));
        swiglu(&mut case.rec, gate_up.tensor, out, Gate::Silu);
        swiglu_backward(&mut case.rec, gate_up.tensor, dout.tensor, d_gate_up, Gate::Silu);
        let half = |first: usize| -> Vec<f64> {
            gate_up.values.chunks(8).flat_map(|row| row[first..first + 4].to_vec()).collect()
        };
        let (gate, up) = (half(0), half(4));
        case.expect("out", out, reference::swiglu::swiglu(&gate, &up), allowed(F32, 2));
        let (d_gate, d_up) = reference::swiglu::swiglu_backward(&gate, &up, &dout.values);
        let rows = d_gate.chunks(4).zip(d_up.chunks(4));
        case.expect(
            "d_gate_up",
            d_gate_up,
            rows.flat_map(|(g, u)| [g, u].concat()).collect(),
            allowed(F32, 4),
        );
    });
}

#[test]
fn embeddings_of_one_workgroup_per_token() {
    check("embedding folded", |case| {
        let vocab = 1000;
        let ids = case.ids_below(WORKGROUPS as usize, vocab);
        let (ids_tensor, order) = (case.integers(&ids), case.integers(&order_by_id(&ids)));
        let (table, dtable) = (case.input(vocab, 4, F32), case.input_of(&[0.0; 4000], vocab, 4, F32));
        let (y, dy) = (case.output(WORKGROUPS, 4, F32), case.input(WORKGROUPS, 4, F32));
        embedding(&mut case.rec, ids_tensor, &[table.tensor], None, y);
        embedding_backward(&mut case.rec, ids_tensor, order, dy.tensor, &[dtable.tensor], None);
        case.expect("y", y, reference::embedding::embedding(&table.values, &ids, 4), 0.0);
        let want = reference::embedding::embedding_backward(&dy.values, &ids, vocab as usize, 4);
        case.expect("dtable", dtable.tensor, want, allowed(F32, WORKGROUPS));
    });
}
