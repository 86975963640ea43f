//! Rotary frequencies for longer contexts, in the words of MindFormers and of Hugging Face.

use super::families::{model, with_model};
use super::{assert_answers, message};
use gristmill::model::config::{Divisors, Llama3, LongRope, QueryScaling, RopeScaling, Yarn};

const SIZES: &str = "vocab_size: 300, hidden_size: 64, num_layers: 2, num_heads: 4, seq_length: 4096";

fn scaling(keys: &str) -> RopeScaling {
    model(&with_model(&format!("{SIZES}, {keys}"))).0.layer.rope_scaling
}

#[test]
fn every_method_is_read() {
    assert_eq!(scaling("extend_method: 'None', scaling_factor: 1.0"), RopeScaling::None);
    assert_eq!(scaling("extend_method: PI, scaling_factor: 2"), RopeScaling::Linear { factor: 2.0 });
    assert_eq!(scaling("extend_method: NTK, scaling_factor: 4.0"), RopeScaling::Ntk { factor: 4.0 });
    assert_eq!(
        scaling("extend_method: linear, scaling_factor: {factor: 8}"),
        RopeScaling::Linear { factor: 8.0 }
    );
    assert_eq!(
        scaling("extend_method: DYNAMIC_NTK"),
        RopeScaling::DynamicNtk { original: 2048.0, length: 4096.0 }
    );
    assert_eq!(
        scaling("extend_method: DYNAMIC_NTK, pretrain_seqlen: 4096, max_position_embedding: 8192"),
        RopeScaling::DynamicNtk { original: 4096.0, length: 8192.0 }
    );
    let yarn = Yarn {
        factor: 16.0,
        original: 4096.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        mscale: 0.7,
        mscale_all_dim: 0.5,
        is_truncated: true,
    };
    let six = "factor: 16, original_max_position_embeddings: 4096, beta_slow: 1, beta_fast: 32, mscale: 0.7, \
               mscale_all_dim: 0.5";
    assert_eq!(scaling(&format!("extend_method: YARN, scaling_factor: {{{six}}}")), RopeScaling::Yarn(yarn));
    assert_eq!(scaling(&format!("rope_scaling: {{type: yarn, {six}}}")), RopeScaling::Yarn(yarn));
    assert_eq!(
        scaling("rope_scaling: {rope_type: yarn, factor: 16, original_max_position_embeddings: 4096}"),
        RopeScaling::Yarn(Yarn { mscale: 1.0, mscale_all_dim: 0.0, ..yarn })
    );
    let llama = Llama3 { factor: 8.0, original: 1024.0, low_freq_factor: 1.0, high_freq_factor: 4.0 };
    let four =
        "factor: 8.0, original_max_position_embeddings: 1024, low_freq_factor: 1.0, high_freq_factor: 4";
    assert_eq!(
        scaling(&format!("extend_method: LLAMA3, scaling_factor: {{{four}}}")),
        RopeScaling::Llama3(llama)
    );
    assert_eq!(
        scaling(&format!("max_position_embeddings: 131072, rope_scaling: {{rope_type: llama3, {four}}}")),
        RopeScaling::Llama3(llama)
    );
    let keys = "rope_type: yarn, factor: 4, original_max_position_embeddings: 16, llama_4_scaling_beta: 0.1";
    let (grows, _) = model(&with_model(&format!("{SIZES}, rope_scaling: {{{keys}}}")));
    assert_eq!(grows.layer.query_scaling, Some(QueryScaling { beta: 0.1, original: 16.0 }));
    assert_eq!(scaling("rope_scaling: {type: linear, factor: 2.5}"), RopeScaling::Linear { factor: 2.5 });
    assert_eq!(scaling("rope_scaling: {rope_type: default}"), RopeScaling::None);
    let dynamic = |original: usize| {
        format!("rope_scaling: {{type: dynamic, factor: 2, original_max_position_embeddings: {original}}}")
    };
    for original in [1024, 8192] {
        let length = 4096f64.max(original as f64);
        let want = RopeScaling::Dynamic { factor: 2.0, original: original as f64, length };
        assert_eq!(scaling(&dynamic(original)), want);
    }
    // 8 pairs; the factor of a context 4 times as long is the root of 1 + ln 4 / ln 1024.
    let lists = "short_factor: [1, 1, 1, 1, 1, 1, 1, 1.5], long_factor: [1, 2, 3, 4, 5, 6, 7, 8]";
    let keys =
        format!("rope_scaling: {{rope_type: longrope, original_max_position_embeddings: 1024, {lists}}}");
    let divisors = [[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.5], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]];
    let divisors = divisors.map(|list| Divisors::new(&list));
    let magnitude = 1.2f64.sqrt();
    let want = LongRope { divisors, original: 1024.0, is_long: true, magnitude };
    let RopeScaling::LongRope(found) = scaling(&keys) else { panic!("no lists") };
    assert!((found.magnitude - magnitude).abs() < 1e-15);
    assert_eq!(LongRope { magnitude, ..found }, want);
    let (long, _) = model(&with_model(&format!("{SIZES}, {keys}")));
    // Longer texts rotate otherwise from their first token on.
    assert_eq!((long.longest_text(), long.max_positions), (1024, 4096));
    let short = long.for_texts_of(long.longest_text());
    assert_eq!(short.layer.rope_scaling, RopeScaling::LongRope(LongRope { is_long: false, ..found }));
    assert_eq!(scaling("rope_scaling: None"), RopeScaling::None);
}

#[test]
fn what_is_missing_or_too_much_is_one_line() {
    assert_answers(WRONG, |_, keys| {
        let found = message(&with_model(&format!("{SIZES}, {keys}")), &[]);
        found.strip_prefix("x.yaml:2: model.model_config.").unwrap_or(&found).to_string()
    });
}

const WRONG: &str = "
+ scaling_factor: 2.0
= scaling_factor: has no effect without `extend_method`; name a method or remove it
+ extend_method: PI
= scaling_factor: PI takes a number above 0, found nothing
+ extend_method: NTK, scaling_factor: {factor: 2}
= scaling_factor: NTK takes a number above 0, found a section
+ extend_method: YaRN
= extend_method: unknown method `YaRN`; known are None, PI, NTK, linear, DYNAMIC_NTK, YARN and LLAMA3
+ extend_method: YARN, scaling_factor: 4
= scaling_factor: expected a section, found `4`; YARN takes factor, original_max_position_embeddings, beta_slow, beta_fast, mscale, mscale_all_dim
+ extend_method: YARN, scaling_factor: {factor: 4}
= scaling_factor: `original_max_position_embeddings` is missing; YARN takes factor, original_max_position_embeddings, beta_slow, beta_fast, mscale, mscale_all_dim
+ extend_method: YARN, scaling_factor: {factor: 4, low_freq_factor: 1}
= scaling_factor.low_freq_factor: unknown key; YARN takes factor, original_max_position_embeddings, beta_slow, beta_fast, mscale, mscale_all_dim
+ extend_method: linear, scaling_factor: {factor: 4, type: linear}
= scaling_factor.type: unknown key; linear takes factor
+ rope_scaling: {factor: 4}
= rope_scaling: `rope_type` is missing; give it linear, yarn, llama3 or proportional
+ rope_scaling: {type: yarn, factor: 4, original_max_position_embeddings: 16, llama_4_scaling_beta: 0.1}, no_rope_layers: [1, 0]
= rope_scaling.llama_4_scaling_beta: not built yet where heads do not rotate as a whole, in all layers; remove it
+ rope_scaling: {type: linear, factor: 4, llama_4_scaling_beta: 0.1}
= rope_scaling.llama_4_scaling_beta: unknown key; linear takes factor
+ rope_scaling: {type: mrope, factor: 4}
= rope_scaling.type: not built yet (found `mrope`); known are default, linear, yarn, llama3, proportional, dynamic and longrope; `extend_method` has others
+ rope_scaling: {type: dynamic, factor: 4}
= rope_scaling: `original_max_position_embeddings` is missing; dynamic takes factor, original_max_position_embeddings
+ rope_scaling: {type: dynamic, factor: 0.5, original_max_position_embeddings: 64}
= rope_scaling.factor: expected a number from 1, found `0.5`
+ rope_scaling: {type: longrope, original_max_position_embeddings: 64, short_factor: [1, 1], long_factor: [1, 1, 1, 1, 1, 1, 1, 1]}
= rope_scaling.short_factor: has 2 numbers, and 8 pairs of a head rotate; give it as many
+ rope_scaling: {type: linear, factor: 2}, extend_method: PI, scaling_factor: 2
= rope_scaling: says the same as `extend_method` does; keep one of them
+ rope_scaling: {rope_type: llama3, factor: 8, original_max_position_embeddings: 4096, low_freq_factor: 1, high_freq_factor: 4}
= rope_scaling.original_max_position_embeddings: is not below the longest position, 4096; lower it or raise max_position_embeddings
+ rope_scaling: {rope_type: llama3, factor: 8, original_max_position_embeddings: 1024, low_freq_factor: 4, high_freq_factor: 4}
= rope_scaling.high_freq_factor: is not above low_freq_factor, 4; raise it
+ extend_method: DYNAMIC_NTK, pretrain_seqlen: 8192
= pretrain_seqlen: 8192 is above the longest position, 4096: nothing is extended; lower it or write `extend_method: None`
+ theta: 1, rope_scaling: {type: yarn, factor: 2, original_max_position_embeddings: 4}
= theta: YARN needs a base above 1, found `1`
";
