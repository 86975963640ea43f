//! Tensors of a file that the model has no place for are refused.

use crate::published::weights;
use crate::runs::{Setup, TensorFile, Words, new_trainer, read_tensors, save_checkpoint, write_tensors};
use std::path::Path;

/// Loads `tensors` with a `config.json` beside them, and what is wrong with them; `is_partial` leaves out what has no
/// place.
fn load(setup: &Setup, tensors: &TensorFile, config: &str, is_partial: bool) -> Result<TensorFile, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    write_tensors(&path, tensors);
    std::fs::write(folder.path().join("config.json"), config).expect("a file");
    let (plan, _, length) = setup.data();
    let gpu = setup.gpu();
    let trainer = new_trainer(&gpu, &plan, &length);
    trainer.load_weights(&path, is_partial).map_err(|error| error.to_string())?;
    let saved: &Path = &save_checkpoint(&trainer, 1, folder.path());
    Ok(read_tensors(&saved.join("model.safetensors")))
}

#[test]
fn a_tensor_without_a_place_is_refused_unless_it_may_be_left_out() {
    let setup = Setup::new("unplaced", "");
    let ours = weights(&setup, None);
    let with = |name: &str| {
        let mut tensors = ours.clone();
        tensors.insert(name.to_string(), Words { shape: vec![2], words: vec![0; 2] });
        tensors
    };
    let sinks = with("model.layers.0.self_attn.sinks");
    let error = load(&setup, &sinks, "{}", false).expect_err("a tensor without a place");
    let says = "model.safetensors: 1 of its tensors have no place in this model, `model.layers.0.self_attn.sinks` among them; give \
                model.model_config the shape of the checkpoint, or load another, or write `load_partial: True` to leave them out";
    assert!(error.ends_with(says), "{error}");
    assert!(load(&Setup::new("unplaced", "").with(&["--seed=9"]), &sinks, "{}", true) == Ok(ours.clone()));
    // Tables follow from the shape.
    assert!(
        load(&setup, &with("model.layers.0.self_attn.rotary_emb.inv_freq"), "{}", false) == Ok(ours.clone())
    );
    // Layers beyond the last are of multi-token prediction in some classes, and of a deeper model in others.
    let further = with("model.layers.2.eh_proj.weight");
    let config = |kind: &str| format!("{{\"model_type\": \"{kind}\", \"num_hidden_layers\": 2}}");
    assert!(load(&setup, &further, &config("glm4_moe"), false) == Ok(ours.clone()));
    let of_layer = with("model.layers.1.eh_proj.weight");
    for (tensors, config) in
        [(&further, config("llama")), (&further, "{}".into()), (&of_layer, config("glm4_moe"))]
    {
        assert!(load(&setup, tensors, &config, false).expect_err(&config).contains("have no place"));
    }
}

/// Of layers that read the keys and values of others.
#[test]
fn keys_that_no_layer_reads_need_no_place() {
    let setup = Setup::new("unread keys", "num_kv_shared_layers: 1");
    let ours = weights(&setup, None);
    let load = |name: &str, shared: usize| {
        let mut tensors = ours.clone();
        tensors.insert(name.to_string(), Words { shape: vec![2], words: vec![0; 2] });
        let config = format!(
            "{{\"model_type\": \"gemma4_text\", \"num_hidden_layers\": 2, \"num_kv_shared_layers\": {shared}}}"
        );
        load(&setup, &tensors, &config, false)
    };
    assert!(load("model.layers.1.self_attn.k_proj.weight", 1) == Ok(ours.clone()));
    for (name, shared) in [
        ("model.layers.1.self_attn.k_proj.weight", 0),
        ("model.layers.1.self_attn.q_norm.weight", 1),
        ("model.layers.0.self_attn.k_norm.weight", 1),
    ] {
        assert!(load(name, shared).expect_err(name).contains("have no place"));
    }
}

#[test]
fn a_tied_head_may_be_there_twice() {
    let setup = Setup::new("tied", "tie_word_embeddings: True");
    let ours = weights(&setup, None);
    let mut twice = ours.clone();
    twice.insert("lm_head.weight".to_string(), ours["model.embed_tokens.weight"].clone());
    assert!(load(&setup, &twice, "{}", false) == Ok(ours));
    twice.get_mut("lm_head.weight").expect("the head").words[7] ^= 1;
    let error = load(&setup, &twice, "{}", false).expect_err("another head");
    assert!(error.contains("`lm_head.weight` among them"), "{error}");
}
