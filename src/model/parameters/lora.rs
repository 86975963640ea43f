//! The parameters of low-rank adapters.
//!
//! A `Linear` may have a `Lora`: the factors A and B of the published projections that its matrix stacks, or of some of
//! them. `Scope::linear` declares them, so any projection declared by it can have one without further code. `Experts` may
//! have an `ExpertLora` of each stack: PEFT adapts gate and up of an expert as one matrix (`target_parameters`). With
//! adapters every other parameter is frozen. The random streams of adapters are numbered separately, so the model of a
//! seed is the same with and without them.
//!
//! The adapters of q, k and v, and of gate and up, share a dropout mask, since one product computes them. A pattern
//! that names a fused projection (`query_key_value`) gives each projection an adapter of its own, as in PEFT. A starts
//! uniform in ±1/√in, as in MindFormers and PEFT; `lora_a_init: normal`, which MindFormers does not pass on to most
//! layers, is respected. Under Muon adapters stay with AdamW: a factor alone is not a map.

use super::scope::Scope;
use super::share::{Applies, Section, Split};
use super::spec::{FactorStack, Init, Piece, Role};
use crate::element::Element;
use crate::model::config::{FactorInit, LowRank, Magnitudes};
use crate::model::names::EXPERT_PARAMETERS;
use crate::tape::LowRankMap;

/// The adapters of a linear layer of k adapted maps, which are stacked: one product with all A, then one with each B.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora<P> {
    /// (sum of padded r, in): r rows for each map, then zeros.
    pub a: P,
    /// (outs, largest r): the rows of all maps, one after the other, each of r columns, then zeros.
    pub b: P,
    /// The factor of all products, 1 where maps have factors of their own.
    pub scale: f32,
    /// The maps, in the order of the rows of B.
    pub maps: Vec<LowRankMap>,
    /// (1, all rows of the layer's matrix): the magnitudes of its columns, 0 where no map is adapted.
    pub magnitudes: Option<P>,
    /// Number of the layer, for dropout.
    pub layer: usize,
    /// Number of the linear layer within its layer, for dropout.
    pub place: usize,
}

/// The adapters of a matrix of each of E experts.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertLora<P> {
    /// (E·r, in), expert by expert.
    pub a: P,
    /// (E·out, r), with as many rows as the stack that is adapted.
    pub b: P,
    /// The factor of the products.
    pub scale: f32,
}

impl<P> ExpertLora<P> {
    /// Both factors, with each value replaced by the result of `of`.
    pub(super) fn map<Q>(&self, of: &mut impl FnMut(&P) -> Q) -> ExpertLora<Q> {
        ExpertLora { a: of(&self.a), b: of(&self.b), scale: self.scale }
    }
}

/// What PEFT calls the magnitudes of an adapted module.
pub(crate) const MAGNITUDES: &str = "lora_magnitude_vector";

/// The prefix that PEFT puts before the name of a module.
pub(crate) const PEFT_PREFIX: &str = "base_model.model.";

/// The name of a matrix's module; `name` without `.weight`.
pub fn module_of(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

/// The module whose factor has the name `name`.
pub(crate) fn adapted_module(name: &str) -> Option<&str> {
    let (module, _) = name.strip_prefix(PEFT_PREFIX)?.rsplit_once(".lora_")?;
    Some(module)
}

impl<P> Scope<'_, P> {
    /// The adapters of the linear layer at `path`, whose matrix (`rows`, `cols`) has these pieces and is divided by
    /// `split`; `None` if the model adapts none of them.
    pub(super) fn lora(
        &mut self,
        path: &str,
        pieces: &[Piece],
        [rows, cols]: [usize; 2],
        split: Option<&Split>,
    ) -> Option<Lora<P>> {
        let (layer, place) = self.next_place();
        let low_rank = self.config.low_rank.as_ref()?;
        let is_adapted = |piece: &&Piece| low_rank.modules.contains(module_of(&piece.name));
        let adapted: Vec<&Piece> = pieces.iter().filter(is_adapted).collect();
        if adapted.is_empty() {
            return None;
        }
        let name = |piece: &Piece| module_of(&piece.name).to_string();
        let ranks: Vec<usize> = adapted.iter().map(|piece| low_rank.rank_of(&name(piece))).collect();
        let scales: Vec<f32> = adapted.iter().map(|piece| low_rank.scale_of(&name(piece)) as f32).collect();
        let is_common = scales.iter().all(|scale| *scale == scales[0]);
        let map = |(piece, (rank, scale)): (&&Piece, (&usize, &f32))| LowRankMap {
            first: piece.first_row as u32,
            count: piece.rows as u32,
            rank: *rank as u32,
            factor: (!is_common).then_some(*scale),
        };
        let maps = adapted.iter().zip(ranks.iter().zip(&scales)).map(map).collect();
        let scale = if is_common { scales[0] } else { 1.0 };
        let most = ranks.iter().copied().max().unwrap_or(0);
        let (a, b) = (a_pieces(&ranks, &adapted), b_pieces(&ranks, &adapted));
        let a_rows = ranks.iter().map(|rank| rank.next_multiple_of(4)).sum();
        let b_rows = adapted.iter().map(|piece| piece.rows).sum();
        let init = first_factor(low_rank, most, cols);
        // The factor on the side that is not divided is whole, and each rank has one term of its gradient.
        let [of_a, of_b] = match split {
            None => [None, None],
            Some(split) if split.is_of_columns => [Some(split.clone()), Some(Split::whole(b_rows))],
            Some(split) => [Some(Split::whole(a_rows)), Some(split_of_b(split, &adapted))],
        };
        let b_shape = [b_rows, most];
        let magnitudes = (low_rank.magnitudes != Magnitudes::None).then(|| magnitude_pieces(&adapted));
        Some(Lora {
            a: self.declare(Role::Lora, &format!("{path}.lora_a"), [a_rows, cols], init, a, of_a),
            b: self.declare(Role::Lora, &format!("{path}.lora_b"), b_shape, Init::Zeros, b, of_b),
            scale,
            maps,
            magnitudes: magnitudes.map(|pieces| {
                let path = format!("{path}.lora_magnitudes");
                self.declare_in(Element::F32, Role::Magnitudes, &path, [1, rows], Init::Ones, pieces, None)
            }),
            layer,
            place,
        })
    }
}

impl<P> Scope<'_, P> {
    /// The adapters of the parameter `of` of `module`, at `path`: the matrices of all experts, of `rows` x `cols` in
    /// all, divided by `split`. `factors` is the order of B in files. `None` if the model does not adapt them.
    pub(super) fn lora_of_experts(
        &mut self,
        path: &str,
        (module, of): (&str, &str),
        [rows, cols]: [usize; 2],
        factors: FactorStack,
        split: &Option<Split>,
    ) -> Option<ExpertLora<P>> {
        let low_rank = self.config.low_rank.as_ref()?;
        let wrapped = wrapped_experts(low_rank, module, of)?;
        let FactorStack { experts, .. } = factors;
        let name = format!("{module}.{of}");
        let (rank, role) = (low_rank.rank_of(&name), Role::ExpertLora { experts });
        let a_rows = experts * rank;
        // As of a single matrix.
        let [of_a, of_b] = match split {
            None => [None, None],
            Some(split) if split.is_of_columns => [Some(split.clone()), Some(Split::whole(rows))],
            Some(split) => [Some(Split::whole(a_rows)), Some(split.clone())],
        };
        let piece = |factor: &str, rows: usize| Piece {
            name: format!("{PEFT_PREFIX}{wrapped}.lora_{factor}.weight"),
            ..Piece::plain(rows)
        };
        let (a, b) = (piece("A", a_rows), Piece { factors: Some(factors), ..piece("B", rows) });
        let init = first_factor(low_rank, rank, cols);
        Some(ExpertLora {
            a: self.declare(role, &format!("{path}.lora_a"), [a_rows, cols], init, vec![a], of_a),
            b: self.declare(role, &format!("{path}.lora_b"), [rows, rank], Init::Zeros, vec![b], of_b),
            scale: low_rank.scale_of(&name) as f32,
        })
    }
}

/// The name that PEFT gives the wrapper of the parameter `of` of the experts' `module`: the last parameter that is
/// adapted has the outermost wrapper, the module's name, and each earlier one is a layer further in. `None` if it is not
/// adapted.
pub(crate) fn wrapped_experts(low_rank: &LowRank, module: &str, of: &str) -> Option<String> {
    let is_adapted = |of: &&str| low_rank.parameters.contains(&format!("{module}.{of}"));
    let mut adapted = EXPERT_PARAMETERS.into_iter().rev().filter(is_adapted);
    let depth = adapted.position(|own| own == of)?;
    Some(format!("{module}{}", BASE_LAYER.repeat(depth)))
}

/// PEFT's name of what a wrapper wraps.
pub(crate) const BASE_LAYER: &str = ".base_layer";

/// Initial values of A, which has `rank` rows of `cols` elements.
fn first_factor(low_rank: &LowRank, rank: usize, cols: usize) -> Init {
    match low_rank.init {
        FactorInit::HeUniform => Init::Uniform(1.0 / (cols as f64).sqrt()),
        FactorInit::Normal => Init::Normal(0.01),
        FactorInit::Gaussian => Init::Normal(1.0 / rank as f64),
    }
}

fn a_pieces(ranks: &[usize], adapted: &[&Piece]) -> Vec<Piece> {
    let mut first_row = 0;
    let piece = |(base, rank): (&&Piece, &usize)| {
        let padded = rank.next_multiple_of(4);
        first_row += padded;
        Piece { name: factor_name(base, "A"), first_row: first_row - padded, ..Piece::plain(*rank) }
    };
    adapted.iter().zip(ranks).map(piece).collect()
}

/// How the rows of B are divided; they are the rows of the `adapted` pieces, one after the other.
fn split_of_b(split: &Split, adapted: &[&Piece]) -> Split {
    let mut start = 0;
    let of_piece = |piece: &&Piece| {
        let own = piece.first_row..piece.first_row + piece.rows;
        let is_own = |section: &&Section| own.contains(&section.first);
        let first = start;
        start += piece.rows;
        let moved = |section: &Section| Section { first: first + section.first - own.start, ..*section };
        split.sections.iter().filter(is_own).map(moved).collect::<Vec<Section>>()
    };
    Split {
        applies: Applies::Always,
        is_of_columns: false,
        sections: adapted.iter().flat_map(of_piece).collect(),
    }
}

/// The columns of the magnitudes are the outputs of the whole matrix.
fn magnitude_pieces(adapted: &[&Piece]) -> Vec<Piece> {
    let piece = |base: &&Piece| Piece {
        name: format!("{PEFT_PREFIX}{}.{MAGNITUDES}", module_of(&base.name)),
        first_row: base.first_row,
        heads: base.heads,
        groups: base.groups,
        ..Piece::plain(base.rows)
    };
    adapted.iter().map(piece).collect()
}

/// The rows of B are the outputs of its map, so files order them like the map's rows.
fn b_pieces(ranks: &[usize], adapted: &[&Piece]) -> Vec<Piece> {
    let (mut first_row, most) = (0, ranks.iter().max());
    let piece = |(base, rank): (&&Piece, &usize)| {
        first_row += base.rows;
        Piece {
            name: factor_name(base, "B"),
            first_row: first_row - base.rows,
            cols: Some(*rank).filter(|_| most != Some(rank)),
            heads: base.heads,
            groups: base.groups,
            ..Piece::plain(base.rows)
        }
    };
    adapted.iter().zip(ranks).map(piece).collect()
}

fn factor_name(base: &Piece, factor: &str) -> String {
    format!("{PEFT_PREFIX}{}.lora_{factor}.weight", module_of(&base.name))
}
