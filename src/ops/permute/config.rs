//! Sizes and capacity policy of a placement.
//!
//! If every expert has a slot for every token, nothing can be dropped, and rows are the same as in dropless dispatch,
//! unless some experts are hot. The zero rows of safe tokens are the last of their groups (MindFormers: the first), so
//! that the rows of tokens start where they would without them.

/// How the choices of a micro-batch are placed in rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementConfig {
    /// Tokens (N).
    pub tokens: u32,
    /// Experts that a token chooses (k), 1 to 16.
    pub chosen: u32,
    /// Experts (E), 1 to 512.
    pub experts: u32,
    /// How many rows each expert gets.
    pub allocation: RowAllocation,
}

/// How many rows each expert gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowAllocation {
    /// One for each token that chose it.
    Dropless {
        /// Whether each expert gets one more row, of zeros, as its last.
        safe_tokens: bool,
    },
    /// A number that does not depend on the choices. Unused rows are zeros; choices beyond the capacity are dropped.
    Capacity {
        /// The capacities.
        slots: Slots,
        /// Which choices are dropped first.
        order: DropOrder,
    },
}

/// Capacities of the experts: how many rows each has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots {
    /// The same number of rows for all experts.
    Equal(u32),
    /// More for the busiest; a tensor on the device holds the capacity of each.
    HotAndCold(HotAndCold),
}

/// The capacities of hot and cold experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotAndCold {
    /// Number of hot experts.
    pub hot: u32,
    /// Rows of a hot expert.
    pub capacity: u32,
    /// Rows of a cold expert.
    pub cold_capacity: u32,
}

/// The order in which choices take the rows of their experts, and so which of them are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropOrder {
    /// The first choices of all tokens, then all second choices: later choices are dropped first.
    Choice,
    /// All choices of the first token, then those of the second: later tokens are dropped first.
    Token,
}

impl PlacementConfig {
    /// Number of choices: N·k.
    pub fn choices(&self) -> u32 {
        self.tokens * self.chosen
    }

    /// Rows of all experts (R); `u32::MAX` if there are more, which no tensor can have.
    pub fn rows(&self) -> u32 {
        let (choices, experts) = (u64::from(self.tokens) * u64::from(self.chosen), u64::from(self.experts));
        let rows = match self.allocation {
            RowAllocation::Dropless { safe_tokens: false } => choices,
            RowAllocation::Dropless { safe_tokens: true } => choices + experts,
            RowAllocation::Capacity { slots: Slots::Equal(capacity), .. } => experts * u64::from(capacity),
            RowAllocation::Capacity { slots: Slots::HotAndCold(two), .. } => {
                let (hot, cold) = (u64::from(two.hot), experts - u64::from(two.hot));
                hot * u64::from(two.capacity) + cold * u64::from(two.cold_capacity)
            }
        };
        u32::try_from(rows).unwrap_or(u32::MAX)
    }

    /// Rows that travel if experts are spread over ranks, each of which has a copy of the hot experts.
    pub fn spread_rows(&self) -> u32 {
        match self.hot_and_cold() {
            None => self.rows(),
            Some(two) => self.rows() - two.hot_rows(),
        }
    }

    /// The capacities of hot and cold experts, if there are hot experts.
    pub fn hot_and_cold(&self) -> Option<HotAndCold> {
        match self.allocation {
            RowAllocation::Capacity { slots: Slots::HotAndCold(two), .. } => Some(two),
            _ => None,
        }
    }

    /// Whether capacities differ, so that [`place`](super::place) needs them as a tensor.
    pub fn has_hot_experts(&self) -> bool {
        self.hot_and_cold().is_some()
    }

    /// The order in which choices take rows. Without capacities it only determines the order of each expert's rows.
    pub fn order(&self) -> DropOrder {
        match self.allocation {
            RowAllocation::Dropless { .. } => DropOrder::Token,
            RowAllocation::Capacity { order, .. } => order,
        }
    }

    #[track_caller]
    pub(super) fn assert_valid(&self) {
        let Self { tokens, chosen, experts, allocation, .. } = *self;
        assert!(tokens > 0, "a placement needs at least one token");
        assert!((1..=16).contains(&chosen), "a token must choose 1 to 16 experts, not {chosen}");
        assert!((1..=512).contains(&experts), "there must be 1 to 512 experts, not {experts}");
        assert!(chosen <= experts, "{chosen} chosen of {experts} experts");
        match allocation {
            RowAllocation::Dropless { .. } => {}
            RowAllocation::Capacity { slots: Slots::Equal(capacity), .. } => {
                assert!(capacity > 0, "the capacity of an expert must be above 0");
            }
            RowAllocation::Capacity { slots: Slots::HotAndCold(two), .. } => {
                let HotAndCold { hot, capacity, cold_capacity } = two;
                assert!(hot <= experts, "{hot} experts cannot be hot: there are {experts}");
                assert!(capacity < 1 << 31, "a capacity of {capacity} rows");
                assert!(
                    (1..=capacity).contains(&cold_capacity),
                    "the capacity of cold experts must be from 1 to that of hot ones, {capacity}, not {cold_capacity}"
                );
            }
        }
    }
}

impl HotAndCold {
    /// `hot` experts with `capacity` rows; the others have `cold_token_share`, in (0, 1], of that, rounded down, and at
    /// least one.
    #[track_caller]
    pub fn new(hot: u32, capacity: u32, cold_token_share: f64) -> Self {
        let is_share = cold_token_share > 0.0 && cold_token_share <= 1.0;
        assert!(is_share, "cold_token_share must be in (0, 1], not {cold_token_share}");
        let cold_capacity = ((f64::from(capacity) * cold_token_share) as u32).max(1);
        Self { hot, capacity, cold_capacity }
    }

    /// The capacity of a hot expert as it is stored: its rows, and a bit above them if cold experts have as many rows,
    /// so that hot experts can be told apart. Kernels that count rows mask the bit out (`ROWS` in their shaders).
    pub fn hot_word(&self) -> u32 {
        if self.capacity > self.cold_capacity { self.capacity } else { self.capacity | 1 << 31 }
    }

    /// The hot experts by their stored capacities, ascending: those with the largest words, of equal words the first.
    pub fn hot_among(&self, words: &[u32]) -> Vec<usize> {
        let mut experts: Vec<usize> = (0..words.len()).collect();
        experts.sort_by_key(|&expert| std::cmp::Reverse(words[expert]));
        experts.truncate(self.hot as usize);
        experts.sort_unstable();
        experts
    }

    /// Rows of all hot experts.
    pub fn hot_rows(&self) -> u32 {
        self.hot * self.capacity
    }

    /// The stored capacities of `experts` experts before anything has been counted: the first ones are hot.
    pub fn initial(&self, experts: u32) -> Vec<u32> {
        let rows = |expert| if expert < self.hot { self.hot_word() } else { self.cold_capacity };
        (0..experts).map(rows).collect()
    }
}

/// Capacity of an expert: k·N·factor / E rounded up, at most N, rounded up to a multiple of `multiple`.
///
/// `factor` must be above 0; without a capacity use [`RowAllocation::Dropless`].
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
    assert!(factor > 0.0, "a capacity factor must be above 0, not {factor}");
    let slots = (f64::from(chosen) * f64::from(tokens) * factor / f64::from(experts)).ceil();
    (slots.min(f64::from(tokens)) as u32).next_multiple_of(multiple)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of MindFormers' formula: k, N, factor, E, multiple.
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
        let config = |allocation| PlacementConfig { tokens: 7, chosen: 2, experts: 4, allocation };
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
        PlacementConfig { tokens: 7, chosen: 5, experts: 4, allocation }.assert_valid();
    }
}
