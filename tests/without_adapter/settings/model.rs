//! Keys of the model that have several spellings or a narrow range.

use super::{BASE, resolve};
use gristmill::model::config::RopeScaling;

#[test]
fn dropout_is_a_share_below_one() {
    let model = |keys: &str| {
        let keys = format!("seq_length: 32\n    {keys}");
        resolve(&BASE.replace("seq_length: 32", &keys), &[]).map(|(plan, _)| plan.model)
    };
    let rates =
        model("attention_dropout_rate: 0.05\n    hidden_dropout: 0.1\n    embedding_dropout_prob: 0.2")
            .unwrap();
    assert_eq!((rates.attention_dropout, rates.hidden_dropout, rates.embedding_dropout), (0.05, 0.1, 0.2));
    assert_eq!(model("hidden_dropout_rate: 0").unwrap().hidden_dropout, 0.0);
    for share in ["1.0", "-0.1", "0.99999999999"] {
        let found = model(&format!("hidden_dropout: {share}")).unwrap_err().to_string();
        assert!(found.contains("hidden_dropout"), "{found}");
        assert!(found.contains("expected a share in [0, 1)"), "{found}");
    }
    let deep = resolve(&BASE.replace("num_layers: 2", "num_layers: 20000"), &[]);
    let found = deep.unwrap_err().to_string();
    assert!(found.contains("num_layers: expected a whole number from 1 to 1000, found"), "{found}");
}

/// Lists have an entry for each layer, or for the first ones, which are repeated.
#[test]
fn layers_may_differ() {
    let model = |keys: &str| {
        let keys = format!("num_layers: 5\n    {keys}");
        resolve(&BASE.replace("num_layers: 2", &keys), &[])
    };
    let window = "sliding_window: 8\n    ";
    let layers = |keys: &str| -> String {
        let (plan, _) = model(&format!("{window}{keys}")).unwrap_or_else(|error| panic!("{keys}: {error}"));
        assert_eq!(resolve(&plan.to_yaml(), &[]).unwrap().0, plan, "{keys}");
        let word = |number| match (plan.model.layer(number).sliding_window, plan.model.layer(number).rotates)
        {
            (Some(8), true) => 'w',
            (None, true) => 'f',
            (Some(8), false) => 'n',
            (None, false) => '0',
            other => panic!("{other:?}"),
        };
        (0..5).map(word).collect()
    };
    assert_eq!(layers(""), "wwwww");
    assert_eq!(layers("layer_types: [sliding_attention, full_attention]"), "wfwfw");
    assert_eq!(layers("layer_types: full_attention"), "fffff");
    assert_eq!(
        layers("layer_types: [full_attention, sliding_attention]\n    use_sliding_window: False"),
        "fffff"
    );
    assert_eq!(layers("no_rope_layers: [1, 1, 0]"), "wwnww");
    let both = "layer_types: [full_attention, sliding_attention]\n    no_rope_layers: [0, 1, 1, 1, 0]";
    assert_eq!(layers(both), "0wfw0");
    let theta = |number: usize| {
        let keys = "layer_types: [sliding_attention, full_attention]\n    sliding_theta: 50\n    rope_scaling: {type: linear, factor: 2}";
        let layer = *model(&format!("{window}{keys}")).unwrap().0.model.layer(number);
        (layer.rope_theta, layer.rope_scaling)
    };
    assert_eq!([theta(0), theta(1)], [(50.0, RopeScaling::None), (1e4, RopeScaling::Linear { factor: 2.0 })]);
    let source = |keys: &str| {
        let (plan, _) = model(keys).unwrap_or_else(|error| panic!("{keys}: {error}"));
        assert_eq!(resolve(&plan.to_yaml(), &[]).unwrap().0, plan, "{keys}");
        let of =
            |number: usize| (plan.model.layer(number).kv_source, plan.model.layer(number).intermediate_size);
        [of(1), of(3), of(4)].map(|(source, width)| (source, width / of(0).1))
    };
    let types = "sliding_window: 40\n    layer_types: [sliding_attention, full_attention]\n    ";
    assert_eq!(source("num_kv_shared_layers: 2"), [(None, 1), (Some(2), 1), (Some(2), 1)]);
    let wide = format!("{types}num_kv_shared_layers: 3\n    use_double_wide_mlp: True");
    assert_eq!(source(&wide), [(None, 1), (Some(1), 2), (Some(0), 2)]);
    // Layers of which none masks anything decide nothing.
    let wide = |keys: &str| model(&format!("sliding_window: 32\n    {keys}")).unwrap().0.decisions();
    assert_eq!(wide("layer_types: [sliding_attention, full_attention]"), model("").unwrap().0.decisions());
    for (keys, expected) in [
        (
            "layer_types: [sliding_attention, full_attention]",
            "layer_types: lists `sliding_attention`, and there is no window; give its tokens by `sliding_window`",
        ),
        (
            "no_rope_layers: [1, 1, 1, 1, 1, 0]",
            "no_rope_layers: lists 6 of 5 layers; list all of them, or the first ones, which are repeated",
        ),
        (
            "layer_types: []",
            "layer_types: lists 0 of 5 layers; list all of them, or the first ones, which are repeated",
        ),
        (
            "no_rope_layers: [1, 0]\n    mtp_depth: 1",
            "no_rope_layers: does not say what the blocks of multi-token prediction are; remove it, or `mtp_depth`",
        ),
        (
            "sliding_theta: 50",
            "sliding_theta: there is no layer with a window; remove it, or give the window by `sliding_window`",
        ),
        (
            "sliding_window: 8\n    global_head_dim: 16",
            "global_head_dim: is of layers without a window, and all have it; remove it, or list others in `layer_types`",
        ),
        (
            "global_head_dim: 18",
            "global_head_dim: heads are 18 wide; the kernels take multiples of 4 up to 512, of which an even number \
             rotates",
        ),
        (
            "num_global_key_value_heads: 3",
            "num_global_key_value_heads: 3 key/value heads do not divide num_heads 4; change one of them",
        ),
        (
            "use_v_norm: True",
            "use_v_norm: normalises v beside single heads of q and k; write `use_qk_norm: True`, or remove it",
        ),
        (
            "attention_output_gate: True\n    use_qk_norm: True\n    qk_norm_kind: layer_norm",
            "attention_output_gate: not built yet where heads have LayerNorms; remove it, or `qk_norm_kind`",
        ),
        (
            "attention_k_eq_v: True",
            "attention_k_eq_v: makes values of keys, which are then normalised; write `use_v_norm: True`, or remove it",
        ),
        (
            "type: GPTNeoXConfig\n    use_qk_norm: True\n    use_v_norm: True\n    attention_k_eq_v: True",
            "attention_k_eq_v: not built yet for this type; remove it",
        ),
        (
            "norm_placement: after_sum",
            "norm_placement: `after_sum` is not built yet for this type; write `after`, or `type: OPTConfig`",
        ),
        (
            "type: OPTConfig\n    norm_placement: both",
            "norm_placement: not built yet for this type; write `before` or `after_sum`",
        ),
        ("v_head_dim: 18", "v_head_dim: values are 18 wide; the kernels take multiples of 4 up to 512"),
        (
            "type: Phi3Config\n    v_head_dim: 12",
            "v_head_dim: not built yet for this type; write `type: LlamaConfig`, or remove it",
        ),
        (
            "v_head_dim: 12\n    use_qk_norm: True\n    use_v_norm: True",
            "v_head_dim: not built yet where values are normalised; remove it, or `use_v_norm`",
        ),
        (
            "v_head_dim: 12\n    attention_output_gate: True",
            "v_head_dim: not built yet where attention's output has gates; remove it, or `attention_output_gate`",
        ),
        (
            "v_head_dim: 12\n    global_head_dim: 16",
            "v_head_dim: not built yet where keys are not equally wide in all layers; remove it, or `global_head_dim`",
        ),
        (
            "v_head_dim: 12\n    num_kv_shared_layers: 1",
            "v_head_dim: not built yet where layers share keys and values; remove it, or `num_kv_shared_layers`",
        ),
        (
            "attention_value_scale: 0.7\n    attn_proj_has_bias: True",
            "attention_value_scale: not built yet where attention's output projection has a bias; remove it, or the bias",
        ),
        (
            "attention_sinks: sliding_attention",
            "attention_sinks: there is no layer with a window; write `all`, or give the window by `sliding_window`",
        ),
        (
            "type: Phi3Config\n    attention_sinks: all",
            "attention_sinks: not built yet for this type; write `type: LlamaConfig`, or remove it",
        ),
        (
            "attention_sinks: all\n    mtp_depth: 1",
            "attention_sinks: not built yet with multi-token prediction; remove it, or `mtp_depth`",
        ),
        (
            "num_kv_shared_layers: 5",
            "num_kv_shared_layers: leaves none of 5 layers that has keys and values; lower it",
        ),
        (
            "num_kv_shared_layers: 4\n    sliding_window: 8\n    layer_types: [sliding_attention, full_attention]",
            "num_kv_shared_layers: leaves layer 1 nothing to read: none of the first 1 is without a window; lower it, or \
             change `layer_types`",
        ),
        (
            "num_kv_shared_layers: 1\n    no_rope_layers: [1, 0]",
            "num_kv_shared_layers: not built yet where some layers do not rotate; remove it, or `no_rope_layers`",
        ),
        (
            "num_kv_shared_layers: 1\n    use_qk_norm: True\n    qk_norm_kind: all_heads",
            "num_kv_shared_layers: not built yet with this norm of heads; remove it, or write `qk_norm_kind: heads`",
        ),
        (
            "num_kv_shared_layers: 1\n    attention_output_gate: True",
            "num_kv_shared_layers: not built yet where attention's output has gates; remove it, or `attention_output_gate`",
        ),
        (
            "num_kv_shared_layers: 1\n    layer_types: [linear_attention, full_attention]\n    linear_num_value_heads: 4\n    \
             linear_num_key_heads: 2\n    linear_key_head_dim: 8\n    linear_value_head_dim: 8",
            "num_kv_shared_layers: not built yet beside linear attention; remove it, or write other `layer_types`",
        ),
        (
            "num_kv_shared_layers: 1\n    mtp_depth: 1",
            "num_kv_shared_layers: not built yet with multi-token prediction; remove it, or `mtp_depth`",
        ),
        (
            "use_double_wide_mlp: True\n    num_kv_shared_layers: 1\n    intermediate_size: 2000000000",
            "use_double_wide_mlp: makes feed-forward layers 4000000000 wide, over 2147483648; lower `intermediate_size`",
        ),
        (
            "use_double_wide_mlp: True",
            "use_double_wide_mlp: is of layers that share keys and values; remove it, or give `num_kv_shared_layers`",
        ),
        (
            "hidden_size_per_layer_input: 2000000000",
            "hidden_size_per_layer_input: makes 2000000000 columns for each of 5 layers, over 2147483648 in all; lower it",
        ),
        ("hidden_size_per_layer_input: 6", "hidden_size_per_layer_input: must be a multiple of 4"),
        (
            "hidden_size_per_layer_input: 8\n    mtp_depth: 1",
            "hidden_size_per_layer_input: not built yet with multi-token prediction; remove it, or `mtp_depth`",
        ),
        ("no_rope_layers: [1, 2]", "no_rope_layers: expected 1 or 0 for each layer, found `2`"),
        (
            "layer_types: [conv, full_attention]",
            "layer_types: lists `conv`, which is not built yet for this type; write `type: Lfm2Config`, or list others",
        ),
        (
            "type: Lfm2Config\n    gated_linear_unit: False\n    hidden_act: relu",
            "gated_linear_unit: not built yet for this type; remove it",
        ),
        (
            "type: Lfm2Config\n    conv_L_cache: 4",
            "conv_L_cache: is of layers of the kind `conv`; list such layers in `layer_types`, or remove it",
        ),
        (
            "type: Lfm2Config\n    layer_types: [conv, full_attention]\n    conv_L_cache: 17",
            "conv_L_cache: expected a whole number from 2 to 16, found `17`",
        ),
        (
            "type: Lfm2Config\n    layer_types: [conv, sliding_attention]\n    sliding_window: 8",
            "sliding_window: not built yet beside layers of the kind `conv`; remove it",
        ),
    ] {
        let found = model(keys).unwrap_err().to_string();
        assert!(found.ends_with(expected), "{keys}: {found}");
    }
    let found = model("layer_types: chunked_attention").unwrap_err().to_string();
    let expected = "layer_types: expected full_attention, sliding_attention, linear_attention or conv, or a list of these, \
                    found `chunked_attention`";
    assert!(found.ends_with(expected), "{found}");
}

#[test]
fn a_window_has_three_spellings() {
    let window = |keys: &str| {
        let keys = format!("seq_length: 32\n    {keys}");
        resolve(&BASE.replace("seq_length: 32", &keys), &[]).map(|(plan, _)| plan.model.layer.sliding_window)
    };
    for (keys, expected) in [
        ("sliding_window: 8", Some(8)),
        ("sliding_window: null", None),
        ("sliding_window: 32", None), // all there is
        ("sliding_window: 31", Some(31)),
        ("sliding_window: 8\n    use_sliding_window: False", None),
        ("window_size: [7, 0]", Some(8)),
        ("window_size: [0, 0]", Some(1)),
        ("window_size: [-1, 0]", None),
    ] {
        assert_eq!(window(keys).unwrap(), expected, "{keys}");
    }
    // What it hides nothing of is exported with it, and decides nothing of the run.
    let wide = BASE.replace("seq_length: 32", "seq_length: 32\n    sliding_window: 32");
    let [with, without] = [wide.as_str(), BASE].map(|text| resolve(text, &[]).unwrap().0);
    assert_eq!((with.model.layer.wide_window, without.model.layer.wide_window), (Some(32), None));
    assert_eq!(with.decisions(), without.decisions());
    let again = resolve(&with.to_yaml(), &[]).unwrap().0;
    assert_eq!(again.model, with.model);
    for (keys, expected) in [
        ("sliding_window: 0", "sliding_window: expected a whole number above 0, found `0`"),
        (
            "sliding_window: 8\n    window_size: [7, 0]",
            "window_size: given beside `sliding_window`; keep one form",
        ),
        (
            "window_size: [7, 1]",
            "window_size: expected [left, 0], left a whole number from 0 or -1 for no limit, found [7.0, 1.0]",
        ),
        (
            "window_size: wide",
            "window_size: expected [left, 0], left a whole number from 0 or -1 for no limit, found `wide`",
        ),
    ] {
        let found = window(keys).unwrap_err().to_string();
        assert!(found.ends_with(expected), "{keys}: {found}");
    }
}
