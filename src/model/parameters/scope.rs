//! Declaring parameters: paths, Hugging Face names, pieces and initial values.

use super::share::{Applies, Section, Split};
use super::{
    ExpertLora, FactorStack, Init, Linear, NormWeights, Piece, Place, ReorderedHeads, Role, RowGroups, Spec,
    Stack, UpdateRule,
};
use crate::element::Element;
use crate::model::config::{Family, LayerConfig, MixtureConfig, ModelConfig, Norm};
use crate::model::names::{ExpertFiles, MixtureNames, Names, XIELU_ALPHAS, XIELU_CONSTANTS};

/// A place where parameters are declared: the model or one of its layers. Paths and names are relative to it.
pub(super) struct Scope<'a, P> {
    /// The model.
    pub config: &'a ModelConfig,
    /// The names that its family gives parameters.
    pub names: &'static Names,
    make: &'a mut dyn FnMut(Spec) -> P,
    streams: &'a mut Streams,
    place: Place,
    /// Number of linear layers declared so far.
    linears: usize,
    path: String,
    name: String,
}

/// Number of random streams of initial values taken so far.
#[derive(Default)]
pub(super) struct Streams {
    of_model: u64,
    of_lora: u64,
}

/// The first stream of adapters.
const LORA_STREAM: u64 = 1 << 32;

/// The rows of a matrix, in pieces that files hold under separate names; padding rows between the pieces are zero.
pub(super) struct StackedRows {
    /// Name, first row and number of rows.
    pieces: Vec<(String, usize, usize)>,
    /// Number of rows as stored.
    stored: usize,
    /// First row and number of rows of each map that they stack: as the pieces, unless files have one name for all.
    maps: Vec<(usize, usize)>,
    /// How tensor-parallel ranks divide these rows, or the columns of their matrix.
    split: Option<Split>,
    /// The heads in the first pieces, if files order their dimensions differently, and the number of these pieces.
    heads: Option<(ReorderedHeads, usize)>,
    /// The groups of the first pieces, if files hold their rows group by group.
    groups: Vec<RowGroups>,
    /// The experts, if they are one piece.
    stack: Option<Stack>,
    /// Whether the names of pieces end with their kind, as in `.weight`.
    has_kind: bool,
}

impl<'a, P> Scope<'a, P> {
    /// The model itself.
    pub fn model(
        config: &'a ModelConfig,
        make: &'a mut dyn FnMut(Spec) -> P,
        streams: &'a mut Streams,
    ) -> Self {
        let names = Names::of_model(config);
        Self {
            config,
            names,
            make,
            streams,
            place: Place::Start,
            linears: 0,
            path: String::new(),
            name: String::new(),
        }
    }

    /// Declares the parameters that follow as read at `place`, outside of layers.
    pub fn at(&mut self, place: Place) -> &mut Self {
        self.place = place;
        self
    }

    /// Layer number `layer`; numbers from `num_layers` on are blocks of multi-token prediction.
    pub fn layer(&mut self, layer: usize) -> Scope<'_, P> {
        let path = match layer.checked_sub(self.config.num_layers) {
            None => format!("layers.{layer}."),
            Some(ahead) => format!("multi_token.{ahead}."),
        };
        let name = format!("{}.{layer}.", self.names.layers);
        Scope {
            config: self.config,
            names: self.names,
            make: &mut *self.make,
            streams: &mut *self.streams,
            place: Place::Layer(layer),
            linears: 0,
            path,
            name,
        }
    }

    /// The number of the layer; `None` outside of layers.
    fn layer_number(&self) -> Option<usize> {
        if let Place::Layer(layer) = self.place { Some(layer) } else { None }
    }

    /// What this layer may have otherwise than others.
    pub fn layer_config(&self) -> &'a LayerConfig {
        self.layer_number().map_or(&self.config.layer, |number| self.config.layer(number))
    }

    /// The heads of q and k in this layer; `None` if files hold their dimensions as they are.
    pub fn reordered_heads(&self) -> Option<ReorderedHeads> {
        ReorderedHeads::of(self.config, self.layer_config())
    }

    /// The mixture of experts of this layer, unless it is dense.
    pub fn mixture(&self) -> Option<&'a MixtureConfig> {
        self.config.mixture_of(self.layer_number()?)
    }

    /// A table (rows, D) under one name; embedding and head may have another width.
    pub fn table(&mut self, role: Role, path: &str, name: &str, rows: usize) -> P {
        let mut table = StackedRows::new([name], &[rows]);
        let is_of_vocabulary = matches!(role, Role::Embedding | Role::Head);
        if is_of_vocabulary {
            table = table.of_vocabulary();
        }
        let cols =
            self.config.embedding_width.filter(|_| is_of_vocabulary).unwrap_or(self.config.hidden_size);
        self.matrix(role, path, &table, cols, self.config.init_std)
    }

    /// The bias of the head.
    pub fn head_bias(&mut self, path: &str, name: &str) -> P {
        self.bias(path, &StackedRows::new([name], &[self.config.vocab_size]).of_vocabulary())
    }

    /// A matrix of `cols` columns, initialised with standard deviation `std`.
    pub fn matrix(&mut self, role: Role, path: &str, rows: &StackedRows, cols: usize, std: f64) -> P {
        let pieces = rows.pieces(&self.name, "weight");
        self.declare(role, path, [rows.stored, cols], Init::Normal(std), pieces, rows.split.clone())
    }

    /// The matrices of all experts, named as the family's files name those of a dense layer.
    pub fn experts(&mut self, experts: usize, path: &str, rows: &StackedRows, cols: usize, std: f64) -> P {
        let is_transposed = self.names.is_transposed;
        let is_stacked = matches!(MixtureNames::of(self.config).files, ExpertFiles::Stacked { .. });
        let stacked = is_stacked.then_some(experts);
        let pieces = rows.pieces(&self.name, "weight").into_iter();
        let pieces = pieces.map(|piece| Piece { is_transposed, stacked, ..piece }).collect();
        let (role, split) = (Role::ExpertStack { experts }, rows.split.clone());
        self.declare(role, path, [rows.stored, cols], Init::Normal(std), pieces, split)
    }

    /// The adapters of the matrices of `experts` experts at `path`, parameter `of` of their module, which are these
    /// `rows` of `cols` columns; `None` if the model does not adapt them.
    pub fn expert_lora(
        &mut self,
        experts: usize,
        (path, of): (&str, &str),
        rows: &StackedRows,
        cols: usize,
    ) -> Option<ExpertLora<P>> {
        let module = format!("{}{}", self.name, MixtureNames::of(self.config).module?);
        self.lora_of_experts(path, (&module, of), [rows.stored, cols], rows.factors(experts), &rows.split)
    }

    /// The biases of `experts` experts, a row of `cols` elements for each: under a name each, or one of all. Ranks
    /// divide them like the `rows` of the matrices.
    pub fn expert_biases(
        &mut self,
        path: &str,
        names: Vec<String>,
        rows: &StackedRows,
        [experts, cols]: [usize; 2],
    ) -> P {
        let is_divided = rows.split.as_ref().is_some_and(|split| !split.is_of_columns);
        let mut each = StackedRows::new(names, &vec![1; experts]);
        if let Some(stack) = rows.stack {
            each = each.stacked(stack);
        }
        if is_divided {
            let maps = &rows.maps[..rows.maps.len() / experts];
            each = each.of_column_ranges(maps);
        }
        let pieces = each.pieces(&self.name, "bias");
        self.declare(Role::ExpertBiases { experts }, path, [experts, cols], Init::Zeros, pieces, each.split)
    }

    /// The bias of a router's logits, in f32 as they are.
    pub fn router_bias(&mut self, path: &str, rows: &StackedRows) -> P {
        let pieces = rows.pieces(&self.name, "bias");
        let (shape, split) = ([1, rows.stored], rows.split.clone());
        self.declare_in(Element::F32, Role::Vector, path, shape, Init::Zeros, pieces, split)
    }

    /// A factor of each expert, whose ranks hold all of them; in f32, as the gates are. Files give it no kind.
    pub fn expert_scale(&mut self, path: &str, name: &str, experts: usize) -> P {
        let rows = StackedRows::new([name], &[experts]).repeated().without_kind();
        let pieces = rows.pieces(&self.name, "");
        self.declare_in(Element::F32, Role::Vector, path, [1, experts], Init::Ones, pieces, rows.split)
    }

    /// The weight of a norm over D to which files give no kind.
    pub fn bare_norm(&mut self, path: &str, name: &str) -> P {
        self.norm_of(path, &StackedRows::new([name], &[self.config.hidden_size]).of_tokens().without_kind())
    }

    /// A linear layer: its matrix at the first path and, if `has_bias`, its bias at the second, followed by its
    /// adapters. Transposed in the files of some families.
    pub fn linear(
        &mut self,
        [weight, bias]: [&str; 2],
        rows: &StackedRows,
        cols: usize,
        std: f64,
        has_bias: bool,
    ) -> Linear<P> {
        let is_transposed = self.names.is_transposed;
        let pieces = rows.pieces(&self.name, "weight").into_iter();
        let pieces: Vec<Piece> = pieces.map(|piece| Piece { is_transposed, ..piece }).collect();
        let (init, split) = (Init::Normal(std), rows.split.clone());
        Linear {
            weight: self.declare(Role::Matrix, weight, [rows.stored, cols], init, pieces.clone(), split),
            bias: has_bias.then(|| self.bias(bias, rows)),
            lora: self.lora(weight, &pieces, [rows.stored, cols], rows.split.as_ref()),
        }
    }

    /// A linear layer without a bias.
    pub fn unbiased(&mut self, path: &str, rows: &StackedRows, cols: usize, std: f64) -> Linear<P> {
        self.linear([path, ""], rows, cols, std, false)
    }

    /// A norm over D: its weight at the first path and, for a LayerNorm that has one, its bias at the second.
    pub fn norm(&mut self, [weight, bias]: [&str; 2], name: &str) -> NormWeights<P> {
        let width = self.config.hidden_size;
        NormWeights {
            weight: self.norm_weight(weight, name, width),
            bias: (self.config.norm == Norm::LayerNorm && self.config.norm_bias)
                .then(|| self.bias(bias, &StackedRows::new([name], &[width]).of_tokens())),
        }
    }

    /// The weight of a norm over `cols` elements.
    pub fn norm_weight(&mut self, path: &str, name: &str, cols: usize) -> P {
        self.norm_of(path, &StackedRows::new([name], &[cols]).of_tokens())
    }

    /// The weight of a norm over `cols` elements between products that tensor-parallel ranks divide.
    pub fn inner_norm_weight(&mut self, path: &str, name: &str, cols: usize) -> P {
        self.norm_of(path, &StackedRows::new([name], &[cols]).repeated())
    }

    /// The weight of a norm over the dimensions of `heads` heads of q or k.
    pub fn head_norm(&mut self, path: &str, name: &str, heads: usize) -> P {
        let rows = StackedRows::new([name], &[heads * self.layer_config().head_dim]).repeated();
        self.norm_of(path, &rows.with_heads(self.reordered_heads(), 1))
    }

    /// The bias of a norm over the dimensions of a head of q or k.
    pub fn head_norm_bias(&mut self, path: &str, name: &str) -> P {
        let rows = StackedRows::new([name], &[self.layer_config().head_dim]).repeated();
        self.bias(path, &rows.with_heads(self.reordered_heads(), 1))
    }

    /// The weights of the norms of `heads` heads of q or k. Files of Command R hold them as (heads, width), others as a
    /// tensor of each.
    pub fn norms_by_head(&mut self, path: &str, name: &str, heads: usize) -> P {
        let width = self.layer_config().head_dim;
        let order = self.reordered_heads();
        if self.config.family == Family::Cohere {
            let rows = StackedRows::new([name], &[heads * width]);
            let pieces = rows.pieces(&self.name, "weight").into_iter();
            let pieces = pieces.map(|piece| Piece { stacked: Some(heads), ..piece }).collect();
            return self.declare(Role::Vector, path, [1, heads * width], self.first_factors(), pieces, None);
        }
        let names = (0..heads).map(|head| format!("{name}.norms.{head}"));
        let rows = StackedRows::new(names, &vec![width; heads]).with_heads(order, heads);
        self.norm_of(path, &rows)
    }

    /// The norm of heads `cols` wide that multiplies by w, whatever the other norms do.
    pub fn plain_norm(&mut self, path: &str, name: &str, cols: usize) -> P {
        let pieces = StackedRows::new([name], &[cols]).pieces(&self.name, "weight");
        self.declare(Role::Vector, path, [1, cols], Init::Ones, pieces, None)
    }

    /// A convolution over `width` tokens of each of `channels` channels.
    pub fn convolution(&mut self, path: &str, name: &str, [width, channels]: [usize; 2]) -> P {
        let pieces = StackedRows::new([name], &[width]).pieces(&self.name, "weight").into_iter();
        let pieces = pieces.map(|piece| Piece { is_transposed: true, ..piece }).collect();
        let init = Init::Normal(self.config.init_std);
        self.declare(Role::Convolution, path, [width, channels], init, pieces, None)
    }

    /// A vector with a number for each of `heads` heads of linear attention. Files give it no kind.
    pub fn of_linear_heads(&mut self, path: &str, name: &str, heads: usize, init: Init) -> P {
        let pieces = StackedRows::new([name], &[heads]).without_kind().pieces(&self.name, "");
        self.declare(Role::Vector, path, [1, heads], init, pieces, None)
    }

    /// A number that files hold and nothing trains, 1 at first.
    pub fn constant(&mut self, path: &str, name: &str) -> P {
        let pieces = StackedRows::new([name], &[1]).without_kind().pieces(&self.name, "");
        self.declare(Role::Constant, path, [1, 1], Init::Ones, pieces, None)
    }

    /// The two learned numbers of an xIELU, and its two constants, all in f32, since curvatures are powers of them.
    /// Ranks that divide the network have one term of the numbers' gradient each. Files give them no kind, and the
    /// constants no dimensions.
    pub fn xielu(&mut self, paths: [&str; 2]) -> [P; 2] {
        let [alphas, constants] =
            [XIELU_ALPHAS, XIELU_CONSTANTS].map(|names| StackedRows::new(names, &[1; 2]).without_kind());
        let pieces = constants.pieces(&self.name, "").into_iter();
        let constant_pieces = pieces.map(|piece| Piece { is_scalar: true, ..piece }).collect();
        // The curvatures are 0.8 at first.
        let inverse_softplus = |value: f64| value.exp_m1().ln();
        let (beta, epsilon) = (0.5, -1e-6);
        let first = Init::Pair([0.8, 0.8 - beta].map(inverse_softplus));
        let alphas = alphas.repeated();
        let (alpha_pieces, split) = (alphas.pieces(&self.name, ""), alphas.split.clone());
        let (f32, shape, [path, constant_path]) = (Element::F32, [1, 2], paths);
        let fixed = Init::Pair([beta, epsilon]);
        [
            self.declare_in(f32, Role::Vector, path, shape, first, alpha_pieces, split),
            self.declare_in(f32, Role::Constant, constant_path, shape, fixed, constant_pieces, None),
        ]
    }

    /// The sinks of `heads` heads, which ranks divide like their queries. Files give them no kind.
    pub fn sinks(&mut self, path: &str, name: &str, heads: usize) -> P {
        let rows = StackedRows::new([name], &[heads]).divided(&[heads]).without_kind();
        let (pieces, init) = (rows.pieces(&self.name, ""), Init::Normal(self.config.init_std));
        self.declare(Role::Vector, path, [1, heads], init, pieces, rows.split)
    }

    /// The weight of a norm; where norms have none, a constant that no file holds.
    fn norm_of(&mut self, path: &str, rows: &StackedRows) -> P {
        let init = self.first_factors();
        let (role, pieces) = match self.config.norm_weight {
            true => (Role::Vector, rows.pieces(&self.name, "weight")),
            false => (Role::Constant, Vec::new()),
        };
        self.declare(role, path, [1, rows.stored], init, pieces, rows.split.clone())
    }

    /// The first weights of a norm.
    fn first_factors(&self) -> Init {
        if self.config.zero_centered_norms { Init::Zeros } else { Init::Ones }
    }

    /// A bias: one element for each row of a matrix. If it is added to a sum over ranks, each rank holds it whole.
    fn bias(&mut self, path: &str, rows: &StackedRows) -> P {
        let pieces = rows.pieces(&self.name, "bias");
        let split = rows.split.clone().filter(|split| !split.is_of_columns);
        self.declare(Role::Vector, path, [1, rows.stored], Init::Zeros, pieces, split)
    }

    /// The numbers of this layer and of its next linear layer. Those outside of layers count as of one more layer.
    pub fn next_place(&mut self) -> (usize, usize) {
        self.linears += 1;
        (self.layer_number().unwrap_or(self.config.num_layers), self.linears - 1)
    }

    pub fn declare(
        &mut self,
        role: Role,
        path: &str,
        shape: [usize; 2],
        init: Init,
        pieces: Vec<Piece>,
        split: Option<Split>,
    ) -> P {
        self.declare_in(self.compute(role), role, path, shape, init, pieces, split)
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of a spec")]
    pub(super) fn declare_in(
        &mut self,
        compute: Element,
        role: Role,
        path: &str,
        [rows, cols]: [usize; 2],
        init: Init,
        pieces: Vec<Piece>,
        split: Option<Split>,
    ) -> P {
        let path = format!("{}{path}", self.path);
        let is_lora = role.is_factor();
        let trains = is_lora || (self.config.low_rank.is_none() && role != Role::Constant);
        let (decays, group, rule) = (!role.is_vector(), 0, UpdateRule::Elementwise);
        let stream = self.streams.take(is_lora);
        let (share, place, is_copied) = (None, self.place, false);
        let spec = Spec {
            path,
            role,
            rows,
            cols,
            init,
            stream,
            pieces,
            trains,
            decays,
            group,
            rule,
            compute,
            split,
            share,
            place,
            is_copied,
        };
        (self.make)(spec)
    }
}

impl<P> Scope<'_, P> {
    /// The storage type in which layers read a parameter. Blocks of multi-token prediction are not quantised, since
    /// they read ranges of columns.
    fn compute(&self, role: Role) -> Element {
        let base = self.config.low_rank.as_ref().and_then(|low_rank| low_rank.base);
        let is_of_layer = self.layer_number().is_some_and(|layer| layer < self.config.num_layers);
        match role {
            // Scores decide which experts are chosen, so rounding them would change more than their last digits.
            Role::Router => Element::F32,
            Role::Matrix | Role::ExpertStack { .. } if is_of_layer => base.unwrap_or(self.config.compute),
            _ => self.config.compute,
        }
    }
}

impl Streams {
    fn take(&mut self, is_lora: bool) -> u64 {
        let (taken, first) = if is_lora { (&mut self.of_lora, LORA_STREAM) } else { (&mut self.of_model, 0) };
        *taken += 1;
        first + *taken - 1
    }
}

impl StackedRows {
    /// Pieces of these sizes, one after the other, with a name for each, or one name for all of them as a single piece.
    pub fn new<N: Into<String>>(names: impl IntoIterator<Item = N>, sizes: &[usize]) -> Self {
        Self::aligned(names, sizes, 1)
    }

    /// As [`new`](Self::new), with each piece padded to a multiple of `alignment` rows.
    pub fn aligned<N: Into<String>>(
        names: impl IntoIterator<Item = N>,
        sizes: &[usize],
        alignment: usize,
    ) -> Self {
        let mut stored = 0;
        let place = |&rows: &usize| {
            let first = stored;
            stored += rows.next_multiple_of(alignment);
            (first, rows)
        };
        let maps: Vec<(usize, usize)> = sizes.iter().map(place).collect();
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        let whole = [(0, sizes.iter().sum())];
        let places = if names.len() == 1 { &whole } else { maps.as_slice() };
        assert!(names.len() == places.len(), "{} names for {} pieces", names.len(), places.len());
        let pieces =
            names.into_iter().zip(places).map(|(name, &(first, rows))| (name, first, rows)).collect();
        let groups = Vec::new();
        Self { pieces, stored, maps, split: None, heads: None, groups, stack: None, has_kind: true }
    }

    /// Number of rows as stored.
    pub fn stored(&self) -> usize {
        self.stored
    }

    /// These rows, with each map divided among tensor-parallel ranks in the number of units in `units`; 1 if all ranks
    /// hold it whole.
    pub fn divided(self, units: &[usize]) -> Self {
        assert!(units.len() == self.maps.len(), "{} units for {} maps", units.len(), self.maps.len());
        let section = |(&(first, count), &units): (&(usize, usize), &usize)| Section { first, count, units };
        let sections = self.maps.iter().zip(units).map(section).collect();
        Self { split: Some(Split { applies: Applies::Always, is_of_columns: false, sections }), ..self }
    }

    /// These rows, held by all tensor-parallel ranks, each of which has one term of their gradient.
    pub fn repeated(self) -> Self {
        Self { split: Some(Split::whole(self.stored)), ..self }
    }

    /// These rows, of which ranks that share tokens have one term of the gradient each.
    pub fn of_tokens(self) -> Self {
        Self { split: Some(Split { applies: Applies::OfTokens, ..Split::whole(self.stored) }), ..self }
    }

    /// These rows, divided among the ranks that share the vocabulary.
    fn of_vocabulary(self) -> Self {
        let sections = vec![Section { first: 0, count: self.stored, units: self.stored }];
        let split = Split { applies: Applies::OfVocabulary, is_of_columns: false, sections };
        Self { split: Some(split), ..self }
    }

    /// These rows, of a matrix whose `count` columns tensor-parallel ranks divide in `units`.
    pub fn of_columns(self, count: usize, units: usize) -> Self {
        let sections = vec![Section { first: 0, count, units }];
        Self { split: Some(Split { applies: Applies::Always, is_of_columns: true, sections }), ..self }
    }

    /// These rows, of a matrix of whose columns tensor-parallel ranks divide each range, the first and the number, one
    /// by one.
    fn of_column_ranges(self, ranges: &[(usize, usize)]) -> Self {
        let section = |&(first, count): &(usize, usize)| Section { first, count, units: count };
        let sections = ranges.iter().map(section).collect();
        Self { split: Some(Split { applies: Applies::Always, is_of_columns: true, sections }), ..self }
    }

    /// These rows, with `heads` in the first `count` pieces.
    pub fn with_heads(self, heads: Option<ReorderedHeads>, count: usize) -> Self {
        Self { heads: heads.map(|heads| (heads, count)), ..self }
    }

    /// These rows, of whose first pieces files hold the rows in these `groups`.
    pub fn in_groups(self, groups: Vec<RowGroups>) -> Self {
        Self { groups, ..self }
    }

    /// These rows, those of all experts, whose files have one tensor of them, named without a kind.
    pub fn stacked(self, stack: Stack) -> Self {
        Self { stack: Some(stack), ..self.without_kind() }
    }

    /// These rows, whose names in files say all.
    pub fn without_kind(self) -> Self {
        Self { has_kind: false, ..self }
    }

    fn pieces(&self, prefix: &str, kind: &str) -> Vec<Piece> {
        let piece = |(index, (name, first_row, rows)): (usize, &(String, usize, usize))| Piece {
            name: if self.has_kind { format!("{prefix}{name}.{kind}") } else { format!("{prefix}{name}") },
            first_row: *first_row,
            rows: *rows,
            cols: None,
            is_transposed: false,
            is_scalar: false,
            heads: self.heads.filter(|(_, count)| index < *count).map(|(heads, _)| heads),
            groups: self.groups.get(index).copied(),
            stacked: None,
            stack: self.stack,
            factors: None,
        };
        self.pieces.iter().enumerate().map(piece).collect()
    }

    /// The order in files of the second factors of adapters of these rows, those of `experts` experts.
    fn factors(&self, experts: usize) -> FactorStack {
        let maps = &self.maps[..self.maps.len() / experts];
        let rows = maps[0].1;
        FactorStack {
            experts,
            maps: maps.len(),
            rows,
            pitch: maps.get(1).map_or(rows, |(first, _)| *first),
            is_interleaved: self.stack.is_some_and(|stack| stack.is_interleaved),
        }
    }
}
