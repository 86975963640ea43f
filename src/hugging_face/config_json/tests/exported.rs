//! Files of our own, which load again.

use super::{equal, faults, llama, refused};
use crate::hugging_face::config_json::NOTE;
use crate::hugging_face::config_json::classes::{Class, written};
use crate::hugging_face::export::hugging_face_config;
pub(super) use crate::hugging_face::export::tests::mixture::qwen3 as mixture;
use crate::hugging_face::export::tests::{in_pairs, rotating, windowed};
use crate::model::config::{
    Activation, Divisors, ExpertGroups, Factors, Family, Gate, GateNorm, Gelu, GroupScore, LatentAttention,
    LinearAttention, Llama3, LongRope, Mixer, MixtureConfig, ModelConfig, Norm, NormPlacement,
    ParallelResidual, Positions, QkNorm, QueryScaling, RopeScaling, RouterConfig, Score, SharedExpert, Sizes,
    Values, Yarn,
};

/// A model for each architecture of our exports, with and without the features that it lacks.
pub(crate) fn exported() -> Vec<ModelConfig> {
    let window = |model| windowed(model, Some(4));
    let partial = |model| rotating(model, 2);
    let some_windows = |model: ModelConfig| {
        model.with_each_layer(|number, layer| layer.sliding_window = (number > 0).then_some(4))
    };
    let unrotated = |model: ModelConfig| model.with_each_layer(|number, layer| layer.rotates = number != 1);
    let attention =
        |qkv_bias, output_bias, qk_norm| ModelConfig { qkv_bias, output_bias, qk_norm, ..llama() };
    let glm = in_pairs(ModelConfig { family: Family::Glm, qkv_bias: true, ..partial(llama()) });
    let of_pairs = |family| in_pairs(ModelConfig { family, ..llama() });
    let [phi3, ernie, helium] = [
        ModelConfig { family: Family::Phi3, ..llama() },
        of_pairs(Family::Ernie45),
        of_pairs(Family::Helium),
    ];
    let all_biases = |model| ModelConfig {
        qkv_bias: true,
        output_bias: true,
        gate_up_bias: true,
        down_bias: true,
        ..model
    };
    let scaled = |model: ModelConfig, scaling| model.with_layers(|layer| layer.rope_scaling = scaling);
    let linear = RopeScaling::Linear { factor: 3.0 };
    let mut models = vec![
        scaled(phi3.clone(), linear),
        window(phi3.clone()),
        some_windows(phi3.clone()),
        partial(phi3.clone()),
        all_biases(phi3.clone()),
        phi3,
        scaled(all_biases(ernie.clone()), linear),
        ModelConfig { qkv_bias: true, ..ernie.clone() },
        window(ernie.clone()),
        ernie,
        ModelConfig { output_bias: false, ..all_biases(helium.clone()) },
        all_biases(helium.clone()),
        partial(helium.clone()),
        helium,
        llama(),
        window(llama()),
        llama().with_layers(|layer| layer.wide_window = Some(12)),
        partial(llama()),
        window(glm.clone()),
        glm.clone(),
    ];
    for (qkv_bias, output_bias, qk_norm) in [
        (true, true, false),
        (true, false, false),
        (false, false, true),
        (true, false, true),
        (false, true, false),
    ] {
        models.push(attention(qkv_bias, output_bias, qk_norm));
        models.push(window(attention(qkv_bias, output_bias, qk_norm)));
    }
    for (qkv_bias, output_bias, qk_norm) in
        [(false, false, false), (true, false, false), (false, false, true), (true, true, false)]
    {
        models.push(some_windows(attention(qkv_bias, output_bias, qk_norm)));
        models.push(unrotated(attention(qkv_bias, output_bias, qk_norm)));
        models.push(unrotated(some_windows(attention(qkv_bias, output_bias, qk_norm))));
    }
    let factors = Factors {
        embedding: Some(12.0),
        residual: Some(0.25),
        scores: Some(0.3),
        logits_divisor: Some(8.0),
        ..Factors::default()
    };
    let granite = |model| ModelConfig { factors, ..model };
    models.extend([granite(llama()), granite(all_biases(llama())), granite(attention(true, false, true))]);
    models.extend([window(granite(llama())), partial(granite(llama()))]);
    let both_plain = |model| ModelConfig { norm_placement: NormPlacement::Both, ..model };
    models.extend([both_plain(llama()), both_plain(granite(all_biases(llama())))]);
    let gelu_gate = Activation::Gated(Gate::Gelu(Gelu::Tanh));
    let factors = Factors { embedding: Some(4.0), ..Factors::default() };
    let gemma = |model| ModelConfig { zero_centered_norms: true, activation: gelu_gate, factors, ..model };
    models.extend([gemma(llama()), gemma(attention(true, true, false)), window(gemma(llama()))]);
    models.push(ModelConfig { factors: Factors::default(), ..gemma(llama()) });
    let scores = Factors { scores: Some(0.125), ..factors };
    let both = |model| ModelConfig {
        norm_placement: NormPlacement::Both,
        factors: scores,
        ..gemma(some_windows(model))
    };
    models.push(ModelConfig { score_cap: Some(50.0), logit_cap: Some(30.0), ..both(llama()) });
    models.push(both(ModelConfig { qk_norm: true, ..llama() }).with_layers(|layer| {
        layer.rope_theta = if layer.sliding_window.is_some() { 50.0 } else { layer.rope_theta };
    }));
    let olmo = |model| ModelConfig {
        norm_placement: NormPlacement::After,
        qk_norm_kind: QkNorm::AllHeads,
        qk_norm: true,
        ..model
    };
    models.extend([olmo(llama()), olmo(attention(true, true, true)), olmo(window(llama()))]);
    let experts = Some(MixtureConfig { intermediate_size: 8, ..mixture() });
    let joint = ModelConfig { qk_norm_kind: QkNorm::AllHeads, ..attention(false, false, true) };
    models.push(ModelConfig { mixture: experts.clone(), ..joint });
    models.push(ModelConfig { norm_placement: NormPlacement::After, ..attention(false, false, true) });
    models.push(ModelConfig { qk_norm_kind: QkNorm::RotatedHeads, ..attention(false, false, true) });
    models.push(both_plain(glm));
    let gate = Activation::Gated(Gate::Clamped);
    let gpt_oss = ModelConfig {
        family: Family::GptOss,
        activation: gate,
        mixture: experts.clone(),
        ..attention(true, true, false)
    };
    models.push(some_windows(gpt_oss).with_layers(|layer| layer.has_sinks = true));
    let scaled_values = Factors { values: Some(0.707), ..Factors::default() };
    let biased = experts.map(|experts| MixtureConfig {
        route: RouterConfig { score: Score::Sigmoid, scaling: 1.5, ..experts.route },
        has_bias: true,
        first_dense_layers: 1,
        ..experts
    });
    let mimo = ModelConfig { value_head_dim: Some(12), factors: scaled_values, ..partial(llama()) };
    let with_sinks = |model: ModelConfig, kv_heads| {
        some_windows(model).with_each_layer(|_, layer| {
            layer.has_sinks = layer.sliding_window.is_some();
            layer.num_kv_heads = if layer.has_sinks { 2 } else { kv_heads };
            layer.rope_theta = if layer.has_sinks { 50.0 } else { layer.rope_theta };
        })
    };
    models.extend([
        with_sinks(ModelConfig { mixture: biased, qkv_bias: true, ..mimo.clone() }, 1),
        with_sinks(mimo.clone(), 1),
        with_sinks(mimo.clone(), 2),
        with_sinks(llama(), 1),
        window(mimo.clone()).with_layers(|layer| layer.has_sinks = true),
        llama().with_layers(|layer| (layer.wide_window, layer.has_sinks) = (Some(12), true)),
        llama().with_layers(|layer| layer.has_sinks = true),
        mimo,
    ]);
    models.push(scaled(olmo(some_windows(llama())), linear));
    models.push(olmo(some_windows(llama())).with_layers(|layer| {
        layer.rope_scaling = if layer.sliding_window.is_some() { RopeScaling::None } else { linear };
    }));
    let gemma4 = ModelConfig {
        norm_placement: NormPlacement::Both,
        factors: Factors { scores: Some(1.0), ..factors },
        activation: gelu_gate,
        has_layer_scalars: true,
        ..attention(false, false, true)
    };
    for (values, kv_heads) in [(Values::Normalised, 2), (Values::Normalised, 1), (Values::OfKeys, 1)] {
        models.push(gemma4.clone().with_each_layer(|number, layer| {
            layer.values = Values::Normalised;
            match number {
                2 => {
                    (layer.head_dim, layer.rotary_dim) = (8, 8);
                    (layer.num_kv_heads, layer.values) = (kv_heads, values);
                }
                _ => layer.sliding_window = Some(3),
            }
        }));
    }
    for width in [1, 2] {
        models.push(gemma4.clone().with_each_layer(|number, layer| {
            (layer.values, layer.sliding_window) = (Values::Normalised, (number == 0).then_some(3));
            layer.kv_source = (number == 2).then_some(1);
            layer.intermediate_size *= if number == 2 { width } else { 1 };
        }));
    }
    let inputs = ModelConfig { per_layer_width: Some(8), ..gemma4.clone() };
    let mixture_beside = MixtureConfig { is_beside_dense: true, intermediate_size: 8, ..mixture() };
    let mixed = [mixture_beside.clone(), MixtureConfig { first_dense_layers: 1, ..mixture_beside }]
        .map(|mixture| ModelConfig { mixture: Some(mixture), ..inputs.clone() });
    models.extend(
        [[gemma4, inputs], mixed]
            .concat()
            .into_iter()
            .map(|model| model.with_layers(|layer| layer.values = Values::Normalised)),
    );
    models.push(ModelConfig { activation: gelu_gate, ..llama() });
    let ungated = |kind, model| ModelConfig { activation: Activation::Gelu(kind), ..model };
    let layer_norm = |model| ModelConfig { norm: Norm::LayerNorm, ..model };
    let centred = |model| ModelConfig { zero_centered_norms: true, ..layer_norm(model) };
    models.extend([ungated(Gelu::ReluSquared, llama()), ungated(Gelu::Relu, all_biases(llama()))]);
    models.extend([
        ungated(Gelu::ReluSquared, centred(llama())),
        ungated(Gelu::Exact, centred(partial(llama()))),
        ungated(Gelu::Tanh, layer_norm(all_biases(window(llama())))),
        ungated(Gelu::Tanh, layer_norm(attention(true, true, false))),
        ungated(Gelu::ReluSquared, layer_norm(all_biases(llama()))),
    ]);
    let beside = |residual, model| ModelConfig { parallel_residual: Some(residual), ..model };
    let (one, two) = (ParallelResidual::OneNorm, ParallelResidual::TwoNorms);
    models.extend([layer_norm(partial(llama())), layer_norm(attention(true, false, false))]);
    models.extend([beside(one, layer_norm(llama())), beside(two, layer_norm(llama())), beside(two, llama())]);
    let cohere = ModelConfig { family: Family::Cohere, norm_bias: false, ..in_pairs(layer_norm(llama())) };
    let divided = Factors { logits_divisor: Some(16.0), ..Factors::default() };
    models.push(ModelConfig { factors: divided, ..beside(one, cohere.clone()) });
    let in_windows = |model: ModelConfig| {
        some_windows(model).with_layers(|layer| layer.rotates = layer.sliding_window.is_some())
    };
    models.extend([beside(one, in_windows(cohere.clone())), beside(one, some_windows(cohere.clone()))]);
    let head_norms = |qk_norm_kind, model| ModelConfig { qk_norm: true, qk_norm_kind, ..model };
    let by_head = |model| head_norms(QkNorm::LayerNormByHead, model);
    models.extend([
        by_head(layer_norm(partial(llama()))),
        by_head(beside(one, cohere.clone())),
        by_head(llama()),
    ]);
    models.push(beside(one, by_head(in_windows(cohere.clone()))));
    models.extend([beside(one, cohere.clone()), cohere]);
    let neox =
        ModelConfig { family: Family::GptNeoX, ..ungated(Gelu::Exact, layer_norm(all_biases(llama()))) }
            .with_layers(|layer| layer.num_kv_heads = 4);
    let without = ModelConfig { qkv_bias: false, output_bias: false, ..neox.clone() };
    models.extend([
        beside(two, partial(neox.clone())),
        beside(one, neox.clone()),
        scaled(neox, linear),
        without,
    ]);
    let falcon = |kv_heads| {
        let falcon = ModelConfig { family: Family::Falcon, ..ungated(Gelu::Exact, layer_norm(llama())) };
        falcon.with_layers(|layer| layer.num_kv_heads = kv_heads)
    };
    models.extend([1, 2, 4].into_iter().flat_map(|kv_heads| {
        let falcon = falcon(kv_heads);
        [beside(one, falcon.clone()), beside(two, all_biases(falcon.clone())), falcon]
    }));
    let with_head = |family, model| {
        let model = ModelConfig { family, head_bias: true, ..ungated(Gelu::Tanh, layer_norm(model)) };
        beside(one, partial(model.with_layers(|layer| layer.num_kv_heads = 4)))
    };
    let of_mlp = ModelConfig { gate_up_bias: true, down_bias: true, ..llama() };
    models.extend([
        in_pairs(with_head(Family::GptJ, of_mlp.clone())),
        with_head(Family::Phi, all_biases(llama())),
        head_norms(QkNorm::LayerNorm, with_head(Family::Phi, all_biases(llama()))),
    ]);
    models.extend([in_pairs(with_head(Family::GptJ, all_biases(llama()))), with_head(Family::Phi, of_mlp)]);
    models.push(scaled(in_pairs(with_head(Family::GptJ, llama())), linear));
    models.push(ModelConfig { head_bias: true, ..llama() });
    let mpt = ModelConfig {
        family: Family::Mpt,
        positions: Positions::Alibi,
        norm_bias: false,
        ..layer_norm(llama())
    };
    let mpt = ungated(Gelu::Exact, mpt)
        .with_layers(|layer| (layer.num_kv_heads, layer.intermediate_size) = (4, 64));
    let scores = Factors { scores: Some(0.3), ..Factors::default() };
    let clipped = |model| ModelConfig { clip_qkv: Some(8.0), ..model };
    models.push(clipped(llama()));
    models.extend([
        ModelConfig { factors: scores, ..mpt.clone() },
        clipped(mpt.clone()),
        all_biases(mpt.clone()),
        beside(one, mpt),
    ]);
    let weightless = |model| ModelConfig { norm_weight: false, norm_bias: false, ..layer_norm(model) };
    models.extend([
        weightless(llama()),
        clipped(weightless(llama())),
        weightless(attention(true, true, false)),
        weightless(partial(llama())),
    ]);
    let nano = |model| ModelConfig {
        family: Family::NanoChat,
        embedding_norm: true,
        norm_weight: false,
        qk_norm_kind: QkNorm::RotatedHeads,
        ..ungated(Gelu::ReluSquared, model)
    };
    let nano_capped = ModelConfig { logit_cap: Some(9.0), ..nano(attention(true, true, true)) };
    models.extend([nano_capped, nano(attention(false, false, true)), nano(llama())]);
    let apertus = |model| ModelConfig { activation: Activation::Xielu, ..model };
    models.extend([apertus(attention(false, false, true)), apertus(attention(true, true, true))]);
    models.push(apertus(layer_norm(attention(true, false, false))));
    models.push(some_windows(ModelConfig { gate_up_bias: true, down_bias: true, ..llama() }));
    models.push(ModelConfig { output_bias: true, down_bias: true, ..llama() }); // TeleChat
    let yarn = Yarn {
        factor: 4.0,
        original: 8.0,
        beta_fast: 16.0,
        beta_slow: 2.0,
        mscale: 0.7,
        mscale_all_dim: 0.4,
        is_truncated: true,
    };
    let llama3 = Llama3 { factor: 8.0, original: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0 };
    let divisors = [1.5, 4.0].map(|divisor| Divisors::new(&vec![divisor; llama().layer.rotary_dim / 2]));
    let lists = LongRope { divisors, original: 8.0, is_long: true, magnitude: 1.25 };
    models.push(scaled(ModelConfig { family: Family::Phi3, ..llama() }, RopeScaling::LongRope(lists)));
    let scalings = [
        RopeScaling::Linear { factor: 3.0 },
        RopeScaling::Ntk { factor: 3.0 },
        RopeScaling::DynamicNtk { original: 8.0, length: 16.0 },
        RopeScaling::Yarn(yarn),
        RopeScaling::Llama3(llama3),
        RopeScaling::Dynamic { factor: 2.0, original: 8.0, length: 16.0 },
        RopeScaling::LongRope(lists),
    ];
    models.extend(scalings.map(|scaling| scaled(llama(), scaling)));
    let growing = |model: ModelConfig| {
        let queries = Some(QueryScaling { beta: 0.3, original: 8.0 });
        scaled(model, RopeScaling::Yarn(yarn)).with_layers(|layer| layer.query_scaling = queries)
    };
    models.extend([growing(llama()), growing(window(llama())), growing(some_windows(llama()))]);
    models.push(growing(attention(true, false, true)));
    models.push(ModelConfig { score_cap: Some(50.0), logit_cap: Some(30.0), ..llama() });
    let sizes = Sizes {
        vocab_size: 32,
        hidden_size: 16,
        num_layers: 3,
        num_heads: 4,
        intermediate_size: 64,
        seq_length: 8,
    };
    let gpt2 = ModelConfig::gpt2(sizes);
    let gelu = |gelu| ModelConfig { activation: Activation::Gelu(gelu), ..gpt2.clone() };
    models.extend([gelu(Gelu::Tanh), gelu(Gelu::Exact), gelu(Gelu::Fast), window(gpt2.clone())]);
    models.push(ModelConfig {
        family: Family::Bloom,
        positions: Positions::Alibi,
        embedding_norm: true,
        ..gpt2.clone()
    });
    let big_code = ModelConfig { family: Family::BigCode, ..gpt2.clone() };
    models.push(big_code.with_layers(|layer| layer.num_kv_heads = 1));
    let opt = ModelConfig { family: Family::Opt, ..gelu(Gelu::Relu) };
    models.push(ModelConfig {
        norm_placement: NormPlacement::AfterSum,
        embedding_width: Some(12),
        ..opt.clone()
    });
    models.push(opt);
    models.push(ModelConfig { family: Family::Pangu, ..gpt2 }.with_query_table());
    let baichuan = ModelConfig { family: Family::Baichuan, ..llama() };
    let baichuan = baichuan.with_layers(|layer| layer.num_kv_heads = 4);
    models.push(ModelConfig { positions: Positions::Alibi, ..baichuan.clone() });
    models.push(ModelConfig { head_epsilon: Some(1e-5), ..baichuan });
    let shared = |intermediate_size, is_gated| Some(SharedExpert { intermediate_size, is_gated });
    let groups = |score| Some(ExpertGroups { count: 3, chosen: 2, score });
    let sigmoid = |groups| RouterConfig { score: Score::Sigmoid, groups, scaling: 2.5, ..mixture().route };
    let biased = |groups| MixtureConfig {
        has_bias: true,
        shared: shared(10, false),
        route: sigmoid(groups),
        ..mixture()
    };
    let unnormalised = RouterConfig { norm: None, scaling: 2.0, ..mixture().route };
    let limited = RouterConfig { groups: groups(GroupScore::Best), ..unnormalised };
    let mixtures = [
        mixture(),
        MixtureConfig { first_dense_layers: 1, ..mixture() },
        MixtureConfig { shared: shared(7, true), ..mixture() },
        MixtureConfig { shared: shared(10, false), ..mixture() },
        MixtureConfig { route: RouterConfig { chosen: 1, norm: None, ..mixture().route }, ..mixture() },
        MixtureConfig { route: unnormalised, shared: shared(10, false), ..mixture() },
        MixtureConfig { route: limited, shared: shared(10, false), ..mixture() },
        biased(None),
        biased(groups(GroupScore::BestTwo)),
        biased(groups(GroupScore::Best)),
    ];
    let granite = |shared| {
        let mixture = MixtureConfig { intermediate_size: 8, shared, ..mixture() };
        ModelConfig { family: Family::GraniteMoe, mixture: Some(mixture), ..granite(llama()) }
    };
    models.extend([granite(None), granite(shared(8, false)), granite(shared(8, true))]);
    models.push(ModelConfig {
        qkv_bias: true,
        output_bias: true,
        factors: Factors::default(),
        ..granite(None)
    });
    let of_kind = |qk_norm_kind, mixture| ModelConfig {
        qk_norm: true,
        qk_norm_kind,
        mixture: Some(mixture),
        ..llama()
    };
    let minimax = MixtureConfig {
        has_bias: true,
        route: RouterConfig { score: Score::Sigmoid, ..mixture().route },
        ..mixture()
    };
    models.extend([of_kind(QkNorm::AllHeads, minimax.clone()), partial(of_kind(QkNorm::AllHeads, minimax))]);
    for shared in [shared(5, false), shared(10, false), None] {
        models.push(of_kind(QkNorm::RotatedHeads, MixtureConfig { shared, ..mixture() }));
    }
    let latent = LatentAttention { q_rank: Some(8), kv_rank: 12, nope_dim: 8, rope_dim: 4, value_dim: 16 };
    let direct = LatentAttention { q_rank: None, ..latent };
    let of_latent = |sizes: LatentAttention| sizes.within(ModelConfig { norm_eps: 1e-6, ..llama() });
    models.extend([of_latent(latent), of_latent(direct), latent.within(llama())]);
    let halves = |model: ModelConfig| model.with_layers(|layer| layer.rotary_interleaved = false);
    let own_eps = |model| ModelConfig { norm_eps: 3e-2, latent_norm_eps: Some(1e-6), ..model };
    models.extend([halves(of_latent(latent)), own_eps(of_latent(direct))]);
    let of_all = |factors| ModelConfig { factors, ..own_eps(halves(of_latent(direct))) };
    let factors = Factors {
        embedding: Some(12.0),
        residual: Some(0.25),
        logits_divisor: Some(8.0),
        ..Factors::default()
    };
    models.extend([Some(0.5), None].map(|scores| of_all(Factors { scores, ..factors })));
    let heads = LinearAttention { heads: 4, key_heads: 2, key_dim: 8, value_dim: 12, conv_width: 3 };
    let gated =
        |model| ModelConfig { attention_gate: true, zero_centered_norms: true, qk_norm: true, ..model };
    let qwen = |model| {
        gated(partial(model)).with_each_layer(|number, layer| {
            if number < 2 {
                layer.mixer = Mixer::Linear(heads);
            }
        })
    };
    let of_qwen = |first_dense_layers, shared| {
        let mixture = Some(MixtureConfig { first_dense_layers, shared, ..mixture() });
        qwen(ModelConfig { mixture, ..llama() })
    };
    models.extend([qwen(llama()), qwen(attention(true, true, true)), gated(llama()), window(gated(llama()))]);
    models.push(ModelConfig { zero_centered_norms: false, qk_norm: false, ..qwen(llama()) });
    let of_next = |model| ModelConfig { family: Family::Qwen3Next, ..model };
    for (dense, shared) in [(0, shared(7, true)), (1, shared(7, true)), (0, None)] {
        models.extend([of_qwen(dense, shared), of_next(of_qwen(dense, shared))]);
    }
    models.push(of_next(qwen(llama())));
    let lfm2 = |model| {
        let model = ModelConfig { family: Family::Lfm2, qk_norm: true, ..model };
        model.with_each_layer(|number, layer| {
            if number > 0 {
                layer.mixer = Mixer::Convolution { width: 4 };
            }
        })
    };
    models.extend([lfm2(llama()), lfm2(all_biases(llama())), window(lfm2(llama()))]);
    models.push(ModelConfig { family: Family::Lfm2, ..llama() });
    for mixture in [mixture(), biased(groups(GroupScore::BestTwo))] {
        models.push(ModelConfig { mixture: Some(mixture), ..lfm2(llama()) });
    }
    for has_bias in [false, true] {
        let route = sigmoid(None);
        let mixture = MixtureConfig { has_bias, first_dense_layers: 1, route, ..mixture() };
        models.push(ModelConfig { mixture: Some(mixture), ..lfm2(llama()) });
    }
    for (shared, has_bias) in [(shared(10, false), true), (None, false), (shared(7, false), true)] {
        let route = RouterConfig { norm: Some(GateNorm::AtLeast(0.5)), ..mixture().route };
        let mixture = MixtureConfig { has_bias, first_dense_layers: 1, shared, route, ..mixture() };
        models.push(ModelConfig { mixture: Some(mixture), ..of_pairs(Family::Ernie45) });
    }
    for mixture in [mixture(), biased(groups(GroupScore::BestTwo))] {
        models.push(all_biases(ModelConfig { mixture: Some(mixture), ..of_pairs(Family::Ernie45) }));
    }
    let phimoe = |model| {
        let route =
            RouterConfig { score: Score::SparseMixer { jitter: 0.05 }, norm: None, ..mixture().route };
        let mixture = Some(MixtureConfig { route, ..mixture() });
        ModelConfig { norm: Norm::LayerNorm, mixture, ..model }
    };
    let head_bias = ModelConfig { head_bias: true, ..attention(true, true, false) };
    models.extend([
        phimoe(llama()),
        phimoe(head_bias),
        window(phimoe(llama())),
        some_windows(phimoe(llama())),
    ]);
    models.extend([scaled(phimoe(llama()), linear), phimoe(attention(true, false, true))]);
    models.push(ModelConfig { norm: Norm::RmsNorm, ..phimoe(llama()) });
    for mixture in mixtures {
        let mixture = Some(mixture);
        models.push(ModelConfig { mixture: mixture.clone(), ..llama() });
        models.push(ModelConfig { mixture: mixture.clone(), qk_norm: true, ..llama() });
        models.push(window(ModelConfig { mixture: mixture.clone(), qk_norm: true, ..llama() }));
        models.push(ModelConfig { mixture: mixture.clone(), ..of_latent(latent) });
        models.push(ModelConfig { mixture, ..halves(of_latent(latent)) });
    }
    models
}

#[test]
fn our_own_checkpoints_load_again() {
    for model in exported() {
        let config = hugging_face_config(&model);
        equal(&config, &model);
        let other = ModelConfig { norm_eps: 3e-3, ..model.clone() };
        assert_ne!(faults(&config, &other, &[]), [""; 0], "{config}");
        let other = ModelConfig { tie_word_embeddings: !model.tie_word_embeddings, ..model };
        assert_ne!(faults(&config, &other, &[]), [""; 0], "{config}");
    }
}

/// What a class lacks is asked of each model that is exported as it: a wrong answer would leave a note in all its
/// files. Code that is not in `transformers` has one in any case.
#[test]
fn each_class_that_is_written_says_some_model_without_a_note() {
    let configs: Vec<_> = exported().iter().map(hugging_face_config).collect();
    let whole = |class: &&Class| {
        configs.iter().any(|config| config["model_type"] == class.name && config.get(NOTE).is_none())
    };
    let others = written().filter(|class| !class.is_published_code);
    let missing: Vec<_> = others.filter(|class| !whole(class)).map(|class| &class.name).collect();
    assert_eq!(missing, [""; 0]);
}

/// DeepSeek's own code lets gates sum to 1 where the key says so, and transformers leaves them as they are.
#[test]
fn gates_of_deepseek_v2_that_two_programs_compute_differently_are_refused() {
    let latent = LatentAttention { q_rank: None, kv_rank: 12, nope_dim: 8, rope_dim: 4, value_dim: 16 };
    let route = RouterConfig { norm: None, ..mixture().route };
    let shared = Some(SharedExpert { intermediate_size: 10, is_gated: false });
    let mixture = Some(MixtureConfig { route, shared, ..mixture() });
    let model = latent.within(ModelConfig { norm_eps: 1e-6, mixture, ..llama() });
    let mut config = hugging_face_config(&model);
    assert_eq!((&config["model_type"], config.get(NOTE)), (&"deepseek_v2".into(), None));
    equal(&config, &model);
    config["norm_topk_prob"] = true.into();
    refused(&config, &model, &["`norm_topk_prob` is true, which DeepSeek's code computes"]);
}
