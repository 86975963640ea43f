//! The ranks that take part in a collective.

/// Ranks that take part in a collective, ascending.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// The numbers of the members among all ranks of the run, ascending; at least one.
    pub ranks: Vec<usize>,
}

impl Group {
    /// The group of `ranks`, which must be ascending and not empty.
    pub fn new(ranks: Vec<usize>) -> Self {
        assert!(!ranks.is_empty(), "a group has at least one rank");
        assert!(ranks.is_sorted_by(|a, b| a < b), "the ranks of a group are ascending: {ranks:?}");
        Self { ranks }
    }

    /// All of `size` ranks.
    pub fn all(size: usize) -> Self {
        Self::new((0..size).collect())
    }

    /// Number of members.
    pub fn size(&self) -> usize {
        self.ranks.len()
    }

    /// Whether the group has a single member, which has nobody to exchange with.
    pub(crate) fn is_single(&self) -> bool {
        self.ranks.len() == 1
    }

    /// The place of `rank` among the members, if it is a member.
    pub fn place(&self, rank: usize) -> Option<usize> {
        self.ranks.binary_search(&rank).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::Group;

    #[test]
    fn members_have_places() {
        let group = Group::new(vec![1, 4, 6]);
        assert_eq!((group.size(), group.place(4), group.place(5)), (3, Some(1), None));
        assert!(!group.is_single() && Group::all(1).is_single());
    }

    #[test]
    #[should_panic(expected = "ascending")]
    fn ranks_are_ascending() {
        Group::new(vec![2, 2]);
    }
}
