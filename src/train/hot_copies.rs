//! Copies of hot experts on ranks that spread experts, and their exchanges.
//!
//! Hot experts are those that most tokens choose, so their rows stay where the tokens are: every rank has a *slot* for
//! each of them, with its matrices as layers read them, and a gradient. Everything else of an expert is only at its
//! home, the rank that holds it, hot or cold: master weights, moments, and the tensors that are saved. So norm,
//! clipping, overflow, the optimizer and checkpoints count it once, and when an expert becomes hot or cold, only data
//! moves that is copied anyway.
//!
//! | when | what is exchanged | then |
//! |---|---|---|
//! | in the last micro-batch, as soon as a layer's are complete | the sum of the slots' gradients over the data ranks | the update begins by adding it to the homes' gradients, which are the sums over their replicas |
//! | after an update, and after weights were loaded | the slots, of which each rank fills what it updates and leaves zeros in the others, as a sum of words | which is the weights of the experts that are hot now, bit by bit |
//!
//! The capacities on the device, which are the same on all ranks, say which experts are hot (`ops/hot_experts.rs`):
//! gradients go home by the capacities that the step ran with, weights go out by those that follow it.

use crate::element::Element;
use crate::kernels::Limits;
use crate::model::ExpertState;
use crate::model::arena::{Arena, ArenaLayout, Part};
use crate::model::config::ModelConfig;
use crate::model::parameters::{Experts, Gpt, Spec};
use crate::ops::hot_copies::{HomeRange, Slots, hot_copies, hot_copies_backward};
use crate::ops::hot_experts::HotLast;
use crate::ops::permute::HotAndCold;
use crate::ops::zero::zero;
use crate::ranks::Group;
use crate::ranks::sharding::ownership::Ownership;
use crate::record::{BufferId, Collective, PersistentId, Persistents, Recorder, Span, Tensor};
use crate::tape::Parameter;

/// The copies that a rank has.
#[derive(Clone, Debug)]
pub struct HotCopies {
    two: HotAndCold,
    layers: Vec<LayerCopies>,
    /// The first expert that this rank holds.
    first_expert: u32,
}

/// The copies of a layer.
#[derive(Clone, Debug)]
struct LayerCopies {
    layer: usize,
    capacities: Tensor,
    stacks: Experts<StackCopies>,
}

/// The copies of a stack of matrices, in as many tensors as bindings require. A bias is a matrix of one row.
#[derive(Clone, Debug)]
struct StackCopies {
    /// The number of the stack among the parameters of the layout.
    parameter: usize,
    weights: Vec<Slots>,
    /// `None` if the stack is frozen.
    gradients: Option<Vec<Slots>>,
}

impl HotCopies {
    /// Adds the copies to `persistents`, for `model` as this rank computes it. Its layers read the parameters of
    /// `layout` from `read`. `None` if experts are not spread or none is hot.
    pub(super) fn new(
        model: &ModelConfig,
        (layout, read): (&ArenaLayout, &Arena),
        experts: Option<&ExpertState>,
        ownership: &Ownership,
        limits: &Limits,
        persistents: &mut Persistents,
    ) -> Option<Self> {
        let (experts, ranks) = (experts?, ownership.expert_ranks()?);
        let (two, _) = experts.hot_and_cold()?;
        // Each parameter of the model as its number among the parameters that this rank's stage holds.
        let mut numbered = Gpt::declare(model, &mut |declared| {
            layout.parameters.iter().position(|(spec, _)| spec.path == declared.path)
        });
        let mut stack = |parameter: usize| {
            let (spec, parts) = &layout.parameters[parameter];
            let mut slots = |name: &str, element| {
                slots(persistents, &format!("{name} of hot {}", spec.path), spec, element, two.hot, limits)
            };
            StackCopies {
                parameter,
                weights: slots("copies", read.element(parts[0].segment)),
                gradients: spec.trains.then(|| slots("gradients", Element::F32)),
            }
        };
        let mixtures = numbered.mixtures();
        let held = mixtures.filter(|(_, mixture)| mixture.experts.all().all(Option::is_some));
        let layers = held.filter_map(|(layer, mixture)| {
            let stacks = mixture.experts.map(|parameter| stack(parameter.expect("held")));
            Some(LayerCopies { layer, capacities: experts.capacities(layer)?, stacks })
        });
        let first_expert = ranks.place as u32 * (experts.experts() / ranks.size());
        Some(Self { two, layers: layers.collect(), first_expert })
    }

    /// Number of hot experts.
    pub(crate) fn count(&self) -> u32 {
        self.two.hot
    }

    /// Rows of a micro-batch that stay on this rank in each layer.
    pub(crate) fn rows(&self) -> u32 {
        self.two.hot_rows()
    }

    /// Makes the mixtures of `gpt` use these copies.
    pub(super) fn attach(&self, gpt: &mut Gpt<Parameter>) {
        for (layer, mixture) in gpt.mixtures() {
            let copies = self.layers.iter().find(|copies| copies.layer == layer);
            mixture.copies = copies.map(|copies| copies.stacks.map(StackCopies::parameter));
        }
    }

    /// Sums the gradients of the copies over the data ranks, each layer's as soon as the last micro-batch has added to
    /// them.
    pub(super) fn sum_gradients(&self, rec: &mut Recorder, ownership: &Ownership) {
        for LayerCopies { layer, stacks, .. } in &self.layers {
            let slots = stacks.all().flat_map(|stack| stack.gradients.iter().flatten());
            let spans: Vec<Span> = slots.map(|slots| Span::of(&slots.matrices)).collect();
            if !spans.is_empty() {
                let label = format!("hot_copies.gradients.{layer}");
                rec.exchange_once_complete(&label, Collective::sum(spans), &ownership.ranks.data_group());
            }
        }
    }

    /// Adds the sums to the part of the experts' `gradients` that this rank updates.
    pub(super) fn add_gradients(
        &self,
        rec: &mut Recorder,
        (layout, gradients): (&ArenaLayout, &Arena),
        ownership: &Ownership,
    ) {
        let trains = |copies: &&LayerCopies| copies.stacks.all().any(|stack| stack.gradients.is_some());
        for LayerCopies { layer, capacities, stacks } in self.layers.iter().filter(trains) {
            rec.scope(format!("hot_copies.{layer}"), |rec| {
                let last = HotLast::new(rec, *capacities, &self.two);
                for stack in stacks.all().filter(|stack| stack.gradients.is_some()) {
                    let slots = stack.gradients.iter().flatten();
                    for home in self.homes(&layout.parameters[stack.parameter], layout, gradients, ownership)
                    {
                        slots.clone().for_each(|slots| hot_copies_backward(rec, slots, &last, &home));
                    }
                }
            });
        }
    }

    /// Fills the copies with the weights that layers `read`.
    pub(super) fn fill(
        &self,
        rec: &mut Recorder,
        (layout, read): (&ArenaLayout, &Arena),
        ownership: &Ownership,
    ) {
        for LayerCopies { layer, capacities, stacks } in &self.layers {
            rec.scope(format!("hot_copies.{layer}"), |rec| {
                let last = HotLast::new(rec, *capacities, &self.two);
                for stack in stacks.all() {
                    stack.weights.iter().for_each(|slots| zero(rec, as_floats(slots.matrices)));
                    for home in self.homes(&layout.parameters[stack.parameter], layout, read, ownership) {
                        stack.weights.iter().for_each(|slots| hot_copies(rec, &home, &last, slots));
                    }
                }
                // Each element of a trained stack is on one rank of a block, of a frozen stack on one rank of an expert
                // group.
                let groups = [(true, ownership.shards.block()), (false, ownership.ranks.expert_group())];
                for (trains, group) in groups {
                    let stacks = stacks.all().filter(|stack| stack.gradients.is_some() == trains);
                    let slots = stacks.flat_map(|stack| &stack.weights);
                    let words =
                        slots.map(|slots| Span { element: Element::U32, ..Span::of(&slots.matrices) });
                    exchange_words(rec, words.collect(), &group);
                }
            });
        }
    }

    /// The buffers of the copies' gradients.
    pub(super) fn gradient_buffers(&self) -> impl Iterator<Item = PersistentId> + '_ {
        self.stacks().flat_map(|stack| buffers(stack.gradients.iter().flatten()))
    }

    /// The buffers of the copies and of their gradients.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = PersistentId> + '_ {
        self.gradient_buffers().chain(self.stacks().flat_map(|stack| buffers(&stack.weights)))
    }

    fn stacks(&self) -> impl Iterator<Item = &StackCopies> {
        self.layers.iter().flat_map(|copies| copies.stacks.all())
    }

    /// The ranges of a stack of experts in `arena` that this rank updates, or holds if the stack is frozen.
    fn homes(
        &self,
        (spec, parts): &(Spec, Vec<Part>),
        layout: &ArenaLayout,
        arena: &Arena,
        ownership: &Ownership,
    ) -> Vec<HomeRange> {
        let matrix = rows_of_matrix(spec);
        let of_part = |part: &Part| {
            let own = match spec.trains {
                true => ownership.updated(layout, part.segment),
                false => vec![layout.segments[part.segment].whole()],
            };
            let all = part.offset..part.offset + part.elements(spec);
            let shared = own.into_iter().map(|own| own.start.max(all.start)..own.end.min(all.end));
            let home = |range: std::ops::Range<u64>| HomeRange {
                elements: arena.range(part.segment, range.clone()),
                start: range.start - part.offset,
                first_expert: self.first_expert + (part.first_row / matrix) as u32,
            };
            shared.filter(|range| !range.is_empty()).map(home).collect::<Vec<_>>()
        };
        parts.iter().flat_map(of_part).collect()
    }
}

impl StackCopies {
    fn parameter(&self) -> Parameter {
        let tensors = |slots: &Vec<Slots>| slots.iter().map(|slots| slots.matrices).collect();
        Parameter { weight: tensors(&self.weights), gradient: self.gradients.as_ref().map(tensors) }
    }
}

/// Sums words over the ranks. For each word, only one rank has a value other than zero.
fn exchange_words(rec: &mut Recorder, words: Vec<Span>, group: &Group) {
    if !words.is_empty() {
        rec.exchange("weights", Collective::sum(words), group);
    }
}

/// Rows of one expert's matrix in a stack of this rank.
fn rows_of_matrix(spec: &Spec) -> usize {
    let experts = spec.role.stacked_experts();
    spec.rows / experts.unwrap_or_else(|| panic!("{} is no stack of experts", spec.path))
}

/// `hot` matrices like those of the stack `spec`, in tensors that bindings can hold in f32.
fn slots(
    persistents: &mut Persistents,
    label: &str,
    spec: &Spec,
    element: Element,
    hot: u32,
    limits: &Limits,
) -> Vec<Slots> {
    let rows = rows_of_matrix(spec) as u32;
    let matrix = 4 * u64::from(rows) * u64::from(spec.stride());
    let most = (limits.binding_bytes.min(limits.buffer_bytes) / matrix).clamp(1, hot.into()) as u32;
    let mut of_part = |first: u32| {
        let count = most.min(hot - first);
        let tensor = |buffer| Tensor::new(buffer, 0, count * rows, spec.cols as u32, element);
        let bytes = tensor(BufferId::Persistent(PersistentId(0))).bytes().next_multiple_of(FLOATS);
        let id = persistents.add(format!("{label}, from {first}"), bytes);
        Slots { matrices: tensor(BufferId::Persistent(id)), first, count }
    };
    (0..hot).step_by(most as usize).map(&mut of_part).collect()
}

/// Bytes of the groups of floats that kernels write.
const FLOATS: u64 = 16;

/// A whole buffer of slots of any type, as a row of floats.
fn as_floats(matrices: Tensor) -> Tensor {
    let floats = (matrices.bytes().next_multiple_of(FLOATS) / 4) as u32;
    Tensor::new(matrices.buffer, matrices.offset, 1, floats, Element::F32)
}

fn buffers<'a>(slots: impl IntoIterator<Item = &'a Slots>) -> impl Iterator<Item = PersistentId> {
    slots.into_iter().filter_map(|slots| slots.matrices.buffer.persistent())
}
