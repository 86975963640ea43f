//! Which experts a token visits, and how much each counts.

/// How a router chooses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Route {
    /// E, 1 to 512.
    pub experts: u32,
    /// k, 1 to 16, at most E.
    pub chosen: u32,
    /// From logits to scores.
    pub score: Score,
    /// Groups of neighbouring experts of which only the best may be chosen from.
    pub groups: Option<Groups>,
    /// Whether the gates of a token are divided by their sum + [`Route::GATE_EPSILON`] (only for k > 1).
    pub norm_top_k: bool,
    /// What the gates are multiplied with at last.
    pub scaling: f32,
}

impl Route {
    /// Added to the sum that gates are divided by.
    pub const GATE_EPSILON: f32 = 1e-9;
}

/// From logits to scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// Over all experts.
    Softmax,
    /// Of each expert alone.
    Sigmoid,
}

/// Groups of E / `count` neighbouring experts; a token chooses from the best `chosen` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// How many groups.
    pub count: u32,
    /// How many of them a token may choose from.
    pub chosen: u32,
    /// What makes a group good.
    pub score: GroupScore,
}

/// What makes a group of experts good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupScore {
    /// Its best score (`group_limited_greedy`).
    Best,
    /// The sum of its two best (`noaux_tc`).
    BestTwo,
}
