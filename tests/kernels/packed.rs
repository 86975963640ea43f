//! Rows that hold several tensors: q, k and v; gate and up; and the bounds of packed documents.

use gristmill::element::stride_of;
use gristmill::ops::heads::HeadLayout;

/// q, k and v of packed rows.
pub fn split_qkv(rows: &[f64], layout: &HeadLayout) -> [Vec<f64>; 3] {
    let starts = [0, layout.k_start(), layout.v_start(), layout.cols()].map(|start| start as usize);
    [0, 1, 2].map(|part| columns(rows, layout.cols(), starts[part]..starts[part + 1]))
}

/// Packed rows of q, k and v.
pub fn pack_qkv(parts: &[Vec<f64>; 3], layout: &HeadLayout) -> Vec<f64> {
    let widths = [layout.q_cols(), layout.k_cols(), layout.v_cols()].map(|width| width as usize);
    (0..parts[0].len() / widths[0])
        .flat_map(|r| parts.iter().zip(widths).flat_map(move |(part, w)| part[r * w..(r + 1) * w].to_vec()))
        .collect()
}

/// Gate and up, each `width` wide, of packed rows.
pub fn split_gate_up(rows: &[f64], width: u32) -> [Vec<f64>; 2] {
    let (half, width) = (stride_of(width), width as usize);
    [0, half as usize].map(|first| columns(rows, 2 * half, first..first + width))
}

/// Packed rows of gate and up, each padded with zeros to a multiple of 4.
pub fn pack_gate_up(gate: &[f64], up: &[f64], width: u32) -> Vec<f64> {
    let pad = vec![0.0; (stride_of(width) - width) as usize];
    let rows = gate.chunks(width as usize).zip(up.chunks(width as usize));
    rows.flat_map(|(gate, up)| [gate, &pad, up, &pad].concat()).collect()
}

/// For each token of a sequence where its document starts and ends.
pub fn document_bounds(lengths: &[u32]) -> [Vec<u32>; 2] {
    let [mut starts, mut ends] = [Vec::new(), Vec::new()];
    for &length in lengths {
        let start = starts.len() as u32;
        starts.extend(std::iter::repeat_n(start, length as usize));
        ends.extend(std::iter::repeat_n(start + length, length as usize));
    }
    [starts, ends]
}

/// A range of the columns of rows.
pub fn columns(rows: &[f64], cols: u32, range: std::ops::Range<usize>) -> Vec<f64> {
    rows.chunks(cols as usize).flat_map(|row| row[range.clone()].to_vec()).collect()
}
