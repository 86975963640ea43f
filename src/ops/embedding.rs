//! Embedding lookup and its gradient.

use super::zero::zero;
use crate::element::Element;
use crate::kernels::{Condition, Kernel, Tier};
use crate::record::{Binding, Recorder, Tensor, fold_grid};

crate::params! {
    struct Params {
        tokens: u32,
        stride4: u32,
        first_row: u32,
        rows: u32,
        factor: f32,
        table_stride4: u32,
        table_offset4: u32,
    }
}

/// y (N, D) = factor · `table[ids]`, without a factor the rows as they are; ids (1, N), u32. The table (V, D) comes in
/// parts of consecutive rows, several if it exceeds a binding.
#[track_caller]
pub fn embedding(rec: &mut Recorder, ids: Tensor, table: &[Tensor], factor: Option<f32>, y: Tensor) {
    look_up(rec, ids, table, (0, factor), y, false);
}

/// [`embedding`] of a table that starts with row `first` of a larger one: zeros for ids that are not in it.
#[track_caller]
pub fn embedding_of_rows(
    rec: &mut Recorder,
    ids: Tensor,
    table: &[Tensor],
    first: u32,
    factor: Option<f32>,
    y: Tensor,
) {
    zero(rec, y);
    look_up(rec, ids, table, (first, factor), y, false);
}

/// y (N, D) += factor · `table[ids - first]`; see [`embedding`]. Rows before the first are skipped where `first` is
/// [`first_row_after`] them. Parts may be ranges of the columns of a wider table.
#[track_caller]
pub fn add_embedding(
    rec: &mut Recorder,
    ids: Tensor,
    table: &[Tensor],
    (first, factor): (u32, Option<f32>),
    y: Tensor,
) {
    look_up(rec, ids, table, (first, factor), y, true);
}

/// The number of the first row of a table, of whose rows the first `skipped` come before row 0: numbers of rows wrap
/// around.
pub fn first_row_after(skipped: u32) -> u32 {
    0u32.wrapping_sub(skipped)
}

#[track_caller]
fn look_up(
    rec: &mut Recorder,
    ids: Tensor,
    table: &[Tensor],
    (first, factor): (u32, Option<f32>),
    y: Tensor,
    accumulate: bool,
) {
    assert!(ids.cols == y.rows, "{} ids for {} rows", ids.cols, y.rows);
    let mut first_row = first;
    for part in table {
        assert!(
            part.cols == y.cols && part.element == y.element,
            "the table must have rows of the width and element type of y"
        );
        let ids = ids.bind("ids", Element::U32);
        let bindings = [ids, part.bind_with_offset("table", y.element), y.bind("y", y.element)];
        let kernel = kernel(rec, "embedding", y.element).condition(Condition::Accumulate, accumulate);
        launch(rec, kernel, y, (first_row, *part), factor, &bindings);
        first_row = first_row.wrapping_add(part.rows);
    }
}

/// `dtable[v]` += factor · Σ of dy (N, D) over the tokens with id v. `order` (1, N), u32: token indices sorted
/// by id, which fixes the order of each sum.
#[track_caller]
pub fn embedding_backward(
    rec: &mut Recorder,
    ids: Tensor,
    order: Tensor,
    dy: Tensor,
    dtable: &[Tensor],
    factor: Option<f32>,
) {
    embedding_of_rows_backward(rec, ids, order, dy, dtable, 0, factor);
}

/// [`embedding_backward`] for a table that starts with row `first` of a larger one. Parts may be ranges of columns, as
/// in [`add_embedding`].
#[track_caller]
pub fn embedding_of_rows_backward(
    rec: &mut Recorder,
    ids: Tensor,
    order: Tensor,
    dy: Tensor,
    dtable: &[Tensor],
    first: u32,
    factor: Option<f32>,
) {
    assert!(
        ids.cols == dy.rows && order.cols == dy.rows,
        "ids and order must have one entry for each row of dy"
    );
    let mut first_row = first;
    for part in dtable {
        assert!(part.element == Element::F32, "gradients of parameters must be f32");
        let bindings = [
            ids.bind("ids", Element::U32),
            order.bind("order", Element::U32),
            dy.bind("dy", dy.element),
            part.bind_with_offset("dtable", Element::F32),
        ];
        let kernel = kernel(rec, "embedding_backward", dy.element);
        launch(rec, kernel, dy, (first_row, *part), factor, &bindings);
        first_row = first_row.wrapping_add(part.rows);
    }
}

fn lanes(rec: &Recorder) -> u32 {
    if rec.capabilities().tier == Tier::Software { 32 } else { 64 }
}

fn kernel(rec: &Recorder, entry: &'static str, element: Element) -> Kernel {
    Kernel::new("embedding", entry, element).constant("LANES", lanes(rec))
}

fn launch(
    rec: &mut Recorder,
    kernel: Kernel,
    tokens: Tensor,
    (first_row, part): (u32, Tensor),
    factor: Option<f32>,
    bindings: &[Binding],
) {
    let (table_stride4, table_offset4) = (part.stride4(), part.offset4());
    let is_sliced = (table_stride4, table_offset4) != (tokens.stride4(), 0);
    let kernel =
        kernel.condition(Condition::Scaled, factor.is_some()).condition(Condition::Sliced, is_sliced);
    let (tokens, stride4, factor) = (tokens.rows, tokens.stride4(), factor.unwrap_or(1.0));
    let rows = part.rows;
    let params = Params { tokens, stride4, first_row, rows, factor, table_stride4, table_offset4 };
    let groups = stride4.div_ceil(lanes(rec)) as u64 * tokens as u64;
    rec.dispatch(kernel, bindings, &params, fold_grid(groups));
}
