//! Every shader variant that a run can ask for: it composes, naga validates it, and its params struct is the one that Rust
//! writes.

use crate::configuration::plan;
use crate::variants::{grouped_products, permutations, routers};
use gristmill::device::lane_probe;
use gristmill::element::Element::{self, F32};
use gristmill::kernels::{Access, Capabilities, Composed, Kernel, Tier, compose, sources};
use gristmill::ops::attention::{Attention, DocumentBounds, attention, attention_backward};
use gristmill::ops::dropout::{Dropout, random_words};
use gristmill::ops::heads::HeadLayout;
use gristmill::ops::unfused;
use gristmill::record::{Dispatch, Recorder};
use gristmill::settings::OptimizerType;
use gristmill::train::recordings::Recordings;
use gristmill::train::state::{LossState, StepState};
use std::collections::{BTreeSet, HashSet};
use std::mem::{offset_of, size_of};
use std::path::Path;

/// A model that uses every kernel.
const EVERYTHING: &str = "
model:
  model_config: { vocab_size: 300, hidden_size: 36, num_layers: 1, num_heads: 4, n_kv_heads: 2, head_dim: 12,
                  intermediate_size: 37, seq_length: 16, qkv_has_bias: True, use_qk_norm: True }
train_dataset: { data_loader: { type: CargoRegistryDataLoader } }
lr_schedule: { learning_rate: 1.0e-3 }
sample: { prompt: a, tokens: 1 }
";

fn everything(overrides: &[&str], capabilities: Capabilities) -> Vec<Dispatch> {
    let plan = plan(EVERYTHING, overrides).unwrap_or_else(|e| panic!("{e}"));
    let recordings = Recordings::new(&plan, capabilities, 10).expect("recordings");
    recordings.all().into_iter().flat_map(|recording| recording.dispatches.clone()).collect()
}

/// The compositions that only benches record.
fn compositions(capabilities: Capabilities) -> Vec<Dispatch> {
    let layout = HeadLayout { heads: 2, kv_heads: 1, head_dim: 8, value_dim: 8 };
    let shape = Attention { layout, tokens: 5, is_causal: true, scale: 1.0, window: None, dropout: None };
    let mut rec = Recorder::new("compositions", capabilities);
    let mut tensor = |rows, cols| rec.tensor("x", rows, cols, Element::F32);
    let (x, cos, sin, turned) = (tensor(5, 16), tensor(5, 8), tensor(5, 8), tensor(5, 16));
    let (gate_up, y, qkv) = (tensor(5, 32), tensor(5, 16), tensor(5, layout.cols()));
    unfused::rope(&mut rec, x, cos, sin, 8, turned);
    unfused::swiglu(&mut rec, gate_up, y);
    unfused::attention(&mut rec, qkv, y, &shape);
    rec.finish().dispatches
}

/// Attention within documents, with window and dropout, and the kernel that only tests use.
fn packed_documents(capabilities: Capabilities) -> Vec<Dispatch> {
    let mut rec = Recorder::new("packed documents", capabilities);
    let layout = HeadLayout { heads: 4, kv_heads: 2, head_dim: 8, value_dim: 12 };
    let tensor = |rec: &mut Recorder, cols| rec.tensor("x", 16, cols, F32);
    let [starts, ends, words] = [16, 16, 16].map(|cols| rec.tensor("integers", 1, cols, F32));
    let state = rec.tensor("dropout state", 1, 4, F32);
    let (qkv, dqkv) = (tensor(&mut rec, layout.cols()), tensor(&mut rec, layout.cols()));
    let (out, dout) = (tensor(&mut rec, layout.out_cols()), tensor(&mut rec, layout.out_cols()));
    let lse = tensor(&mut rec, layout.heads);
    let place = Dropout { probability: 0.1, seed: 0, site: 0, state };
    random_words(&mut rec, words, &place);
    for (window, dropout) in [(None, None), (Some(3), None), (None, Some(place)), (Some(3), Some(place))] {
        let shape = Attention { layout, tokens: 16, is_causal: true, scale: 1.0, window, dropout };
        let documents = Some(DocumentBounds { starts, ends });
        attention(&mut rec, qkv, out, lse, documents, &shape);
        attention_backward(&mut rec, qkv, out, dout, lse, dqkv, documents, &shape);
    }
    rec.finish().dispatches
}

/// One dispatch of every variant that a recording can contain.
pub fn variants() -> Vec<Dispatch> {
    let plain = [
        "--model.model_config.use_qk_norm=False",
        "--model.model_config.qkv_has_bias=False",
        "--model.model_config.sliding_window=5",
    ];
    let tied =
        ["--model.model_config.tie_word_embeddings=True", "--model.model_config.rotary_interleaved=True"];
    let dropping = [
        "--model.model_config.attention_dropout=0.1",
        "--model.model_config.hidden_dropout=0.1",
        "--model.model_config.emb_dropout_prob=0.1",
    ];
    let gpt2 = [
        "--model.model_config={type: GPT2Config, vocab_size: 300, hidden_size: 36, num_layers: 1, num_heads: 3, \
         seq_length: 16}",
    ];
    let exact = [
        "--model.model_config={type: GPT2Config, vocab_size: 300, hidden_size: 36, num_layers: 1, num_heads: 3, \
         seq_length: 16, hidden_act: gelu_exact}",
    ];
    let wide =
        ["--model.model_config.head_dim=64", "--batch_size=32", "--model.model_config.hidden_size=512"];
    let optimizers: Vec<String> =
        OptimizerType::words().map(|word| format!("--optimizer.type={word}")).collect();
    let mut seen = HashSet::new();
    let software = Capabilities::software();
    let others = [software.with_lanes(1), software.with_lanes(4), software.with_tier(Tier::Portable)];
    [software]
        .into_iter()
        .chain(others)
        .flat_map(|capabilities| {
            let models = [&[][..], &plain, &tied, &gpt2, &exact, &dropping, &wide];
            let models = models.into_iter().flat_map(move |o| everything(o, capabilities));
            let optimizers = optimizers.iter().flat_map(move |o| everything(&[o], capabilities));
            models
                .chain(optimizers)
                .chain(packed_documents(capabilities))
                .chain(compositions(capabilities))
                .chain(grouped_products(capabilities))
                .chain(permutations(capabilities))
                .chain(routers(capabilities))
        })
        .chain([4, 8].into_iter().flat_map(|lanes| lane_probe(lanes, true).1.dispatches))
        .filter(|dispatch| seen.insert(dispatch.kernel.clone()))
        .collect()
}

#[test]
fn every_variant_composes_and_its_params_are_those_of_rust() {
    let variants = variants();
    println!("{} variants", variants.len());
    for dispatch in &variants {
        let composed = compose(&dispatch.kernel).unwrap_or_else(|e| panic!("{e}"));
        let given: BTreeSet<u32> = dispatch.bindings.iter().map(|(index, _)| *index).collect();
        let used = composed.bindings.iter().filter(|(_, access)| *access != Access::Uniform);
        let used: BTreeSet<u32> = used.map(|(index, _)| *index).collect();
        assert_eq!(given, used, "{}: bindings given and used", dispatch.kernel);
        let (fields, size) = uniform_fields(&dispatch.kernel, &composed);
        let rust: Vec<(String, u32)> =
            dispatch.fields.iter().map(|&(name, offset)| (name.to_string(), offset as u32)).collect();
        assert_eq!(fields, rust, "{}: fields of the params struct", dispatch.kernel);
        assert_eq!(size as usize, dispatch.params.len(), "{}: size of the params struct", dispatch.kernel);
    }
}

/// The fields of the uniform struct, as names and offsets, and its size.
fn uniform_fields(kernel: &Kernel, composed: &Composed) -> (Vec<(String, u32)>, u32) {
    let uniform =
        composed.module.global_variables.iter().find(|(_, g)| g.space == naga::AddressSpace::Uniform);
    let (_, uniform) = uniform.unwrap_or_else(|| panic!("{kernel} has no params"));
    struct_fields(&composed.module, uniform.ty)
}

fn struct_fields(module: &naga::Module, ty: naga::Handle<naga::Type>) -> (Vec<(String, u32)>, u32) {
    match &module.types[ty].inner {
        naga::TypeInner::Struct { members, span } => {
            (members.iter().map(|m| (m.name.clone().unwrap_or_default(), m.offset)).collect(), *span)
        }
        other => panic!("a struct was expected, not {other:?}"),
    }
}

#[test]
fn state_structs_are_those_of_rust() {
    let kernel =
        Kernel::new("grad_norm", "finish_step", Element::F32).constant("LANES", 64).constant("BLOCK", 256);
    let module = compose(&kernel).expect("it composes").module;
    let fields = |name: &str| {
        let of_name = |ty: &naga::Type| ty.name.as_ref().is_some_and(|n| n.contains(name));
        let (handle, _) = module.types.iter().find(|(_, ty)| of_name(ty)).expect("the struct is there");
        struct_fields(&module, handle)
    };
    macro_rules! rust {
        ($kind:ty: $($field:ident)*) => {
            (vec![$((stringify!($field).to_string(), offset_of!($kind, $field) as u32)),*], size_of::<$kind>() as u32)
        };
    }
    assert_eq!(
        fields("StepState"),
        rust!(StepState: loss_scale global_step is_overflow grad_norm grad_factor learning_rate bias_correction1
            bias_correction2 loss is_halted overflows step)
    );
    assert_eq!(fields("LossState"), rust!(LossState: seed count loss_sum token_sum mean_sum));
}

#[test]
fn unknown_conditions_and_missing_entry_points_are_errors() {
    let kernel = Kernel::new("rms_norm", "layer_norm", Element::F32);
    let kernel = kernel.constant("LANES", 64).constant("ROWS", 64);
    let error = compose(&kernel).err().expect("no such entry point").to_string();
    assert!(error.contains("rms_norm:layer_norm f32"), "{error}");
}

/// The embedded list equals the folder, and every file starts with a header comment.
#[test]
fn every_shader_file_is_embedded_and_has_a_header() {
    let mut files = BTreeSet::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("shaders");
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the folder of shaders") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(inside) = path.strip_prefix(&root) {
                let parts: Vec<_> =
                    inside.with_extension("").iter().map(|p| p.to_string_lossy().into_owned()).collect();
                files.insert(parts.join("/"));
            }
        }
    }
    let embedded: BTreeSet<String> = sources().map(|(path, _)| path).collect();
    assert_eq!(files, embedded);
    for (path, source) in sources() {
        assert!(source.starts_with("// "), "shaders/{path}.wgsl starts without a header");
        // DX12 does not provide it in indirect launches.
        assert!(!source.contains("num_workgroups"), "shaders/{path}.wgsl reads the size of its grid");
    }
}
