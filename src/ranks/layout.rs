//! How the ranks of a run share its work.

use super::Group;

/// The most ranks that a run is planned for.
pub(crate) const MAX_RANKS: u64 = 1 << 20;

/// How the ranks of a run share its work, and the number of this rank.
///
/// Ranks are numbered as in Megatron and in MindSpore Transformers: those of one model-parallel group are neighbours,
/// followed by the data and then the pipeline dimension: rank = (stage · data + d) · model + t, with data rank d and
/// matrix part t.
///
/// Experts are spread over `expert` consecutive data ranks. So data rank d holds part d mod `expert` of the experts,
/// and data ranks with the same part hold the same experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RankLayout {
    /// This rank, below [`RankLayout::world`].
    pub rank: usize,
    /// Number of replicas of the model, which share the batch.
    pub data: usize,
    /// Number of data ranks over which the experts of a layer are spread; divides `data`.
    pub expert: usize,
    /// Number of ranks over which the matrices of a layer are spread.
    pub model: usize,
    /// Whether the ranks that share matrices share the tokens between the products that they divide.
    pub shares_tokens: bool,
    /// Whether the ranks that share matrices share the vocabulary.
    pub shares_vocabulary: bool,
    /// Number of ranks over which the layers are spread.
    pub pipeline: usize,
}

impl RankLayout {
    /// The layout of a single rank.
    pub fn one() -> Self {
        Self {
            rank: 0,
            data: 1,
            expert: 1,
            model: 1,
            shares_tokens: false,
            shares_vocabulary: false,
            pipeline: 1,
        }
    }

    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.data * self.model * self.pipeline
    }

    /// The number of the replica of the model that this rank belongs to, below `data`: it computes that part of the
    /// batch.
    pub(crate) fn data_rank(&self) -> usize {
        self.check();
        self.rank / self.model % self.data
    }

    /// The ranks that hold the same part of the model in all replicas: the gradients of everything except experts are
    /// summed over them.
    pub(crate) fn data_group(&self) -> Group {
        self.replicas(|_| true)
    }

    /// The number of the part of the experts that this rank holds, below `expert`.
    pub fn expert_part(&self) -> usize {
        self.data_rank() % self.expert
    }

    /// The ranks that together hold all experts, and exchange routed rows with this one.
    pub fn expert_group(&self) -> Group {
        let own = self.data_rank() / self.expert;
        self.replicas(|data_rank| data_rank / self.expert == own)
    }

    /// The ranks that hold the same experts as this one: the gradients of these experts are summed over them.
    pub(crate) fn expert_replicas(&self) -> Group {
        let own = self.expert_part();
        self.replicas(|data_rank| data_rank % self.expert == own)
    }

    /// The number of the part of each matrix that this rank holds, below `model`.
    pub fn matrix_part(&self) -> usize {
        self.check();
        self.rank % self.model
    }

    /// The ranks that together hold each matrix of this rank's layers, and sum its products.
    pub fn matrix_group(&self) -> Group {
        let first = self.rank - self.matrix_part();
        Group::new((first..first + self.model).collect())
    }

    /// The ranks that hold the same as this one, among the ranks that share matrices, where groups of `repeats`
    /// neighbours hold the same.
    pub(crate) fn matrix_repeats(&self, repeats: usize) -> Group {
        let first = self.rank - self.matrix_part() % repeats;
        Group::new((first..first + repeats).collect())
    }

    /// The stage of the pipeline that this rank computes, below `pipeline`.
    pub fn stage(&self) -> usize {
        self.check();
        self.rank / self.stage_stride()
    }

    /// The rank with the same place as this one in another stage.
    pub fn in_stage(&self, stage: usize) -> usize {
        self.rank % self.stage_stride() + stage * self.stage_stride()
    }

    /// The ranks with the same place as this one in the first and the last stage, which both hold a tied embedding.
    pub(crate) fn end_group(&self) -> Group {
        let mut ends = vec![self.in_stage(0), self.in_stage(self.pipeline - 1)];
        ends.dedup();
        Group::new(ends)
    }

    /// The ranks in all stages that have the places of `group`, which are ranks of this rank's stage.
    pub(crate) fn in_all_stages(&self, group: &Group) -> Group {
        let of_stage = |stage| group.ranks.iter().map(move |&rank| Self { rank, ..*self }.in_stage(stage));
        Group::new((0..self.pipeline).flat_map(of_stage).collect())
    }

    /// The ranks with the same place as this one in every replica whose data rank is `chosen`.
    fn replicas(&self, chosen: impl Fn(usize) -> bool) -> Group {
        let own = self.data_rank();
        let first = self.rank - own * self.model;
        Group::new((0..self.data).filter(|&d| chosen(d)).map(|d| first + d * self.model).collect())
    }

    /// The distance between ranks of neighbouring stages.
    fn stage_stride(&self) -> usize {
        self.model * self.data
    }

    fn check(&self) {
        assert!(self.rank < self.world(), "rank {} is below the number of ranks {}", self.rank, self.world());
        assert!(
            self.data.is_multiple_of(self.expert),
            "the {} data ranks divide into expert groups of {}",
            self.data,
            self.expert
        );
    }
}

#[cfg(test)]
mod tests {
    use super::RankLayout;
    use crate::ranks::Group;

    fn group(ranks: &[usize]) -> Group {
        Group::new(ranks.to_vec())
    }

    #[test]
    fn one_rank_exchanges_with_nobody() {
        let one = RankLayout::one();
        assert_eq!((one.world(), one.data_rank(), one.expert_part()), (1, 0, 0));
        for group in [one.data_group(), one.expert_group(), one.expert_replicas()] {
            assert!(group.is_single());
        }
    }

    #[test]
    fn experts_are_spread_over_consecutive_data_ranks() {
        let layout = RankLayout { rank: 5, data: 8, expert: 4, ..RankLayout::one() };
        assert_eq!((layout.data_rank(), layout.expert_part()), (5, 1));
        assert_eq!(layout.data_group(), Group::all(8));
        assert_eq!(layout.expert_group(), group(&[4, 5, 6, 7]));
        assert_eq!(layout.expert_replicas(), group(&[1, 5]));
    }

    #[test]
    fn ranks_are_numbered_from_model_to_pipeline() {
        // Rank 9 of 2 stages x 4 replicas x 2 parts of matrices: stage 1, replica 0, part 1.
        let layout = RankLayout { rank: 9, data: 4, expert: 2, model: 2, pipeline: 2, ..RankLayout::one() };
        assert_eq!((layout.world(), layout.data_rank()), (16, 0));
        assert_eq!(layout.data_group(), group(&[9, 11, 13, 15]));
        assert_eq!(layout.expert_group(), group(&[9, 11]));
        assert_eq!(layout.expert_replicas(), group(&[9, 13]));
        assert_eq!((layout.matrix_part(), layout.matrix_group()), (1, group(&[8, 9])));
        assert_eq!((layout.matrix_repeats(1), layout.matrix_repeats(2)), (group(&[9]), group(&[8, 9])));
        assert_eq!((layout.stage(), layout.in_stage(0)), (1, 1));
        assert_eq!(layout.end_group(), group(&[1, 9]));
        assert_eq!(layout.in_all_stages(&layout.expert_group()), group(&[1, 3, 9, 11]));
    }

    #[test]
    fn every_rank_is_in_one_group_of_a_kind() {
        let layouts = (0..24).map(|rank| RankLayout {
            rank,
            data: 6,
            expert: 3,
            model: 2,
            pipeline: 2,
            ..RankLayout::one()
        });
        for (rank, layout) in layouts.enumerate() {
            let kinds = [
                RankLayout::data_group,
                RankLayout::expert_group,
                RankLayout::expert_replicas,
                RankLayout::matrix_group,
            ];
            for kind in kinds {
                let group = kind(&layout);
                assert!(group.place(rank).is_some());
                assert!(group.ranks.iter().all(|&rank| kind(&RankLayout { rank, ..layout }) == group));
            }
            assert_eq!(layout.expert_group().place(rank), Some(layout.expert_part()));
            assert_eq!(layout.expert_group().size() * layout.expert_replicas().size(), layout.data);
        }
    }

    #[test]
    #[should_panic(expected = "divide into expert groups")]
    fn expert_groups_divide_the_data_ranks() {
        RankLayout { data: 4, expert: 3, ..RankLayout::one() }.data_group();
    }
}
