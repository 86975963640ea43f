//! The conditions that shaders test with `@if(...)`.

use crate::element::Element;

macro_rules! conditions {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// A condition that a shader may test with `@if(...)`. Any other name in a shader is a composition error, so a
        /// misspelt condition cannot silently drop code.
        ///
        /// The variants are ordered by name, as a [`Kernel`](super::Kernel) lists them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Condition {
            $($(#[$doc])* $variant,)*
        }

        impl Condition {
            /// Every condition.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The condition's name in shaders, listings and dumps.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

conditions! {
    /// The left factor of a product is stored transposed: (K, M).
    ATransposed = "a_transposed",
    /// The result is added to the contents of its tensor.
    Accumulate = "accumulate",
    /// A loss also reports which targets have the largest logit.
    Accuracy = "accuracy",
    /// Scores of attention fall with the distance between query and key (ALiBi).
    Alibi = "alibi",
    /// The right factor of a product is stored transposed: (N, K).
    BTransposed = "b_transposed",
    /// A router's gradient includes that of its balance losses.
    Balance = "balance",
    /// Elements are bfloat16.
    Bf16 = "bf16",
    /// A bias is added: to a product, or to the scores by which experts are chosen.
    Bias = "bias",
    /// Each expert has a capacity of its own, read from a tensor.
    Capacities = "capacities",
    /// Scores of attention, or logits, have a soft cap.
    Capped = "capped",
    /// A token attends to itself and earlier tokens only.
    Causal = "causal",
    /// The activation of a gate is the clamped form of SwiGLU.
    ClampedGate = "clamped_gate",
    /// Weights of attention are dropped.
    Dropout = "dropout",
    /// Sequences end at rows that a tensor names, and what follows them counts for nothing.
    Ended = "ended",
    /// GELU by the error function instead of tanh.
    Exact = "exact",
    /// Elements are IEEE half precision.
    F16 = "f16",
    /// Elements are 32-bit floats.
    F32 = "f32",
    /// GELU by the logistic function.
    Fast = "fast",
    /// A pass over tokens also writes the state after the last one.
    FinalState = "final_state",
    /// A product's result is the activated gate times up; a convolution has gates before and after it.
    Gated = "gated",
    /// A product also writes GELU of its result.
    Gelu = "gelu",
    /// The activation of a gate is GELU instead of SiLU.
    GeluGate = "gelu_gate",
    /// A product multiplies its result by the slope of GELU.
    GeluSlope = "gelu_slope",
    /// The kernel computes a gradient: of parameters, which is f32 whatever the elements are, of a head, or of gates.
    Gradient = "gradient",
    /// Experts are chosen from the best groups only.
    GroupLimited = "group_limited",
    /// Rows are sorted by expert, and each expert has its own matrix, bias or sum.
    Grouped = "grouped",
    /// Experts are taken in an order that puts the hot ones last.
    HotLast = "hot_last",
    /// The right factor of a product is quantised to bytes.
    Int8 = "int8",
    /// Half precision is widened in integers, because the adapter widens wrongly; only with `f16`.
    IntegerWidening = "integer_widening",
    /// Rotary pairs are neighbours.
    Interleaved = "interleaved",
    /// The gradients of attention's keys and values are left in parts, one for each of several groups of query heads.
    KeyParts = "key_parts",
    /// Values are the keys before their norm, normalised too.
    KeyValues = "key_values",
    /// Attention also writes the largest score of each query.
    Logits = "logits",
    /// The product of low-rank factors is added to a matrix.
    LowRank = "low_rank",
    /// Half precision is converted by the adapter's own instructions; only with `f16`.
    NativeF16 = "native_f16",
    /// The right factor of a product is quantised to 4-bit codes of a normal distribution.
    Nf4 = "nf4",
    /// The left factor of a product is normalised when it is loaded; or columns are divided by the norms of rows.
    Normed = "normed",
    /// Ranks share the columns of a row, and the partial results of all of them are given.
    Parts = "parts",
    /// Before a kernel gathers, it prefetches from addresses common to all lanes.
    Prefetched = "prefetched",
    /// A kernel's input is a range of wider rows.
    Ranged = "ranged",
    /// The activation is ReLU instead of GELU.
    Relu = "relu",
    /// A residual is added to the result.
    Residual = "residual",
    /// A cache holds the last tokens of a sequence in a ring.
    Ring = "ring",
    /// Queries and keys are rotated by their positions.
    Rotated = "rotated",
    /// Cooperative matrices are loaded and stored by pointers to numbers, as Metal demands, instead of vectors.
    ScalarPointers = "scalar_pointers",
    /// A product, a sum of rows, embedded tokens or a copy are multiplied by a factor; or the scales of an input are
    /// undone.
    Scaled = "scaled",
    /// A token attends within its document only.
    Segmented = "segmented",
    /// The invocations of a workgroup share a row by workgroup memory.
    SharedTile = "shared_tile",
    /// The invocations of a workgroup exchange loaded values by subgroup shuffles.
    Shuffled = "shuffled",
    /// A router scores experts by the sigmoid instead of the softmax.
    Sigmoid = "sigmoid",
    /// SiLU follows a convolution.
    Silu = "silu",
    /// The softmax of attention has a learned logit of each head beside the scores.
    Sinks = "sinks",
    /// Rows of a table are looked up in a range of its columns.
    Sliced = "sliced",
    /// Cooperative matrices are 8 x 8 instead of 16 x 16.
    SmallMatrices = "small_matrices",
    /// A router's gates are those of SparseMixer.
    SparseMixer = "sparse_mixer",
    /// The sums of a product, or of the gradient of attention's queries, are split into parts, each with a result of
    /// its own.
    Split = "split",
    /// The square of ReLU is the activation; only with `relu`.
    Squared = "squared",
    /// Rotary pairs do not lie in whole groups of 4 elements.
    Straddling = "straddling",
    /// A product that computes packed gate and up also writes the activated gate times up.
    Swiglu = "swiglu",
    /// A product that computes the gradient of the activated gate times up turns it into the gradients of gate and up.
    SwigluSlopes = "swiglu_slopes",
    /// A norm by mean and standard deviation adds no bias.
    Unbiased = "unbiased",
    /// Values are normalised like queries and keys.
    ValueNorm = "value_norm",
    /// The gradient of a loss has a weight for each token.
    Weighted = "weighted",
    /// The right factor of a product is loaded 64 bits at a time.
    Wide = "wide",
    /// Two subgroups share the columns of each strip of attention by matrices.
    WideHeads = "wide_heads",
    /// A query attends to a window of keys.
    Windowed = "windowed",
    /// A router's gradient includes that of the z-loss.
    ZLoss = "z_loss",
    /// A norm multiplies by 1 + w instead of w.
    ZeroCentered = "zero_centered",
}

impl From<Element> for Condition {
    /// The condition that selects `element` as the elements of a shader, or as the weights of a product.
    fn from(element: Element) -> Self {
        match element {
            Element::F32 => Self::F32,
            Element::F16 => Self::F16,
            Element::Bf16 => Self::Bf16,
            Element::Nf4 => Self::Nf4,
            Element::Int8 => Self::Int8,
            Element::U32 => panic!("no shader has a variant for u32 elements"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Listings and golden files print conditions in the order of the variants.
    #[test]
    fn variants_are_in_the_order_of_their_names() {
        assert!(Condition::ALL.is_sorted_by_key(|condition| condition.name()));
    }

    #[test]
    fn every_condition_is_tested_by_a_shader_and_every_tested_name_is_a_condition() {
        let sources = crate::kernels::Sources::default();
        let known: BTreeSet<&str> = Condition::ALL.iter().map(|condition| condition.name()).collect();
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let mut tested = BTreeSet::new();
        for (_, source) in sources.iter() {
            let expressions = source.split("@if(").skip(1).filter_map(|rest| rest.split([')', '\n']).next());
            tested.extend(expressions.flat_map(|e| e.split(|c| !is_name(c))).filter(|name| !name.is_empty()));
        }
        assert_eq!(tested, known);
    }
}
