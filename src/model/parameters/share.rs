//! The part of a parameter that one of several ranks holds.
//!
//! Ranks divide a parameter in two ways. Ranks that spread the experts of a layer hold whole matrices of a stack
//! ([`Spec::of_expert_rank`]). Tensor-parallel ranks hold a part of each matrix ([`Spec::of_matrix_rank`]): rows of q,
//! k, v, gate and up, and columns of the products that follow them, both in whole *units*, such as heads, as the
//! parameter's [`Split`] says. If there are fewer units than ranks, they are repeated: neighbours hold the same ones.
//!
//! Everything else that depends on where an element is in the whole parameter (its initial value, the bits that
//! round it, its place in a file) follows from the [`Share`].

use super::spec::Spec;
use crate::ranks::RankLayout;
use std::ops::Range;

/// Consecutive rows or columns that are held next to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Strip {
    /// Index of the first one among those that are held.
    pub held: usize,
    /// Index of the same one in the whole parameter.
    pub whole: usize,
    /// Number of rows or columns.
    pub count: usize,
}

/// The part of a parameter that one of several ranks holds. Rows between strips are padding.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    /// The rows that are held, ascending in `held`.
    pub rows: Vec<Strip>,
    /// The columns that are held of each of these rows.
    pub cols: Vec<Strip>,
    /// Rows and columns of the whole parameter.
    pub whole: [usize; 2],
    /// Whether the parameter holds experts that are spread over data ranks.
    pub is_spread: bool,
    /// The lines (rows; columns of a vector) that several neighbouring tensor-parallel ranks hold, each with one term
    /// of their gradient, and the number of these neighbours. `None` if all ranks hold all lines, with the same
    /// gradient.
    pub repeated: Option<Repeated>,
}

/// Lines that are held, and the number of neighbouring tensor-parallel ranks that hold them.
pub type Repeated = Vec<(Range<usize>, usize)>;

/// How tensor-parallel ranks divide a parameter. A parameter without a split is the same on all of them, and so is its
/// gradient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// When ranks divide it.
    pub applies: Applies,
    /// Whether the columns of a matrix are divided, so that its product is one term of a sum; otherwise rows are, or
    /// the columns of a vector.
    pub is_of_columns: bool,
    /// The sections that are divided, one after the other.
    pub sections: Vec<Section>,
}

/// When the ranks that share a layer divide a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applies {
    /// Always.
    Always,
    /// If they share tokens: each holds the parameter whole, with one term of its gradient.
    OfTokens,
    /// If they share the vocabulary.
    OfVocabulary,
}

/// Rows or columns that are divided evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// The first row or column.
    pub first: usize,
    /// Number of rows or columns.
    pub count: usize,
    /// Number of units that stay whole; 1 if every rank holds all of it.
    pub units: usize,
}

impl Section {
    /// The part that rank `place` of `ranks` holds, and how many neighbours hold the same; `None` if it does not divide
    /// evenly.
    fn part(self, place: usize, ranks: usize) -> Option<(Range<usize>, usize)> {
        let Self { first, count, units } = self;
        let unit = count / units;
        let of = |start: usize, units: usize| first + start * unit..first + (start + units) * unit;
        if units.is_multiple_of(ranks) {
            let own = units / ranks;
            return Some((of(place * own, own), 1));
        }
        ranks.is_multiple_of(units).then(|| {
            let repeats = ranks / units;
            (of(place / repeats, 1), repeats)
        })
    }
}

impl Split {
    /// All of `count` lines on every rank, each with one term of their gradient.
    pub fn whole(count: usize) -> Self {
        let sections = vec![Section { first: 0, count, units: 1 }];
        Self { applies: Applies::Always, is_of_columns: false, sections }
    }

    /// The lines that rank `place` of `ranks` holds, and those of them that other ranks hold as well.
    fn held(&self, place: usize, ranks: usize) -> Option<(Vec<Strip>, Repeated)> {
        let (mut strips, mut repeated): (_, Repeated) = (Vec::new(), Vec::new());
        let mut held = 0;
        for section in &self.sections {
            let (part, ranks) = section.part(place, ranks)?;
            strips.push(Strip { held, whole: part.start, count: part.len() });
            let own = held..held + part.len();
            held = own.end;
            match repeated.last_mut() {
                _ if ranks == 1 => {}
                Some((last, same)) if *same == ranks && last.end == own.start => last.end = own.end,
                _ => repeated.push((own, ranks)),
            }
        }
        Some((strips, repeated))
    }
}

impl Spec {
    /// The part of the parameter that the rank of `layout` holds; `None` if ranks that share matrices cannot divide it
    /// evenly.
    pub(crate) fn held_by(self, layout: &RankLayout) -> Option<Self> {
        Some(self.of_matrix_rank(layout)?.of_expert_rank(layout.expert_part(), layout.expert))
    }

    /// The part that rank `place` of `ranks` holds: of a stack of experts the rows of some, of every other parameter
    /// everything.
    #[must_use]
    #[track_caller]
    pub(crate) fn of_expert_rank(self, place: usize, ranks: usize) -> Self {
        let Some(experts) = self.role.stacked_experts() else { return self };
        assert!(
            experts.is_multiple_of(ranks) && place < ranks,
            "rank {place} of {ranks} holds as many of {experts} experts as the others"
        );
        if ranks == 1 {
            return self;
        }
        let rows = self.rows / ranks;
        let own = Strip { held: 0, whole: place * rows, count: rows };
        let share = Share { is_spread: true, ..self.share_of([vec![own], Strip::all(self.cols)]) };
        // Of lines that neighbours hold as well, those of the experts that are held.
        let own = place * rows..(place + 1) * rows;
        let within = |(lines, ranks): &(Range<usize>, usize)| {
            let [first, end] =
                [lines.start, lines.end].map(|line| line.clamp(own.start, own.end) - own.start);
            (first < end).then_some((first..end, *ranks))
        };
        let repeated = share.repeated.map(|repeated| repeated.iter().filter_map(within).collect());
        let share = Share { repeated, ..share };
        Self { role: self.role.of_experts(experts / ranks), rows, share: Some(share), ..self }
    }

    /// The part that the rank of `layout` holds among the ranks that share matrices; `None` if they cannot divide it
    /// evenly.
    pub(crate) fn of_matrix_rank(self, layout: &RankLayout) -> Option<Self> {
        let (place, ranks) = (layout.matrix_part(), layout.model);
        let is_divided = |split: &&Split| match split.applies {
            _ if ranks == 1 => false,
            Applies::Always => true,
            Applies::OfTokens => layout.shares_tokens,
            Applies::OfVocabulary => layout.shares_vocabulary,
        };
        let Some(split) = self.split.as_ref().filter(is_divided) else { return Some(self) };
        let (strips, repeated) = split.held(place, ranks)?;
        let count = strips.iter().map(|strip| strip.count).sum();
        let is_along_columns = split.is_of_columns || self.role.is_row();
        let ([rows, cols], strips) = match is_along_columns {
            true => ([self.rows, count], [Strip::all(self.rows), strips]),
            false => ([count, self.cols], [strips, Strip::all(self.cols)]),
        };
        let share = Share { repeated: Some(repeated), ..self.share_of(strips) };
        Some(Self { rows, cols, share: Some(share), ..self })
    }

    /// The share that consists of some of the lines that are held now.
    fn share_of(&self, [rows, cols]: [Vec<Strip>; 2]) -> Share {
        let whole = [self.whole_rows(), self.whole_cols()];
        let (rows, cols) = (within(&rows, &self.row_strips()), within(&cols, &self.col_strips()));
        let (is_spread, repeated) = match &self.share {
            None => (false, None),
            Some(share) => (share.is_spread, share.repeated.clone()),
        };
        Share { rows, cols, whole, is_spread, repeated }
    }

    /// The lines that several neighbouring tensor-parallel ranks hold, each with one term of their gradient, and the
    /// number of these ranks.
    pub(crate) fn repeated(&self) -> &[(Range<usize>, usize)] {
        self.share.as_ref().and_then(|share| share.repeated.as_deref()).unwrap_or_default()
    }

    /// The lines that several of `ranks` ranks hold, including those whose whole gradient all of them have.
    pub(crate) fn copies(&self, ranks: usize) -> Repeated {
        match self.share.as_ref().and_then(|share| share.repeated.clone()) {
            Some(repeated) => repeated,
            None if self.role.is_row() => vec![(0..self.cols, ranks)],
            None => vec![(0..self.rows, ranks)],
        }
    }

    /// Rows of the whole parameter, on all ranks.
    pub(crate) fn whole_rows(&self) -> usize {
        self.share.as_ref().map_or(self.rows, |share| share.whole[0])
    }

    /// Columns of the whole parameter, on all ranks.
    pub(crate) fn whole_cols(&self) -> usize {
        self.share.as_ref().map_or(self.cols, |share| share.whole[1])
    }

    /// The rows of the whole parameter that are held.
    pub(crate) fn row_strips(&self) -> Vec<Strip> {
        self.share.as_ref().map_or_else(|| Strip::all(self.rows), |share| share.rows.clone())
    }

    /// The columns of the whole parameter that are held.
    pub(crate) fn col_strips(&self) -> Vec<Strip> {
        self.share.as_ref().map_or_else(|| Strip::all(self.cols), |share| share.cols.clone())
    }

    /// Whether data ranks hold different experts of the parameter.
    pub(crate) fn is_spread(&self) -> bool {
        self.share.as_ref().is_some_and(|share| share.is_spread)
    }
}

/// The strips of `inner`, whose `whole` counts lines that `outer` holds, with `whole` counted in the whole parameter.
fn within(inner: &[Strip], outer: &[Strip]) -> Vec<Strip> {
    let strips = inner.iter().flat_map(|own| {
        let shared = outer.iter().filter_map(|of| of.held_in(own.whole..own.whole + own.count));
        shared.map(|of| Strip { held: own.held + of.held - own.whole, ..of })
    });
    strips.collect()
}

impl Strip {
    /// All of `count` lines.
    fn all(count: usize) -> Vec<Self> {
        vec![Self { held: 0, whole: 0, count }]
    }

    /// The part of the strip that is in the lines `range`, counted among those that are held.
    pub(crate) fn held_in(self, range: Range<usize>) -> Option<Self> {
        let (start, end) = (self.held.max(range.start), (self.held + self.count).min(range.end));
        (start < end).then(|| Self { held: start, whole: self.whole + start - self.held, count: end - start })
    }

    /// The part of the strip that is in the lines `range` of the whole parameter.
    pub(crate) fn whole_in(self, range: &Range<usize>) -> Option<Self> {
        let (start, end) = (self.whole.max(range.start), (self.whole + self.count).min(range.end));
        (start < end).then(|| Self { held: self.held + start - self.whole, whole: start, count: end - start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::{ModelConfig, Sizes};
    use crate::model::parameters::Gpt;
    use crate::model::parameters::tests::{gpt_oss_example, mimo_example, mixture_example};
    use std::collections::HashMap;

    /// Ranks that share everything that they can.
    fn layout(rank: usize, model: usize) -> RankLayout {
        RankLayout { rank, model, shares_tokens: true, shares_vocabulary: true, ..RankLayout::one() }
    }

    /// A mixture with widths that two ranks can divide.
    fn mixture() -> ModelConfig {
        let mut config = mixture_example().with_layers(|layer| layer.intermediate_size = 16);
        let mixture = config.mixture.as_mut().unwrap();
        (mixture.intermediate_size, mixture.route.experts) = (24, 4);
        if let Some(shared) = &mut mixture.shared {
            shared.intermediate_size = 8;
        }
        config
    }

    fn llama(kv_heads: usize) -> ModelConfig {
        let sizes = Sizes {
            vocab_size: 64,
            hidden_size: 32,
            num_layers: 1,
            num_heads: 4,
            intermediate_size: 48,
            seq_length: 16,
        };
        ModelConfig::llama(sizes).with_layers(|layer| layer.num_kv_heads = kv_heads)
    }

    #[test]
    fn heads_that_are_fewer_than_ranks_are_repeated() {
        let spec = |place: usize| {
            let specs = Gpt::describe(&llama(2));
            let found = specs.into_iter().find(|spec| spec.path == "layers.0.attention.wqkv");
            found.unwrap().of_matrix_rank(&layout(place, 4)).unwrap()
        };
        // 4 query heads of 8 rows, then 2 key heads and 2 value heads.
        for (place, kv) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
            let Spec { rows, cols, share: Some(share), .. } = spec(place) else { panic!("a share") };
            let strip = |held, whole| Strip { held, whole, count: 8 };
            assert_eq!([rows, cols], [24, 32]);
            assert_eq!(share.rows, [strip(0, 8 * place), strip(8, 32 + 8 * kv), strip(16, 48 + 8 * kv)]);
            assert_eq!(share.repeated, Some(vec![(8..24, 2)]), "keys and values are on two ranks");
        }
    }

    #[test]
    fn heads_that_no_split_divides_are_refused() {
        let held = |kv_heads, ranks| {
            let specs = Gpt::describe(&llama(kv_heads)).into_iter();
            specs.map(|spec| spec.of_matrix_rank(&layout(0, ranks))).collect::<Option<Vec<Spec>>>()
        };
        assert!(held(4, 2).is_some() && held(1, 4).is_some());
        assert!(held(4, 3).is_none(), "4 heads");
    }

    /// Every element of a divided parameter is on as many ranks as repeat it, and the narrow model declares the same
    /// shapes.
    #[test]
    fn ranks_hold_all_of_a_model_together() {
        for (config, ranks) in [
            (llama(4), 2),
            (llama(2), 4),
            (llama(1), 4),
            (mixture(), 2),
            (gpt_oss_example(), 2),
            (mimo_example(), 2),
        ] {
            let narrow = Gpt::describe(&config.on_matrix_ranks(&layout(0, ranks)));
            for (whole, narrow) in Gpt::describe(&config).into_iter().zip(narrow) {
                let mut seen: HashMap<[usize; 2], usize> = HashMap::new();
                for place in 0..ranks {
                    let held = whole.clone().of_matrix_rank(&layout(place, ranks)).unwrap();
                    assert_eq!([held.rows, held.cols], [narrow.rows, narrow.cols], "{}", whole.path);
                    for row in held.row_strips() {
                        for col in held.col_strips() {
                            let rows = row.whole..row.whole + row.count;
                            let cells =
                                rows.flat_map(|row| (0..col.count).map(move |c| [row, col.whole + c]));
                            cells.for_each(|cell| *seen.entry(cell).or_default() += 1);
                        }
                    }
                }
                let rows = whole.rows * whole.cols;
                assert_eq!(seen.len(), rows, "{} is held", whole.path);
                let is_divided =
                    whole.split.is_some_and(|split| split.sections.iter().all(|s| s.units >= ranks));
                assert!(!is_divided || seen.values().all(|count| *count == 1), "{} is divided", whole.path);
            }
        }
    }

    #[test]
    fn experts_are_divided_both_ways() {
        let specs = Gpt::describe(&mixture());
        let stack = specs.into_iter().find(|spec| spec.path.ends_with("experts.w_gate_up")).unwrap();
        let (whole_rows, inner) = (stack.rows, stack.rows / 8);
        let held = stack.of_matrix_rank(&layout(1, 2)).unwrap().of_expert_rank(1, 2);
        assert_eq!(held.rows, whole_rows / 4);
        // The second half of gate and up of experts 2 and 3.
        let strip = |index: usize| {
            let half = inner / 2;
            Strip { held: index * half, whole: (4 + index) * inner + half, count: half }
        };
        assert_eq!(held.row_strips(), (0..4).map(strip).collect::<Vec<_>>());
        assert!(held.is_spread());
        let stack =
            Gpt::describe(&mixture()).into_iter().find(|spec| spec.path.ends_with("experts.w_down")).unwrap();
        let (rows, cols) = (stack.rows / 2, stack.cols / 2);
        let held = stack.of_matrix_rank(&layout(1, 2)).unwrap().of_expert_rank(1, 2);
        assert_eq!(held.row_strips(), [Strip { held: 0, whole: rows, count: rows }]);
        assert_eq!(held.col_strips(), [Strip { held: 0, whole: cols, count: cols }]);
    }
}
