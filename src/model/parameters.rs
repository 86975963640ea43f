//! The one list of a model's parameters.
//!
//! [`Gpt<P>`] has a slot for each parameter, in the order in which the model uses them. With [`Spec`]s in the slots it
//! says what to make; with [`Parameter`](crate::tape::Parameter)s it is what the model runs on. Initialisation, arena
//! layout, decay groups, checkpoint names and counting all walk this list.

use super::config::ModelConfig;
use crate::element::stride_of;

/// A Llama-shaped GPT, one `P` for each parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpt<P> {
    /// (V, D)
    pub embedding: P,
    /// The layers.
    pub blocks: Vec<Block<P>>,
    /// (D)
    pub norm: P,
    /// (V, D); `None` if the head is the embedding.
    pub head: Option<P>,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Block<P> {
    /// (D)
    pub attention_norm: P,
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
    pub ffn_norm: P,
    /// (2·stride of F, D): gate, then up, each padded with zero rows to a multiple of 4.
    pub w_gate_up: P,
    /// (D, F)
    pub w_down: P,
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
    pub rule: Rule,
    /// Whether it may be split at whole rows where one binding cannot hold it.
    pub may_split: bool,
    /// The tensors a checkpoint knows it by.
    pub pieces: Vec<Piece>,
}

/// How a parameter is updated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
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

/// A range of rows of a parameter, under the name Hugging Face's Llama gives it.
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
}

impl<P> Gpt<P> {
    /// Every parameter turned into a `Q`, in order; the first error ends it.
    pub fn try_map<Q, E>(self, f: &mut impl FnMut(P) -> Result<Q, E>) -> Result<Gpt<Q>, E> {
        Ok(Gpt {
            embedding: f(self.embedding)?,
            blocks: self.blocks.into_iter().map(|block| block.try_map(f)).collect::<Result<_, E>>()?,
            norm: f(self.norm)?,
            head: self.head.map(&mut *f).transpose()?,
        })
    }

    /// Calls `f` on every parameter, in order.
    pub fn visit<'a>(&'a self, f: &mut impl FnMut(&'a P)) {
        f(&self.embedding);
        self.blocks.iter().for_each(|block| block.visit(f));
        f(&self.norm);
        self.head.iter().for_each(f);
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
            wqkv: f(self.wqkv)?,
            bqkv: self.bqkv.map(&mut *f).transpose()?,
            q_norm: self.q_norm.map(&mut *f).transpose()?,
            k_norm: self.k_norm.map(&mut *f).transpose()?,
            wo: f(self.wo)?,
            ffn_norm: f(self.ffn_norm)?,
            w_gate_up: f(self.w_gate_up)?,
            w_down: f(self.w_down)?,
        })
    }

    fn visit<'a>(&'a self, f: &mut impl FnMut(&'a P)) {
        f(&self.attention_norm);
        f(&self.wqkv);
        [&self.bqkv, &self.q_norm, &self.k_norm].into_iter().flatten().for_each(&mut *f);
        f(&self.wo);
        f(&self.ffn_norm);
        f(&self.w_gate_up);
        f(&self.w_down);
    }
}

impl Gpt<Spec> {
    /// The parameters of a model of that shape.
    ///
    /// Matrices start normal with `init_std`; those that write into the residual stream (wo, w_down) with
    /// `init_std / sqrt(2 L)`, so that the stream's variance does not grow with depth (Radford et al., GPT-2, 2019).
    pub fn describe(config: &ModelConfig) -> Self {
        let width = config.hidden_size;
        let table = |path: &str, name: &str| Spec {
            may_split: true,
            ..matrix(path, config.vocab_size, width, config.init_std, vec![whole(name, config.vocab_size)])
        };
        Self {
            embedding: table("embedding", "model.embed_tokens.weight"),
            blocks: (0..config.num_layers).map(|layer| Block::describe(config, layer)).collect(),
            norm: norm("norm".into(), "model.norm.weight".into(), width),
            head: (!config.tie_word_embeddings).then(|| table("head", "lm_head.weight")),
        }
    }
}

impl Block<Spec> {
    fn describe(config: &ModelConfig, layer: usize) -> Self {
        let ModelConfig { hidden_size: width, intermediate_size: inner, head_dim, init_std: std, .. } =
            *config;
        let (q_rows, kv_rows) = (config.num_heads * head_dim, config.num_kv_heads * head_dim);
        let path = |name: &str| format!("layers.{layer}.{name}");
        let name = |name: &str| format!("model.layers.{layer}.{name}");
        let qkv = |kind: &str| {
            let piece = |of: &str, first_row, rows| Piece {
                name: name(&format!("self_attn.{of}_proj.{kind}")),
                first_row,
                rows,
                is_vector: false,
            };
            vec![piece("q", 0, q_rows), piece("k", q_rows, kv_rows), piece("v", q_rows + kv_rows, kv_rows)]
        };
        let residual_std = std / (2.0 * config.num_layers as f64).sqrt();
        let inner_stride = stride_of(inner as u32) as usize;
        let half = |of: &str, first_row| Piece {
            first_row,
            ..whole(&name(&format!("mlp.{of}_proj.weight")), inner)
        };
        let gate_up = vec![half("gate", 0), half("up", inner_stride)];
        let wo = vec![whole(&name("self_attn.o_proj.weight"), width)];
        let w_down = vec![whole(&name("mlp.down_proj.weight"), width)];
        let head_norm = |of: &str| {
            config.qk_norm.then(|| {
                norm(
                    path(&format!("attention.{of}_norm")),
                    name(&format!("self_attn.{of}_norm.weight")),
                    head_dim,
                )
            })
        };
        Self {
            attention_norm: norm(path("attention_norm"), name("input_layernorm.weight"), width),
            wqkv: matrix(&path("attention.wqkv"), q_rows + 2 * kv_rows, width, std, qkv("weight")),
            bqkv: config.qkv_bias.then(|| bias(path("attention.bqkv"), qkv("bias"))),
            q_norm: head_norm("q"),
            k_norm: head_norm("k"),
            wo: matrix(&path("attention.wo"), width, q_rows, residual_std, wo),
            ffn_norm: norm(path("ffn_norm"), name("post_attention_layernorm.weight"), width),
            w_gate_up: matrix(&path("feed_forward.w_gate_up"), 2 * inner_stride, width, std, gate_up),
            w_down: matrix(&path("feed_forward.w_down"), width, inner, residual_std, w_down),
        }
    }
}

fn whole(name: &str, rows: usize) -> Piece {
    Piece { name: name.to_string(), first_row: 0, rows, is_vector: false }
}

fn matrix(path: &str, rows: usize, cols: usize, std: f64, pieces: Vec<Piece>) -> Spec {
    let init = Init::Normal(std);
    Spec {
        path: path.into(),
        rows,
        cols,
        init,
        decays: true,
        trains: true,
        group: 0,
        rule: Rule::AdamW,
        may_split: false,
        pieces,
    }
}

fn norm(path: String, name: String, cols: usize) -> Spec {
    let pieces = vec![Piece { name, first_row: 0, rows: 1, is_vector: true }];
    vector(path, cols, Init::Ones, pieces)
}

/// A bias is one row; its pieces are ranges of columns, counted in `first_row` and `rows` all the same.
fn bias(path: String, pieces: Vec<Piece>) -> Spec {
    let cols = pieces.iter().map(|piece| piece.rows).sum();
    let pieces = pieces.into_iter().map(|piece| Piece { is_vector: true, ..piece }).collect();
    vector(path, cols, Init::Zeros, pieces)
}

fn vector(path: String, cols: usize, init: Init, pieces: Vec<Piece>) -> Spec {
    Spec { decays: false, init, ..matrix(&path, 1, cols, 0.0, pieces) }
}

impl Spec {
    /// Whether its rows are looked up by token id: embedding and head.
    pub fn is_table(&self) -> bool {
        ["embedding", "head"].contains(&self.path.as_str())
    }

    /// Shape of a piece as files hold it.
    pub fn piece_shape(&self, piece: &Piece) -> Vec<usize> {
        match piece.is_vector {
            true if self.pieces.len() == 1 => vec![self.cols],
            true => vec![piece.rows],
            false => vec![piece.rows, self.cols],
        }
    }

    /// The stored ranges of a piece, in the order of the file: (row, first column, columns).
    pub fn piece_rows<'a>(&'a self, piece: &'a Piece) -> impl Iterator<Item = (usize, usize, usize)> + 'a {
        let (rows, first, cols) = match piece.is_vector {
            true if self.pieces.len() > 1 => (0..1, piece.first_row, piece.rows),
            true => (0..1, 0, self.cols),
            false => (piece.first_row..piece.first_row + piece.rows, 0, self.cols),
        };
        rows.map(move |row| (row, first, cols))
    }

    /// Numbers that mean something: pads and padding rows do not count.
    pub fn count(&self) -> usize {
        self.pieces.iter().map(|piece| self.piece_shape(piece).iter().product::<usize>()).sum()
    }
}
