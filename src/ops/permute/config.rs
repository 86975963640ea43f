//! How many choices there are, and which rows experts have for them.

/// The choices of a micro-batch, and the allocation that places them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementConfig {
    /// N.
    pub tokens: u32,
    /// k: experts that a token chooses, 1 to 16.
    pub chosen: u32,
    /// E, 1 to 512.
    pub experts: u32,
    /// Which rows an expert has.
    pub allocation: RowAllocation,
    /// Whether permuting and combining are one kernel each, not several.
    pub is_fused: bool,
}

/// Which rows an expert has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowAllocation {
    /// As many as it was chosen.
    Dropless {
        /// And one more, of zeros, the last of its group.
        safe_tokens: bool,
    },
    /// A number that does not depend on choices. Rows that nobody claims are zeros, choices that find none are dropped.
    Capacity {
        /// How many.
        slots: Slots,
        /// Who is served first.
        order: DropOrder,
    },
}

/// Rows of the experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots {
    /// The same number for all.
    Equal(u32),
    /// More for those that are busy: a tensor on the device says who.
    HotAndCold(HotAndCold),
}

/// Two capacities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotAndCold {
    /// Experts that have the larger one.
    pub hot: u32,
    /// The larger one.
    pub capacity: u32,
    /// The smaller one.
    pub cold_capacity: u32,
}

/// In which order choices are served, and so who finds an expert full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropOrder {
    /// All tokens' first choices, then all second ones.
    Choice,
    /// All choices of the first token, then those of the second.
    Token,
}

impl PlacementConfig {
    /// N·k.
    pub fn choices(&self) -> u32 {
        self.tokens * self.chosen
    }

    /// R: rows of all experts.
    pub fn rows(&self) -> u32 {
        match self.allocation {
            RowAllocation::Dropless { safe_tokens: false } => self.choices(),
            RowAllocation::Dropless { safe_tokens: true } => self.choices() + self.experts,
            RowAllocation::Capacity { slots: Slots::Equal(capacity), .. } => self.experts * capacity,
            RowAllocation::Capacity { slots: Slots::HotAndCold(two), .. } => {
                two.hot * two.capacity + (self.experts - two.hot) * two.cold_capacity
            }
        }
    }

    /// Whether a tensor on the device says how many rows each expert has.
    pub fn has_hot_experts(&self) -> bool {
        matches!(self.allocation, RowAllocation::Capacity { slots: Slots::HotAndCold(_), .. })
    }

    /// The order in which choices are served. Without capacities it decides only the order of an expert's rows.
    pub fn order(&self) -> DropOrder {
        match self.allocation {
            RowAllocation::Dropless { .. } => DropOrder::Token,
            RowAllocation::Capacity { order, .. } => order,
        }
    }

    #[track_caller]
    pub(super) fn assert_valid(&self) {
        let Self { tokens, chosen, experts, allocation, .. } = *self;
        assert!(tokens > 0, "there are no tokens to place");
        assert!((1..=16).contains(&chosen), "a token chooses 1 to 16 experts, not {chosen}");
        assert!((1..=512).contains(&experts), "there are 1 to 512 experts, not {experts}");
        assert!(chosen <= experts, "{chosen} chosen of {experts} experts");
        match allocation {
            RowAllocation::Dropless { .. } => {}
            RowAllocation::Capacity { slots: Slots::Equal(capacity), .. } => {
                assert!(capacity > 0, "an expert without a row can learn nothing");
            }
            RowAllocation::Capacity { slots: Slots::HotAndCold(two), .. } => {
                let HotAndCold { hot, capacity, cold_capacity } = two;
                assert!(hot <= experts, "{hot} of {experts} experts are hot");
                assert!(
                    (1..=capacity).contains(&cold_capacity),
                    "cold experts have {cold_capacity} rows, hot ones {capacity}"
                );
            }
        }
    }
}

impl HotAndCold {
    /// `hot` experts with `capacity` rows; the others have the share `cold_token_share` (in (0, 1]) of it, rounded down, but
    /// one at least.
    #[track_caller]
    pub fn new(hot: u32, capacity: u32, cold_token_share: f64) -> Self {
        let is_share = cold_token_share > 0.0 && cold_token_share <= 1.0;
        assert!(is_share, "cold experts have a share in (0, 1] of the rows, not {cold_token_share}");
        let cold_capacity = ((f64::from(capacity) * cold_token_share) as u32).max(1);
        Self { hot, capacity, cold_capacity }
    }

    /// Rows of each of `experts` before anything was counted: the first ones are hot.
    pub fn initial(&self, experts: u32) -> Vec<u32> {
        let rows = |expert| if expert < self.hot { self.capacity } else { self.cold_capacity };
        (0..experts).map(rows).collect()
    }
}

/// Rows of an expert: k·N·factor / E rounded up, at most N, rounded up to a multiple of `multiple`.
///
/// `factor` is above 0: without one nothing is dropped, and [`RowAllocation::Dropless`] computes the same.
///
/// # Examples
///
/// ```
/// use gristmill::ops::permute::capacity_slots;
///
/// assert_eq!(capacity_slots(2, 4096, 1.1, 8, 1), 1127); // 1126.4 would do
/// assert_eq!(capacity_slots(4, 10, 1.5, 4, 1), 10); // no expert is chosen by more than all
/// ```
#[track_caller]
pub fn capacity_slots(chosen: u32, tokens: u32, factor: f64, experts: u32, multiple: u32) -> u32 {
    assert!(factor > 0.0, "a capacity factor is above 0, not {factor}");
    let slots = (f64::from(chosen) * f64::from(tokens) * factor / f64::from(experts)).ceil();
    (slots.min(f64::from(tokens)) as u32).next_multiple_of(multiple)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of the original's formula: k, N, factor, E, multiple.
    #[test]
    fn capacities_are_those_of_the_original() {
        assert_eq!(capacity_slots(2, 4096, 1.5, 8, 1), 1536);
        assert_eq!(capacity_slots(8, 4096, 1.5, 256, 1), 192);
        assert_eq!(capacity_slots(2, 4096, 1.1, 8, 1), 1127);
        assert_eq!(capacity_slots(4, 10, 1.5, 4, 1), 10, "15, but there are 10 tokens");
        assert_eq!(capacity_slots(2, 7, 1.0, 4, 2), 4, "3.5");
        assert_eq!(capacity_slots(1, 7, 1.0, 7, 4), 4, "rounded up after all else");
        assert_eq!(capacity_slots(1, 1, 1e-9, 512, 1), 1, "never none");
    }

    #[test]
    fn rows_are_counted() {
        let config =
            |allocation| PlacementConfig { tokens: 7, chosen: 2, experts: 4, allocation, is_fused: true };
        let capacity = |slots| RowAllocation::Capacity { slots, order: DropOrder::Token };
        assert_eq!(config(RowAllocation::Dropless { safe_tokens: false }).rows(), 14);
        assert_eq!(config(RowAllocation::Dropless { safe_tokens: true }).rows(), 18);
        assert_eq!(config(capacity(Slots::Equal(5))).rows(), 20);
        let two = HotAndCold::new(1, 5, 0.5);
        assert_eq!(two, HotAndCold { hot: 1, capacity: 5, cold_capacity: 2 }, "2.5 is cut off");
        assert_eq!(config(capacity(Slots::HotAndCold(two))).rows(), 5 + 3 * 2);
        assert_eq!(two.initial(4), [5, 2, 2, 2]);
        assert_eq!(HotAndCold::new(0, 5, 0.1).cold_capacity, 1);
        assert_eq!(HotAndCold::new(4, 5, 0.1).initial(4), [5; 4]);
    }

    #[test]
    #[should_panic(expected = "5 chosen of 4 experts")]
    fn more_cannot_be_chosen_than_there_are() {
        let allocation = RowAllocation::Dropless { safe_tokens: false };
        PlacementConfig { tokens: 7, chosen: 5, experts: 4, allocation, is_fused: true }.assert_valid();
    }
}
