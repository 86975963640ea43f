//! The embedding: rows of a table, looked up by token id.

use super::vector::{add_scaled, assert_len, rows_of};

/// Row i of y is row idsᵢ of the table: table (rows, cols), ids (N) -> y (N, cols).
#[track_caller]
pub fn embedding(table: &[f64], ids: &[u32], cols: usize) -> Vec<f64> {
    let rows = rows_of("table", table, cols);
    let mut y = Vec::with_capacity(ids.len() * cols);
    for &id in ids {
        y.extend(&table[start(id, rows, cols)..][..cols]);
    }
    y
}

/// dtable (rows, cols) of [`embedding`], given dy (N, cols): the rows of dy summed by id.
#[track_caller]
pub fn embedding_backward(dy: &[f64], ids: &[u32], rows: usize, cols: usize) -> Vec<f64> {
    assert_len("dy", dy, ids.len() * cols);
    let mut dtable = vec![0.0; rows * cols];
    for (i, &id) in ids.iter().enumerate() {
        add_scaled(&mut dtable[start(id, rows, cols)..][..cols], 1.0, &dy[i * cols..][..cols]);
    }
    dtable
}

/// Index of the first element of the row of `id`.
#[track_caller]
fn start(id: u32, rows: usize, cols: usize) -> usize {
    let row = id as usize;
    assert!(row < rows, "token id {id} should be below the table's {rows} rows.");
    row * cols
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::assert_gradient;
    use crate::random::Random;
    use crate::vector::dot;

    #[test]
    fn rows_are_copied() {
        assert_eq!(embedding(&[1.0, 2.0, 3.0, 4.0], &[1, 0, 1], 2), [3.0, 4.0, 1.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    fn backward_is_the_gradient() {
        // 13 draws from 5 rows repeat some ids.
        let (rows, cols) = (5, 3);
        let mut random = Random::new(61);
        let (table, ids, dy) = (random.normal(rows * cols), random.below(13, 5), random.normal(13 * cols));
        let dtable = embedding_backward(&dy, &ids, rows, cols);
        assert_gradient("dtable", &dtable, &table, |table| dot(&embedding(table, &ids, cols), &dy));
    }

    #[test]
    #[should_panic(expected = "token id 2 should be below the table's 2 rows.")]
    fn refuses_an_id_outside_the_table() {
        embedding(&[0.0; 4], &[2], 2);
    }
}
