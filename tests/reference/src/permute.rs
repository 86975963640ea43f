//! Permutation between token order and expert order.
//!
//! N tokens have k choices each; choice j of token t has index t·k + j. Expert e has the rows offsetsₑ..offsetsₑ₊₁.

use super::vector::{add_scaled, assert_len, dot, rows_of};
use std::cmp::Reverse;

/// The assignment of choices to rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Choices per expert (E), dropped ones included.
    pub counts: Vec<usize>,
    /// The first row of each expert, then the number of rows (E + 1).
    pub offsets: Vec<usize>,
    /// The row of each choice (N·k); `None` if it was dropped.
    pub places: Vec<Option<usize>>,
    /// The choice of each row (R); `None` if the row is zero.
    pub sources: Vec<Option<usize>>,
}

/// How many rows experts have, and in which order choices fill them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowAllocation {
    /// One row per choice, followed by `extra` zero rows.
    Dropless {
        /// 0 or 1.
        extra: usize,
    },
    /// A fixed number of rows per expert.
    Capacity {
        /// Rows of each expert (E).
        capacities: Vec<usize>,
        /// Whether the first choices of all tokens come before any second choice.
        by_choice: bool,
    },
}

/// Assigns rows to choices; `ids` (N·k) holds the expert of each. The choices of an expert fill its rows in order, and
/// those beyond its capacity are dropped.
pub fn place(ids: &[usize], chosen: usize, experts: usize, allocation: &RowAllocation) -> Placement {
    let tokens = ids.len() / chosen;
    let by_choice = matches!(allocation, RowAllocation::Capacity { by_choice: true, .. });
    let order: Vec<usize> = match by_choice {
        true => (0..chosen).flat_map(|j| (0..tokens).map(move |t| t * chosen + j)).collect(),
        false => (0..ids.len()).collect(),
    };
    let (mut counts, mut offsets) = (Vec::new(), vec![0]);
    let (mut places, mut sources) = (vec![None; ids.len()], Vec::new());
    for expert in 0..experts {
        let mine: Vec<usize> = order.iter().copied().filter(|&choice| ids[choice] == expert).collect();
        let rows = match allocation {
            RowAllocation::Dropless { extra } => mine.len() + extra,
            RowAllocation::Capacity { capacities, .. } => capacities[expert],
        };
        for slot in 0..rows {
            if let Some(&choice) = mine.get(slot) {
                places[choice] = Some(sources.len());
            }
            sources.push(mine.get(slot).copied());
        }
        counts.push(mine.len());
        offsets.push(sources.len());
    }
    Placement { counts, offsets, places, sources }
}

/// rows (R, cols) from x (N, cols): the token of each row's choice, or zeros.
#[track_caller]
pub fn permute(x: &[f64], placement: &Placement, chosen: usize, cols: usize) -> Vec<f64> {
    let tokens = rows_of("x", x, cols);
    assert_len("places", &placement.places, tokens * chosen);
    let row = |source: &Option<usize>| match source {
        Some(choice) => x[choice / chosen * cols..][..cols].to_vec(),
        None => vec![0.0; cols],
    };
    placement.sources.iter().flat_map(row).collect()
}

/// dx (N, cols) of [`permute`], given `d_rows` (R, cols): the sum over a token's choices.
#[track_caller]
pub fn permute_backward(d_rows: &[f64], placement: &Placement, chosen: usize, cols: usize) -> Vec<f64> {
    let gates = vec![1.0; placement.places.len()];
    combine(d_rows, &gates, placement, chosen, cols)
}

/// y (N, cols) = Σⱼ gateⱼ · row of choice j: rows (R, cols), gates (N, k). Dropped choices add nothing.
#[track_caller]
pub fn combine(rows: &[f64], gates: &[f64], placement: &Placement, chosen: usize, cols: usize) -> Vec<f64> {
    assert_len("rows", rows, placement.sources.len() * cols);
    assert_len("gates", gates, placement.places.len());
    let mut y = vec![0.0; gates.len() / chosen * cols];
    for (choice, place) in placement.places.iter().enumerate() {
        if let Some(row) = place {
            add_scaled(&mut y[choice / chosen * cols..][..cols], gates[choice], &rows[row * cols..][..cols]);
        }
    }
    y
}

/// (`d_rows`, `d_gates`) of [`combine`], given dy (N, cols).
#[track_caller]
pub fn combine_backward(
    rows: &[f64],
    gates: &[f64],
    placement: &Placement,
    dy: &[f64],
    chosen: usize,
    cols: usize,
) -> (Vec<f64>, Vec<f64>) {
    assert_len("dy", dy, gates.len() / chosen * cols);
    let (mut d_rows, mut d_gates) = (vec![0.0; rows.len()], vec![0.0; gates.len()]);
    for (choice, place) in placement.places.iter().enumerate() {
        let Some(row) = place else { continue };
        let incoming = &dy[choice / chosen * cols..][..cols];
        add_scaled(&mut d_rows[row * cols..][..cols], gates[choice], incoming);
        d_gates[choice] = dot(incoming, &rows[row * cols..][..cols]);
    }
    (d_rows, d_gates)
}

/// Gates (N, k) of the choices that were kept, divided by their sum + 1e-9 and multiplied by `scaling`; zero for the
/// others.
pub fn renormalise_gates(gates: &[f64], placement: &Placement, chosen: usize, scaling: f64) -> Vec<f64> {
    let kept = kept_gates(gates, placement);
    kept.chunks(chosen).flat_map(|kept| kept.iter().map(|gate| scaling * gate / sum_of(kept))).collect()
}

/// dgates (N, k) of [`renormalise_gates`], given the gradient `dy` (N, k) of its result.
pub fn renormalise_gates_backward(
    gates: &[f64],
    placement: &Placement,
    dy: &[f64],
    chosen: usize,
    scaling: f64,
) -> Vec<f64> {
    let kept = kept_gates(gates, placement);
    let mut d_gates = vec![0.0; gates.len()];
    for choice in (0..gates.len()).filter(|&choice| placement.places[choice].is_some()) {
        let first = choice / chosen * chosen;
        let (kept, dy_token) = (&kept[first..][..chosen], &dy[first..][..chosen]);
        let sum = sum_of(kept);
        d_gates[choice] = scaling * (dy[choice] / sum - dot(dy_token, kept) / (sum * sum));
    }
    d_gates
}

/// The `hot` busiest experts, in order of index; ties go to the lower index.
pub fn hot_experts(counts: &[usize], hot: usize) -> Vec<usize> {
    let mut experts: Vec<usize> = (0..counts.len()).collect();
    experts.sort_by_key(|&expert| Reverse(counts[expert])); // stable
    experts.truncate(hot);
    experts.sort_unstable();
    experts
}

/// Whether hot experts are reassigned at the end of `step`, counted from 1.
pub fn chooses_hot_experts(step: u64, update_step: u64, checkpoint_step: Option<u64>) -> bool {
    (step < update_step && step.is_power_of_two())
        || checkpoint_step == Some(step)
        || step.is_multiple_of(update_step)
}

fn kept_gates(gates: &[f64], placement: &Placement) -> Vec<f64> {
    assert_len("gates", gates, placement.places.len());
    let kept = gates.iter().zip(&placement.places);
    kept.map(|(gate, place)| if place.is_some() { *gate } else { 0.0 }).collect()
}

fn sum_of(kept: &[f64]) -> f64 {
    kept.iter().sum::<f64>() + 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::assert_gradient;
    use crate::random::Random;

    const CHOSEN: usize = 2;
    const COLS: usize = 3;

    /// Three tokens, experts (1, 0), (1, 2), (1, 0).
    const IDS: [usize; 6] = [1, 0, 1, 2, 1, 0];

    fn capacity(by_choice: bool) -> Placement {
        place(&IDS, CHOSEN, 4, &RowAllocation::Capacity { capacities: vec![2, 2, 1, 1], by_choice })
    }

    #[test]
    fn dropless_rows_are_sorted_by_expert() {
        let placement = place(&IDS, CHOSEN, 4, &RowAllocation::Dropless { extra: 0 });
        assert_eq!(placement.counts, [2, 3, 1, 0]);
        assert_eq!(placement.offsets, [0, 2, 5, 6, 6]);
        assert_eq!(placement.sources, [1, 5, 0, 2, 4, 3].map(Some));
        assert_eq!(placement.places, [2, 0, 3, 5, 4, 1].map(Some));
        let safe = place(&IDS, CHOSEN, 4, &RowAllocation::Dropless { extra: 1 });
        assert_eq!(safe.offsets, [0, 3, 7, 9, 10]);
        let sources = [Some(1), Some(5), None, Some(0), Some(2), Some(4), None, Some(3), None, None];
        assert_eq!(safe.sources, sources);
    }

    #[test]
    fn full_experts_drop_the_last() {
        let placement = capacity(false);
        assert_eq!(placement.sources, [Some(1), Some(5), Some(0), Some(2), Some(3), None]);
        assert_eq!(placement.places[4], None, "expert 1 has two rows, and this is its third choice");
        // In choice-major order the second choice of the first token comes after the first choice of the last.
        let ids = [0, 1, 1, 0, 1, 0];
        let by = |by_choice| {
            let capacities = vec![1, 2];
            place(&ids, CHOSEN, 2, &RowAllocation::Capacity { capacities, by_choice }).sources
        };
        assert_eq!(by(false), [0, 1, 2].map(Some));
        assert_eq!(by(true), [0, 2, 4].map(Some));
    }

    #[test]
    fn backwards_are_the_gradients() {
        let mut random = Random::new(71);
        for placement in [capacity(true), place(&IDS, CHOSEN, 4, &RowAllocation::Dropless { extra: 1 })] {
            let rows = placement.sources.len();
            let (x, gates) = (random.normal(3 * COLS), random.normal(6));
            let (experts, dy) = (random.normal(rows * COLS), random.normal(3 * COLS));
            let d_rows = random.normal(rows * COLS);
            let dx = permute_backward(&d_rows, &placement, CHOSEN, COLS);
            assert_gradient("dx", &dx, &x, |x| dot(&permute(x, &placement, CHOSEN, COLS), &d_rows));
            let (d_experts, d_gates) = combine_backward(&experts, &gates, &placement, &dy, CHOSEN, COLS);
            let y = |rows: &[f64], gates: &[f64]| dot(&combine(rows, gates, &placement, CHOSEN, COLS), &dy);
            assert_gradient("d_rows", &d_experts, &experts, |rows| y(rows, &gates));
            assert_gradient("d_gates", &d_gates, &gates, |gates| y(&experts, gates));
        }
    }

    #[test]
    fn renormalised_gates_sum_to_the_scaling() {
        let placement = capacity(false);
        let gates = [0.5, 0.25, 0.5, 0.25, 0.5, 0.25];
        let renormalised = renormalise_gates(&gates, &placement, CHOSEN, 3.0);
        let want = [2.0, 1.0, 2.0, 1.0, 0.0, 3.0];
        assert!(
            renormalised.iter().zip(want).all(|(got, want)| (got - want).abs() < 2e-8),
            "{renormalised:?}"
        );
        let dy = [0.3, -1.0, 2.0, 0.7, 5.0, 0.0];
        let d_gates = renormalise_gates_backward(&gates, &placement, &dy, CHOSEN, 3.0);
        assert_gradient("d_gates", &d_gates, &gates, |gates| {
            dot(&renormalise_gates(gates, &placement, CHOSEN, 3.0), &dy)
        });
    }

    #[test]
    fn hot_experts_are_the_busiest_at_their_steps() {
        assert_eq!(hot_experts(&[3, 9, 3, 7], 2), [1, 3]);
        assert_eq!(hot_experts(&[3, 9, 3, 7], 3), [0, 1, 3], "ties go to the lower index");
        assert_eq!(hot_experts(&[0; 4], 2), [0, 1]);
        let steps: Vec<u64> = (1..=30).filter(|&step| chooses_hot_experts(step, 10, Some(13))).collect();
        assert_eq!(steps, [1, 2, 4, 8, 10, 13, 20, 30], "16 is a power of two past the first ten steps");
    }
}
