//! Fingerprints of weights, whose sums are integers and equal the reference word by word.

use crate::lab::check;
use gristmill::element::Element::{self, Bf16, F16, F32, U32};
use gristmill::ops::fingerprint::fingerprint;
use gristmill::ops::zero::zero;
use gristmill::record::Tensor;

/// The words of a flat row that holds `values` as `element`.
fn words(values: &[f64], element: Element) -> Vec<u32> {
    let values: Vec<f32> = values.iter().map(|&value| value as f32).collect();
    let mut bytes = Vec::new();
    element.encode_row(&values, &mut bytes);
    bytemuck::pod_collect_to_vec(&bytes)
}

/// A row of each type, several parts of one tensor, and a part that starts within a binding.
#[test]
pub fn fingerprints_are_those_of_the_reference() {
    check("fingerprints", |case| {
        // Less than a group of invocations, more, and one that fills several workgroups.
        let lengths = [4u32, 700, 9000];
        let rows = 3 * lengths.len() as u32 + 2;
        let sums = case.output(rows, 2, U32);
        zero(&mut case.rec, Tensor { element: F32, ..sums });
        let mut want = Vec::new();
        for (index, (element, length)) in (0..)
            .zip([F32, F16, Bf16].into_iter().flat_map(|element| lengths.map(|length| (element, length))))
        {
            let row = case.input(1, length, element);
            fingerprint(&mut case.rec, row.tensor, 5, sums, index);
            want.push(reference::fingerprint::fingerprint(&words(&row.values, element), 5));
        }
        let whole = case.input(1, 1024, F32);
        for (first, end) in [(0, 128), (128, 640), (640, 1024)] {
            let part = whole.tensor.columns(first, end - first);
            fingerprint(&mut case.rec, part, first, sums, rows - 2);
        }
        want.push(reference::fingerprint::fingerprint(&words(&whole.values, F32), 0));
        let inside = whole.tensor.columns(4, 96);
        fingerprint(&mut case.rec, inside, 0, sums, rows - 1);
        want.push(reference::fingerprint::fingerprint(&words(&whole.values[4..100], F32), 0));
        case.expect_words("sums", sums, move |words| {
            let got: Vec<[u32; 2]> = words.chunks_exact(4).map(|row| [row[0], row[1]]).collect();
            assert_eq!(got, want);
            assert!(words.chunks_exact(4).all(|row| row[2..] == [0, 0]), "the padding stays");
        });
    });
}
