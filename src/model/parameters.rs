//! The one list of a model's parameters.
//!
//! [`Gpt<P>`] has a slot for each parameter, in the order in which the model uses them. With [`Spec`]s in the slots it
//! says what to make; with [`Parameter`](crate::tape::Parameter)s it is what the model runs on. Initialisation, arena
//! layout, decay groups, checkpoint names and counting all walk this list.

mod feed_forward;
mod multi_token;

pub use feed_forward::{DenseFeedForward, FeedForward, Mixture, Shared};
pub use multi_token::MultiTokenBlock;

/// A GPT shaped like Llama or GPT-2, one `P` for each parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpt<P> {
    /// (V, D)
    pub embedding: P,
    /// (positions, D), where they are learned.
    pub positions: Option<P>,
    /// The layers.
    pub blocks: Vec<Block<P>>,
    /// (D)
    pub norm: P,
    /// (D), with LayerNorm.
    pub norm_bias: Option<P>,
    /// (V, D); `None` if the head is the embedding.
    pub head: Option<P>,
    /// What predicts tokens further ahead, the nearest first.
    pub multi_token: Vec<MultiTokenBlock<P>>,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Block<P> {
    /// (D)
    pub attention_norm: P,
    /// (D), with LayerNorm.
    pub attention_norm_bias: Option<P>,
    /// ((H + 2 G)·C, D): q, k and v, one product.
    pub wqkv: P,
    /// ((H + 2 G)·C)
    pub bqkv: Option<P>,
    /// (C), shared by all query heads.
    pub q_norm: Option<P>,
    /// (C), shared by all key heads.
    pub k_norm: Option<P>,
    /// (D, H·C)
    pub wo: P,
    /// (D)
    pub bo: Option<P>,
    /// (D)
    pub ffn_norm: P,
    /// (D), with LayerNorm.
    pub ffn_norm_bias: Option<P>,
    /// A dense network, or experts.
    pub feed_forward: FeedForward<P>,
}

/// What a parameter is.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Its place in the model: `layers.0.attention.wqkv`.
    pub path: String,
    /// Rows as stored.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// What it starts with.
    pub init: Init,
    /// Whether weight decay applies: matrices yes, norms and biases no.
    pub decays: bool,
    /// Whether it has a gradient.
    pub trains: bool,
    /// The parameter group, which has a learning rate and a weight decay of its own; 0 for what no pattern names.
    pub group: usize,
    /// How it is updated.
    pub rule: UpdateRule,
    /// Where one binding cannot hold it, it may be split at multiples of so many rows; `None`: it must not be. A table or
    /// head is split at multiples of 4, so that the logits of a part start at whole groups, a stack of experts between
    /// experts.
    pub split_rows: Option<usize>,
    /// The tensors a checkpoint knows it by.
    pub pieces: Vec<Piece>,
}

/// How a parameter is updated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum UpdateRule {
    /// Element by element, with two moments.
    #[default]
    AdamW,
    /// As a matrix whose update is made orthogonal, with one moment.
    Muon,
}

/// What a parameter starts with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Normal, mean 0, of this standard deviation.
    Normal(f64),
    /// All ones.
    Ones,
    /// All zeros.
    Zeros,
}

/// A range of rows of a parameter, under the name Hugging Face gives it.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// `model.layers.0.self_attn.q_proj.weight`
    pub name: String,
    /// Its first row.
    pub first_row: usize,
    /// Its rows.
    pub rows: usize,
    /// Whether files hold it as a vector.
    pub is_vector: bool,
    /// Whether files hold it as (columns, rows).
    pub is_transposed: bool,
}

impl<P> Gpt<P> {
    /// Every parameter turned into a `Q`, in order; the first error ends it.
    pub fn try_map<Q, E>(self, f: &mut impl FnMut(P) -> Result<Q, E>) -> Result<Gpt<Q>, E> {
        Ok(Gpt {
            embedding: f(self.embedding)?,
            positions: self.positions.map(&mut *f).transpose()?,
            blocks: self.blocks.into_iter().map(|block| block.try_map(f)).collect::<Result<_, E>>()?,
            norm: f(self.norm)?,
            norm_bias: self.norm_bias.map(&mut *f).transpose()?,
            head: self.head.map(&mut *f).transpose()?,
            multi_token: self
                .multi_token
                .into_iter()
                .map(|block| block.try_map(f))
                .collect::<Result<_, E>>()?,
        })
    }

    /// Calls `f` on every parameter, in order.
    pub fn visit<'a>(&'a self, f: &mut impl FnMut(&'a P)) {
        f(&self.embedding);
        self.positions.iter().for_each(&mut *f);
        self.blocks.iter().for_each(|block| block.visit(f));
        f(&self.norm);
        self.norm_bias.iter().for_each(&mut *f);
        self.head.iter().for_each(&mut *f);
        self.multi_token.iter().for_each(|block| block.visit(f));
    }

    /// Every parameter, in order.
    pub fn list(&self) -> Vec<&P> {
        let mut all = Vec::new();
        self.visit(&mut |parameter| all.push(parameter));
        all
    }
}

impl<P> Block<P> {
    fn try_map<Q, E>(self, f: &mut impl FnMut(P) -> Result<Q, E>) -> Result<Block<Q>, E> {
        Ok(Block {
            attention_norm: f(self.attention_norm)?,
            attention_norm_bias: self.attention_norm_bias.map(&mut *f).transpose()?,
            wqkv: f(self.wqkv)?,
            bqkv: self.bqkv.map(&mut *f).transpose()?,
            q_norm: self.q_norm.map(&mut *f).transpose()?,
            k_norm: self.k_norm.map(&mut *f).transpose()?,
            wo: f(self.wo)?,
            bo: self.bo.map(&mut *f).transpose()?,
            ffn_norm: f(self.ffn_norm)?,
            ffn_norm_bias: self.ffn_norm_bias.map(&mut *f).transpose()?,
            feed_forward: self.feed_forward.try_map(f)?,
        })
    }

    fn visit<'a>(&'a self, f: &mut impl FnMut(&'a P)) {
        f(&self.attention_norm);
        self.attention_norm_bias.iter().for_each(&mut *f);
        f(&self.wqkv);
        [&self.bqkv, &self.q_norm, &self.k_norm].into_iter().flatten().for_each(&mut *f);
        f(&self.wo);
        self.bo.iter().for_each(&mut *f);
        f(&self.ffn_norm);
        self.ffn_norm_bias.iter().for_each(&mut *f);
        self.feed_forward.visit(f);
    }
}

impl Spec {
    /// Whether its rows are looked up, by token id or position: embedding, positions and head.
    pub fn is_table(&self) -> bool {
        ["embedding", "positions", "head"].contains(&self.path.as_str())
    }

    /// Whether its rows score one by one what they are multiplied with: routers, and what gates a shared expert.
    pub fn is_router(&self) -> bool {
        self.path.ends_with(".router") || self.path.ends_with(".shared.gate")
    }

    /// Shape of a piece as files hold it.
    pub fn piece_shape(&self, piece: &Piece) -> Vec<usize> {
        match piece.is_vector {
            true if self.pieces.len() == 1 => vec![self.cols],
            true => vec![piece.rows],
            false if piece.is_transposed => vec![self.cols, piece.rows],
            false => vec![piece.rows, self.cols],
        }
    }

    /// The stored ranges of a piece, row by row: (row, first column, columns). Files have this order too, but for a
    /// piece that is transposed.
    pub fn piece_rows<'a>(&'a self, piece: &'a Piece) -> impl Iterator<Item = (usize, usize, usize)> + 'a {
        let (rows, first, cols) = match piece.is_vector {
            true if self.pieces.len() > 1 => (0..1, piece.first_row, piece.rows),
            true => (0..1, 0, self.cols),
            false => (piece.first_row..piece.first_row + piece.rows, 0, self.cols),
        };
        rows.map(move |row| (row, first, cols))
    }

    /// The numbers of a piece, given row by row, in the order of the file.
    pub fn to_file(&self, piece: &Piece, values: Vec<f32>) -> Vec<f32> {
        if piece.is_transposed { transposed(&values, self.cols) } else { values }
    }

    /// The numbers of a piece, given in the order of the file, row by row.
    pub fn from_file(&self, piece: &Piece, values: Vec<f32>) -> Vec<f32> {
        if piece.is_transposed { transposed(&values, piece.rows) } else { values }
    }

    /// Numbers that mean something: pads and padding rows do not count.
    pub fn count(&self) -> usize {
        self.pieces.iter().map(|piece| self.piece_shape(piece).iter().product::<usize>()).sum()
    }
}

/// The transpose of a matrix of `cols` columns.
fn transposed(values: &[f32], cols: usize) -> Vec<f32> {
    (0..cols).flat_map(|column| values.iter().skip(column).step_by(cols).copied()).collect()
}
