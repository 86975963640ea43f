//! What may differ between the layers of a model.

use super::{Family, LinearAttention, ModelConfig, Positions, QueryScaling, RopeScaling};
use crate::ops::decode::Decode;
use crate::ops::heads::HeadLayout;
use crate::ops::qk_norm::Values;
use crate::ops::rope::{Rope, cos_sin_table};

/// What a layer has that other layers of its model may have otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerConfig {
    /// Key and value heads (G); each serves `num_heads / num_kv_heads` query heads.
    pub num_kv_heads: usize,
    /// Width of a head (C).
    pub head_dim: usize,
    /// Where values come from, and whether they are normalised. Only with QK-norm of single heads, before the rotation,
    /// are they not plain.
    pub values: Values,
    /// The earlier layer whose keys and values this one reads, of heads like its own, instead of computing any; `None`:
    /// it has its own. Not with heads that are normalised together.
    pub kv_source: Option<usize>,
    /// Inner width of the feed-forward network (F), unless experts take its place.
    pub intermediate_size: usize,
    /// Sliding window: a token attends to this many tokens, itself included; `None`: to all tokens before it. At most
    /// `seq_length` - 1, since a wider window masks nothing.
    pub sliding_window: Option<usize>,
    /// A window of at least `seq_length` tokens that the configuration asks for. It masks nothing here, but it does
    /// when an exported model reads longer texts; see [`ModelConfig::published_window`].
    pub wide_window: Option<usize>,
    /// Whether q and k rotate, in a model whose positions are rotary.
    pub rotates: bool,
    /// Base of the rotary frequencies θ^(-2i/d).
    pub rope_theta: f64,
    /// Scaling of the rotary frequencies for longer contexts.
    pub rope_scaling: RopeScaling,
    /// Dimensions of a head that rotate; even, at most `head_dim`.
    pub rotary_dim: usize,
    /// Whether rotary pairs are interleaved, (2i, 2i+1), instead of halves, (i, i + d/2).
    pub rotary_interleaved: bool,
    /// How queries grow with their position; `None`: they do not. Whole heads rotate then.
    pub query_scaling: Option<QueryScaling>,
    /// Whether queries are projected from the rows of a learned table, by position, instead of from the layer's input
    /// (PanGu-α, Zeng et al. 2021, section 2.2). The last norm then comes before this layer instead of before the head.
    /// Only the last layer can be one.
    pub has_query_table: bool,
    /// Whether the softmax of each head has a learned logit beside the scores (a sink).
    pub has_sinks: bool,
    /// What mixes its tokens.
    pub mixer: Mixer,
}

/// What mixes the tokens of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mixer {
    /// Attention by softmax.
    Softmax,
    /// Linear attention, whose heads are its own.
    Linear(LinearAttention),
    /// A gated short convolution, as in LFM2.
    Convolution {
        /// Tokens that it sees (W), from 2 on.
        width: usize,
    },
}

/// A rotary embedding, with everything that its table of angles depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotary {
    /// Pairing and frequencies.
    pub rope: Rope,
    /// Scaling of the frequencies.
    pub scaling: RopeScaling,
    /// How queries grow with their position.
    pub queries: Option<QueryScaling>,
}

impl Rotary {
    /// Columns of the table of angles.
    pub fn table_cols(&self) -> u32 {
        self.rope.table_cols(self.queries.as_ref())
    }

    /// The table of angles of the first `positions` positions, padding included.
    pub fn table(&self, positions: u32) -> Vec<f32> {
        cos_sin_table(positions, &self.rope, &self.scaling, self.queries.as_ref())
    }
}

/// The layer whose keys and values layer number `number` reads where the layers from `first` on have none, as in Gemma
/// 4: the last one that has and `slides`, or not, like it.
pub(crate) fn kv_source(number: usize, first: usize, slides: impl Fn(usize) -> bool) -> Option<usize> {
    let is_like = |other: &usize| slides(*other) == slides(number);
    (0..first).rev().find(is_like).filter(|_| number >= first)
}

impl LayerConfig {
    /// Whether the layer has attention by softmax.
    pub(crate) fn has_softmax(&self) -> bool {
        self.mixer == Mixer::Softmax
    }

    /// Its linear attention, if it has that.
    pub(crate) fn linear(&self) -> Option<LinearAttention> {
        if let Mixer::Linear(linear) = self.mixer { Some(linear) } else { None }
    }

    /// Tokens that its convolution sees, if it has one.
    pub(crate) fn convolution(&self) -> Option<usize> {
        if let Mixer::Convolution { width } = self.mixer { Some(width) } else { None }
    }

    /// The window, whether or not it masks anything in the sequences that are read.
    pub fn window(&self) -> Option<usize> {
        self.sliding_window.or(self.wide_window)
    }
}

impl ModelConfig {
    /// Layer number `number`, counted from 0. Blocks of multi-token prediction, from `num_layers` on, are not among
    /// `other_layers`.
    pub fn layer(&self, number: usize) -> &LayerConfig {
        let is_of = |(_, numbers): &&(LayerConfig, Vec<usize>)| numbers.binary_search(&number).is_ok();
        self.other_layers.iter().find(is_of).map_or(&self.layer, |(other, _)| other)
    }

    /// Each kind of layers with their number, blocks of multi-token prediction included.
    pub(crate) fn layer_kinds(&self) -> impl Iterator<Item = (&LayerConfig, usize)> {
        let depth = self.multi_token.map_or(0, |multi_token| multi_token.depth);
        let others = self.other_layers.iter().map(|(other, numbers)| (other, numbers.len()));
        let count = others.clone().map(|(_, count)| count).sum();
        let rest = (self.num_layers + depth).saturating_sub(count);
        std::iter::once((&self.layer, rest)).chain(others).filter(|(_, count)| *count > 0)
    }

    /// The model with every layer changed by `change`.
    pub fn with_layers(mut self, change: impl Fn(&mut LayerConfig)) -> Self {
        let others = self.other_layers.iter_mut().map(|(other, _)| other);
        std::iter::once(&mut self.layer).chain(others).for_each(change);
        self
    }

    /// The model with each layer changed by `change`, which is given the layer's number. `layer` stays as it is, also
    /// where no layer is like it any more.
    pub fn with_each_layer(self, change: impl Fn(usize, &mut LayerConfig)) -> Self {
        let mut other_layers: Vec<(LayerConfig, Vec<usize>)> = Vec::new();
        for number in 0..self.num_layers {
            let mut layer = *self.layer(number);
            change(number, &mut layer);
            match other_layers.iter_mut().find(|(other, _)| *other == layer) {
                Some((_, numbers)) => numbers.push(number),
                None if layer == self.layer => {}
                None => other_layers.push((layer, vec![number])),
            }
        }
        Self { other_layers, ..self }
    }

    /// The model whose last layer has the queries of a learned table.
    pub(crate) fn with_query_table(self) -> Self {
        let last = self.num_layers.saturating_sub(1);
        self.with_each_layer(|number, layer| layer.has_query_table = number == last)
    }

    /// Whether some layers have linear attention.
    pub(crate) fn has_linear_attention(&self) -> bool {
        self.layer_kinds().any(|(layer, _)| layer.linear().is_some())
    }

    /// Whether some layers have a gated short convolution instead of attention.
    pub(crate) fn has_convolutions(&self) -> bool {
        self.layer_kinds().any(|(layer, _)| layer.convolution().is_some())
    }

    /// Whether the queries of a layer come from a learned table.
    pub(crate) fn learns_queries(&self) -> bool {
        self.other_layers.iter().any(|(other, _)| other.has_query_table)
    }

    /// The sizes of attention in layer number `number` for decoding against a cache.
    pub fn decode(&self, number: usize) -> Decode {
        let layer = self.layer(number);
        Decode {
            layout: self.head_layout(layer),
            tokens: self.seq_length as u32,
            scale: self.softmax_scale(layer),
            soft_cap: self.score_cap.map(|cap| cap as f32),
            window: layer.sliding_window.map(|window| window as u32),
            has_alibi: self.positions == Positions::Alibi,
        }
    }

    /// The model reading windows of `tokens` tokens, or of as many as it has positions if these are fewer.
    pub fn with_window(&self, tokens: usize) -> Self {
        let tokens = tokens.min(self.max_positions);
        Self { seq_length: tokens, ..self.clone() }.with_layers(|layer| {
            let window = layer.window();
            layer.sliding_window = window.filter(|window| *window < tokens);
            layer.wide_window = window.filter(|window| *window >= tokens);
        })
    }

    /// The model for texts of up to `tokens` tokens, in windows of as many: the rotation may depend on their length.
    pub fn for_texts_of(&self, tokens: usize) -> Self {
        let model = self.with_window(tokens);
        let tokens = model.seq_length;
        model.with_layers(|layer| layer.rope_scaling = layer.rope_scaling.of_texts(tokens))
    }

    /// The most tokens of a text that is judged or continued: as many as there are positions, or as rotate alike. Where
    /// longer texts rotate otherwise, so would the keys of their first tokens, which a cache holds.
    pub fn longest_text(&self) -> usize {
        let alike = self.layer_kinds().filter_map(|(layer, _)| layer.rope_scaling.alike_up_to());
        alike.fold(self.max_positions, usize::min)
    }

    /// What limits [`longest_text`](Self::longest_text), in words.
    pub fn limit_of_texts(&self) -> &'static str {
        match self.longest_text() < self.max_positions {
            true => "the tokens up to which all texts rotate alike (rope_scaling)",
            false => "the positions of the model",
        }
    }

    /// The window of a layer for the most positions that the model is made for, which may be more than the run's
    /// sequences have. One that masks nothing even then is still what layers are known by that have a rotation of their
    /// own, share keys and values, or have sinks, but for gpt-oss, whose layers all have them.
    pub fn published_window(&self, layer: &LayerConfig) -> Option<usize> {
        let tells_by_sinks = layer.has_sinks && self.family != Family::GptOss;
        let are_told_apart = || tells_by_sinks || self.has_own_heads() || self.kv_readers() > 0;
        let counts =
            |window: &usize| *window < self.max_positions || self.has_own_rotation(layer) || are_told_apart();
        layer.sliding_window.or(layer.wide_window.filter(counts))
    }

    /// The heads that `layer` computes from its input, and what becomes of their values. Where keys and values are
    /// those of another layer, these are the queries alone.
    pub(crate) fn own_heads(&self, layer: &LayerConfig) -> (HeadLayout, Values) {
        let layout = self.head_layout(layer);
        match layer.kv_source {
            None => (layout, layer.values),
            Some(_) => (layout.of_queries(), Values::Plain),
        }
    }

    /// Whether later layers read the keys and values of layer number `number`.
    pub(crate) fn is_kv_source(&self, number: usize) -> bool {
        self.other_layers.iter().any(|(other, _)| other.kv_source == Some(number))
    }

    /// Number of layers that read the keys and values of others.
    pub(crate) fn kv_readers(&self) -> usize {
        self.layer_kinds().filter(|(layer, _)| layer.kv_source.is_some()).map(|(_, count)| count).sum()
    }

    /// Whether some layers have other heads than the keys of the model say of all layers.
    pub(crate) fn has_own_heads(&self) -> bool {
        let heads = |layer: &LayerConfig| (layer.num_kv_heads, layer.head_dim, layer.values);
        let kinds = || self.layer_kinds().map(|(layer, _)| heads(layer));
        kinds().zip(kinds().skip(1)).any(|(one, next)| one != next)
    }

    /// Whether `layer` rotates otherwise than the keys of the model say of all layers.
    pub(crate) fn has_own_rotation(&self, layer: &LayerConfig) -> bool {
        self.rotary(layer).zip(self.rotary(&self.layer)).is_some_and(|(own, usual)| own != usual)
    }

    /// The rotary embedding of layer number `number`; `None` without one.
    pub fn rope(&self, number: usize) -> Option<Rope> {
        self.rope_of(self.layer(number))
    }

    /// The rotary embeddings of all layers, each once.
    pub fn rotaries(&self) -> Vec<Rotary> {
        let mut all = Vec::new();
        for rotary in self.layer_kinds().filter_map(|(layer, _)| self.rotary(layer)) {
            if !all.contains(&rotary) {
                all.push(rotary);
            }
        }
        all
    }

    /// The rotary embedding of `layer`; `None` without one.
    pub fn rotary(&self, layer: &LayerConfig) -> Option<Rotary> {
        let LayerConfig { rope_scaling: scaling, query_scaling: queries, .. } = *layer;
        Some(Rotary { rope: self.rope_of(layer)?, scaling, queries })
    }

    /// The rotary embedding of `layer`, without its scaling; `None` without one.
    pub(crate) fn rope_of(&self, layer: &LayerConfig) -> Option<Rope> {
        (self.positions == Positions::Rotary && layer.rotates).then_some(Rope {
            rotary_dim: layer.rotary_dim as u32,
            theta: layer.rope_theta,
            is_interleaved: layer.rotary_interleaved,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::Sizes;

    fn llama(num_layers: usize) -> ModelConfig {
        let sizes = Sizes {
            vocab_size: 64,
            hidden_size: 64,
            num_heads: 4,
            intermediate_size: 128,
            ..Sizes::default()
        };
        ModelConfig::llama(Sizes { num_layers, seq_length: 32, ..sizes })
    }

    /// A window as long as the sequences that are read hides nothing, and is kept for longer ones.
    #[test]
    fn a_window_slides_where_more_is_read() {
        let short = ModelConfig { max_positions: 128, ..llama(2) };
        let short = short.with_each_layer(|number, layer| layer.wide_window = (number == 1).then_some(64));
        let windows = |config: &ModelConfig| {
            let LayerConfig { sliding_window, wide_window, .. } = *config.layer(1);
            assert_eq!(config.layer(0).window(), None);
            (config.seq_length, sliding_window, wide_window)
        };
        let long = short.with_window(100);
        assert_eq!(windows(&long), (100, Some(64), None));
        assert_eq!(windows(&long.with_window(64)), (64, None, Some(64)));
        assert_eq!(windows(&short.with_window(1000)), (128, Some(64), None));
    }

    /// Layers that are alike are one kind, whatever is between them.
    #[test]
    fn kinds_hold_all_layers() {
        let plain = llama(7);
        assert_eq!(plain.layer_kinds().collect::<Vec<_>>(), [(&plain.layer, 7)]);
        let set = |number: usize, layer: &mut LayerConfig| {
            layer.sliding_window = number.is_multiple_of(2).then_some(9);
            layer.rope_theta = if number == 3 { 7.0 } else { layer.rope_theta };
        };
        let model = plain.clone().with_each_layer(set);
        let counts: Vec<usize> = model.layer_kinds().map(|(_, count)| count).collect();
        assert_eq!((counts, model.other_layers.len()), (vec![2, 4, 1], 2));
        for number in 0..7 {
            let mut want = plain.layer;
            set(number, &mut want);
            assert_eq!(*model.layer(number), want);
        }
        assert_eq!(model.clone().with_each_layer(|_, layer| *layer = plain.layer), plain);
        let changed = model.with_each_layer(|_, layer| layer.rope_theta = 3.0);
        assert_eq!(changed.layer_kinds().map(|(_, count)| count).collect::<Vec<_>>(), [4, 3]);
    }
}
