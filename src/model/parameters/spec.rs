//! The description of a parameter.

use super::share::{Share, Split};
use crate::element::Element;
use crate::model::config::{Family, LayerConfig, ModelConfig};

/// One parameter: a matrix of `rows` x `cols` as the arenas hold it, and how it is initialised, trained and saved.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Path in the model: `layers.0.attention.wqkv`. Unique.
    pub path: String,
    /// The use of the parameter in the model.
    pub role: Role,
    /// Rows as stored, including padding rows.
    pub rows: usize,
    /// Columns, without the padding of a row.
    pub cols: usize,
    /// Initial values.
    pub init: Init,
    /// Number of the random stream of its initial values. Adapters are numbered separately, so that they do not change
    /// the initial values of other parameters.
    pub stream: u64,
    /// The tensors of a checkpoint that the parameter consists of, in the order of its rows. Without any it keeps its
    /// initial values, which are the same for all seeds.
    pub pieces: Vec<Piece>,
    /// Whether the parameter has a gradient. Declared true, or false for constants and parameters of a model with
    /// adapters; [`Grouping`](crate::model::groups::Grouping) freezes.
    pub trains: bool,
    /// Whether weight decay applies. Declared true for all roles except [`Role::Vector`] and [`Role::ExpertBiases`].
    pub decays: bool,
    /// Parameter group, with its own learning rate and weight decay; 0 for parameters that no pattern matches.
    pub group: usize,
    /// The update rule.
    pub rule: UpdateRule,
    /// Storage type in which layers read it. The optimizer updates it in f32.
    pub compute: Element,
    /// How tensor-parallel ranks divide it; `None`: each holds all of it, and all of its gradient.
    pub split: Option<Split>,
    /// The rows and columns that this rank holds, if ranks hold a part of them each. Pieces are those of the whole
    /// parameter.
    pub share: Option<Share>,
    /// Where in the model it is read.
    pub place: Place,
    /// Whether another stage of the pipeline holds it too.
    pub is_copied: bool,
}

/// Where in a model a parameter is read, which determines the stages of a pipeline that hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Before the first layer.
    Start,
    /// In a layer; blocks of multi-token prediction are numbered after the others.
    Layer(usize),
    /// After the last layer, or in it, for the table of learned queries.
    End,
    /// At both ends: an embedding that is also the head's table, or that blocks of multi-token prediction read.
    Ends,
}

/// The use of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The token embedding (V, D): rows are looked up by token id.
    Embedding,
    /// The embeddings of each layer (V, L·P): ranges of rows are looked up by token id.
    LayerEmbedding,
    /// Learned positions (positions, D): rows are looked up by position.
    Positions,
    /// The output projection (V, D).
    Head,
    /// A linear map (out, in), or several of the same input stacked.
    Matrix,
    /// The matrices of all experts of a layer, stacked.
    ExpertStack {
        /// E; each expert has `rows / experts` rows.
        experts: usize,
    },
    /// The biases of all experts of a layer, a row for each.
    ExpertBiases {
        /// E.
        experts: usize,
    },
    /// Rows that score a token: a router (E, D), or the gate of a shared expert (1, D).
    Router,
    /// The weight of a norm or a bias: one row.
    Vector,
    /// The weights (W, C) of a convolution of each channel by itself, which files hold as (C, 1, W).
    Convolution,
    /// Numbers that nothing trains: a factor that files hold, or the ones in place of a norm's weight.
    Constant,
    /// A factor of low-rank adapters.
    Lora,
    /// The magnitudes of adapters: one row.
    Magnitudes,
    /// A factor of the adapters of all experts of a layer, stacked.
    ExpertLora {
        /// E.
        experts: usize,
    },
}

impl Role {
    /// Whether the parameter is a norm's weight or a bias, neither of which decays or is a linear map.
    pub(crate) fn is_vector(self) -> bool {
        self.is_row() || matches!(self, Self::ExpertBiases { .. })
    }

    /// Whether the parameter is of adapters: a factor, or magnitudes.
    pub fn is_factor(self) -> bool {
        matches!(self, Self::Lora | Self::Magnitudes | Self::ExpertLora { .. })
    }

    /// Whether the parameter is a single row, which files hold as a vector.
    pub(crate) fn is_row(self) -> bool {
        matches!(self, Self::Vector | Self::Constant | Self::Magnitudes)
    }

    /// The number of experts that it stacks, each with equally many rows; `None` for other roles.
    pub(crate) fn stacked_experts(self) -> Option<usize> {
        match self {
            Self::ExpertStack { experts } | Self::ExpertBiases { experts } | Self::ExpertLora { experts } => {
                Some(experts)
            }
            _ => None,
        }
    }

    /// The same role, for a stack of `experts` experts.
    pub(super) fn of_experts(self, experts: usize) -> Self {
        match self {
            Self::ExpertStack { .. } => Self::ExpertStack { experts },
            Self::ExpertBiases { .. } => Self::ExpertBiases { experts },
            Self::ExpertLora { .. } => Self::ExpertLora { experts },
            other => other,
        }
    }
}

/// How a parameter is updated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum UpdateRule {
    /// Element by element, as AdamW does.
    #[default]
    Elementwise,
    /// As a whole matrix, as Muon does.
    Matrix,
}

/// Initial values of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Normal with mean 0 and this standard deviation.
    Normal(f64),
    /// Uniform between plus and minus this.
    Uniform(f64),
    /// The logarithm of a decay rate that is uniform between 0.01 and 16, as in `transformers`.
    LogOfDecayRate,
    /// All ones.
    Ones,
    /// All zeros.
    Zeros,
    /// These two numbers.
    Pair([f64; 2]),
}

/// A tensor of a checkpoint: a range of a parameter's rows or, of a vector, of its columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// Hugging Face name: `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// First row of the range; first column of a vector.
    pub first_row: usize,
    /// Rows; columns of a vector.
    pub rows: usize,
    /// Columns, if it has fewer than the parameter; the others are zeros.
    pub cols: Option<usize>,
    /// Whether files hold it as (columns, rows).
    pub is_transposed: bool,
    /// Whether it is a number that files hold without dimensions.
    pub is_scalar: bool,
    /// The heads in its rows, if files hold the dimensions of heads in another order.
    pub heads: Option<ReorderedHeads>,
    /// The groups of its rows, if files hold them group by group.
    pub groups: Option<RowGroups>,
    /// The number of matrices with as many rows each that it stacks, if files hold it as (matrices, rows, columns), or of
    /// vectors, if they hold it as (vectors, columns).
    pub stacked: Option<usize>,
    /// The experts in its rows, if files hold all of them as one tensor.
    pub stack: Option<Stack>,
    /// The experts in its rows, if it is their second factors.
    pub factors: Option<FactorStack>,
}

/// The second factors of all experts, (outputs, rank) of each, as one tensor of a file of adapters, (outputs, rank ·
/// experts): column j of expert e is column j · experts + e there, as PEFT has it. Arenas hold the rows of the maps of
/// an expert one after the other, with padding behind each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FactorStack {
    /// Number of experts.
    pub experts: usize,
    /// The maps whose outputs an expert's factor has: 2 of gate and up, otherwise 1.
    pub maps: usize,
    /// Outputs of a map.
    pub rows: usize,
    /// Rows from the start of one map to the next in an arena.
    pub pitch: usize,
    /// Whether files hold the outputs of the maps in turns.
    pub is_interleaved: bool,
}

/// One projection of all experts as one tensor of a file: their matrices (experts, in, out), or their biases (experts,
/// out).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Number of experts.
    pub experts: usize,
    /// Whether the outputs are gate and up in turns; arenas hold all of the gate, then all of up.
    pub is_interleaved: bool,
}

/// Rows of several kinds that files hold group by group, as q, k and v in Bloom and InternLM2: the query heads that
/// share a key head, that key head, its value head. Arenas hold all rows of a kind together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowGroups {
    /// Number of groups.
    pub groups: usize,
    /// Rows of each kind in a group, in the order of files; 0 for kinds that are not there.
    pub rows: [usize; 4],
    /// Whether arenas have the last kind first.
    pub is_reversed: bool,
}

/// Heads of q and k whose dimensions files hold in another order. Permuting both in the same way keeps their products,
/// so the model in the file is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReorderedHeads {
    /// The order in files.
    pub order: HeadOrder,
    /// Dimensions of a head.
    pub head_dim: usize,
    /// Number of dimensions that rotate, the first ones of a head.
    pub rotary_dim: usize,
}

/// The order of the rotating dimensions of a head in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadOrder {
    /// Halves of a head that rotates in interleaved pairs, (2i, 2i + 1): most models of Hugging Face rotate in halves,
    /// (i, i + rotary_dim / 2).
    Halves,
    /// The second half before the first: nanochat rotates backwards, which is to rotate forwards from the second half
    /// to the first.
    Swapped,
}

impl Spec {
    /// Where the parameter may be split if it exceeds one binding: at multiples of this many rows. `None`: nowhere.
    ///
    /// Tables split at multiples of 4 rows, which aligns the logits of each part; expert stacks between experts, so
    /// that one binding holds all of an expert.
    pub(crate) fn split_rows(&self) -> Option<usize> {
        match self.role {
            Role::Embedding | Role::LayerEmbedding | Role::Positions | Role::Head => Some(4),
            Role::ExpertStack { experts } | Role::ExpertLora { experts } => Some(self.rows / experts),
            Role::Matrix
            | Role::Router
            | Role::Vector
            | Role::Convolution
            | Role::Constant
            | Role::ExpertBiases { .. }
            | Role::Magnitudes
            | Role::Lora => None,
        }
    }

    /// Whether it is B of adapters.
    pub(crate) fn is_second_factor(&self) -> bool {
        self.role.is_factor() && self.path.ends_with("lora_b")
    }

    /// Whether files hold it as vectors.
    pub(crate) fn is_of_vectors(&self) -> bool {
        self.pieces.iter().all(|piece| self.piece_shape(piece).len() == 1)
    }

    /// Shape of a piece in a file.
    pub fn piece_shape(&self, piece: &Piece) -> Vec<usize> {
        if let Some(factors) = piece.factors {
            return vec![factors.outputs(), self.whole_cols() * factors.experts];
        }
        match (self.role, piece.stack, piece.stacked) {
            _ if piece.is_scalar => Vec::new(),
            (role, _, Some(count)) if role.is_row() => vec![count, piece.rows / count],
            (role, ..) if role.is_row() => vec![piece.rows],
            (Role::Convolution, ..) => vec![self.whole_cols(), 1, piece.rows],
            (Role::ExpertBiases { .. }, Some(Stack { experts, .. }), _) => vec![experts, self.whole_cols()],
            (Role::ExpertBiases { .. }, None, _) => vec![self.whole_cols()],
            (_, Some(Stack { experts, .. }), _) => vec![experts, self.whole_cols(), piece.rows / experts],
            _ if piece.is_transposed => vec![self.whole_cols(), piece.rows],
            (_, None, Some(count)) => vec![count, piece.rows / count, self.whole_cols()],
            (_, None, None) => vec![piece.rows, piece.cols.unwrap_or(self.whole_cols())],
        }
    }

    /// The ranges of a piece in the whole parameter, row by row: (row, first column, columns). A file holds them in
    /// this order too, unless the piece is transposed.
    pub fn piece_rows<'a>(&'a self, piece: &'a Piece) -> impl Iterator<Item = (usize, usize, usize)> + 'a {
        let range = piece.first_row..piece.first_row + piece.rows;
        let (rows, first, cols) = match self.role {
            role if role.is_row() => (0..1, range.start, range.len()),
            _ => (range, 0, piece.cols.unwrap_or(self.whole_cols())),
        };
        rows.map(move |row| (row, first, cols))
    }

    /// Reorders the values of a piece from row order to the order of the file.
    pub fn in_file_order(&self, piece: &Piece, values: Vec<f32>) -> Vec<f32> {
        if let Some(factors) = piece.factors {
            return factors.in_file_order(&values, self.whole_cols());
        }
        match piece.heads {
            _ if piece.is_transposed => transposed(&values, self.whole_cols()),
            Some(heads) => gathered(&values, piece.rows, |row| heads.stored_row(row)),
            None => match (piece.groups, piece.stack) {
                (Some(groups), _) => gathered(&values, piece.rows, |row| groups.stored_row(row)),
                (None, Some(stack)) => stack.in_file_order(&values, self.outputs_of(piece, stack)),
                (None, None) => values,
            },
        }
    }

    /// Reorders the values of a piece from the order of the file to row order.
    pub(crate) fn in_row_order(&self, piece: &Piece, values: Vec<f32>) -> Vec<f32> {
        if let Some(factors) = piece.factors {
            return factors.in_row_order(&values, self.whole_cols());
        }
        match piece.heads {
            _ if piece.is_transposed => transposed(&values, piece.rows),
            Some(heads) => gathered(&values, piece.rows, |row| heads.file_row(row)),
            None => match (piece.groups, piece.stack) {
                (Some(groups), _) => gathered(&values, piece.rows, |row| groups.file_row(row)),
                (None, Some(stack)) => stack.in_row_order(&values, self.outputs_of(piece, stack)),
                (None, None) => values,
            },
        }
    }

    /// The outputs of an expert in the tensor of a `stack`, and the columns of each in the arena: 1 for biases.
    fn outputs_of(&self, piece: &Piece, stack: Stack) -> [usize; 2] {
        match self.role {
            Role::ExpertBiases { .. } => [self.whole_cols(), 1],
            _ => [piece.rows / stack.experts, self.whole_cols()],
        }
    }

    /// Elements from the start of one row to the next in an arena.
    pub fn stride(&self) -> u32 {
        self.compute.stride(self.cols as u32)
    }

    /// Elements from the start of one row to the next in an arena that holds all columns.
    pub(crate) fn whole_stride(&self) -> u32 {
        self.compute.stride(self.whole_cols() as u32)
    }

    /// Number of elements, not counting padding.
    pub fn count(&self) -> usize {
        self.pieces.iter().map(|piece| self.piece_shape(piece).iter().product::<usize>()).sum()
    }
}

impl Piece {
    /// The first `rows` rows, as files hold them, under no name yet.
    pub(super) fn plain(rows: usize) -> Self {
        Self {
            name: String::new(),
            first_row: 0,
            rows,
            cols: None,
            is_transposed: false,
            is_scalar: false,
            heads: None,
            groups: None,
            stacked: None,
            stack: None,
            factors: None,
        }
    }

    /// The matrices that it stacks, as pieces of their own; itself if it is one matrix.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = Self> + '_ {
        let count = self.stacked.unwrap_or(1);
        let rows = self.rows / count;
        let matrix = move |index: usize| match self.stacked {
            None => self.clone(),
            Some(_) => Self {
                name: format!("{}.{index}", self.name),
                first_row: self.first_row + index * rows,
                rows,
                stacked: None,
                ..self.clone()
            },
        };
        (0..count).map(matrix)
    }

    /// Whether files hold its rows as they are stored.
    pub(crate) fn is_in_order(&self) -> bool {
        !self.is_transposed
            && self.heads.is_none()
            && self.groups.is_none()
            && self.stack.is_none()
            && self.factors.is_none()
    }
}

impl Stack {
    /// The place in a file of output `output` of `outputs`, as the arena counts them.
    fn place(self, output: usize, outputs: usize) -> usize {
        let half = outputs / 2;
        if self.is_interleaved { 2 * (output % half) + output / half } else { output }
    }

    /// The values of whole experts in the order of the arena, (outputs, columns) of each, from that of the file,
    /// (columns, outputs) of each.
    pub(crate) fn in_row_order(self, values: &[f32], [outputs, cols]: [usize; 2]) -> Vec<f32> {
        let of_expert = |values: &[f32], row: usize| -> Vec<f32> {
            values.iter().skip(self.place(row, outputs)).step_by(outputs).copied().collect()
        };
        let experts = values.chunks_exact(outputs * cols);
        experts.flat_map(|values| (0..outputs).flat_map(move |row| of_expert(values, row))).collect()
    }

    /// The way back.
    fn in_file_order(self, values: &[f32], [outputs, cols]: [usize; 2]) -> Vec<f32> {
        let mut ordered = vec![0.0; values.len()];
        let size = outputs * cols;
        for (from, to) in values.chunks_exact(size).zip(ordered.chunks_exact_mut(size)) {
            for (row, values) in from.chunks_exact(cols).enumerate() {
                let place = self.place(row, outputs);
                to.iter_mut().skip(place).step_by(outputs).zip(values).for_each(|(to, value)| *to = *value);
            }
        }
        ordered
    }
}

impl FactorStack {
    /// Outputs of an expert.
    pub fn outputs(self) -> usize {
        self.maps * self.rows
    }

    /// For each element of the file, its place among the rows of `rank` columns of the arena.
    fn places(self, rank: usize) -> impl Iterator<Item = usize> {
        let of_output = move |output: usize| match self.is_interleaved {
            true => (output % self.maps) * self.pitch + output / self.maps,
            false => (output / self.rows) * self.pitch + output % self.rows,
        };
        let of_row = move |row: usize| {
            let of_column = move |column: usize| {
                (0..self.experts).map(move |expert| (expert * self.maps * self.pitch + row) * rank + column)
            };
            (0..rank).flat_map(of_column)
        };
        (0..self.outputs()).map(of_output).flat_map(of_row)
    }

    fn in_file_order(self, values: &[f32], rank: usize) -> Vec<f32> {
        self.places(rank).map(|place| values[place]).collect()
    }

    /// The way back, with zeros as padding.
    fn in_row_order(self, values: &[f32], rank: usize) -> Vec<f32> {
        let mut rows = vec![0.0; self.experts * self.maps * self.pitch * rank];
        self.places(rank).zip(values).for_each(|(place, value)| rows[place] = *value);
        rows
    }
}

impl ReorderedHeads {
    /// The heads of q and k in `layer` of the model of `config`; `None` if files hold them as they are.
    pub(super) fn of(config: &ModelConfig, layer: &LayerConfig) -> Option<Self> {
        let order = match config.rope_of(layer)?.is_interleaved {
            true if !config.family.holds_pairs() => HeadOrder::Halves,
            false if config.family == Family::NanoChat => HeadOrder::Swapped,
            _ => return None,
        };
        Some(Self { order, head_dim: layer.head_dim, rotary_dim: layer.rotary_dim })
    }

    /// The stored row of row `row` of a file.
    fn stored_row(self, row: usize) -> usize {
        let (half, dim) = (self.rotary_dim / 2, row % self.head_dim);
        let stored = match self.order {
            _ if dim >= self.rotary_dim => dim,
            HeadOrder::Halves if dim < half => 2 * dim,
            HeadOrder::Halves => 2 * (dim - half) + 1,
            HeadOrder::Swapped => (dim + half) % self.rotary_dim,
        };
        row - dim + stored
    }

    /// The row in a file of the stored row `row`.
    fn file_row(self, row: usize) -> usize {
        let (half, dim) = (self.rotary_dim / 2, row % self.head_dim);
        let in_file = match self.order {
            _ if dim >= self.rotary_dim => dim,
            HeadOrder::Halves => dim / 2 + dim % 2 * half,
            HeadOrder::Swapped => (dim + half) % self.rotary_dim,
        };
        row - dim + in_file
    }
}

impl RowGroups {
    /// q, k and v of the heads in `layer` of the model of `config`.
    pub(super) fn of_heads(config: &ModelConfig, layer: &LayerConfig) -> Self {
        let LayerConfig { num_kv_heads, head_dim, .. } = *layer;
        let queries = config.num_heads / num_kv_heads * head_dim;
        let rows = [queries, head_dim, config.value_dim(layer), 0];
        Self { groups: num_kv_heads, rows, is_reversed: false }
    }

    /// The first stored row of rows of kind number `kind`.
    fn start(self, kind: usize) -> usize {
        let before = if self.is_reversed { &self.rows[kind + 1..] } else { &self.rows[..kind] };
        self.groups * before.iter().sum::<usize>()
    }

    /// The stored row of row `row` of a file.
    fn stored_row(self, row: usize) -> usize {
        let size: usize = self.rows.iter().sum();
        let (group, mut place, mut kind) = (row / size, row % size, 0);
        while place >= self.rows[kind] {
            place -= self.rows[kind];
            kind += 1;
        }
        self.start(kind) + group * self.rows[kind] + place
    }

    /// The row in a file of the stored row `row`.
    fn file_row(self, row: usize) -> usize {
        let size: usize = self.rows.iter().sum();
        let holds = |kind: &usize| {
            (self.start(*kind)..self.start(*kind) + self.groups * self.rows[*kind]).contains(&row)
        };
        let kind = (0..self.rows.len()).find(holds).expect("a row of some kind");
        let within = row - self.start(kind);
        let (group, place) = (within / self.rows[kind], within % self.rows[kind]);
        group * size + self.rows[..kind].iter().sum::<usize>() + place
    }
}

/// `rows` rows, each of which is the row of `values` that `from` returns.
fn gathered(values: &[f32], rows: usize, from: impl Fn(usize) -> usize) -> Vec<f32> {
    let width = values.len() / rows;
    (0..rows).flat_map(|row| values[from(row) * width..][..width].iter().copied()).collect()
}

/// The transpose of a matrix of `cols` columns.
fn transposed(values: &[f32], cols: usize) -> Vec<f32> {
    (0..cols).flat_map(|column| values.iter().skip(column).step_by(cols).copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two experts of two outputs each of gate and up, with three inputs.
    #[test]
    fn files_hold_stacked_experts_by_inputs_and_gate_and_up_in_turns() {
        let stack = Stack { experts: 2, is_interleaved: true };
        // The arena: rows g0, g1, u0, u1 of both experts; an element is 100 expert + 10 row + input.
        let at = |expert: usize, row: usize, input: usize| (100 * expert + 10 * row + input) as f32;
        let rows =
            |expert: usize| (0..4).flat_map(move |row| (0..3).map(move |input| at(expert, row, input)));
        let arena: Vec<f32> = (0..2).flat_map(rows).collect();
        let file = stack.in_file_order(&arena, [4, 3]);
        // Input 0 of the first expert: g0, u0, g1, u1.
        assert_eq!(file[..4], [at(0, 0, 0), at(0, 2, 0), at(0, 1, 0), at(0, 3, 0)]);
        assert_eq!(file[12..16], [at(1, 0, 0), at(1, 2, 0), at(1, 1, 0), at(1, 3, 0)]);
        assert_eq!(stack.in_row_order(&file, [4, 3]), arena);
        let whole = Stack { is_interleaved: false, ..stack };
        assert_eq!(whole.in_file_order(&arena, [4, 3])[..4], [0.0, 10.0, 20.0, 30.0]);
        // Biases of one expert.
        assert_eq!(stack.in_row_order(&[0.0, 2.0, 1.0, 3.0], [4, 1]), [0.0, 1.0, 2.0, 3.0]);
    }

    /// Two experts of rank 2, with one output each of gate and up, and padding behind each.
    #[test]
    fn files_hold_the_columns_of_experts_factors_in_turns() {
        let factors = FactorStack { experts: 2, maps: 2, rows: 1, pitch: 2, is_interleaved: false };
        // An element is 100 expert + 10 map + column.
        let arena =
            [0.0, 1.0, 0.0, 0.0, 10.0, 11.0, 0.0, 0.0, 100.0, 101.0, 0.0, 0.0, 110.0, 111.0, 0.0, 0.0];
        let file = factors.in_file_order(&arena, 2);
        assert_eq!(file, [0.0, 100.0, 1.0, 101.0, 10.0, 110.0, 11.0, 111.0]);
        assert_eq!(factors.in_row_order(&file, 2), arena);
        let interleaved = FactorStack { rows: 2, is_interleaved: true, experts: 1, ..factors };
        // Rows g0, g1, u0, u1 of one column.
        assert_eq!(interleaved.in_file_order(&[0.0, 1.0, 10.0, 11.0], 1), [0.0, 10.0, 1.0, 11.0]);
    }

    #[test]
    fn files_hold_rows_of_several_kinds_group_by_group() {
        // Bloom: q, k and v of head 0, then of head 1.
        let heads = RowGroups { groups: 2, rows: [2, 2, 2, 0], is_reversed: false };
        let order: Vec<usize> = (0..12).map(|row| heads.stored_row(row)).collect();
        assert_eq!(order, [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]);
        // Two query heads for each key head.
        let grouped = RowGroups { groups: 2, rows: [2, 1, 1, 0], ..heads };
        let order: Vec<usize> = (0..8).map(|row| grouped.stored_row(row)).collect();
        assert_eq!(order, [0, 1, 4, 6, 2, 3, 5, 7]);
        // Each query before its gate; arenas have all gates first.
        let gated = RowGroups { groups: 2, rows: [2, 2, 0, 0], is_reversed: true };
        let order: Vec<usize> = (0..8).map(|row| gated.stored_row(row)).collect();
        assert_eq!(order, [4, 5, 0, 1, 6, 7, 2, 3]);
        for groups in [heads, grouped, gated, RowGroups { groups: 3, rows: [1, 2, 3, 4], ..gated }] {
            let rows = groups.groups * groups.rows.iter().sum::<usize>();
            assert!((0..rows).all(|row| groups.file_row(groups.stored_row(row)) == row));
        }
    }

    #[test]
    fn files_hold_rotating_dimensions_in_another_order() {
        for (order, stored) in [
            (HeadOrder::Halves, [0, 2, 4, 1, 3, 5, 6, 7, 8, 10, 12, 9, 11, 13, 14, 15]),
            (HeadOrder::Swapped, [3, 4, 5, 0, 1, 2, 6, 7, 11, 12, 13, 8, 9, 10, 14, 15]),
        ] {
            let heads = ReorderedHeads { order, head_dim: 8, rotary_dim: 6 };
            assert_eq!((0..16).map(|row| heads.stored_row(row)).collect::<Vec<_>>(), stored);
            assert!((0..16).all(|row| heads.file_row(heads.stored_row(row)) == row));
        }
    }
}
