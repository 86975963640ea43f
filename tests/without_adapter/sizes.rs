//! Sizes of any magnitude give recordings or one line, and neither a panic nor a process that is killed for its memory.

use gristmill::kernels::Tier;
use gristmill::settings::{Override, RunConfig};
use gristmill::train::recordings::{Recordings, assumed_capabilities};
use proptest::prelude::{Just, ProptestConfig, Strategy, prop_assert, proptest};
use proptest::{collection, prop_oneof};
use std::path::Path;

const DENSE: &str = "configs/tiny.yaml";
const MIXTURE: &str = "configs/tiny_moe.yaml";

/// What `gristmill plan` says of a configuration on every tier, with the smallest and the largest bindings: nothing, or
/// the first error.
fn refusal(config: &str, flags: &[String]) -> Option<String> {
    let plan = Override::parse_all(flags).and_then(|flags| RunConfig::load(Path::new(config), &flags));
    let plan = match plan {
        Ok(config) => config.plan,
        Err(error) => return Some(error.to_string()),
    };
    let adapters = Tier::ALL.into_iter().flat_map(|tier| {
        [128 << 20, 1 << 30].map(|limit| assumed_capabilities(tier).with_binding_bytes(limit))
    });
    let mut refusals = adapters.filter_map(|adapter| Recordings::new(&plan, adapter, 100).err());
    refusals.next().map(|error| error.to_string())
}

#[track_caller]
fn refuses(config: &str, flags: &[&str], expected: &[&str]) {
    let flags: Vec<String> = flags.iter().map(|flag| flag.to_string()).collect();
    let line = refusal(config, &flags).unwrap_or_else(|| panic!("{flags:?} was accepted"));
    println!("{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    for text in expected {
        assert!(line.contains(text), "`{text}` is not in: {line}");
    }
}

#[test]
fn rows_of_choices_that_no_binding_holds() {
    let flags = ["--batch_size=260", "--moe_config.num_experts_chosen=8", "--moe_config.use_gmm=True"];
    refuses(
        MIXTURE,
        &flags,
        &["an activation of the experts, 266248 rows x 384, takes 391 MiB", "lower runner_config.batch_size"],
    );
}

#[test]
fn more_windows_than_a_grid_has_workgroups() {
    let flags = [
        "--batch_size=70000",
        "--model.model_config.seq_length=4",
        "--model.model_config.hidden_size=8",
        "--model.model_config.num_heads=1",
        "--model.model_config.intermediate_size=8",
    ];
    refuses(DENSE, &flags, &["layers.0.attention", "70000]", "65535", "lower runner_config.batch_size"]);
}

#[test]
fn router_scores_wider_than_any_activation() {
    let flags = [
        "--batch_size=600",
        "--model.model_config.hidden_size=16",
        "--model.model_config.num_heads=1",
        "--model.model_config.intermediate_size=16",
        "--moe_config.expert_num=512",
        "--moe_config.moe_intermediate_size=4",
    ];
    refuses(MIXTURE, &flags, &["600 x 128 tokens x 512 takes 150 MiB", "lower runner_config.batch_size"]);
}

#[test]
fn a_shared_expert_wider_than_any_layer() {
    let flags = ["--batch_size=64", "--moe_config.moe_shared_expert_intermediate_size=4096"];
    refuses(MIXTURE, &flags, &["64 x 128 tokens x 8192 takes 256 MiB", "lower runner_config.batch_size"]);
}

/// A text is continued without dropping any choice, so its experts can have more rows than in training.
#[test]
fn a_sample_that_needs_more_than_training() {
    let flags = [
        "--batch_size=1",
        "--model.model_config.seq_length=100000",
        "--model.model_config.hidden_size=16",
        "--model.model_config.num_heads=1",
        "--model.model_config.intermediate_size=16",
        "--moe_config.num_experts_chosen=8",
        "--moe_config.use_gmm=False",
        "--moe_config.capacity_factor=0.01",
    ];
    refuses(MIXTURE, &flags, &["MiB, over the adapter's largest binding of 128 MiB"]);
}

#[test]
fn adapters_of_any_rank() {
    let with_rank = |rank: &str| {
        let keys = format!("{{pet_type: lora, random_base: True, lora_rank: {rank}, target_modules: '.*'}}");
        format!("--model.model_config.pet_config={keys}")
    };
    let of_experts = |rank: &str| with_rank(rank).replace("target_modules: '.*'", "target_parameters: '.*'");
    refuses(DENSE, &[&with_rank("2147483648")], &["the model would have 2.2e13 parameters"]);
    for rank in [with_rank("1000000"), of_experts("1000000")] {
        let model = if rank.contains("target_modules") { DENSE } else { MIXTURE };
        refuses(model, &[&rank], &["MiB, over the adapter's largest binding of 128 MiB"]);
    }
    refuses(MIXTURE, &["--batch_size=1", &of_experts("40000")], &["a rank of 40000", "lower lora_rank"]);
    assert_eq!(refusal(MIXTURE, &[of_experts("1001")]), None);
    assert_eq!(refusal(DENSE, &[with_rank("1001")]), None);
}

#[test]
fn models_that_cannot_be_listed() {
    let of_model = |key: &str, value: &str| format!("--model.model_config.{key}={value}");
    let refuses_model = |sizes: &[(&str, &str)], expected: &[&str]| {
        let flags: Vec<String> = sizes.iter().map(|(key, value)| of_model(key, value)).collect();
        refuses(MIXTURE, &flags.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    };
    refuses_model(&[("num_layers", "100000000")], &["num_layers", "a whole number from 1 to"]);
    refuses_model(
        &[("seq_length", "200000000"), ("mtp_depth", "100000000")],
        &["mtp_depth: with num_layers 4 makes more than"],
    );
    let table = [("vocab_size", "2147483648"), ("hidden_size", "1048576"), ("num_heads", "8192")];
    refuses_model(&table, &["parameters, and 1.1e12 are the most; lower its sizes"]);
    let heads = [("num_heads", "2147483648"), ("head_dim", "256"), ("hidden_size", "2147483648")];
    refuses_model(&heads, &["parameters, and 1.1e12 are the most; lower its sizes"]);
    let experts = ["--moe_config.expert_num=512", "--model.model_config.num_layers=1000"];
    refuses(MIXTURE, &experts, &["tensors, and 1.0e6 are the most; lower its sizes"]);
}

/// The most layers that are accepted are planned in seconds.
#[test]
fn the_deepest_model() {
    let flags = ["--model.model_config.num_layers=1000", "--batch_size=1"].map(str::to_string);
    let start = std::time::Instant::now();
    assert_eq!(refusal(DENSE, &flags), None);
    println!("four plans of a thousand layers took {:.1} s", start.elapsed().as_secs_f64());
}

#[test]
fn more_chunks_of_logits_than_can_be_recorded() {
    let flags = [
        "--batch_size=16384",
        "--model.model_config.vocab_size=2097152",
        "--model.model_config.hidden_size=4",
        "--model.model_config.num_heads=1",
        "--model.model_config.intermediate_size=4",
    ];
    refuses(DENSE, &flags, &["chunks, of which a micro-batch has", "lower runner_config.batch_size"]);
}

#[test]
fn micro_batches_are_counted_in_32_bits() {
    let flags = ["--gradient_accumulation_steps=4294967296"];
    refuses(DENSE, &flags, &["--gradient_accumulation_steps: expected a whole number from 1 to 2147483648"]);
}

/// A power of two, or a number next to one.
fn size(largest: u32) -> impl Strategy<Value = u64> {
    let near = prop_oneof![Just(-1i64), Just(0), Just(1)];
    (0..=largest, near).prop_map(|(power, near)| ((1i64 << power) + near).max(1) as u64)
}

/// Flags that give each of `keys` a size up to two to its power.
fn flags(keys: &'static [(&'static str, u32)]) -> impl Strategy<Value = Vec<String>> {
    let sizes: Vec<_> = keys.iter().map(|(_, largest)| size(*largest)).collect();
    let which = collection::vec(proptest::bool::weighted(0.7), keys.len());
    (sizes, which).prop_map(move |(sizes, which)| {
        let given = keys.iter().zip(sizes).zip(which).filter(|(_, given)| *given);
        given.map(|(((key, _), size), _)| format!("--{key}={size}")).collect()
    })
}

const SHAPE: [(&str, u32); 9] = [
    ("batch_size", 20),
    ("model.model_config.seq_length", 12),
    ("model.model_config.vocab_size", 22),
    ("model.model_config.head_dim", 8),
    ("model.model_config.num_heads", 6),
    ("model.model_config.hidden_size", 12),
    ("model.model_config.intermediate_size", 14),
    ("model.model_config.num_layers", 3),
    ("gradient_accumulation_steps", 32),
];

const EXPERTS: [(&str, u32); 5] = [
    ("moe_config.expert_num", 9),
    ("moe_config.num_experts_chosen", 4),
    ("moe_config.moe_intermediate_size", 14),
    ("moe_config.shared_expert_num", 4),
    ("moe_config.n_group", 3),
];

const ANYTHING: [(&str, u32); 10] = [
    ("batch_size", 32),
    ("model.model_config.seq_length", 32),
    ("model.model_config.vocab_size", 32),
    ("model.model_config.num_heads", 32),
    ("model.model_config.hidden_size", 32),
    ("model.model_config.intermediate_size", 32),
    ("model.model_config.num_layers", 32),
    ("model.model_config.mtp_depth", 32),
    ("moe_config.moe_intermediate_size", 32),
    ("moe_config.moe_shared_expert_intermediate_size", 32),
];

/// Heads that the kernels take, so that a shape is not refused for them alone.
fn heads() -> impl Strategy<Value = String> {
    (0u32..=6).prop_map(|power| format!("--model.model_config.head_dim={}", 4 << power))
}

/// The ways in which choices become rows.
fn dispatch() -> impl Strategy<Value = Vec<String>> {
    let factor = prop_oneof![Just("0.001"), Just("0.2"), Just("1.1"), Just("600.0")];
    (proptest::bool::ANY, factor).prop_map(|(is_dropless, factor)| {
        vec![
            format!("--moe_config.use_gmm={}", if is_dropless { "True" } else { "False" }),
            format!("--moe_config.capacity_factor={factor}"),
        ]
    })
}

/// A refusal is one line for each fault of the file, or one that a recording was refused with.
fn is_answer(refusal: Option<&String>) -> bool {
    refusal.is_none_or(|text| text.lines().count() <= 21 && text.lines().all(|line| !line.is_empty()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn dense_models_of_any_size(shape in flags(&SHAPE), head_dim in heads()) {
        let flags = [shape, vec![head_dim]].concat();
        let refusal = refusal(DENSE, &flags);
        prop_assert!(is_answer(refusal.as_ref()), "{flags:?}: {refusal:?}");
    }

    #[test]
    fn mixtures_of_any_size(
        shape in flags(&SHAPE), experts in flags(&EXPERTS), dispatch in dispatch(), head_dim in heads()
    ) {
        let flags = [shape, experts, dispatch, vec![head_dim]].concat();
        let refusal = refusal(MIXTURE, &flags);
        prop_assert!(is_answer(refusal.as_ref()), "{flags:?}: {refusal:?}");
    }

    #[test]
    fn sizes_beyond_all_reason(wild in flags(&ANYTHING), dispatch in dispatch()) {
        let flags = [wild, dispatch].concat();
        let refusal = refusal(MIXTURE, &flags);
        prop_assert!(is_answer(refusal.as_ref()), "{flags:?}: {refusal:?}");
    }
}
