//! Copies of the matrices of hot experts, and the order of experts in which the hot ones are the last.

/// The experts of a layer with the cold ones first and the hot ones last, both in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotLast {
    /// The place of each expert (E).
    pub groups: Vec<usize>,
    /// The first row of each expert among those of cold experts, of which hot ones have none, and their end (E + 1).
    pub cold_offsets: Vec<usize>,
    /// The first row of each hot expert among those of hot experts, and their end.
    pub hot_offsets: Vec<usize>,
}

/// The order of `experts` experts of which those in `hot`, ascending, are hot.
pub fn hot_last(experts: usize, hot: &[usize], capacity: usize, cold_capacity: usize) -> HotLast {
    let cold: Vec<usize> = (0..experts).filter(|expert| !hot.contains(expert)).collect();
    let order = [&cold[..], hot].concat();
    let place = |expert: usize| order.iter().position(|&one| one == expert).expect("an expert");
    let before = |expert: usize| cold.iter().filter(|&&one| one < expert).count();
    HotLast {
        groups: (0..experts).map(place).collect(),
        cold_offsets: (0..=experts).map(|expert| before(expert) * cold_capacity).collect(),
        hot_offsets: (0..=hot.len()).map(|slot| slot * capacity).collect(),
    }
}

/// The matrices of the experts in `hot`, one after the other, of a `stack` of matrices of `matrix` elements.
pub fn hot_copies(stack: &[f64], hot: &[usize], matrix: usize) -> Vec<f64> {
    hot.iter().flat_map(|&expert| stack[expert * matrix..][..matrix].to_vec()).collect()
}

/// The gradient of the stack of `experts` experts, given that of the copies.
pub fn hot_copies_backward(d_copies: &[f64], hot: &[usize], experts: usize, matrix: usize) -> Vec<f64> {
    let mut d_stack = vec![0.0; experts * matrix];
    for (slot, expert) in hot.iter().enumerate() {
        d_stack[expert * matrix..][..matrix].copy_from_slice(&d_copies[slot * matrix..][..matrix]);
    }
    d_stack
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::assert_gradient;
    use crate::vector::dot;

    #[test]
    fn hot_experts_come_last() {
        let want = HotLast {
            groups: vec![0, 3, 1, 4, 2],
            cold_offsets: vec![0, 2, 2, 4, 4, 6],
            hot_offsets: vec![0, 7, 14],
        };
        assert_eq!(hot_last(5, &[1, 3], 7, 2), want);
    }

    #[test]
    fn copies_are_the_matrices_of_hot_experts() {
        let stack: Vec<f64> = (0..10).map(|i| f64::from(i) * 0.7 - 2.0).collect();
        assert_eq!(hot_copies(&stack, &[1, 4], 2), [stack[2], stack[3], stack[8], stack[9]]);
        let dy = [0.5, -1.0, 2.0, 3.0];
        let d_stack = hot_copies_backward(&dy, &[1, 4], 5, 2);
        assert_gradient("d_stack", &d_stack, &stack, |stack| dot(&hot_copies(stack, &[1, 4], 2), &dy));
    }
}
