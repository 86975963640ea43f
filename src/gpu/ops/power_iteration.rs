//! The largest eigenvalue of WᵀW and the sum of squares of W, of which the stable rank follows.

use super::step_state::StepState;
use super::{per_block, per_item, per_row};
use crate::element::Element;
use crate::record::{Binding, Recorder, State, Tensor};

/// Blocks into which the rows of a matrix are divided at most, whose partial sums one workgroup adds.
const MOST_BLOCKS: u32 = 64;

/// Rows of a block at least.
const LEAST_ROWS: u32 = 64;

crate::params! {
    struct Params {
        matrices: u32,
        rows: u32,
        cols: u32,
        cols4: u32,
        first_row: u32,
        matrix_rows: u32,
        block: u32,
        blocks: u32,
        first_block: u32,
        index: u32,
        first_matrix: u32,
        seed_low: u32,
        seed_high: u32,
        stream: u32,
    }
}

/// How eigenvalues are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerIteration {
    /// Iterations, each of which reads the matrices twice.
    pub iterations: u32,
    /// Seed of the vectors that it starts from, which are in the streams from [`POWER_STREAM`](crate::random::POWER_STREAM).
    pub seed: u64,
    /// Number of the parameter, which has vectors of its own.
    pub stream: u32,
    /// Matrices of the parameter before these.
    pub first_matrix: u32,
}

/// Where eigenvalues and sums of squares go.
#[derive(Clone, Copy, Debug)]
pub struct Spectra {
    /// (1, K) f32: the eigenvalue of each matrix.
    pub eigenvalues: Tensor,
    /// (K, 4) f32: a [`SquareSum`](super::squares::SquareSum) for each matrix.
    pub sums: Tensor,
}

/// Writes the largest eigenvalue of WᵀW, as power iteration finds it, and the sum of squares of each of `count` matrices W, to the
/// places from `index` on. The matrices have equally many rows and are stacked in `parts`, each of which holds whole matrices,
/// unless there is only one. `state` is the step's ([`StepState`]). The eigenvalue is at most the largest one, and falls short of it
/// by a share that vanishes as (λ₂ / λ₁)^(2 iterations) (Golub and Van Loan, "Matrix Computations", 4th edition, section 8.2.1).
#[track_caller]
pub fn power_iteration(
    rec: &mut Recorder,
    parts: &[Tensor],
    count: u32,
    state: Tensor,
    settings: &PowerIteration,
    spectra: &Spectra,
    index: u32,
) {
    let stack = Stack::new(parts, count);
    assert!(index + count <= spectra.sums.rows, "{count} matrices from number {index} on have no places");
    assert!(settings.iterations > 0, "power iteration needs an iteration");
    let Stack { rows, cols, .. } = stack;
    let matrix_rows = rows / count;
    let params = Params {
        matrices: count,
        rows,
        cols,
        cols4: cols.div_ceil(4),
        first_row: 0,
        matrix_rows,
        block: 0,
        blocks: 0,
        first_block: 0,
        index,
        first_matrix: settings.first_matrix,
        seed_low: settings.seed as u32,
        seed_high: (settings.seed >> 32) as u32,
        stream: settings.stream,
    };
    let squares = rec.tensor("squares", rows, 4, Element::F32);
    stack.each_row(rec, "square_rows", &params, &[squares.bind("squares", Element::F32)]);
    let bindings = [squares.bind("squares_in", Element::F32), spectra.sums.bind("sums", Element::F32)];
    let (kernel, grid) = per_row(rec, FILE, "fold_squares", Element::F32, count);
    rec.dispatch(kernel, &bindings, &Params { rows: matrix_rows, ..params }, grid);

    let mut vectors = |label: &str, rows: u32| rec.tensor(label, rows, cols, Element::F32);
    let (start, v) = (vectors("start", count), vectors("v", count));
    let partials = vectors("partials", count * stack.blocks_of_matrix());
    let u = rec.tensor("u", 1, rows, Element::F32);
    let (kernel, grid) =
        per_item(FILE, "start_vectors", Element::F32, u64::from(count) * u64::from(params.cols4));
    let bindings = [StepState::bind("state", state), start.bind("partials", Element::F32)];
    rec.dispatch(kernel, &bindings, &params, grid);
    normalise(rec, start, v, spectra, &Params { blocks: 1, ..params });
    for _ in 0..settings.iterations {
        let bindings = [v.bind("v_in", Element::F32), u.bind("u", Element::F32)];
        stack.each_row(rec, "multiply", &params, &bindings);
        stack.multiply_transposed(rec, &params, u, partials);
        normalise(rec, partials, v, spectra, &Params { blocks: stack.blocks_of_matrix(), ..params });
    }
}

const FILE: &str = "power_iteration";

/// Matrices with equally many rows.
struct Stack<'a> {
    parts: &'a [Tensor],
    count: u32,
    rows: u32,
    cols: u32,
}

impl<'a> Stack<'a> {
    #[track_caller]
    fn new(parts: &'a [Tensor], count: u32) -> Self {
        let rows: u32 = parts.iter().map(|part| part.rows).sum();
        let cols = parts.first().map_or(0, |part| part.cols);
        assert!(rows > 0 && rows.is_multiple_of(count), "{rows} rows are not those of {count} matrices");
        let is_whole = |part: &Tensor| count == 1 || part.rows.is_multiple_of(rows / count);
        for part in parts {
            assert!(is_whole(part), "a part of {} rows cuts a matrix of {}", part.rows, rows / count);
            assert!(part.stride4() == cols.div_ceil(4), "the matrices must not be a column range");
        }
        Self { parts, count, rows, cols }
    }

    /// Rows of one matrix in a part, and how many blocks they make.
    fn blocks(&self, part: &Tensor) -> (u32, u32) {
        let rows = part.rows.min(self.rows / self.count);
        (rows, rows.div_ceil(self.block()))
    }

    fn block(&self) -> u32 {
        (self.rows / self.count).div_ceil(MOST_BLOCKS).max(LEAST_ROWS)
    }

    /// Rows of partials for each matrix.
    fn blocks_of_matrix(&self) -> u32 {
        match self.count {
            1 => self.parts.iter().map(|part| self.blocks(part).1).sum(),
            _ => self.blocks(&self.parts[0]).1,
        }
    }

    /// A launch over the rows of each part; `bindings` follow those of the matrices.
    fn each_row(&self, rec: &mut Recorder, entry: &'static str, params: &Params, bindings: &[Binding]) {
        let mut first_row = 0;
        for part in self.parts {
            let (kernel, grid) = per_row(rec, FILE, entry, part.element, part.rows);
            let bindings = [&[part.bind("matrix", part.element)], bindings].concat();
            rec.dispatch(kernel, &bindings, &Params { rows: part.rows, first_row, ..*params }, grid);
            first_row += part.rows;
        }
    }

    /// partials = Σ u W, block by block.
    fn multiply_transposed(&self, rec: &mut Recorder, params: &Params, u: Tensor, partials: Tensor) {
        let mut params = Params { block: self.block(), first_row: 0, first_block: 0, ..*params };
        for part in self.parts {
            let (rows, blocks) = self.blocks(part);
            let all_blocks = part.rows / rows * blocks;
            let size = [params.cols4, all_blocks];
            let (kernel, grid) = per_block(rec, FILE, "multiply_transposed", part.element, size);
            let bindings = [
                part.bind("matrix", part.element),
                u.bind("u_in", Element::F32),
                partials.bind("partials", Element::F32),
            ];
            rec.dispatch(kernel, &bindings, &Params { rows, blocks, ..params }, grid);
            params.first_row += part.rows;
            params.first_block += all_blocks;
        }
    }
}

/// v = w / ‖w‖ of each matrix, and its eigenvalue ‖w‖.
fn normalise(rec: &mut Recorder, partials: Tensor, v: Tensor, spectra: &Spectra, params: &Params) {
    let (kernel, grid) = per_row(rec, FILE, "normalise", Element::F32, params.matrices);
    let bindings = [
        partials.bind("partials_in", Element::F32),
        v.bind("v", Element::F32),
        spectra.eigenvalues.bind("eigenvalues", Element::F32),
    ];
    rec.dispatch(kernel, &bindings, params, grid);
}
