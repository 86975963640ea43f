//! The products of matrices that an adapter's initial values took out of its base. They are computed again from the
//! base.
//!
//! Signs and rotations of the factors do not matter, since only their product is used.

/// Iterations, beyond the number of wanted singular values, before the first test of whether these have settled. Later
/// tests, which cost the cube of the iterations, come after half as many iterations again.
const MORE: usize = 24;
/// The largest residual of each singular value, as a share of the largest singular value.
const SETTLED: f64 = 1e-9;

/// The `rank` largest singular values of the matrix `weights`, which has `rows` rows: the left vectors times the values
/// (rows, rank), and the right vectors (rank, columns).
///
/// The method is the bidiagonalisation of Golub and Kahan (1965) with all vectors kept orthogonal. It finds the largest
/// values first; where they are close to the others, it goes on up to the whole matrix.
pub(super) fn principal(weights: &[f32], rows: usize, rank: usize) -> (Vec<f64>, Vec<f64>) {
    let columns = weights.len() / rows;
    let most = rows.min(columns);
    let mut basis = Bidiagonal::new(weights, rows, columns);
    loop {
        let count = (basis.left.len() * 3 / 2).max(rank + MORE).min(most);
        while basis.left.len() < count {
            basis.extend();
        }
        let found = basis.values();
        let residual = found.iter().take(rank).map(|triplet| basis.rest * triplet.left[count - 1].abs());
        let largest = found.first().map_or(0.0, |triplet| triplet.value);
        if count < most && residual.fold(0.0, f64::max) > SETTLED * largest {
            continue;
        }
        let mut left = vec![0.0; rows * rank];
        let mut right = vec![0.0; rank * columns];
        for (i, triplet) in found.iter().take(rank).enumerate() {
            for (share, vector) in triplet.left.iter().zip(&basis.left) {
                (0..rows).for_each(|row| left[row * rank + i] += triplet.value * share * vector[row]);
            }
            for (share, vector) in triplet.right.iter().zip(&basis.right) {
                add(*share, vector, &mut right[i * columns..][..columns]);
            }
        }
        return (left, right);
    }
}

/// The first `rank` columns of Q (rows, rank) and rows of R (rank, columns) in the QR decomposition of the matrix
/// `weights`, which has `rows` rows.
pub(super) fn orthonormal(weights: &[f32], rows: usize, rank: usize) -> (Vec<f64>, Vec<f64>) {
    let columns = weights.len() / rows;
    let mut basis: Vec<Vec<f64>> = Vec::new();
    for column in 0..rank {
        let mut vector: Vec<f64> = (0..rows).map(|row| f64::from(weights[row * columns + column])).collect();
        normalise(&basis, &mut vector);
        basis.push(vector);
    }
    let left = (0..rows * rank).map(|place| basis[place % rank][place / rank]).collect();
    let right = basis.iter().flat_map(|vector| transposed_times(weights, columns, vector)).collect();
    (left, right)
}

/// A matrix as U B Vᵀ, where B has only a diagonal and the superdiagonal above it.
struct Bidiagonal<'a> {
    weights: &'a [f32],
    rows: usize,
    columns: usize,
    left: Vec<Vec<f64>>,
    /// One vector more than on the left.
    right: Vec<Vec<f64>>,
    diagonal: Vec<f64>,
    above: Vec<f64>,
    /// The value of the superdiagonal above the next value of the diagonal.
    rest: f64,
}

/// A singular value of B and its vectors.
struct Triplet {
    value: f64,
    left: Vec<f64>,
    right: Vec<f64>,
}

impl<'a> Bidiagonal<'a> {
    fn new(weights: &'a [f32], rows: usize, columns: usize) -> Self {
        let mut first = scattered(columns, 0);
        normalise(&[], &mut first);
        let (left, right) = (Vec::new(), vec![first]);
        Self { weights, rows, columns, left, right, diagonal: Vec::new(), above: Vec::new(), rest: 0.0 }
    }

    fn extend(&mut self) {
        let last = &self.right[self.right.len() - 1];
        let mut left = times(self.weights, self.columns, last);
        let on_diagonal = self.orthogonal(&mut left, true);
        let mut right = transposed_times(self.weights, self.columns, &left);
        if !self.left.is_empty() {
            self.above.push(self.rest);
        }
        self.diagonal.push(on_diagonal);
        self.left.push(left);
        self.rest = if self.right.len() < self.columns { self.orthogonal(&mut right, false) } else { 0.0 };
        self.right.push(right);
    }

    /// Makes `vector` orthogonal to the vectors of its side and of length 1, and returns the length of its orthogonal
    /// part. Where nothing is left of it, the matrix has no more than what was found, and another vector takes its
    /// place.
    fn orthogonal(&self, vector: &mut Vec<f64>, is_left: bool) -> f64 {
        let before = vector.iter().map(|value| value * value).sum::<f64>().sqrt();
        let basis = if is_left { &self.left } else { &self.right };
        let length = normalise(basis, vector);
        if length > 1e-14 * before.max(self.diagonal.first().copied().unwrap_or(0.0)) {
            return length;
        }
        *vector = scattered(if is_left { self.rows } else { self.columns }, basis.len() as u64);
        normalise(basis, vector);
        0.0
    }

    /// The singular values of B, the largest first, by rotations of pairs of columns (Hestenes, 1958).
    fn values(&self) -> Vec<Triplet> {
        let size = self.diagonal.len();
        let mut columns = vec![vec![0.0; size]; size];
        let mut rotations = vec![vec![0.0; size]; size];
        for i in 0..size {
            columns[i][i] = self.diagonal[i];
            rotations[i][i] = 1.0;
            if i > 0 {
                columns[i][i - 1] = self.above[i - 1];
            }
        }
        let mut is_moving = true;
        while std::mem::take(&mut is_moving) {
            for (i, j) in (0..size).flat_map(|i| (i + 1..size).map(move |j| (i, j))) {
                let (own, other, both) = (
                    dot(&columns[i], &columns[i]),
                    dot(&columns[j], &columns[j]),
                    dot(&columns[i], &columns[j]),
                );
                if both.abs() <= 1e-15 * (own * other).sqrt() || both == 0.0 {
                    continue;
                }
                is_moving = true;
                let zeta = (other - own) / (2.0 * both);
                let tangent = zeta.signum() / (zeta.abs() + (1.0 + zeta * zeta).sqrt());
                let cosine = 1.0 / (1.0 + tangent * tangent).sqrt();
                rotate(&mut columns, i, j, cosine, cosine * tangent);
                rotate(&mut rotations, i, j, cosine, cosine * tangent);
            }
        }
        let triplet = |(mut left, right): (Vec<f64>, Vec<f64>)| {
            let value = dot(&left, &left).sqrt();
            left.iter_mut().for_each(|of| *of /= value.max(f64::MIN_POSITIVE));
            Triplet { value, left, right }
        };
        let mut found: Vec<Triplet> = columns.into_iter().zip(rotations).map(triplet).collect();
        found.sort_by(|one, other| other.value.total_cmp(&one.value));
        found
    }
}

fn rotate(vectors: &mut [Vec<f64>], i: usize, j: usize, cosine: f64, sine: f64) {
    let (before, after) = vectors.split_at_mut(j);
    for (own, other) in before[i].iter_mut().zip(&mut after[0]) {
        (*own, *other) = (cosine * *own - sine * *other, sine * *own + cosine * *other);
    }
}

/// Makes `vector` orthogonal to the vectors of `basis` and of length 1, and returns the length of its orthogonal part.
fn normalise(basis: &[Vec<f64>], vector: &mut [f64]) -> f64 {
    // One pass leaves rounding errors; two passes are enough (Kahan).
    for _ in 0..2 {
        basis.iter().for_each(|other| add(-dot(other, vector), other, vector));
    }
    let length = dot(vector, vector).sqrt();
    vector.iter_mut().for_each(|value| *value /= length.max(f64::MIN_POSITIVE));
    length
}

/// Numbers without a pattern, the same each time, from SplitMix64.
fn scattered(count: usize, seed: u64) -> Vec<f64> {
    let at = |place: u64| {
        let mut z = (seed << 32 | place).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as f64 / u64::MAX as f64 - 0.5
    };
    (0..count as u64).map(at).collect()
}

fn times(weights: &[f32], columns: usize, vector: &[f64]) -> Vec<f64> {
    let row = |row: &[f32]| row.iter().zip(vector).map(|(weight, value)| f64::from(*weight) * value).sum();
    weights.chunks(columns).map(row).collect()
}

fn transposed_times(weights: &[f32], columns: usize, vector: &[f64]) -> Vec<f64> {
    let mut product = vec![0.0; columns];
    for (row, value) in weights.chunks(columns).zip(vector) {
        product.iter_mut().zip(row).for_each(|(sum, weight)| *sum += value * f64::from(*weight));
    }
    product
}

fn dot(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

fn add(share: f64, vector: &[f64], to: &mut [f64]) {
    to.iter_mut().zip(vector).for_each(|(to, value)| *to += share * value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product(left: &[f64], right: &[f64], rank: usize) -> Vec<f64> {
        let columns = right.len() / rank;
        let at = |row: &[f64], column: usize| (0..rank).map(|i| row[i] * right[i * columns + column]).sum();
        left.chunks(rank).flat_map(|row| (0..columns).map(move |column| at(row, column))).collect()
    }

    /// A matrix whose singular values are known: they are those of its blocks.
    #[test]
    fn the_largest_singular_values_are_found_among_many() {
        let (rows, columns) = (120, 90);
        let mut weights = vec![0.0; rows * columns];
        let mut expected = vec![0.0; rows * columns];
        // Rotations of 45 degrees in each pair of rows; values fall slowly.
        for column in 0..columns {
            let value = 3.0 * 0.99_f64.powi(column as i32);
            let (own, pair) = (column, (column + 7) % columns);
            let h = std::f64::consts::FRAC_1_SQRT_2;
            let sign = if column % 2 == 0 { 1.0 } else { -1.0 };
            let base = column / 2 * 2;
            for (row, of) in [(base, h), (base + 1, sign * h)] {
                let place = (row * columns) + (if own == column { pair } else { own });
                weights[place] += (value * of) as f32;
                if column < 5 {
                    expected[place] += value * of;
                }
            }
        }
        let (left, right) = principal(&weights, rows, 5);
        let found = product(&left, &right, 5);
        let largest =
            found.iter().zip(&expected).map(|(found, expected)| (found - expected).abs()).fold(0.0, f64::max);
        assert!(largest < 1e-5, "{largest}");
    }

    #[test]
    fn a_matrix_of_less_rank_is_all_of_it() {
        let weights: Vec<f32> = (0..24).map(|i| ((i / 6 + 1) * (i % 6 + 1)) as f32).collect();
        for (left, right) in
            [principal(&weights, 4, 3), principal(&weights, 4, 1), orthonormal(&weights, 4, 1)]
        {
            let rank = left.len() / 4;
            let found = product(&left, &right, rank);
            assert!(found.iter().zip(&weights).all(|(found, of)| (found - f64::from(*of)).abs() < 1e-9));
        }
    }
}
