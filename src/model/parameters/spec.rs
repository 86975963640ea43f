//! What is known of one parameter.

/// One parameter: a matrix of `rows` x `cols` as the arenas hold it, and how it is initialised, trained and saved.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Path in the model: `layers.0.attention.wqkv`. Unique.
    pub path: String,
    /// What it is used as.
    pub role: Role,
    /// Rows as stored, padding rows included.
    pub rows: usize,
    /// Columns, without the pad of a row.
    pub cols: usize,
    /// Initial values.
    pub init: Init,
    /// The tensors of a checkpoint that it consists of, in the order of its rows.
    pub pieces: Vec<Piece>,
    /// Whether it has a gradient. Declared true; [`Grouping`](crate::model::groups::Grouping) freezes.
    pub trains: bool,
    /// Whether weight decay applies. Declared true for all roles but [`Role::Vector`].
    pub decays: bool,
    /// Parameter group, with a learning rate and a weight decay of its own; 0 for what no pattern matches.
    pub group: usize,
    /// The update rule.
    pub rule: UpdateRule,
}

/// What a parameter is used as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The token embedding (V, D): rows are looked up by token id.
    Embedding,
    /// Learned positions (positions, D): rows are looked up by position.
    Positions,
    /// The output projection (V, D).
    Head,
    /// A linear map (out, in), or several of the same input stacked.
    Matrix,
    /// The matrices of all experts of a layer, stacked.
    ExpertStack {
        /// E; each has `rows / experts` rows.
        experts: usize,
    },
    /// Rows that score a token: a router (E, D), or the gate of a shared expert (1, D).
    Router,
    /// The weight of a norm or a bias: one row.
    Vector,
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
    /// All ones.
    Ones,
    /// All zeros.
    Zeros,
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
    /// Whether files hold it as (columns, rows).
    pub is_transposed: bool,
}

impl Spec {
    /// Where the parameter may be split if it exceeds one binding: at multiples of this many rows. `None`: nowhere.
    ///
    /// Tables split at multiples of 4 rows, which aligns the logits of each part; expert stacks between experts, so
    /// that one binding holds all of an expert.
    pub fn split_rows(&self) -> Option<usize> {
        match self.role {
            Role::Embedding | Role::Positions | Role::Head => Some(4),
            Role::ExpertStack { experts } => Some(self.rows / experts),
            Role::Matrix | Role::Router | Role::Vector => None,
        }
    }

    /// Shape of a piece in a file.
    pub fn piece_shape(&self, piece: &Piece) -> Vec<usize> {
        match self.role {
            Role::Vector => vec![piece.rows],
            _ if piece.is_transposed => vec![self.cols, piece.rows],
            _ => vec![piece.rows, self.cols],
        }
    }

    /// The stored ranges of a piece, row by row: (row, first column, columns). A file holds them in this order too,
    /// unless the piece is transposed.
    pub fn piece_rows<'a>(&'a self, piece: &'a Piece) -> impl Iterator<Item = (usize, usize, usize)> + 'a {
        let range = piece.first_row..piece.first_row + piece.rows;
        let (rows, first, cols) = match self.role {
            Role::Vector => (0..1, range.start, range.len()),
            _ => (range, 0, self.cols),
        };
        rows.map(move |row| (row, first, cols))
    }

    /// The values of a piece from row order to the order of the file.
    pub fn to_file(&self, piece: &Piece, values: Vec<f32>) -> Vec<f32> {
        if piece.is_transposed { transposed(&values, self.cols) } else { values }
    }

    /// The values of a piece from the order of the file to row order.
    pub fn from_file(&self, piece: &Piece, values: Vec<f32>) -> Vec<f32> {
        if piece.is_transposed { transposed(&values, piece.rows) } else { values }
    }

    /// Number of elements, without pads and padding rows.
    pub fn count(&self) -> usize {
        self.pieces.iter().map(|piece| self.piece_shape(piece).iter().product::<usize>()).sum()
    }
}

/// The transpose of a matrix of `cols` columns.
fn transposed(values: &[f32], cols: usize) -> Vec<f32> {
    (0..cols).flat_map(|column| values.iter().skip(column).step_by(cols).copied()).collect()
}
