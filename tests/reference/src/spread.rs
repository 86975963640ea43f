//! Where the rows start that a rank receives for its experts.

/// The first row of each of the experts of rank number `place`, and the end, where `counts` says for each rank how many
/// rows it sends to each expert. The ranks hold the experts evenly and in order.
pub fn local_offsets(counts: &[Vec<u32>], place: usize) -> Vec<u32> {
    let local = counts[0].len() / counts.len();
    let experts = place * local..(place + 1) * local;
    let ends = experts.scan(0, |end, expert| {
        *end += counts.iter().map(|of_rank| of_rank[expert]).sum::<u32>();
        Some(*end)
    });
    [0].into_iter().chain(ends).collect()
}
