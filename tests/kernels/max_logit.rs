//! The largest score of each head, over launches.

use crate::lab::check;
use gristmill::element::Element::{F32, U32};
use gristmill::ops::max_logit::{max_logit, score};
use reference::largest_scores::by_head;

/// A maximum is exact.
#[test]
pub fn the_largest_of_each_column_over_all_launches() {
    for (rows, heads) in [(1, 1), (130, 6), (1000, 4), (5, 67)] {
        check(&format!("{rows} x {heads}"), |case| {
            let parts = [0, 1].map(|_| case.input(rows, heads, F32));
            // 3 heads before them, and 2 after, are those of other ranks.
            let others = [u32::MAX, 0, 5, 1, 2];
            let none: Vec<u32> = [&others[..3], &vec![0; heads as usize], &others[3..]].concat();
            let largest = case.integers(&none);
            for part in &parts {
                max_logit(&mut case.rec, part.tensor, largest, 3);
            }
            let values: Vec<f64> = parts.iter().flat_map(|part| part.values.clone()).collect();
            let want = by_head(&values, heads as usize);
            case.expect_words("largest", largest, move |words| {
                let (before, own) = words.split_at(3);
                let (own, after) = own.split_at(heads as usize);
                assert_eq!([before, &after[..2]].concat(), others);
                assert_eq!(own.len(), want.len());
                for (word, want) in own.iter().zip(&want) {
                    assert_eq!(f64::from(score(*word)), *want);
                }
            });
            assert_eq!(largest.element, U32);
        });
    }
}
