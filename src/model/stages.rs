//! The layers that each stage of a pipeline holds.
//!
//! A stage may hold several *chunks* of layers that are not neighbours (interleaves). Chunks are numbered (interleave,
//! stage), and layers fill them in this order, with the blocks of multi-token prediction last. The first chunk embeds
//! the tokens; the last one has the norm, the head and the losses.

use super::parameters::{Place, Spec};
use std::ops::Range;

/// One number for each chunk, by interleave and stage.
pub(crate) type Chunks = Vec<Vec<usize>>;

/// The layers of each chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stages {
    layers: Chunks,
}

/// The part of the model that a recording computes: consecutive layers, and the parts before the first and after the
/// last layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The layers, blocks of multi-token prediction among them.
    pub layers: Range<usize>,
    /// Whether the chunk embeds the tokens; otherwise its rows come from the previous stage.
    pub is_first: bool,
    /// Whether the losses follow the chunk; otherwise its rows go to the next stage.
    pub is_last: bool,
}

impl Stages {
    /// Stages whose chunks have `layers` layers each; all interleaves must have the same number of stages.
    pub(crate) fn new(layers: Chunks) -> Self {
        Self { layers }
    }

    /// All layers in one stage.
    pub fn one(layers: usize) -> Self {
        Self::new(vec![vec![layers]])
    }

    /// Checks that these stages can be trained, if the last `ahead` layers are blocks of multi-token prediction.
    ///
    /// # Errors
    /// A chunk between the first and the last without a layer; blocks that are not all in the last chunk.
    pub(crate) fn check(&self, ahead: usize) -> Result<(), String> {
        let chunks: Vec<usize> = self.layers.iter().flatten().copied().collect();
        let inner = chunks.len().saturating_sub(1).max(1);
        if chunks[1..inner].contains(&0) {
            return Err(format!("leaves a stage between others without a layer: {:?}", self.layers));
        }
        match chunks.last() {
            Some(last) if *last < ahead => Err(format!(
                "leaves the last stage {last} layers, and it needs the {ahead} blocks of multi-token prediction"
            )),
            _ => Ok(()),
        }
    }

    /// Checks that each layer is in the chunk of the layer whose keys and values it reads, which `source` tells.
    ///
    /// # Errors
    /// A layer that is not.
    pub(crate) fn check_sources(&self, source: impl Fn(usize) -> Option<usize>) -> Result<(), String> {
        let mut first = 0;
        for end in self.accumulated().into_iter().flatten() {
            for layer in first..end {
                if let Some(source) = source(layer).filter(|source| *source < first) {
                    return Err(format!(
                        "puts layer {layer} on another stage than layer {source}, whose keys and values it reads; write \
                         fewer stages, or an `offset` that keeps them together"
                    ));
                }
            }
            first = end;
        }
        Ok(())
    }

    /// The layers of each chunk.
    pub(crate) fn layers(&self) -> &Chunks {
        &self.layers
    }

    /// Number of stages.
    pub fn stages(&self) -> usize {
        self.layers.first().map_or(0, Vec::len)
    }

    /// Number of chunks per stage.
    pub fn interleaves(&self) -> usize {
        self.layers.len()
    }

    /// Number of layers up to the end of each chunk.
    pub(crate) fn accumulated(&self) -> Chunks {
        let mut end = 0;
        let mut add = |layers: &usize| {
            end += layers;
            end
        };
        self.layers.iter().map(|row| row.iter().map(&mut add).collect()).collect()
    }

    /// The first layers of each chunk, `counts` of them, by number: the layers that MindFormers recomputes.
    pub(crate) fn first(&self, counts: &Chunks) -> Vec<usize> {
        let chunks = self.layers.iter().flatten().zip(self.accumulated().into_iter().flatten());
        let counts = counts.iter().flatten();
        chunks.zip(counts).flat_map(|((layers, end), count)| end - layers..end - layers + count).collect()
    }

    /// The chunks of stage number `stage`, in the order of their layers.
    pub fn chunks(&self, stage: usize) -> Vec<Chunk> {
        let (stages, interleaves) = (self.stages(), self.interleaves());
        let of_interleave = |(interleave, ends): (usize, Vec<usize>)| {
            let end = ends[stage];
            Chunk {
                layers: end - self.layers[interleave][stage]..end,
                is_first: stage == 0 && interleave == 0,
                is_last: stage + 1 == stages && interleave + 1 == interleaves,
            }
        };
        self.accumulated().into_iter().enumerate().map(of_interleave).collect()
    }

    /// The part of a parameter that stage number `stage` holds: all of it or nothing. A parameter that other stages
    /// hold too is marked.
    pub(crate) fn held(&self, stage: usize, spec: Spec) -> Option<Spec> {
        if self.stages() == 1 {
            return Some(spec);
        }
        let is_held = self.chunks(stage).iter().any(|chunk| chunk.holds(spec.place));
        is_held.then(|| Spec { is_copied: spec.place == Place::Ends, ..spec })
    }
}

impl Chunk {
    /// The whole model, of `layers` layers.
    pub fn whole(layers: usize) -> Self {
        Self { layers: 0..layers, is_first: true, is_last: true }
    }

    /// Whether the chunk reads parameters at `place`.
    fn holds(&self, place: Place) -> bool {
        match place {
            Place::Start => self.is_first,
            Place::Layer(layer) => self.layers.contains(&layer),
            Place::End => self.is_last,
            Place::Ends => self.is_first || self.is_last,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_fill_the_chunks_in_order() {
        let stages = Stages::new(vec![vec![4, 5], vec![5, 0]]);
        let chunk = |layers, is_first, is_last| Chunk { layers, is_first, is_last };
        assert_eq!(stages.chunks(0), [chunk(0..4, true, false), chunk(9..14, false, false)]);
        assert_eq!(stages.chunks(1), [chunk(4..9, false, false), chunk(14..14, false, true)]);
        assert_eq!(Stages::one(6).chunks(0), [Chunk::whole(6)]);
    }

    #[test]
    fn layers_are_beside_those_whose_keys_they_read() {
        let source = |layer: usize| (layer >= 2).then_some(layer % 2);
        assert_eq!(Stages::one(5).check_sources(source), Ok(()));
        assert_eq!(Stages::new(vec![vec![0, 5]]).check_sources(source), Ok(()));
        let parted = Stages::new(vec![vec![1, 2], vec![1, 1]]).check_sources(source);
        let line = "puts layer 2 on another stage than layer 0, whose keys and values it reads; write fewer stages, or an \
                    `offset` that keeps them together";
        assert_eq!(parted, Err(line.to_string()));
    }

    #[test]
    fn every_parameter_is_on_one_stage_and_a_tied_embedding_on_both_ends() {
        use crate::model::parameters::{Gpt, tests::mixture_example};
        for is_tied in [false, true] {
            let mut config = mixture_example();
            config.tie_word_embeddings = is_tied;
            let ahead = config.multi_token.map_or(0, |ahead| ahead.depth);
            let stages = Stages::new(vec![vec![1, 0, config.num_layers - 1 + ahead]]);
            for spec in Gpt::describe(&config) {
                let on: Vec<usize> =
                    (0..3).filter(|&stage| stages.held(stage, spec.clone()).is_some()).collect();
                let is_shared = spec.path == "embedding" && (is_tied || ahead > 0);
                assert_eq!(on.len(), if is_shared { 2 } else { 1 }, "{} on {on:?}", spec.path);
                assert!(
                    on.iter().all(|&stage| stages.held(stage, spec.clone()).unwrap().is_copied == is_shared)
                );
            }
        }
    }
}
