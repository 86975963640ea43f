//! The packed layout of queries, keys and values.

/// Most elements of a query, key or value that the kernels of attention take.
pub const WIDEST_HEAD: u32 = 512;

/// The columns of a packed tensor `qkv` (N, [`cols`](Self::cols)) with a row for each token: the queries of all heads,
/// then the keys, then the values. One product computes all three, and kernels that use them bind one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLayout {
    /// Query heads.
    pub heads: u32,
    /// Key and value heads, a divisor of `heads`: query head h uses key and value head h / (heads / kv_heads). 0 in
    /// rows of [queries alone](Self::of_queries), which do not attend by themselves.
    pub kv_heads: u32,
    /// Elements of a query and of a key; a multiple of 4.
    pub head_dim: u32,
    /// Elements of a value; a multiple of 4.
    pub value_dim: u32,
}

impl HeadLayout {
    /// The layout of rows that hold the queries alone, for kernels that norm and rotate them.
    pub const fn of_queries(self) -> Self {
        Self { kv_heads: 0, ..self }
    }

    /// Columns of the queries: heads · head_dim.
    pub const fn q_cols(&self) -> u32 {
        self.heads * self.head_dim
    }

    /// Columns of the keys: kv_heads · head_dim.
    pub const fn k_cols(&self) -> u32 {
        self.kv_heads * self.head_dim
    }

    /// Columns of the values: kv_heads · value_dim.
    pub const fn v_cols(&self) -> u32 {
        self.kv_heads * self.value_dim
    }

    /// Columns of a whole row.
    pub const fn cols(&self) -> u32 {
        self.q_cols() + self.k_cols() + self.v_cols()
    }

    /// The first column of the keys.
    pub const fn k_start(&self) -> u32 {
        self.q_cols()
    }

    /// The first column of the values.
    pub const fn v_start(&self) -> u32 {
        self.q_cols() + self.k_cols()
    }

    /// Columns of attention's output: heads · value_dim.
    pub const fn out_cols(&self) -> u32 {
        self.heads * self.value_dim
    }

    /// Query heads that share a key and value head.
    pub const fn group(&self) -> u32 {
        self.heads / self.kv_heads
    }

    /// Panics if a size is outside the range of attention's kernels.
    #[track_caller]
    pub fn assert_valid(&self) {
        let Self { heads, kv_heads, .. } = *self;
        assert!(
            heads > 0 && kv_heads > 0,
            "attention needs query heads and key-value heads, but has {heads} and {kv_heads}"
        );
        assert!(heads.is_multiple_of(kv_heads), "kv_heads {kv_heads} does not divide heads {heads}");
        self.assert_widths();
    }

    /// Panics if a width is outside the range of the kernels.
    #[track_caller]
    pub fn assert_widths(&self) {
        let Self { head_dim, value_dim, .. } = *self;
        for (name, dim) in [("head_dim", head_dim), ("value_dim", value_dim)] {
            let fits = dim.is_multiple_of(4) && (4..=WIDEST_HEAD).contains(&dim);
            assert!(fits, "{name} must be a multiple of 4 from 4 to {WIDEST_HEAD}, not {dim}");
        }
    }
}
