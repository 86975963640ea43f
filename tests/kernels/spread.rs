//! The rows that a rank receives for its experts.

use crate::lab::check;
use ::reference::spread as reference;
use gristmill::ops::spread::local_offsets;

/// Some ranks send nothing, some experts receive nothing.
#[test]
pub fn the_rows_of_each_expert_start_after_those_of_the_one_before() {
    for (ranks, experts) in [(1, 1), (2, 4), (3, 9), (4, 512)] {
        check(&format!("{experts} experts on {ranks} ranks"), |case| {
            let counts: Vec<Vec<u32>> = (0..ranks)
                .map(|rank| {
                    (0..experts).map(|expert| (7 * rank + 5 * expert) % 11 % 4 * (rank % 3)).collect()
                })
                .collect();
            let starts = counts.iter().map(|counts| {
                let mut end = 3; // a rank's first row need not be row 0
                let ends = counts.iter().map(|count| {
                    end += count;
                    end
                });
                [3].into_iter().chain(ends.collect::<Vec<_>>()).collect::<Vec<_>>()
            });
            let stride = (experts as usize + 1).next_multiple_of(4);
            let padded = starts.flat_map(|mut row| {
                row.resize(stride, u32::MAX);
                row
            });
            let words = case.integers(&padded.collect::<Vec<_>>());
            let offsets =
                gristmill::record::Tensor { rows: ranks, cols: experts + 1, stride: stride as u32, ..words };
            for place in 0..ranks {
                let local = local_offsets(&mut case.rec, offsets, place);
                let want = reference::local_offsets(&counts, place as usize);
                case.expect_words(&format!("rank {place}"), local, move |got| {
                    assert_eq!(got[..want.len()], want);
                });
            }
        });
    }
}
