use super::*;

const HEADS: Heads = Heads { count: 4, width: 2 };

#[test]
fn stacked_projections_follow_one_another() {
    // Four query heads and two key and value heads, two wide.
    let rows = |projection| HEADS.rows(Stacked(projection), projection, 16, false).unwrap();
    let expected = [(Query, 0..8), (Key, 8..12), (Value, 12..16)];
    expected.into_iter().for_each(|(projection, range)| assert!(rows(projection).iter().eq([&range])));
}

#[test]
fn grouped_projections_are_taken_group_by_group() {
    let rows = |projection| HEADS.rows(Grouped(projection), projection, 16, true).unwrap();
    assert_eq!(rows(Query), [0..4, 8..12]);
    assert_eq!((rows(Key), rows(Value)), (vec![4..6, 12..14], vec![6..8, 14..16]));
    // Keys and values alone.
    let rows = |projection| HEADS.rows(Grouped(projection), projection, 16, false).unwrap();
    assert_eq!((rows(Key).len(), rows(Value)), (4, vec![2..4, 6..8, 10..12, 14..16]));
}

#[test]
fn heads_that_do_not_fit_are_refused() {
    for total in [0, 8, 9, 15, 17] {
        assert_eq!(HEADS.rows(Stacked(Key), Key, total, true), None, "{total}");
        assert_eq!(HEADS.rows(Grouped(Key), Key, total, true), None, "{total}");
    }
}

#[test]
fn projections_in_one_tensor_are_rows_of_it() {
    for (mark, name, cut) in [
        (
            "transformer.encoder.layers.0.self_attention.query_key_value.weight",
            "transformer.encoder.layers.3.self_attention.query_key_value.weight",
            Stacked(Query),
        ),
        ("transformer.h.0.mlp.w2.weight", "transformer.h.3.attn.c_attn.weight", Stacked(Query)),
        ("model.layers.0.attention.wqkv.weight", "model.layers.3.attention.wqkv.weight", Grouped(Query)),
        (
            "transformer.h.0.self_attention.key_value.weight",
            "transformer.h.3.self_attention.query.weight",
            Whole,
        ),
    ] {
        let published = Published::recognise(&Json::Null, [mark].into_iter()).unwrap();
        let place = published.place("model.layers.3.self_attn.q_proj.weight").unwrap();
        assert_eq!((place.name.as_str(), place.cut), (name, cut));
    }
    // Gate, up and down of a feed-forward network go by other names in each.
    for (mark, names) in [
        (
            "transformer.h.0.mlp.w2.weight",
            ["w2", "w1", "c_proj"].map(|name| format!("transformer.h.3.mlp.{name}.weight")),
        ),
        (
            "model.layers.0.attention.wqkv.weight",
            ["w1", "w3", "w2"].map(|name| format!("model.layers.3.feed_forward.{name}.weight")),
        ),
    ] {
        let published = Published::recognise(&Json::Null, [mark].into_iter()).unwrap();
        for (ours, name) in ["gate_proj", "up_proj", "down_proj"].into_iter().zip(names) {
            let place = published.place(&format!("model.layers.3.mlp.{ours}.weight")).unwrap();
            assert_eq!((place.name, place.cut), (name, Whole), "{ours}");
        }
    }
    assert!(
        Published::recognise(&Json::Null, ["model.layers.0.self_attn.q_proj.weight"].into_iter()).is_none()
    );
}
