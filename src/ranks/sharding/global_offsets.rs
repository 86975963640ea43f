//! The place of each weight in the whole model, which numbers the bits that round it.

use crate::model::arena::{ALIGNMENT, ArenaLayout, Part};
use crate::model::parameters::{Spec, Strip};
use crate::ops::rounding::Rounding;
use std::ops::Range;

/// The places of the elements that a rank holds. A place is the element's position in the arenas of one rank that holds
/// the whole model, so that a weight is rounded by the same bits wherever it lies, and no two weights by the same ones.
///
/// A parameter that is divided among ranks counts as one piece here, even if one rank would have to split it over
/// several bindings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GlobalOffsets {
    /// For each segment, ascending ranges of its elements.
    segments: Vec<Vec<PlacedRange>>,
}

/// Elements of a segment in runs of equal length at equal distances between their places: a single run with consecutive
/// places; the rows of a matrix of which a rank has some columns; gate and up, of which it has some rows each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedRange {
    /// The elements of the segment.
    pub range: Range<u64>,
    /// The place of the first element.
    pub place: u64,
    /// Elements of the first run that precede the first element.
    pub skipped: u64,
    /// Elements per run; `ONE_RUN` if there is only one run.
    pub run: u64,
    /// Places between two runs, which are not in this range.
    pub gap: u64,
}

/// The length of a run that does not end.
const ONE_RUN: u64 = u64::MAX;

impl PlacedRange {
    /// Elements at consecutive places from `place` on.
    pub fn consecutive(range: Range<u64>, place: u64) -> Self {
        Self { range, place, skipped: 0, run: ONE_RUN, gap: 0 }
    }

    /// The place of an element of the range, or of its end.
    fn place_of(&self, element: u64) -> u64 {
        let index = element - self.range.start;
        self.place + index + (index + self.skipped) / self.run * self.gap
    }

    /// The part of these elements that is in `range`.
    pub(crate) fn within(&self, range: &Range<u64>) -> Option<Self> {
        let (start, end) = (self.range.start.max(range.start), self.range.end.min(range.end));
        (start < end).then(|| {
            let skipped = (self.skipped + start - self.range.start) % self.run;
            Self { range: start..end, place: self.place_of(start), skipped, ..*self }
        })
    }

    /// Appends the run `next`, which follows in the segment, unless its length or its distance differs.
    fn take(&mut self, next: &Self) -> bool {
        let [length, next_length] = [&self.range, &next.range].map(|range| range.end - range.start);
        let is_whole = self.run == ONE_RUN || (length + self.skipped).is_multiple_of(self.run);
        let gap = next.place.checked_sub(self.place_of(self.range.end));
        let Some(gap) = gap.filter(|_| is_whole && next.run == ONE_RUN) else { return false };
        match self.run {
            ONE_RUN if gap == 0 => {}
            ONE_RUN if length == next_length => (self.run, self.gap) = (length, gap),
            run if gap == 0 && run == next_length => {}
            _ => return false,
        }
        self.range.end = next.range.end;
        true
    }

    /// The source of the bits that round these elements.
    #[track_caller]
    pub fn rounding(&self, seed: u64) -> Rounding {
        let Self { place, skipped, run, gap, .. } = *self;
        let is_in_groups = [place, skipped, gap].iter().all(|length| length.is_multiple_of(4));
        assert!(
            is_in_groups && (run == ONE_RUN || run.is_multiple_of(4)),
            "ranks hold whole groups of 4: {self:?}"
        );
        // Weights that are 2^34 places apart share their bits.
        let [first4, skipped4, gap4] = [place, skipped, gap].map(|length| (length / 4) as u32);
        Rounding { seed, first4, skipped4, run4: u32::try_from(run / 4).unwrap_or(u32::MAX), gap4 }
    }
}

impl GlobalOffsets {
    /// The places of the parameters in `layout`; `whole` is the layout of the whole model.
    #[track_caller]
    pub fn new(layout: &ArenaLayout, whole: &ArenaLayout) -> Self {
        let starts: Vec<u64> = whole
            .segments
            .iter()
            .scan(0, |end, segment| {
                let start = *end;
                *end += segment.elements;
                Some(start)
            })
            .collect();
        let mut segments = vec![Vec::new(); layout.segments.len()];
        let mut all = whole.parameters.iter();
        for (spec, parts) in &layout.parameters {
            let of_whole = all.find(|(of, _)| of.path == spec.path);
            let Some((_, whole_parts)) = of_whole else { panic!("the whole model has no {}", spec.path) };
            for (number, part) in parts.iter().enumerate() {
                let end = part.offset + part.elements(spec).next_multiple_of(ALIGNMENT);
                let whole_part = if spec.share.is_none() { whole_parts[number] } else { whole_parts[0] };
                let first = starts[whole_part.segment] + whole_part.offset;
                let mut runs = runs_of(spec, part, first);
                // The padding after the last row is updated with it.
                if let Some(last) = runs.last_mut() {
                    last.range.end = end;
                }
                segments[part.segment].extend(runs);
            }
        }
        for runs in &mut segments {
            runs.sort_unstable_by_key(|run: &PlacedRange| run.range.start);
            runs.dedup_by(|next, run| run.take(next));
        }
        Self { segments }
    }

    /// The elements of a segment in `range`, divided where runs of another length or distance follow.
    pub fn runs(&self, segment: usize, range: &Range<u64>) -> Vec<PlacedRange> {
        self.segments[segment].iter().filter_map(|runs| runs.within(range)).collect()
    }

    /// The place of an element of a segment.
    #[track_caller]
    pub fn of(&self, segment: usize, element: u64) -> u64 {
        let runs = self.runs(segment, &(element..element + 1));
        assert!(runs.len() == 1, "segment {segment} has no element {element}");
        runs[0].place
    }
}

/// The places of a part of a parameter; the parameter's first element has the place `first`.
fn runs_of(spec: &Spec, part: &Part, first: u64) -> Vec<PlacedRange> {
    if spec.share.is_none() {
        let range = part.range(spec, part.first_row, part.first_row + part.rows);
        return vec![PlacedRange::consecutive(range, first)];
    }
    let stride = u64::from(spec.whole_stride());
    let in_part = |strip: Strip| strip.held_in(part.first_row..part.first_row + part.rows);
    let cols = spec.col_strips();
    let mut runs: Vec<PlacedRange> = Vec::new();
    for rows in spec.row_strips().into_iter().filter_map(in_part) {
        let place = first + rows.whole as u64 * stride;
        let range = part.range(spec, rows.held, rows.held + rows.count);
        let start = range.start;
        let of_cols = |col: &Strip| {
            let [held, whole, count] = [col.held, col.whole, col.count].map(|lines| lines as u64);
            PlacedRange::consecutive(start + held..start + held + count, place + whole)
        };
        let of_rows = match cols.as_slice() {
            _ if spec.cols == spec.whole_cols() => vec![PlacedRange::consecutive(range, place)],
            [col] => {
                let run = u64::from(spec.stride());
                let place = place + col.whole as u64;
                vec![PlacedRange { range, place, skipped: 0, run, gap: stride - run }]
            }
            several => {
                assert!(rows.count == 1, "of several rows a rank has one range of columns");
                several.iter().map(of_cols).collect()
            }
        };
        for run in of_rows {
            if !runs.last_mut().is_some_and(|last| last.range.end == run.range.start && last.take(&run)) {
                runs.push(run);
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Limits;
    use crate::model::parameters::Gpt;
    use crate::model::parameters::tests::mixture_example;
    use crate::ranks::RankLayout;
    use std::collections::HashSet;

    const LIMITS: Limits = Limits { binding_bytes: 1 << 27, buffer_bytes: 1 << 28 };

    fn layout(rank: usize, ranks: usize, limits: &Limits) -> ArenaLayout {
        let mut config = mixture_example();
        config.mixture.as_mut().expect("experts").route.experts = 4;
        let specs = Gpt::describe(&config).into_iter().map(|spec| spec.of_expert_rank(rank, ranks));
        ArenaLayout::new(specs.collect(), limits).unwrap()
    }

    /// The places of a parameter's elements, row by row.
    fn of_rows(layout: &ArenaLayout, places: &GlobalOffsets, (spec, parts): &(Spec, Vec<Part>)) -> Vec<u64> {
        assert!(layout.parameters.iter().any(|(held, _)| held.path == spec.path));
        let elements = parts.iter().flat_map(|part| {
            let range = part.range(spec, part.first_row, part.first_row + part.rows);
            range.map(|element| places.of(part.segment, element))
        });
        elements.collect()
    }

    #[test]
    fn one_rank_has_them_in_order() {
        let whole = layout(0, 1, &LIMITS);
        let places = GlobalOffsets::new(&whole, &whole);
        let mut start = 0;
        for (index, segment) in whole.segments.iter().enumerate() {
            assert_eq!(
                places.runs(index, &segment.whole()),
                [PlacedRange::consecutive(segment.whole(), start)]
            );
            start += segment.elements;
        }
    }

    #[test]
    fn ranks_have_those_of_one() {
        let whole = layout(0, 1, &LIMITS);
        let of_one = GlobalOffsets::new(&whole, &whole);
        let mut stacks = 0;
        for rank in 0..2 {
            let own = layout(rank, 2, &LIMITS);
            let places = GlobalOffsets::new(&own, &whole);
            for (held, all) in own.parameters.iter().zip(&whole.parameters) {
                let got = of_rows(&own, &places, held);
                let want = of_rows(&whole, &of_one, all);
                let (path, rows) = (&held.0.path, got.len());
                let first = if held.0.share.is_some() { rank * rows } else { 0 };
                assert_eq!(got, want[first..first + rows], "{path} on rank {rank}");
                stacks += usize::from(held.0.share.is_some());
            }
        }
        assert_eq!(
            stacks,
            2 * 4,
            "gate and up and down, in a layer and in a block of multi-token prediction"
        );
    }

    /// However runs are cut, their elements keep their places.
    #[test]
    fn runs_are_cut_anywhere() {
        let runs = PlacedRange { range: 100..133, place: 1004, skipped: 4, run: 8, gap: 5 };
        let places = |runs: &PlacedRange| runs.range.clone().map(|i| runs.place_of(i)).collect::<Vec<u64>>();
        let all = places(&runs);
        assert_eq!(all[..6], [1004, 1005, 1006, 1007, 1013, 1014]);
        for start in 100..133 {
            for end in start + 1..=133 {
                let cut = runs.within(&(start..end)).unwrap();
                let want = &all[start as usize - 100..end as usize - 100];
                assert_eq!(places(&cut), want);
            }
        }
    }

    /// The place of each element of a part of a matrix is checked by row and column.
    #[test]
    fn parts_of_matrices_have_those_of_one() {
        let mut config = mixture_example().with_layers(|layer| layer.intermediate_size = 16);
        let mixture = config.mixture.as_mut().expect("experts");
        (mixture.intermediate_size, mixture.route.experts) = (24, 4);
        mixture.shared.as_mut().expect("a shared expert").intermediate_size = 8;
        let whole = ArenaLayout::new(Gpt::describe(&config), &LIMITS).unwrap();
        let of_one = GlobalOffsets::new(&whole, &whole);
        for rank in 0..2 {
            let layout = RankLayout { rank, model: 2, shares_vocabulary: true, ..RankLayout::one() };
            let held = Gpt::describe(&config).into_iter().map(|spec| spec.of_matrix_rank(&layout).unwrap());
            let own = ArenaLayout::new(held.collect(), &LIMITS).unwrap();
            let places = GlobalOffsets::new(&own, &whole);
            for ((spec, parts), (all, whole_parts)) in own.parameters.iter().zip(&whole.parameters) {
                let (part, whole_part) = (parts[0], whole_parts[0]);
                for (row, col) in spec
                    .row_strips()
                    .iter()
                    .flat_map(|row| spec.col_strips().into_iter().map(move |col| (*row, col)))
                {
                    let at = |part: &Part, spec: &Spec, row: usize, col: usize| {
                        part.range(spec, row, row + 1).start + col as u64
                    };
                    for (r, c) in [(0, 0), (row.count - 1, col.count - 1), (row.count / 2, col.count / 3)] {
                        let got = places.of(part.segment, at(&part, spec, row.held + r, col.held + c));
                        let element = at(&whole_part, all, row.whole + r, col.whole + c);
                        assert_eq!(
                            got,
                            of_one.of(whole_part.segment, element),
                            "{} on rank {rank}",
                            spec.path
                        );
                    }
                }
            }
        }
    }

    /// Bindings of 1 KiB hold one expert but not all of them.
    #[test]
    fn no_two_weights_share_one() {
        let narrow = Limits { binding_bytes: 1 << 10, buffer_bytes: 1 << 10 };
        let whole = layout(0, 1, &narrow);
        assert!(whole.parameters.iter().any(|(_, parts)| parts.len() > 1), "a stack is split");
        let mut seen = HashSet::new();
        for rank in 0..2 {
            let own = layout(rank, 2, &narrow);
            let places = GlobalOffsets::new(&own, &whole);
            for held in own.parameters.iter().filter(|held| rank == 0 || held.0.share.is_some()) {
                let own = of_rows(&own, &places, held);
                assert!(own.iter().all(|place| seen.insert(*place)), "{} on rank {rank}", held.0.path);
            }
        }
    }
}
