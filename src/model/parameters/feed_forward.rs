//! The parameters of the second half of a block: a dense network, a mixture of experts, or both.

use super::scope::{Scope, StackedRows};
use super::spec::{Role, Stack};
use super::{ExpertLora, Linear};
use crate::model::config::{Activation, MixtureConfig, SharedExpert};
use crate::model::names::{EXPERT_PARAMETERS, ExpertFiles, MixtureNames, Projections, SHARED_GATE, beside};

/// Gate and up are padded to a multiple of this many rows, so that each starts at a whole group of 4 columns of their
/// product: see [`ops::swiglu`](crate::ops::swiglu).
const GATE_UP_ALIGNMENT: usize = 4;

/// A dense network, a mixture of experts, or both.
#[derive(Clone, Debug, PartialEq)]
pub enum FeedForward<P> {
    /// Every token passes through all of it.
    Dense(DenseFeedForward<P>),
    /// Every token passes through k of E experts.
    Mixture(Mixture<P>),
    /// Every token passes through both.
    Both(Box<DenseBesideExperts<P>>),
}

/// A dense network and a mixture that read the residual stream beside each other, as in Gemma 4: the sum of their
/// normalised outputs is the layer's.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseBesideExperts<P> {
    /// The dense network, which reads the norm of the layer.
    pub dense: DenseFeedForward<P>,
    /// (D): the norm of its output.
    pub dense_norm: P,
    /// (D): the norm before the experts.
    pub experts_norm: P,
    /// (D): the norm before the router; its result is divided by √D.
    pub router_norm: P,
    /// The mixture.
    pub mixture: Mixture<P>,
    /// (D): the norm of its output.
    pub mixture_norm: P,
}

/// A feed-forward network of inner width F.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseFeedForward<P> {
    /// Gate, then up: (2·stride of F, D). Without a gate only up, (F, D).
    pub w_gate_up: Linear<P>,
    /// The numbers of an xIELU, if it is the activation.
    pub xielu: Option<XieluNumbers<P>>,
    /// (D, F)
    pub w_down: Linear<P>,
}

/// The numbers of an xIELU: see [`ops::xielu`](crate::ops::xielu).
#[derive(Clone, Debug, PartialEq)]
pub struct XieluNumbers<P> {
    /// (1, 2), f32: those that are learned.
    pub alphas: P,
    /// (1, 2), f32: those that are not.
    pub constants: P,
}

/// E experts of inner width F and their router, with the activation of dense layers; of experts with a gate only those
/// of gpt-oss have biases. The bias of the choice is not a parameter, since it has no gradient.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixture<P> {
    /// (E, D)
    pub router: P,
    /// (E), in f32: the bias of its logits, if it has one.
    pub router_bias: Option<P>,
    /// (E), in f32: a factor of each expert's gates, in a layer that is dense, too.
    pub expert_scale: Option<P>,
    /// The experts.
    pub experts: Experts<P>,
    /// Copies of the hot experts, in order, if experts are spread over ranks and some are hot. They are not parameters.
    pub copies: Option<Experts<P>>,
    /// The expert that every token visits.
    pub shared: Option<Shared<P>>,
}

/// E experts, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts<P> {
    /// Gate and up of each expert in turn: (E·2·stride of F, D). Without a gate only up, (E·F, D).
    pub w_gate_up: P,
    /// (E, 2·stride of F); without a gate (E, F)
    pub b_gate_up: Option<P>,
    /// The adapters of `w_gate_up`, in which gate and up share A.
    pub lora_gate_up: Option<ExpertLora<P>>,
    /// (E·D, F), expert by expert.
    pub w_down: P,
    /// (E, D)
    pub b_down: Option<P>,
    /// The adapters of `w_down`.
    pub lora_down: Option<ExpertLora<P>>,
}

impl<P> Experts<P> {
    /// The same stacks, with each value replaced by the result of `of`.
    pub(crate) fn map<Q>(&self, mut of: impl FnMut(&P) -> Q) -> Experts<Q> {
        let Self { w_gate_up, b_gate_up, lora_gate_up, w_down, b_down, lora_down } = self;
        Experts {
            w_gate_up: of(w_gate_up),
            b_gate_up: b_gate_up.as_ref().map(&mut of),
            lora_gate_up: lora_gate_up.as_ref().map(|lora| lora.map(&mut of)),
            w_down: of(w_down),
            b_down: b_down.as_ref().map(&mut of),
            lora_down: lora_down.as_ref().map(|lora| lora.map(&mut of)),
        }
    }

    /// All stacks.
    pub(crate) fn all(&self) -> impl Iterator<Item = &P> {
        let Self { w_gate_up, b_gate_up, lora_gate_up, w_down, b_down, lora_down } = self;
        let factors = [lora_gate_up, lora_down].into_iter().flatten().flat_map(|lora| [&lora.a, &lora.b]);
        [w_gate_up, w_down].into_iter().chain(b_gate_up).chain(b_down).chain(factors)
    }
}

/// The expert that every token visits, of inner width S.
#[derive(Clone, Debug, PartialEq)]
pub struct Shared<P> {
    /// Gate, then up: (2·stride of S, D).
    pub w_gate_up: Linear<P>,
    /// (D, S)
    pub w_down: Linear<P>,
    /// (1, D): x · gate is the logit of the factor by which its output is multiplied.
    pub gate: Option<P>,
}

impl<P> FeedForward<P> {
    pub(super) fn declare(layer: &mut Scope<'_, P>) -> Self {
        match layer.mixture() {
            None => Self::Dense(DenseFeedForward::declare(layer)),
            Some(mixture) if mixture.is_beside_dense => {
                Self::Both(Box::new(DenseBesideExperts::declare(layer, mixture)))
            }
            Some(mixture) => Self::Mixture(Mixture::declare(layer, mixture)),
        }
    }
}

impl<P> DenseBesideExperts<P> {
    fn declare(layer: &mut Scope<'_, P>, mixture: &MixtureConfig) -> Self {
        let width = layer.config.hidden_size;
        let norm = |layer: &mut Scope<'_, P>, path, name| layer.norm_weight(path, name, width);
        Self {
            dense: DenseFeedForward::declare(layer),
            dense_norm: norm(layer, "feed_forward.dense_norm", beside::DENSE_NORM),
            experts_norm: norm(layer, "feed_forward.experts_norm", beside::EXPERTS_NORM),
            router_norm: layer.bare_norm("feed_forward.router_norm", beside::ROUTER_NORM),
            mixture: Mixture::declare(layer, mixture),
            mixture_norm: norm(layer, "feed_forward.mixture_norm", beside::MIXTURE_NORM),
        }
    }
}

impl<P> DenseFeedForward<P> {
    fn declare(layer: &mut Scope<'_, P>) -> Self {
        let (config, names) = (layer.config, layer.names);
        let (width, inner) = (config.hidden_size, layer.layer_config().intermediate_size);
        let (std, residual_std) = (config.init_std, config.residual_init_std());
        let gate_up = match config.activation {
            Activation::Gated(_) => {
                let names = names.gate_up.iter().copied();
                StackedRows::aligned(names, &[inner; 2], GATE_UP_ALIGNMENT).divided(&[inner; 2])
            }
            Activation::Gelu(_) | Activation::Xielu => {
                StackedRows::new(names.gate_up.iter().copied(), &[inner]).divided(&[inner])
            }
        };
        let down = StackedRows::new([names.w_down], &[width]).of_columns(inner, inner);
        Self {
            w_gate_up: layer.linear(
                ["feed_forward.w_gate_up", "feed_forward.b_gate_up"],
                &gate_up,
                width,
                std,
                config.gate_up_bias,
            ),
            xielu: (config.activation == Activation::Xielu).then(|| {
                let [alphas, constants] = layer.xielu(["feed_forward.xielu", "feed_forward.xielu_constants"]);
                XieluNumbers { alphas, constants }
            }),
            w_down: layer.linear(
                ["feed_forward.w_down", "feed_forward.b_down"],
                &down,
                inner,
                residual_std,
                config.down_bias,
            ),
        }
    }
}

impl<P> Mixture<P> {
    fn declare(layer: &mut Scope<'_, P>, mixture: &MixtureConfig) -> Self {
        let (config, inner, experts) = (layer.config, mixture.intermediate_size, mixture.experts());
        let (std, residual_std) = (config.init_std, config.residual_init_std());
        let names = MixtureNames::of(config);
        let each: Vec<String> = match names.files {
            ExpertFiles::Each => (0..experts).map(|expert| format!("{}.{expert}", names.experts)).collect(),
            ExpertFiles::Stacked { .. } | ExpertFiles::Turned => vec![names.experts.to_string()],
        };
        let networks = (each.as_slice(), experts);
        let [mut gate_up, mut down] =
            stacked(networks, &names.projections, config.activation, inner, config.hidden_size);
        match names.files {
            ExpertFiles::Each | ExpertFiles::Stacked { has_kind: true } => {}
            ExpertFiles::Stacked { has_kind: false } => {
                (gate_up, down) = (gate_up.without_kind(), down.without_kind());
            }
            ExpertFiles::Turned => {
                let is_gated = config.activation.gate().is_some();
                gate_up = gate_up.stacked(Stack { experts, is_interleaved: is_gated });
                down = down.stacked(Stack { experts, is_interleaved: false });
            }
        }
        let router = StackedRows::new([names.router], &[experts]).repeated();
        let width = config.hidden_size;
        let [has_gate_up_bias, has_down_bias] = config.expert_biases();
        // A tensor of all experts is named without a kind.
        let kind = if names.files == ExpertFiles::Turned { "_bias" } else { "" };
        let of_each =
            |projection: &str| each.iter().map(|name| format!("{name}.{projection}{kind}")).collect();
        let biased = gate_up.stored() / experts;
        Self {
            router: layer.matrix(
                Role::Router,
                "feed_forward.router",
                &router,
                width,
                mixture.router_init_std,
            ),
            router_bias: config
                .router_has_bias()
                .then(|| layer.router_bias("feed_forward.router_bias", &router)),
            expert_scale: mixture
                .is_beside_dense
                .then(|| layer.expert_scale("feed_forward.expert_scale", beside::EXPERT_SCALE, experts)),
            experts: Experts {
                w_gate_up: layer.experts(experts, "feed_forward.experts.w_gate_up", &gate_up, width, std),
                b_gate_up: has_gate_up_bias.then(|| {
                    let up = of_each(names.projections.gate_up[0]);
                    layer.expert_biases("feed_forward.experts.b_gate_up", up, &gate_up, [experts, biased])
                }),
                lora_gate_up: layer.expert_lora(
                    experts,
                    ("feed_forward.experts.w_gate_up", EXPERT_PARAMETERS[0]),
                    &gate_up,
                    width,
                ),
                w_down: layer.experts(experts, "feed_forward.experts.w_down", &down, inner, residual_std),
                b_down: has_down_bias.then(|| {
                    let down_names = of_each(names.projections.down);
                    layer.expert_biases("feed_forward.experts.b_down", down_names, &down, [experts, width])
                }),
                lora_down: layer.expert_lora(
                    experts,
                    ("feed_forward.experts.w_down", EXPERT_PARAMETERS[1]),
                    &down,
                    inner,
                ),
            },
            copies: None,
            shared: mixture.shared.map(|shared| Shared::declare(layer, shared, mixture.router_init_std)),
        }
    }
}

impl<P> Shared<P> {
    fn declare(layer: &mut Scope<'_, P>, shared: SharedExpert, gate_std: f64) -> Self {
        let (config, inner) = (layer.config, shared.intermediate_size);
        let (width, std, residual_std) = (config.hidden_size, config.init_std, config.residual_init_std());
        let names = MixtureNames::of(config);
        let name = [(if shared.is_gated { names.gated_shared } else { names.shared }).to_string()];
        let activation = Activation::Gated(config.shared_gate());
        let [gate_up, down] = stacked((&name, 1), &names.shared_projections, activation, inner, width);
        let gate = StackedRows::new([SHARED_GATE], &[1]).repeated();
        Self {
            w_gate_up: layer.unbiased("feed_forward.shared.w_gate_up", &gate_up, width, std),
            w_down: layer.unbiased("feed_forward.shared.w_down", &down, inner, residual_std),
            gate: shared
                .is_gated
                .then(|| layer.matrix(Role::Router, "feed_forward.shared.gate", &gate, width, gate_std)),
        }
    }
}

/// The stacked rows of w_gate_up and w_down for `count` networks of these names. Files hold each projection of each
/// network as a separate tensor, or those of one name as one.
fn stacked(
    (networks, count): (&[String], usize),
    names: &Projections,
    activation: Activation,
    inner: usize,
    width: usize,
) -> [StackedRows; 2] {
    let gate_up = networks.iter().flat_map(|name| names.gate_up.iter().map(move |of| format!("{name}.{of}")));
    let down = networks.iter().map(|name| format!("{name}.{}", names.down));
    let (maps, alignment) = match activation {
        Activation::Gated(_) => (2, GATE_UP_ALIGNMENT),
        Activation::Gelu(_) | Activation::Xielu => (1, 1),
    };
    let inners = vec![inner; maps * count];
    [
        StackedRows::aligned(gate_up, &inners, alignment).divided(&inners),
        StackedRows::new(down, &vec![width; count]).of_columns(inner, inner),
    ]
}
